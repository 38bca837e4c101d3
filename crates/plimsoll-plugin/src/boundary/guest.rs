//! Support for plugins written in Rust: implement [`Plugin`], and [`export!`](crate::export) it.
//!
//! A panic ends only the call in which it occurred, and the host closes the connection. This requires that the plugin
//! is built with unwinding, which is the default (`panic = "abort"` in the profile would abort the process).

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::{ptr, slice};

use crate::abi::{self, Buffer, CodecTable, HostTable};

pub use crate::abi::{log_level, new_frame_kind, parse_frame_kind, sender};

/// A codec plugin in Rust. `plimsoll_codec.h` documents each function.
pub trait Plugin: 'static {
    /// The name of the protocol: 1 to 63 bytes of UTF-8.
    const NAME: &'static CStr;

    /// Returns whether a connection that begins with `bytes` uses the protocol.
    fn matches(bytes: &[u8], sender: u32) -> MatchResult;

    /// Decodes the beginning of `bytes`, which are not empty.
    fn decode(bytes: &[u8], sender: u32) -> Decoded;

    /// Writes `frame` with another id; returns `false` if it is not a frame.
    fn encode(frame: &[u8], note: u64, id: u64, out: &mut FrameOutput<'_>) -> bool;

    /// Writes a new frame of kind `what`, a constant of [`new_frame_kind`]; returns `false` if the protocol has no such frame.
    fn make_frame(what: u32, id: u64, note: u64, payload: &[u8], out: &mut FrameOutput<'_>)
    -> bool;
}

/// Whether a connection uses the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchResult {
    /// The connection uses the protocol.
    Yes,
    /// More bytes are needed to decide.
    More,
    /// The connection uses another protocol, and is closed.
    No,
}

/// The result of decoding bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A complete frame at the beginning.
    Frame(abi::Frame),
    /// An incomplete frame, with the total number of bytes needed; 0 if unknown.
    More(u64),
    /// An incomplete frame whose length and other non-zero fields are known. If its id is not 0, a frame over the size
    /// limit is answered and skipped instead of closing the connection.
    Head(abi::Frame),
    /// The bytes are not a frame, and the connection is closed.
    Malformed,
}

/// The output buffer for a frame.
#[derive(Debug)]
pub struct FrameOutput<'a> {
    room: &'a mut [u8],
    length: usize,
}

impl FrameOutput<'_> {
    /// Appends `bytes`.
    pub fn put(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        // Bytes that do not fit are only counted: the host then repeats the call with a larger buffer.
        if let Some(place) = self.room.get_mut(self.length..end) {
            place.copy_from_slice(bytes);
        }
        self.length = end;
    }
}

/// The host that loaded this plugin. Each plugin has its own copy of this crate.
static HOST_TABLE: OnceLock<&'static HostTable> = OnceLock::new();

/// Returns whether the host logs messages of a [`log_level`].
pub fn is_log_enabled(level: u32) -> bool {
    HOST_TABLE
        .get()
        .is_some_and(|host| (host.wants)(level) != 0)
}

/// Logs a message to the host.
pub fn log(level: u32, text: &str) {
    if let Some(host) = HOST_TABLE.get() {
        // SAFETY: this is the host's function, called with the pointer and length of a string, as the header requires.
        unsafe { (host.log)(level, text.as_ptr().cast(), text.len() as u64) }
    }
}

/// Logs a debug message to the host, if it is enabled: `debug!("id {id}")`.
#[macro_export]
macro_rules! debug {
    ($($text:tt)*) => {
        if $crate::guest::is_log_enabled($crate::guest::log_level::DEBUG) {
            $crate::guest::log($crate::guest::log_level::DEBUG, &format!($($text)*));
        }
    };
}

/// Makes a type that implements [`Plugin`] the plugin of this shared object.
#[macro_export]
macro_rules! export {
    ($plugin:ty) => {
        /// # Safety
        /// `host` must be as described in `plimsoll_codec.h`.
        #[allow(unsafe_code, reason = "the symbol that a plugin exports")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn plimsoll_codec(
            host: *const $crate::abi::HostTable,
        ) -> *const $crate::abi::CodecTable {
            unsafe { $crate::guest::enter::<$plugin>(host) }
        }
    };
}

/// Returns the function table, and stores the host if it uses the plugin's version of the interface. Called by
/// [`export!`](crate::export).
///
/// # Safety
/// `host` must be null, or point to a `plimsoll_host` of the header that exists as long as the process.
pub unsafe fn enter<P: Plugin>(host: *const HostTable) -> *const CodecTable {
    if host.is_null() {
        return ptr::null();
    }
    // SAFETY: `host` is not null, and has these two fields in every version.
    let (version, size) = unsafe { ((*host).abi, (*host).size) };
    if version == abi::ABI_VERSION && size as usize >= size_of::<HostTable>() {
        // SAFETY: the host has this version and size, and exists as long as the process.
        let _ = HOST_TABLE.set(unsafe { &*host });
    }
    // If the versions differ, the host detects that from the table and reports it.
    function_table::<P>()
}

/// Returns the function table of a plugin, which is valid as long as the process exists.
pub(crate) fn function_table<P: Plugin>() -> &'static CodecTable {
    const {
        &CodecTable {
            abi: abi::ABI_VERSION,
            size: size_of::<CodecTable>() as u32,
            name: P::NAME.as_ptr(),
            matches: Some(matches::<P>),
            decode: Some(decode::<P>),
            encode: Some(encode::<P>),
            make: Some(make_frame::<P>),
        }
    }
}

/// Returns the bytes as a slice; `None` if the pointer or the length is invalid for a slice.
///
/// # Safety
/// `bytes` must point to `length` bytes that are not written to during the slice's lifetime, or `length` must be 0.
unsafe fn bytes_at<'a>(bytes: *const u8, length: u64) -> Option<&'a [u8]> {
    let length = usize::try_from(length).ok()?;
    if length == 0 {
        return Some(&[]);
    }
    if bytes.is_null() || length > isize::MAX as usize {
        return None;
    }
    // SAFETY: the pointer is not null, the length is allowed for a slice, and the caller vouches for the bytes.
    Some(unsafe { slice::from_raw_parts(bytes, length) })
}

unsafe extern "C" fn matches<P: Plugin>(bytes: *const u8, length: u64, sender: u32) -> i32 {
    // SAFETY: the host guarantees `length` bytes at `bytes` for the time of the call.
    let Some(bytes) = (unsafe { bytes_at(bytes, length) }) else {
        return abi::result_code::FAILED;
    };
    match catch_unwind(|| P::matches(bytes, sender)) {
        Ok(MatchResult::Yes) => abi::result_code::OK,
        Ok(MatchResult::More) => abi::result_code::MORE,
        Ok(MatchResult::No) => abi::result_code::MALFORMED,
        Err(_) => abi::result_code::FAILED,
    }
}

unsafe extern "C" fn decode<P: Plugin>(
    bytes: *const u8,
    length: u64,
    sender: u32,
    frame: *mut abi::Frame,
) -> i32 {
    // SAFETY: the host guarantees `length` bytes at `bytes` for the time of the call.
    let Some(bytes) = (unsafe { bytes_at(bytes, length) }) else {
        return abi::result_code::FAILED;
    };
    let (decoded, result) = match catch_unwind(|| P::decode(bytes, sender)) {
        Ok(Decoded::Frame(frame)) => (frame, abi::result_code::OK),
        Ok(Decoded::More(length)) => {
            let needed = abi::Frame {
                length,
                ..abi::Frame::default()
            };
            (needed, abi::result_code::MORE)
        }
        Ok(Decoded::Head(frame)) => (frame, abi::result_code::MORE),
        Ok(Decoded::Malformed) => return abi::result_code::MALFORMED,
        Err(_) => return abi::result_code::FAILED,
    };
    if frame.is_null() {
        return abi::result_code::FAILED;
    }
    // SAFETY: the pointer is not null, and the host guarantees that it points to a frame to be written.
    unsafe { frame.write(decoded) };
    result
}

/// Calls `write` with the `length` bytes at `bytes`; returns the result code `refused` if it writes no frame.
///
/// # Safety
/// `bytes` must be as for [`bytes_at`]; `out` must be null, or point to the host's buffer, whose `room` bytes are
/// initialized.
unsafe fn write_frame(
    bytes: *const u8,
    length: u64,
    out: *mut Buffer,
    refused: i32,
    write: impl FnOnce(&[u8], &mut FrameOutput<'_>) -> bool,
) -> i32 {
    // SAFETY: the caller vouches for the bytes; `out` is null or points to the host's buffer, which nobody else uses
    // during the call.
    let (bytes, buffer) = unsafe { (bytes_at(bytes, length), out.as_mut()) };
    let (Some(bytes), Some(buffer)) = (bytes, buffer) else {
        return abi::result_code::FAILED;
    };
    let room = match usize::try_from(buffer.room) {
        Ok(room) if room > 0 && room <= isize::MAX as usize && !buffer.bytes.is_null() => {
            // SAFETY: the pointer is not null, and only this function uses the `room` bytes during the call.
            unsafe { slice::from_raw_parts_mut(buffer.bytes, room) }
        }
        _ => &mut [],
    };
    let mut out = FrameOutput { room, length: 0 };
    let written = catch_unwind(AssertUnwindSafe(|| write(bytes, &mut out)));
    buffer.length = out.length as u64;
    match written {
        Ok(true) if buffer.length > buffer.room => abi::result_code::NEEDS_ROOM,
        Ok(true) => abi::result_code::OK,
        Ok(false) => refused,
        Err(_) => abi::result_code::FAILED,
    }
}

unsafe extern "C" fn encode<P: Plugin>(
    frame: *const u8,
    length: u64,
    note: u64,
    id: u64,
    out: *mut Buffer,
) -> i32 {
    let write = |frame: &[u8], out: &mut FrameOutput<'_>| P::encode(frame, note, id, out);
    // SAFETY: the host guarantees `length` bytes at `frame`, and exclusive use of `out`, for the time of the call.
    unsafe { write_frame(frame, length, out, abi::result_code::MALFORMED, write) }
}

unsafe extern "C" fn make_frame<P: Plugin>(
    what: u32,
    id: u64,
    note: u64,
    payload: *const u8,
    payload_length: u64,
    out: *mut Buffer,
) -> i32 {
    let write =
        |payload: &[u8], out: &mut FrameOutput<'_>| P::make_frame(what, id, note, payload, out);
    // SAFETY: the host guarantees the bytes at `payload`, and exclusive use of `out`, for the time of the call.
    unsafe { write_frame(payload, payload_length, out, abi::result_code::NONE, write) }
}
