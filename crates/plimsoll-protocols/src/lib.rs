//! The protocols under test, one folder each: frame codec, driver (client side) and target (reference
//! server).
//!
//! Drivers do no I/O of their own ([`plimsoll_engine::driver::Driver`]): no socket, no task, no clock. Only
//! the targets use tokio, behind the feature `targets`.

#![warn(missing_docs)]

mod alternatives;
mod asked;
pub mod bolt;
mod calls;
mod details;
pub mod fetch;
pub mod flags;
pub mod foreign;
pub mod grpc;
mod heartbeats;
mod hex;
pub mod hold;
#[cfg(feature = "targets")]
pub mod hostile;
pub mod http;
mod http2;
mod numbered;
pub mod plugin;
mod prepare_error;
mod protocol_module;
pub mod registry;
pub mod relayed;
#[cfg(feature = "targets")]
pub mod serving;
pub mod session;
mod traced;
mod unix_zero;
mod unpacking;
mod xorshift;
