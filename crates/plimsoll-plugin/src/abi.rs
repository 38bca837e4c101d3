//! `plimsoll_codec.h` in Rust: the same numbers and layouts, with names that are derived from those in the header. The
//! header documents their meaning.
#![allow(missing_docs, reason = "plimsoll_codec.h has them")]

use std::ffi::c_char;

/// The version of the interface, `PLIMSOLL_CODEC_ABI`.
pub const ABI_VERSION: u32 = 1;

/// The only symbol that a plugin exports.
pub const ENTRY_SYMBOL: &str = "plimsoll_codec";

/// Result codes of functions: `PLIMSOLL_OK` and the codes after it.
pub mod result_code {
    pub const OK: i32 = 0;
    pub const MORE: i32 = 1;
    pub const MALFORMED: i32 = 2;
    pub const NEEDS_ROOM: i32 = 3;
    pub const NONE: i32 = 4;
    pub const FAILED: i32 = 5;
}

/// The values of `sender`: `PLIMSOLL_CLIENT` and `PLIMSOLL_SERVER`.
pub mod sender {
    pub const CLIENT: u32 = 0;
    pub const SERVER: u32 = 1;
}

/// The values of `plimsoll_frame.kind`.
pub mod parse_frame_kind {
    pub const REQUEST: u32 = 0;
    pub const ONEWAY: u32 = 1;
    pub const RESPONSE: u32 = 2;
    pub const GOAWAY: u32 = 3;
}

/// The kinds of frames that `make` creates: `PLIMSOLL_MAKE_REQUEST` and the constants after it.
pub mod new_frame_kind {
    pub const REQUEST: u32 = 0;
    pub const RESPONSE: u32 = 1;
    pub const HEARTBEAT: u32 = 2;
    pub const HEARTBEAT_ACK: u32 = 3;
    pub const BUSY: u32 = 4;
    pub const UNREACHABLE: u32 = 5;
    pub const TIMEOUT: u32 = 6;
    pub const CLOSED: u32 = 7;
}

/// Log levels of messages.
pub mod log_level {
    pub const ERROR: u32 = 0;
    pub const WARN: u32 = 1;
    pub const DEBUG: u32 = 2;
}

/// `struct plimsoll_frame`: the properties of a decoded frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    pub length: u64,
    pub id: u64,
    pub note: u64,
    pub payload_at: u64,
    pub payload_length: u64,
    pub kind: u32,
    pub heartbeat: u32,
    pub timeout_ms: u32,
    pub status: u32,
}

/// `struct plimsoll_buffer`: a buffer into which a plugin writes a frame.
#[repr(C)]
#[derive(Debug)]
pub struct Buffer {
    pub bytes: *mut u8,
    pub room: u64,
    pub length: u64,
}

pub type MatchFn = unsafe extern "C" fn(bytes: *const u8, length: u64, sender: u32) -> i32;
pub type DecodeFn =
    unsafe extern "C" fn(bytes: *const u8, length: u64, sender: u32, frame: *mut Frame) -> i32;
pub type EncodeFn = unsafe extern "C" fn(
    frame: *const u8,
    length: u64,
    note: u64,
    id: u64,
    out: *mut Buffer,
) -> i32;
pub type MakeFn = unsafe extern "C" fn(
    what: u32,
    id: u64,
    note: u64,
    payload: *const u8,
    payload_length: u64,
    out: *mut Buffer,
) -> i32;

/// `struct plimsoll_codec`: a plugin's table of functions.
#[repr(C)]
#[derive(Debug)]
pub struct CodecTable {
    pub abi: u32,
    pub size: u32,
    pub name: *const c_char,
    pub matches: Option<MatchFn>,
    pub decode: Option<DecodeFn>,
    pub encode: Option<EncodeFn>,
    pub make: Option<MakeFn>,
}

/// `struct plimsoll_host`: the functions that the host provides to a plugin.
#[repr(C)]
#[derive(Debug)]
pub struct HostTable {
    pub abi: u32,
    pub size: u32,
    pub wants: extern "C" fn(level: u32) -> u32,
    pub log: unsafe extern "C" fn(level: u32, text: *const c_char, length: u64),
}

/// The type of the function [`ENTRY_SYMBOL`].
pub type EntryFn = unsafe extern "C" fn(host: *const HostTable) -> *const CodecTable;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a number that the header defines.
    fn defined(name: &str) -> i64 {
        let header = include_str!("../include/plimsoll_codec.h");
        let line = header
            .lines()
            .find(|line| line.split_whitespace().nth(1) == Some(name))
            .unwrap_or_else(|| panic!("the header defines no {name}"));
        line.split_whitespace().nth(2).unwrap().parse().unwrap()
    }

    #[test]
    fn c_header_constants_match_rust() {
        for (name, number) in [
            ("PLIMSOLL_CODEC_ABI", i64::from(ABI_VERSION)),
            ("PLIMSOLL_OK", result_code::OK.into()),
            ("PLIMSOLL_MORE", result_code::MORE.into()),
            ("PLIMSOLL_MALFORMED", result_code::MALFORMED.into()),
            ("PLIMSOLL_ROOM", result_code::NEEDS_ROOM.into()),
            ("PLIMSOLL_NONE", result_code::NONE.into()),
            ("PLIMSOLL_FAILED", result_code::FAILED.into()),
            ("PLIMSOLL_CLIENT", sender::CLIENT.into()),
            ("PLIMSOLL_SERVER", sender::SERVER.into()),
            ("PLIMSOLL_REQUEST", parse_frame_kind::REQUEST.into()),
            ("PLIMSOLL_ONEWAY", parse_frame_kind::ONEWAY.into()),
            ("PLIMSOLL_RESPONSE", parse_frame_kind::RESPONSE.into()),
            ("PLIMSOLL_GOAWAY", parse_frame_kind::GOAWAY.into()),
            ("PLIMSOLL_MAKE_REQUEST", new_frame_kind::REQUEST.into()),
            ("PLIMSOLL_MAKE_RESPONSE", new_frame_kind::RESPONSE.into()),
            ("PLIMSOLL_MAKE_HEARTBEAT", new_frame_kind::HEARTBEAT.into()),
            (
                "PLIMSOLL_MAKE_HEARTBEAT_ACK",
                new_frame_kind::HEARTBEAT_ACK.into(),
            ),
            ("PLIMSOLL_MAKE_BUSY", new_frame_kind::BUSY.into()),
            (
                "PLIMSOLL_MAKE_UNREACHABLE",
                new_frame_kind::UNREACHABLE.into(),
            ),
            ("PLIMSOLL_MAKE_TIMEOUT", new_frame_kind::TIMEOUT.into()),
            ("PLIMSOLL_MAKE_CLOSED", new_frame_kind::CLOSED.into()),
            ("PLIMSOLL_ERROR", log_level::ERROR.into()),
            ("PLIMSOLL_WARN", log_level::WARN.into()),
            ("PLIMSOLL_DEBUG", log_level::DEBUG.into()),
        ] {
            assert_eq!(defined(name), number, "{name}");
        }
    }
}
