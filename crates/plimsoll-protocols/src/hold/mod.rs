//! Connections that rest: opened, held, and used so seldom that what they cost is memory.
//!
//! There is no protocol but that the server echoes every byte. [`HoldProtocol`] is the
//! client side, `target` the server.

mod driver;
mod options;
#[cfg(feature = "targets")]
pub mod target;

pub use driver::{HoldDriver, HoldProtocol};
pub use options::{HoldCall, HoldFlags, HoldOptions};
