//! A loaded plugin behind safe functions that validate its results.

use std::path::Path;
use std::sync::Arc;

use crate::abi;
use crate::boundary::guest::{self, Plugin};
use crate::boundary::host::{LoadError, PluginFunctions};
use crate::check::{self, CodecFault, WriteResult};
use crate::frame::{DecodeResult, Match, NewFrameKind, SenderRole};

/// The default maximum length of a frame: 16 MiB.
pub const DEFAULT_MAX_FRAME_BYTES: usize = 16 << 20;

/// Maximum number of bytes by which a written frame may exceed its input.
const MAX_OVERHEAD_BYTES: usize = 64 << 10;

/// Overhead in bytes that suffices for most written frames; the first attempt reserves this much.
const TYPICAL_OVERHEAD_BYTES: usize = 64;

/// A loaded plugin. Cloning is cheap; it can be called from any thread.
#[derive(Clone, Debug)]
pub struct Codec {
    functions: Arc<PluginFunctions>,
}

impl Codec {
    /// Loads a shared object for the lifetime of the process. Its code is trusted with the process.
    ///
    /// # Errors
    /// Returns an error if the file cannot be loaded, or is not a codec plugin of this version.
    pub fn load(path: &Path) -> Result<Codec, LoadError> {
        PluginFunctions::load(path).map(Codec::from_functions)
    }

    /// Creates a codec from a plugin that is part of this program.
    ///
    /// # Errors
    /// Returns an error if its name is invalid.
    pub fn built_in<P: Plugin>() -> Result<Codec, LoadError> {
        PluginFunctions::from_table(guest::function_table::<P>()).map(Codec::from_functions)
    }

    fn from_functions(functions: PluginFunctions) -> Codec {
        Codec {
            functions: Arc::new(functions),
        }
    }

    /// Returns the name of the protocol.
    pub fn name(&self) -> &str {
        &self.functions.name
    }

    /// Returns whether a connection that begins with `bytes` uses the protocol.
    ///
    /// # Errors
    /// Returns an error if the plugin fails.
    pub fn matches(&self, bytes: &[u8], sender: SenderRole) -> Result<Match, CodecFault> {
        check::check_match(self.functions.matches(bytes, sender as u32))
    }

    /// Decodes the frame at the beginning of `bytes`, of at most `limit` bytes.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a frame, or the plugin fails.
    #[inline]
    pub fn decode(
        &self,
        bytes: &[u8],
        sender: SenderRole,
        limit: usize,
    ) -> Result<DecodeResult, CodecFault> {
        if bytes.is_empty() {
            return Ok(DecodeResult::More(None));
        }
        let mut frame = abi::Frame::default();
        let result = self.functions.decode(bytes, sender as u32, &mut frame);
        check::check_decode(result, &frame, bytes.len(), limit)
    }

    /// Appends a copy of `frame` with the id `id`, which must be below 2^32 or come from a decoded frame. `note` is the
    /// note that decoding `frame` returned.
    ///
    /// # Errors
    /// Returns an error if the plugin fails; nothing is then appended.
    #[inline]
    pub fn encode(
        &self,
        frame: &[u8],
        note: u64,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), CodecFault> {
        let written = append_frame("encode", frame.len(), out, |room| {
            self.functions.encode(frame, note, id, room)
        });
        // The boolean does not matter: `encode` cannot report that there is no such frame.
        written.map(|_| ())
    }

    /// Appends a new frame; returns `false` if the protocol has no such frame. `note` is the note of the request that
    /// is being answered, otherwise 0.
    ///
    /// # Errors
    /// Returns an error if the plugin fails; nothing is then appended.
    pub fn make_frame(
        &self,
        what: NewFrameKind,
        id: u64,
        note: u64,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, CodecFault> {
        append_frame("make", payload.len(), out, |room| {
            self.functions
                .make_frame(what as u32, id, note, payload, room)
        })
    }
}

/// Appends the frame that `write` creates from an input of `from` bytes; returns `false` if there is no such frame.
#[inline]
fn append_frame(
    function: &'static str,
    from: usize,
    out: &mut Vec<u8>,
    write: impl Fn(&mut [u8]) -> (i32, u64),
) -> Result<bool, CodecFault> {
    let start = out.len();
    let most = from + MAX_OVERHEAD_BYTES;
    let mut try_with = |room: usize| {
        out.resize(start + room, 0);
        let (result, length) = write(&mut out[start..]);
        check::check_write(function, result, length, room, most)
    };
    let mut written = try_with(from + TYPICAL_OVERHEAD_BYTES);
    if let Ok(WriteResult::TooSmall(needed)) = written {
        written = try_with(needed);
    }
    let length = match written {
        Ok(WriteResult::Bytes(length)) => length,
        _ => 0,
    };
    out.truncate(start + length);
    match written? {
        // A plugin must not request a larger buffer twice.
        WriteResult::TooSmall(needed) => Err(CodecFault::Room {
            function,
            needed: needed as u64,
            room: most,
        }),
        WriteResult::Bytes(_) => Ok(true),
        WriteResult::Nothing => Ok(false),
    }
}
