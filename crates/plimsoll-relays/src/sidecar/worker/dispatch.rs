//! Assigns calls to upstream HTTP/2 connections, and moves or ends calls whose connection is
//! draining or lost.

use std::collections::VecDeque;

use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::RejectReason;
use plimsoll_wire::http2::{EitherRole, ErrorCode, write};

use super::super::add_to_counter;
use super::super::http2::{CallDirection, StreamRef};
use super::faults::{DelayedItem, FaultAction};
use super::http2::{Http2State, http2_mut};
use super::{RelayRole, UpstreamChoice, Worker};

/// How long the answer to a PING may take, in nanoseconds.
const PING_TIMEOUT_NS: u64 = 3_000_000_000;

/// Maximum attempts to assign a call to an upstream while no upstream has processed it.
const MAX_ATTEMPTS: u8 = 3;

impl Worker {
    /// Assigns a call to an upstream connection, and opens a stream there as soon as possible.
    pub(super) fn dispatch(&mut self, key: u64, now: Time) {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        let route = exchange.route;
        if std::mem::replace(&mut exchange.is_fresh, false) {
            match self.choose_fault(route) {
                FaultAction::Forward => {}
                FaultAction::Abort => {
                    return self.reject_call(key, RejectReason::InjectedFault, now);
                }
                FaultAction::Delay(time) => {
                    return self.delayed.push(now + time, DelayedItem::Exchange(key));
                }
            }
        }
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        exchange.attempts += 1;
        let down = exchange.down.token;
        let found = match self.find_isolated_upstream(down, now) {
            Some(found) => found,
            None => self.find_upstream(route, 0, now),
        };
        let why = match found {
            UpstreamChoice::Upstream(token) => {
                let connection = self.connections.get(token);
                let endpoint = connection.and_then(|connection| connection.endpoint);
                if let Some((_, http2)) = http2_mut(&mut self.connections, token)
                    && let Some(exchange) = self.exchanges.get_mut(key)
                {
                    exchange.up = StreamRef { token, stream: 0 };
                    exchange.endpoint = endpoint;
                    if exchange.has_only_headers() {
                        http2.headers_only.push_back(key)
                    } else {
                        http2.waiting.push_back(key)
                    }
                }
                self.open_waiting_streams(token, now);
                return;
            }
            UpstreamChoice::Refused(why) => why,
            UpstreamChoice::Connecting | UpstreamChoice::Congested => RejectReason::NoUpstream,
        };
        self.reject_call(key, why, now);
    }

    /// Sends the connection preface.
    pub(super) fn send_preface(&mut self, token: u64) {
        let Some(connection) = self.connection_mut(token) else {
            return;
        };
        let route = connection.route;
        let most = self.routes[route].setup.route.max_streams();
        if let Some((transport, http2)) = http2_mut(&mut self.connections, token) {
            http2.session.send_preface(most, &mut transport.out);
            self.mark_dirty(token);
        }
    }

    /// Opens streams for the calls that wait for a stream.
    pub(super) fn open_waiting_streams(&mut self, token: u64, now: Time) {
        let Some(connection) = self.connection_mut(token) else {
            return;
        };
        let (route, Some(endpoint)) = (connection.route, connection.endpoint) else {
            return;
        };
        let most = self.routes[route].setup.route.max_in_flight();
        while let Some((transport, http2)) = http2_mut(&mut self.connections, token) {
            if !http2.session.can_open_stream() {
                return;
            }
            let places = http2.session.max_open_streams().min(most);
            let has_half = http2.session.open_stream_count() < places.div_ceil(2);
            let next = match http2.waiting.pop_front() {
                None if has_half => http2.headers_only.pop_front(),
                next => next,
            };
            let Some(key) = next else {
                return;
            };
            // The call may have been reset, or moved to the other list because more than its header fields has arrived.
            let Some(exchange) = self.exchanges.get_mut(key) else {
                continue;
            };
            if exchange.up.token != token || exchange.up.stream != 0 {
                continue;
            }
            let ends = exchange.up_queue.has_only_end_stream();
            let request = &exchange.request;
            let end = write::EndStream(ends);
            exchange.up.stream = http2
                .session
                .open_stream(key, request, end, &mut transport.out);
            exchange.up_queue.end_sent = ends;
            let is_used_up = http2.session.has_exhausted_ids();
            self.routes[route].endpoints[endpoint].counters.calls.inc();
            if is_used_up {
                self.free_slot(route, endpoint, token);
            }
            self.mark_dirty(token);
            self.send_queued_data(key, CallDirection::Up, now);
        }
    }

    /// Handles an upstream's GOAWAY: new calls use another connection, and so do calls that the upstream did not
    /// process.
    pub(super) fn on_upstream_goaway(
        &mut self,
        token: u64,
        last_stream: u32,
        code: ErrorCode,
        now: Time,
    ) {
        let Some(mut connection) = self.connections.check_out(token) else {
            return;
        };
        let mut unseen = Vec::new();
        let mut waiting = VecDeque::new();
        // A GOAWAY from a client needs no handling: it only means that the client opens no more streams.
        if let (Some(endpoint), RelayRole::Http2(http2)) =
            (connection.endpoint, &mut connection.role)
        {
            waiting.append(&mut http2.waiting);
            waiting.append(&mut http2.headers_only);
            unseen = http2
                .session
                .call_keys_from_stream(last_stream.saturating_add(1));
            if code != ErrorCode::NO_ERROR {
                self.blame_clients_around_stream(connection.route, last_stream, http2, now);
            }
            self.free_slot(connection.route, endpoint, token);
            connection.end_reservation(&mut self.routes);
        }
        self.connections.put_back(token, connection);
        for key in unseen {
            self.resend_unprocessed(token, key, now);
        }
        for key in waiting {
            self.redispatch_waiting_call(token, key, now);
        }
    }

    /// Sends a call again that the upstream did not process. If that is impossible, the call is refused so that its
    /// client can retry it, as gRPC libraries do automatically (RFC 9113, 8.7).
    fn resend_unprocessed(&mut self, token: u64, key: u64, now: Time) {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        let up = exchange.up;
        if up.token != token || exchange.has_answer_begun {
            return;
        }
        exchange.up = StreamRef::NONE;
        if let Some((_, http2)) = http2_mut(&mut self.connections, token) {
            http2.remove_stream(up.stream, key);
        }
        // If this call may have caused the upstream's error, its client is isolated by now, and the call goes to an
        // upstream connection of its own.
        if self.try_resend(key, now) {
            return;
        }
        if let Some(exchange) = self.exchanges.get_mut(key) {
            exchange.status = Some("NOT PROCESSED BY UPSTREAM".to_owned());
            let route = exchange.route;
            add_to_counter(&self.counters(route).reset, 1);
        }
        self.reset_call(key, ErrorCode::REFUSED_STREAM, now);
    }

    /// Sends an unprocessed call to an upstream again. Returns `false` if its data was not retained
    /// or it was tried too often.
    pub(super) fn try_resend(&mut self, key: u64, now: Time) -> bool {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return false;
        };
        let is_spent = exchange.has_answer_begun || exchange.attempts >= MAX_ATTEMPTS;
        if is_spent || !exchange.up_queue.rewind() {
            return false;
        }
        exchange.up = StreamRef::NONE;
        let route = exchange.route;
        add_to_counter(&self.counters(route).resent, 1);
        self.dispatch(key, now);
        true
    }

    fn redispatch_waiting_call(&mut self, token: u64, key: u64, now: Time) {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        if exchange.up.token != token || exchange.up.stream != 0 {
            return;
        }
        exchange.up = StreamRef::NONE;
        if exchange.attempts < MAX_ATTEMPTS {
            self.dispatch(key, now);
            return;
        }
        self.reject_call(key, RejectReason::NoUpstream, now);
    }

    /// Handles the loss of a connection: its calls end, or are moved to another connection.
    pub(super) fn on_http2_connection_lost(
        &mut self,
        token: u64,
        route: usize,
        endpoint: Option<usize>,
        http2: Http2State,
        now: Time,
    ) {
        let keys = http2.session.call_keys_from_stream(0);
        let Some(endpoint) = endpoint else {
            for key in keys {
                self.on_stream_reset(token, key, ErrorCode::CANCEL, now);
            }
            return;
        };
        for key in http2.session.call_keys_from_stream(http2.first_unsent) {
            self.try_resend(key, now);
        }
        let mut lost = 0;
        for key in keys {
            let Some(exchange) = self.exchanges.get_mut(key) else {
                continue;
            };
            if exchange.up.token != token {
                continue;
            }
            exchange.up = StreamRef::NONE;
            if !exchange.down_queue.has_ended() {
                lost += 1;
                self.reject_call(key, RejectReason::UpstreamClosed, now);
            }
        }
        if lost > 0 {
            self.on_failed_calls(route, endpoint, lost, now);
        }
        for key in http2.waiting.into_iter().chain(http2.headers_only) {
            self.redispatch_waiting_call(token, key, now);
        }
    }

    /// Removes a call from the lists of those that wait for a stream.
    pub(super) fn remove_waiting_call(&mut self, token: u64, key: u64) {
        if let Some((_, http2)) = http2_mut(&mut self.connections, token) {
            http2.waiting.retain(|other| *other != key);
            http2.headers_only.retain(|other| *other != key);
        }
    }

    /// Handles the first data of a waiting call, which gives the call precedence over calls that have sent only header
    /// fields.
    pub(super) fn promote_waiting_call(&mut self, token: u64, key: u64, now: Time) {
        if let Some((_, http2)) = http2_mut(&mut self.connections, token) {
            http2.headers_only.retain(|other| *other != key);
            http2.waiting.push_back(key);
            self.open_waiting_streams(token, now);
        }
    }

    /// Sends PINGs on an idle upstream connection and detects a connection that is no longer used; returns `false` if
    /// the connection must be closed.
    pub(super) fn check_http2_connection(&mut self, token: u64, now: Time) -> bool {
        let Some(connection) = self.connections.get_mut(token) else {
            return true;
        };
        let (RelayRole::Http2(http2), Some(endpoint)) = (&mut connection.role, connection.endpoint)
        else {
            return true;
        };
        let state = &self.routes[connection.route];
        let slots = &state.endpoints[endpoint].slots;
        if http2.call_count() == 0 && !slots.contains(&Some(token)) {
            connection.is_unneeded = true;
            return false;
        }
        let heard = connection.last_active;
        let mut has_more = http2.send_waiting_resets(heard, now, &mut connection.transport.out);
        if http2.session.awaits_ping_ack {
            if now >= http2.ping_deadline {
                let name = &state.setup.route.name;
                tracing::warn!("route {name}: an upstream does not answer PING");
                return false;
            }
        } else if (http2.session.may_ping() || http2.may_ping_during_call(now))
            && now >= connection.last_active + state.setup.route.heartbeat()
        {
            http2.session.send_ping(&mut connection.transport.out);
            http2.ping_deadline = now.plus_nanos(PING_TIMEOUT_NS);
            has_more = true;
        }
        if has_more {
            self.mark_dirty(token);
            // Streams that were reset make room for waiting calls.
            self.open_waiting_streams(token, now);
        }
        true
    }

    /// Sends GOAWAY to clients: first with the highest stream id, and a tick later with the last processed stream.
    pub(super) fn send_goaways(&mut self, of: impl Fn(usize) -> bool) {
        for token in self.connections.keys() {
            let Some(connection) = self.connections.get_mut(token) else {
                continue;
            };
            let route = connection.route;
            let RelayRole::Http2(http2) = &mut connection.role else {
                continue;
            };
            if http2.session.side() == EitherRole::Client || http2.goaway_sent || !of(route) {
                continue;
            }
            let out = &mut connection.transport.out;
            match http2.goaway_announced {
                true => http2
                    .session
                    .http2
                    .send_goaway(ErrorCode::NO_ERROR, b"", out),
                // The two steps ensure that no request is lost (RFC 9113, 6.8).
                false => http2.session.http2.announce_goaway(out),
            }
            http2.goaway_sent = http2.goaway_announced;
            http2.goaway_announced = true;
            self.mark_dirty(token);
        }
    }
}
