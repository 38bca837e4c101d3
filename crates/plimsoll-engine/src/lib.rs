//! The load generator: one event loop per core, which starts calls when they are due, transfers bytes between drivers
//! and transports, and records the outcome of every call.

#![warn(missing_docs)]

pub mod address;
mod addresses;
pub mod awake_cores;
pub mod cgroup;
pub mod clock;
mod conductor;
pub mod cores;
pub mod defect;
pub mod descriptors;
pub mod driver;
mod error;
mod event_loop;
pub mod fault;
mod heap;
pub mod memory_layout;
mod connection_loss;
mod machine_meter;
pub mod memory;
pub mod network;
mod pauses;
pub mod poller;
pub mod prefetch;
pub mod resources;
pub mod script;
pub mod slab;
mod stop_flag;
pub mod tls;
pub mod tunnel;
pub mod worker;

pub use address::Address;
pub use clock::Clock;
pub use conductor::{
    Observation, RunCompletion, RunRole, TraceLevel, concurrent_connections, concurrent_script_connections,
    max_connections, resolve, run, run_scripts,
};
pub use driver::{
    CallId, CallProgress, CompletedCall, Direction, Driver, Event, Protocol, ProtocolError, Tracer,
};
pub use error::EngineError;
pub use stop_flag::StopFlag;
