//! The WebSocket protocol (RFC 6455) without I/O: frames, messages, the handshake's key.
//!
//! Both ends share it: the session driver reads as a client, the gateway as a server.
//! One extension may be agreed to ([`Deflate`]); without it reserved bits are violations.

mod deflate;
mod frame;
mod handshake;
mod reader;

pub use deflate::Deflate;
pub use frame::{FrameHead, Opcode, apply_mask, close_payload, put_frame, put_masked};
pub use handshake::{Offer, UpgradeAnswer, accept_key, client_key, is_client_key};
pub use reader::{Message, Reader, Role};

/// The peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The close code to send.
    pub code: u16,
    /// The text of the Close frame, at most 123 bytes.
    pub reason: &'static str,
}

/// Close codes (RFC 6455 §7.4, IANA's registry, and 4000–4999 for private use).
pub mod code {
    /// The purpose of the connection is fulfilled.
    pub const NORMAL_CLOSURE: u16 = 1000;
    /// The peer broke RFC 6455.
    pub const PROTOCOL_ERROR: u16 = 1002;
    /// Stands for "no code was given"; never sent.
    pub const NONE_GIVEN: u16 = 1005;
    /// Data that does not fit its type, such as text that is no UTF-8.
    pub const INVALID_TEXT: u16 = 1007;
    /// What no other code fits.
    pub const POLICY_VIOLATION: u16 = 1008;
    /// A message longer than this end takes.
    pub const TOO_BIG: u16 = 1009;
    /// A condition that the server did not expect.
    pub const INTERNAL_ERROR: u16 = 1011;
    /// The server restarts: connect again.
    pub const SERVICE_RESTART: u16 = 1012;
    /// The server is overloaded: connect later.
    pub const TRY_AGAIN: u16 = 1013;
    /// Another connection took the session over.
    pub const SESSION_REPLACED: u16 = 4001;
    /// No pong in time.
    pub const PING_TIMEOUT: u16 = 4408;
    /// What the client missed is no longer in the log.
    pub const HISTORY_GONE: u16 = 4409;
}

/// Whether a peer may send this code in a Close frame (RFC 6455 §7.4).
fn is_sendable(close_code: u16) -> bool {
    matches!(close_code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}
