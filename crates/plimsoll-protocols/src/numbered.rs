//! The client side of a connection whose frames carry ids: its calls by id, heartbeats, how far
//! it is, and the failures reported on it. In what such protocols differ is a [`Format`].
//!
//! Invariants: every call started and not cancelled is in `calls` or in `over`, and leaves it with
//! exactly one [`Event::Done`]; an id is not used twice while its call is in flight; a connection
//! keeps no bytes but a partial frame. Called by the engine's worker loop.

use std::fmt::Debug;
use std::time::Duration;

use plimsoll_engine::driver::{CallId, Done, Driver, Event, ProtocolError};
use plimsoll_model::{Count, Outcome, Time};

use crate::calls::{Calls, Found};
use crate::heartbeats::{Due, Heartbeats, MAX_MISSED};

mod settings;

pub(crate) use settings::{Settings, check};

/// Texts of failures reported on one connection.
const MAX_DETAILS: u8 = 5;
/// Characters of a failure's text.
const DETAIL_LENGTH: usize = 300;

/// A buffer for partial frames larger than this is given back when it is empty. Bytes.
const KEPT_PARTIAL: usize = 64;

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Closed,
    Ready,
    /// No more calls: the server goes away, or answers no heartbeat.
    Draining,
    Failed,
}

/// What protocols differ in whose frames carry ids. A connection has one of its own.
pub trait Format: Debug {
    /// A whole frame of the server.
    type Frame<'a>;

    /// What messages call it.
    fn name(&self) -> &str;

    /// Calls end when they are sent: no answer comes.
    fn is_oneway(&self) -> bool;

    /// Takes over a request that has changed; its length in bytes. `None`: it is as it was.
    #[inline]
    fn renew(&mut self) -> Option<u32> {
        None
    }

    /// Appends the request of a call that has waited so long since it was due, where it matters.
    ///
    /// # Errors
    /// What the call ends with, where it can't be written; then nothing is appended.
    fn request(&self, id: u32, waited: Option<Duration>, out: &mut Vec<u8>) -> Result<(), Outcome>;

    /// The frame that `bytes` begin with, and its length; `None`: not all of it is there.
    ///
    /// # Errors
    /// The bytes can't become a frame.
    fn read<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<Option<(Self::Frame<'a>, usize)>, ProtocolError>;

    /// How many bytes the frame needs of which [`Format::read`] has seen only `partial`; more than that. `None`: it
    /// is not known.
    fn needed(&self, partial: &[u8]) -> Option<usize>;

    /// What a frame is for.
    fn purpose(frame: &Self::Frame<'_>) -> Purpose;

    /// How the call of an answer has ended.
    fn outcome(&self, answer: &Self::Frame<'_>) -> Outcome;

    /// Bytes of contents, which reports tell from headers where a protocol has both: of a call's request, and of its
    /// answer if one has come.
    #[inline]
    fn content_bytes(&self, _answer: Option<&Self::Frame<'_>>) -> u64 {
        0
    }

    /// Why a call has failed, in words.
    fn why(&self, answer: &Self::Frame<'_>) -> Option<String>;

    /// Appends what the server is owed for a frame that asks for something.
    ///
    /// # Errors
    /// It can't be written.
    fn respond(&self, asking: &Self::Frame<'_>, out: &mut Vec<u8>) -> Result<(), ProtocolError>;

    /// Appends a heartbeat.
    ///
    /// # Errors
    /// It can't be written.
    fn heartbeat(&self, id: u32, out: &mut Vec<u8>) -> Result<(), ProtocolError>;
}

/// What a server's frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The frame answers the request of this id.
    Answer(u32),
    /// The frame answers the heartbeat of this id.
    HeartbeatAck(u32),
    /// The server takes no more requests.
    GoAway,
    /// The frame wants an answer.
    Ask,
    /// The frame means nothing to a client.
    Other,
}

/// One connection's client side.
#[derive(Debug)]
pub struct Numbered<F> {
    format: F,
    calls: Calls,
    /// Calls that are over and not yet reported: oneway ones that were sent, and those
    /// that could not be written.
    over: Vec<(CallId, Outcome)>,
    heartbeats: Heartbeats,
    request_bytes: u32,
    /// [`Format::content_bytes`] of calls that have ended since they were reported.
    content_bytes: u64,
    in_flight: u32,
    details_given: u8,
    stage: Stage,
    /// The beginning of a frame, between two calls of `receive`.
    partial: Vec<u8>,
    /// When it began to arrive.
    partial_began: Time,
}

impl<F: Format> Numbered<F> {
    pub(crate) fn new(format: F, settings: Settings) -> Numbered<F> {
        Numbered {
            format,
            calls: Calls::default(),
            over: Vec::new(),
            heartbeats: Heartbeats::new(settings.heartbeat),
            request_bytes: settings.request_bytes,
            content_bytes: 0,
            in_flight: settings.in_flight,
            details_given: 0,
            stage: Stage::Closed,
            partial: Vec::new(),
            partial_began: Time::ZERO,
        }
    }

    /// No more calls from now on.
    fn drain(&mut self) {
        self.stage = self.stage.max(Stage::Draining);
    }

    #[inline]
    fn begin(&mut self, call: CallId, waited: Option<Duration>, now: Time, out: &mut Vec<u8>) {
        if let Some(bytes) = self.format.renew() {
            self.request_bytes = bytes;
        }
        self.heartbeats.active(now);
        let oneway = self.format.is_oneway();
        let id = if oneway {
            self.calls.new_id()
        } else {
            self.calls.insert(call)
        };
        match self.format.request(id, waited, out) {
            Ok(()) if oneway => self.over.push((call, Outcome::Ok)),
            Ok(()) => {}
            // Such a request was written before the run, and now it can't be.
            Err(outcome) => {
                self.calls.take(id);
                self.over.push((call, outcome));
                self.drain();
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
            // Only what the frame lacks is copied, where that is known.
            loop {
                let had = partial.len();
                let needed = self.format.needed(&partial);
                let lacks = needed.map_or(input.len(), |needed| needed.saturating_sub(had));
                let Some((more, rest)) = input.split_at_checked(lacks) else {
                    partial.extend_from_slice(input);
                    self.partial = partial;
                    return Ok(());
                };
                partial.extend_from_slice(more);
                let mut taken = 0;
                if let Some((frame, length)) = self.format.read(&partial)? {
                    self.frame(&frame, length, self.partial_began, out, events)?;
                    taken = length;
                }
                if taken >= had {
                    input = &input[taken - had..];
                    break;
                }
                if taken > 0 {
                    // It took less than was asked for, and what follows it was kept, too.
                    partial.drain(..taken);
                    self.partial_began = now;
                } else if rest.is_empty() {
                    self.partial = partial;
                    return Ok(());
                }
                input = rest;
            }
            if partial.capacity() <= KEPT_PARTIAL {
                partial.clear();
                self.partial = partial;
            }
        }
        while let Some((frame, length)) = self.format.read(input)? {
            self.frame(&frame, length, now, out, events)?;
            input = &input[length..];
        }
        if !input.is_empty() {
            self.partial.extend_from_slice(input);
            self.partial_began = now;
        }
        Ok(())
    }

    /// A frame that began to arrive at `began`.
    #[inline]
    fn frame(
        &mut self,
        frame: &F::Frame<'_>,
        length: usize,
        began: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let Purpose::Answer(id) = F::purpose(frame) else {
            return self.rare(frame, out);
        };
        let call = match self.calls.take(id) {
            Found::Open(call) => call,
            Found::Late => {
                events.push(Event::Late);
                return Ok(());
            }
            // An answer to nothing, or the second one to the same call.
            Found::Unknown => return Ok(()),
        };
        self.content_bytes += self.format.content_bytes(Some(frame));
        let outcome = self.format.outcome(frame);
        if !outcome.is_ok() {
            let why = || self.format.why(frame);
            detail(&mut self.details_given, outcome, why, events);
        }
        events.push(Event::Done(Done {
            call,
            outcome,
            first_byte: began,
            bytes_sent: self.request_bytes,
            bytes_received: u32::try_from(length).unwrap_or(u32::MAX),
        }));
        Ok(())
    }

    /// Heartbeats, and what a server asks of its clients.
    #[cold]
    fn rare(&mut self, frame: &F::Frame<'_>, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        match F::purpose(frame) {
            Purpose::HeartbeatAck(id) => self.heartbeats.answered(id),
            Purpose::GoAway => self.drain(),
            Purpose::Ask => return self.format.respond(frame, out),
            Purpose::Answer(_) | Purpose::Other => {}
        }
        Ok(())
    }

    fn report_over(&mut self, events: &mut Vec<Event>) {
        let (bytes_sent, first) = (self.request_bytes, events.len());
        let over = self.over.drain(..);
        events.extend(over.map(|(call, outcome)| unanswered(call, outcome, bytes_sent)));
        self.count_unanswered(first, events);
    }

    /// Counts the contents of the calls that `events` say have ended without an answer, from `first` on.
    fn count_unanswered(&mut self, first: usize, events: &mut Vec<Event>) {
        let each = self.format.content_bytes(None);
        self.content_bytes += each * (events.len() - first) as u64;
        self.report_contents(first, events);
    }

    /// Reports contents once for all calls that have ended since `first`: an event a call would cost more than the
    /// rest of its end.
    #[inline]
    fn report_contents(&mut self, first: usize, events: &mut Vec<Event>) {
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

impl<F: Format> Driver for Numbered<F> {
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
        (self.in_flight as usize).saturating_sub(taken)
    }

    fn is_draining(&self) -> bool {
        self.stage >= Stage::Draining
    }

    #[inline]
    fn start(&mut self, call: CallId, _number: u64, now: Time, out: &mut Vec<u8>) {
        self.begin(call, None, now, out);
    }

    fn start_waited(
        &mut self,
        call: CallId,
        _number: u64,
        waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        self.begin(call, Some(waited), now, out);
    }

    /// No such protocol has a word for it: the server works on.
    fn cancel(&mut self, call: CallId, _now: Time, _out: &mut Vec<u8>) {
        self.over.retain(|(over, _)| *over != call);
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
        let first = events.len();
        let received = self.receive_frames(bytes, now, out, events);
        self.report_contents(first, events);
        received.inspect_err(|_| self.stage = Stage::Failed)
    }

    fn receive_end(&mut self, _now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.report_over(events);
        let when = match (&self.partial[..], self.calls.open()) {
            ([], 0) => return Ok(()),
            ([], open) => format!("with {open} calls in flight"),
            _ => "in the middle of a frame".to_owned(),
        };
        Err(ProtocolError {
            outcome: Outcome::ConnectionClosed,
            detail: format!("the server closed the connection {when}"),
        })
    }

    #[inline]
    fn deadline(&self) -> Option<Time> {
        if !self.over.is_empty() {
            return Some(self.heartbeats.last_active());
        }
        self.heartbeats.deadline(self.stage == Stage::Ready)
    }

    fn expire(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        if let Some((_, outcome)) = self.over.iter().find(|(_, outcome)| !outcome.is_ok()) {
            let why = || Some(format!("{} could not write a request", self.format.name()));
            detail(&mut self.details_given, *outcome, why, events);
        }
        self.report_over(events);
        match self.heartbeats.expire(now) {
            Due::Beat if self.stage == Stage::Ready => {
                let id = self.calls.new_id();
                match self.format.heartbeat(id, out) {
                    Ok(()) => self.heartbeats.sent(id, now),
                    Err(error) => {
                        self.drain();
                        let why = || Some(error.detail);
                        detail(&mut self.details_given, error.outcome, why, events);
                    }
                }
            }
            Due::Nothing | Due::Beat => {}
            Due::GiveUp => {
                self.drain();
                let why = || {
                    Some(format!(
                        "{MAX_MISSED} heartbeats in a row were not answered"
                    ))
                };
                detail(&mut self.details_given, Outcome::NoAnswer, why, events);
            }
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.stage = Stage::Failed;
        self.report_over(events);
        let (bytes_sent, first) = (self.request_bytes, events.len());
        let open = self.calls.drain();
        events.extend(open.map(|call| unanswered(call, outcome, bytes_sent)));
        self.count_unanswered(first, events);
        self.partial = Vec::new();
    }

    /// No such protocol has a farewell: closing the transport is all.
    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

/// Reports what went wrong, unless this connection has `given` enough reports; `text` is asked
/// for only then.
fn detail(
    given: &mut u8,
    outcome: Outcome,
    text: impl FnOnce() -> Option<String>,
    events: &mut Vec<Event>,
) {
    if *given < MAX_DETAILS
        && let Some(text) = text()
    {
        *given += 1;
        let text = text.chars().take(DETAIL_LENGTH).collect();
        events.push(Event::Detail { outcome, text });
    }
}

fn unanswered(call: CallId, outcome: Outcome, bytes_sent: u32) -> Event {
    Event::Done(Done {
        call,
        outcome,
        first_byte: Time::NEVER,
        bytes_sent,
        bytes_received: 0,
    })
}

#[cfg(test)]
mod tests;
