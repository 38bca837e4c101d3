//! Renders the varying messages of a stream when they are due, about one frame at a time.

use std::ops::Range;

use plimsoll_model::rows::template::VaryingMessages;
use plimsoll_wire::http2::DEFAULT_MAX_FRAME_BYTES;

use super::call::MessageCompression;
use super::message::write_message;

/// A renderer of messages, with the time and the captured values that it renders.
#[derive(Debug)]
pub(super) struct MessageRenderer<'a> {
    pub(super) varying: &'a VaryingMessages,
    pub(super) compression: Option<MessageCompression>,
    /// The time in nanoseconds since 1970.
    pub(super) unix_ns: u64,
    /// The values captured from earlier responses of the journey.
    pub(super) taken: &'a [Option<Box<[u8]>>],
}

impl MessageRenderer<'_> {
    /// Appends message `message` of call `number` with its prefix.
    #[inline]
    pub(super) fn write(&self, number: u64, message: u32, out: &mut Vec<u8>) {
        let messages = &self.varying.messages;
        let render = &messages[message as usize % messages.len()];
        let moment = self
            .varying
            .variation
            .render_context(number, message, self.unix_ns);
        let moment = moment.with_captured_values(self.taken);
        write_message(out, self.compression, |out| render.render(&moment, out));
    }
}

/// The rendered messages of one stream.
#[derive(Debug)]
pub(super) struct RenderedMessages {
    number: u64,
    /// The number of messages rendered. `buffer` contains the last of them.
    rendered: u32,
    buffer: Vec<u8>,
    /// The offsets in `buffer` at which messages end.
    ends: Vec<u32>,
    /// The number of bytes of `buffer` that were sent.
    sent: usize,
}

impl RenderedMessages {
    pub(super) fn new(number: u64) -> RenderedMessages {
        RenderedMessages {
            number,
            rendered: 0,
            buffer: Vec::new(),
            ends: Vec::new(),
            sent: 0,
        }
    }

    /// Returns the number of messages sent completely.
    pub(super) fn messages_sent(&self) -> u32 {
        let waiting = self.ends.len() - self.ends.partition_point(|end| *end as usize <= self.sent);
        self.rendered - waiting as u32
    }

    /// Returns the range in `buffer` of the next piece of at most `most` bytes, and counts it as sent. If all of
    /// `buffer` was sent, first renders about a frame of messages, at most up to message `released`.
    pub(super) fn advance(
        &mut self,
        renderer: &MessageRenderer<'_>,
        released: u32,
        most: u32,
    ) -> Range<usize> {
        if self.sent == self.buffer.len() {
            self.buffer.clear();
            self.ends.clear();
            self.sent = 0;
            while self.rendered < released && self.buffer.len() < DEFAULT_MAX_FRAME_BYTES as usize {
                renderer.write(self.number, self.rendered, &mut self.buffer);
                self.ends.push(self.buffer.len() as u32);
                self.rendered += 1;
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
