//! Streaming calls: server, client and bidirectional streaming.
//!
//! The messages of a stream are encoded once, as one sequence of bytes with known message ends; each stream is a
//! position in it. If messages vary, each stream renders its own messages ([`super::rendered_messages`]).
//! [`StreamExchanges`] holds the state of a connection's streams in slots that the streams point to. Invariant:
//! a slot is taken when a stream opens and released when its call ends. The driver uses this module; a connection
//! of unary calls has no such state.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use plimsoll_engine::driver::CallId;
use plimsoll_model::Time;
use plimsoll_wire::http2::DEFAULT_MAX_FRAME_BYTES;

use super::call::{MessageCompression, MethodKind, StreamPace, StreamPlan};
use super::message::write_message;
use super::rendered_messages::{MessageRenderer, RenderedMessages};

/// The minimum length of the encoded messages, in bytes. Shorter sequences are repeated, so that full frames can be
/// sent.
const MIN_SCRIPT_BYTES: usize = DEFAULT_MAX_FRAME_BYTES as usize;

/// The prepared messages of streams, and the rules for sending and expecting messages.
#[derive(Debug)]
pub(super) struct StreamScript {
    /// The encoded messages with their prefixes, sent cyclically. Empty if each stream renders its own.
    bytes: Box<[u8]>,
    /// The offset in `bytes` at which each message ends.
    ends: Box<[u32]>,
    /// The number of messages to send.
    pub(super) count: u32,
    pub(super) pace: StreamPace,
    /// The number of messages that the server must send.
    pub(super) expect: Option<u32>,
    pub(super) cancel_after: Option<u32>,
    /// The time after which the client ends the stream, which counts as a success.
    pub(super) duration: Option<Duration>,
}

impl StreamScript {
    /// Encodes the messages. Returns `None` if they exceed four gigabytes.
    pub(super) fn new(
        plan: &StreamPlan,
        compression: Option<MessageCompression>,
    ) -> Option<StreamScript> {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        let mut made = 0;
        while made < plan.count
            && (ends.len() < plan.messages.len() || bytes.len() < MIN_SCRIPT_BYTES)
        {
            for message in &plan.messages {
                u32::try_from(message.len()).ok()?;
                write_message(&mut bytes, compression, |out| {
                    out.extend_from_slice(message);
                });
                ends.push(u32::try_from(bytes.len()).ok()?);
                made = made.saturating_add(1);
            }
            if plan.messages.is_empty() {
                break;
            }
        }
        Some(StreamScript {
            bytes: bytes.into(),
            ends: ends.into(),
            ..StreamScript::new_varying(plan)
        })
    }

    /// Returns the script of streams that render their own messages.
    pub(super) fn new_varying(plan: &StreamPlan) -> StreamScript {
        let answers_once = plan.kind == MethodKind::ClientStreaming;
        StreamScript {
            bytes: Box::default(),
            ends: Box::default(),
            count: plan.count,
            pace: plan.pace,
            expect: if answers_once { Some(1) } else { plan.expect },
            cancel_after: plan.cancel_after,
            duration: plan.duration,
        }
    }

    /// Returns the length in bytes of the first `messages` messages of a stream.
    fn byte_count(&self, messages: u32) -> u64 {
        let (Some(&cycle), length) = (self.ends.last(), self.ends.len() as u32) else {
            return 0;
        };
        let rest = match messages % length {
            0 => 0,
            n => self.ends[n as usize - 1],
        };
        u64::from(messages / length) * u64::from(cycle) + u64::from(rest)
    }

    /// Returns the number of complete messages in the first `bytes` bytes of a stream.
    fn complete_message_count(&self, bytes: u64) -> u32 {
        let Some(&cycle) = self.ends.last() else {
            return 0;
        };
        let rest = (bytes % u64::from(cycle)) as u32;
        let whole = self.ends.partition_point(|end| *end <= rest) as u64;
        ((bytes / u64::from(cycle)) * self.ends.len() as u64 + whole) as u32
    }
}

/// The state of one stream.
#[derive(Debug)]
pub(super) struct StreamExchange {
    pub(super) call: CallId,
    /// The stream's own messages, if they vary.
    rendered: Option<Box<RenderedMessages>>,
    began: Time,
    /// The number of messages that are due.
    released: u32,
    /// The number of bytes of the messages that are due.
    released_bytes: u64,
    /// The number of bytes sent.
    sent_bytes: u64,
    /// The number of complete messages received.
    pub(super) received: u32,
    /// Whether more than four gigabytes were received.
    pub(super) received_overflowed: bool,
    /// Whether END_STREAM was sent.
    half_closed: bool,
    /// Whether the stream is in the driver's list of blocked streams.
    pub(super) queued: bool,
}

/// The payload of one DATA frame to send.
#[derive(Debug)]
pub(super) struct OutgoingPiece<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) end_stream: bool,
}

impl StreamExchange {
    /// Returns the number of messages sent completely.
    pub(super) fn messages_sent(&self, script: &StreamScript) -> u32 {
        match &self.rendered {
            None => script.complete_message_count(self.sent_bytes),
            Some(own) => own.messages_sent(),
        }
    }

    pub(super) fn bytes_sent(&self) -> u32 {
        u32::try_from(self.sent_bytes).unwrap_or(u32::MAX)
    }

    /// Returns true if the request has not ended.
    pub(super) fn is_sending(&self) -> bool {
        !self.half_closed
    }

    /// Returns true if due messages wait for a flow-control window.
    pub(super) fn is_blocked(&self) -> bool {
        match &self.rendered {
            None => self.sent_bytes < self.released_bytes,
            Some(own) => own.messages_sent() < self.released,
        }
    }

    fn release_up_to(&mut self, messages: u32, script: &StreamScript) {
        let messages = messages.min(script.count);
        if messages > self.released {
            self.released = messages;
            self.released_bytes = script.byte_count(messages);
        }
    }

    /// Makes the next message due after a response, if the pace is [`StreamPace::Answers`].
    pub(super) fn on_answer(&mut self, script: &StreamScript) {
        if script.pace == StreamPace::Answers {
            self.release_up_to(self.received.saturating_add(1), script);
        }
    }

    /// Returns the next piece that fits in `window` bytes; `None`: no piece can be sent now.
    pub(super) fn next_piece<'a>(
        &'a mut self,
        script: &'a StreamScript,
        renderer: Option<&MessageRenderer<'_>>,
        window: u32,
    ) -> Option<OutgoingPiece<'a>> {
        if self.half_closed {
            return None;
        }
        let all = self.released == script.count;
        if !self.is_blocked() {
            // A stream without messages, or with a delayed end, ends with an empty frame.
            self.half_closed = all;
            return all.then_some(OutgoingPiece {
                bytes: &[],
                end_stream: true,
            });
        }
        if let (Some(own), Some(renderer)) = (&mut self.rendered, renderer) {
            let bytes = own.advance(renderer, self.released, window.min(DEFAULT_MAX_FRAME_BYTES));
            if bytes.is_empty() {
                return None;
            }
            self.sent_bytes += bytes.len() as u64;
            let bytes = own.piece(bytes);
            self.half_closed = all && own.messages_sent() == script.count;
            return Some(OutgoingPiece {
                bytes,
                end_stream: self.half_closed,
            });
        }
        let offset = (self.sent_bytes % script.bytes.len() as u64) as usize;
        let rest = &script.bytes[offset..];
        let ready = self.released_bytes - self.sent_bytes;
        let length = (rest.len() as u64)
            .min(ready)
            .min(u64::from(window))
            .min(u64::from(DEFAULT_MAX_FRAME_BYTES)) as usize;
        if length == 0 {
            return None;
        }
        self.sent_bytes += length as u64;
        self.half_closed = all && self.sent_bytes == self.released_bytes;
        Some(OutgoingPiece {
            bytes: &rest[..length],
            end_stream: self.half_closed,
        })
    }
}

/// The streaming calls of one connection.
#[derive(Debug, Default)]
pub(super) struct StreamExchanges {
    slots: Vec<StreamExchange>,
    free: Vec<u32>,
    /// The timers of streams, by stream id.
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    /// The current time, set by the driver whenever the engine calls it.
    pub(super) now: Time,
}

impl StreamExchanges {
    /// Opens a stream and returns its slot. `number` is the call's number, if its messages vary.
    pub(super) fn open(
        &mut self,
        id: u32,
        call: CallId,
        number: Option<u64>,
        now: Time,
        script: &StreamScript,
    ) -> u32 {
        let mut exchange = StreamExchange {
            call,
            rendered: number.map(|number| Box::new(RenderedMessages::new(number))),
            began: now,
            released: 0,
            released_bytes: 0,
            sent_bytes: 0,
            received: 0,
            received_overflowed: false,
            half_closed: false,
            queued: false,
        };
        match script.pace {
            StreamPace::None => exchange.release_up_to(script.count, script),
            StreamPace::Answers => exchange.release_up_to(1, script),
            StreamPace::Every(gap) => {
                exchange.release_up_to(1, script);
                if exchange.released < script.count {
                    self.timers.push(Reverse((now + gap, id)));
                }
            }
        }
        if script.cancel_after == Some(0) {
            self.timers.push(Reverse((now, id)));
        }
        if let Some(duration) = script.duration {
            self.timers.push(Reverse((now + duration, id)));
        }
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = exchange;
                slot
            }
            None => {
                self.slots.push(exchange);
                (self.slots.len() - 1) as u32
            }
        }
    }

    pub(super) fn close(&mut self, slot: u32) {
        if let Some(exchange) = self.slots.get_mut(slot as usize) {
            exchange.rendered = None;
            self.free.push(slot);
        }
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&StreamExchange> {
        self.slots.get(slot as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut StreamExchange> {
        self.slots.get_mut(slot as usize)
    }

    /// Returns when the next timer expires.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.timers.peek().map(|Reverse((when, _))| *when)
    }

    /// Removes an expired timer and returns its stream's id.
    pub(super) fn pop_expired_timer(&mut self, now: Time) -> Option<u32> {
        let Reverse((when, id)) = *self.timers.peek()?;
        if when > now {
            return None;
        }
        self.timers.pop();
        Some(id)
    }

    /// Makes messages due on a paced stream: message k is due k gaps after the stream's start, even if earlier
    /// messages were late.
    pub(super) fn release_paced_messages(
        &mut self,
        slot: u32,
        id: u32,
        now: Time,
        script: &StreamScript,
    ) {
        let (StreamPace::Every(gap), Some(exchange)) =
            (script.pace, self.slots.get_mut(slot as usize))
        else {
            return;
        };
        let gap = u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX).max(1);
        let due = now.since(exchange.began) / gap + 1;
        exchange.release_up_to(u32::try_from(due).unwrap_or(u32::MAX), script);
        if exchange.released < script.count {
            let next = exchange.began + Duration::from_nanos(gap) * exchange.released;
            self.timers.push(Reverse((next, id)));
        }
    }

    /// Returns true if the stream has reached its planned duration.
    pub(super) fn has_reached_duration(&self, slot: u32, now: Time, script: &StreamScript) -> bool {
        let lasts = self.get(slot).zip(script.duration);
        lasts.is_some_and(|(exchange, duration)| exchange.began + duration <= now)
    }

    /// Returns the bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<StreamExchange>()
            + self.free.capacity() * size_of::<u32>()
            + self.timers.capacity() * size_of::<(Time, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(messages: &[&[u8]], count: u32, pace: StreamPace) -> StreamScript {
        StreamScript::new(
            &StreamPlan {
                kind: MethodKind::Bidirectional,
                messages: messages.iter().map(|m| m.to_vec()).collect(),
                count,
                pace,
                expect: None,
                cancel_after: None,
                duration: None,
            },
            None,
        )
        .unwrap()
    }

    /// Returns everything that can be sent in windows of `window` bytes, and the number of pieces.
    fn drain(
        exchange: &mut StreamExchange,
        script: &StreamScript,
        window: u32,
    ) -> (Vec<u8>, usize) {
        let (mut bytes, mut ends) = (Vec::new(), 0);
        while let Some(piece) = exchange.next_piece(script, None, window) {
            bytes.extend_from_slice(piece.bytes);
            ends += usize::from(piece.end_stream);
        }
        (bytes, ends)
    }

    fn framed(messages: &[&[u8]], count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages.iter().cycle().take(count) {
            bytes.push(0);
            bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
            bytes.extend_from_slice(message);
        }
        bytes
    }

    #[test]
    fn stream_messages_cycle_in_any_window() {
        let messages: [&[u8]; 3] = [b"one", b"", b"three"];
        for count in [0, 1, 2, 3, 4, 7, 5_000] {
            let script = script(&messages, count, StreamPace::None);
            for window in [1, 3, 100, 1 << 20] {
                let mut exchanges = StreamExchanges::default();
                let slot = exchanges.open(1, CallId(0), None, Time(0), &script);
                let exchange = exchanges.get_mut(slot).unwrap();
                let (bytes, ends) = drain(exchange, &script, window);
                assert_eq!(bytes, framed(&messages, count as usize), "{count} {window}");
                assert_eq!(ends, 1);
                assert_eq!(exchange.messages_sent(&script), count);
                assert!(!exchange.is_sending());
            }
        }
    }

    #[test]
    fn paced_messages_keep_schedule_after_delay() {
        let script = script(&[b"x"], 5, StreamPace::Every(Duration::from_nanos(100)));
        let mut exchanges = StreamExchanges::default();
        let slot = exchanges.open(7, CallId(0), None, Time(1_000), &script);
        let sent = |exchanges: &mut StreamExchanges| {
            let exchange = exchanges.get_mut(slot).unwrap();
            drain(exchange, &script, 1 << 20);
            exchange.messages_sent(&script)
        };
        assert_eq!(sent(&mut exchanges), 1);
        assert_eq!(exchanges.next_timer(), Some(Time(1_100)));
        assert_eq!(exchanges.pop_expired_timer(Time(1_099)), None);
        // Two messages are late and become due at once.
        assert_eq!(exchanges.pop_expired_timer(Time(1_250)), Some(7));
        exchanges.release_paced_messages(slot, 7, Time(1_250), &script);
        assert_eq!(sent(&mut exchanges), 3);
        assert_eq!(exchanges.next_timer(), Some(Time(1_300)));
        assert_eq!(exchanges.pop_expired_timer(Time(9_999)), Some(7));
        exchanges.release_paced_messages(slot, 7, Time(9_999), &script);
        assert_eq!(sent(&mut exchanges), 5);
        assert!(!exchanges.get(slot).unwrap().is_sending());
        assert_eq!(exchanges.next_timer(), None);
    }

    #[test]
    fn message_waits_for_previous_response() {
        let script = script(&[b"ping"], 2, StreamPace::Answers);
        let mut exchanges = StreamExchanges::default();
        let slot = exchanges.open(1, CallId(0), None, Time(0), &script);
        let exchange = exchanges.get_mut(slot).unwrap();
        assert_eq!(drain(exchange, &script, 99).1, 0);
        assert_eq!(exchange.messages_sent(&script), 1);
        exchange.received = 1;
        exchange.on_answer(&script);
        assert_eq!(drain(exchange, &script, 99).1, 1);
        assert_eq!(exchange.messages_sent(&script), 2);
    }

    #[test]
    fn closed_slots_are_reused() {
        let script = script(&[b"x"], 1, StreamPace::None);
        let mut exchanges = StreamExchanges::default();
        for round in 0..1_000 {
            let slot = exchanges.open(round * 2 + 1, CallId(0), None, Time(0), &script);
            exchanges.close(slot);
        }
        assert_eq!(exchanges.slots.len(), 1);
    }
}
