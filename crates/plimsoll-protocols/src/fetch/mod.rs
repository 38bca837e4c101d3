//! Files over HTTP/1.1 (RFC 9112): what measures TLS itself, its handshakes and its bulk.
//!
//! A file is a call of [`crate::http`] that answers with one status and a body of one size; here is what is
//! typed for it. `target` is the file server.

pub(crate) mod openssl;
mod options;
pub mod sweeping;
#[cfg(feature = "targets")]
pub mod target;

pub use options::{FetchFlags, FetchOptions};
