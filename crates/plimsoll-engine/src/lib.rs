//! The load generator: one event loop per core that starts calls when they are due,
//! moves bytes between drivers and transports, and records what came of every call.

pub mod driver;

pub use driver::{CallId, Done, Driver, Event, Protocol, ProtocolError};
