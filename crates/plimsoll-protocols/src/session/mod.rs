//! Scripted sessions over an HTTP API and a WebSocket: an LLM's tokens as they stream.

mod account;
mod driver;
pub mod http;

pub use driver::{Session, SessionOptions, Sessions};
