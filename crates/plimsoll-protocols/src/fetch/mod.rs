//! Files over HTTP/1.1 (RFC 9112): what measures TLS itself, its handshakes and its bulk.
//!
//! [`FetchProtocol`] is the client side, `target` the file server.

mod driver;
mod options;
#[cfg(feature = "targets")]
pub mod target;

pub use driver::{FetchDriver, FetchProtocol, FetchRequest};
pub use options::{FetchCall, FetchFlags, FetchOptions};
