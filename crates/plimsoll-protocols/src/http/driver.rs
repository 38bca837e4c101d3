//! The client's side of one HTTP/1.1 connection: one call at a time, with the connection kept alive.
//!
//! Invariant: every call that was started and not cancelled ends in exactly one [`Event::Done`]. A call ends with its
//! response, or with the event that ends its stream; the rest of the body is read before the next call. The engine's
//! worker loop calls the driver.
//!
//! In the steady state, a head has the same bytes as the previous one, so it is compared, and nothing is allocated.
//!
//! This file is long because one state machine reads a response, and all of its states decide where the response ends.

mod remembered_head;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{
    CallId, CallProgress, CompletedCall, Driver, Event, Protocol, ProtocolError, Tracer,
};
use plimsoll_model::plan::GoodputBounds;
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::http1::{
    BodyFraming, BodyReader, FieldStorage, Http1Error, ResponseHead, ResponseHeadReader,
};

use self::remembered_head::RememberedHead;
use super::body_inspection::BodyInspector;
use super::checks::{BodyMetadata, ResponseChecks};
use super::endless_streams::mark_ended_with_load;
use super::errors::to_protocol_error;
use super::journey::CaptureLevel;
use super::refusals::{RefusalRetries, end_event};
use super::request::{EncodedRequest, HttpRequest, NextRequestParts};
use super::trace::HeadTracer;
use crate::shared::detail_budget::DetailBudget;

/// The maximum length of a head that is remembered for comparison, in bytes.
const MAX_REMEMBERED_HEAD_BYTES: usize = 4096;

/// How long the rest of a body may take after its call has ended, before the connection is replaced instead.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Http1ProtocolState {
    request: EncodedRequest,
    checks: Arc<ResponseChecks>,
    closes: bool,
    /// Whether the request may be retried if no byte of its response has arrived (RFC 9110 §9.2.2).
    is_idempotent: bool,
    refusal_retries: RefusalRetries,
}

/// HTTP/1.1 with a prepared request.
#[derive(Clone, Debug)]
pub struct Http1Protocol(Arc<Http1ProtocolState>);

impl Http1Protocol {
    /// Prepares the request.
    pub fn new(request: &HttpRequest<'_>) -> Http1Protocol {
        Http1Protocol::with_checks(request, ResponseChecks::new(request.call))
    }

    /// Prepares the request of a journey's step. `capture`: the part of its responses that is kept.
    pub fn for_step(request: &HttpRequest<'_>, capture: CaptureLevel) -> Http1Protocol {
        Http1Protocol::with_checks(request, ResponseChecks::for_step(request.call, capture))
    }

    fn with_checks(request: &HttpRequest<'_>, checks: ResponseChecks) -> Http1Protocol {
        Http1Protocol(Arc::new(Http1ProtocolState {
            request: EncodedRequest::new(request),
            checks: Arc::new(checks),
            closes: request.closes,
            is_idempotent: request.call.is_idempotent(),
            refusal_retries: request.call.refusal_retries,
        }))
    }
}

impl Protocol for Http1Protocol {
    type Driver = Http1Driver;

    fn alpn(&self) -> Option<&'static [u8]> {
        // ALPN is not offered: many HTTP/1.1 servers do not support it, and they must be measurable, too.
        None
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.0.request.unix_zero.set(unix_ns);
    }

    fn new_driver(&self) -> Http1Driver {
        Http1Driver {
            shared: Arc::clone(&self.0),
            checks: Arc::clone(&self.0.checks),
            is_open: false,
            is_draining: false,
            idle_since: Time::NEVER,
            call: None,
            head: None,
            body: BodyReader::new_complete()
                .with_max_trailer_bytes(self.0.checks.max_head as usize),
            content: BodyInspector::default(),
            heads: ResponseHeadReader::with_max_bytes(self.0.checks.max_head as usize),
            last_head: RememberedHead::default(),
            scratch: Vec::new(),
            given: NextRequestParts::default(),
            drain_deadline: None,
            stream_until: None,
            details: DetailBudget::default(),
        }
    }

    fn goodput_bounds(&self) -> GoodputBounds {
        self.0.checks.goodput_bounds()
    }

    fn refusal_retries(&self) -> RefusalRetries {
        self.0.refusal_retries
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.0.request.trace_ids()
    }

    fn new_tracer(&self) -> Option<Box<dyn Tracer>> {
        Some(Box::new(HeadTracer::new(self.0.checks.bodiless)))
    }
}

#[derive(Clone, Copy, Debug)]
struct CallInFlight {
    call: CallId,
    started: Time,
    first_byte: Time,
    sent: u32,
}

impl CallInFlight {
    fn completed_call(&self, outcome: Outcome, bytes_received: u32) -> CompletedCall {
        CompletedCall {
            call: self.call,
            outcome,
            first_byte: self.first_byte,
            bytes_sent: self.sent,
            bytes_received,
        }
    }
}

/// The parsed and checked form of a head, which depends only on the head's bytes.
#[derive(Clone, Copy, Debug)]
struct DecodedHead {
    outcome: Outcome,
    body_metadata: BodyMetadata,
    framing: BodyFraming,
    closes: bool,
}

impl DecodedHead {
    const EMPTY_RESPONSE: DecodedHead = DecodedHead {
        outcome: Outcome::Ok,
        body_metadata: BodyMetadata::UNINSPECTED_BODY,
        framing: BodyFraming::Length(0),
        closes: false,
    };

    /// Returns whether the content of the body is read, not only its length.
    fn inspects_body(&self, checks: &ResponseChecks) -> bool {
        checks.inspects_bodies() || self.body_metadata != BodyMetadata::UNINSPECTED_BODY
    }
}

/// The driver of one connection; see the module's documentation.
#[derive(Debug)]
pub struct Http1Driver {
    shared: Arc<Http1ProtocolState>,
    /// The checks of the current response: those of `shared`, or with the values of a journey's user.
    checks: Arc<ResponseChecks>,
    is_open: bool,
    is_draining: bool,
    /// The time at which the last response ended; [`Time::NEVER`] before the first response.
    idle_since: Time,
    call: Option<CallInFlight>,
    /// The decoded head of the current response; `None` between responses.
    head: Option<DecodedHead>,
    body: BodyReader,
    content: BodyInspector,
    heads: ResponseHeadReader,
    last_head: RememberedHead,
    scratch: Vec<u8>,
    /// The parts of the next request that the user's scenario has set.
    given: NextRequestParts,
    /// The deadline for the rest of a body whose call has ended.
    drain_deadline: Option<Time>,
    /// The time at which the current stream is ended and counted as successful.
    stream_until: Option<Time>,
    details: DetailBudget,
}

impl Http1Driver {
    /// Reads a head or a part of it. Returns the number of bytes that belong to the head.
    #[inline]
    fn receive_head(&mut self, bytes: &[u8]) -> Result<usize, Http1Error> {
        if !self.heads.has_begun() && self.last_head.begins(bytes) {
            self.begin_body(self.last_head.decoded)?;
            return Ok(self.last_head.bytes.len());
        }
        self.parse_head(bytes)
    }

    #[inline(never)]
    fn parse_head(&mut self, bytes: &[u8]) -> Result<usize, Http1Error> {
        let (checks, memo) = (&self.checks, &mut self.last_head.bytes);
        let (taken, head) = self.heads.consume(bytes, |head, bytes| {
            memo.clear();
            if bytes.len() <= MAX_REMEMBERED_HEAD_BYTES || checks.captures_head {
                memo.extend_from_slice(bytes);
            }
            let fields = head.fields.iter().map(|(n, value)| (n.as_bytes(), value));
            let (outcome, reading) = checks.check_head(head.status, fields);
            DecodedHead {
                outcome,
                body_metadata: reading,
                framing: if checks.bodiless {
                    BodyFraming::Length(0)
                } else {
                    head.body
                },
                closes: match (checks.bodiless, head.body) {
                    // Responses to HEAD have no body, so a missing length does not mean that the body ends with the
                    // connection.
                    (true, BodyFraming::UntilClose) => {
                        head.fields.lists_token("connection", "close")
                    }
                    _ => head.closes,
                },
            }
        })?;
        if let Some(head) = head {
            self.last_head.decoded = head;
            self.begin_body(head)?;
        }
        Ok(taken)
    }

    #[inline]
    fn begin_body(&mut self, head: DecodedHead) -> Result<(), Http1Error> {
        self.body.restart(head.framing, self.checks.max_body)?;
        let checks = &self.checks;
        if head.outcome != Outcome::Ok || head.inspects_body(checks) {
            self.content.restart(checks, head.body_metadata);
        }
        self.head = Some(head);
        Ok(())
    }

    /// Reads the part of `bytes` that belongs to the body. Returns its length.
    #[inline]
    fn receive_body(
        &mut self,
        head: DecodedHead,
        bytes: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<usize, Http1Error> {
        let checks = &self.checks;
        if head.outcome == Outcome::Ok && !head.inspects_body(checks) {
            return self.body.consume(bytes, &mut |_| ());
        }
        let (content, call) = (&mut self.content, self.call);
        self.body
            .consume(bytes, &mut |data| match (head.outcome, call) {
                (Outcome::Ok, Some(call)) => content.push(checks, data, call.call, events),
                // The call has ended, so the rest of the body is read and ignored.
                (Outcome::Ok, None) => {}
                _ => content.keep_excerpt(data),
            })
    }

    /// Ends the call: the end of the response or of its stream has arrived.
    #[inline]
    fn end_call(&mut self, head: DecodedHead, now: Time, events: &mut Vec<Event>) {
        let Some(call) = self.call.take() else { return };
        let looked = head.inspects_body(&self.checks);
        let size = self.body.received_bytes();
        let outcome = match head.outcome {
            Outcome::Ok if !looked && self.checks.has_expected_size(size) => Outcome::Ok,
            _ => self.final_outcome(head, call.call, events),
        };
        let done = call.completed_call(outcome, size as u32);
        let (retries, clock) = (self.shared.refusal_retries, &self.shared.request.unix_zero);
        let refusal = head.body_metadata.refusal;
        events.push(end_event(done, refusal, retries, || clock.unix_ns_at(now)));
    }

    #[inline(never)]
    fn final_outcome(
        &mut self,
        head: DecodedHead,
        call: CallId,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let (checks, outcome) = (&self.checks, head.outcome);
        if outcome != Outcome::Ok {
            if self.details.try_count(outcome) {
                let text = self.head_failure_text(outcome);
                events.push(Event::Detail { outcome, text });
            }
            return outcome;
        }
        let ended = head
            .inspects_body(checks)
            .then(|| self.content.finish(checks, call, events));
        let (outcome, text) = checks.final_outcome(ended, self.body.received_bytes());
        if let Some(text) = text
            && self.details.try_count(outcome)
        {
            events.push(Event::Detail { outcome, text });
        }
        outcome
    }

    fn head_failure_text(&self, outcome: Outcome) -> String {
        let checks = &self.checks;
        let mut space = FieldStorage::new();
        match ResponseHead::parse_with_max_bytes(
            &self.last_head.bytes,
            checks.max_head as usize,
            &mut space,
        ) {
            Ok(Some(head)) => {
                let fields = head.fields.iter();
                let fields = fields.map(|(name, value)| (name.as_bytes(), value));
                let text = checks.head_failure_text(outcome, head.status, head.reason, fields);
                ResponseChecks::with_excerpt(text, outcome, self.content.excerpt())
            }
            _ => checks.body_failure_text(outcome.explanation()),
        }
    }

    /// Returns the number of body bytes received.
    fn body_bytes_received(&self) -> u32 {
        match self.head {
            Some(_) => u32::try_from(self.body.received_bytes()).unwrap_or(u32::MAX),
            None => 0,
        }
    }

    /// Ends the current stream, and counts its call as successful.
    fn end_stream(&mut self, now: Time, events: &mut Vec<Event>) {
        // HTTP/1.1 can cut a response short only by closing the connection.
        let good = self.head.filter(|head| head.outcome.is_ok());
        if let Some(head) = good.filter(|_| self.call.is_some()) {
            self.content.settle_as_success();
            self.end_call(head, now, events);
            self.is_draining = true;
        }
    }

    /// Returns whether the server closed an idle connection while the request was on its way: no byte of a response has
    /// arrived, and before the request the connection had been idle for longer than the request took to fail.
    fn was_closed_while_idle(&self, call: &CallInFlight, now: Time) -> bool {
        let has_rested = self.idle_since != Time::NEVER && call.first_byte == Time::NEVER;
        has_rested && call.started.since(self.idle_since) > now.since(call.started)
    }

    /// Handles the end of the body.
    #[inline]
    fn on_body_end(&mut self, head: DecodedHead, now: Time, events: &mut Vec<Event>) {
        self.end_call(head, now, events);
        self.is_draining |= head.closes || self.shared.closes;
        self.head = None;
        self.drain_deadline = None;
        self.stream_until = None;
    }
}

impl Driver for Http1Driver {
    fn open(&mut self, _now: Time, _out: &mut Vec<u8>) {
        // HTTP/1.1 has no connection preface.
        self.is_open = true;
    }

    fn has_negligible_receive_time(&self) -> bool {
        self.checks.only_counts_bodies()
    }

    fn is_ready(&self) -> bool {
        self.is_open
    }

    #[inline]
    fn capacity(&self) -> usize {
        usize::from(self.is_open && !self.is_draining && self.call.is_none() && self.head.is_none())
    }

    fn is_reading_answer_remainder(&self) -> bool {
        self.drain_deadline.is_some() && !self.is_draining
    }

    fn carries_one_call_at_a_time(&self) -> bool {
        true
    }

    fn is_draining(&self) -> bool {
        self.is_draining
    }

    #[inline]
    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        let before = out.len();
        let given = std::mem::take(&mut self.given);
        if let Some(step) = &given.step {
            self.render_checks(step, number, now);
        }
        let request = &self.shared.request;
        request.write(given, number, now, &mut self.scratch, out);
        self.call = Some(CallInFlight {
            call,
            started: now,
            first_byte: Time::NEVER,
            sent: (out.len() - before) as u32,
        });
    }

    fn cancel(&mut self, _call: CallId, _now: Time, _out: &mut Vec<u8>) {
        // HTTP/1.1 can cancel a request only by closing the connection.
        self.call = None;
        self.is_draining = true;
    }

    fn call_progress(&self, _call: CallId) -> CallProgress {
        CallProgress {
            messages_sent: 0,
            bytes_sent: self.call.map_or(0, |call| call.sent),
            bytes_received: self.body_bytes_received(),
        }
    }

    fn awaited_bytes(&self) -> u64 {
        // Streams are read in small pieces, because the arrival of each event is timed.
        match (self.head, &self.checks.stream) {
            (Some(_), None) => self.body.awaited_bytes(),
            _ => 0,
        }
    }

    fn receive(
        &mut self,
        mut bytes: &[u8],
        now: Time,
        _out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        while !bytes.is_empty() {
            match &mut self.call {
                Some(call) if call.first_byte == Time::NEVER => call.first_byte = now,
                Some(_) => {}
                // Ignores the rest of a cancelled response.
                None if self.is_draining => return Ok(()),
                None if self.head.is_some() => {}
                None => {
                    return Err(ProtocolError {
                        outcome: Outcome::ProtocolError,
                        detail: "http: bytes received without a request".to_owned(),
                    });
                }
            }
            if self.head.is_none() {
                let taken = self
                    .receive_head(bytes)
                    .map_err(|e| to_protocol_error(&e))?;
                bytes = &bytes[taken..];
            }
            let Some(head) = self.head else { continue };
            if let (Some(lasts), None) = (self.checks.stream_duration, self.stream_until)
                && self.call.is_some()
            {
                self.stream_until = Some(now + lasts);
            }
            let taken = self.receive_body(head, bytes, events);
            // The call's outcome is known, so an error in the rest of the body does not change it.
            if self.call.is_some() && self.content.is_settled() {
                self.end_call(head, now, events);
                self.drain_deadline = Some(now + DRAIN_TIMEOUT);
            }
            bytes = &bytes[taken.map_err(|e| to_protocol_error(&e))?..];
            if self.body.is_complete() {
                self.on_body_end(head, now, events);
                self.idle_since = now;
            }
        }
        Ok(())
    }

    fn receive_end(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.is_draining = true;
        match self.head {
            _ if self.call.is_none() => Ok(()),
            Some(head) => {
                self.body
                    .on_end_of_stream()
                    .map_err(|e| to_protocol_error(&e))?;
                self.on_body_end(head, now, events);
                Ok(())
            }
            None if !self.heads.has_begun() => Ok(()),
            None => {
                let why = self.heads.truncation_error();
                Err(to_protocol_error(&why.unwrap_or(Http1Error::EndedInHead)))
            }
        }
    }

    fn next_timer(&self) -> Option<Time> {
        self.drain_deadline.or(self.stream_until)
    }

    fn on_timer(&mut self, now: Time, _out: &mut Vec<u8>, events: &mut Vec<Event>) {
        if self.drain_deadline.is_some_and(|until| until <= now) {
            self.drain_deadline = None;
            self.is_draining = true;
        }
        if self.stream_until.is_some_and(|until| until <= now) {
            self.stream_until = None;
            self.end_stream(now, events);
        }
    }

    fn end_open_ended_calls(&mut self, now: Time, _out: &mut Vec<u8>, events: &mut Vec<Event>) {
        let checks = &self.checks;
        if checks.endless.should_end_with_load() && self.content.is_open_and_as_expected(checks) {
            let before = events.len();
            self.end_stream(now, events);
            mark_ended_with_load(&mut events[before..]);
        }
    }

    fn abort(&mut self, outcome: Outcome, now: Time, events: &mut Vec<Event>) {
        self.is_draining = true;
        self.drain_deadline = None;
        let Some(call) = self.call.take() else { return };
        let is_loss = matches!(
            outcome,
            Outcome::Reset | Outcome::ConnectionClosed | Outcome::Truncated
        );
        if !is_loss || !self.was_closed_while_idle(&call, now) {
            return events.push(Event::Done(
                call.completed_call(outcome, self.body_bytes_received()),
            ));
        }
        let done = call.completed_call(Outcome::IdleClosed, 0);
        if self.details.try_count(Outcome::IdleClosed) {
            let idle = call.started.duration_since(self.idle_since);
            events.push(Event::Detail {
                outcome: Outcome::IdleClosed,
                text: format!("the server closed a connection that had been idle for {idle:.1?} as the request left"),
            });
        }
        events.push(if self.shared.is_idempotent {
            Event::Unprocessed(done)
        } else {
            Event::Done(done)
        });
    }

    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests;
