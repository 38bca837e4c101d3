//! The client side of a gRPC connection: HTTP/2 (RFC 9113) with calls on its streams.
//!
//! Invariants: every call started and not cancelled ends in exactly one
//! [`Event::Done`]; nothing is sent beyond the server's windows, its frame size and its
//! stream limit; a connection keeps no bytes but a partial frame and a partial header
//! block. What calls mean is in `unary`, what bytes mean in `h2` and `hpack`; here is
//! what a connection allows. Called by the engine's worker loop.
//!
//! In the steady state a call costs one copy of the prepared request with its stream
//! ids put in, and three frames received: two header blocks that are recognised by
//! their bytes and a message that is counted. Nothing is allocated.

use std::sync::Arc;

use plimsoll_engine::driver::{CallId, Done, Driver, Event, Protocol, ProtocolError, Tracer};
use plimsoll_model::{Outcome, Time};

use super::h2::{
    self, DEFAULT_MAX_FRAME, DEFAULT_WINDOW, ErrorCode, Frame, FrameHead, HeaderBlock, MAX_WINDOW,
    Settings, Violation, flags, kind, setting, write,
};
use super::head::{self, HeadReader, printable};
use super::hpack::{BlockChoice, HpackError, PeerTable};
use super::request::{GrpcRequest, Prepared, RequestError};
use super::streams::{State, Stream, Streams};
use super::trace::FrameTracer;
use super::unary::{Failure, Step};

/// Received bytes after which the connection's window is opened again: a quarter of it.
const WINDOW_STEP: u32 = 1 << 29;

/// A buffer for partial frames larger than this is given back when it is empty. Bytes.
const KEPT_PARTIAL: usize = 64;

/// Of a peer that does not speak HTTP/2, how much of its first line is shown. Bytes.
const NAMED_START: usize = 80;

/// Texts of failures told for one outcome on one connection.
const DETAILS_EACH: u128 = 3;

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
    heads: HeadReader,
    /// The beginning of a frame, between two calls of `receive`.
    partial: Vec<u8>,
    /// A header block whose end has not arrived.
    block: Option<Box<HeaderBlock>>,
    /// Streams with bytes that wait for a window, in order.
    blocked: Vec<u32>,
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
    details_told: u128,
    stage: Stage,
    /// A window was opened: blocked streams are tried at the end of the turn.
    windows_opened: bool,
}

impl GrpcDriver {
    fn new(prepared: Arc<Prepared>) -> GrpcDriver {
        GrpcDriver {
            prepared,
            streams: Streams::default(),
            heads: HeadReader::default(),
            partial: Vec::new(),
            block: None,
            blocked: Vec::new(),
            connection_window: DEFAULT_WINDOW,
            peer_initial_window: DEFAULT_WINDOW,
            peer_max_streams: u32::MAX,
            peer_table: PeerTable::default(),
            next_id: 1,
            last_stream: h2::MAX_STREAM_ID,
            last_reset: 0,
            unacknowledged: 0,
            details_told: 0,
            stage: Stage::Greeting,
            windows_opened: false,
        }
    }

    /// Bytes on the heap that are this connection's alone.
    pub fn heap_bytes(&self) -> usize {
        self.streams.heap_bytes()
            + self.heads.heap_bytes()
            + self.partial.capacity()
            + self.blocked.capacity() * size_of::<u32>()
            + self
                .block
                .as_ref()
                .map_or(0, |block| size_of_val(&**block) + block.bytes().len())
    }

    /// Stream ids that are left.
    #[inline]
    fn ids_left(&self) -> u32 {
        (h2::MAX_STREAM_ID + 2).saturating_sub(self.next_id) / 2
    }

    // ---- sending ----

    /// A request that does not go out as the prepared bytes: the connection's first, or
    /// one that windows or a smaller table of the server's get in the way of.
    #[inline(never)]
    fn start_slowly(&mut self, id: u32, out: &mut Vec<u8>) {
        let prepared = &*self.prepared;
        let mut block = Vec::new();
        let choice = self.peer_table.next(prepared.table_needed, &mut block);
        block.extend_from_slice(match choice {
            BlockChoice::First => &prepared.first_block,
            BlockChoice::Steady => &prepared.steady_block,
            BlockChoice::Plain => &prepared.plain_block,
        });
        write::header_block(out, id, &block, false);
        if let Some(stream) = self.streams.find(id) {
            send_body(&prepared.body, stream, &mut self.connection_window, out);
            if stream.unsent > 0 {
                self.blocked.push(id);
            }
        }
    }

    /// Sends what waited for a window, oldest stream first.
    #[inline(never)]
    fn send_blocked(&mut self, out: &mut Vec<u8>) {
        let body = &self.prepared.body;
        let streams = &mut self.streams;
        let window = &mut self.connection_window;
        self.blocked.retain(|id| match streams.find(*id) {
            Some(stream) if stream.unsent > 0 => {
                send_body(body, stream, window, out);
                stream.unsent > 0
            }
            _ => false,
        });
        if self.blocked.is_empty() {
            self.blocked = Vec::new();
        }
    }

    fn reset(&mut self, id: u32, code: ErrorCode, state: State, out: &mut Vec<u8>) {
        write::reset_stream(out, id, code);
        self.last_reset = self.last_reset.max(id);
        self.streams.close(id, state);
    }

    // ---- receiving ----

    #[inline]
    fn receive_frames(
        &mut self,
        mut input: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if !self.partial.is_empty() {
            let mut partial = std::mem::take(&mut self.partial);
            if !h2::complete(&mut partial, &mut input, DEFAULT_MAX_FRAME)? {
                self.partial = partial;
                return Ok(());
            }
            let mut whole = &partial[..];
            if let Some((head, payload)) = h2::split(&mut whole, DEFAULT_MAX_FRAME)? {
                self.mended_frame(head, payload, now, out, events)?;
            }
            if partial.capacity() <= KEPT_PARTIAL {
                partial.clear();
                self.partial = partial;
            }
        }
        let rest = h2::each(input, DEFAULT_MAX_FRAME, |head, payload| {
            self.frame(head, payload, now, out, events)
        })?;
        self.partial.extend_from_slice(rest);
        Ok(())
    }

    /// A frame that came in several pieces; apart, so that the loop over whole ones has
    /// [`GrpcDriver::frame`] in line.
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
    fn data(
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
                match stream.answer.data(data, end_stream, limit) {
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
    fn header_block(
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
    fn step(
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
                let unsent = self.end(id, Outcome::Ok, None, State::Ended, events);
                self.stop_sending(id, unsent, out);
                Ok(())
            }
            Step::Fail(failure) => {
                let Failure { outcome, detail } = *failure;
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
    fn stop_sending(&mut self, id: u32, unsent: u32, out: &mut Vec<u8>) {
        if unsent > 0 {
            self.reset(id, ErrorCode::NO_ERROR, State::Ended, out);
        }
    }

    /// Ends an open stream's call; returns how much of its request was not sent.
    #[inline]
    fn end(
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
        events.push(Event::Done(done(stream, outcome, &self.prepared)));
        self.streams.close(id, state);
        if let Some(text) = detail {
            self.tell(outcome, text, events);
        }
        unsent
    }

    /// Tells a failure's text, the first few times.
    #[cold]
    fn tell(&mut self, outcome: Outcome, text: String, events: &mut Vec<Event>) {
        let shift = outcome.index() * 2;
        if self.details_told >> shift & 3 < DETAILS_EACH {
            self.details_told += 1 << shift;
            events.push(Event::Detail { outcome, text });
        }
    }

    /// DATA or HEADERS on a stream that carries no call in flight (RFC 9113, 5.1).
    #[cold]
    fn on_closed(
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

    /// The server can't open a stream, nor use one that we have not (RFC 9113, 5.1.1).
    fn check_not_idle(&self, id: u32, what: &str) -> Result<(), Violation> {
        if id % 2 == 1 && id < self.next_id {
            return Ok(());
        }
        let why = format!("{what} on stream {id}, which was never opened (RFC 9113, 5.1)");
        Err(Violation::connection(ErrorCode::PROTOCOL_ERROR, why))
    }

    /// What may come before SETTINGS, and inside a header block.
    #[cold]
    fn check_order(&self, head: FrameHead) -> Result<(), Violation> {
        let name = || {
            kind::name(head.kind())
                .unwrap_or("a frame of unknown type")
                .to_owned()
        };
        if self.stage == Stage::Greeting
            && (head.kind() != kind::SETTINGS || head.flags() & flags::ACK != 0)
        {
            let why = format!("{} before the server's SETTINGS (RFC 9113, 3.4)", name());
            return Err(Violation::connection(ErrorCode::PROTOCOL_ERROR, why));
        }
        if let Some(block) = &self.block
            && (head.kind() != kind::CONTINUATION || head.stream() != block.stream)
        {
            let why = format!(
                "{} on stream {} inside the header block of stream {} (RFC 9113, 4.3)",
                name(),
                head.stream(),
                block.stream
            );
            return Err(Violation::connection(ErrorCode::PROTOCOL_ERROR, why));
        }
        Ok(())
    }

    #[inline(never)]
    fn rare(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let id = head.stream();
        match Frame::parse(head, payload)? {
            Frame::Headers {
                fragment,
                end_stream,
                ..
            } => {
                self.check_not_idle(id, "HEADERS")?;
                self.block = Some(Box::new(HeaderBlock::new(id, end_stream, fragment)));
                Ok(())
            }
            Frame::Continuation {
                fragment,
                end_headers,
            } => {
                let Some(mut block) = self.block.take() else {
                    let why =
                        format!("CONTINUATION on stream {id} after no HEADERS (RFC 9113, 6.10)");
                    return Err(Violation::connection(ErrorCode::PROTOCOL_ERROR, why));
                };
                block.push(fragment)?;
                if end_headers {
                    let (id, end_stream) = (block.stream, block.end_stream);
                    return self.header_block(id, block.bytes(), end_stream, now, out, events);
                }
                self.block = Some(block);
                Ok(())
            }
            Frame::Settings(settings) => {
                self.settings(settings)?;
                write::settings_ack(out);
                Ok(())
            }
            Frame::Ping { data } => {
                write::ping_ack(out, data);
                Ok(())
            }
            Frame::WindowUpdate { increment } if id == 0 => {
                self.connection_window = self
                    .connection_window
                    .checked_add(increment)
                    .filter(|window| *window <= MAX_WINDOW)
                    .ok_or_else(|| window_overflow(0))?;
                self.windows_opened = true;
                Ok(())
            }
            Frame::WindowUpdate { increment } => {
                self.check_not_idle(id, "WINDOW_UPDATE")?;
                if let Some(stream) = self.streams.find(id)
                    && stream.state == State::Open
                {
                    stream.send_window = stream
                        .send_window
                        .checked_add_unsigned(increment)
                        .ok_or_else(|| window_overflow(id))?;
                    self.windows_opened = true;
                }
                Ok(())
            }
            Frame::ResetStream { code } => {
                self.check_not_idle(id, "RST_STREAM")?;
                self.reset_by_peer(id, code, events);
                Ok(())
            }
            Frame::GoAway {
                last_stream,
                code,
                debug,
            } => self.goaway(last_stream, code, debug, events),
            Frame::PushPromise { .. } => Err(Violation::connection(
                ErrorCode::PROTOCOL_ERROR,
                "PUSH_PROMISE, and push is disabled (RFC 9113, 8.4)",
            )),
            Frame::SettingsAck
            | Frame::PingAck { .. }
            | Frame::Priority
            | Frame::Unknown
            | Frame::Data { .. } => Ok(()),
        }
    }

    fn settings(&mut self, settings: Settings<'_>) -> Result<(), Violation> {
        for (id, value) in settings.iter() {
            match id {
                setting::HEADER_TABLE_SIZE => self.peer_table.allow(value),
                setting::ENABLE_PUSH if value != 0 => {
                    return Err(Violation::connection(
                        ErrorCode::PROTOCOL_ERROR,
                        "ENABLE_PUSH from a server (RFC 9113, 6.5.2)",
                    ));
                }
                setting::MAX_CONCURRENT_STREAMS => self.peer_max_streams = value,
                setting::INITIAL_WINDOW_SIZE => self.move_stream_windows(value)?,
                // Frames are never larger than what every server takes; of our field
                // list, the server will say so itself.
                _ => {}
            }
        }
        if self.stage == Stage::Greeting {
            self.stage = Stage::Ready;
        }
        Ok(())
    }

    /// A new INITIAL_WINDOW_SIZE moves the windows of open streams by the difference
    /// (RFC 9113, 6.9.2).
    fn move_stream_windows(&mut self, initial: u32) -> Result<(), Violation> {
        let change = i64::from(initial) - i64::from(self.peer_initial_window);
        for stream in self.streams.iter_open() {
            let moved = i64::from(stream.send_window) + change;
            stream.send_window = i32::try_from(moved).map_err(|_| window_overflow(0))?;
        }
        self.peer_initial_window = initial;
        self.windows_opened = true;
        Ok(())
    }

    /// gRPC over HTTP/2, "Errors": what an error code means for a call.
    fn reset_by_peer(&mut self, id: u32, code: ErrorCode, events: &mut Vec<Event>) {
        let Some(stream) = self.streams.find(id) else {
            return;
        };
        match stream.state {
            State::Open => {}
            State::Cancelled => return self.streams.close(id, State::ResetByPeer),
            State::Abandoned | State::ResetByPeer | State::Ended => return,
        }
        let outcome = match code {
            ErrorCode::REFUSED_STREAM => Outcome::StreamRefused,
            ErrorCode::CANCEL => Outcome::Cancelled,
            ErrorCode::ENHANCE_YOUR_CALM => Outcome::ResourceExhausted,
            ErrorCode::INADEQUATE_SECURITY => Outcome::PermissionDenied,
            _ => Outcome::StreamReset,
        };
        let detail = format!("RST_STREAM with {code}");
        self.end(id, outcome, Some(detail), State::ResetByPeer, events);
    }

    /// RFC 9113, 6.8.
    fn goaway(
        &mut self,
        last_stream: u32,
        code: ErrorCode,
        debug: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if last_stream > self.last_stream {
            let why = format!(
                "GOAWAY up to stream {last_stream} after one up to {} (RFC 9113, 6.8)",
                self.last_stream
            );
            return Err(Violation::connection(ErrorCode::PROTOCOL_ERROR, why));
        }
        self.last_stream = last_stream;
        self.stage = Stage::Draining;
        let dropped: Vec<u32> = self
            .streams
            .iter_open()
            .map(|stream| stream.id)
            .filter(|id| *id > last_stream)
            .collect();
        for id in &dropped {
            self.end(*id, Outcome::Goaway, None, State::Abandoned, events);
            self.last_reset = self.last_reset.max(*id);
        }
        if code != ErrorCode::NO_ERROR || !dropped.is_empty() {
            let said = if debug.is_empty() {
                String::new()
            } else {
                format!(", {}", printable(debug))
            };
            self.tell(Outcome::Goaway, format!("GOAWAY with {code}{said}"), events);
        }
        Ok(())
    }

    /// A stream error ends one call, a connection error all.
    #[cold]
    fn contain(
        &mut self,
        violation: Violation,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let id = violation.stream;
        if id == 0 || self.check_not_idle(id, "").is_err() {
            return Err(violation);
        }
        match self.streams.find(id).map(|stream| stream.state) {
            Some(State::Open) => {
                let detail = violation.to_string();
                self.end(
                    id,
                    Outcome::ProtocolError,
                    Some(detail),
                    State::Abandoned,
                    events,
                );
                self.reset(id, violation.code, State::Abandoned, out);
            }
            Some(State::ResetByPeer) => self.reset(id, violation.code, State::Abandoned, out),
            _ => {}
        }
        Ok(())
    }

    /// Sees whether the first bytes are HTTP/2 at all. If not, whoever sent them would
    /// not understand a GOAWAY, and none is sent (RFC 9113, 3.4).
    #[cold]
    fn check_greeting(&mut self, input: &[u8]) -> Result<(), ProtocolError> {
        let mut start = self.partial.clone();
        start.extend_from_slice(&input[..input.len().min(NAMED_START)]);
        match not_http2(&start) {
            Some(error) if start.len() >= FrameHead::LEN => {
                self.stage = Stage::Failed;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Says goodbye to a server that broke the protocol.
    #[cold]
    fn fail(&mut self, violation: &Violation, out: &mut Vec<u8>) -> ProtocolError {
        self.stage = Stage::Failed;
        write::goaway(out, 0, violation.code, violation.why.as_bytes());
        ProtocolError {
            outcome: Outcome::ProtocolError,
            detail: violation.to_string(),
        }
    }
}

impl Driver for GrpcDriver {
    fn open(&mut self, _now: Time, out: &mut Vec<u8>) {
        out.extend_from_slice(h2::PREFACE);
        let settings = [
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, MAX_WINDOW),
            (setting::MAX_HEADER_LIST_SIZE, head::MAX_HEADER_LIST),
        ];
        write::settings(out, &settings);
        write::window_update(out, 0, MAX_WINDOW - DEFAULT_WINDOW);
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
    fn start(&mut self, call: CallId, _number: u64, _now: Time, out: &mut Vec<u8>) {
        debug_assert!(self.capacity() > 0);
        let id = self.next_id;
        self.next_id += 2;
        let body = self.prepared.body.len() as u32;
        // At most MAX_WINDOW.
        let stream_window = self.peer_initial_window as i32;
        let window = self.connection_window.min(self.peer_initial_window);
        if body > window || !self.peer_table.is_steady() {
            self.streams.insert(id, call, stream_window, body);
            self.start_slowly(id, out);
            return;
        }
        self.connection_window -= body;
        self.streams
            .insert(id, call, stream_window - body as i32, 0);
        let start = out.len();
        out.extend_from_slice(&self.prepared.steady);
        let written = &mut out[start..];
        for &place in &self.prepared.ids {
            written[place as usize..][..4].copy_from_slice(&id.to_be_bytes());
        }
    }

    fn cancel(&mut self, call: CallId, _now: Time, out: &mut Vec<u8>) {
        if let Some(id) = self.streams.find_call(call, self.next_id) {
            self.reset(id, ErrorCode::CANCEL, State::Cancelled, out);
        }
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
            0 => Ok(()),
            open => Err(closed(&format!("with {open} calls in flight"))),
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.stage = Stage::Failed;
        for stream in self.streams.iter_open() {
            events.push(Event::Done(done(stream, outcome, &self.prepared)));
        }
        self.streams = Streams::default();
        self.blocked = Vec::new();
        self.partial = Vec::new();
        self.block = None;
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.stage != Stage::Failed {
            write::goaway(out, 0, ErrorCode::NO_ERROR, b"");
        }
    }
}

/// Sends as much of a request's body as the windows let.
fn send_body(body: &[u8], stream: &mut Stream, connection_window: &mut u32, out: &mut Vec<u8>) {
    while stream.unsent > 0 {
        let stream_window = stream.send_window.max(0) as u32;
        let length = stream
            .unsent
            .min(DEFAULT_MAX_FRAME)
            .min(stream_window)
            .min(*connection_window);
        if length == 0 {
            return;
        }
        let rest = &body[body.len() - stream.unsent as usize..];
        stream.unsent -= length;
        stream.send_window -= length as i32;
        *connection_window -= length;
        write::data(out, stream.id, &rest[..length as usize], stream.unsent == 0);
    }
}

#[inline]
fn done(stream: &Stream, outcome: Outcome, prepared: &Prepared) -> Done {
    Done {
        call: stream.call,
        outcome,
        first_byte: stream.answer.first_byte,
        bytes_sent: prepared.body.len() as u32 - stream.unsent,
        bytes_received: stream.answer.received,
    }
}

/// RFC 9113, 4.3.
#[cold]
fn lost_compression(error: HpackError) -> Violation {
    Violation::connection(ErrorCode::COMPRESSION_ERROR, error.to_string())
}

/// RFC 9113, 6.9.1 and 6.9.2.
#[cold]
fn window_overflow(stream: u32) -> Violation {
    let why = "a window over 2147483647 bytes (RFC 9113, 6.9.1)";
    Violation::stream(stream, ErrorCode::FLOW_CONTROL_ERROR, why)
}

#[cold]
fn closed(when: &str) -> ProtocolError {
    let detail = format!("the server closed the connection {when}");
    ProtocolError {
        outcome: Outcome::ConnectionClosed,
        detail,
    }
}

/// Whether a server's first bytes are of another protocol, and which.
fn not_http2(start: &[u8]) -> Option<ProtocolError> {
    let shown = || {
        let line = start
            .split(|b| matches!(b, b'\r' | b'\n'))
            .next()
            .unwrap_or_default();
        printable(&line[..line.len().min(NAMED_START)])
    };
    let detail = match start {
        [b'H', b'T', b'T', b'P', b'/', ..] => {
            format!("the server answered in HTTP/1: `{}`", shown())
        }
        [0x14..=0x17, 3, ..] => {
            "the server answered in TLS; the target is spoken to in plaintext".to_owned()
        }
        // A frame's length comes first, and SETTINGS are short: a zero.
        [b' '..=b'~', ..] => format!("the server answered `{}`, not HTTP/2 frames", shown()),
        _ => return None,
    };
    Some(ProtocolError {
        outcome: Outcome::NotHttp2,
        detail,
    })
}
