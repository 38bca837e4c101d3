//! Files over HTTP/1.1 (RFC 9112), to measure TLS itself: handshakes and bulk transfer.
//!
//! A fetch is a call of [`crate::http`] that expects one status and a body of one size; this module adds its section
//! and flags. `target` is the file server.

pub(crate) mod openssl;
mod options;
pub mod sweep_checks;
#[cfg(feature = "targets")]
pub mod target;

pub use options::{FetchFlags, FetchOptions};
