//! Fault injection: delays or fails calls on purpose.
//!
//! Delayed items are ordered by time. For HTTP/2, a call is delayed before it has an upstream stream; for framed
//! protocols, a single frame is delayed; for byte streams, nothing is read from the client during the delay.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::FrameInfo;

use super::peer_errors::ConnectionPeer;
use super::{CallFrame, HIGH_WATER_BYTES, RelayConnection, RelayRole, RequestDisposition, Worker};

/// Delay before the next attempt to send a frame that no upstream could accept.
const RETRY_DELAY: Duration = Duration::from_millis(5);

/// The fault injected into a call.
pub(super) enum FaultAction {
    Forward,
    Delay(Duration),
    Abort,
}

/// A delayed frame, call or client.
pub(super) enum DelayedItem {
    /// A frame of a client whose calls share upstream connections.
    Frame(DelayedFrame),
    /// A call over HTTP/2, by key.
    Exchange(u64),
    /// A client whose bytes are relayed, by token, and the index of its route.
    Pipe(u64, usize),
}

pub(super) struct DelayedFrame {
    client: u64,
    info: FrameInfo,
    bytes: Vec<u8>,
    /// When its delay ends.
    delay_ended_at: Time,
}

/// The delayed items, ordered by time.
#[derive(Default)]
pub(super) struct DelayQueue {
    waiting: BTreeMap<(Time, u64), DelayedItem>,
    number: u64,
}

impl DelayQueue {
    pub(super) fn next_due(&self) -> Time {
        let first = self.waiting.first_key_value();
        first.map_or(Time::NEVER, |((time, _), _)| *time)
    }

    pub(super) fn push(&mut self, time: Time, waiting: DelayedItem) {
        self.number += 1;
        self.waiting.insert((time, self.number), waiting);
    }

    fn pop(&mut self, now: Time) -> Option<DelayedItem> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

impl Worker {
    /// Chooses the fault for the route's next call at random.
    pub(super) fn choose_fault(&mut self, route: usize) -> FaultAction {
        let state = &self.routes[route];
        let Some(fault) = state.setup.route.fault else {
            return FaultAction::Forward;
        };
        if self.random.f64() < fault.abort_share.unwrap_or(0.0) {
            state.setup.counters.faults_aborted.inc();
            return FaultAction::Abort;
        }
        match fault.delay {
            Some(delay) if self.random.f64() < fault.delay_share.unwrap_or(1.0) => {
                state.setup.counters.faults_delayed.inc();
                FaultAction::Delay(delay.0)
            }
            _ => FaultAction::Forward,
        }
    }

    /// Delays a client's frame. A client with too many delayed bytes is not read.
    pub(super) fn delay_frame(
        &mut self,
        from: &mut RelayConnection,
        frame: CallFrame<'_>,
        until: Time,
    ) {
        from.delayed += frame.bytes.len();
        let late = DelayedFrame {
            client: from.token,
            info: frame.info,
            bytes: frame.bytes.to_vec(),
            delay_ended_at: until,
        };
        self.delayed.push(until, DelayedItem::Frame(late));
    }

    /// Sends the items whose delay has ended.
    pub(super) fn release_due_items(&mut self, now: Time) {
        while let Some(waiting) = self.delayed.pop(now) {
            match waiting {
                DelayedItem::Frame(late) => self.release_frame(late, now),
                DelayedItem::Exchange(key) => {
                    if self.exchanges.get_mut(key).is_some() {
                        self.dispatch(key, now);
                    }
                }
                DelayedItem::Pipe(token, route) => self.release_pipe(token, route, now),
            }
        }
    }

    fn release_frame(&mut self, late: DelayedFrame, now: Time) {
        self.with_checked_out_connection(late.client, now, |worker, connection| {
            let Some(codec) = worker.routes[connection.route].setup.codec.clone() else {
                return true;
            };
            let frame = CallFrame {
                info: late.info,
                bytes: &late.bytes,
            };
            match worker.forward_request(connection, &codec, frame, late.delay_ended_at, now) {
                Ok(RequestDisposition::Held) => worker
                    .delayed
                    .push(now + RETRY_DELAY, DelayedItem::Frame(late)),
                Ok(taken) => {
                    connection.delayed -= late.bytes.len();
                    // While it was delayed, the request was counted as in flight.
                    if let (RequestDisposition::Done, RelayRole::Down { in_flight }) =
                        (taken, &mut connection.role)
                    {
                        *in_flight = in_flight.saturating_sub(1);
                    }
                }
                Err(broken) => {
                    worker.report_frame_error(
                        connection.route,
                        ConnectionPeer::from_connection(connection),
                        &broken,
                        now,
                    );
                    return false;
                }
            }
            true
        });
    }

    fn release_pipe(&mut self, token: u64, route: usize, now: Time) {
        self.connect_pipe(token, route, now);
        if let Some(connection) = self.connection_mut(token) {
            connection.is_paused = false;
            self.update_interest(token);
        }
    }

    /// Connects a client of a byte stream to an upstream: immediately, after a delay, or not at all.
    pub(super) fn connect_pipe_with_fault(&mut self, token: u64, route: usize, now: Time) {
        match self.choose_fault(route) {
            FaultAction::Forward => self.connect_pipe(token, route, now),
            FaultAction::Abort => self.close(token, now),
            FaultAction::Delay(time) => {
                self.delayed
                    .push(now + time, DelayedItem::Pipe(token, route));
                if let Some(connection) = self.connection_mut(token) {
                    connection.is_paused = true;
                    self.update_interest(token);
                }
            }
        }
    }
}

impl RelayConnection {
    /// Returns whether too much is queued or delayed to read more from the connection.
    pub(super) fn has_full_buffers(&self) -> bool {
        self.transport.unsent_bytes() > HIGH_WATER_BYTES || self.delayed > HIGH_WATER_BYTES
    }
}
