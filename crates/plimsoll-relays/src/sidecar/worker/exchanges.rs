//! Begins, answers, refuses, resets and ends calls over HTTP/2.
//!
//! This file is long because both directions of an exchange end together.

use std::borrow::Cow;
use std::sync::Arc;

use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::interface::relayed::{RejectReason, StreamFields};
use plimsoll_wire::http2::{ErrorCode, Violation, write};

use super::super::access_log::AccessLogEntry;
use super::super::add_to_counter;
use super::super::http2::{
    CallDirection, Exchange, HeaderFields, LocalResponse, SendQueue, StreamRef,
};
use super::Worker;
use super::http2::http2_mut;

const MISSING_BODY_RESPONSE: LocalResponse = LocalResponse {
    outcome: Outcome::DeadlineExceeded,
    http_status: "408",
    why: Cow::Borrowed("sidecar: no body received after the header fields (request_timeout)"),
};

/// Returns the sidecar's answer to a call that it cannot pass on.
fn rejection_response(why: RejectReason) -> LocalResponse {
    let (http_status, text) = match why {
        RejectReason::Busy => ("503", "sidecar: too many calls in flight (max_in_flight)"),
        RejectReason::NoUpstream => ("503", "sidecar: no upstream can be reached"),
        RejectReason::LocalResource(lack) => {
            return LocalResponse {
                outcome: Outcome::Unavailable,
                http_status: "503",
                why: format!("sidecar: can't connect to the upstream: {lack}").into(),
            };
        }
        RejectReason::UpstreamClosed => (
            "502",
            "sidecar: the upstream's connection ended with the call in flight",
        ),
        RejectReason::InjectedFault => ("503", "sidecar: injected fault (fault.abort_share)"),
        RejectReason::Timeout => ("504", "sidecar: the call timed out"),
        // Only frames can be too long; streams have no maximum length.
        RejectReason::FrameTooLarge => ("502", "sidecar: longer than max_frame"),
        RejectReason::MalformedResponse => {
            ("502", "sidecar: the upstream's answer violates HTTP/2")
        }
    };
    LocalResponse {
        outcome: match why {
            RejectReason::Timeout => Outcome::DeadlineExceeded,
            RejectReason::MalformedResponse => Outcome::Internal,
            _ => Outcome::Unavailable,
        },
        http_status,
        why: text.into(),
    }
}

/// Returns why an upstream's header fields cannot be passed on. Records the content length that they announce.
fn answer_problem(
    exchange: &mut Exchange,
    fields: &HeaderFields,
    end: write::EndStream,
) -> Option<&'static str> {
    if exchange.has_answer_begun {
        return if end.0 {
            (fields.trailers_problem())
                .or_else(|| exchange.count_data(CallDirection::Down, b"", end))
        } else {
            Some("trailers without END_STREAM (RFC 9113, 8.1)")
        };
    }
    if let Some(problem) = fields.answer_problem() {
        return Some(problem);
    }
    if fields.check.is_informational() {
        return (end.0).then_some("an informational answer that ends (RFC 9113, 8.1)");
    }
    exchange.length_down = fields.check.response_body_length(&exchange.request.check);
    if end.0 {
        exchange.count_data(CallDirection::Down, b"", end)
    } else {
        None
    }
}

impl Worker {
    /// Handles a client's new stream.
    ///
    /// # Errors
    /// Returns an error when the connection must be closed.
    pub(super) fn on_stream_opened(
        &mut self,
        token: u64,
        stream: u32,
        fields: Arc<HeaderFields>,
        end: write::EndStream,
        now: Time,
    ) -> Result<(), Violation> {
        let Some(connection) = self.connection_mut(token) else {
            return Ok(());
        };
        let route = connection.route;
        let Some((transport, http2)) = http2_mut(&mut self.connections, token) else {
            return Ok(());
        };
        if http2.goaway_sent {
            // The stream is above GOAWAY's last stream, so the client knows that it is not processed.
            return Ok(());
        }
        let config = &self.routes[route].setup.route;
        if http2.session.open_stream_count() >= config.max_streams() as usize {
            http2
                .session
                .reset(stream, ErrorCode::REFUSED_STREAM, &mut transport.out);
            add_to_counter(&self.counters(route).busy, 1);
            return Ok(());
        }
        let length_up = fields.check.request_body_length();
        let problem = fields.request_problem().or_else(|| {
            let lacks_data = end.0 && length_up.is_some_and(|length| length > 0);
            lacks_data.then_some("`content-length`, and no DATA (RFC 9113, 8.1.1)")
        });
        if let Some(problem) = problem {
            http2
                .session
                .reset(stream, ErrorCode::PROTOCOL_ERROR, &mut transport.out);
            self.report_wrong_protocol_on(token, &problem, now);
            return self.count_abusive_calls(token, 1, now);
        }
        let limits = [
            fields.metadata.timeout(),
            self.routes[route].setup.route.call_timeout(),
        ];
        let timeout = limits.into_iter().flatten().min();
        let mut to_up = SendQueue::new_for_request();
        to_up.push(b"", end);
        let exchange = Box::new(Exchange {
            route,
            down: StreamRef { token, stream },
            up: StreamRef::NONE,
            up_queue: to_up,
            down_queue: SendQueue::default(),
            request: fields,
            has_answer_begun: false,
            attempts: 0,
            began: now,
            endpoint: None,
            status: None,
            code: None,
            by_sidecar: false,
            bytes_up: 0,
            bytes_down: 0,
            length_up,
            length_down: None,
            deadline: timeout.map_or(Time::NEVER, |timeout| now + timeout),
            request_until: if end.0 {
                Time::NEVER
            } else {
                now + config.request_timeout()
            },
            is_fresh: true,
        });
        let key = self.exchanges.insert(exchange);
        http2.session.add_stream(stream, key, end);
        add_to_counter(&self.counters(route).requests, 1);
        self.counters(route).in_flight.inc();
        self.new_calls.push(key);
        Ok(())
    }

    /// Dispatches calls that have just arrived. This happens after all input was parsed, so that an upstream does not
    /// see a malformed call, or one that its client resets at once.
    pub(super) fn dispatch_new_calls(&mut self, now: Time) {
        let mut fresh = std::mem::take(&mut self.new_calls);
        for key in fresh.drain(..) {
            // The call may have been reset in the meantime.
            if self.exchanges.get_mut(key).is_some_and(|e| e.is_fresh) {
                self.dispatch(key, now);
            }
        }
        self.new_calls = fresh;
    }

    /// Handles header fields on a known stream.
    ///
    /// # Errors
    /// Returns an error when the connection must be closed.
    pub(super) fn on_header_fields(
        &mut self,
        token: u64,
        key: u64,
        fields: Arc<HeaderFields>,
        end: write::EndStream,
        now: Time,
    ) -> Result<(), Violation> {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return Ok(());
        };
        exchange.request_until = Time::NEVER;
        match exchange.direction_from(token) {
            CallDirection::Up => self.on_request_trailers(token, key, fields, end, now),
            CallDirection::Down => {
                self.on_answer_fields(key, fields, end, now);
                Ok(())
            }
        }
    }

    fn on_request_trailers(
        &mut self,
        token: u64,
        key: u64,
        fields: Arc<HeaderFields>,
        end: write::EndStream,
        now: Time,
    ) -> Result<(), Violation> {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return Ok(());
        };
        let problem = if end.0 {
            (fields.trailers_problem()).or_else(|| exchange.count_data(CallDirection::Up, b"", end))
        } else {
            Some("trailers without END_STREAM (RFC 9113, 8.1)")
        };
        if let Some(problem) = problem {
            return self.reject_malformed_request(token, key, problem, now);
        }
        exchange.up_queue.push_trailers(fields);
        let (is_fresh, up) = (exchange.is_fresh, exchange.up);
        if up.stream == 0 && !is_fresh {
            self.promote_waiting_call(up.token, key, now);
        } else {
            self.send_queued_data(key, CallDirection::Up, now);
        }
        Ok(())
    }

    /// Ends a request that turned out to be malformed after its header fields were accepted.
    ///
    /// # Errors
    /// Returns an error when the connection that sent the request must be closed.
    pub(super) fn reject_malformed_request(
        &mut self,
        token: u64,
        key: u64,
        problem: &str,
        now: Time,
    ) -> Result<(), Violation> {
        self.report_wrong_protocol_on(token, &problem, now);
        self.reset_call(key, ErrorCode::PROTOCOL_ERROR, now);
        self.count_abusive_calls(token, 1, now)
    }

    fn on_answer_fields(
        &mut self,
        key: u64,
        fields: Arc<HeaderFields>,
        end: write::EndStream,
        now: Time,
    ) {
        let logs = self.has_access_log();
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        let (route, endpoint) = (exchange.route, exchange.endpoint);
        exchange.up_queue.stop_retaining();
        exchange.code = fields.status_number().or(exchange.code);
        if logs && exchange.status.is_none() {
            exchange.status = fields.status();
        }
        self.on_call_answered(route, endpoint);
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        if let Some(problem) = answer_problem(exchange, &fields, end) {
            self.reject_answer(key, problem, now);
        } else if end.0 {
            exchange.down_queue.push_trailers(fields);
            self.send_queued_data(key, CallDirection::Down, now);
        } else {
            exchange.has_answer_begun = !fields.check.is_informational();
            let down = exchange.down;
            if let Some((transport, http2)) = http2_mut(&mut self.connections, down.token) {
                http2.session.send_headers(
                    down.stream,
                    &fields,
                    write::EndStream(false),
                    &mut transport.out,
                );
                self.mark_dirty(down.token);
            }
        }
    }

    /// Ends a call whose answer cannot be passed on.
    pub(super) fn reject_answer(&mut self, key: u64, problem: &str, now: Time) {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        let up = exchange.up.token;
        self.report_wrong_protocol_on(up, &problem, now);
        self.answer_locally(
            key,
            &rejection_response(RejectReason::MalformedResponse),
            now,
        );
    }

    /// Ends a call that cannot be passed on or answered any more.
    pub(super) fn reject_call(&mut self, key: u64, why: RejectReason, now: Time) {
        if let Some(exchange) = self.exchanges.get(key) {
            self.counters(exchange.route).count_rejections(why, 1);
            self.answer_locally(key, &rejection_response(why), now);
        }
    }

    /// Answers in place of the service, or ends the answer that the service began.
    fn answer_locally(&mut self, key: u64, response: &LocalResponse, now: Time) {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        let up = std::mem::replace(&mut exchange.up, StreamRef::NONE);
        exchange.by_sidecar = true;
        exchange.status = Some(exchange.request.local_status(response));
        let fields = match exchange.has_answer_begun {
            false => exchange.request.local_response_fields(response),
            true if exchange.request.metadata.is_protocol_call() => {
                HeaderFields::local_trailers(response)
            }
            true => {
                self.reset_upstream_stream(key, up, now);
                self.reset_call(key, ErrorCode::INTERNAL_ERROR, now);
                return;
            }
        };
        exchange.down_queue.push_trailers(Arc::new(fields));
        self.reset_upstream_stream(key, up, now);
        self.send_queued_data(key, CallDirection::Down, now);
    }

    /// Handles the end of one direction, after all its data was relayed.
    pub(super) fn on_direction_done(&mut self, key: u64, way: CallDirection, now: Time) {
        if way == CallDirection::Down {
            // An answered call is over, whatever the client might still send (RFC 9113, 8.1).
            self.end_exchange(key, ErrorCode::NO_ERROR, ErrorCode::CANCEL, now);
        }
    }

    /// Resets a call on both sides.
    pub(super) fn reset_call(&mut self, key: u64, code: ErrorCode, now: Time) {
        self.end_exchange(key, code, ErrorCode::CANCEL, now);
    }

    /// Handles the reset of a stream of the connection `token`: resets the call's stream on the other side.
    pub(super) fn on_stream_reset(&mut self, token: u64, key: u64, code: ErrorCode, now: Time) {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        let way = exchange.direction_from(token);
        match way {
            CallDirection::Up => {
                let counters = &self.routes[exchange.route].setup.counters;
                exchange.status = Some(format!("RESET BY CLIENT: {code}"));
                exchange.down.stream = 0;
                add_to_counter(&counters.cancelled, 1);
                self.end_exchange(key, code, code, now);
            }
            CallDirection::Down => {
                let up = std::mem::replace(&mut exchange.up, StreamRef::NONE);
                let (client, is_whole) = (exchange.down.token, exchange.down_queue.has_ended());
                if let Some((_, http2)) = http2_mut(&mut self.connections, token) {
                    // The upstream may still close the connection because of this call.
                    http2.reset_calls.record(up.stream, client, now);
                }
                // A complete answer is still passed on.
                if is_whole || code == ErrorCode::REFUSED_STREAM && self.try_resend(key, now) {
                    return;
                }
                if let Some(exchange) = self.exchanges.get_mut(key) {
                    exchange.status = Some(format!("RESET BY UPSTREAM: {code}"));
                    let route = exchange.route;
                    add_to_counter(&self.counters(route).reset, 1);
                }
                self.end_exchange(key, code, code, now);
            }
        }
    }

    /// Removes a call and resets those of its streams that are still open.
    fn end_exchange(&mut self, key: u64, code_down: ErrorCode, code_up: ErrorCode, now: Time) {
        let Some(exchange) = self.exchanges.remove(key) else {
            return;
        };
        if self.has_access_log() {
            self.log_exchange(&exchange);
        }
        self.counters(exchange.route).in_flight.dec();
        if exchange.down_queue.end_sent {
            add_to_counter(&self.counters(exchange.route).answers, 1);
            if !exchange.by_sidecar {
                let state = &mut self.routes[exchange.route];
                state
                    .setup
                    .latency
                    .observe(now.duration_since(exchange.began));
                let (metrics, name) = (&self.shared.metrics, &state.setup.route.name);
                let status = exchange.code.unwrap_or(u32::MAX);
                let named = || HeaderFields::status_name(exchange.code);
                state.statuses.count(status, metrics, name, named);
                self.record_client_answer(exchange.down.token, now);
            }
        }
        self.release_stream(&exchange, CallDirection::Down, code_down, now);
        let up = exchange.up;
        if up.stream == 0 {
            self.remove_waiting_call(up.token, key);
        } else {
            self.release_stream(&exchange, CallDirection::Up, code_up, now);
            self.open_waiting_streams(up.token, now);
        }
    }

    /// Removes the destination stream of this direction, or resets it if it is still open. Reopens its receive window
    /// for bytes that it sent and that were not passed on.
    fn release_stream(
        &mut self,
        exchange: &Exchange,
        way: CallDirection,
        code: ErrorCode,
        now: Time,
    ) {
        let (end, to_there, from_there) = match way {
            CallDirection::Up => (exchange.up, &exchange.up_queue, &exchange.down_queue),
            CallDirection::Down => (exchange.down, &exchange.down_queue, &exchange.up_queue),
        };
        let Some((transport, http2)) = http2_mut(&mut self.connections, end.token) else {
            return;
        };
        let out = &mut transport.out;
        let client = exchange.down.token;
        if end.stream == 0 {
            // The peer has reset the stream.
        } else if http2.session.is_ended_by_peer(end.stream) && to_there.end_sent {
            http2.session.remove_stream(end.stream);
        } else if way == CallDirection::Up && !exchange.has_answer_begun {
            http2.reset_calls.record(end.stream, client, now);
            http2.reset_unanswered_stream(
                end.stream,
                code,
                write::EndStream(to_there.end_sent),
                now,
                out,
            );
        } else {
            http2.reset_calls.record(end.stream, client, now);
            http2.session.reset(end.stream, code, out);
        }
        http2
            .session
            .replenish_window(end.stream, from_there.never_sent_bytes(), out);
        self.mark_dirty(end.token);
    }

    fn log_exchange(&mut self, exchange: &Exchange) {
        let client = self.connection_mut(exchange.down.token);
        let path = exchange.request.find(b":path").unwrap_or_default();
        let line = AccessLogEntry {
            client: client.and_then(|client| client.client_address()),
            call: Some(String::from_utf8_lossy(path).into_owned()),
            status: exchange.status.clone(),
            by_sidecar: exchange.by_sidecar,
            bytes_up: exchange.bytes_up,
            bytes_down: exchange.bytes_down,
            ..AccessLogEntry::default()
        };
        self.write_access_log(exchange.route, exchange.endpoint, exchange.began, line);
    }

    /// Resets the upstream stream `end`, which the call no longer uses.
    fn reset_upstream_stream(&mut self, key: u64, end: StreamRef, now: Time) {
        let Some(exchange) = self.exchanges.get(key).filter(|_| end.stream != 0) else {
            return;
        };
        let (begun, sent) = (
            exchange.has_answer_begun,
            write::EndStream(exchange.up_queue.end_sent),
        );
        let client = exchange.down.token;
        if let Some((transport, http2)) = http2_mut(&mut self.connections, end.token) {
            let out = &mut transport.out;
            http2.reset_calls.record(end.stream, client, now);
            if begun {
                http2.session.reset(end.stream, ErrorCode::CANCEL, out)
            } else {
                http2.reset_unanswered_stream(end.stream, ErrorCode::CANCEL, sent, now, out);
            }
            self.mark_dirty(end.token);
            self.open_waiting_streams(end.token, now);
        }
    }

    /// Ends the calls whose deadline has passed.
    pub(super) fn end_timed_out_calls(&mut self, now: Time) {
        for key in self.exchanges.keys() {
            let Some(exchange) = self.exchanges.get_mut(key) else {
                continue;
            };
            if exchange.deadline.min(exchange.request_until) > now {
                continue;
            }
            let is_half_open = exchange.deadline > now;
            exchange.deadline = Time::NEVER;
            exchange.request_until = Time::NEVER;
            let (route, endpoint) = (exchange.route, exchange.endpoint);
            if is_half_open {
                add_to_counter(&self.counters(route).timeouts, 1);
                self.answer_locally(key, &MISSING_BODY_RESPONSE, now);
                continue;
            }
            if exchange.down_queue.has_ended() {
                // The call is answered, but the client does not read the answer.
                self.reset_call(key, ErrorCode::CANCEL, now);
            } else {
                self.reject_call(key, RejectReason::Timeout, now);
                if let Some(endpoint) = endpoint {
                    self.on_failed_calls(route, endpoint, 1, now);
                }
            }
        }
    }
}
