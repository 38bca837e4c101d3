//! Scripted sessions over an HTTP API and a WebSocket that streams the tokens of a language model.

mod call;
mod driver;
mod flags;
pub mod http;
mod load;
mod loadtest;
mod measures;
mod section;

pub use call::{QueryText, SessionCall};
pub use driver::{SessionOptions, SessionScripts, UserSession};
pub use flags::{QueryFlags, SessionFlags};
pub use section::SessionSection;
