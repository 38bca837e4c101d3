//! From bytes to frames, and how a stream's call ends. The hot half of a connection.

use plimsoll_engine::driver::Event;
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::hpack::HpackError;
use plimsoll_wire::http2::{
    self, DEFAULT_MAX_FRAME, ErrorCode, Frame, FrameHead, Violation, flags, kind,
};

use super::streams::{NO_CALL, State};
use super::{Calls, Connection, KEPT_PARTIAL, Stage};

/// Texts of failures reported for one outcome on one connection.
const DETAILS_EACH: u64 = 3;

/// Two bits an outcome, whatever their number.
pub(super) type DetailsTold = [u64; Outcome::COUNT.div_ceil(32)];

impl<C: Calls> Connection<C> {
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
            input = C::whole_answers(self, input, now, events);
            let Some((head, payload)) = http2::split(&mut input, DEFAULT_MAX_FRAME)? else {
                break;
            };
            self.frame(head, payload, now, out, events)?;
        }
        self.partial.extend_from_slice(input);
        Ok(())
    }

    /// A frame that came in several pieces; apart, so that the loop over whole ones has
    /// [`Connection::frame`] in line.
    #[inline(never)]
    fn mended_frame(
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
    fn frame(
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
    fn act(
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
                C::data(self, head.stream(), data, end_stream, now, out, events)
            }
            kind::HEADERS if head.has(flags::END_HEADERS) => {
                let block = Frame::fragment(head, payload)?;
                C::header_block(self, head.stream(), block, end_stream, now, out, events)
            }
            _ => self.rare(head, payload, now, out, events),
        }
    }

    /// An answer before the request's end needs no more of it (RFC 9113, 8.1).
    #[inline]
    pub(crate) fn stop_sending(&mut self, id: u32, unsent: u32, out: &mut Vec<u8>) {
        if unsent > 0 {
            self.reset(id, ErrorCode::NO_ERROR, State::Ended, out);
        }
    }

    /// Ends an open stream's call; returns how much of its request was not sent.
    #[inline]
    pub(crate) fn end(
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
        let (unsent, is_over) = (stream.unsent, stream.call == NO_CALL);
        self.calls.done(stream, outcome, events);
        self.calls.forget(stream);
        self.streams.close(id, state);
        if let Some(text) = detail.filter(|_| !is_over) {
            self.detail(outcome, text, events);
        }
        unsent
    }

    /// Reports a failure's text, the first few times.
    #[cold]
    pub(crate) fn detail(&mut self, outcome: Outcome, text: String, events: &mut Vec<Event>) {
        if self.wants_detail(outcome) {
            let (word, shift) = place_of(outcome);
            self.details_given[word] += 1 << shift;
            events.push(Event::Detail { outcome, text });
        }
    }

    /// [`Connection::detail`] would.
    pub(crate) fn wants_detail(&self, outcome: Outcome) -> bool {
        let (word, shift) = place_of(outcome);
        self.details_given[word] >> shift & 3 < DETAILS_EACH
    }

    /// DATA or HEADERS on a stream that carries no call in flight (RFC 9113, 5.1).
    #[cold]
    pub(crate) fn on_closed(
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

/// Which two bits are an outcome's.
fn place_of(outcome: Outcome) -> (usize, usize) {
    (outcome.index() / 32, outcome.index() % 32 * 2)
}

/// RFC 9113, 4.3.
#[cold]
pub(crate) fn lost_compression(error: HpackError) -> Violation {
    Violation::connection(ErrorCode::COMPRESSION_ERROR, error.to_string())
}
