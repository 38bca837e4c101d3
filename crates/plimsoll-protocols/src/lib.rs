//! The protocols under test, one folder each: frame codec, driver (client side) and target (reference
//! server).
//!
//! Drivers do no I/O themselves ([`plimsoll_engine::driver::Driver`]): no socket, no task, no clock. Only the targets
//! use tokio, behind the feature `targets`.

#![warn(missing_docs)]

pub mod bolt;
pub mod fetch;
mod framed;
pub mod grpc;
pub mod hold;
pub mod http;
mod http2;
pub mod interface;
pub mod journey;
pub mod plugin;
pub mod registry;
pub mod session;
mod shared;
