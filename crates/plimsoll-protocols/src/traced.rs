//! One direction of a connection that is traced: bytes to frames, and a line for each.

use std::fmt::Display;

/// What was read of either direction, by [`Direction`](plimsoll_engine::driver::Direction).
pub(crate) type Halves = [Half; 2];

/// What was read of one direction.
#[derive(Debug, Default)]
pub(crate) struct Half {
    /// The beginning of a frame.
    pending: Vec<u8>,
    /// Bytes of another protocol have come.
    lost: bool,
}

impl Half {
    /// Adds the lines of the frames that end in `bytes`. `next` returns the length of the frame that its bytes begin
    /// with, and its line; `None`: it is not whole. Its error is reported once, as `unreadable` says.
    pub(crate) fn read<E>(
        &mut self,
        bytes: &[u8],
        lines: &mut Vec<String>,
        unreadable: impl FnOnce(E) -> String,
        mut next: impl FnMut(&[u8]) -> Result<Option<(usize, Option<String>)>, E>,
    ) {
        if self.lost {
            return;
        }
        self.pending.extend_from_slice(bytes);
        let mut at = 0;
        while at < self.pending.len() {
            match next(&self.pending[at..]) {
                Ok(Some((length, line))) => {
                    lines.extend(line);
                    at += length;
                }
                Ok(None) => break,
                Err(error) => {
                    lines.push(unreadable(error));
                    self.lost = true;
                    break;
                }
            }
        }
        self.pending.drain(..at);
    }
}

/// The line about bytes of another protocol.
pub(crate) fn not<E: Display>(protocol: &str) -> impl FnOnce(E) -> String {
    move |error| format!("not {protocol} ({error}); no more is read")
}
