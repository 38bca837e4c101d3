//! Multiplexes calls of framed protocols: many client connections share few upstream connections, and each call is
//! identified by its id.
//!
//! A frame is passed on unchanged except for its id. The sidecar answers heartbeats itself, and sends its own on
//! upstream connections.
//!
//! This file is long because requests and answers use the same table of calls.

use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::{
    FaultOrigin, FrameError, FrameSender, RejectReason, RelayFrameKind,
};
use plimsoll_protocols::registry::RelayCodec;

use super::super::access_log::AccessLogEntry;
use super::super::add_to_counter;
use super::super::upstream_calls::UpstreamCall;

use super::faults::FaultAction;
use super::peer_errors::ConnectionPeer;
use super::{
    CONNECT_TIMEOUT, CallFrame, HIGH_WATER_BYTES, RelayConnection, RelayRole, RequestDisposition,
    UpstreamChoice, Worker,
};

/// How long the answer to a heartbeat may take, in nanoseconds: three times the timeout of
/// SOFABolt's own clients, which try three times.
const HEARTBEAT_TIMEOUT_NS: u64 = 3_000_000_000;

/// An id outside the table's index range, so that no call has it.
const HEARTBEAT_ID: u64 = u32::MAX as u64;

impl Worker {
    /// Handles the frames that a connection received; returns `false` if it must be closed.
    pub(super) fn relay_frames(
        &mut self,
        connection: &mut RelayConnection,
        codec: &RelayCodec,
        now: Time,
    ) -> bool {
        let input = std::mem::take(&mut connection.transport.input);
        let from = match connection.role {
            RelayRole::Up { .. } => FrameSender::Server,
            _ => FrameSender::Client,
        };
        let before = connection.transport.out.len();
        let (mut at, mut fine) = (connection.skip_bytes(input.len()), true);
        loop {
            let taken = next_frame(connection, codec, from, &input[at..]).and_then(|frame| {
                let Some(frame) = frame else {
                    return Ok(None);
                };
                let is_taken = match from {
                    FrameSender::Client => self.handle_request(connection, codec, frame, now)?,
                    FrameSender::Server => {
                        self.handle_upstream_frame(connection, codec, frame, now)?;
                        true
                    }
                };
                Ok(is_taken.then_some(frame.bytes.len()))
            });
            match taken {
                Ok(Some(length)) => at += length,
                Ok(None) => break,
                Err(broken) => {
                    if self.fail_call(connection, codec, &broken, &input[at..], now) {
                        at += connection.skip_bytes(input.len() - at);
                        continue;
                    }
                    if from == FrameSender::Client && broken.origin == FaultOrigin::Peer {
                        self.count_malformed_frame(connection, now);
                    }
                    self.report_frame_error(
                        connection.route,
                        ConnectionPeer::from_connection(connection),
                        &broken,
                        now,
                    );
                    fine = false;
                    break;
                }
            }
        }
        connection.transport.input = input;
        connection.transport.consume(at);
        let counters = self.counters(connection.route);
        match from {
            FrameSender::Client => {
                add_to_counter(&counters.bytes_down, at as u64);
                connection.is_paused = connection.has_full_buffers();
            }
            FrameSender::Server => {
                add_to_counter(&counters.bytes_up, at as u64);
                connection.reply_bytes += connection.transport.out.len() - before;
                connection.is_paused = connection.reply_bytes > HIGH_WATER_BYTES;
            }
        }
        fine
    }

    /// Handles a client's frame; returns `false` if it waits until an upstream can take it.
    fn handle_request(
        &mut self,
        connection: &mut RelayConnection,
        codec: &RelayCodec,
        frame: CallFrame<'_>,
        now: Time,
    ) -> Result<bool, FrameError> {
        let taken = self.handle_client_frame(connection, codec, frame, now)?;
        if let RequestDisposition::Held = taken {
            self.queue_request(connection, now);
            return Ok(false);
        }
        connection.held_since = Time::NEVER;
        if let (RequestDisposition::AwaitsAnswer, RelayRole::Down { in_flight }) =
            (taken, &mut connection.role)
        {
            *in_flight += 1;
        }
        Ok(true)
    }

    /// Answers a call with a failure, because its frame cannot be passed on, and skips the frame. Returns `false` if
    /// the frame belongs to no call or its length is unknown.
    fn fail_call(
        &mut self,
        connection: &mut RelayConnection,
        codec: &RelayCodec,
        broken: &FrameError,
        bytes: &[u8],
        now: Time,
    ) -> bool {
        let Some((seen, why)) = broken.call else {
            return false;
        };
        let route = connection.route;
        let answered = match (&mut connection.role, seen.kind) {
            (RelayRole::Down { .. }, RelayFrameKind::Request { .. } | RelayFrameKind::Oneway) => {
                let frame = CallFrame { info: seen, bytes };
                self.reject_request(connection, codec, frame, why, now)
                    .is_ok()
            }
            (RelayRole::Up { calls, .. }, RelayFrameKind::Response { .. }) => {
                match calls.remove(seen.id) {
                    Some(call) => {
                        self.on_call_answered(route, connection.endpoint);
                        self.counters(route).in_flight.dec();
                        self.send_rejection(route, &call, connection.endpoint, why);
                    }
                    None => add_to_counter(&self.counters(route).stray, 1),
                }
                true
            }
            _ => false,
        };
        if answered {
            connection.skip = seen.length;
            let peer = ConnectionPeer::from_connection(connection);
            match why {
                RejectReason::FrameTooLarge => {
                    self.report_too_long_frame(route, peer, &broken.why, now)
                }
                _ => self.report_frame_error(route, peer, broken, now),
            }
        }
        answered
    }

    fn handle_client_frame(
        &mut self,
        from: &mut RelayConnection,
        codec: &RelayCodec,
        frame: CallFrame<'_>,
        now: Time,
    ) -> Result<RequestDisposition, FrameError> {
        let seen = frame.info;
        match seen.kind {
            RelayFrameKind::Heartbeat => {
                codec.write_heartbeat_ack(seen.id, seen.flavor, &mut from.transport.out)?;
                return Ok(RequestDisposition::Done);
            }
            RelayFrameKind::Request { .. } | RelayFrameKind::Oneway => {}
            RelayFrameKind::Response { .. }
            | RelayFrameKind::HeartbeatAck
            | RelayFrameKind::GoAway
            | RelayFrameKind::Other => {
                add_to_counter(&self.counters(from.route).stray, 1);
                return Ok(RequestDisposition::Done);
            }
        }
        // A fault is chosen once for each request, before it can be held.
        let since = from.held_since;
        let fault = match since {
            Time::NEVER => self.choose_fault(from.route),
            _ => FaultAction::Forward,
        };
        match fault {
            FaultAction::Forward => self.forward_request(from, codec, frame, since, now),
            FaultAction::Abort => {
                self.reject_request(from, codec, frame, RejectReason::InjectedFault, now)
            }
            FaultAction::Delay(time) => {
                self.delay_frame(from, frame, now + time);
                Ok(RequestDisposition::AwaitsAnswer)
            }
        }
    }

    /// Sends a request to an upstream. `since` is when the request began to wait for one, or `NEVER`.
    pub(super) fn forward_request(
        &mut self,
        from: &mut RelayConnection,
        codec: &RelayCodec,
        frame: CallFrame<'_>,
        since: Time,
        now: Time,
    ) -> Result<RequestDisposition, FrameError> {
        let CallFrame { info: seen, bytes } = frame;
        let (wants_answer, timeout) = match seen.kind {
            RelayFrameKind::Request { timeout } => (true, timeout),
            _ => (false, None),
        };
        let route = from.route;
        let patience = timeout.unwrap_or(self.routes[route].setup.route.timeout());
        let layout = codec.layout_index(seen.flavor);
        let found = match self.find_reserved_upstream(from, layout, now) {
            Some(found) => found,
            None => self.find_upstream(route, layout, now),
        };
        let refused = match found {
            UpstreamChoice::Connecting if now < since + CONNECT_TIMEOUT => {
                return Ok(RequestDisposition::Held);
            }
            UpstreamChoice::Congested if now < since + patience => {
                return Ok(RequestDisposition::Held);
            }
            UpstreamChoice::Congested => RejectReason::Timeout,
            UpstreamChoice::Connecting => RejectReason::NoUpstream,
            UpstreamChoice::Refused(why) => why,
            UpstreamChoice::Upstream(up) => {
                let call = UpstreamCall {
                    client: from.token,
                    id: seen.id,
                    flavor: seen.flavor,
                    began: now,
                    deadline: now + patience,
                    bytes: bytes.len() as u32,
                };
                if self.write_to_upstream(up, codec, call, wants_answer, bytes)? {
                    let counters = self.counters(route);
                    let (counter, taken) = if wants_answer {
                        (&counters.requests, RequestDisposition::AwaitsAnswer)
                    } else {
                        (&counters.oneway, RequestDisposition::Done)
                    };
                    add_to_counter(counter, 1);
                    return Ok(taken);
                }
                RejectReason::Busy
            }
        };
        self.reject_request(from, codec, frame, refused, now)
    }

    /// Answers a client's request in place of an upstream.
    fn reject_request(
        &mut self,
        from: &mut RelayConnection,
        codec: &RelayCodec,
        CallFrame { info: seen, bytes }: CallFrame<'_>,
        refused: RejectReason,
        now: Time,
    ) -> Result<RequestDisposition, FrameError> {
        let route = from.route;
        let wants_answer = matches!(seen.kind, RelayFrameKind::Request { .. });
        self.counters(route).count_rejections(refused, 1);
        let before = from.transport.out.len();
        if wants_answer {
            codec.write_rejection(seen.id, seen.flavor, refused, &mut from.transport.out)?;
        }
        if self.has_access_log() {
            let answer = &from.transport.out[before..];
            let line = AccessLogEntry {
                client: from.client_address(),
                call: Some(seen.id.to_string()),
                status: codec.status(answer),
                by_sidecar: true,
                bytes_up: bytes.len() as u64,
                bytes_down: answer.len() as u64,
                ..AccessLogEntry::default()
            };
            self.write_access_log(route, None, now, line);
        }
        Ok(RequestDisposition::Done)
    }

    /// Appends a request to an upstream connection; returns `false` if the connection has no room or is closed.
    fn write_to_upstream(
        &mut self,
        up: u64,
        codec: &RelayCodec,
        call: UpstreamCall,
        wants_answer: bool,
        bytes: &[u8],
    ) -> Result<bool, FrameError> {
        let Some(connection) = self.connections.get_mut(up) else {
            return Ok(false);
        };
        let (
            RelayRole::Up {
                calls, last_oneway, ..
            },
            Some(endpoint),
        ) = (&mut connection.role, connection.endpoint)
        else {
            return Ok(false);
        };
        let route = connection.route;
        let id = calls.insert(call);
        let written = codec.renumber(bytes, call.flavor, id, &mut connection.transport.out);
        if !wants_answer || written.is_err() {
            calls.remove(id);
            *last_oneway = Some((call.client, call.began));
        }
        written?;
        self.routes[route].endpoints[endpoint].counters.calls.inc();
        if wants_answer {
            self.counters(route).in_flight.inc();
        }
        self.mark_dirty(up);
        Ok(true)
    }

    fn handle_upstream_frame(
        &mut self,
        up: &mut RelayConnection,
        codec: &RelayCodec,
        CallFrame { info: seen, bytes }: CallFrame<'_>,
        now: Time,
    ) -> Result<(), FrameError> {
        let (
            RelayRole::Up {
                calls,
                pending_heartbeat: beat,
                ..
            },
            Some(endpoint),
        ) = (&mut up.role, up.endpoint)
        else {
            return Ok(());
        };
        match seen.kind {
            RelayFrameKind::HeartbeatAck => {
                if beat.is_some_and(|(id, _)| id == seen.id) {
                    *beat = None;
                }
            }
            RelayFrameKind::Response { status } => match calls.remove(seen.id) {
                Some(call) => {
                    self.on_call_answered(up.route, up.endpoint);
                    self.counters(up.route).in_flight.dec();
                    self.record_answered_call(up.route, call.began, status, now);
                    self.record_client_answer(call.client, now);
                    let delivered =
                        self.deliver_answer(up.route, &call, up.endpoint, false, |out| {
                            codec.renumber(bytes, seen.flavor, call.id, out)
                        });
                    if delivered.is_err() {
                        // The call is answered here, so that it does not wait until it times out.
                        add_to_counter(&self.counters(up.route).cut, 1);
                        self.send_rejection(
                            up.route,
                            &call,
                            up.endpoint,
                            RejectReason::UpstreamClosed,
                        );
                    }
                    delivered?;
                }
                // The answer is late or a duplicate.
                None => add_to_counter(&self.counters(up.route).stray, 1),
            },
            RelayFrameKind::GoAway => {
                // New calls use another connection; those in flight finish on this one.
                self.free_slot(up.route, endpoint, up.token);
                up.end_reservation(&mut self.routes);
            }
            RelayFrameKind::Heartbeat => {
                codec.write_heartbeat_ack(seen.id, seen.flavor, &mut up.transport.out)?
            }
            RelayFrameKind::Request { .. } => {
                codec.write_rejection(
                    seen.id,
                    seen.flavor,
                    RejectReason::NoUpstream,
                    &mut up.transport.out,
                )?;
            }
            RelayFrameKind::Oneway | RelayFrameKind::Other => {}
        }
        Ok(())
    }

    /// Passes an answer on to the call's client, if it is still connected.
    fn deliver_answer(
        &mut self,
        route: usize,
        call: &UpstreamCall,
        endpoint: Option<usize>,
        by_sidecar: bool,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        let codec = self.routes[route].setup.codec.as_ref();
        let codec = codec.filter(|_| self.has_access_log()).cloned();
        let Some(client) = self.connection_mut(call.client) else {
            add_to_counter(&self.counters(route).stray, 1);
            return Ok(());
        };
        let before = client.transport.out.len();
        write(&mut client.transport.out)?;
        if let RelayRole::Down { in_flight } = &mut client.role {
            *in_flight = in_flight.saturating_sub(1);
        }
        // Stop reading requests from a client that does not read its answers.
        client.is_paused |= client.transport.unsent_bytes() > HIGH_WATER_BYTES;
        let line = codec.map(|codec| {
            let answer = &client.transport.out[before..];
            AccessLogEntry {
                client: client.client_address(),
                call: Some(call.id.to_string()),
                status: codec.status(answer),
                by_sidecar,
                bytes_up: call.bytes.into(),
                bytes_down: answer.len() as u64,
                ..AccessLogEntry::default()
            }
        });
        if let Some(line) = line {
            self.write_access_log(route, endpoint, call.began, line);
        }
        self.mark_dirty(call.client);
        add_to_counter(&self.counters(route).answers, 1);
        Ok(())
    }

    fn send_rejection(
        &mut self,
        route: usize,
        call: &UpstreamCall,
        endpoint: Option<usize>,
        why: RejectReason,
    ) {
        let Some(codec) = self.routes[route].setup.codec.clone() else {
            return;
        };
        let refused = self.deliver_answer(route, call, endpoint, true, |out| {
            codec.write_rejection(call.id, call.flavor, why, out)
        });
        if let Err(broken) = refused {
            // Without an answer the client would wait forever, so its connection is closed.
            let now = self.shared.clock.now();
            if let Some(client) = self.connection_mut(call.client) {
                let peer = ConnectionPeer::from_connection(client);
                self.report_frame_error(route, peer, &broken, now);
            }
            if let Some(client) = self.connection_mut(call.client) {
                client.peer_ended = true;
                client.ends_after_output = true;
                if let RelayRole::Down { in_flight } = &mut client.role {
                    *in_flight = in_flight.saturating_sub(1);
                }
                self.mark_dirty(call.client);
            }
        }
    }

    /// Refuses calls that their upstream will not answer.
    pub(super) fn refuse_calls(
        &mut self,
        route: usize,
        endpoint: usize,
        calls: &[UpstreamCall],
        why: RejectReason,
    ) {
        let counters = self.counters(route);
        counters.in_flight.dec_by(calls.len() as i64);
        counters.count_rejections(why, calls.len() as u64);
        for call in calls {
            self.send_rejection(route, call, Some(endpoint), why);
        }
    }

    /// Checks the timeouts and heartbeats of an upstream connection; returns `false` if it must be
    /// closed.
    pub(super) fn check_connection(&mut self, token: u64, now: Time) -> bool {
        let Some(connection) = self.connections.get_mut(token) else {
            return true;
        };
        let route = connection.route;
        let (
            RelayRole::Up {
                layout,
                calls,
                pending_heartbeat: beat,
                ..
            },
            Some(endpoint),
        ) = (&mut connection.role, connection.endpoint)
        else {
            return true;
        };
        let due = calls.remove_if(|call| call.deadline <= now);
        let state = &self.routes[route];
        let idle_since = connection.last_active + state.setup.route.heartbeat();
        let is_busy =
            !calls.is_empty() || !due.is_empty() || connection.transport.unsent_bytes() > 0;
        let mut keep = is_busy || state.endpoints[endpoint].slots.contains(&Some(token));
        // A request may be waiting for a connection that is being opened.
        keep |= connection.is_connecting || connection.transport.is_handshaking();
        connection.is_unneeded = !keep;
        match (*beat, &state.setup.codec) {
            (Some((_, until)), _) if now >= until => {
                tracing::warn!(
                    "route {}: an upstream does not answer heartbeats",
                    state.setup.route.name
                );
                keep = false;
            }
            (None, Some(codec)) if now >= idle_since && !connection.is_connecting => {
                connection.last_active = now;
                match codec.write_heartbeat(*layout, HEARTBEAT_ID, &mut connection.transport.out) {
                    Ok(true) => {
                        *beat = Some((HEARTBEAT_ID, now.plus_nanos(HEARTBEAT_TIMEOUT_NS)));
                        self.mark_dirty(token);
                    }
                    Ok(false) => {}
                    Err(broken) => {
                        let peer = ConnectionPeer::from_connection(connection);
                        self.report_frame_error(route, peer, &broken, now);
                        keep = false;
                    }
                }
            }
            _ => {}
        }
        self.refuse_calls(route, endpoint, &due, RejectReason::Timeout);
        if !due.is_empty() {
            self.on_failed_calls(route, endpoint, due.len(), now);
        }
        keep
    }
}

/// Returns the next frame that a connection received; `None` if it is incomplete.
#[inline]
fn next_frame<'a>(
    connection: &mut RelayConnection,
    codec: &RelayCodec,
    from: FrameSender,
    bytes: &'a [u8],
) -> Result<Option<CallFrame<'a>>, FrameError> {
    if !connection.is_recognised {
        connection.is_recognised = codec.recognise(from, bytes)?;
        if !connection.is_recognised {
            return Ok(None);
        }
    }
    let seen = codec.read(from, bytes)?;
    Ok(seen.map(|seen| CallFrame {
        info: seen,
        bytes: &bytes[..seen.length],
    }))
}
