//! What stands between a client and a service and carries its traffic.

pub mod sidecar;
