//! The gRPC reference servers: servers with known behaviour for trying out and testing loads.
//!
//! Each server is bound ([`plimsoll_serving::ListenOptions::bind`]) and then runs until a future completes; it
//! returns its counters.

mod compression;
pub mod echo;
pub mod fast;
pub mod known;
pub mod orders;
mod reflection_service;
pub mod score;

/// Messages and service traits generated from `proto/`.
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]
pub mod generated {
    /// `score.proto`.
    pub mod score {
        tonic::include_proto!("score");
    }
    /// `echo.proto`.
    pub mod echo {
        tonic::include_proto!("grpc.examples.echo");
    }
    /// `orders.proto`.
    pub mod orders {
        tonic::include_proto!("orders");
    }
    /// The descriptors of all services, for reflection.
    pub(super) const SERVICE_DESCRIPTORS: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/services.binpb"));
}
