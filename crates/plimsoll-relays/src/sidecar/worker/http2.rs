//! HTTP/2, and gRPC over it: streams of many connections downstream onto few upstream.
//!
//! What comes is passed on frame by frame. A frame that the other side has no room for
//! waits in its call's queue, and its sender's window stays closed by as much: so a
//! slow reader holds up its own call, and no other.
//!
//! Invariant: a call that was taken ends with an answer, the service's or the sidecar's,
//! unless its client has reset it; what the service resets is reset.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_wire::http2::{ErrorCode, Side, Stage, Violation, write};

use super::super::count;
use super::super::http2::{End, Event, Session, Way};
use super::super::transport::Transport;
use super::charges::Account;
use super::resets::{ResetCalls, Resets};
use super::{Connections, HIGH_WATER, Role, Worker};

const RARE_BEAT_INTERVAL: Duration = Duration::from_secs(300);

/// An HTTP/2 connection, either side.
pub(super) struct Http2 {
    pub(super) session: Session,
    /// Calls whose data waits to be sent here, in turn.
    blocked: VecDeque<u64>,
    /// Data waits because too many bytes wait for the socket.
    choked: bool,
    /// Calls upstream that have no stream yet, until the upstream has sent its SETTINGS, and while
    /// it takes no more.
    pub(super) waiting: VecDeque<u64>,
    /// The same of calls that have brought header fields alone. They may take half of the
    /// places, so that the others find one.
    pub(super) bare: VecDeque<u64>,
    /// The time by which the answer to a PING must have come.
    pub(super) beat_until: Time,
    /// What is still to be reset on a connection upstream.
    pub(super) resets: Resets,
    /// Whose calls alone a connection upstream carries.
    pub(super) owner: Option<Account>,
    /// Calls that were reset on a connection upstream.
    pub(super) reset_calls: ResetCalls,
    /// The lowest stream of which the socket was given nothing yet.
    pub(super) first_unsent: u32,
    /// GOAWAY was announced, and sent with the last stream's id.
    pub(super) leaving: bool,
    pub(super) left: bool,
}

impl Http2 {
    /// Returns a connection without calls; `side` is as in [`Session::new`].
    pub(super) fn new(side: Side) -> Http2 {
        Http2 {
            session: Session::new(side),
            blocked: VecDeque::new(),
            choked: false,
            waiting: VecDeque::new(),
            bare: VecDeque::new(),
            beat_until: Time::NEVER,
            resets: Resets::default(),
            owner: None,
            reset_calls: ResetCalls::default(),
            first_unsent: 0,
            leaving: false,
            left: false,
        }
    }

    /// Calls that it carries, and that wait for a stream on it.
    pub(super) fn calls(&self) -> usize {
        self.session.open_streams() + self.waiting.len() + self.bare.len()
    }

    /// Whether a call is under way on it, or its goodbye is.
    pub(super) fn is_busy(&self) -> bool {
        let goodbye = self.session.side() == Side::Server && !self.left;
        goodbye || self.session.open_streams() > 0
    }

    pub(super) fn is_choked(&self) -> bool {
        self.choked
    }

    /// An upstream that ends now does so without a word.
    pub(super) fn ends_silently(&self) -> bool {
        self.session.side() == Side::Client && self.session.http2.stage() == Stage::Open
    }

    /// A call has been in flight for long since the last PING: servers of gRPC allow one every five minutes.
    pub(super) fn beats_rarely(&self, now: Time) -> bool {
        let has_calls = self.session.open_streams() > 0;
        has_calls && self.session.is_greeted() && now >= self.beat_until + RARE_BEAT_INTERVAL
    }

    /// The upstream has not yet sent its SETTINGS.
    pub(super) fn is_ungreeted(&self) -> bool {
        self.session.side() == Side::Client && !self.session.is_greeted()
    }
}

impl Http2 {
    /// A call's stream was never looked at, and nothing of the call is to be sent here.
    pub(super) fn forget(&mut self, stream: u32, key: u64) {
        self.session.forget(stream);
        self.blocked.retain(|other| *other != key);
    }

    /// Resets a stream that the upstream has not answered, now or later. `ended`: this end has sent
    /// END_STREAM.
    pub(super) fn reset_unanswered(
        &mut self,
        stream: u32,
        code: ErrorCode,
        ended: write::End,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        // A connection that carries one client's calls is nobody else's.
        if self.owner.is_some() || self.resets.has_room() {
            self.resets.sent(now);
            self.session.reset(stream, code, out);
        } else {
            self.session.abandon(stream, ended);
            self.resets.wait(stream, code);
        }
    }

    /// Once a tick: resets more of the streams that wait for it. `heard`: when the upstream last sent
    /// something. Returns whether there is something to send.
    pub(super) fn reset_waiting(&mut self, heard: Time, now: Time, out: &mut Vec<u8>) -> bool {
        self.resets.heard(heard, now);
        let before = out.len();
        while let Some((stream, code)) = self.resets.next_waiting() {
            if self.session.is_abandoned(stream) {
                self.resets.sent(now);
                self.session.reset(stream, code, out);
            }
        }
        out.len() > before
    }
}

impl Worker {
    /// Frames that a connection brought.
    pub(super) fn take_frames(&mut self, token: u64, now: Time) {
        let Some(connection) = self.live(token) else {
            return;
        };
        if connection.connecting {
            return;
        }
        let (route, input) = (
            connection.route,
            std::mem::take(&mut connection.transport.input),
        );
        let (mut rest, mut violation, mut side) = (&input[..], None, Side::Server);
        let mut answered = 0;
        while let Some((transport, http2)) = http2_of(&mut self.connections, token) {
            side = http2.session.side();
            let before = transport.out.len();
            let next = http2.session.next(&mut rest, &mut transport.out);
            answered += transport.out.len() - before;
            let problem = match next {
                Ok(Some(event)) => self.event(token, event, now).err(),
                Ok(None) => break,
                Err(found) => Some(found),
            };
            if let Some(found) = problem {
                if let Some((transport, http2)) = http2_of(&mut self.connections, token) {
                    http2.session.http2.fail(&found, &mut transport.out);
                }
                violation = Some(found);
                break;
            }
        }
        self.dispatch_fresh(now);
        let used = input.len() - rest.len();
        let counters = self.counters(route);
        let counter = match side {
            Side::Server => &counters.bytes_down,
            Side::Client => &counters.bytes_up,
        };
        count(counter, used as u64);
        if let Some(violation) = &violation {
            self.report_garbage_of(token, violation, now);
        }
        let Some(connection) = self.live(token) else {
            return;
        };
        connection.transport.input = input;
        connection.transport.consume(used);
        connection.owed += answered;
        connection.paused = match side {
            Side::Server => connection.transport.unsent() > HIGH_WATER,
            Side::Client => connection.owed > HIGH_WATER,
        };
        if connection.ended || violation.is_some() {
            // The last frames, GOAWAY with its reason above all. An upstream that has ended gets no more calls.
            if side == Side::Server || violation.is_some() {
                let _ = connection.flush();
            }
            self.close(token, now);
            return;
        }
        self.open_waiting(token, now);
        self.mark(token);
    }

    /// # Errors
    /// The connection must not go on.
    fn event(&mut self, token: u64, event: Event<'_>, now: Time) -> Result<(), Violation> {
        match event {
            Event::Opened {
                stream,
                fields,
                end_stream,
            } => return self.opened(token, stream, fields, write::End(end_stream), now),
            Event::Headers {
                key,
                fields,
                end_stream,
            } => return self.fields(token, key, fields, write::End(end_stream), now),
            Event::Data {
                key,
                data,
                end_stream,
            } => return self.carry(token, key, data, write::End(end_stream), now),
            Event::Reset { key, code } => {
                self.reset_by(token, key, code, now);
                return self.charge(token, 1, now);
            }
            Event::Room => self.send_blocked(token, now),
            Event::GoAway { last_stream, code } => {
                self.upstream_leaves(token, last_stream, code, now);
            }
        }
        Ok(())
    }

    // ---- data ----

    /// Passes data on, or keeps it until there is room.
    ///
    /// # Errors
    /// The connection must not go on.
    fn carry(
        &mut self,
        token: u64,
        key: u64,
        data: &[u8],
        end: write::End,
        now: Time,
    ) -> Result<(), Violation> {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return Ok(());
        };
        let way = exchange.way_from(token);
        exchange.request_until = Time::NEVER;
        let problem = match way {
            Way::Down if !exchange.begun => Some("DATA before HEADERS (RFC 9113, 8.1)"),
            _ => exchange.count(way, data, end),
        };
        if let Some(problem) = problem {
            let (from, ..) = exchange.parts(way);
            self.give_back(from, data.len());
            return match way {
                Way::Up => self.bad_request(token, key, problem, now),
                Way::Down => {
                    self.bad_answer(key, problem, now);
                    Ok(())
                }
            };
        }
        if way == Way::Up && exchange.up.stream == 0 {
            // It has more than header fields now.
            exchange.to_up.push(data, end);
            let (is_fresh, up) = (exchange.is_fresh, exchange.up.token);
            if !is_fresh {
                self.promote(up, key, now);
            }
            return Ok(());
        }
        let (from, to, queue) = exchange.parts(way);
        let target = match to.stream {
            0 => None,
            _ => http2_of(&mut self.connections, to.token),
        };
        let fits = target.filter(|(transport, http2)| {
            queue.is_empty()
                && http2.session.room(to.stream) >= data.len()
                && transport.out.len() < HIGH_WATER
        });
        let Some((transport, http2)) = fits else {
            queue.push(data, end);
            self.send_queued(key, way, now);
            return Ok(());
        };
        let out = &mut transport.out;
        (http2.session).data(to.stream, data, end, out);
        queue.note_sent(data, end);
        self.mark(to.token);
        if let Some((_, http2)) = http2_of(&mut self.connections, from.token) {
            http2.session.flows(from.stream);
        }
        self.give_back(from, data.len());
        if end.0 {
            self.half_over(key, way, now);
        }
        Ok(())
    }

    /// Sends what waits on a call, one way, as far as there is room.
    pub(super) fn send_queued(&mut self, key: u64, way: Way, now: Time) {
        let Some(exchange) = self.exchanges.get_mut(key) else {
            return;
        };
        let (from, to, queue) = exchange.parts(way);
        if to.stream == 0 || queue.is_empty() {
            return;
        }
        let Some((transport, http2)) = http2_of(&mut self.connections, to.token) else {
            return;
        };
        let out = &mut transport.out;
        let before = out.len();
        let went = queue.send(&mut http2.session, to.stream, out, HIGH_WATER);
        let wrote = out.len() > before;
        if !queue.is_empty() && !queue.listed {
            queue.listed = true;
            http2.blocked.push_back(key);
        }
        http2.choked |= !queue.is_empty() && out.len() >= HIGH_WATER;
        let ended = queue.ended;
        if wrote {
            self.mark(to.token);
        }
        if went > 0 {
            self.give_back(from, went);
        }
        if ended {
            self.half_over(key, way, now);
        }
    }

    /// A connection has room again: what waits for it is sent.
    pub(super) fn send_blocked(&mut self, token: u64, now: Time) {
        let Some((_, http2)) = http2_of(&mut self.connections, token) else {
            return;
        };
        http2.choked = false;
        let way = match http2.session.side() {
            Side::Server => Way::Down,
            Side::Client => Way::Up,
        };
        for key in std::mem::take(&mut http2.blocked) {
            if let Some(exchange) = self.exchanges.get_mut(key) {
                exchange.parts(way).2.listed = false;
                self.send_queued(key, way, now);
            }
        }
    }

    /// As much as was passed on may come again.
    fn give_back(&mut self, from: End, length: usize) {
        let Some((transport, http2)) = http2_of(&mut self.connections, from.token) else {
            return;
        };
        let out = &mut transport.out;
        let before = out.len();
        http2.session.give_back(from.stream, length, out);
        if out.len() > before {
            self.mark(from.token);
        }
    }
}

/// A connection's buffers and its HTTP/2 state, apart from the rest of the worker.
pub(super) fn http2_of(
    connections: &mut Connections,
    token: u64,
) -> Option<(&mut Transport, &mut Http2)> {
    let connection = connections.get_mut(token)?;
    match &mut connection.role {
        Role::Http2(http2) => Some((&mut connection.transport, http2)),
        _ => None,
    }
}
