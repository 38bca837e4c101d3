//! The client side of an HTTP/2 connection (RFC 9113) with calls on its streams, whatever
//! those are to their protocol.
//!
//! Invariants: every call started and not cancelled ends in exactly one
//! [`Event::Done`]; nothing is sent beyond the server's windows, its frame size and its
//! stream limit; a connection keeps no bytes but a partial frame and a partial header
//! block. What a connection allows is in [`plimsoll_wire::http2`], what answers mean the protocol's
//! ([`Calls`]); here is what becomes of calls: `starting` sends requests, `receiving` takes what comes
//! on streams, `control` all that is no answer. The worker loop calls this.
//!
//! In the steady state a call costs one copy of the prepared request with its stream
//! ids put in. Nothing is allocated.

mod control;
mod fields;
mod max_head;
mod memo;
mod receiving;
mod request;
mod rules;
mod starting;
mod streams;
mod text;
mod trace;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use plimsoll_engine::driver::{CallId, Driver, Event, Exchanged, ProtocolError};
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::hpack::PeerTable;
use plimsoll_wire::http2::{self, Client, ErrorCode, MAX_WINDOW, Piece, Stage, Violation, setting};

pub(crate) use self::control::{NOT_SPOKEN, closed, not_http2};
pub(crate) use self::fields::VaryingFields;
pub(crate) use self::max_head::max_head;
pub(crate) use self::memo::{Memo, are_same};
pub(crate) use self::receiving::lost_compression;
pub(crate) use self::request::{Bodies, Request, stream_id_places};
pub(crate) use self::rules::{AnswerRules, content_length, length_problem, number};
pub(crate) use self::streams::{NO_CALL, NO_SLOT, State, Stream, Streams};
pub(crate) use self::text::{lines, printable};
pub use self::trace::FrameTracer;
use crate::details::Details;

/// Why a header block is malformed to us, though it may be good: the limit is ours.
pub(crate) const HEAD_TOO_LARGE: &str = "a field list (RFC 9113, 6.5.2) over the limit";

/// Received bytes after which the connection's window is opened again: a quarter of it.
pub(crate) const WINDOW_STEP: u32 = 1 << 29;

/// Where what comes leads: what is sent, and what is reported, and when.
#[derive(Debug)]
pub struct Effects<'a> {
    pub now: Time,
    pub out: &'a mut Vec<u8>,
    pub events: &'a mut Vec<Event>,
}

/// An answer as far as it has arrived.
pub trait Answer: Copy + Debug {
    const NEW: Self;

    /// Nothing of it has arrived.
    fn is_new(&self) -> bool;
}

/// What a protocol makes of a connection's streams: calls.
///
/// What acts on the whole connection is given it, and finds itself in [`Connection::calls`].
pub trait Calls: Debug + Sized {
    type Answer: Answer;

    /// What calls send.
    fn request(&self) -> &Request;

    /// The header block of a call that was due `waited` ago, where it says so.
    fn block_after(&self, _waited: Duration) -> Option<Vec<u8>> {
        None
    }

    /// Bodies of their own come with header fields of their own.
    const OWN_FIELDS: bool = false;

    /// Call `number` begins, which has a request of its own.
    fn prepare(&mut self, _number: u64, _now: Time) {}

    /// Appends the fields that come with a body of its own.
    fn write_own_fields(&self, _block: &mut Vec<u8>) {}

    /// Appends the body of call `number`; asked for where bodies vary.
    fn write_body(&self, number: u64, now: Time, out: &mut Vec<u8>);

    /// The call's HEADERS have gone out: a protocol that streams bodies begins with its own.
    fn begin_stream(
        _connection: &mut Connection<Self>,
        _id: u32,
        _number: u64,
        _now: Time,
        _out: &mut Vec<u8>,
    ) {
    }

    /// [`Connection::send_blocked`] where bodies are streamed.
    fn send_blocked_streams(_connection: &mut Connection<Self>, _out: &mut Vec<u8>) {}

    /// Takes answers that lie whole at the front of `input`, and returns the bytes after them.
    fn whole_answers<'a>(
        _connection: &mut Connection<Self>,
        input: &'a [u8],
        _to: &mut Effects<'_>,
    ) -> &'a [u8] {
        input
    }

    /// DATA on any stream.
    ///
    /// # Errors
    /// How it breaks RFC 9113.
    fn data(
        connection: &mut Connection<Self>,
        data: Piece<'_>,
        to: &mut Effects<'_>,
    ) -> Result<(), Violation>;

    /// A whole header block on any stream.
    ///
    /// # Errors
    /// As [`Calls::data`].
    fn header_block(
        connection: &mut Connection<Self>,
        block: Piece<'_>,
        to: &mut Effects<'_>,
    ) -> Result<(), Violation>;

    /// Reports the end of a stream's call.
    fn done(&mut self, stream: &Stream<Self::Answer>, outcome: Outcome, events: &mut Vec<Event>);

    /// Gives back what is kept of a stream whose call is over.
    fn forget(&mut self, stream: &mut Stream<Self::Answer>);

    /// [`Calls::forget`] for all streams.
    fn forget_all(&mut self);

    fn exchanged(&self, stream: &Stream<Self::Answer>) -> Exchanged;

    /// What the server's error code means for a call.
    fn outcome_of_reset(code: ErrorCode) -> Outcome;

    /// See [`Driver::prefetch`].
    #[inline]
    fn prefetch(&self) {}

    /// The largest head of an answer, as HTTP/2 counts it (RFC 9113, 6.5.2). Bytes.
    fn max_head(&self) -> u32 {
        http2::MAX_HEADER_LIST
    }

    /// See [`Driver::receives_lightly`].
    fn receives_lightly(&self) -> bool;

    /// The time of what follows.
    fn note_time(&mut self, _now: Time) {}

    /// See [`Driver::deadline`].
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// See [`Driver::expire`].
    fn expire(_connection: &mut Connection<Self>, _to: &mut Effects<'_>) {}

    /// See [`Driver::end_with_load`].
    fn end_with_load(_connection: &mut Connection<Self>, _to: &mut Effects<'_>) {}

    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// One connection's client side. What each call needs comes first.
#[derive(Debug)]
#[repr(C)]
pub struct Connection<C: Calls> {
    pub(crate) http2: http2::Connection<Client>,
    pub(crate) streams: Streams<C::Answer>,
    peer_table: PeerTable,
    /// Bytes of messages that did not go out with their call's start.
    pub(crate) carried: u64,
    /// Some of the blocked streams wait for the outbox.
    pub(crate) held_back: bool,
    /// A window was opened: blocked streams are tried at the end of the turn.
    windows_opened: bool,
    pub(crate) calls: C,
    /// Streams with bytes that wait for a window, or for the outbox, in order.
    pub(crate) blocked: Vec<u32>,
    /// What they wait with, where it is not the same for all.
    bodies: BTreeMap<u32, Box<[u8]>>,
    /// How many texts of failures were reported, by outcome.
    pub(crate) details: Details,
    /// What the call that is being started has waited since it was due.
    waited: Duration,
}

impl<C: Calls> Connection<C> {
    pub(crate) fn new(calls: C) -> Connection<C> {
        Connection {
            calls,
            http2: http2::Connection::new(Client, MAX_WINDOW),
            streams: Streams::default(),
            blocked: Vec::new(),
            held_back: false,
            carried: 0,
            bodies: BTreeMap::new(),
            peer_table: PeerTable::default(),
            details: Details::default(),
            waited: Duration::ZERO,
            windows_opened: false,
        }
    }

    /// Bytes on the heap that are this connection's alone.
    pub fn heap_bytes(&self) -> usize {
        self.streams.heap_bytes()
            + self.calls.heap_bytes()
            + self.http2.heap_bytes()
            + self.blocked.capacity() * size_of::<u32>()
            + self.bodies.values().map(|body| body.len()).sum::<usize>()
    }

    pub(crate) fn reset(&mut self, id: u32, code: ErrorCode, state: State, out: &mut Vec<u8>) {
        self.http2.reset(id, code, out);
        self.streams.close(id, state);
    }
}

impl<C: Calls> Driver for Connection<C> {
    fn open(&mut self, _now: Time, out: &mut Vec<u8>) {
        let max_head = self.calls.max_head();
        self.http2.allow_blocks(max_head);
        let settings = [
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, MAX_WINDOW),
            (setting::MAX_HEADER_LIST_SIZE, max_head),
        ];
        self.http2.open(&settings, out);
    }

    #[inline]
    fn prefetch(&self) {
        self.streams.prefetch(self.http2.next_id());
        self.calls.prefetch();
    }

    fn receives_lightly(&self) -> bool {
        self.calls.receives_lightly()
    }

    fn is_ready(&self) -> bool {
        self.http2.stage() > Stage::Greeting
    }

    #[inline]
    fn capacity(&self) -> usize {
        if self.http2.stage() != Stage::Open || self.http2.send_window() == 0 {
            return 0;
        }
        let left = (self.http2.max_streams()).saturating_sub(self.streams.open());
        left.min(self.http2.ids_left()) as usize
    }

    fn is_draining(&self) -> bool {
        self.http2.stage() >= Stage::Leaving || self.http2.ids_left() == 0
    }

    #[inline]
    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        debug_assert!(self.capacity() > 0);
        let request = self.calls.request();
        let body = request.body.len() as u32;
        // The window is at most MAX_WINDOW.
        let stream_window = self.http2.initial_window() as i32;
        let window = self.http2.send_window().min(stream_window as u32);
        if request.window_needed > window || !self.peer_table.is_steady() {
            return self.start_apart(call, number, now, out);
        }
        let id = self.http2.begin();
        self.http2.sent(body);
        self.streams
            .insert(id, call, stream_window - body as i32, body, 0);
        let start = out.len();
        out.extend_from_slice(&request.steady);
        let written = &mut out[start..];
        for &place in &request.ids {
            written[place as usize..][..4].copy_from_slice(&id.to_be_bytes());
        }
    }

    fn start_waited(
        &mut self,
        call: CallId,
        number: u64,
        waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        self.waited = waited;
        self.start_apart(call, number, now, out);
        self.waited = Duration::ZERO;
    }

    fn cancel(&mut self, call: CallId, _now: Time, out: &mut Vec<u8>) {
        if let Some(id) = self.streams.find_call(call, self.http2.next_id()) {
            if let Some(stream) = self.streams.find(id) {
                self.calls.forget(stream);
            }
            self.reset(id, ErrorCode::CANCEL, State::Cancelled, out);
        }
    }

    fn exchanged(&self, call: CallId) -> Exchanged {
        let id = self.streams.find_call(call, self.http2.next_id());
        id.and_then(|id| self.streams.get(id))
            .map(|stream| self.calls.exchanged(stream))
            .unwrap_or_default()
    }

    fn carried(&self) -> u64 {
        self.carried
    }

    fn is_held_back(&self) -> bool {
        self.held_back
    }

    fn go_on(&mut self, now: Time, out: &mut Vec<u8>) {
        self.held_back = false;
        self.calls.note_time(now);
        self.send_blocked(out);
    }

    fn deadline(&self) -> Option<Time> {
        self.calls.deadline()
    }

    fn expire(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        self.calls.note_time(now);
        C::expire(self, &mut Effects { now, out, events });
    }

    fn end_with_load(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        C::end_with_load(self, &mut Effects { now, out, events });
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        if self.http2.stage() == Stage::Failed {
            return Err(ProtocolError {
                outcome: Outcome::ProtocolError,
                detail: "the connection has failed already".to_owned(),
            });
        }
        if self.http2.stage() == Stage::Greeting {
            self.check_greeting(bytes)?;
        }
        self.calls.note_time(now);
        let received = self.receive_frames(bytes, &mut Effects { now, out, events });
        if let Err(violation) = received {
            return Err(self.fail(&violation, out));
        }
        if self.windows_opened {
            self.windows_opened = false;
            if !self.blocked.is_empty() {
                self.send_blocked(out);
            }
        }
        self.http2.give_back_all(out);
        Ok(())
    }

    fn receive_end(&mut self, _now: Time, _events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        let other = not_http2(self.http2.partial());
        let is_whole = self.http2.is_between_frames();
        let stage = self.http2.close();
        if stage == Stage::Greeting {
            return Err(other.unwrap_or_else(|| closed("before the server's SETTINGS")));
        }
        if !is_whole {
            return Err(closed("in the middle of a frame"));
        }
        let streams = self.streams.iter_open();
        match streams.filter(|stream| stream.call != NO_CALL).count() {
            0 if stage == Stage::Leaving && self.http2.next_id() == 1 => Err(ProtocolError {
                outcome: Outcome::Goaway,
                detail: "the server went away before the connection's first call".to_owned(),
            }),
            0 => Ok(()),
            open => Err(closed(&format!("with {open} calls in flight"))),
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.http2.close();
        for stream in self.streams.iter_open() {
            self.calls.done(stream, outcome, events);
        }
        self.calls.forget_all();
        self.streams = Streams::default();
        self.blocked = Vec::new();
        self.held_back = false;
        self.bodies = BTreeMap::new();
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.http2.stage() != Stage::Failed {
            self.http2.goaway(ErrorCode::NO_ERROR, b"", out);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::grpc::GrpcCall;
    use plimsoll_engine::driver::Protocol;
    use plimsoll_wire::http2::{End, write};

    use super::*;
    use crate::grpc::{GrpcProtocol, GrpcRequest};

    #[test]
    fn driver_is_small_with_hot_fields_first() {
        use crate::grpc::GrpcDriver;
        assert!(size_of::<GrpcDriver>() <= 400);
        assert!(std::mem::offset_of!(GrpcDriver, blocked) <= 304);
    }

    #[test]
    fn exhausted_stream_ids_drain_connection() {
        let call = GrpcCall {
            method: "a.S/M".to_owned(),
            message: vec![1],
            max_message: 100,
            ..GrpcCall::default()
        };
        let request = GrpcRequest {
            call: &call,
            authority: "a:1",
            secure: false,
            deadline: None,
        };
        let mut driver = GrpcProtocol::new(&request).unwrap().driver();
        let (mut out, mut events) = (Vec::new(), Vec::new());
        let mut bytes = Vec::new();
        write::settings(&mut bytes, &[]);
        driver
            .receive(&bytes, Time(0), &mut out, &mut events)
            .unwrap();
        // RFC 9113, 5.1.1: the last id is 2^31-1, and none is used again.
        driver.http2.skip_to(http2::MAX_STREAM_ID - 2);
        for left in [2, 1] {
            assert_eq!((driver.capacity(), driver.is_draining()), (left, false));
            driver.start(CallId(left as u32), 0, Time(1), &mut out);
        }
        assert_eq!((driver.capacity(), driver.is_draining()), (0, true));
        // The calls in flight still end well, on the highest id there is.
        bytes.clear();
        for id in [http2::MAX_STREAM_ID - 2, http2::MAX_STREAM_ID] {
            let head = plimsoll_wire::hpack::Encoder::encode_plain([
                (":status", "200"),
                ("content-type", "application/grpc"),
            ]);
            let trailers = plimsoll_wire::hpack::Encoder::encode_plain([("grpc-status", "0")]);
            write::header_block(&mut bytes, id, &head, End(false));
            write::data(&mut bytes, id, &[0, 0, 0, 0, 0], End(false));
            write::header_block(&mut bytes, id, &trailers, End(true));
        }
        driver
            .receive(&bytes, Time(2), &mut out, &mut events)
            .unwrap();
        let ended = |event: &Event| matches!(event, Event::Done(done) if done.outcome.is_ok());
        assert_eq!(events.iter().filter(|event| ended(event)).count(), 2);
    }
}
