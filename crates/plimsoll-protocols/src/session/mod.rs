//! Scripted sessions over an HTTP API and a WebSocket: an LLM's tokens as they stream.

mod account;
mod call;
mod driver;
pub mod http;
mod load;
mod section;

pub use call::{QueryText, SessionCall};
pub use driver::{Session, SessionOptions, Sessions};
pub use section::SessionSection;
