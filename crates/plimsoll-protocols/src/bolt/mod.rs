//! SOFABolt and SOFARPC (SOFABolt 1.6, protocol versions 1 and 2): the frame codec, the
//! Hessian 2 dialect that SOFARPC speaks, the client driver and the reference server.

pub mod call_encoding;
mod driver;
pub mod frame;
pub mod header;
pub mod hessian;
mod options;
pub(crate) mod relayed;
mod report;
mod request;
pub mod sofa;
pub mod status;
mod steps;
#[cfg(feature = "targets")]
pub mod target;
mod trace;
mod varying;

pub use driver::{BoltDriver, BoltProtocol};
pub use frame::{
    BoltCommand, BoltFrame, BoltFrameError, BoltFrameHead, BoltFrameKind, FrameLayout,
};
pub use options::{BoltFlags, BoltOptions};
pub use request::BoltCall;
pub use status::Status;
pub use trace::BoltFrameTracer;
pub use varying::VaryingBoltCall;
