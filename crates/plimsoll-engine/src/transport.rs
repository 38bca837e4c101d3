//! Sockets below the event loop: addresses and their resolution, the network and its simulation, readiness, proxies'
//! tunnels, and what a lost connection means.

pub mod address;
pub(crate) mod addresses;
pub(crate) mod connection_loss;
pub mod descriptors;
pub mod network;
pub mod poller;
pub mod tunnel;
