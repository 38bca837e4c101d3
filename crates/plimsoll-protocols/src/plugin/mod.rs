//! Protocols implemented by codec plugins ([`plimsoll_plugin`]): the client driver and the reference server.
//! Only the plugin knows the format of frames.

mod driver;
mod options;
pub(crate) mod relayed;
mod request;
mod steps;
#[cfg(feature = "targets")]
pub mod target;
mod trace;
mod varying;

pub use driver::{PluginDriver, PluginProtocol};
pub use options::{PluginFlags, PluginOptions};
pub use request::{PluginCall, RequestContent, build_frame};
pub use trace::PluginFrameTracer;
pub use varying::VaryingPluginCall;
