//! What stands between a client and a service and carries its traffic, and the service
//! simulator that feeds it.

#![warn(missing_docs)]

mod asker;
pub mod bus;
pub mod gateway;
pub mod llm;
mod metrics;
mod refusals;
pub mod sidecar;
pub mod token;
