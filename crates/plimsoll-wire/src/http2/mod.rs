//! HTTP/2 (RFC 9113) below message semantics: conversion between frames and bytes, with the checks that need no
//! connection state, and the state of one end of a connection ([`Http2Connection`]).
//!
//! Drivers, the canned server, the sidecar and the tracer call this.

/// Defines constants with their names in RFC 9113, and a function that returns the name for a number.
macro_rules! named {
    ($number:ty: $($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        $($(#[$doc])* pub const $name: $number = $value;)*

        /// Returns the number's name in RFC 9113.
        pub fn name(number: $number) -> Option<&'static str> {
            Some(match number {
                $($name => stringify!($name),)*
                _ => return None,
            })
        }
    };
}
use named;

mod connection;
mod deframe;
mod error_code;
mod field;
mod frame;
mod frame_types;
mod header_block;
mod message;
mod role;
mod settings;
mod violation;
mod window;

pub use connection::{
    ConnectionStage, ControlEvent, Http2Connection, StreamCloseCause, StreamWindows,
};
use deframe::fill_partial_frame;
pub use deframe::{for_each_frame, split_frame};
pub use error_code::ErrorCode;
pub use field::field_problem;
pub use frame::write::EndStream;
pub use frame::{FrameHeader, Http2Frame, StreamPayload, write};
pub use frame_types::{flags, kind};
pub use header_block::HeaderBlock;
pub use message::MessageValidator;
pub use role::{ClientRole, EitherRole, EndpointRole, ServerRole};
pub use settings::{SettingsPayload, setting};
pub use violation::{Violation, ViolationDetail};
pub use window::{MAX_WINDOW_BYTES, ReceiveWindow};

/// The connection preface that a client sends before its first frame (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The initial flow-control window in bytes of a connection, and of a stream until SETTINGS change it (RFC 9113
/// §6.9.2).
pub const DEFAULT_WINDOW_BYTES: u32 = 65_535;

/// The largest frame payload in bytes that every endpoint accepts (RFC 9113 §4.2).
pub const DEFAULT_MAX_FRAME_BYTES: u32 = 16_384;

/// The largest stream id (RFC 9113, 5.1.1).
pub const MAX_STREAM_ID: u32 = 0x7fff_ffff;

/// Maximum size of a field list in bytes (RFC 9113 §6.5.2), announced to the peer; larger lists are rejected.
pub const MAX_HEADER_LIST_BYTES: u32 = 64 * 1024;

/// Maximum size of a header block in bytes; a larger block ends the connection.
pub const MAX_HEADER_BLOCK_BYTES: usize = 64 * 1024;
