//! The client side of a Bolt connection.
//!
//! Invariants: every call started and not cancelled ends in exactly one [`Event::Done`];
//! an id is not used twice while its call is in flight; a connection keeps no bytes but a
//! partial frame. Called by the engine's worker loop.
//!
//! In the steady state a call costs one copy of the prepared request with its id put in,
//! and one look at the answer's fixed header. Nothing is allocated.

use std::sync::Arc;

use plimsoll_engine::driver::{CallId, Done, Driver, Event, Protocol, ProtocolError, Tracer};
use plimsoll_model::{Outcome, Time};

use super::frame::{Command, Frame, FrameError, Kind};
use super::request::{BoltRequest, Prepared, RequestError};
use super::trace::FrameTracer;
use super::{Status, header, sofa};
use crate::calls::{Calls, Found};
use crate::heartbeats::{Due, Heartbeats, MOST_MISSED};

/// Texts of failures told on one connection.
const MOST_DETAILS: u8 = 5;

/// Characters of a failure's text.
const DETAIL_LENGTH: usize = 300;

/// A buffer for partial frames larger than this is given back when it is empty. Bytes.
const KEPT_PARTIAL: usize = 64;

/// SOFABolt, with its call prepared.
#[derive(Clone, Debug)]
pub struct BoltProtocol {
    prepared: Arc<Prepared>,
}

impl BoltProtocol {
    /// Checks and encodes the call.
    ///
    /// # Errors
    /// What of the call can't be sent.
    pub fn new(request: &BoltRequest<'_>) -> Result<BoltProtocol, RequestError> {
        Ok(BoltProtocol {
            prepared: Arc::new(Prepared::new(request)?),
        })
    }
}

impl Protocol for BoltProtocol {
    type Driver = BoltDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn driver(&self) -> BoltDriver {
        BoltDriver::new(Arc::clone(&self.prepared))
    }

    fn tracer(&self) -> Option<Box<dyn Tracer>> {
        Some(Box::new(FrameTracer::default()))
    }
}

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Closed,
    Ready,
    /// No more calls: MOSN's GoAway, or a peer that answers no heartbeat.
    Draining,
    Failed,
}

/// One connection's client side.
#[derive(Debug)]
pub struct BoltDriver {
    prepared: Arc<Prepared>,
    calls: Calls,
    /// The beginning of a frame, between two calls of `receive`.
    partial: Vec<u8>,
    /// When it began to arrive.
    partial_began: Time,
    /// Oneway calls that were sent and not yet reported.
    sent: Vec<CallId>,
    heartbeats: Heartbeats,
    details_told: u8,
    stage: Stage,
}

impl BoltDriver {
    fn new(prepared: Arc<Prepared>) -> BoltDriver {
        BoltDriver {
            heartbeats: Heartbeats::new(prepared.heartbeat),
            prepared,
            calls: Calls::default(),
            partial: Vec::new(),
            partial_began: Time::ZERO,
            sent: Vec::new(),
            details_told: 0,
            stage: Stage::Closed,
        }
    }

    /// Bytes on the heap that are this connection's alone.
    pub fn heap_bytes(&self) -> usize {
        self.calls.heap_bytes()
            + self.partial.capacity()
            + self.sent.capacity() * size_of::<CallId>()
    }

    fn report_sent(&mut self, events: &mut Vec<Event>) {
        let bytes_sent = self.prepared.len();
        events.extend(self.sent.drain(..).map(|call| {
            Event::Done(Done {
                call,
                outcome: Outcome::Ok,
                first_byte: Time::NEVER,
                bytes_sent,
                bytes_received: 0,
            })
        }));
    }

    fn receive_frames(
        &mut self,
        mut input: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), FrameError> {
        let limit = self.prepared.max_content;
        if !self.partial.is_empty() {
            let mut partial = std::mem::take(&mut self.partial);
            // Only what the frame lacks is copied: first its fixed header, then the rest.
            loop {
                if let Some((frame, length)) = Frame::parse(&partial, limit)? {
                    let began = self.partial_began;
                    self.frame(&frame, length, began, now, out, events);
                    break;
                }
                // How long the fixed header is depends on what it says: byte by byte there.
                let lacks = match Frame::length(&partial, limit)? {
                    Some(length) => length - partial.len(),
                    None => 1,
                };
                let Some((more, rest)) = input.split_at_checked(lacks) else {
                    partial.extend_from_slice(input);
                    self.partial = partial;
                    return Ok(());
                };
                partial.extend_from_slice(more);
                input = rest;
            }
            if partial.capacity() <= KEPT_PARTIAL {
                partial.clear();
                self.partial = partial;
            }
        }
        while let Some((frame, length)) = Frame::parse(input, limit)? {
            self.frame(&frame, length, now, now, out, events);
            input = &input[length..];
        }
        if !input.is_empty() {
            self.partial.extend_from_slice(input);
            self.partial_began = now;
        }
        Ok(())
    }

    #[inline]
    fn frame(
        &mut self,
        frame: &Frame<'_>,
        length: usize,
        began: Time,
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) {
        match (frame.kind, frame.command) {
            (Kind::Response { status }, Command::RpcResponse | Command::RpcRequest) => {
                self.response(frame, status, length, began, events);
            }
            _ => self.rare(frame, now, out),
        }
    }

    #[inline]
    fn response(
        &mut self,
        frame: &Frame<'_>,
        status: u16,
        length: usize,
        began: Time,
        events: &mut Vec<Event>,
    ) {
        let call = match self.calls.take(frame.id) {
            Found::Open(call) => call,
            Found::Late => {
                events.push(Event::Late);
                return;
            }
            // An answer to nothing, or the second one to the same call.
            Found::Unknown => return,
        };
        let outcome = if status == 0 && frame.header.is_empty() {
            Outcome::Ok
        } else {
            self.verdict(frame, status, events)
        };
        events.push(Event::Done(Done {
            call,
            outcome,
            first_byte: began,
            bytes_sent: self.prepared.len(),
            bytes_received: u32::try_from(length).unwrap_or(u32::MAX),
        }));
    }

    /// What an answer means that is not plainly a success.
    #[inline(never)]
    fn verdict(&mut self, frame: &Frame<'_>, status: u16, events: &mut Vec<Event>) -> Outcome {
        let (outcome, text) = match Status::from_number(status) {
            Some(Status::Success) => match header::find(frame.header, header::RESPONSE_ERROR) {
                Ok(Some(b"true")) => (Outcome::SofaError, None),
                Ok(_) => return Outcome::Ok,
                Err(error) => (Outcome::BadAnswer, Some(error.to_string())),
            },
            Some(status) => (status.outcome(), None),
            None => (
                Outcome::BoltUnknown,
                Some(format!("status {status:#06x}, which does not exist")),
            ),
        };
        if self.details_told < MOST_DETAILS
            && let Some(text) = text.or_else(|| failure_text(frame))
        {
            self.details_told += 1;
            let text = text.chars().take(DETAIL_LENGTH).collect();
            events.push(Event::Detail { outcome, text });
        }
        outcome
    }

    /// Heartbeats, and what a server asks of its clients.
    #[cold]
    fn rare(&mut self, frame: &Frame<'_>, _now: Time, out: &mut Vec<u8>) {
        match (frame.kind, frame.command) {
            (Kind::Response { .. }, _) => self.heartbeats.answered(frame.id),
            (_, Command::GoAway) => self.stage = self.stage.max(Stage::Draining),
            (Kind::Request { .. }, Command::Heartbeat) => {
                Frame::heartbeat_ack(frame.form, frame.id).write(out);
            }
            (Kind::Request { .. }, _) => {
                let form = frame.form.without_switches();
                Frame::bare_response(form, frame.id, frame.codec, Status::NoProcessor).write(out);
            }
            (Kind::Oneway { .. }, _) => {}
        }
    }

    #[cold]
    fn fail(&mut self, error: FrameError) -> ProtocolError {
        self.stage = Stage::Failed;
        let outcome = match error {
            FrameError::ContentTooLong { .. } => Outcome::MessageTooLarge,
            _ => Outcome::ProtocolError,
        };
        let hint = match error {
            FrameError::Protocol(0x15) => " (a TLS alert: is the target sofas://?)",
            FrameError::Protocol(b'H') => " (an HTTP server?)",
            _ => "",
        };
        ProtocolError {
            outcome,
            detail: format!("{error}{hint}"),
        }
    }
}

/// What a failed answer says.
fn failure_text(frame: &Frame<'_>) -> Option<String> {
    if frame.codec == super::frame::codec::HESSIAN2 {
        return sofa::failure_text(frame.content);
    }
    let text = String::from_utf8_lossy(frame.content);
    Some(text.into_owned()).filter(|text| !text.is_empty())
}

impl Driver for BoltDriver {
    fn open(&mut self, now: Time, _out: &mut Vec<u8>) {
        self.stage = Stage::Ready;
        self.heartbeats.active(now);
    }

    fn is_ready(&self) -> bool {
        self.stage >= Stage::Ready
    }

    #[inline]
    fn capacity(&self) -> usize {
        if self.stage != Stage::Ready {
            return 0;
        }
        let taken = self.calls.open() as usize + self.sent.len();
        (self.prepared.in_flight as usize).saturating_sub(taken)
    }

    fn is_draining(&self) -> bool {
        self.stage >= Stage::Draining
    }

    #[inline]
    fn start(&mut self, call: CallId, _number: u64, now: Time, out: &mut Vec<u8>) {
        self.heartbeats.active(now);
        if self.prepared.oneway {
            let id = self.calls.new_id();
            self.prepared.write(id, out);
            self.sent.push(call);
            return;
        }
        let id = self.calls.insert(call);
        self.prepared.write(id, out);
    }

    fn cancel(&mut self, call: CallId, _now: Time, _out: &mut Vec<u8>) {
        // Bolt has no word for it: the server works on.
        self.sent.retain(|sent| *sent != call);
        self.calls.cancel(call);
    }

    #[inline]
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
        self.heartbeats.active(now);
        self.receive_frames(bytes, now, out, events)
            .map_err(|error| self.fail(error))
    }

    fn receive_end(&mut self, _now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.report_sent(events);
        let when = if !self.partial.is_empty() {
            "in the middle of a frame".to_owned()
        } else {
            match self.calls.open() {
                0 => return Ok(()),
                open => format!("with {open} calls in flight"),
            }
        };
        Err(ProtocolError {
            outcome: Outcome::ConnectionClosed,
            detail: format!("the server closed the connection {when}"),
        })
    }

    fn deadline(&self) -> Option<Time> {
        if !self.sent.is_empty() {
            return Some(self.heartbeats.last_active());
        }
        self.heartbeats.deadline(self.stage == Stage::Ready)
    }

    fn expire(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        self.report_sent(events);
        match self.heartbeats.expire(now) {
            Due::Nothing => {}
            Due::Beat if self.stage == Stage::Ready => {
                let id = self.calls.new_id();
                Frame::heartbeat(self.prepared.form, id).write(out);
                self.heartbeats.sent(id, now);
            }
            Due::Beat => {}
            Due::GiveUp => {
                self.stage = self.stage.max(Stage::Draining);
                events.push(Event::Detail {
                    outcome: Outcome::NoAnswer,
                    text: format!("{MOST_MISSED} heartbeats in a row were not answered"),
                });
            }
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.stage = Stage::Failed;
        self.report_sent(events);
        let bytes_sent = self.prepared.len();
        events.extend(self.calls.drain().map(|call| {
            Event::Done(Done {
                call,
                outcome,
                first_byte: Time::NEVER,
                bytes_sent,
                bytes_received: 0,
            })
        }));
        self.partial = Vec::new();
    }

    /// Bolt has no goodbye of its own: closing the transport is all.
    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests;
