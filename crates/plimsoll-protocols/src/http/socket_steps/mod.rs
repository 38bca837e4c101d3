//! Steps of a journey over a WebSocket (RFC 6455). A step does one or more of these, in this order: it opens the user's
//! socket, sends frames, awaits messages, and closes the socket. The socket stays open between steps, also while other
//! steps use the user's other connection. Messages that arrive between steps wait for the next step that reads them.
//!
//! [`SocketStepSpec`] contains the keys of a step in a plan. `resolve` converts them to a `SocketStepCall`, `prepared`
//! encodes the parts that are the same for all users, and `user_socket` is the driver.

mod call;
mod message_match;
mod prepared;
mod protocol;
mod resolve;
mod section;
mod user_socket;

pub use section::SocketStepSpec;
