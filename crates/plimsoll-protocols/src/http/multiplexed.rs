//! The client's side of one HTTP/2 connection (RFC 9113): as many concurrent calls as the server allows, each on its
//! own stream.
//!
//! [`crate::http2`] implements connections, and `checks` and `body_inspection` check responses, as for HTTP/1.1; this
//! module maps the frames of a stream to its call. Invariant: a call ends with its response, or with the event that
//! ends its stream. A stream whose call has ended counts as open until the server ends it, or it is reset after
//! [`DRAIN_TIMEOUT`].
//!
//! In the steady state, the head of a response is looked up by its bytes, and nothing is allocated.
//!
//! This file is long because it handles every frame of a response, and implements [`StreamCalls`].

mod steps;

use std::collections::VecDeque;
use std::sync::Arc;

use plimsoll_engine::driver::{
    CallProgress, CompletedCall, Event, Protocol, ProtocolError, Tracer,
};
use plimsoll_model::plan::GoodputBounds;
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::hpack::{DEFAULT_TABLE_BYTES, Decoder, HpackError};
use plimsoll_wire::http1::Http1Error;
use plimsoll_wire::http2::{ErrorCode, StreamPayload, Violation, write};

use super::body_inspection::BodyInspector;
use super::call::{HttpCall, ReplayedParts, VaryingBody, VaryingRequest};
use super::checks::{BodyMetadata, ResponseChecks};
use super::driver::DRAIN_TIMEOUT;
use super::endless_streams::mark_ended_with_load;
use super::envelopes;
use super::errors::{MAX_HEAD_HINT, to_protocol_error};
use super::field_list::FieldList;
use super::journey::{CaptureLevel, StepValues};
use super::refusals::{RefusalRetries, end_event};
pub use super::request::HttpScheme;
use super::request::{HttpRequest, format_decimal, push_constant_fields, write_body};
use crate::http2::{
    self, BlockCache, BodyKind, CallStreamState, Connection, DriverEffects, HEAD_TOO_LARGE,
    Http2FrameTracer, NO_CALL, NO_SLOT, RequestTemplate, ResponseFieldChecks, StreamCalls,
    VaryingFields, WINDOW_REPLENISH_BYTES, compression_violation, find_length_violation,
    parse_content_length, put_literal,
};

/// The maximum length of a header block that is remembered, in bytes.
const MAX_REMEMBERED_BLOCK_BYTES: usize = 255;

#[derive(Debug)]
struct Http2ProtocolState {
    request: RequestTemplate,
    checks: Arc<ResponseChecks>,
    refusal_retries: RefusalRetries,
    varying: Option<VaryingRequest>,
    replayed: Option<ReplayedParts>,
}

impl Http2ProtocolState {
    fn varying_body(&self) -> Option<(&VaryingRequest, &VaryingBody)> {
        let varying = self.varying.as_ref()?;
        Some((varying, varying.body.as_ref()?))
    }
}

/// HTTP/2 with a prepared request.
#[derive(Clone, Debug)]
pub struct Http2Protocol(Arc<Http2ProtocolState>);

impl Http2Protocol {
    /// Prepares the request.
    pub fn new(request: &HttpRequest<'_>, scheme: HttpScheme) -> Http2Protocol {
        let prepared = prepare(request, scheme);
        Http2Protocol::with_checks(request, prepared, ResponseChecks::new(request.call))
    }

    /// Prepares the request of a journey's step. `capture`: the part of its responses that is kept.
    pub fn for_step(
        request: &HttpRequest<'_>,
        scheme: HttpScheme,
        capture: CaptureLevel,
    ) -> Http2Protocol {
        // Steps share a connection, so their header blocks must not depend on the peer's dynamic table.
        let prepared = prepare(request, scheme).without_dynamic_table();
        let checks = ResponseChecks::for_step(request.call, capture);
        Http2Protocol::with_checks(request, prepared, checks)
    }

    fn with_checks(
        request: &HttpRequest<'_>,
        prepared: RequestTemplate,
        checks: ResponseChecks,
    ) -> Http2Protocol {
        Http2Protocol(Arc::new(Http2ProtocolState {
            request: prepared,
            checks: Arc::new(checks),
            refusal_retries: request.call.refusal_retries,
            varying: request.call.varying.clone(),
            replayed: request.call.replayed.clone(),
        }))
    }
}

fn prepare(request: &HttpRequest<'_>, scheme: HttpScheme) -> RequestTemplate {
    let HttpCall {
        method,
        path,
        varying,
        ..
    } = request.call;
    let body = envelopes::encoded_body(request.call);
    let length = body.len().to_string();
    let parts = request.call.replayed.as_ref();
    let varying_method = parts.and_then(|parts| parts.method.as_ref());
    let mut fields = vec![(":scheme", scheme.name()), (":authority", request.host())];
    if varying_method.is_none() {
        fields.insert(0, (":method", method));
    }
    let varying_fields = varying.as_ref().and_then(|varying| {
        let pseudo = (varying_method, varying.path.as_ref());
        VaryingFields::new(&varying.variation, pseudo, &varying.headers)
    });
    // A varying path is written after the constant fields, so it is not one of them.
    let path_varies = varying.as_ref().is_some_and(|all| all.path.is_some());
    if !path_varies {
        fields.push((":path", path));
    }
    push_constant_fields(request.call, &length, &mut fields);
    let bodies = match varying.as_ref().and_then(|all| all.body.as_ref()) {
        Some(_) => BodyKind::PerCall,
        None => BodyKind::Same,
    };
    RequestTemplate::new(&fields, varying_fields, body.into_owned(), bodies)
}

impl Protocol for Http2Protocol {
    type Driver = Http2Driver;

    fn alpn(&self) -> Option<&'static [u8]> {
        Some(b"h2")
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.0.request.unix_zero.set(unix_ns);
    }

    fn new_driver(&self) -> Http2Driver {
        Connection::new(HttpCalls {
            shared: Arc::clone(&self.0),
            checks: Arc::clone(&self.0.checks),
            decoder: Decoder::new(DEFAULT_TABLE_BYTES, self.0.checks.max_head),
            memo: BlockCache::default(),
            fields: FieldList::default(),
            responses: Vec::new(),
            free: Vec::new(),
            scratch: Vec::new(),
            line_fields: Vec::new(),
            has_next_body: false,
            step: StepValues::default(),
            answer_fields: FieldList::default(),
            answer_slot: NO_SLOT,
            draining_streams: VecDeque::new(),
            stream_deadlines: VecDeque::new(),
        })
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
        Some(Box::new(Http2FrameTracer::default()))
    }
}

/// The client side of one connection.
pub type Http2Driver = Connection<HttpCalls>;

/// The calls in flight on one connection.
#[derive(Debug)]
pub struct HttpCalls {
    shared: Arc<Http2ProtocolState>,
    /// The checks of responses: those of `shared`, or with the values of a journey's user.
    checks: Arc<ResponseChecks>,
    decoder: Decoder,
    memo: BlockCache<DecodedHead, MAX_REMEMBERED_BLOCK_BYTES>,
    /// The fields of the block that was decoded last.
    fields: FieldList,
    /// The state of responses whose body is inspected, or whose head shows a failure; a stream's `slot` is an index
    /// into it.
    responses: Vec<InspectedResponse>,
    free: Vec<u32>,
    /// The body of the call that is being started, if bodies vary.
    scratch: Vec<u8>,
    /// The encoded header fields from the next call's line of a replayed file.
    line_fields: Vec<u8>,
    /// Whether the caller has set `scratch`, so that the body is not rendered from its template.
    has_next_body: bool,
    /// Values for the next call's step; used in journeys.
    step: StepValues,
    /// Fields of the last response's head; used in journeys.
    answer_fields: FieldList,
    /// The index in `responses` of the last response whose body was inspected.
    answer_slot: u32,
    /// Streams whose call has ended, with the times at which they are reset, in order.
    draining_streams: VecDeque<(Time, u32)>,
    /// Streams whose duration the plan limits, with the times at which they are ended, in order.
    stream_deadlines: VecDeque<(Time, u32)>,
}

/// The state of a response whose body is inspected.
#[derive(Debug, Default)]
struct InspectedResponse {
    content: BodyInspector,
    /// The failure text, if the head shows a failure.
    text: Option<String>,
}

type HttpStream = http2::CallStream<Http2Response>;

/// The decoded and checked form of a header block, which depends only on the block's bytes.
#[derive(Clone, Copy, Debug)]
struct DecodedHead {
    /// The status; 0 if there is none, as in trailers.
    status: u16,
    outcome: Outcome,
    body_metadata: BodyMetadata,
    length: Option<u64>,
    why_malformed: Option<&'static str>,
}

/// The state of a response.
#[derive(Clone, Copy, Debug)]
pub struct Http2Response {
    first_byte: Time,
    /// The number of body bytes received.
    received: u32,
    /// The outcome according to the head.
    outcome: Outcome,
    has_head: bool,
    /// The value of `content-length`, if the response has one that applies to its body.
    length: Option<u32>,
}

impl http2::ResponseState for Http2Response {
    const NEW: Http2Response = Http2Response {
        first_byte: Time::NEVER,
        received: 0,
        outcome: Outcome::Ok,
        has_head: false,
        length: None,
    };

    #[inline(always)]
    fn is_new(&self) -> bool {
        self.first_byte == Time::NEVER
    }
}

impl HttpCalls {
    /// Decodes a header block. If it shows a failure, its fields are stored in `fields`.
    #[inline]
    fn read_head(&mut self, block: &[u8]) -> Result<DecodedHead, HpackError> {
        match self.memo.get(block) {
            Some(head) => Ok(*head),
            None => self.decode_head(block),
        }
    }

    #[inline(never)]
    fn decode_head(&mut self, block: &[u8]) -> Result<DecodedHead, HpackError> {
        let fields = &mut self.fields;
        fields.clear();
        let mut rules = ResponseFieldChecks::default();
        let (mut malformed, mut length) = (None, None);
        let decoded = self.decoder.decode(block, |field| {
            if let Err(why) = rules.check(field.name, field.value) {
                malformed = malformed.or(Some(why));
                return;
            }
            if field.name == b"content-length" {
                let is_number = field.value.iter().all(u8::is_ascii_digit);
                match parse_content_length(field.value) {
                    Ok(n) => length = Some(u64::from(n)),
                    Err(_) if is_number && !field.value.is_empty() => length = Some(u64::MAX),
                    Err(why) => malformed = malformed.or(Some(why)),
                }
            }
            fields.push(field.name, field.value);
        })?;
        if decoded.is_list_too_large {
            malformed = Some(HEAD_TOO_LARGE);
        }
        let checks = &self.checks;
        let (outcome, reading) = match rules.status {
            ..200 => (Outcome::Ok, BodyMetadata::UNINSPECTED_BODY),
            status => checks.check_head(status, self.fields.iter()),
        };
        let head = DecodedHead {
            status: rules.status,
            outcome,
            body_metadata: reading,
            length,
            why_malformed: malformed,
        };
        if decoded.has_changed_table {
            self.memo.clear();
        }
        // Journeys take values from the fields of every head, so their heads are always decoded and not remembered.
        let is_needed = checks.captures_head;
        if decoded.is_steady && head.outcome.is_ok() && !is_needed {
            // Blocks of failures are not remembered, since the failure text needs their fields.
            self.memo.put(block, head);
        }
        Ok(head)
    }

    /// Allocates the state for inspecting a stream's response.
    fn begin_inspection(
        &mut self,
        stream: &mut HttpStream,
        reading: BodyMetadata,
        text: Option<String>,
    ) {
        stream.slot = self.free.pop().unwrap_or_else(|| {
            self.responses.push(InspectedResponse::default());
            self.responses.len() as u32 - 1
        });
        let kept = &mut self.responses[stream.slot as usize];
        kept.content.restart(&self.checks, reading);
        kept.text = text;
    }
}

impl Http2Driver {
    #[inline(never)]
    fn inspect_answer(&mut self, id: u32, head: &DecodedHead) {
        let wanted = !head.outcome.is_ok() && self.details.has_room(head.outcome);
        let (checks, fields) = (&self.calls.checks, self.calls.fields.iter());
        let text = wanted.then(|| checks.head_failure_text(head.outcome, head.status, "", fields));
        if let Some(stream) = self.streams.find(id) {
            self.calls
                .begin_inspection(stream, head.body_metadata, text);
        }
    }

    /// Ends the call of a stream whose outcome is settled, although the stream is still open.
    #[inline(never)]
    fn end_settled_call(&mut self, id: u32, to: &mut DriverEffects<'_>) {
        let (outcome, text) = self.final_outcome(id, to.events);
        if !outcome.is_ok() {
            self.end_call(id, outcome, text, CallStreamState::Abandoned, to.events);
            return self.reset_stream(id, ErrorCode::CANCEL, CallStreamState::Abandoned, to.out);
        }
        if let Some(stream) = self.streams.find(id) {
            self.calls.report_call_end(stream, outcome, to.events);
            self.calls.release_stream(stream);
            stream.call = NO_CALL;
            self.calls
                .draining_streams
                .push_back((to.now + DRAIN_TIMEOUT, id));
        }
    }

    /// Handles the end of a stream.
    #[inline]
    fn on_stream_end(&mut self, id: u32, to: &mut DriverEffects<'_>) -> Result<(), Violation> {
        let Some(stream) = self.streams.find(id) else {
            return Ok(());
        };
        let answer = &stream.answer;
        if stream.call == NO_CALL {
            self.on_drained_stream_end(id);
            return Ok(());
        }
        let length = answer.length;
        if let Some(why) = length.and_then(|length| find_length_violation(length, answer.received))
        {
            return Err(Violation::stream_error(id, ErrorCode::PROTOCOL_ERROR, why));
        }
        let fits = self.calls.checks.has_expected_size(answer.received.into());
        let (outcome, text) = match stream.slot {
            NO_SLOT if fits => (answer.outcome, None),
            _ => self.final_outcome(id, to.events),
        };
        let unsent = self.end_call(id, outcome, text, CallStreamState::Ended, to.events);
        self.stop_sending(id, unsent, to.out);
        Ok(())
    }

    /// Returns the outcome of a response that was inspected, or whose head shows a failure.
    #[inline(never)]
    fn final_outcome(&mut self, id: u32, events: &mut Vec<Event>) -> (Outcome, Option<String>) {
        let Some(stream) = self.streams.find(id) else {
            return (Outcome::Ok, None);
        };
        let checks = &self.calls.checks;
        self.calls.answer_slot = stream.slot;
        let Http2Response {
            outcome, received, ..
        } = stream.answer;
        let Some(kept) = self.calls.responses.get_mut(stream.slot as usize) else {
            return checks.final_outcome(None, received.into());
        };
        if !outcome.is_ok() {
            let excerpt = kept.content.excerpt();
            let text = kept.text.take();
            return (
                outcome,
                text.map(|text| ResponseChecks::with_excerpt(text, outcome, excerpt)),
            );
        }
        let ended = kept.content.finish(checks, stream.call, events);
        checks.final_outcome(Some(ended), received.into())
    }

    /// Handles the end of a stream whose call has already ended.
    #[cold]
    fn on_drained_stream_end(&mut self, id: u32) {
        self.streams.close(id, CallStreamState::Ended);
        let rests = &mut self.calls.draining_streams;
        while let Some((_, id)) = rests.front()
            && self
                .streams
                .get(*id)
                .is_none_or(|stream| stream.state != CallStreamState::Open)
        {
            rests.pop_front();
        }
    }

    #[cold]
    fn fail_body_too_large(&mut self, last: StreamPayload<'_>, to: &mut DriverEffects<'_>) {
        let limit = self.calls.checks.max_body;
        let ProtocolError { outcome, detail } = to_protocol_error(&Http1Error::BodyTooLong(limit));
        self.fail_stream(last, outcome, Some(detail), to);
    }
}

impl Http2Driver {
    /// Ends the streams that have reached the duration in the plan.
    fn end_due_streams(&mut self, to: &mut DriverEffects<'_>) {
        let now = to.now;
        let is_due = |end: &mut (Time, u32)| end.0 <= now;
        while let Some((_, id)) = self.calls.stream_deadlines.pop_front_if(is_due) {
            self.end_stream(id, |_, _| true, to);
        }
    }

    /// Ends a stream as a success if it has not failed so far and `wanted` returns true for its inspector.
    fn end_stream(
        &mut self,
        id: u32,
        wanted: impl FnOnce(&BodyInspector, &ResponseChecks) -> bool,
        to: &mut DriverEffects<'_>,
    ) {
        let Some(stream) = self.streams.find_open(id) else {
            return;
        };
        let is_good = stream.call != NO_CALL && stream.answer.outcome.is_ok();
        let kept = self.calls.responses.get_mut(stream.slot as usize);
        let Some(kept) = kept.filter(|_| is_good) else {
            return;
        };
        if !wanted(&kept.content, &self.calls.checks) {
            return;
        }
        kept.content.settle_as_success();
        let (outcome, text) = self.final_outcome(id, to.events);
        self.end_call(id, outcome, text, CallStreamState::Abandoned, to.events);
        self.reset_stream(id, ErrorCode::CANCEL, CallStreamState::Abandoned, to.out);
    }

    #[cold]
    fn fail_head_too_large(&mut self, head: StreamPayload<'_>, to: &mut DriverEffects<'_>) {
        let limit = self.calls.checks.max_head;
        let text = format!("{HEAD_TOO_LARGE} of {limit} bytes: {MAX_HEAD_HINT}");
        self.fail_stream(head, Outcome::HeadTooLarge, Some(text), to);
    }
}

impl StreamCalls for HttpCalls {
    type Answer = Http2Response;

    #[inline]
    fn request(&self) -> &RequestTemplate {
        &self.shared.request
    }

    const HAS_PER_CALL_FIELDS: bool = true;

    fn prepare(&mut self, number: u64, now: Time) {
        self.render_checks(number, now);
        if std::mem::take(&mut self.has_next_body) {
            return;
        }
        if let Some((varying, body)) = self.shared.varying_body() {
            let unix_ns = self.shared.request.unix_zero.unix_ns_at(now);
            self.scratch.clear();
            let moment = varying.variation.render_context(number, 0, unix_ns);
            let moment = moment.with_captured_values(&self.step.taken);
            write_body(body, &moment, &mut self.scratch);
            if self.checks.has_prefix {
                envelopes::insert_prefix(&mut self.scratch);
            }
        }
        if let (Some(parts), Some(varying)) = (&self.shared.replayed, &self.shared.varying) {
            let unix_ns = self.shared.request.unix_zero.unix_ns_at(now);
            let moment = varying.variation.render_context(number, 0, unix_ns);
            parts.encode_block(&moment, &self.scratch, &mut self.line_fields);
        }
    }

    fn write_per_call_fields(&self, block: &mut Vec<u8>) {
        block.extend_from_slice(&self.line_fields);
        let is_bodiless_line = self.shared.replayed.is_some() && self.scratch.is_empty();
        if self.shared.request.body_kind == BodyKind::PerCall && !is_bodiless_line {
            let mut digits = [0; 20];
            put_literal(
                "content-length",
                format_decimal(self.scratch.len(), &mut digits),
                block,
            );
        }
        if !self.step.cookies.is_empty() {
            put_literal("cookie", self.step.cookies.as_bytes(), block);
        }
    }

    fn captured_values(&self) -> &[Option<Box<[u8]>>] {
        &self.step.taken
    }

    fn write_body(&self, _number: u64, _now: Time, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.scratch);
    }

    #[inline(always)]
    fn on_data(
        connection: &mut Http2Driver,
        piece: StreamPayload<'_>,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        let (id, data) = (piece.stream, piece.bytes);
        let Some(stream) = connection.streams.find_open(id) else {
            return connection.on_closed_stream(piece, "DATA", to.events);
        };
        let answer = &mut stream.answer;
        if !answer.has_head {
            let why = "DATA before HEADERS (RFC 9113, 8.1)";
            return Err(Violation::stream_error(id, ErrorCode::PROTOCOL_ERROR, why));
        }
        let checks = &connection.calls.checks;
        let before = answer.received;
        answer.received = before.wrapping_add(data.len() as u32);
        let is_over = stream.call == NO_CALL;
        if !is_over && u64::from(before) + data.len() as u64 > checks.max_body {
            // The body is too large; only the bytes up to the limit are counted.
            answer.received = checks.max_body as u32;
            connection.fail_body_too_large(piece, to);
            return Ok(());
        }
        // The stream's window begins at its maximum, 2 GiB. It is replenished each time a quarter has been used, so
        // only responses over 512 MiB need an update.
        let window_used = (before ^ answer.received) >= WINDOW_REPLENISH_BYTES;
        let mut is_settled = false;
        if let Some(kept) = connection.calls.responses.get_mut(stream.slot as usize) {
            match answer.outcome {
                Outcome::Ok => kept.content.push(checks, data, stream.call, to.events),
                _ => kept.content.keep_excerpt(data),
            }
            is_settled = kept.content.is_settled();
        }
        if piece.end_stream {
            return connection.on_stream_end(id, to);
        }
        if window_used {
            write::window_update(to.out, id, WINDOW_REPLENISH_BYTES);
        }
        if is_settled {
            connection.end_settled_call(id, to);
        }
        Ok(())
    }

    #[inline(always)]
    fn on_header_block(
        connection: &mut Http2Driver,
        piece: StreamPayload<'_>,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        let mut head = connection
            .calls
            .read_head(piece.bytes)
            .map_err(compression_violation)?;
        let (id, end_stream) = (piece.stream, piece.end_stream);
        let Some(stream) = connection.streams.find_open(id) else {
            return connection.on_closed_stream(piece, "HEADERS", to.events);
        };
        let malformed = |why| Err(Violation::stream_error(id, ErrorCode::PROTOCOL_ERROR, why));
        if let Some(why) = head.why_malformed {
            if why == HEAD_TOO_LARGE {
                connection.fail_head_too_large(piece, to);
                return Ok(());
            }
            return malformed(why);
        }
        let answer = &mut stream.answer;
        if answer.first_byte == Time::NEVER {
            answer.first_byte = to.now;
        }
        if answer.has_head {
            return match head.status {
                0 if end_stream => connection.on_stream_end(id, to),
                0 => malformed("trailers without END_STREAM (RFC 9113, 8.1)"),
                _ => malformed("trailers with a pseudo-field (RFC 9113, 8.1)"),
            };
        }
        match head.status {
            0 => return malformed("an answer without :status (RFC 9113, 8.3.2)"),
            101 => return malformed("status 101, which HTTP/2 does not have (RFC 9113, 8.6)"),
            100..200 if end_stream => {
                return malformed("an interim answer with END_STREAM (RFC 9113, 8.1)");
            }
            100..200 => return Ok(()),
            _ => {}
        }
        answer.has_head = true;
        answer.outcome = head.outcome;
        let checks = &connection.calls.checks;
        let bodiless = checks.bodiless || matches!(head.status, 204 | 304);
        let length = if bodiless { Some(0) } else { head.length };
        if let Some(length) = length {
            if length > checks.max_body {
                connection.fail_body_too_large(piece, to);
                return Ok(());
            }
            answer.length = Some(length as u32);
        }
        let looks =
            checks.inspects_bodies() || head.body_metadata != BodyMetadata::UNINSPECTED_BODY;
        if head.outcome != Outcome::Ok || looks {
            let clock = &connection.calls.shared.request.unix_zero;
            let unix_ns = clock.unix_ns_at(to.now);
            let refusal = head.body_metadata.refusal;
            head.body_metadata.refusal = refusal.map(|refusal| refusal.relative_to(unix_ns));
            connection.inspect_answer(id, &head);
            let calls = &mut connection.calls;
            if let Some(lasts) = calls.checks.stream_duration {
                calls.stream_deadlines.push_back((to.now + lasts, id));
            }
        }
        if connection.calls.checks.captures_head {
            let calls = &mut connection.calls;
            std::mem::swap(&mut calls.fields, &mut calls.answer_fields);
        }
        if end_stream {
            connection.on_stream_end(id, to)
        } else {
            Ok(())
        }
    }

    #[inline]
    fn report_call_end(&mut self, stream: &HttpStream, outcome: Outcome, events: &mut Vec<Event>) {
        if stream.call != NO_CALL {
            let done = CompletedCall {
                call: stream.call,
                outcome,
                first_byte: stream.answer.first_byte,
                bytes_sent: stream.size.saturating_sub(stream.unsent),
                bytes_received: stream.answer.received,
            };
            let kept = self.responses.get(stream.slot as usize);
            let refusal = kept.and_then(|kept| kept.content.refusal());
            // The wait is relative to the head, so the time of day is not needed.
            events.push(end_event(done, refusal, self.shared.refusal_retries, || 0));
        }
    }

    #[inline]
    fn release_stream(&mut self, stream: &mut HttpStream) {
        if stream.slot != NO_SLOT {
            self.free.push(std::mem::replace(&mut stream.slot, NO_SLOT));
        }
    }

    fn release_all_streams(&mut self) {
        self.responses = Vec::new();
        self.free = Vec::new();
        self.draining_streams = VecDeque::new();
        self.stream_deadlines = VecDeque::new();
    }

    fn call_progress(&self, stream: &HttpStream) -> CallProgress {
        CallProgress {
            messages_sent: 0,
            bytes_sent: stream.size.saturating_sub(stream.unsent),
            bytes_received: stream.answer.received,
        }
    }

    fn outcome_from_reset(code: ErrorCode) -> Outcome {
        match code {
            ErrorCode::REFUSED_STREAM => Outcome::StreamRefused,
            _ => Outcome::StreamReset,
        }
    }

    fn max_header_list_bytes(&self) -> u32 {
        self.checks.max_head
    }

    fn has_negligible_receive_time(&self) -> bool {
        self.checks.only_counts_bodies()
    }

    fn next_timer(&self) -> Option<Time> {
        let rest = self.draining_streams.front().map(|(when, _)| *when);
        let end = self.stream_deadlines.front().map(|(when, _)| *when);
        rest.into_iter().chain(end).min()
    }

    fn on_timer(connection: &mut Http2Driver, to: &mut DriverEffects<'_>) {
        connection.end_due_streams(to);
        while let Some(&(_, id)) = connection
            .calls
            .draining_streams
            .front()
            .filter(|(when, _)| *when <= to.now)
        {
            connection.calls.draining_streams.pop_front();
            let rests = |stream: &HttpStream| {
                stream.state == CallStreamState::Open && stream.call == NO_CALL
            };
            if connection.streams.get(id).is_some_and(rests) {
                connection.reset_stream(id, ErrorCode::CANCEL, CallStreamState::Abandoned, to.out);
            }
        }
    }

    fn on_load_end(connection: &mut Http2Driver, to: &mut DriverEffects<'_>) {
        if !connection.calls.checks.endless.should_end_with_load() {
            return;
        }
        let open: Vec<u32> = connection.streams.iter_open().map(|s| s.id).collect();
        let before = to.events.len();
        for id in open {
            connection.end_stream(id, BodyInspector::is_open_and_as_expected, to);
        }
        mark_ended_with_load(&mut to.events[before..]);
    }

    fn heap_bytes(&self) -> usize {
        let contents = self.responses.iter().map(|kept| kept.content.heap_bytes());
        self.decoder.heap_bytes()
            + self.memo.heap_bytes()
            + self.fields.heap_bytes()
            + self.responses.capacity() * size_of::<InspectedResponse>()
            + contents.sum::<usize>()
            + self.free.capacity() * size_of::<u32>()
            + self.scratch.capacity()
            + self.line_fields.capacity()
            + (self.draining_streams.capacity() + self.stream_deadlines.capacity())
                * size_of::<(Time, u32)>()
    }
}

#[cfg(test)]
mod tests;
