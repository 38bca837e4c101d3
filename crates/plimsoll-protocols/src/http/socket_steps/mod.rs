//! Steps of a journey over a WebSocket (RFC 6455): a step opens the user's socket, sends frames, awaits messages, and
//! closes the socket, or does some of these. The socket stays open between steps, also while other steps use the user's
//! other connection, and messages that arrive meanwhile wait for the step that reads them.
//!
//! [`SocketStepSpec`] is what a plan says, `resolve` makes a `SocketStepCall` of it, which is `prepared` once for
//! all users, and `user_socket` is the driver.

mod call;
mod message_match;
mod prepared;
mod protocol;
mod resolve;
mod section;
mod user_socket;

pub use section::SocketStepSpec;
