//! Splits one direction of a traced connection into frames, and writes a line for each.

use std::fmt::Display;

/// The state of both directions, indexed by [`Direction`](plimsoll_engine::driver::Direction).
pub(crate) type DirectionTraces = [DirectionTrace; 2];

/// The state of one direction.
#[derive(Debug, Default)]
pub(crate) struct DirectionTrace {
    /// The beginning of a frame that has not arrived completely.
    pending: Vec<u8>,
    /// Whether bytes of another protocol have arrived; the rest of the connection is then ignored.
    is_unreadable: bool,
}

impl DirectionTrace {
    /// Appends the lines of the frames that end in `bytes`. `next` returns the length of the frame at the beginning
    /// of its argument and its line, or `None` if the frame is incomplete. `unreadable` turns its error into a line,
    /// once.
    pub(crate) fn read<E>(
        &mut self,
        bytes: &[u8],
        lines: &mut Vec<String>,
        unreadable: impl FnOnce(E) -> String,
        mut next: impl FnMut(&[u8]) -> Result<Option<(usize, Option<String>)>, E>,
    ) {
        if self.is_unreadable {
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
                    self.is_unreadable = true;
                    break;
                }
            }
        }
        self.pending.drain(..at);
    }
}

/// Returns a function that converts the error for bytes of another protocol to a trace line.
pub(crate) fn unreadable_line<E: Display>(protocol: &str) -> impl FnOnce(E) -> String {
    move |error| format!("not {protocol} ({error}); the rest is not traced")
}
