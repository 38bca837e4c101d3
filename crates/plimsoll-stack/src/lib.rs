//! The environment of load tests on this machine: certificates, network namespaces, and stacks of servers and relays
//! to test.

#![warn(missing_docs)]

pub mod certificates;
pub mod namespace;
pub mod sessions;
