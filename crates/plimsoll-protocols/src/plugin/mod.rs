//! A protocol that a codec plugin brings ([`plimsoll_plugin`]): the client driver and the
//! reference server. What a frame is, only the plugin knows.

mod driver;
mod options;
pub(crate) mod relayed;
mod request;
#[cfg(feature = "targets")]
pub mod target;
mod trace;

pub use driver::{PluginDriver, PluginProtocol};
pub use options::{PluginFlags, PluginOptions};
pub use request::{Content, PluginCall, frame_of};
pub use trace::FrameTracer;
