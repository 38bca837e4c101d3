//! The wire formats shared by several protocols and relays: HTTP/1.1, HTTP/2, HPACK, WebSocket and the PROXY protocol.
//!
//! The functions convert bytes to messages and back, without sockets, tasks or clocks, and independently of the caller.
//! Drivers, reference servers, the sidecar and the gateway use them.

#![warn(missing_docs)]

pub mod hex;
pub mod hpack;
pub mod http1;
pub mod http2;
pub mod proxy_protocol;
pub mod websocket;
