//! The client side of a Bolt connection.
//!
//! Invariants: every call started and not cancelled ends in exactly one [`Event::Done`];
//! an id is not used twice while its call is in flight; a connection keeps no bytes but a
//! partial frame. Called by the engine's worker loop.
//!
//! In the steady state a call costs one copy of the prepared request with its id put in,
//! and one look at the answer's fixed header. Nothing is allocated.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{CallId, Driver, Event, Protocol, ProtocolError, Tracer};
use plimsoll_model::{Outcome, Time};

use super::frame::{Command, Frame, FrameError, Kind};
use super::request::{BoltRequest, Prepared, Renewing};
use super::status::SOFA_ERROR;
use super::trace::FrameTracer;
use super::{Status, header, sofa};
use crate::numbered::{KEPT_PARTIAL, Numbered, Settings};
use crate::unmade::RequestError;

/// SOFABolt, with its call prepared.
#[derive(Clone, Debug)]
pub struct BoltProtocol {
    prepared: Arc<Prepared>,
    /// Where what is sent changes while a run goes on.
    renewing: Option<Arc<Renewing>>,
}

impl BoltProtocol {
    /// Checks and encodes the call.
    ///
    /// # Errors
    /// What of the call can't be sent.
    pub fn new(request: &BoltRequest<'_>) -> Result<BoltProtocol, RequestError> {
        let renewing = Renewing::of(request)?.map(Arc::new);
        Ok(BoltProtocol {
            prepared: match &renewing {
                Some(renewing) => renewing.current().1,
                None => Arc::new(Prepared::new(request)?),
            },
            renewing,
        })
    }
}

impl Protocol for BoltProtocol {
    type Driver = BoltDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn driver(&self) -> BoltDriver {
        BoltDriver::new(Arc::clone(&self.prepared), self.renewing.clone())
    }

    fn tracer(&self) -> Option<Box<dyn Tracer>> {
        Some(Box::new(FrameTracer::default()))
    }
}

/// One connection's client side.
#[derive(Debug)]
pub struct BoltDriver {
    prepared: Arc<Prepared>,
    renewing: Option<Arc<Renewing>>,
    /// What the values were that `prepared` has.
    generation: u64,
    state: Numbered,
    /// The beginning of a frame, between two calls of `receive`.
    partial: Vec<u8>,
    /// When it began to arrive.
    partial_began: Time,
}

impl BoltDriver {
    fn new(prepared: Arc<Prepared>, renewing: Option<Arc<Renewing>>) -> BoltDriver {
        BoltDriver {
            state: Numbered::new(prepared.settings),
            prepared,
            renewing,
            generation: 0,
            partial: Vec::new(),
            partial_began: Time::ZERO,
        }
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
                    self.frame(&frame, length, began, out, events);
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
            self.frame(&frame, length, now, out, events);
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
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) {
        match (frame.kind, frame.command) {
            (Kind::Response { status }, Command::RpcResponse | Command::RpcRequest) => {
                self.response(frame, status, length, began, events);
            }
            _ => self.rare(frame, out),
        }
    }

    /// The request is sent as its values are by now.
    #[inline]
    fn renew(&mut self) {
        if let Some(renewing) = &self.renewing
            && renewing.generation() != self.generation
        {
            (self.generation, self.prepared) = renewing.current();
            let Settings { request_bytes, .. } = self.prepared.settings;
            self.state.resize_requests(request_bytes);
        }
    }

    /// The id of a call's request.
    #[inline]
    fn begin(&mut self, call: CallId, now: Time) -> u32 {
        self.renew();
        if self.prepared.oneway {
            self.state.over(call, Outcome::Ok);
            self.state.begin_oneway(now)
        } else {
            self.state.begin(call, now)
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
        let Some(call) = self.state.answered(frame.id, events) else {
            return;
        };
        let outcome = if status == 0 && frame.header.is_empty() {
            Outcome::Ok
        } else {
            self.verdict(frame, status, events)
        };
        events.push(self.state.done(call, outcome, began, length));
    }

    /// What an answer means that is not plainly a success.
    #[inline(never)]
    fn verdict(&mut self, frame: &Frame<'_>, status: u16, events: &mut Vec<Event>) -> Outcome {
        let (outcome, text) = match Status::from_number(status) {
            Some(Status::Success) => match header::find(frame.header, header::RESPONSE_ERROR) {
                Ok(Some(b"true")) => (SOFA_ERROR, None),
                Ok(_) => return Outcome::Ok,
                Err(error) => (Outcome::BadAnswer, Some(error.to_string())),
            },
            Some(status) => (status.outcome(), None),
            None => (
                Status::Unknown.outcome(),
                Some(format!("status {status:#06x}, which does not exist")),
            ),
        };
        let text = || text.or_else(|| failure_text(frame));
        self.state.detail(outcome, text, events);
        outcome
    }

    /// Heartbeats, and what a server asks of its clients.
    #[cold]
    fn rare(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) {
        match (frame.kind, frame.command) {
            (Kind::Response { .. }, _) => self.state.heartbeat_answered(frame.id),
            (_, Command::GoAway) => self.state.drain(),
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
        self.state.fail();
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
        self.state.open(now);
    }

    fn is_ready(&self) -> bool {
        self.state.is_ready()
    }

    #[inline]
    fn capacity(&self) -> usize {
        self.state.capacity()
    }

    fn is_draining(&self) -> bool {
        self.state.is_draining()
    }

    #[inline]
    fn start(&mut self, call: CallId, _number: u64, now: Time, out: &mut Vec<u8>) {
        let id = self.begin(call, now);
        self.prepared.write(id, out);
    }

    fn start_waited(
        &mut self,
        call: CallId,
        _number: u64,
        waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        let id = self.begin(call, now);
        self.prepared.write_waited(id, waited, out);
    }

    /// Bolt has no word for it: the server works on.
    fn cancel(&mut self, call: CallId, _now: Time, _out: &mut Vec<u8>) {
        self.state.cancel(call);
    }

    #[inline]
    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        self.state.receive(now)?;
        self.receive_frames(bytes, now, out, events)
            .map_err(|error| self.fail(error))
    }

    fn receive_end(&mut self, _now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.state.receive_end(&self.partial, events)
    }

    fn deadline(&self) -> Option<Time> {
        self.state.deadline()
    }

    fn expire(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        if let Some(id) = self.state.expire(now, events) {
            Frame::heartbeat(self.prepared.form, id).write(out);
            self.state.beat_sent(id, now);
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.state.abort(outcome, events);
        self.partial = Vec::new();
    }

    /// Bolt has no farewell of its own: closing the transport is all.
    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests;
