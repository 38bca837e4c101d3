//! The wire formats that several protocols and relays share: HTTP/1.1, HTTP/2, HPACK,
//! WebSocket and the PROXY protocol.
//!
//! Bytes in, messages out, and back: no socket, no task, no clock, and no knowledge of
//! who calls. Drivers, reference servers, the sidecar and the gateway stand on it.

#![warn(missing_docs)]

pub mod hpack;
pub mod http1;
pub mod http2;
pub mod proxy;
pub mod websocket;
