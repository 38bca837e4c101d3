//! A stream's own messages, where they vary: made a frame's worth at a time, when their
//! time to be sent has come.

use std::ops::Range;

use plimsoll_model::template::Varying;
use plimsoll_wire::http2::DEFAULT_MAX_FRAME;

use super::call::Compression;
use super::message::write_message;

/// What makes messages, at one time.
#[derive(Debug)]
pub(super) struct Renderer<'a> {
    pub(super) varying: &'a Varying,
    pub(super) compression: Option<Compression>,
    /// Nanoseconds since 1970.
    pub(super) unix_ns: u64,
}

impl Renderer<'_> {
    /// Appends message `message` of call `number`, behind its prefix.
    #[inline]
    pub(super) fn write(&self, number: u64, message: u32, out: &mut Vec<u8>) {
        let messages = &self.varying.messages;
        let render = &messages[message as usize % messages.len()];
        let moment = self.varying.variation.moment(number, message, self.unix_ns);
        write_message(out, self.compression, |out| render.render(&moment, out));
    }
}

/// The messages of one stream, as far as they were made.
#[derive(Debug)]
pub(super) struct Rendered {
    number: u64,
    /// Messages made, the last of them in `buffer`.
    made: u32,
    buffer: Vec<u8>,
    /// The offsets in `buffer` at which they end.
    ends: Vec<u32>,
    /// Bytes of `buffer` that were sent.
    sent: usize,
}

impl Rendered {
    pub(super) fn new(number: u64) -> Rendered {
        Rendered {
            number,
            made: 0,
            buffer: Vec::new(),
            ends: Vec::new(),
            sent: 0,
        }
    }

    /// Messages sent whole.
    pub(super) fn messages_sent(&self) -> u32 {
        let waiting = self.ends.len() - self.ends.partition_point(|end| *end as usize <= self.sent);
        self.made - waiting as u32
    }

    /// Where the next piece of at most `most` bytes lies, of the first `released` messages.
    pub(super) fn advance(
        &mut self,
        renderer: &Renderer<'_>,
        released: u32,
        most: u32,
    ) -> Range<usize> {
        if self.sent == self.buffer.len() {
            self.buffer.clear();
            self.ends.clear();
            self.sent = 0;
            while self.made < released && self.buffer.len() < DEFAULT_MAX_FRAME as usize {
                renderer.write(self.number, self.made, &mut self.buffer);
                self.ends.push(self.buffer.len() as u32);
                self.made += 1;
            }
        }
        let start = self.sent;
        self.sent = self.buffer.len().min(start + most as usize);
        start..self.sent
    }

    pub(super) fn piece(&self, at: Range<usize>) -> &[u8] {
        &self.buffer[at]
    }
}
