//! Relays HTTP/2, and gRPC over it: streams of many client connections onto few upstream
//! connections.
//!
//! Data is relayed frame by frame. A frame for which the other side has no room waits in its call's queue, and the
//! sender's window stays smaller by its length, so a slow reader delays only its own call.
//!
//! Invariant: an accepted call ends with an answer of the service or the sidecar, unless its client has reset it. If
//! the service resets a call, the sidecar resets it towards the client.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_wire::http2::{ConnectionStage, EitherRole, ErrorCode, Violation, write};

use super::super::add_to_counter;
use super::super::http2::{CallDirection, Http2Session, Http2SessionEvent, StreamRef};
use super::super::transport::Transport;
use super::abuse::ClientNetwork;
use super::resets::{PendingResets, RecentlyResetCalls};
use super::{Connections, HIGH_WATER_BYTES, RelayRole, Worker};

/// How often gRPC servers tolerate a PING while a call is open and no data arrives.
const IN_CALL_PING_INTERVAL: Duration = Duration::from_secs(300);

/// The state of an HTTP/2 connection on either side.
pub(super) struct Http2State {
    pub(super) session: Http2Session,
    /// Calls whose data waits to be sent on this connection, served in turn.
    blocked: VecDeque<u64>,
    /// Data waits because the socket has too many unsent bytes.
    is_congested: bool,
    /// Calls that wait for an upstream stream: until the upstream has sent its SETTINGS, and while
    /// it accepts no more.
    pub(super) waiting: VecDeque<u64>,
    /// Like `waiting`, for calls that consist of header fields alone. They may use only half of the
    /// streams, so that the others find one.
    pub(super) headers_only: VecDeque<u64>,
    /// When the answer to a PING times out.
    pub(super) ping_deadline: Time,
    /// Streams still to be reset on an upstream connection.
    pub(super) resets: PendingResets,
    /// The client address that an upstream connection is reserved for.
    pub(super) owner: Option<ClientNetwork>,
    /// Calls that were recently reset on an upstream connection.
    pub(super) reset_calls: RecentlyResetCalls,
    /// The id of the lowest stream without any byte written to the socket yet.
    pub(super) first_unsent: u32,
    /// The first GOAWAY was sent. `goaway_sent`: the second one, with the last stream's id, was sent as well.
    pub(super) goaway_announced: bool,
    pub(super) goaway_sent: bool,
}

impl Http2State {
    /// Returns the state of a connection without calls; `side` is as in [`Http2Session::new`].
    pub(super) fn new(side: EitherRole) -> Http2State {
        Http2State {
            session: Http2Session::new(side),
            blocked: VecDeque::new(),
            is_congested: false,
            waiting: VecDeque::new(),
            headers_only: VecDeque::new(),
            ping_deadline: Time::NEVER,
            resets: PendingResets::default(),
            owner: None,
            reset_calls: RecentlyResetCalls::default(),
            first_unsent: 0,
            goaway_announced: false,
            goaway_sent: false,
        }
    }

    /// Returns the number of calls on the connection, including those that wait for a stream.
    pub(super) fn call_count(&self) -> usize {
        self.session.open_stream_count() + self.waiting.len() + self.headers_only.len()
    }

    /// Returns whether calls are in flight or a GOAWAY is still to be sent.
    pub(super) fn is_busy(&self) -> bool {
        let lacks_goaway = self.session.side() == EitherRole::Server && !self.goaway_sent;
        lacks_goaway || self.session.open_stream_count() > 0
    }

    pub(super) fn is_congested(&self) -> bool {
        self.is_congested
    }

    /// Returns whether the upstream would end the connection without a GOAWAY if it ended now.
    pub(super) fn would_end_without_goaway(&self) -> bool {
        self.session.side() == EitherRole::Client
            && self.session.http2.stage() == ConnectionStage::Open
    }

    /// Returns whether a call is open and the last PING was so long ago that a gRPC server, which allows a PING every
    /// five minutes, accepts another one.
    pub(super) fn may_ping_during_call(&self, now: Time) -> bool {
        let has_calls = self.session.open_stream_count() > 0;
        has_calls
            && self.session.has_peer_settings()
            && now >= self.ping_deadline + IN_CALL_PING_INTERVAL
    }

    /// Returns whether the upstream's SETTINGS are still missing.
    pub(super) fn awaits_settings(&self) -> bool {
        self.session.side() == EitherRole::Client && !self.session.has_peer_settings()
    }
}

impl Http2State {
    /// Removes a stream that was not processed, and its call from the queue.
    pub(super) fn remove_stream(&mut self, stream: u32, key: u64) {
        self.session.remove_stream(stream);
        self.blocked.retain(|other| *other != key);
    }

    /// Resets a stream that the upstream has not answered, now or later. `ended` says whether this
    /// end has sent END_STREAM.
    pub(super) fn reset_unanswered_stream(
        &mut self,
        stream: u32,
        code: ErrorCode,
        ended: write::EndStream,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        // A connection reserved for one client cannot harm others.
        if self.owner.is_some() || self.resets.may_reset_now() {
            self.resets.count_sent_reset(now);
            self.session.reset(stream, code, out);
        } else {
            self.session.abandon_stream(stream, ended);
            self.resets.enqueue(stream, code);
        }
    }

    /// Resets more of the streams that wait to be reset; called once a tick. `heard` is the time when the upstream last
    /// sent something. Returns whether there is output to send.
    pub(super) fn send_waiting_resets(
        &mut self,
        heard: Time,
        now: Time,
        out: &mut Vec<u8>,
    ) -> bool {
        self.resets.on_upstream_activity(heard, now);
        let before = out.len();
        while let Some((stream, code)) = self.resets.next_waiting_reset() {
            if self.session.is_abandoned(stream) {
                self.resets.count_sent_reset(now);
                self.session.reset(stream, code, out);
            }
        }
        out.len() > before
    }
}

impl Worker {
    /// Handles the frames that a connection received.
    pub(super) fn handle_frames(&mut self, token: u64, now: Time) {
        let Some(connection) = self.connection_mut(token) else {
            return;
        };
        if connection.is_connecting {
            return;
        }
        let (route, input) = (
            connection.route,
            std::mem::take(&mut connection.transport.input),
        );
        let (mut rest, mut violation, mut side) = (&input[..], None, EitherRole::Server);
        let mut answered = 0;
        while let Some((transport, http2)) = http2_mut(&mut self.connections, token) {
            side = http2.session.side();
            let before = transport.out.len();
            let next = http2.session.next_event(&mut rest, &mut transport.out);
            answered += transport.out.len() - before;
            let problem = match next {
                Ok(Some(event)) => self.on_event(token, event, now).err(),
                Ok(None) => break,
                Err(found) => Some(found),
            };
            if let Some(found) = problem {
                if let Some((transport, http2)) = http2_mut(&mut self.connections, token) {
                    http2
                        .session
                        .http2
                        .close_with_error(&found, &mut transport.out);
                }
                violation = Some(found);
                break;
            }
        }
        self.dispatch_new_calls(now);
        let used = input.len() - rest.len();
        let counters = self.counters(route);
        let counter = match side {
            EitherRole::Server => &counters.bytes_down,
            EitherRole::Client => &counters.bytes_up,
        };
        add_to_counter(counter, used as u64);
        if let Some(violation) = &violation {
            self.report_wrong_protocol_on(token, violation, now);
        }
        let Some(connection) = self.connection_mut(token) else {
            return;
        };
        connection.transport.input = input;
        connection.transport.consume(used);
        connection.reply_bytes += answered;
        connection.is_paused = match side {
            EitherRole::Server => connection.transport.unsent_bytes() > HIGH_WATER_BYTES,
            EitherRole::Client => connection.reply_bytes > HIGH_WATER_BYTES,
        };
        if connection.peer_ended || violation.is_some() {
            // These are the connection's last frames, above all GOAWAY with its reason. They are not sent to an
            // upstream that has ended.
            if side == EitherRole::Server || violation.is_some() {
                let _ = connection.flush();
            }
            self.close(token, now);
            return;
        }
        self.open_waiting_streams(token, now);
        self.mark_dirty(token);
    }

    /// Handles an event of a connection.
    ///
    /// # Errors
    /// Returns an error when the connection must be closed.
    fn on_event(
        &mut self,
        token: u64,
        event: Http2SessionEvent<'_>,
        now: Time,
    ) -> Result<(), Violation> {
        match event {
            Http2SessionEvent::Opened {
                stream,
                fields,
                end_stream,
            } => {
                return self.on_stream_opened(
                    token,
                    stream,
                    fields,
                    write::EndStream(end_stream),
                    now,
                );
            }
            Http2SessionEvent::Headers {
                key,
                fields,
                end_stream,
            } => {
                return self.on_header_fields(
                    token,
                    key,
                    fields,
                    write::EndStream(end_stream),
                    now,
                );
            }
            Http2SessionEvent::Data {
                key,
                data,
                end_stream,
            } => return self.on_data(token, key, data, write::EndStream(end_stream), now),
            Http2SessionEvent::Reset { key, code } => {
                self.on_stream_reset(token, key, code, now);
                return self.count_abusive_calls(token, 1, now);
            }
            Http2SessionEvent::WindowOpened => self.send_blocked_data(token, now),
            Http2SessionEvent::GoAway { last_stream, code } => {
                self.on_upstream_goaway(token, last_stream, code, now);
            }
        }
        Ok(())
    }

    // ---- data ----

    /// Passes data on, or queues it until there is room.
    ///
    /// # Errors
    /// Returns an error when the connection must be closed.
    fn on_data(
        &mut self,
        token: u64,
        key: u64,
        data: &[u8],
        end: write::EndStream,
        now: Time,
    ) -> Result<(), Violation> {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return Ok(());
        };
        let way = exchange.direction_from(token);
        exchange.request_until = Time::NEVER;
        let problem = match way {
            CallDirection::Down if !exchange.has_answer_begun => {
                Some("DATA before HEADERS (RFC 9113, 8.1)")
            }
            _ => exchange.count_data(way, data, end),
        };
        if let Some(problem) = problem {
            let (from, ..) = exchange.direction_parts(way);
            self.replenish_sender_windows(from, data.len());
            return match way {
                CallDirection::Up => self.reject_malformed_request(token, key, problem, now),
                CallDirection::Down => {
                    self.reject_answer(key, problem, now);
                    Ok(())
                }
            };
        }
        if way == CallDirection::Up && exchange.up.stream == 0 {
            // The call now has more than header fields.
            exchange.up_queue.push(data, end);
            let (is_fresh, up) = (exchange.is_fresh, exchange.up.token);
            if !is_fresh {
                self.promote_waiting_call(up, key, now);
            }
            return Ok(());
        }
        let (from, to, queue) = exchange.direction_parts(way);
        let target = match to.stream {
            0 => None,
            _ => http2_mut(&mut self.connections, to.token),
        };
        let fits = target.filter(|(transport, http2)| {
            queue.is_empty()
                && http2.session.sendable_bytes(to.stream) >= data.len()
                && transport.out.len() < HIGH_WATER_BYTES
        });
        let Some((transport, http2)) = fits else {
            queue.push(data, end);
            self.send_queued_data(key, way, now);
            return Ok(());
        };
        let out = &mut transport.out;
        (http2.session).send_data(to.stream, data, end, out);
        queue.record_sent(data, end);
        self.mark_dirty(to.token);
        if let Some((_, http2)) = http2_mut(&mut self.connections, from.token) {
            http2.session.widen_window(from.stream);
        }
        self.replenish_sender_windows(from, data.len());
        if end.0 {
            self.on_direction_done(key, way, now);
        }
        Ok(())
    }

    /// Sends the queued data of a call in one direction as far as there is room for it.
    pub(super) fn send_queued_data(&mut self, key: u64, way: CallDirection, now: Time) {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        let (from, to, queue) = exchange.direction_parts(way);
        if to.stream == 0 || queue.is_empty() {
            return;
        }
        let Some((transport, http2)) = http2_mut(&mut self.connections, to.token) else {
            return;
        };
        let out = &mut transport.out;
        let before = out.len();
        let went = queue.send(&mut http2.session, to.stream, out, HIGH_WATER_BYTES);
        let wrote = out.len() > before;
        if !queue.is_empty() && !queue.is_listed {
            queue.is_listed = true;
            http2.blocked.push_back(key);
        }
        http2.is_congested |= !queue.is_empty() && out.len() >= HIGH_WATER_BYTES;
        let ended = queue.end_sent;
        if wrote {
            self.mark_dirty(to.token);
        }
        if went > 0 {
            self.replenish_sender_windows(from, went);
        }
        if ended {
            self.on_direction_done(key, way, now);
        }
    }

    /// Sends queued data of a connection's calls when the connection has room again.
    pub(super) fn send_blocked_data(&mut self, token: u64, now: Time) {
        let Some((_, http2)) = http2_mut(&mut self.connections, token) else {
            return;
        };
        http2.is_congested = false;
        let way = match http2.session.side() {
            EitherRole::Server => CallDirection::Down,
            EitherRole::Client => CallDirection::Up,
        };
        for key in std::mem::take(&mut http2.blocked) {
            if let Some(exchange) = self.exchanges.get_mut(key) {
                exchange.direction_parts(way).2.is_listed = false;
                self.send_queued_data(key, way, now);
            }
        }
    }

    /// Reopens the sender's windows for data that was passed on.
    fn replenish_sender_windows(&mut self, from: StreamRef, length: usize) {
        let Some((transport, http2)) = http2_mut(&mut self.connections, from.token) else {
            return;
        };
        let out = &mut transport.out;
        let before = out.len();
        http2.session.replenish_window(from.stream, length, out);
        if out.len() > before {
            self.mark_dirty(from.token);
        }
    }
}

/// Returns a connection's buffers and HTTP/2 state, borrowed separately from the rest of the worker.
pub(super) fn http2_mut(
    connections: &mut Connections,
    token: u64,
) -> Option<(&mut Transport, &mut Http2State)> {
    let connection = connections.get_mut(token)?;
    match &mut connection.role {
        RelayRole::Http2(http2) => Some((&mut connection.transport, http2)),
        _ => None,
    }
}
