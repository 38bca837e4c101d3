//! Idle connections: they are opened, held, and used so rarely that memory is their only cost worth measuring.
//!
//! The only protocol is that the server echoes every byte. [`HoldProtocol`] is the client side, `target` the server.

mod driver;
mod options;
#[cfg(feature = "targets")]
pub mod target;

pub use driver::{HoldDriver, HoldProtocol};
pub use options::{HoldCall, HoldFlags, HoldOptions};
