//! The load generator: one event loop per core, which starts calls when they are due, transfers bytes between drivers
//! and transports, and records the outcome of every call.

#![warn(missing_docs)]

pub mod clock;
mod conductor;
pub mod defect;
pub mod driver;
mod error;
mod event_loop;
pub mod fault;
pub mod host;
mod pauses;
pub mod script;
mod stop_flag;
pub mod structures;
pub mod tls;
pub mod transport;
pub mod worker;

pub use clock::Clock;
pub use conductor::{
    Observation, RunCompletion, RunRole, TraceLevel, concurrent_connections,
    concurrent_script_connections, max_connections, resolve, run, run_scripts,
};
pub use driver::{
    CallId, CallProgress, CompletedCall, Direction, Driver, Event, Protocol, ProtocolError, Tracer,
};
pub use error::{ConnectFailure, EngineError};
pub use stop_flag::StopFlag;
pub use transport::address::Address;
