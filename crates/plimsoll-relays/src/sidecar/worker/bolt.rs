//! Bolt: many connections downstream onto few upstream.
//!
//! A frame is passed on as it came, with another id; with a checksum that is made anew.
//! Heartbeats are answered where they arrive, and sent where the sidecar is the client.

use plimsoll_model::Time;
use plimsoll_protocols::bolt::frame::MAX_CONTENT;
use plimsoll_protocols::bolt::{Command, Form, Frame, Kind, Status};

use super::super::calls::{Call, Calls};
use super::super::count;
use super::{Connection, HIGH_WATER, Role, Worker};

/// Layouts of frames that never share an upstream connection: a Java server answers all
/// requests of a connection in the layout of its first one.
pub(super) const LAYOUTS: usize = 3;

/// How long the answer to a heartbeat may take: three times as long as SOFABolt's own
/// clients wait, who try three times.
const HEARTBEAT_WAIT: u64 = 3_000_000_000;

fn layout(form: Form) -> usize {
    match form {
        Form::V1 => 0,
        Form::V2 { revision, .. } => usize::from(revision.min(2)),
    }
}

/// What became of a request.
enum Taken {
    /// An answer will come.
    Waits,
    /// Nothing will come: it was answered here, or wants no answer.
    Over,
}

impl Worker {
    /// Frames of a client; `false`: the connection is to be closed.
    pub(super) fn take_requests(&mut self, connection: &mut Connection, now: Time) -> bool {
        let input = std::mem::take(&mut connection.link.input);
        let (mut at, mut fine) = (0, true);
        loop {
            match Frame::parse(&input[at..], MAX_CONTENT) {
                Ok(Some((frame, length))) => {
                    let taken = self.request(connection, &frame, &input[at..at + length], now);
                    if let (Taken::Waits, Role::Down { in_flight }) = (taken, &mut connection.role)
                    {
                        *in_flight += 1;
                    }
                    at += length;
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!("closing a client's connection: {error}");
                    count(&self.counters(connection.route).malformed, 1);
                    fine = false;
                    break;
                }
            }
        }
        count(&self.counters(connection.route).bytes_down, at as u64);
        connection.link.input = input;
        connection.link.consume(at);
        connection.paused = connection.link.unsent() > HIGH_WATER;
        fine
    }

    fn request(
        &mut self,
        from: &mut Connection,
        frame: &Frame<'_>,
        bytes: &[u8],
        now: Time,
    ) -> Taken {
        let (wants_answer, timeout) = match (frame.kind, frame.command) {
            (Kind::Request { .. }, Command::Heartbeat) => {
                Frame::heartbeat_ack(frame.form, frame.id).write(&mut from.link.out);
                return Taken::Over;
            }
            (Kind::Request { timeout }, Command::RpcRequest) => (true, timeout),
            (Kind::Oneway { timeout }, Command::RpcRequest) => (false, timeout),
            _ => {
                count(&self.counters(from.route).stray, 1);
                return Taken::Over;
            }
        };
        let route = from.route;
        let refused = match self.upstream(route, frame.form, now) {
            None => Status::NoProcessor,
            Some(up) => {
                let most = self.routes[route].route.max_in_flight();
                let patience = self.routes[route].route.timeout();
                let deadline = match u64::try_from(timeout) {
                    Ok(millis) if millis > 0 => now.plus_nanos(millis * 1_000_000),
                    _ => now + patience,
                };
                let call = Call {
                    from: from.token,
                    id: frame.id,
                    form: frame.form,
                    codec: frame.codec,
                    deadline,
                };
                match self.pass_on(up, call, wants_answer, most, bytes) {
                    true if wants_answer => {
                        count(&self.counters(route).requests, 1);
                        return Taken::Waits;
                    }
                    true => {
                        count(&self.counters(route).oneway, 1);
                        return Taken::Over;
                    }
                    false => Status::ServerThreadpoolBusy,
                }
            }
        };
        let counters = self.counters(route);
        count(
            match refused {
                Status::NoProcessor => &counters.no_upstream,
                _ => &counters.busy,
            },
            1,
        );
        if wants_answer {
            let form = frame.form.without_switches();
            Frame::bare_response(form, frame.id, frame.codec, refused).write(&mut from.link.out);
        }
        Taken::Over
    }

    /// The connection that takes the next call: one is begun where there is none.
    fn upstream(&mut self, route: usize, form: Form, now: Time) -> Option<u64> {
        let state = &mut self.routes[route];
        let each = state.route.connections();
        state.next_lane = (state.next_lane + 1) % each;
        let lane = layout(form) * each + state.next_lane;
        if let Some(up) = state.lanes[lane] {
            return Some(up);
        }
        let up = self.connect(
            route,
            |endpoint| Role::Up {
                lane,
                endpoint,
                calls: Calls::default(),
                beat: None,
            },
            now,
        )?;
        self.routes[route].lanes[lane] = Some(up);
        Some(up)
    }

    /// Puts a request into an upstream's connection; `false`: it is full.
    fn pass_on(
        &mut self,
        up: u64,
        call: Call,
        wants_answer: bool,
        most: usize,
        bytes: &[u8],
    ) -> bool {
        let Some(connection) = self.live(up) else {
            return false;
        };
        let Role::Up { calls, .. } = &mut connection.role else {
            return false;
        };
        if calls.open() >= most || connection.link.unsent() > HIGH_WATER {
            return false;
        }
        let Some(id) = calls.insert(call) else {
            return false;
        };
        if !wants_answer {
            calls.take(id);
        }
        write(&mut connection.link.out, bytes, call.form, id);
        self.mark(up);
        true
    }

    /// Frames of an upstream; `false`: the connection is to be closed.
    pub(super) fn take_answers(&mut self, connection: &mut Connection) -> bool {
        let input = std::mem::take(&mut connection.link.input);
        let (mut at, mut fine) = (0, true);
        loop {
            match Frame::parse(&input[at..], MAX_CONTENT) {
                Ok(Some((frame, length))) => {
                    self.answer(connection, &frame, &input[at..at + length]);
                    at += length;
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!("closing an upstream's connection: {error}");
                    count(&self.counters(connection.route).malformed, 1);
                    fine = false;
                    break;
                }
            }
        }
        count(&self.counters(connection.route).bytes_up, at as u64);
        connection.link.input = input;
        connection.link.consume(at);
        fine
    }

    fn answer(&mut self, up: &mut Connection, frame: &Frame<'_>, bytes: &[u8]) {
        let Role::Up {
            lane, calls, beat, ..
        } = &mut up.role
        else {
            return;
        };
        match (frame.kind, frame.command) {
            (Kind::Response { .. }, Command::Heartbeat) => {
                if beat.is_some_and(|(id, _)| id == frame.id) {
                    *beat = None;
                }
            }
            (Kind::Response { .. }, _) => match calls.take(frame.id) {
                Some(call) => self.deliver(up.route, &call, |out| {
                    write(out, bytes, frame.form, call.id)
                }),
                // Too late, or twice.
                None => count(&self.counters(up.route).stray, 1),
            },
            (_, Command::GoAway) => {
                // New calls take another connection; those in flight end on this one.
                let lane = &mut self.routes[up.route].lanes[*lane];
                if *lane == Some(up.token) {
                    *lane = None;
                }
            }
            (Kind::Request { .. }, Command::Heartbeat) => {
                Frame::heartbeat_ack(frame.form, frame.id).write(&mut up.link.out);
            }
            (Kind::Request { .. }, _) => {
                let form = frame.form.without_switches();
                Frame::bare_response(form, frame.id, frame.codec, Status::NoProcessor)
                    .write(&mut up.link.out);
            }
            (Kind::Oneway { .. }, _) => {}
        }
    }

    /// Gives a call's client its answer, if it is still there.
    fn deliver(&mut self, route: usize, call: &Call, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(client) = self.live(call.from) else {
            count(&self.counters(route).stray, 1);
            return;
        };
        if let Role::Down { in_flight } = &mut client.role {
            *in_flight = in_flight.saturating_sub(1);
        }
        write(&mut client.link.out);
        // A client that does not read gets no more taken from it.
        client.paused |= client.link.unsent() > HIGH_WATER;
        self.mark(call.from);
        count(&self.counters(route).answers, 1);
    }

    fn refuse(&mut self, route: usize, call: &Call, status: Status) {
        self.deliver(route, call, |out| {
            let form = call.form.without_switches();
            Frame::bare_response(form, call.id, call.codec, status).write(out);
        });
    }

    /// An upstream's connection is gone: its calls end here.
    pub(super) fn answer_lost(&mut self, route: usize, calls: &mut Calls, was_connecting: bool) {
        let mut lost = Vec::new();
        calls.take_due(Time::NEVER, &mut lost);
        let (status, counter) = if was_connecting {
            (Status::NoProcessor, &self.counters(route).no_upstream)
        } else {
            (Status::ConnectionClosed, &self.counters(route).cut)
        };
        count(counter, lost.len() as u64);
        for call in &lost {
            self.refuse(route, call, status);
        }
    }

    /// Timeouts and heartbeats of an upstream's connection; `false`: it is to be closed.
    pub(super) fn look_after(&mut self, place: usize, now: Time) -> bool {
        let Some(connection) = self.connections[place].as_deref_mut() else {
            return true;
        };
        let (route, token) = (connection.route, connection.token);
        let Role::Up {
            lane, calls, beat, ..
        } = &mut connection.role
        else {
            return true;
        };
        let mut due = Vec::new();
        calls.take_due(now, &mut due);
        let lane = *lane;
        let (state, is_idle) = (&self.routes[route], calls.open() == 0);
        let idle_since = connection.last_active + state.route.heartbeat();
        let is_current = state.lanes[lane] == Some(token);
        let mut keep = is_current || !is_idle || !due.is_empty();
        match beat {
            Some((_, until)) if now >= *until => {
                tracing::warn!(
                    "route {}: an upstream does not answer heartbeats",
                    state.route.name
                );
                keep = false;
            }
            Some(_) => {}
            None if now >= idle_since && !connection.connecting => {
                let each = state.route.connections();
                let form = match lane / each {
                    0 => Form::V1,
                    revision => Form::V2 {
                        revision: revision as u8,
                        switches: 0,
                    },
                };
                // No call has this id: its place is beyond those that calls take.
                let id = u32::MAX;
                Frame::heartbeat(form, id).write(&mut connection.link.out);
                connection.last_active = now;
                *beat = Some((id, now.plus_nanos(HEARTBEAT_WAIT)));
                self.mark(token);
            }
            None => {}
        }
        count(&self.counters(route).timeouts, due.len() as u64);
        for call in &due {
            self.refuse(route, call, Status::Timeout);
        }
        keep
    }
}

/// Appends a frame with another id.
fn write(out: &mut Vec<u8>, bytes: &[u8], form: Form, id: u32) {
    let start = out.len();
    out.extend_from_slice(bytes);
    let frame = &mut out[start..];
    let at = form.id_at();
    frame[at..at + 4].copy_from_slice(&id.to_be_bytes());
    if form.has_crc() {
        let end = frame.len() - 4;
        let crc = crc32fast::hash(&frame[..end]);
        frame[end..].copy_from_slice(&crc.to_be_bytes());
    }
}
