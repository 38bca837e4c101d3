//! The part of a shard that communicates with the coordinator (shard 0) through the rendezvous: it announces the
//! shard's arrival, follows the coordinator's orders, and writes the shard's log.
//!
//! A member is a state machine without I/O or clock: [`Member::poll`] returns the requests that are due,
//! [`Member::on_answer`] handles their answers, and [`Member::next_event`] returns events for the load. A shard makes
//! at most one request per second about its log and, except while it waits for the start, one about the orders.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_model::Time;

use super::objects::{
    self, Arrival, ORDERS_OBJECT, Orders, RunResult, compress_log_part, from_json,
    log_part_object_name, to_json,
};
use super::store::{StoreRequest, StoreResponse};
use super::store_request_slot::{StoreRequestSlot, store_failure_message};
use crate::load::multiprocess::wire::{ClockOffset, ShardMessage};

/// How often the log is written, and orders are read during the load.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a shard reads the orders before the load starts, and the delay before a request is repeated.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Time for which the store must have been failing before the run counts as lost.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(120);

/// Time for which the store must have been failing before a message is printed, once.
const FAILURE_NOTICE_DELAY: Duration = Duration::from_secs(5);

/// Time without a heartbeat of the coordinator, while the store answers, after which the coordinator counts as lost.
pub(super) const LEADER_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time between two reads of the orders that counts as silence of the coordinator. The rest of a longer gap is
/// not counted, because this process or the store must have been stalled.
pub(super) const MAX_SILENCE_PER_READ: Duration = Duration::from_secs(3);

/// The kind of a store request that a member makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberRequestKind {
    /// A request about the arrival or the log.
    Log,
    Orders,
}

/// An event that the shard's load acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MemberEvent {
    /// All shards have arrived, so the load must open its connections.
    Connect,
    /// Start time of the load, on this machine's clock.
    Begin(Time),
    /// The start time had passed by this duration when this shard read it.
    MissedStart(Duration),
    /// Stop request, with a level as in [`Orders::stop`].
    Stop(u8),
    /// A message for the user.
    Notice(String),
    /// The run is over.
    Ended(RunResult),
    /// The run is lost for this shard. This is the last event.
    Lost(String),
}

impl MemberEvent {
    /// Returns whether the run is over.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, MemberEvent::Ended(_) | MemberEvent::Lost(_))
    }
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
    /// Checks for another process with the same shard number.
    CheckDuplicate,
    /// Writes the arrival.
    Arrive,
    /// Checks that the arrival in the store was written by this process.
    Verify,
    Log,
    Over,
}

/// The state machine of one shard.
pub(super) struct Member {
    arrival: Arrival,
    /// Wall-clock time at [`Time::ZERO`], nanoseconds since 1970.
    unix_zero: u64,
    /// Time until which the coordinator must have arrived.
    leader_deadline: Time,
    /// How long the store may fail before this shard has arrived. It is at least the barrier timeout, because a store
    /// served by shard 0 can't be reached before shard 0 has started.
    patience: Duration,
    /// Whether a message about the failing store has been printed.
    failure_reported: bool,
    state: MemberState,
    log_slot: StoreRequestSlot,
    orders_slot: StoreRequestSlot,
    /// Times before and after the arrival was written; comparing them with the store's timestamp gives the clock
    /// offset.
    arrival_written: Option<(Time, Time)>,
    offset: ClockOffset,
    lines: Vec<String>,
    /// The compressed part of the log that is being written; retries write the same bytes.
    sealed_part: Option<Vec<u8>>,
    /// Number of the part that is being written or, if there is none, of the next part.
    next_part: u64,
    closed: bool,
    orders: Orders,
    /// Time without a heartbeat of the coordinator while the store answered.
    silence: Duration,
    orders_read_at: Time,
    events: VecDeque<MemberEvent>,
}

impl Member {
    /// Creates a member. `barrier` is the maximum time until all shards have arrived.
    pub(super) fn new(arrival: Arrival, now: Time, unix_zero: u64, barrier: Duration) -> Member {
        // Distribute the requests of many shards over a second.
        let offset = Duration::from_millis(u64::from(arrival.shard) * 619 % 1_000);
        Member {
            unix_zero,
            leader_deadline: now + barrier,
            patience: barrier.max(STORE_TIMEOUT),
            failure_reported: false,
            state: MemberState::CheckDuplicate,
            log_slot: StoreRequestSlot::new(now),
            orders_slot: StoreRequestSlot::new(now + offset / 2),
            arrival_written: None,
            offset: ClockOffset::default(),
            lines: Vec::new(),
            sealed_part: None,
            next_part: 0,
            closed: false,
            orders: Orders::default(),
            silence: Duration::ZERO,
            orders_read_at: now,
            events: VecDeque::new(),
            arrival,
        }
    }

    /// Adds a message to the log.
    pub(super) fn log_message(&mut self, message: &ShardMessage) {
        self.lines.push(message.to_line());
    }

    /// Closes the log: its remaining lines are written without delay.
    pub(super) fn close(&mut self, now: Time) {
        self.closed = true;
        self.log_slot.make_due(now);
    }

    pub(super) fn next_event(&mut self) -> Option<MemberEvent> {
        self.events.pop_front()
    }

    /// Returns whether the run is over for this member.
    pub(super) fn is_over(&self) -> bool {
        self.state == MemberState::Over
    }

    /// Returns whether the whole log is in the store.
    pub(super) fn is_log_written(&self) -> bool {
        self.lines.is_empty() && self.sealed_part.is_none()
    }

    /// Returns the store requests that are due.
    pub(super) fn poll(&mut self, now: Time) -> Vec<(MemberRequestKind, StoreRequest)> {
        let mut asks = Vec::new();
        if self.state == MemberState::Over {
            return asks;
        }
        // Don't write an empty log before all shards have arrived: the coordinator does not read logs before that.
        let idle = self.state == MemberState::Log && !self.orders.connect && self.is_log_written();
        if self.log_slot.is_due(now) && !idle {
            let name = objects::arrival_object_name(self.arrival.shard);
            let ask = match self.state {
                MemberState::CheckDuplicate | MemberState::Verify => StoreRequest::Get(name),
                MemberState::Arrive => StoreRequest::Put {
                    name,
                    bytes: to_json(&self.arrival),
                    create: true,
                },
                MemberState::Log | MemberState::Over => {
                    let lines = &mut self.lines;
                    let sealed = self.sealed_part.get_or_insert_with(|| {
                        let sealed = compress_log_part(lines);
                        lines.clear();
                        sealed
                    });
                    StoreRequest::Put {
                        name: log_part_object_name(self.arrival.shard, self.next_part),
                        bytes: sealed.clone(),
                        create: false,
                    }
                }
            };
            if self.state == MemberState::Arrive {
                self.arrival_written.get_or_insert((now, now));
            }
            self.log_slot.mark_sent(now);
            asks.push((MemberRequestKind::Log, ask));
        }
        if self.state == MemberState::Log && self.orders_slot.is_due(now) {
            self.orders_slot.mark_sent(now);
            asks.push((
                MemberRequestKind::Orders,
                StoreRequest::Get(ORDERS_OBJECT.to_owned()),
            ));
        }
        asks
    }

    /// Handles the answer to a request.
    pub(super) fn on_answer(&mut self, which: MemberRequestKind, answer: StoreResponse, now: Time) {
        if self.state == MemberState::Over {
            return;
        }
        if let StoreResponse::Failed { problem, for_good } = answer {
            let lane = match which {
                MemberRequestKind::Log => &mut self.log_slot,
                MemberRequestKind::Orders => &mut self.orders_slot,
            };
            let failing = lane.mark_failed(now);
            let patience = match self.state {
                MemberState::Log | MemberState::Over => STORE_TIMEOUT,
                MemberState::CheckDuplicate | MemberState::Arrive | MemberState::Verify => {
                    self.patience
                }
            };
            let for_good = for_good && self.state != MemberState::Log;
            if for_good || failing >= patience {
                self.end_as_lost(store_failure_message(
                    &problem,
                    (!for_good).then_some(failing),
                ));
            } else if failing >= FAILURE_NOTICE_DELAY
                && !std::mem::replace(&mut self.failure_reported, true)
            {
                self.events.push_back(MemberEvent::Notice(format!(
                    "the rendezvous does not answer; retrying for {} s: {problem}",
                    patience.as_secs()
                )));
            }
            return;
        }
        match which {
            MemberRequestKind::Log => self.on_log_answer(answer, now),
            MemberRequestKind::Orders => self.on_orders(answer, now),
        }
    }

    fn end_as_lost(&mut self, why: String) {
        self.state = MemberState::Over;
        self.events.push_back(MemberEvent::Lost(why));
    }

    fn on_log_answer(&mut self, answer: StoreResponse, now: Time) {
        let sent = self.log_slot.sent_or_due_at();
        let mut next = now;
        match (self.state, answer) {
            (MemberState::CheckDuplicate, StoreResponse::Missing) => {
                self.state = MemberState::Arrive
            }
            (MemberState::Verify, StoreResponse::Missing) => {
                // Retry, because in some stores an object can be read only some time after it was written.
                next = now + RETRY_DELAY;
            }
            (MemberState::Arrive, StoreResponse::Done | StoreResponse::Exists) => {
                self.state = MemberState::Verify;
                if let Some((_, latest)) = &mut self.arrival_written {
                    *latest = now;
                }
            }
            (
                MemberState::CheckDuplicate | MemberState::Verify,
                StoreResponse::Bytes {
                    bytes,
                    modified_unix_ns,
                },
            ) => match from_json::<Arrival>("arrival", &bytes) {
                Ok(there) if there.token == self.arrival.token => {
                    self.offset = self.measure_clock_offset(modified_unix_ns);
                    self.log_message(&ShardMessage::Clock(self.offset));
                    self.state = MemberState::Log;
                }
                Ok(_) => {
                    return self.end_as_lost(format!(
                        "shard {} of this run has already joined: it was started twice or restarted, or the run ID was used before; give each run a --run-id of its own",
                        self.arrival.shard
                    ));
                }
                Err(problem) => return self.end_as_lost(problem),
            },
            (MemberState::Log, StoreResponse::Done) => {
                self.sealed_part = None;
                self.next_part += 1;
                next = if self.closed && !self.lines.is_empty() {
                    now
                } else {
                    sent + POLL_INTERVAL
                };
            }
            // Repeat the request if the answer is none of those expected.
            _ => next = now + RETRY_DELAY,
        }
        self.log_slot.mark_answered(next);
    }

    /// Computes the offset of the store's clock from the timestamp of the arrival. The timestamp may be an HTTP date,
    /// which has a resolution of one second.
    fn measure_clock_offset(&self, modified_unix_ns: u64) -> ClockOffset {
        const SECOND_NS: i128 = 1_000_000_000;
        let Some((from, to)) = self.arrival_written else {
            return ClockOffset::default();
        };
        let unix = |t: Time| i128::from(self.unix_zero) + i128::from(t.0);
        let modified = i128::from(modified_unix_ns);
        let coarse = if modified % SECOND_NS == 0 {
            SECOND_NS
        } else {
            0
        };
        let earliest = modified - unix(to);
        let latest = modified + coarse - unix(from);
        let offset = match earliest <= 0 && 0 <= latest {
            // The clocks may be equal within the uncertainty, so assume no offset.
            true => 0,
            false => i128::midpoint(earliest, latest),
        };
        let micros = |ns: i128| i64::try_from(ns / 1_000).unwrap_or(i64::MAX);
        ClockOffset {
            offset_us: micros(offset),
            uncertainty_us: micros((latest - earliest).max(0)).unsigned_abs() / 2,
        }
    }

    fn on_orders(&mut self, answer: StoreResponse, now: Time) {
        let waited = now
            .duration_since(self.orders_read_at)
            .min(MAX_SILENCE_PER_READ);
        self.orders_read_at = now;
        let orders = match answer {
            StoreResponse::Bytes { bytes, .. } => {
                match from_json::<Orders>(ORDERS_OBJECT, &bytes) {
                    Ok(orders) => Some(orders),
                    Err(problem) => return self.end_as_lost(problem),
                }
            }
            _ => None,
        };
        let begun = self.orders.begin_unix_ns.is_some();
        self.orders_slot
            .mark_answered(now + if begun { POLL_INTERVAL } else { RETRY_DELAY });
        match orders {
            Some(orders) if orders != self.orders => {
                self.silence = Duration::ZERO;
                self.apply_orders(orders, now);
            }
            None if self.orders.beat == 0 => {
                if now > self.leader_deadline {
                    self.end_as_lost(
                        "shard 0, which leads the run, has not joined (--barrier sets how long shards wait for each other)".to_owned(),
                    );
                }
            }
            _ => {
                self.silence += waited;
                if self.silence >= LEADER_TIMEOUT {
                    self.end_as_lost(format!(
                        "shard 0, which leads the run, has not responded for {} s; the measurements are in the rendezvous: recover them with `plimsoll merge`",
                        self.silence.as_secs()
                    ));
                }
            }
        }
    }

    fn apply_orders(&mut self, orders: Orders, now: Time) {
        let before = std::mem::replace(&mut self.orders, orders);
        let orders = &self.orders;
        if let Some(reason) = &orders.abort {
            let reason = reason.clone();
            return self.end_as_lost(reason);
        }
        if orders.connect && !before.connect {
            self.events.push_back(MemberEvent::Connect);
        }
        if let (Some(begin), None) = (orders.begin_unix_ns, before.begin_unix_ns) {
            let local = i128::from(begin)
                - i128::from(self.offset.offset_us) * 1_000
                - i128::from(self.unix_zero);
            let local = Time(u64::try_from(local).unwrap_or(0));
            self.events.push_back(if local > now {
                MemberEvent::Begin(local)
            } else {
                MemberEvent::MissedStart(now.duration_since(local))
            });
        }
        if orders.stop > before.stop {
            self.events.push_back(MemberEvent::Stop(orders.stop));
        }
        if let Some(ended) = &orders.ended {
            let ended = ended.clone();
            self.state = MemberState::Over;
            self.events.push_back(MemberEvent::Ended(ended));
        }
    }
}
