//! The client's side of one WebSocket (RFC 6455): a call sends a frame, and ends with the message that completes its
//! response.
//!
//! Invariant: every call that was started and not cancelled ends in exactly one [`Event::Done`]. A socket carries one
//! call at a time. Messages that arrive between calls are counted and dropped, because a server may send at any time.
//! If the server sends first, its welcome message is awaited before the first call, so that it is not mistaken for a
//! response. The engine's worker loop calls the driver.
//!
//! This file is long because one state machine opens, uses and closes a socket.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_engine::driver::{
    CallId, CallProgress, CompletedCall, Driver, Event, Protocol, ProtocolError,
};
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::websocket::{
    DeflateParameters, Opcode, ReaderRole, UpgradeOffer, UpgradeResponse, Violation,
    WebSocketMessage, WebSocketReader, append_masked_frame, client_key, code, encode_close_payload,
};

use super::call::{EventMatch, HttpCall, WebSocketCall, WelcomeMessage};
use super::checks::{BODY_MISMATCH, ResponseChecks, to_printable};
use super::events::matches_event;
use super::request::{EncodedUpgrade, FramePayload, HttpRequest};
use super::text_search::Needle;
use crate::shared::clock_origin::ClockOrigin;
use crate::shared::xorshift::Xorshift;

/// The maximum size of a message if the plan sets no limit, in bytes.
const DEFAULT_MAX_MESSAGE_BYTES: usize = 16 << 20;

/// How long a welcome message is awaited if it is unknown whether the server sends one.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of failure texts that are reported on one connection.
const MAX_FAILURE_TEXTS: usize = 3;

struct SocketProtocolState {
    upgrade: EncodedUpgrade,
    /// The frames of the plan's WebSocket script; a single frame if it has none.
    frames: Vec<FrameExchange>,
    greeting: Option<FramePayload>,
    socket: WebSocketCall,
    checks: ResponseChecks,
    offers_compression: bool,
    max_message: usize,
    /// The number of sockets opened so far; varying paths and headers use it.
    sockets_opened: AtomicU64,
    /// Whether a call has been started on any socket.
    has_begun_calls: AtomicBool,
    /// Whether the server sent a message before the first call. If so, sockets that are opened later wait for one, for
    /// at most [`WELCOME_TIMEOUT`].
    server_speaks_first: AtomicBool,
    unix_zero: ClockOrigin,
}

/// The frame of a call, and the response that it expects.
struct FrameExchange {
    text: FramePayload,
    opcode: Opcode,
    until: Option<EventMatch>,
    expect: Option<Needle>,
}

impl FrameExchange {
    fn build_exchanges(call: &HttpCall, socket: &WebSocketCall) -> Vec<FrameExchange> {
        let opcode = |is_binary: bool| {
            if is_binary {
                Opcode::Binary
            } else {
                Opcode::Text
            }
        };
        if socket.script.is_empty() {
            let varying = call.varying.as_ref().and_then(|all| all.body.as_ref());
            return vec![FrameExchange {
                text: FramePayload::new(call, &call.body, varying),
                opcode: opcode(socket.binary),
                until: socket.until.clone(),
                expect: call.expect_body.as_deref().map(Needle::new),
            }];
        }
        let scripted = socket.script.iter().map(|frame| {
            let answer = frame.answer.clone().unwrap_or_default();
            FrameExchange {
                text: FramePayload::new(call, &frame.payload, frame.varying.as_ref()),
                opcode: opcode(frame.binary),
                until: answer.until,
                expect: answer.expect.as_deref().map(Needle::new),
            }
        });
        scripted.collect()
    }
}

/// WebSockets with a prepared upgrade request and prepared frames.
#[derive(Clone)]
pub struct SocketProtocol(Arc<SocketProtocolState>);

impl SocketProtocol {
    /// Prepares the upgrade and the frames of `socket`.
    pub fn new(request: &HttpRequest<'_>, socket: &WebSocketCall) -> SocketProtocol {
        let call: &HttpCall = request.call;
        SocketProtocol(Arc::new(SocketProtocolState {
            upgrade: EncodedUpgrade::new(request),
            frames: FrameExchange::build_exchanges(call, socket),
            greeting: (socket.greeting.as_ref())
                .map(|(constant, varying)| FramePayload::new(call, constant, varying.as_ref())),
            socket: socket.clone(),
            checks: ResponseChecks::new(call),
            offers_compression: call.compressed,
            max_message: match call.max_body {
                u32::MAX => DEFAULT_MAX_MESSAGE_BYTES,
                limit => limit as usize,
            },
            sockets_opened: AtomicU64::new(0),
            has_begun_calls: AtomicBool::new(false),
            server_speaks_first: AtomicBool::new(false),
            unix_zero: ClockOrigin::default(),
        }))
    }
}

impl Protocol for SocketProtocol {
    type Driver = SocketDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        // ALPN is not offered, as for HTTP/1.1.
        None
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.0.unix_zero.set(unix_ns);
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.0.upgrade.trace_ids()
    }

    fn new_driver(&self) -> SocketDriver {
        SocketDriver {
            shared: Arc::clone(&self.0),
            number: 0,
            state: WebSocketState::Upgrading(Vec::new()),
            key: String::new(),
            random: Xorshift::new(1),
            reader: WebSocketReader::new(ReaderRole::Client, self.0.max_message),
            call: None,
            next_frames: 0..1,
            is_draining: false,
            scratch: Vec::new(),
            details: 0,
        }
    }
}

enum WebSocketState {
    /// Waiting for the response to the upgrade; contains the bytes received so far.
    Upgrading(Vec<u8>),
    /// Waiting for the server's welcome message. With a time, the driver stops waiting then, because it is not certain
    /// that a message comes.
    Welcoming(Option<Time>),
    Open,
    /// Closed by either side.
    Closed,
}

#[derive(Clone, Copy)]
struct FrameCallInFlight {
    call: CallId,
    first_byte: Time,
    sent: u32,
    received: u32,
    /// The index of the frame whose response is awaited.
    frame: usize,
    /// Whether the expected text has arrived.
    has_expected_text: bool,
    /// The time at which the call ends successfully, if the plan limits the duration of streams.
    until: Option<Time>,
}

/// The driver of one socket; see the module's documentation.
pub struct SocketDriver {
    shared: Arc<SocketProtocolState>,
    /// The number of sockets opened before this one.
    number: u64,
    state: WebSocketState,
    key: String,
    random: Xorshift,
    reader: WebSocketReader,
    call: Option<FrameCallInFlight>,
    /// The indices of the frames that the next call sends.
    next_frames: Range<usize>,
    is_draining: bool,
    scratch: Vec<u8>,
    /// The number of failure texts reported.
    details: usize,
}

impl SocketDriver {
    /// Reads the response to the upgrade. Returns the bytes after it, which are frames.
    fn read_upgrade_response<'a>(
        &mut self,
        bytes: &'a [u8],
        now: Time,
        out: &mut Vec<u8>,
    ) -> Result<&'a [u8], ProtocolError> {
        let WebSocketState::Upgrading(gathered) = &mut self.state else {
            return Ok(bytes);
        };
        let before = gathered.len();
        gathered.extend_from_slice(bytes);
        let shared = &self.shared;
        let offer = UpgradeOffer {
            compression: shared.offers_compression,
            protocols: &shared.socket.subprotocols,
        };
        let parsed = UpgradeResponse::parse(gathered, &self.key, offer);
        let refused = |outcome, detail| ProtocolError { outcome, detail };
        let answer =
            parsed.map_err(|e| refused(Outcome::SocketRefused, format!("websocket: {e}")))?;
        let Some(answer) = answer else {
            return Ok(&[]);
        };
        if let Some(problem) = answer.problem {
            let outcome = match answer.status {
                401 | 403 => Outcome::SocketDenied,
                _ => Outcome::SocketRefused,
            };
            return Err(refused(outcome, format!("websocket: {problem}")));
        }
        let rest = &bytes[answer.size.saturating_sub(before).min(bytes.len())..];
        if let Some(agreed) = answer.deflate {
            self.reader = WebSocketReader::new(ReaderRole::Client, shared.max_message)
                .with_deflate_parameters(agreed);
        }
        self.state = match &shared.socket.welcome {
            Some(_) => WebSocketState::Welcoming(None),
            None if shared.server_speaks_first.load(Ordering::Relaxed) => {
                WebSocketState::Welcoming(Some(now + WELCOME_TIMEOUT))
            }
            None => WebSocketState::Open,
        };
        let shared = Arc::clone(&self.shared);
        if let Some(greeting) = &shared.greeting {
            let mask = self.random.mask();
            let opcode = if shared.socket.binary {
                Opcode::Binary
            } else {
                Opcode::Text
            };
            let unix_ns = shared.unix_zero.unix_ns_at(now);
            let greeting = greeting.render(self.number, unix_ns, &mut self.scratch);
            append_masked_frame(out, opcode, mask, greeting);
        }
        Ok(rest)
    }

    /// Ends the current call.
    fn end_call(&mut self, outcome: Outcome, text: Option<String>, events: &mut Vec<Event>) {
        let Some(call) = self.call.take() else { return };
        if let Some(text) = text.filter(|_| self.details < MAX_FAILURE_TEXTS) {
            self.details += 1;
            let text = self.shared.checks.body_failure_text(&text);
            events.push(Event::Detail { outcome, text });
        }
        events.push(Event::Done(CompletedCall {
            call: call.call,
            outcome,
            first_byte: call.first_byte,
            bytes_sent: call.sent,
            bytes_received: call.received,
        }));
    }

    /// Handles a complete message.
    fn on_message(&mut self, data: &[u8], now: Time, events: &mut Vec<Event>) {
        if let WebSocketState::Welcoming(_) = self.state {
            if self.is_welcome(data) {
                self.state = WebSocketState::Open;
            } else {
                events.push(Event::Unsolicited);
            }
            return;
        }
        let Some(call) = &mut self.call else {
            if !self.shared.has_begun_calls.load(Ordering::Relaxed) {
                self.shared
                    .server_speaks_first
                    .store(true, Ordering::Relaxed);
            }
            return events.push(Event::Unsolicited);
        };
        let frame = &self.shared.frames[call.frame];
        if call.first_byte == Time::NEVER {
            call.first_byte = now;
        }
        call.received = call.received.saturating_add(data.len() as u32);
        if let Some(needle) = &frame.expect {
            call.has_expected_text |= needle.search(&mut 0, data);
        }
        let found = call.has_expected_text || frame.expect.is_none();
        let is = |meant: &Option<EventMatch>| {
            meant.as_ref().map(|meant| matches_event(meant, b"", data))
        };
        let goes_on = frame.until.is_some() || call.until.is_some();
        if goes_on {
            events.push(Event::Message(call.call));
        }
        let ends = is(&frame.until);
        if is(&self.shared.socket.error) == Some(true) {
            let text = format!("a message reports: {}", to_printable(data));
            return self.end_call(Outcome::EventError, Some(text), events);
        }
        match ends {
            Some(false) => {}
            None if goes_on => {}
            _ if found => self.end_call(Outcome::Ok, None, events),
            _ => {
                let text = format!(
                    "the answer does not contain the expected text: {}",
                    to_printable(data)
                );
                self.end_call(BODY_MISMATCH, Some(text), events);
            }
        }
    }

    fn is_welcome(&self, data: &[u8]) -> bool {
        match &self.shared.socket.welcome {
            Some(WelcomeMessage::Message(meant)) => matches_event(meant, b"", data),
            Some(WelcomeMessage::Any) | None => true,
        }
    }

    /// Sets the frames that the next call sends; only the last one has a response.
    pub(super) fn set_next_frames(&mut self, frames: Range<usize>) {
        self.next_frames = frames;
    }

    /// Sends a close frame, and stops using the socket.
    fn close(&mut self, violation: &Violation, out: &mut Vec<u8>) {
        let mask = self.random.mask();
        let payload = encode_close_payload(violation.code, violation.reason);
        append_masked_frame(out, Opcode::Close, mask, &payload);
        self.state = WebSocketState::Closed;
        self.is_draining = true;
    }
}

impl Driver for SocketDriver {
    fn open(&mut self, now: Time, out: &mut Vec<u8>) {
        let shared = Arc::clone(&self.shared);
        self.number = shared.sockets_opened.fetch_add(1, Ordering::Relaxed);
        let mix = self.number.wrapping_add(1);
        self.random = Xorshift::new(mix.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut nonce = [0; 16];
        for half in nonce.chunks_mut(8) {
            half.copy_from_slice(&self.random.next_u64().to_ne_bytes());
        }
        // The nonce protects against caching proxies, not against attackers, so another run may use the same values.
        self.key = client_key(&nonce);
        let mut fields = vec![
            ("upgrade", "websocket"),
            ("connection", "Upgrade"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", &*self.key),
        ];
        if shared.offers_compression {
            fields.push(("sec-websocket-extensions", DeflateParameters::CLIENT_OFFER));
        }
        let subprotocols = shared.socket.subprotocols.join(", ");
        if !subprotocols.is_empty() {
            fields.push(("sec-websocket-protocol", &subprotocols));
        }
        let unix_ns = shared.unix_zero.unix_ns_at(now);
        shared.upgrade.write(self.number, unix_ns, &fields, out);
    }

    fn shared_trace_number(&self) -> Option<u64> {
        Some(self.number)
    }

    fn is_ready(&self) -> bool {
        !matches!(
            self.state,
            WebSocketState::Upgrading(_) | WebSocketState::Welcoming(_)
        )
    }

    fn capacity(&self) -> usize {
        let is_open = matches!(self.state, WebSocketState::Open);
        usize::from(is_open && !self.is_draining && self.call.is_none())
    }

    fn is_draining(&self) -> bool {
        self.is_draining
    }

    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        let shared = Arc::clone(&self.shared);
        shared.has_begun_calls.store(true, Ordering::Relaxed);
        let unix_ns = shared.unix_zero.unix_ns_at(now);
        let mut sent = 0;
        for frame in &shared.frames[self.next_frames.clone()] {
            let mask = self.random.mask();
            let payload = frame.text.render(number, unix_ns, &mut self.scratch);
            sent += payload.len() as u32;
            append_masked_frame(out, frame.opcode, mask, payload);
        }
        self.call = Some(FrameCallInFlight {
            call,
            first_byte: Time::NEVER,
            sent,
            received: 0,
            frame: self.next_frames.end.saturating_sub(1),
            has_expected_text: false,
            until: shared.checks.stream_duration.map(|lasts| now + lasts),
        });
    }

    fn cancel(&mut self, _call: CallId, _now: Time, _out: &mut Vec<u8>) {
        // The socket is not used again, because the next call could mistake the cancelled call's response for its own.
        self.call = None;
        self.is_draining = true;
    }

    fn call_progress(&self, _call: CallId) -> CallProgress {
        CallProgress {
            messages_sent: 0,
            bytes_sent: self.call.map_or(0, |call| call.sent),
            bytes_received: self.call.map_or(0, |call| call.received),
        }
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let bytes = self.read_upgrade_response(bytes, now, out)?;
        if bytes.is_empty() || matches!(self.state, WebSocketState::Closed) {
            return Ok(());
        }
        let nothing = WebSocketReader::new(ReaderRole::Client, 0);
        let mut reader = std::mem::replace(&mut self.reader, nothing);
        let mut closed = None;
        let read = reader.read(bytes, |message| {
            match message {
                WebSocketMessage::Text(text) => self.on_message(text.as_bytes(), now, events),
                WebSocketMessage::Binary(data) => self.on_message(data, now, events),
                WebSocketMessage::Ping(payload) => {
                    let mask = self.random.mask();
                    append_masked_frame(out, Opcode::Pong, mask, payload);
                }
                WebSocketMessage::Pong(_) => {}
                WebSocketMessage::Close { code, reason } => {
                    closed = Some(format!("the socket was closed with {code} {reason}"));
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        self.reader = reader;
        if let Err(violation) = read {
            self.close(&violation, out);
            return Err(ProtocolError {
                outcome: match violation.code {
                    code::MESSAGE_TOO_BIG => Outcome::MessageTooLarge,
                    _ => Outcome::ProtocolError,
                },
                detail: format!("websocket: {}", violation.reason),
            });
        }
        if let Some(text) = closed {
            let normal = Violation {
                code: code::NORMAL_CLOSURE,
                reason: "",
            };
            self.close(&normal, out);
            self.end_call(Outcome::SocketClosed, Some(text), events);
        }
        Ok(())
    }

    fn receive_end(&mut self, _now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.is_draining = true;
        match self.state {
            WebSocketState::Upgrading(_) => Err(ProtocolError {
                outcome: Outcome::SocketRefused,
                detail: "websocket: closed before the upgrade was answered".to_owned(),
            }),
            _ => {
                let text = "the connection ended without a Close".to_owned();
                self.end_call(Outcome::SocketClosed, Some(text), events);
                Ok(())
            }
        }
    }

    fn next_timer(&self) -> Option<Time> {
        match self.state {
            WebSocketState::Welcoming(until) => until,
            _ => self.call?.until,
        }
    }

    fn on_timer(&mut self, now: Time, _out: &mut Vec<u8>, events: &mut Vec<Event>) {
        if self.next_timer().is_none_or(|until| until > now) {
            return;
        }
        if let WebSocketState::Welcoming(_) = self.state {
            self.state = WebSocketState::Open;
        } else if let Some(call) = self.call {
            let expects = self.shared.frames[call.frame].expect.is_some();
            if call.has_expected_text || !expects {
                self.end_call(Outcome::Ok, None, events)
            } else {
                let text = "no message contains the expected text".to_owned();
                self.end_call(BODY_MISMATCH, Some(text), events);
            }
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.is_draining = true;
        self.end_call(outcome, None, events);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if matches!(
            self.state,
            WebSocketState::Open | WebSocketState::Welcoming(_)
        ) {
            let normal = Violation {
                code: code::NORMAL_CLOSURE,
                reason: "",
            };
            self.close(&normal, out);
        }
    }
}

#[cfg(test)]
mod tests;
