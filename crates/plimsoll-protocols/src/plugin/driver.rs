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

use plimsoll_engine::driver::{CallId, Done, Driver, Event, Protocol, ProtocolError, Tracer};
use plimsoll_model::{Outcome, Time};
use plimsoll_plugin::{Decoded, Fault, Frame, Kind, Make, Match, Sender};

use super::request::{PluginRequest, Prepared, RequestError};
use super::trace::FrameTracer;
use crate::calls::{Calls, Found};
use crate::heartbeats::{Due, Heartbeats, MOST_MISSED};

/// Texts of failures told on one connection.
const MOST_DETAILS: u8 = 5;

/// Characters of a failure's text.
const DETAIL_LENGTH: usize = 300;

/// A buffer for partial frames larger than this is given back when it is empty. Bytes.
const KEPT_PARTIAL: usize = 64;

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

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Closed,
    Ready,
    /// No more calls: the server goes away, or answers no heartbeat.
    Draining,
    Failed,
}

/// One connection's client side.
#[derive(Debug)]
pub struct PluginDriver {
    prepared: Arc<Prepared>,
    calls: Calls,
    /// The beginning of a frame, between two calls of `receive`.
    partial: Vec<u8>,
    /// Bytes of `partial` before which it can't be whole.
    wanted: usize,
    /// When it began to arrive.
    partial_began: Time,
    /// Calls that are over and not yet reported: oneway ones that were sent, and those
    /// that the plugin could not write.
    over: Vec<(CallId, Outcome)>,
    heartbeats: Heartbeats,
    /// What the server sends first is of the plugin's protocol.
    recognised: bool,
    details_told: u8,
    stage: Stage,
}

impl PluginDriver {
    fn new(prepared: Arc<Prepared>) -> PluginDriver {
        PluginDriver {
            heartbeats: Heartbeats::new(prepared.heartbeat),
            prepared,
            calls: Calls::default(),
            partial: Vec::new(),
            wanted: 0,
            partial_began: Time::ZERO,
            over: Vec::new(),
            recognised: false,
            details_told: 0,
            stage: Stage::Closed,
        }
    }

    fn report_over(&mut self, events: &mut Vec<Event>) {
        let bytes_sent = self.prepared.len();
        events.extend(self.over.drain(..).map(|(call, outcome)| {
            Event::Done(Done {
                call,
                outcome,
                first_byte: Time::NEVER,
                bytes_sent,
                bytes_received: 0,
            })
        }));
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
        // No call has an id of more bits.
        let found = match u32::try_from(frame.id) {
            Ok(id) => self.calls.take(id),
            Err(_) => Found::Unknown,
        };
        let call = match found {
            Found::Open(call) => call,
            Found::Late => {
                events.push(Event::Late);
                return Ok(());
            }
            // An answer to nothing, or the second one to the same call.
            Found::Unknown => return Ok(()),
        };
        let outcome = if status == 0 {
            Outcome::Ok
        } else {
            self.failed(status, events);
            Outcome::AnswerStatus
        };
        events.push(Event::Done(Done {
            call,
            outcome,
            first_byte: began,
            bytes_sent: self.prepared.len(),
            bytes_received: u32::try_from(frame.length).unwrap_or(u32::MAX),
        }));
        Ok(())
    }

    #[cold]
    fn failed(&mut self, status: u32, events: &mut Vec<Event>) {
        let name = self.prepared.codec.name();
        let text = format!("status {status} of {name}");
        self.tell(Outcome::AnswerStatus, text, events);
    }

    fn tell(&mut self, outcome: Outcome, text: String, events: &mut Vec<Event>) {
        if self.details_told < MOST_DETAILS {
            self.details_told += 1;
            let text = text.chars().take(DETAIL_LENGTH).collect();
            events.push(Event::Detail { outcome, text });
        }
    }

    /// Heartbeats, and what a server asks of its clients.
    #[cold]
    fn rare(&mut self, frame: &Frame, out: &mut Vec<u8>) -> Result<(), Fault> {
        let codec = &self.prepared.codec;
        match frame.kind {
            Kind::HeartbeatAck => {
                if let Ok(id) = u32::try_from(frame.id) {
                    self.heartbeats.answered(id);
                }
            }
            Kind::GoAway => self.stage = self.stage.max(Stage::Draining),
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
                self.stage = Stage::Failed;
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
        self.stage = Stage::Failed;
        ProtocolError {
            outcome: outcome(fault),
            detail: format!("{}: {fault}", self.prepared.codec.name()),
        }
    }
}

fn outcome(fault: Fault) -> Outcome {
    match fault {
        Fault::TooLong { .. } => Outcome::MessageTooLarge,
        Fault::Malformed => Outcome::ProtocolError,
        _ => Outcome::PluginFailed,
    }
}

impl Driver for PluginDriver {
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
        let taken = self.calls.open() as usize + self.over.len();
        (self.prepared.in_flight as usize).saturating_sub(taken)
    }

    fn is_draining(&self) -> bool {
        self.stage >= Stage::Draining
    }

    #[inline]
    fn start(&mut self, call: CallId, _number: u64, now: Time, out: &mut Vec<u8>) {
        self.heartbeats.active(now);
        let id = if self.prepared.oneway {
            self.calls.new_id()
        } else {
            self.calls.insert(call)
        };
        match self.prepared.write(id, out) {
            Ok(()) if self.prepared.oneway => self.over.push((call, Outcome::Ok)),
            Ok(()) => {}
            // The plugin wrote such a request before the run, and now it can't.
            Err(_) => {
                self.calls.take(id);
                self.over.push((call, Outcome::PluginFailed));
                self.stage = self.stage.max(Stage::Draining);
            }
        }
    }

    fn cancel(&mut self, call: CallId, _now: Time, _out: &mut Vec<u8>) {
        // The interface has no word for it: the server works on.
        self.over.retain(|(over, _)| *over != call);
        self.calls.cancel(call);
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
        self.heartbeats.active(now);
        if !self.recognised && !self.recognise(bytes, now)? {
            return Ok(());
        }
        self.receive_frames(bytes, now, out, events)
            .map_err(|fault| self.fail(fault))
    }

    fn receive_end(&mut self, _now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.report_over(events);
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
        if !self.over.is_empty() {
            return Some(self.heartbeats.last_active());
        }
        self.heartbeats.deadline(self.stage == Stage::Ready)
    }

    fn expire(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        if self.over.iter().any(|(_, outcome)| !outcome.is_ok()) {
            let text = format!("{} could not write a request", self.prepared.codec.name());
            self.tell(Outcome::PluginFailed, text, events);
        }
        self.report_over(events);
        match self.heartbeats.expire(now) {
            Due::Nothing => {}
            Due::Beat if self.stage == Stage::Ready => {
                let id = self.calls.new_id();
                let codec = &self.prepared.codec;
                if let Err(fault) = codec.make(Make::Heartbeat, id.into(), 0, &[], out) {
                    let text = format!("{}: no heartbeat: {fault}", codec.name());
                    self.stage = self.stage.max(Stage::Draining);
                    self.tell(Outcome::PluginFailed, text, events);
                    return;
                }
                self.heartbeats.sent(id, now);
            }
            Due::Beat => {}
            Due::GiveUp => {
                self.stage = self.stage.max(Stage::Draining);
                let text = format!("{MOST_MISSED} heartbeats in a row were not answered");
                self.tell(Outcome::NoAnswer, text, events);
            }
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.stage = Stage::Failed;
        self.report_over(events);
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

    /// The interface has no goodbye: closing the transport is all.
    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests;
