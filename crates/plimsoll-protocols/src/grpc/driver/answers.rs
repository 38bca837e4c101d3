//! What servers answer: from frames to the ends of calls. The hot half of the driver.

use plimsoll_engine::driver::Event;
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::hpack::HpackError;
use plimsoll_wire::http2::{
    self, DEFAULT_MAX_FRAME, ErrorCode, Frame, FrameHead, Violation, flags, kind, write,
};

use super::messages::end_exchange;
use super::packed::{note_encoding, read_data};
use super::{GrpcDriver, KEPT_PARTIAL, Stage, WINDOW_STEP, done};
use crate::grpc::exchange;
use crate::grpc::head::Encoding;
use crate::grpc::streams::State;
use crate::grpc::unary::{Failure, Step, bad_message};

/// Texts of failures told for one outcome on one connection.
const DETAILS_EACH: u64 = 3;

/// Two bits an outcome, whatever their number.
pub(super) type DetailsTold = [u64; Outcome::ALL.len().div_ceil(32)];

impl GrpcDriver {
    #[inline]
    pub(super) fn receive_frames(
        &mut self,
        mut input: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if !self.partial.is_empty() {
            let mut partial = std::mem::take(&mut self.partial);
            if !http2::complete(&mut partial, &mut input, DEFAULT_MAX_FRAME)? {
                self.partial = partial;
                return Ok(());
            }
            let mut whole = &partial[..];
            if let Some((head, payload)) = http2::split(&mut whole, DEFAULT_MAX_FRAME)? {
                self.mended_frame(head, payload, now, out, events)?;
            }
            if partial.capacity() <= KEPT_PARTIAL {
                partial.clear();
                self.partial = partial;
            }
        }
        loop {
            input = self.whole_answers(input, now, events);
            let Some((head, payload)) = http2::split(&mut input, DEFAULT_MAX_FRAME)? else {
                break;
            };
            self.frame(head, payload, now, out, events)?;
        }
        self.partial.extend_from_slice(input);
        Ok(())
    }

    /// A frame that came in several pieces; apart, so that the loop over whole ones has
    /// [`GrpcDriver::frame`] in line.
    #[inline(never)]
    pub(super) fn mended_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        self.frame(head, payload, now, out, events)
    }

    #[inline(always)]
    pub(super) fn frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if (self.stage == Stage::Greeting || self.block.is_some())
            && let Err(violation) = self.check_order(head)
        {
            return Err(violation);
        }
        match self.act(head, payload, now, out, events) {
            Ok(()) => Ok(()),
            Err(violation) => self.contain(violation, out, events),
        }
    }

    #[inline(always)]
    pub(super) fn act(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let end_stream = head.has(flags::END_STREAM);
        match head.kind() {
            kind::DATA => {
                let data = Frame::data(head, payload)?;
                // Padding counts, and so does what no stream takes (RFC 9113, 6.9).
                self.unacknowledged += head.length();
                self.data(head.stream(), data, end_stream, now, out, events)
            }
            kind::HEADERS if head.has(flags::END_HEADERS) => {
                let block = Frame::fragment(head, payload)?;
                self.header_block(head.stream(), block, end_stream, now, out, events)
            }
            _ => self.rare(head, payload, now, out, events),
        }
    }

    #[inline]
    pub(super) fn data(
        &mut self,
        id: u32,
        data: &[u8],
        end_stream: bool,
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let limit = self.prepared.max_message;
        match self.streams.find(id) {
            Some(stream) if stream.state == State::Open => {
                if stream.answer.first_byte == Time::NEVER {
                    stream.answer.first_byte = now;
                }
                let before = stream.answer.received;
                let begins = !stream.answer.is_inside();
                let shapes = &self.prepared.answer;
                let mut step = if stream.answer.packed {
                    read_data(&mut self.unpackers, shapes, stream, data, end_stream, limit)
                } else {
                    stream.answer.data(data, end_stream, limit)
                };
                if step == Step::Continue
                    && let Some(shapes) = shapes
                    && !stream.answer.packed
                    && let Err(error) = self.decodable.data(shapes, id, begins, data)
                {
                    step = bad_message(error);
                }
                if stream.exchange != exchange::NONE {
                    return self.stream_data(id, before, step, end_stream, out, events);
                }
                match step {
                    Step::Continue => {
                        // The stream's window is as large as can be; only an answer of
                        // half a gigabyte needs more.
                        if (before ^ stream.answer.received) >= WINDOW_STEP {
                            write::window_update(out, id, WINDOW_STEP);
                        }
                        Ok(())
                    }
                    step => self.step(id, step, end_stream, out, events),
                }
            }
            other => {
                let state = other.map(|stream| stream.state);
                self.on_closed(id, state, "DATA", end_stream, events)
            }
        }
    }

    #[inline]
    pub(super) fn header_block(
        &mut self,
        id: u32,
        block: &[u8],
        end_stream: bool,
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        match self.streams.find(id) {
            Some(stream) if stream.state == State::Open => {
                let (head, texts) = self.heads.read(block).map_err(lost_compression)?;
                if stream.answer.first_byte == Time::NEVER {
                    stream.answer.first_byte = now;
                }
                if head.encoding != Encoding::Identity {
                    let offers = self.prepared.compression.is_some();
                    note_encoding(&mut self.unpackers, stream, offers, &head, texts.as_deref());
                }
                match stream.answer.head(&head, texts, end_stream) {
                    Step::Continue => Ok(()),
                    step => self.step(id, step, end_stream, out, events),
                }
            }
            other => {
                let state = other.map(|stream| stream.state);
                // The block may change the table that later ones refer to.
                self.heads.read(block).map_err(lost_compression)?;
                self.on_closed(id, state, "HEADERS", end_stream, events)
            }
        }
    }

    /// Does what a piece of an open stream's answer leads to.
    #[inline]
    pub(super) fn step(
        &mut self,
        id: u32,
        step: Step,
        end_stream: bool,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        match step {
            Step::Continue => Ok(()),
            Step::Succeed => {
                if self.exchanges.is_some() {
                    self.stream_succeeded(id, out, events);
                    return Ok(());
                }
                let unsent = self.end(id, Outcome::Ok, None, State::Ended, events);
                self.stop_sending(id, unsent, out);
                Ok(())
            }
            Step::Fail(failure) => {
                let Failure { outcome, detail } = *failure;
                let detail = self.with_encoding(outcome, detail);
                if end_stream {
                    let unsent = self.end(id, outcome, detail, State::Ended, events);
                    self.stop_sending(id, unsent, out);
                } else {
                    self.end(id, outcome, detail, State::Abandoned, events);
                    self.reset(id, ErrorCode::CANCEL, State::Abandoned, out);
                }
                Ok(())
            }
            Step::Malformed(why) => Err(Violation::stream(id, ErrorCode::PROTOCOL_ERROR, why)),
        }
    }

    /// An answer before the request's end needs no more of it (RFC 9113, 8.1).
    #[inline]
    pub(super) fn stop_sending(&mut self, id: u32, unsent: u32, out: &mut Vec<u8>) {
        if unsent > 0 {
            self.reset(id, ErrorCode::NO_ERROR, State::Ended, out);
        }
    }

    /// Ends an open stream's call; returns how much of its request was not sent.
    #[inline]
    pub(super) fn end(
        &mut self,
        id: u32,
        outcome: Outcome,
        detail: Option<String>,
        state: State,
        events: &mut Vec<Event>,
    ) -> u32 {
        let Some(stream) = self.streams.find(id) else {
            return 0;
        };
        let unsent = stream.unsent;
        match &mut self.exchanges {
            None => events.push(Event::Done(done(stream, outcome))),
            Some(exchanges) => end_exchange(stream, exchanges, &self.prepared, outcome, events),
        }
        self.streams.close(id, state);
        if let Some(unpackers) = &mut self.unpackers {
            unpackers.forget(id);
        }
        self.decodable.forget(id);
        if let Some(text) = detail {
            self.tell(outcome, text, events);
        }
        unsent
    }

    /// Tells a failure's text, the first few times.
    #[cold]
    pub(super) fn tell(&mut self, outcome: Outcome, text: String, events: &mut Vec<Event>) {
        let (word, shift) = (outcome.index() / 32, outcome.index() % 32 * 2);
        let told = &mut self.details_told[word];
        if *told >> shift & 3 < DETAILS_EACH {
            *told += 1 << shift;
            events.push(Event::Detail { outcome, text });
        }
    }

    /// DATA or HEADERS on a stream that carries no call in flight (RFC 9113, 5.1).
    #[cold]
    pub(super) fn on_closed(
        &mut self,
        id: u32,
        state: Option<State>,
        what: &str,
        end_stream: bool,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        self.check_not_idle(id, what)?;
        match state {
            Some(State::Cancelled) => {
                if end_stream {
                    self.streams.close(id, State::Ended);
                    events.push(Event::Late);
                }
                Ok(())
            }
            Some(State::Open | State::Abandoned) => Ok(()),
            Some(State::ResetByPeer) => Err(Violation::stream(
                id,
                ErrorCode::STREAM_CLOSED,
                format!("{what} on stream {id} after RST_STREAM (RFC 9113, 5.1)"),
            )),
            None if id <= self.last_reset => Ok(()),
            Some(State::Ended) | None => Err(Violation::connection(
                ErrorCode::STREAM_CLOSED,
                format!("{what} on stream {id} after END_STREAM (RFC 9113, 5.1)"),
            )),
        }
    }
}

/// RFC 9113, 4.3.
#[cold]
pub(super) fn lost_compression(error: HpackError) -> Violation {
    Violation::connection(ErrorCode::COMPRESSION_ERROR, error.to_string())
}
