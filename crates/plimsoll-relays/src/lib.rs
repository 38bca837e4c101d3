//! Relays that carry traffic between clients and services, and a simulated language model: the
//! sidecar, the WebSocket gateway, and the bus between the gateway and the model.

#![warn(missing_docs)]

pub mod bus;
mod client_address;
pub mod gateway;
pub mod llm;
mod metrics;
mod refusals;
pub mod sidecar;
pub mod token;
