//! The client side of a connection whose frames carry request ids: matches responses to calls, sends heartbeats, and
//! reports failures. A [`FrameFormat`] implements the parts that differ between protocols.
//!
//! Invariants: every call that was started and not cancelled is in `calls` or in `unreported`, and leaves it with
//! exactly one [`Event::Done`]; an id is not reused while its call is in flight; a connection buffers nothing but a
//! partial frame. The engine's worker loop calls [`FramedDriver`].
//!
//! This file is long because all events of a connection change the same table of calls.

use std::fmt::Debug;
use std::time::Duration;

use plimsoll_engine::driver::{CallId, CompletedCall, Driver, Event, ProtocolError};
use plimsoll_model::{Count, Outcome, Time};

use crate::shared::call_table::{CallLookup, CallTable};
use crate::shared::heartbeats::{HeartbeatAction, Heartbeats, MAX_MISSED_HEARTBEATS};

mod settings;
pub(crate) mod steps;

pub(crate) use settings::{FramedSettings, check_framed_keys};

/// The maximum number of failure texts that one connection reports.
const MAX_DETAILS_PER_CONNECTION: u8 = 5;
/// The maximum length of a failure text, in characters.
const MAX_DETAIL_CHARS: usize = 300;

/// Capacity in bytes above which an empty buffer for partial frames is freed.
const MAX_KEPT_PARTIAL_BYTES: usize = 64;

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FramedState {
    Closed,
    Ready,
    /// The connection accepts no more calls: the server sent a goaway, or does not answer heartbeats.
    Draining,
    Failed,
}

/// A protocol whose frames carry request ids. Each connection has its own instance.
pub trait FrameFormat: Debug {
    /// A complete frame from the server.
    type Frame<'a>;

    /// Returns the protocol's name for messages.
    fn name(&self) -> &str;

    /// Returns whether calls end when they are sent, without a response.
    fn is_oneway(&self) -> bool;

    /// Switches to the new version of a request that has changed, and returns its length in bytes; `None` if there is
    /// no new version.
    #[inline]
    fn take_changed_request(&mut self) -> Option<u32> {
        None
    }

    /// Appends the request of a call. `waited` is the time since the call was due, if it starts late.
    ///
    /// # Errors
    /// Returns the outcome of the call if its request can't be written; nothing is appended then.
    fn write_request(
        &self,
        id: u32,
        waited: Option<Duration>,
        out: &mut Vec<u8>,
    ) -> Result<(), Outcome>;

    /// Parses the frame at the beginning of `bytes`, and returns it with its length; `None` if it is incomplete.
    ///
    /// # Errors
    /// When no frame can begin with these bytes.
    fn read<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<Option<(Self::Frame<'a>, usize)>, ProtocolError>;

    /// Returns the length that `partial`, the beginning of a frame, must reach before [`FrameFormat::read`] is tried
    /// again; it exceeds the length of `partial`. `None` if it is not known.
    fn needed_length(&self, partial: &[u8]) -> Option<usize>;

    /// Returns the purpose of a frame.
    fn frame_purpose(frame: &Self::Frame<'_>) -> FramePurpose;

    /// Returns the outcome of the call that a response answers.
    fn outcome(&self, answer: &Self::Frame<'_>) -> Outcome;

    /// Returns how many bytes of a call's request, and of its response if there is one, are content rather than
    /// headers; 0 if the protocol does not tell them apart.
    #[inline]
    fn content_bytes(&self, _answer: Option<&Self::Frame<'_>>) -> u64 {
        0
    }

    /// Returns the text of a call's failure.
    fn failure_detail(&self, answer: &Self::Frame<'_>) -> Option<String>;

    /// Appends the response to a frame that requires one.
    ///
    /// # Errors
    /// When the response can't be written.
    fn write_response(
        &self,
        asking: &Self::Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError>;

    /// Appends a heartbeat.
    ///
    /// # Errors
    /// When the heartbeat can't be written.
    fn write_heartbeat(&self, id: u32, out: &mut Vec<u8>) -> Result<(), ProtocolError>;
}

/// The purpose of a frame from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePurpose {
    /// The frame answers the request of this id.
    Answer(u32),
    /// The frame answers the heartbeat of this id.
    HeartbeatAck(u32),
    /// The server accepts no more requests.
    GoAway,
    /// The frame requires a response.
    NeedsResponse,
    /// The frame has no meaning for a client.
    Other,
}

/// The client side of one connection.
#[derive(Debug)]
pub struct FramedDriver<F> {
    format: F,
    calls: CallTable,
    /// Calls that have ended and are not yet reported: one-way calls that were sent, and calls that could not be
    /// written.
    unreported: Vec<(CallId, Outcome)>,
    heartbeats: Heartbeats,
    request_bytes: u32,
    /// The [`FrameFormat::content_bytes`] of ended calls that are not yet reported.
    content_bytes: u64,
    in_flight: u32,
    details_reported: u8,
    state: FramedState,
    /// The beginning of an incomplete frame, between two calls of `receive`.
    partial: Vec<u8>,
    /// When the incomplete frame began to arrive.
    partial_began: Time,
}

impl<F: FrameFormat> FramedDriver<F> {
    pub(crate) fn new(format: F, settings: FramedSettings) -> FramedDriver<F> {
        FramedDriver {
            format,
            calls: CallTable::default(),
            unreported: Vec::new(),
            heartbeats: Heartbeats::new(settings.heartbeat_ns),
            request_bytes: settings.request_bytes,
            content_bytes: 0,
            in_flight: settings.in_flight,
            details_reported: 0,
            state: FramedState::Closed,
            partial: Vec::new(),
            partial_began: Time::ZERO,
        }
    }

    /// Stops accepting calls.
    fn start_draining(&mut self) {
        self.state = self.state.max(FramedState::Draining);
    }

    #[inline]
    fn start_call(&mut self, call: CallId, waited: Option<Duration>, now: Time, out: &mut Vec<u8>) {
        if let Some(bytes) = self.format.take_changed_request() {
            self.request_bytes = bytes;
        }
        self.heartbeats.on_activity(now);
        let oneway = self.format.is_oneway();
        let id = if oneway {
            self.calls.new_id()
        } else {
            self.calls.insert(call)
        };
        match self.format.write_request(id, waited, out) {
            Ok(()) if oneway => self.unreported.push((call, Outcome::Ok)),
            Ok(()) => {}
            // This request was written successfully when the run was prepared, so the format has failed: the
            // connection takes no more calls.
            Err(outcome) => {
                self.calls.take(id);
                self.unreported.push((call, outcome));
                self.start_draining();
            }
        }
    }

    fn receive_frames(
        &mut self,
        mut input: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        if !self.partial.is_empty() {
            let mut partial = std::mem::take(&mut self.partial);
            // Copies only the missing bytes of the frame, where their number is known.
            loop {
                let had = partial.len();
                let needed = self.format.needed_length(&partial);
                let lacks = needed.map_or(input.len(), |needed| needed.saturating_sub(had));
                let Some((more, rest)) = input.split_at_checked(lacks) else {
                    partial.extend_from_slice(input);
                    self.partial = partial;
                    return Ok(());
                };
                partial.extend_from_slice(more);
                let mut taken = 0;
                if let Some((frame, length)) = self.format.read(&partial)? {
                    self.handle_frame(&frame, length, self.partial_began, out, events)?;
                    taken = length;
                }
                if taken >= had {
                    input = &input[taken - had..];
                    break;
                }
                if taken > 0 {
                    // The frame was shorter than expected: drops it, and keeps the bytes after it.
                    partial.drain(..taken);
                    self.partial_began = now;
                } else if rest.is_empty() {
                    self.partial = partial;
                    return Ok(());
                }
                input = rest;
            }
            if partial.capacity() <= MAX_KEPT_PARTIAL_BYTES {
                partial.clear();
                self.partial = partial;
            }
        }
        while let Some((frame, length)) = self.format.read(input)? {
            self.handle_frame(&frame, length, now, out, events)?;
            input = &input[length..];
        }
        if !input.is_empty() {
            self.partial.extend_from_slice(input);
            self.partial_began = now;
        }
        Ok(())
    }

    /// Handles a frame that began to arrive at `began`.
    #[inline]
    fn handle_frame(
        &mut self,
        frame: &F::Frame<'_>,
        length: usize,
        began: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let FramePurpose::Answer(id) = F::frame_purpose(frame) else {
            return self.on_control_frame(frame, out);
        };
        let call = match self.calls.take(id) {
            CallLookup::Open(call) => call,
            CallLookup::Late => {
                events.push(Event::Late);
                return Ok(());
            }
            // Ignores a response to an unknown call, and a second response to the same call.
            CallLookup::Unknown => return Ok(()),
        };
        self.content_bytes += self.format.content_bytes(Some(frame));
        let outcome = self.format.outcome(frame);
        if !outcome.is_ok() {
            let why = || self.format.failure_detail(frame);
            report_failure_text(&mut self.details_reported, outcome, why, events);
        }
        events.push(Event::Done(CompletedCall {
            call,
            outcome,
            first_byte: began,
            bytes_sent: self.request_bytes,
            bytes_received: u32::try_from(length).unwrap_or(u32::MAX),
        }));
        Ok(())
    }

    /// Handles heartbeats and other frames that answer no call.
    #[cold]
    fn on_control_frame(
        &mut self,
        frame: &F::Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        match F::frame_purpose(frame) {
            FramePurpose::HeartbeatAck(id) => self.heartbeats.on_answered(id),
            FramePurpose::GoAway => self.start_draining(),
            FramePurpose::NeedsResponse => return self.format.write_response(frame, out),
            FramePurpose::Answer(_) | FramePurpose::Other => {}
        }
        Ok(())
    }

    fn report_ended_calls(&mut self, events: &mut Vec<Event>) {
        let (bytes_sent, first) = (self.request_bytes, events.len());
        let over = self.unreported.drain(..);
        events.extend(over.map(|(call, outcome)| unanswered_call_event(call, outcome, bytes_sent)));
        self.add_unanswered_content(first, events);
    }

    /// Adds the content bytes of calls that ended without a response. The ends of these calls are in `events`, from
    /// index `first` on.
    fn add_unanswered_content(&mut self, first: usize, events: &mut Vec<Event>) {
        let each = self.format.content_bytes(None);
        self.content_bytes += each * (events.len() - first) as u64;
        self.report_content_bytes(first, events);
    }

    /// Reports content bytes in one event for all calls whose ends are in `events` from index `first` on: an event
    /// for each call would cost more than the rest of its processing.
    #[inline]
    fn report_content_bytes(&mut self, first: usize, events: &mut Vec<Event>) {
        if self.content_bytes == 0 {
            return;
        }
        let mut ended = events[first..].iter().enumerate();
        let ended = ended.find_map(|(nth, event)| match event {
            Event::Done(done) => Some((first + nth, done.call)),
            _ => None,
        });
        if let Some((at, call)) = ended {
            let (count, n) = (Count::ContentBytes, std::mem::take(&mut self.content_bytes));
            events.insert(at, Event::Count { call, count, n });
        }
    }
}

impl<F: FrameFormat> Driver for FramedDriver<F> {
    fn open(&mut self, now: Time, _out: &mut Vec<u8>) {
        self.state = FramedState::Ready;
        self.heartbeats.on_activity(now);
    }

    fn is_ready(&self) -> bool {
        self.state >= FramedState::Ready
    }

    #[inline]
    fn capacity(&self) -> usize {
        if self.state != FramedState::Ready {
            return 0;
        }
        let taken = self.calls.in_flight_count() as usize + self.unreported.len();
        (self.in_flight as usize).saturating_sub(taken)
    }

    fn is_draining(&self) -> bool {
        self.state >= FramedState::Draining
    }

    #[inline]
    fn start(&mut self, call: CallId, _number: u64, now: Time, out: &mut Vec<u8>) {
        self.start_call(call, None, now, out);
    }

    fn start_delayed(
        &mut self,
        call: CallId,
        _number: u64,
        waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        self.start_call(call, Some(waited), now, out);
    }

    /// Forgets the call. Protocols of this kind can't cancel a request, so the server continues to process it.
    fn cancel(&mut self, call: CallId, _now: Time, _out: &mut Vec<u8>) {
        self.unreported.retain(|(over, _)| *over != call);
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
        if self.state == FramedState::Failed {
            return Err(ProtocolError {
                outcome: Outcome::ProtocolError,
                detail: "the connection has failed already".to_owned(),
            });
        }
        self.heartbeats.on_activity(now);
        let first = events.len();
        let received = self.receive_frames(bytes, now, out, events);
        self.report_content_bytes(first, events);
        received.inspect_err(|_| self.state = FramedState::Failed)
    }

    fn receive_end(&mut self, _now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.report_ended_calls(events);
        let when = match (&self.partial[..], self.calls.in_flight_count()) {
            ([], 0) => return Ok(()),
            ([], open) => format!("with calls in flight ({open})"),
            _ => "in the middle of a frame".to_owned(),
        };
        Err(ProtocolError {
            outcome: Outcome::ConnectionClosed,
            detail: format!("the server closed the connection {when}"),
        })
    }

    #[inline]
    fn next_timer(&self) -> Option<Time> {
        if !self.unreported.is_empty() {
            return Some(self.heartbeats.last_active());
        }
        self.heartbeats.deadline(self.state == FramedState::Ready)
    }

    fn on_timer(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        if let Some((_, outcome)) = self.unreported.iter().find(|(_, outcome)| !outcome.is_ok()) {
            let why = || Some(format!("{} could not write a request", self.format.name()));
            report_failure_text(&mut self.details_reported, *outcome, why, events);
        }
        self.report_ended_calls(events);
        match self.heartbeats.on_deadline(now) {
            HeartbeatAction::SendHeartbeat if self.state == FramedState::Ready => {
                let id = self.calls.new_id();
                match self.format.write_heartbeat(id, out) {
                    Ok(()) => self.heartbeats.on_sent(id, now),
                    Err(error) => {
                        self.start_draining();
                        let why = || Some(error.detail);
                        report_failure_text(&mut self.details_reported, error.outcome, why, events);
                    }
                }
            }
            HeartbeatAction::Nothing | HeartbeatAction::SendHeartbeat => {}
            HeartbeatAction::GiveUp => {
                self.start_draining();
                let why = || {
                    Some(format!(
                        "{MAX_MISSED_HEARTBEATS} heartbeats in a row were not answered"
                    ))
                };
                report_failure_text(&mut self.details_reported, Outcome::NoAnswer, why, events);
            }
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.state = FramedState::Failed;
        self.report_ended_calls(events);
        let (bytes_sent, first) = (self.request_bytes, events.len());
        let open = self.calls.drain();
        events.extend(open.map(|call| unanswered_call_event(call, outcome, bytes_sent)));
        self.add_unanswered_content(first, events);
        self.partial = Vec::new();
    }

    /// Does nothing: protocols of this kind have no closing message, and the transport is just closed.
    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

/// Reports the failure text that `text` returns. Does not call `text` if this connection has reported
/// [`MAX_DETAILS_PER_CONNECTION`] already.
fn report_failure_text(
    given: &mut u8,
    outcome: Outcome,
    text: impl FnOnce() -> Option<String>,
    events: &mut Vec<Event>,
) {
    if *given < MAX_DETAILS_PER_CONNECTION
        && let Some(text) = text()
    {
        *given += 1;
        let text = text.chars().take(MAX_DETAIL_CHARS).collect();
        events.push(Event::Detail { outcome, text });
    }
}

fn unanswered_call_event(call: CallId, outcome: Outcome, bytes_sent: u32) -> Event {
    Event::Done(CompletedCall {
        call,
        outcome,
        first_byte: Time::NEVER,
        bytes_sent,
        bytes_received: 0,
    })
}

#[cfg(test)]
mod tests;
