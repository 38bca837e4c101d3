//! A plugin behind functions that can be called without fear.

use std::path::Path;
use std::sync::Arc;

use crate::abi;
use crate::boundary::guest::{self, Plugin};
use crate::boundary::host::{Functions, LoadError};
use crate::check::{self, Fault, Written};
use crate::frame::{Decoded, Make, Match, Sender};

/// The largest frame a reader should accept unless configured otherwise: 16 MiB.
pub const MAX_FRAME: usize = 16 << 20;

/// Bytes that a frame may be longer than what it is made of.
const MAX_ADDED: usize = 64 << 10;

/// Bytes that most frames are not longer than what they are made of.
const USUALLY_ADDED: usize = 64;

/// A loaded plugin. Cloning is cheap; calls may come from any thread.
#[derive(Clone, Debug)]
pub struct Codec {
    functions: Arc<Functions>,
}

impl Codec {
    /// Loads a shared object for the rest of the process's life. Its code is trusted with
    /// this process.
    ///
    /// # Errors
    /// When it can't be loaded, is no codec plugin, or one of another version.
    pub fn load(path: &Path) -> Result<Codec, LoadError> {
        Functions::load(path).map(Codec::with)
    }

    /// A plugin that is part of this program.
    ///
    /// # Errors
    /// When its name is none.
    pub fn built_in<P: Plugin>() -> Result<Codec, LoadError> {
        Functions::of(guest::table::<P>()).map(Codec::with)
    }

    fn with(functions: Functions) -> Codec {
        Codec {
            functions: Arc::new(functions),
        }
    }

    /// What people call the protocol.
    pub fn name(&self) -> &str {
        &self.functions.name
    }

    /// Whether a connection that begins with `bytes` speaks the protocol.
    ///
    /// # Errors
    /// When the plugin fails.
    pub fn matches(&self, bytes: &[u8], sender: Sender) -> Result<Match, Fault> {
        check::matched(self.functions.matches(bytes, sender as u32))
    }

    /// The frame that `bytes` begin with, of at most `limit` bytes.
    ///
    /// # Errors
    /// When the bytes are not a frame, or the plugin fails.
    #[inline]
    pub fn decode(&self, bytes: &[u8], sender: Sender, limit: usize) -> Result<Decoded, Fault> {
        if bytes.is_empty() {
            return Ok(Decoded::More(None));
        }
        let mut frame = abi::Frame::default();
        let result = self.functions.decode(bytes, sender as u32, &mut frame);
        check::decoded(result, &frame, bytes.len(), limit)
    }

    /// Appends `frame`, which was decoded with this note, with another id: one below 2^32,
    /// or one that was decoded before.
    ///
    /// # Errors
    /// When the plugin fails; then nothing is appended.
    #[inline]
    pub fn encode(&self, frame: &[u8], note: u64, id: u64, out: &mut Vec<u8>) -> Result<(), Fault> {
        let written = append("encode", frame.len(), out, |room| {
            self.functions.encode(frame, note, id, room)
        });
        // `encode` can't say that there is none.
        written.map(|_| ())
    }

    /// Appends a frame of the plugin's own; `false`: the protocol has none. `note` is that
    /// of the request which is answered, else 0.
    ///
    /// # Errors
    /// When the plugin fails; then nothing is appended.
    pub fn make(
        &self,
        what: Make,
        id: u64,
        note: u64,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        append("make", payload.len(), out, |room| {
            self.functions.make(what as u32, id, note, payload, room)
        })
    }
}

/// Appends what `write` writes, which is made of `from` bytes; `false`: there is nothing.
#[inline]
fn append(
    function: &'static str,
    from: usize,
    out: &mut Vec<u8>,
    write: impl Fn(&mut [u8]) -> (i32, u64),
) -> Result<bool, Fault> {
    let start = out.len();
    let most = from + MAX_ADDED;
    let mut try_with = |room: usize| {
        out.resize(start + room, 0);
        let (result, length) = write(&mut out[start..]);
        check::written(function, result, length, room, most)
    };
    let mut written = try_with(from + USUALLY_ADDED);
    if let Ok(Written::Again(needed)) = written {
        written = try_with(needed);
    }
    let length = match written {
        Ok(Written::Bytes(length)) => length,
        _ => 0,
    };
    out.truncate(start + length);
    match written? {
        // With the room that it asked for the plugin has to be content.
        Written::Again(needed) => Err(Fault::Room {
            function,
            needed: needed as u64,
            room: most,
        }),
        Written::Bytes(_) => Ok(true),
        Written::Nothing => Ok(false),
    }
}
