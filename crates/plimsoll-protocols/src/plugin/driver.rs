//! The client side of a connection whose frames a plugin reads and writes.
//!
//! Invariants: every call started and not cancelled ends in exactly one [`Event::Done`];
//! an id is not used twice while its call is in flight; a connection keeps no bytes but a
//! partial frame; whatever the plugin returns ends at most this connection. Called by the
//! engine's worker loop.
//!
//! In the steady state a call costs one call of the plugin to write the request and one
//! to read the answer.

use std::sync::Arc;

use plimsoll_engine::driver::{CallId, Driver, Event, Protocol, ProtocolError, Tracer};
use plimsoll_model::{Outcome, Time};
use plimsoll_plugin::{Decoded, Fault, Frame, Kind, Make, Match, Sender};

use super::request::{PluginRequest, Prepared};
use super::trace::FrameTracer;
use crate::numbered::{KEPT_PARTIAL, Numbered};
use crate::unmade::RequestError;

/// The plugin failed, or returned what can't be.
const FAILED: Outcome = Outcome::coded("PLUGIN_FAILED");

/// A plugin's protocol, with its call prepared.
#[derive(Clone, Debug)]
pub struct PluginProtocol {
    prepared: Arc<Prepared>,
}

impl PluginProtocol {
    /// Checks the call, and that the plugin can do what calls need.
    ///
    /// # Errors
    /// What of the call can't be sent.
    pub fn new(request: &PluginRequest<'_>) -> Result<PluginProtocol, RequestError> {
        Ok(PluginProtocol {
            prepared: Arc::new(Prepared::new(request)?),
        })
    }
}

impl Protocol for PluginProtocol {
    type Driver = PluginDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn driver(&self) -> PluginDriver {
        PluginDriver::new(Arc::clone(&self.prepared))
    }

    fn tracer(&self) -> Option<Box<dyn Tracer>> {
        Some(Box::new(FrameTracer::new(self.prepared.codec.clone())))
    }
}

/// One connection's client side.
#[derive(Debug)]
pub struct PluginDriver {
    prepared: Arc<Prepared>,
    state: Numbered,
    /// The beginning of a frame, between two calls of `receive`.
    partial: Vec<u8>,
    /// Bytes of `partial` before which it can't be whole.
    wanted: usize,
    /// When it began to arrive.
    partial_began: Time,
    /// What the server sends first is of the plugin's protocol.
    recognised: bool,
}

impl PluginDriver {
    fn new(prepared: Arc<Prepared>) -> PluginDriver {
        PluginDriver {
            state: Numbered::new(prepared.settings),
            prepared,
            partial: Vec::new(),
            wanted: 0,
            partial_began: Time::ZERO,
            recognised: false,
        }
    }

    /// Takes whole frames off `input`, the first of which began to arrive at `began`; how
    /// many bytes that were.
    fn take(
        &mut self,
        input: &[u8],
        mut began: Time,
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<usize, Fault> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            match self
                .prepared
                .codec
                .decode(rest, Sender::Server, self.prepared.max_frame)?
            {
                Decoded::Frame(frame) => {
                    self.frame(&frame, began, out, events)?;
                    at += frame.length;
                    began = now;
                }
                Decoded::More(needed) => {
                    self.wanted = needed.unwrap_or(0);
                    return Ok(at);
                }
            }
        }
    }

    fn receive_frames(
        &mut self,
        input: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Fault> {
        if self.partial.is_empty() {
            let taken = self.take(input, now, now, out, events)?;
            if taken < input.len() {
                self.partial.extend_from_slice(&input[taken..]);
                self.partial_began = now;
            }
            return Ok(());
        }
        self.partial.extend_from_slice(input);
        if self.partial.len() < self.wanted {
            return Ok(());
        }
        let mut partial = std::mem::take(&mut self.partial);
        let taken = self.take(&partial, self.partial_began, now, out, events)?;
        if taken > 0 {
            self.partial_began = now;
            partial.drain(..taken);
        }
        if !partial.is_empty() || partial.capacity() <= KEPT_PARTIAL {
            self.partial = partial;
        }
        Ok(())
    }

    #[inline]
    fn frame(
        &mut self,
        frame: &Frame,
        began: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Fault> {
        let Kind::Response { status } = frame.kind else {
            return self.rare(frame, out);
        };
        let Some(call) = call_id(frame).and_then(|id| self.state.answered(id, events)) else {
            return Ok(());
        };
        let outcome = if status == 0 {
            Outcome::Ok
        } else {
            self.failed(status, events);
            Outcome::AnswerStatus
        };
        events.push(self.state.done(call, outcome, began, frame.length));
        Ok(())
    }

    #[cold]
    fn failed(&mut self, status: u32, events: &mut Vec<Event>) {
        let text = || Some(format!("status {status} of {}", self.prepared.codec.name()));
        self.state.detail(Outcome::AnswerStatus, text, events);
    }

    /// Heartbeats, and what a server asks of its clients.
    #[cold]
    fn rare(&mut self, frame: &Frame, out: &mut Vec<u8>) -> Result<(), Fault> {
        let codec = &self.prepared.codec;
        match frame.kind {
            Kind::HeartbeatAck => {
                if let Some(id) = call_id(frame) {
                    self.state.heartbeat_answered(id);
                }
            }
            Kind::GoAway => self.state.drain(),
            Kind::Heartbeat => {
                codec.make(Make::HeartbeatAck, frame.id, frame.note, &[], out)?;
            }
            Kind::Request { .. } => {
                codec.make(Make::Unreachable, frame.id, frame.note, &[], out)?;
            }
            Kind::Oneway | Kind::Response { .. } => {}
        }
        Ok(())
    }

    /// Whether there are bytes to take frames off.
    fn recognise(&mut self, input: &[u8], now: Time) -> Result<bool, ProtocolError> {
        let codec = &self.prepared.codec;
        let seen = if self.partial.is_empty() {
            self.partial_began = now;
            codec.matches(input, Sender::Server)
        } else {
            let joined = [&self.partial[..], input].concat();
            codec.matches(&joined, Sender::Server)
        };
        match seen {
            Ok(Match::Yes) => {
                self.recognised = true;
                Ok(true)
            }
            Ok(Match::More) if self.partial.len() + input.len() < self.prepared.max_frame => {
                self.partial.extend_from_slice(input);
                Ok(false)
            }
            Ok(Match::More | Match::No) => {
                self.state.fail();
                Err(ProtocolError {
                    outcome: Outcome::ProtocolError,
                    detail: format!(
                        "what the server sends is not {}: it begins with \"{}\"",
                        self.prepared.codec.name(),
                        input[..input.len().min(20)].escape_ascii()
                    ),
                })
            }
            Err(fault) => Err(self.fail(fault)),
        }
    }

    #[cold]
    fn fail(&mut self, fault: Fault) -> ProtocolError {
        self.state.fail();
        ProtocolError {
            outcome: outcome(fault),
            detail: format!("{}: {fault}", self.prepared.codec.name()),
        }
    }
}

/// The id of a frame, if it can be one of ours: no call has one of more bits.
fn call_id(frame: &Frame) -> Option<u32> {
    u32::try_from(frame.id).ok()
}

fn outcome(fault: Fault) -> Outcome {
    match fault {
        Fault::TooLong { .. } => Outcome::MessageTooLarge,
        Fault::Malformed => Outcome::ProtocolError,
        _ => FAILED,
    }
}

impl Driver for PluginDriver {
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
        let oneway = self.prepared.oneway;
        let id = if oneway {
            self.state.begin_oneway(now)
        } else {
            self.state.begin(call, now)
        };
        match self.prepared.write(id, out) {
            Ok(()) if oneway => self.state.over(call, Outcome::Ok),
            Ok(()) => {}
            // The plugin wrote such a request before the run, and now it can't.
            Err(_) => {
                self.state.unsent(id);
                self.state.over(call, FAILED);
                self.state.drain();
            }
        }
    }

    /// The interface has no word for it: the server works on.
    fn cancel(&mut self, call: CallId, _now: Time, _out: &mut Vec<u8>) {
        self.state.cancel(call);
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        self.state.receive(now)?;
        if !self.recognised && !self.recognise(bytes, now)? {
            return Ok(());
        }
        self.receive_frames(bytes, now, out, events)
            .map_err(|fault| self.fail(fault))
    }

    fn receive_end(&mut self, _now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.state.receive_end(&self.partial, events)
    }

    fn deadline(&self) -> Option<Time> {
        self.state.deadline()
    }

    fn expire(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        let codec = &self.prepared.codec;
        if self.state.has_failed_over() {
            let text = || Some(format!("{} could not write a request", codec.name()));
            self.state.detail(FAILED, text, events);
        }
        let Some(id) = self.state.expire(now, events) else {
            return;
        };
        match codec.make(Make::Heartbeat, id.into(), 0, &[], out) {
            Ok(_) => self.state.beat_sent(id, now),
            Err(fault) => {
                self.state.drain();
                let text = || Some(format!("{}: no heartbeat: {fault}", codec.name()));
                self.state.detail(FAILED, text, events);
            }
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.state.abort(outcome, events);
        self.partial = Vec::new();
    }

    /// The interface has no farewell: closing the transport is all.
    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests;
