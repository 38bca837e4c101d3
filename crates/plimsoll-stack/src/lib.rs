//! What a load test needs around it on this machine: certificates, network namespaces, and
//! the stacks of servers and relays that it runs against.

#![warn(missing_docs)]

pub mod certificates;
pub mod namespace;
pub mod sessions;
