//! Requests over HTTP/1.1 (RFC 9112) and HTTP/2 (RFC 9113): any method, headers and bodies; answers held to what a plan
//! expects of them, and taken apart into events where they stream.
//!
//! [`Http1Protocol`] and [`Http2Protocol`] are the client side: `request` makes what is sent, `checks` knows what an
//! answer has to be, `content` looks into bodies, [`events`] into streams. `target` is the server.

mod checks;
mod choosing;
mod content;
mod driver;
pub mod events;
mod multiplexed;
mod needle;
mod request;
#[cfg(feature = "targets")]
pub mod target;
mod trace;

pub use choosing::HttpProtocol;
pub(crate) use driver::broken;
pub use driver::{Http1Driver, Http1Protocol};
pub use multiplexed::{Http2Driver, Http2Protocol};
pub use request::HttpRequest;
