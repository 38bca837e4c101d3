//! The WebSocket protocol (RFC 6455) without I/O: frames, messages and the handshake.
//!
//! Both ends use this module: the session driver as a client, the gateway as a server. The only supported extension is
//! [`DeflateParameters`]; without it, reserved bits are violations.

mod deflate;
mod frame;
mod handshake;
mod reader;

pub use deflate::DeflateParameters;
pub use frame::{
    Opcode, WebSocketFrameHeader, append_frame, append_masked_frame, apply_mask,
    encode_close_payload,
};
pub use handshake::{
    UpgradeOffer, UpgradeResponse, client_key, derive_accept_key, is_valid_client_key,
};
pub use reader::{ReaderRole, WebSocketMessage, WebSocketReader};

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The close code to send.
    pub code: u16,
    /// The text of the Close frame, at most 123 bytes.
    pub reason: &'static str,
}

/// Close codes (RFC 6455 §7.4, IANA's registry, and 4000–4999 for private use).
pub mod code {
    /// Normal closure: the purpose of the connection is fulfilled.
    pub const NORMAL_CLOSURE: u16 = 1000;
    /// The peer violated RFC 6455.
    pub const PROTOCOL_ERROR: u16 = 1002;
    /// The Close frame had no code; this value is never sent.
    pub const NO_STATUS_RECEIVED: u16 = 1005;
    /// Data that does not match its message type, such as text that is not UTF-8.
    pub const INVALID_PAYLOAD: u16 = 1007;
    /// A violation that no other code describes.
    pub const POLICY_VIOLATION: u16 = 1008;
    /// A message exceeds this end's size limit.
    pub const MESSAGE_TOO_BIG: u16 = 1009;
    /// An unexpected condition in the server.
    pub const INTERNAL_ERROR: u16 = 1011;
    /// The server is restarting; the client should reconnect.
    pub const SERVICE_RESTART: u16 = 1012;
    /// The server is overloaded; the client should reconnect later.
    pub const TRY_AGAIN_LATER: u16 = 1013;
    /// Another connection has taken over the session.
    pub const SESSION_REPLACED: u16 = 4001;
    /// No pong arrived in time.
    pub const PING_TIMEOUT: u16 = 4408;
    /// The messages that the client missed are no longer stored.
    pub const HISTORY_UNAVAILABLE: u16 = 4409;
}

/// Returns whether a close code may be sent in a Close frame (RFC 6455 §7.4).
fn is_sendable(close_code: u16) -> bool {
    matches!(close_code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}
