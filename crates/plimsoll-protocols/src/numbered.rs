//! What a client keeps of a connection whose frames carry ids, whatever their format: its
//! calls by id, heartbeats, how far it is, and the failures reported on it.
//!
//! Invariant: every call begun here and not cancelled is in `calls` or in `over`, and
//! leaves it with exactly one [`Event::Done`].

use std::time::Duration;

use plimsoll_engine::driver::{CallId, Done, Event, ProtocolError};
use plimsoll_model::spec::{Limit, Problems};
use plimsoll_model::{Outcome, Time};

use crate::calls::{Calls, Found};
use crate::heartbeats::{Due, Heartbeats, MAX_MISSED};

/// Texts of failures reported on one connection.
const MAX_DETAILS: u8 = 5;

/// Characters of a failure's text.
const DETAIL_LENGTH: usize = 300;

/// A buffer for partial frames larger than this is given back when it is empty. Bytes.
pub(crate) const KEPT_PARTIAL: usize = 64;

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Closed,
    Ready,
    /// No more calls: the server goes away, or answers no heartbeat.
    Draining,
    Failed,
}

/// What all connections of a run have alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Calls in flight a connection.
    pub(crate) in_flight: u32,
    /// Silence after which a heartbeat is due, in nanoseconds; 0: never.
    pub(crate) heartbeat: u64,
    /// Bytes of a request.
    pub(crate) request_bytes: u32,
}

impl Settings {
    /// For requests as long as `frame`. `heartbeat`: `None`: never.
    pub(crate) fn new(in_flight: u32, heartbeat: Option<Duration>, frame: &[u8]) -> Settings {
        Settings {
            in_flight,
            heartbeat: heartbeat.map_or(0, |every| (Time::ZERO + every).0),
            request_bytes: u32::try_from(frame.len()).unwrap_or(u32::MAX),
        }
    }
}

/// Checks what `[call.SECTION]` says of connections whose frames carry ids. `most`: the key of the largest frame or
/// content, and its bytes.
pub(crate) fn check(
    problems: &mut Problems,
    section: &str,
    in_flight: Option<u32>,
    heartbeat: Option<Limit>,
    (key, most): (&str, u64),
) {
    let is_none = heartbeat.is_some_and(Limit::is_zero);
    for (key, wrong, why) in [
        (
            "in_flight",
            in_flight == Some(0),
            "0 calls in flight carry nothing: use 1 or more, or leave it out",
        ),
        (
            key,
            !(1..1 << 31).contains(&most),
            "out of range: use 1B to 2047MiB",
        ),
        (
            "heartbeat",
            is_none,
            "0 would send nothing but heartbeats: use a duration, or \"none\"",
        ),
    ] {
        if wrong {
            problems.add(format!("call.{section}.{key}"), why);
        }
    }
}

/// One connection's state but the bytes of its frames.
#[derive(Debug)]
pub(crate) struct Numbered {
    calls: Calls,
    /// Calls that are over and not yet reported: oneway ones that were sent, and those
    /// that could not be written.
    over: Vec<(CallId, Outcome)>,
    heartbeats: Heartbeats,
    request_bytes: u32,
    in_flight: u32,
    details_given: u8,
    stage: Stage,
}

impl Numbered {
    pub(crate) fn new(settings: Settings) -> Numbered {
        Numbered {
            calls: Calls::default(),
            over: Vec::new(),
            heartbeats: Heartbeats::new(settings.heartbeat),
            request_bytes: settings.request_bytes,
            in_flight: settings.in_flight,
            details_given: 0,
            stage: Stage::Closed,
        }
    }

    /// Requests have so many bytes from now on.
    pub(crate) fn resize_requests(&mut self, bytes: u32) {
        self.request_bytes = bytes;
    }

    pub(crate) fn open(&mut self, now: Time) {
        self.stage = Stage::Ready;
        self.heartbeats.active(now);
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.stage >= Stage::Ready
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.stage >= Stage::Draining
    }

    /// No more calls from now on.
    pub(crate) fn drain(&mut self) {
        self.stage = self.stage.max(Stage::Draining);
    }

    /// Nothing more at all.
    pub(crate) fn fail(&mut self) {
        self.stage = Stage::Failed;
    }

    /// Calls that may be started now.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        if self.stage != Stage::Ready {
            return 0;
        }
        let taken = self.calls.open() as usize + self.over.len();
        (self.in_flight as usize).saturating_sub(taken)
    }

    /// The id of a call that waits for its answer.
    #[inline]
    pub(crate) fn begin(&mut self, call: CallId, now: Time) -> u32 {
        self.heartbeats.active(now);
        self.calls.insert(call)
    }

    /// The id of a call that no answer comes to; [`Numbered::over`] is to end it.
    #[inline]
    pub(crate) fn begin_oneway(&mut self, now: Time) -> u32 {
        self.heartbeats.active(now);
        self.calls.new_id()
    }

    /// The call with that id will not be answered, since it was not sent.
    pub(crate) fn unsent(&mut self, id: u32) {
        self.calls.take(id);
    }

    /// The call is over; it is reported at the next occasion.
    #[inline]
    pub(crate) fn over(&mut self, call: CallId, outcome: Outcome) {
        self.over.push((call, outcome));
    }

    /// Whether a call waits to be reported that did not end well.
    pub(crate) fn has_failed_over(&self) -> bool {
        self.over.iter().any(|(_, outcome)| !outcome.is_ok())
    }

    /// Neither protocol has a word for it: the server works on.
    pub(crate) fn cancel(&mut self, call: CallId) {
        self.over.retain(|(over, _)| *over != call);
        self.calls.cancel(call);
    }

    /// Bytes have come.
    ///
    /// # Errors
    /// When the connection has failed.
    #[inline]
    pub(crate) fn receive(&mut self, now: Time) -> Result<(), ProtocolError> {
        if self.stage == Stage::Failed {
            return Err(ProtocolError {
                outcome: Outcome::ProtocolError,
                detail: "the connection has failed already".to_owned(),
            });
        }
        self.heartbeats.active(now);
        Ok(())
    }

    /// The call that an answer with this id ends, if it waits for one; the answer to a
    /// cancelled one is reported as late.
    #[inline]
    pub(crate) fn answered(&mut self, id: u32, events: &mut Vec<Event>) -> Option<CallId> {
        match self.calls.take(id) {
            Found::Open(call) => Some(call),
            Found::Late => {
                events.push(Event::Late);
                None
            }
            // An answer to nothing, or the second one to the same call.
            Found::Unknown => None,
        }
    }

    /// The end of an answered call; `length`: the answer's, in bytes.
    #[inline]
    pub(crate) fn done(
        &self,
        call: CallId,
        outcome: Outcome,
        first_byte: Time,
        length: usize,
    ) -> Event {
        Event::Done(Done {
            call,
            outcome,
            first_byte,
            bytes_sent: self.request_bytes,
            bytes_received: u32::try_from(length).unwrap_or(u32::MAX),
        })
    }

    pub(crate) fn heartbeat_answered(&mut self, id: u32) {
        self.heartbeats.answered(id);
    }

    /// Reports what went wrong, unless this connection has reported enough; `text` is asked
    /// for only then.
    pub(crate) fn detail(
        &mut self,
        outcome: Outcome,
        text: impl FnOnce() -> Option<String>,
        events: &mut Vec<Event>,
    ) {
        if self.details_given < MAX_DETAILS
            && let Some(text) = text()
        {
            self.details_given += 1;
            let text = text.chars().take(DETAIL_LENGTH).collect();
            events.push(Event::Detail { outcome, text });
        }
    }

    /// The server has ended the connection. `partial`: what had come of a frame.
    ///
    /// # Errors
    /// When something was still to come.
    pub(crate) fn receive_end(
        &mut self,
        partial: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        self.report_over(events);
        let when = match (partial, self.calls.open()) {
            ([], 0) => return Ok(()),
            ([], open) => format!("with {open} calls in flight"),
            _ => "in the middle of a frame".to_owned(),
        };
        Err(ProtocolError {
            outcome: Outcome::ConnectionClosed,
            detail: format!("the server closed the connection {when}"),
        })
    }

    /// When [`Numbered::expire`] has something to do.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Time> {
        if !self.over.is_empty() {
            return Some(self.heartbeats.last_active());
        }
        self.heartbeats.deadline(self.stage == Stage::Ready)
    }

    /// Reports what is over. If a heartbeat is due: its id, for [`Numbered::beat_sent`].
    pub(crate) fn expire(&mut self, now: Time, events: &mut Vec<Event>) -> Option<u32> {
        self.report_over(events);
        match self.heartbeats.expire(now) {
            Due::Beat if self.stage == Stage::Ready => Some(self.calls.new_id()),
            Due::Nothing | Due::Beat => None,
            Due::GiveUp => {
                self.drain();
                let text = || {
                    Some(format!(
                        "{MAX_MISSED} heartbeats in a row were not answered"
                    ))
                };
                self.detail(Outcome::NoAnswer, text, events);
                None
            }
        }
    }

    /// A heartbeat with this id was sent.
    pub(crate) fn beat_sent(&mut self, id: u32, now: Time) {
        self.heartbeats.sent(id, now);
    }

    /// Ends the connection and, with `outcome`, all that is in flight on it.
    pub(crate) fn abort(&mut self, outcome: Outcome, events: &mut Vec<Event>) {
        self.stage = Stage::Failed;
        self.report_over(events);
        let bytes_sent = self.request_bytes;
        events.extend(
            self.calls
                .drain()
                .map(|call| unanswered(call, outcome, bytes_sent)),
        );
    }

    fn report_over(&mut self, events: &mut Vec<Event>) {
        let bytes_sent = self.request_bytes;
        let over = self.over.drain(..);
        events.extend(over.map(|(call, outcome)| unanswered(call, outcome, bytes_sent)));
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
