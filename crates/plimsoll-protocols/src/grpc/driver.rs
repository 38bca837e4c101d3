//! The client side of a gRPC connection: HTTP/2 (RFC 9113) with calls on its streams.
//!
//! Invariants: every call started and not cancelled ends in exactly one
//! [`Event::Done`]; nothing is sent beyond the server's windows, its frame size and its
//! stream limit; a connection keeps no bytes but a partial frame and a partial header
//! block. What calls mean is in `unary`, what bytes mean in [`plimsoll_wire`]; here is
//! what a connection allows: this file starts and sends, `answers` takes what servers
//! answer, `whole` the usual answer in one step, `packed` what comes compressed, `messages` knows calls with several messages,
//! `varying` those that differ from call to call, `control` everything else. Called by the
//! engine's worker loop.
//!
//! In the steady state a call costs one copy of the prepared request with its stream
//! ids put in, and one answer received: two header blocks that are recognised by
//! their bytes, and a message that is counted. Nothing is allocated.

mod answers;
mod control;
mod messages;
mod packed;
mod varying;
mod whole;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{
    CallId, Done, Driver, Event, Exchanged, MOST_UNSENT, Protocol, ProtocolError, Tracer,
};
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::hpack::{BlockChoice, PeerTable};
use plimsoll_wire::http2::{
    self, DEFAULT_MAX_FRAME, DEFAULT_WINDOW, ErrorCode, HeaderBlock, MAX_WINDOW, setting, write,
};

use self::answers::DetailsTold;
pub(super) use self::control::{closed, not_http2};
use self::messages::end_exchange;
use super::decodable::Decodable;
use super::exchange::{self, Exchanges};
use super::head::HeadReader;
use super::packing::Unpackers;
use super::request::{GrpcRequest, Prepared, RequestError};
use super::streams::{State, Stream, Streams};
use super::trace::FrameTracer;
use super::unary::Answer;

/// Received bytes after which the connection's window is opened again: a quarter of it.
const WINDOW_STEP: u32 = 1 << 29;

/// A buffer for partial frames larger than this is given back when it is empty. Bytes.
const KEPT_PARTIAL: usize = 64;

/// gRPC, with its call prepared.
#[derive(Clone, Debug)]
pub struct GrpcProtocol {
    prepared: Arc<Prepared>,
}

impl GrpcProtocol {
    /// Checks and encodes the call.
    ///
    /// # Errors
    /// What of the call can't be sent, by name.
    pub fn new(request: &GrpcRequest<'_>) -> Result<GrpcProtocol, RequestError> {
        Ok(GrpcProtocol {
            prepared: Arc::new(Prepared::new(request)?),
        })
    }
}

impl Protocol for GrpcProtocol {
    type Driver = GrpcDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        Some(b"h2")
    }

    fn driver(&self) -> GrpcDriver {
        GrpcDriver::new(Arc::clone(&self.prepared))
    }

    fn clock_began(&self, unix_ns: u64) {
        self.prepared.set_unix_zero(unix_ns);
    }

    fn tracer(&self) -> Option<Box<dyn Tracer>> {
        Some(Box::new(FrameTracer::default()))
    }
}

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The server's SETTINGS have not arrived.
    Greeting,
    Ready,
    /// No more calls: GOAWAY, or ids used up.
    Draining,
    /// A connection error, or the server's end: nothing more is read or sent.
    Failed,
}

/// One connection's client side.
#[derive(Debug)]
pub struct GrpcDriver {
    prepared: Arc<Prepared>,
    streams: Streams,
    /// Of calls with several messages; `None` until the first.
    exchanges: Option<Box<Exchanges>>,
    heads: HeadReader,
    /// The beginning of a frame, between two calls of `receive`.
    partial: Vec<u8>,
    /// A header block whose end has not arrived.
    block: Option<Box<HeaderBlock>>,
    /// Streams with bytes that wait for a window, or for the outbox, in order.
    blocked: Vec<u32>,
    /// Some of them wait for the outbox.
    held_back: bool,
    /// Bytes of messages that did not go out with their call's start.
    carried: u64,
    /// What they wait with, where it is not the same for all.
    bodies: BTreeMap<u32, Box<[u8]>>,
    decodable: Decodable,
    /// `None` until an answer comes compressed.
    unpackers: Option<Box<Unpackers>>,
    /// What the server's connection window lets us send. Bytes.
    connection_window: u32,
    peer_initial_window: u32,
    peer_max_streams: u32,
    peer_table: PeerTable,
    next_id: u32,
    /// The last stream that the server's GOAWAY leaves alive.
    last_stream: u32,
    /// The highest stream that we reset: frames on it may be on their way.
    last_reset: u32,
    /// DATA received and not yet given back to the server's window. Bytes.
    unacknowledged: u32,
    /// Two bits an outcome: how many details were told.
    details_told: DetailsTold,
    stage: Stage,
    /// What the call that is being started has waited since it was due.
    waited: Duration,
    /// A window was opened: blocked streams are tried at the end of the turn.
    windows_opened: bool,
}

impl GrpcDriver {
    fn new(prepared: Arc<Prepared>) -> GrpcDriver {
        GrpcDriver {
            prepared,
            streams: Streams::default(),
            exchanges: None,
            heads: HeadReader::default(),
            partial: Vec::new(),
            block: None,
            blocked: Vec::new(),
            held_back: false,
            carried: 0,
            bodies: BTreeMap::new(),
            decodable: Decodable::default(),
            unpackers: None,
            connection_window: DEFAULT_WINDOW,
            peer_initial_window: DEFAULT_WINDOW,
            peer_max_streams: u32::MAX,
            peer_table: PeerTable::default(),
            next_id: 1,
            last_stream: http2::MAX_STREAM_ID,
            last_reset: 0,
            unacknowledged: 0,
            details_told: DetailsTold::default(),
            stage: Stage::Greeting,
            waited: Duration::ZERO,
            windows_opened: false,
        }
    }

    /// Bytes on the heap that are this connection's alone.
    pub fn heap_bytes(&self) -> usize {
        self.streams.heap_bytes()
            + self
                .exchanges
                .as_ref()
                .map_or(0, |e| size_of_val(&**e) + e.heap_bytes())
            + self.heads.heap_bytes()
            + self.decodable.heap_bytes()
            + self.partial.capacity()
            + self.blocked.capacity() * size_of::<u32>()
            + self.bodies.values().map(|body| body.len()).sum::<usize>()
            + self
                .block
                .as_ref()
                .map_or(0, |block| size_of_val(&**block) + block.bytes().len())
    }

    /// Stream ids that are left.
    #[inline]
    fn ids_left(&self) -> u32 {
        (http2::MAX_STREAM_ID + 2).saturating_sub(self.next_id) / 2
    }

    /// A request that does not go out as the prepared bytes: the connection's first, one that
    /// windows or a smaller table of the server's get in the way of, or one with less time left.
    #[inline(never)]
    fn start_apart(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        let id = self.next_id;
        self.next_id += 2;
        let varies = self.prepared.varying.is_some() || self.prepared.varying_fields.is_some();
        if varies && self.prepared.script.is_none() {
            return self.start_varying(id, call, number, now, out);
        }
        let body = self.prepared.body.len() as u32;
        // At most MAX_WINDOW.
        let stream_window = self.peer_initial_window as i32;
        self.streams.insert(id, call, stream_window, body, body);
        self.start_slowly(id, number, now, out);
    }

    /// A request's HEADERS.
    fn write_head(&mut self, id: u32, number: u64, now: Time, out: &mut Vec<u8>) {
        let prepared = &*self.prepared;
        let mut block = Vec::new();
        if !self.waited.is_zero()
            && let Some(mut with_time_left) = prepared.block_after(self.waited)
        {
            self.peer_table.beside(prepared.table_needed, &mut block);
            block.append(&mut with_time_left);
        } else {
            let choice = self.peer_table.next(prepared.table_needed, &mut block);
            block.extend_from_slice(match choice {
                BlockChoice::First => &prepared.first_block,
                BlockChoice::Steady => &prepared.steady_block,
                BlockChoice::Plain => &prepared.plain_block,
            });
        }
        if let Some(fields) = &prepared.varying_fields {
            fields.write(number, prepared.unix_ns(now), &mut block);
        }
        write::header_block(out, id, &block, false);
    }

    fn start_slowly(&mut self, id: u32, number: u64, now: Time, out: &mut Vec<u8>) {
        let prepared = Arc::clone(&self.prepared);
        self.write_head(id, number, now, out);
        if let Some(stream) = self.streams.find(id) {
            if let Some(script) = &prepared.script {
                let exchanges = self.exchanges.get_or_insert_default();
                exchanges.now = now;
                let number = prepared.varying.as_ref().map(|_| number);
                stream.exchange = exchanges.open(id, stream.call, number, now, script);
                stream.answer = Answer::NEW_STREAM;
                return self.send_messages(id, out);
            }
            self.carried += send_body(&prepared.body, stream, &mut self.connection_window, out);
            if stream.unsent > 0 {
                self.blocked.push(id);
                self.held_back |= out.len() >= MOST_UNSENT;
            }
        }
    }

    /// Sends what waited for a window, oldest stream first.
    #[inline(never)]
    fn send_blocked(&mut self, out: &mut Vec<u8>) {
        if self.prepared.script.is_some() {
            return self.send_blocked_messages(out);
        }
        let body = &self.prepared.body;
        let bodies = &mut self.bodies;
        let streams = &mut self.streams;
        let window = &mut self.connection_window;
        let carried = &mut self.carried;
        self.blocked.retain(|id| {
            let waits = match streams.find(*id) {
                Some(stream) if stream.unsent > 0 => {
                    *carried += send_body(bodies.get(id).unwrap_or(body), stream, window, out);
                    stream.unsent > 0
                }
                _ => false,
            };
            if !waits {
                bodies.remove(id);
            }
            waits
        });
        if self.blocked.is_empty() {
            self.blocked = Vec::new();
        } else {
            self.held_back |= out.len() >= MOST_UNSENT;
        }
    }

    fn reset(&mut self, id: u32, code: ErrorCode, state: State, out: &mut Vec<u8>) {
        write::reset_stream(out, id, code);
        self.last_reset = self.last_reset.max(id);
        self.streams.close(id, state);
    }
}

impl Driver for GrpcDriver {
    fn open(&mut self, _now: Time, out: &mut Vec<u8>) {
        out.extend_from_slice(http2::PREFACE);
        let settings = [
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, MAX_WINDOW),
            (setting::MAX_HEADER_LIST_SIZE, http2::MAX_HEADER_LIST),
        ];
        write::settings(out, &settings);
        write::window_update(out, 0, MAX_WINDOW - DEFAULT_WINDOW);
    }

    fn receives_lightly(&self) -> bool {
        self.unpackers.is_none()
    }

    fn is_ready(&self) -> bool {
        self.stage > Stage::Greeting
    }

    #[inline]
    fn capacity(&self) -> usize {
        if self.stage != Stage::Ready || self.connection_window == 0 {
            return 0;
        }
        self.peer_max_streams
            .saturating_sub(self.streams.open())
            .min(self.ids_left()) as usize
    }

    fn is_draining(&self) -> bool {
        self.stage >= Stage::Draining || self.ids_left() == 0
    }

    #[inline]
    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        debug_assert!(self.capacity() > 0);
        let body = self.prepared.body.len() as u32;
        // At most MAX_WINDOW.
        let stream_window = self.peer_initial_window as i32;
        let window = self.connection_window.min(self.peer_initial_window);
        if self.prepared.window_needed > window || !self.peer_table.is_steady() {
            return self.start_apart(call, number, now, out);
        }
        let id = self.next_id;
        self.next_id += 2;
        self.connection_window -= body;
        self.streams
            .insert(id, call, stream_window - body as i32, body, 0);
        let start = out.len();
        out.extend_from_slice(&self.prepared.steady);
        let written = &mut out[start..];
        for &place in &self.prepared.ids {
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
        if let Some(id) = self.streams.find_call(call, self.next_id) {
            if let (Some(exchanges), Some(stream)) = (&mut self.exchanges, self.streams.find(id)) {
                exchanges.close(std::mem::replace(&mut stream.exchange, exchange::NONE));
            }
            if let Some(unpackers) = &mut self.unpackers {
                unpackers.forget(id);
            }
            self.decodable.forget(id);
            self.reset(id, ErrorCode::CANCEL, State::Cancelled, out);
        }
    }

    fn exchanged(&self, call: CallId) -> Exchanged {
        let id = self.streams.find_call(call, self.next_id);
        let Some(stream) = id.and_then(|id| self.streams.get(id)) else {
            return Exchanged::default();
        };
        exchanged(stream, self.exchanges.as_deref(), &self.prepared)
    }

    fn carried(&self) -> u64 {
        self.carried
    }

    fn is_held_back(&self) -> bool {
        self.held_back
    }

    fn go_on(&mut self, now: Time, out: &mut Vec<u8>) {
        self.held_back = false;
        self.note_time(now);
        self.send_blocked(out);
    }

    fn deadline(&self) -> Option<Time> {
        self.exchanges.as_ref()?.next_timer()
    }

    fn expire(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        self.note_time(now);
        self.streams_due(now, out, events);
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        if self.stage == Stage::Failed {
            return Err(ProtocolError {
                outcome: Outcome::ProtocolError,
                detail: "the connection has failed already".to_owned(),
            });
        }
        if self.stage == Stage::Greeting {
            self.check_greeting(bytes)?;
        }
        self.note_time(now);
        if let Err(violation) = self.receive_frames(bytes, now, out, events) {
            return Err(self.fail(&violation, out));
        }
        if self.windows_opened {
            self.windows_opened = false;
            if !self.blocked.is_empty() {
                self.send_blocked(out);
            }
        }
        if self.unacknowledged >= WINDOW_STEP {
            write::window_update(out, 0, self.unacknowledged);
            self.unacknowledged = 0;
        }
        Ok(())
    }

    fn receive_end(&mut self, _now: Time, _events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        let stage = std::mem::replace(&mut self.stage, Stage::Failed);
        if stage == Stage::Greeting {
            if let Some(error) = not_http2(&self.partial) {
                return Err(error);
            }
            return Err(closed("before the server's SETTINGS"));
        }
        if !self.partial.is_empty() || self.block.is_some() {
            return Err(closed("in the middle of a frame"));
        }
        match self.streams.open() {
            0 if stage == Stage::Draining && self.next_id == 1 => Err(ProtocolError {
                outcome: Outcome::Goaway,
                detail: "the server went away before the connection's first call".to_owned(),
            }),
            0 => Ok(()),
            open => Err(closed(&format!("with {open} calls in flight"))),
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.stage = Stage::Failed;
        for stream in self.streams.iter_open() {
            match &mut self.exchanges {
                None => events.push(Event::Done(done(stream, outcome))),
                Some(exchanges) => end_exchange(stream, exchanges, &self.prepared, outcome, events),
            }
        }
        self.streams = Streams::default();
        self.exchanges = None;
        self.blocked = Vec::new();
        self.held_back = false;
        self.bodies = BTreeMap::new();
        self.decodable = Decodable::default();
        self.unpackers = None;
        self.partial = Vec::new();
        self.block = None;
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.stage != Stage::Failed {
            write::goaway(out, 0, ErrorCode::NO_ERROR, b"");
        }
    }
}

/// Sends as much of a request's body as the windows let, and as the outbox may hold; how
/// many bytes that made.
fn send_body(
    body: &[u8],
    stream: &mut Stream,
    connection_window: &mut u32,
    out: &mut Vec<u8>,
) -> u64 {
    let before = out.len();
    while stream.unsent > 0 && out.len() < MOST_UNSENT {
        let stream_window = stream.send_window.max(0) as u32;
        let length = stream
            .unsent
            .min(DEFAULT_MAX_FRAME)
            .min(stream_window)
            .min(*connection_window);
        if length == 0 {
            break;
        }
        let rest = &body[body.len() - stream.unsent as usize..];
        stream.unsent -= length;
        stream.send_window -= length as i32;
        *connection_window -= length;
        write::data(out, stream.id, &rest[..length as usize], stream.unsent == 0);
    }
    (out.len() - before) as u64
}

/// What a stream has come to so far.
fn exchanged(stream: &Stream, exchanges: Option<&Exchanges>, prepared: &Prepared) -> Exchanged {
    let alone = done(stream, Outcome::Ok);
    let mut exchanged = Exchanged {
        messages_sent: 0,
        bytes_sent: alone.bytes_sent,
        bytes_received: alone.bytes_received,
    };
    let exchange = exchanges.and_then(|all| all.get(stream.exchange));
    if let (Some(script), Some(exchange)) = (&prepared.script, exchange) {
        exchanged.messages_sent = exchange.messages_sent(script);
        exchanged.bytes_sent = exchange.bytes_sent();
        if exchange.received_much {
            exchanged.bytes_received = u32::MAX;
        }
    }
    exchanged
}

#[inline]
fn done(stream: &Stream, outcome: Outcome) -> Done {
    Done {
        call: stream.call,
        outcome,
        first_byte: stream.answer.first_byte,
        bytes_sent: stream.size.saturating_sub(stream.unsent),
        bytes_received: stream.answer.received,
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_model::plan::GrpcCall;

    use super::*;

    #[test]
    fn a_connection_whose_ids_are_used_up_drains() {
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
        driver.next_id = http2::MAX_STREAM_ID - 2;
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
            write::header_block(&mut bytes, id, &head, false);
            write::data(&mut bytes, id, &[0, 0, 0, 0, 0], false);
            write::header_block(&mut bytes, id, &trailers, true);
        }
        driver
            .receive(&bytes, Time(2), &mut out, &mut events)
            .unwrap();
        let ended = |event: &Event| matches!(event, Event::Done(done) if done.outcome.is_ok());
        assert_eq!(events.iter().filter(|event| ended(event)).count(), 2);
    }
}
