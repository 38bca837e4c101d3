//! The protocols under test, one folder each: frame codec, driver (client side) and target (reference
//! server).
//!
//! Drivers do no I/O of their own ([`plimsoll_engine::driver::Driver`]): no socket, no task, no clock. Only
//! the targets use tokio, behind the feature `targets`.

#![warn(missing_docs)]

mod alternatives;
pub mod bolt;
mod call_table;
mod clock_origin;
mod detail_budget;
#[cfg(feature = "targets")]
mod dial;
pub mod fetch;
pub mod flags;
pub mod foreign;
mod frame_trace;
mod framed;
pub mod grpc;
mod heartbeats;
mod hex;
pub mod hold;
#[cfg(feature = "targets")]
pub mod hostile;
pub mod http;
mod http2;
pub mod journey;
pub mod plugin;
mod prepare_error;
mod protocol_module;
pub mod registry;
pub mod relayed;
mod server_query;
mod service_offer;
#[cfg(feature = "targets")]
pub mod serving;
pub mod session;
mod unpacking;
mod xorshift;
