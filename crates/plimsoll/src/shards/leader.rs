//! The coordinator in shard 0: waits for all shards, sets the start time, reads and merges their logs, and decides
//! when the run is over.
//!
//! Like [`super::member`] it is a state machine without I/O. Shard 0's own load is a member like any other, whose log
//! is read from the store. A shard that is silent while the store answers is dropped; one that failed stops the run
//! for all. Measurements up to then are kept.
//!
//! Long because it is one state machine: whether a run ends depends on all of its states.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_engine::EngineError;
use plimsoll_model::Time;
use plimsoll_model::record::RequestRecord;
use plimsoll_model::run::IntervalRecord;

use super::lane::{RequestSlot, unusable};
use super::member::{MAX_COUNTED_GAP, POLL_INTERVAL, STORE_TIMEOUT};
use super::merging::LogMerger;
use super::objects::{
    self, ARRIVALS_FOLDER, Arrival, HEAD_OBJECT, ORDERS_OBJECT, Orders, RunManifest, RunResult,
    STOP_REQUEST_OBJECT, StopRequest, from_json,
};
use super::store::{StoreRequest, StoreResponse};
use crate::multiprocess::wire::ShardMessage;

/// A shard that writes nothing for this long, while the store answers, is lost.
pub(super) const MAX_SILENCE: Duration = Duration::from_secs(30);

/// Delay before the next part of a log is looked for after one was found.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How far ahead the start time is announced, so that every shard has polled the orders several times before.
const START_LEAD_TIME: Duration = Duration::from_secs(4);

/// How often stop requests of observers are looked for.
const STOP_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Shards that have not ended this long after an immediate stop request are dropped, even if they send heartbeats.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// The kinds of store requests that the leader makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaderRequestKind {
    Head,
    List,
    StopRequest,
    Orders,
    Shard(u32),
}

/// An event that the run shows or writes.
pub(super) enum LeaderEvent {
    Connecting(u64),
    Started {
        workers: u32,
        connections: u64,
    },
    Interval(Box<IntervalRecord>, Vec<RequestRecord>),
    /// A message for the user.
    Notice(String),
    /// An observer has requested a stop.
    StopRequested,
}

/// The phases of a run, as the leader sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaderPhase {
    Arriving,
    Connecting,
    Running,
    /// The result is known.
    Over,
}

/// What the leader knows of a shard's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArrivalState {
    Absent,
    /// Its arrival is listed and not read yet.
    Listed,
    /// Its arrival was read; it has the same plan, build and data.
    Verified,
    /// Its withdrawal is listed and not read yet.
    Withdrawn,
}

/// The leader's view of a shard.
struct RemoteShard {
    arrived: ArrivalState,
    lane: RequestSlot,
    /// Number of the next part of its log.
    next: u64,
    asked: Time,
    silence: Duration,
}

/// The leader's settings: its own arrival, the run's manifest, and the barrier timeout.
pub(super) struct LeaderConfig {
    pub(super) own: Arrival,
    pub(super) head: RunManifest,
    /// The target's URL, for messages about it.
    pub(super) url: String,
    pub(super) barrier: Duration,
}

/// The coordinator's state machine.
pub(super) struct Leader {
    charge: LeaderConfig,
    unix_zero: u64,
    /// Time by which all shards must have arrived.
    until: Time,
    phase: LeaderPhase,
    head: RequestSlot,
    head_written: bool,
    list: RequestSlot,
    wish: RequestSlot,
    write: RequestSlot,
    orders: Orders,
    /// The orders that are in the store.
    written: Orders,
    being_written: Orders,
    shards: Vec<RemoteShard>,
    pub(super) merging: LogMerger,
    stopped_at: Time,
    progress_sent_at: Time,
    failure: Option<String>,
    result: Option<Result<(), EngineError>>,
    events: VecDeque<LeaderEvent>,
}

impl Leader {
    pub(super) fn new(charge: LeaderConfig, now: Time, unix_zero: u64) -> Leader {
        let shards = (0..charge.own.of).map(|shard| {
            let turn = Duration::from_millis(u64::from(shard) * 379 % 1_000);
            RemoteShard {
                arrived: ArrivalState::Absent,
                lane: RequestSlot::new(now + turn),
                next: 0,
                asked: now,
                silence: Duration::ZERO,
            }
        });
        Leader {
            until: now + charge.barrier,
            unix_zero,
            phase: LeaderPhase::Arriving,
            head: RequestSlot::new(now),
            head_written: false,
            list: RequestSlot::new(now),
            wish: RequestSlot::new(now + STOP_POLL_INTERVAL),
            write: RequestSlot::new(now),
            orders: Orders::default(),
            written: Orders::default(),
            being_written: Orders::default(),
            shards: shards.collect(),
            merging: LogMerger::new(&charge.head),
            stopped_at: Time::NEVER,
            progress_sent_at: now,
            failure: None,
            result: None,
            events: VecDeque::new(),
            charge,
        }
    }

    pub(super) fn event(&mut self) -> Option<LeaderEvent> {
        self.events.pop_front()
    }

    /// Returns the result of the load; `None` while it is running.
    pub(super) fn result(&mut self) -> Option<Result<(), EngineError>> {
        // Hold the result back until the reason of an abort is in the store.
        let is_written = self.orders.abort.is_none() || self.written.abort.is_some();
        if is_written { self.result.take() } else { None }
    }

    /// Requests a stop, with a level as in [`Orders::stop`].
    pub(super) fn stop(&mut self, level: u8, now: Time) {
        if level <= self.orders.stop {
            return;
        }
        self.orders.stop = level;
        self.stopped_at = now;
        self.write.make_due(now);
        if matches!(self.phase, LeaderPhase::Arriving | LeaderPhase::Connecting) {
            self.give_up(
                "the run was interrupted before the load began".to_owned(),
                EngineError::Interrupted,
                now,
            );
        }
    }

    /// Announces the result of the run, once that is written and judged.
    pub(super) fn end(&mut self, ended: RunResult, now: Time) {
        self.orders.ended = Some(ended);
        self.write.make_due(now);
    }

    /// Returns whether the announcement is in the store.
    pub(super) fn has_ended(&self) -> bool {
        self.written.ended.is_some() || self.written.abort.is_some()
    }

    pub(super) fn poll(&mut self, now: Time) -> Vec<(LeaderRequestKind, StoreRequest)> {
        let mut asks = Vec::new();
        self.check_deadlines(now);
        if !self.head_written && self.head.is_due(now) {
            self.head.send(now);
            asks.push((
                LeaderRequestKind::Head,
                StoreRequest::write(HEAD_OBJECT, &self.charge.head),
            ));
        }
        if self.write.is_due(now) && !self.has_ended() {
            self.write.send(now);
            self.orders.beat += 1;
            self.being_written = self.orders.clone();
            asks.push((
                LeaderRequestKind::Orders,
                StoreRequest::write(ORDERS_OBJECT, &self.orders),
            ));
        }
        if self.phase == LeaderPhase::Over {
            return asks;
        }
        if self.phase == LeaderPhase::Arriving && self.list.is_due(now) {
            self.list.send(now);
            asks.push((
                LeaderRequestKind::List,
                StoreRequest::List(ARRIVALS_FOLDER.to_owned()),
            ));
        }
        if self.wish.is_due(now) {
            self.wish.send(now);
            asks.push((
                LeaderRequestKind::StopRequest,
                StoreRequest::Get(STOP_REQUEST_OBJECT.to_owned()),
            ));
        }
        for (shard, remote) in (0..).zip(&mut self.shards) {
            let wanted = match (self.phase, remote.arrived) {
                (_, ArrivalState::Listed) => Some(objects::arrival(shard)),
                (_, ArrivalState::Withdrawn) => Some(objects::withdrawal(shard)),
                (LeaderPhase::Arriving, _) => None,
                _ if self.merging.is_gone(shard) => None,
                _ => Some(objects::part(shard, remote.next)),
            };
            if let Some(name) = wanted.filter(|_| remote.lane.is_due(now)) {
                remote.lane.send(now);
                asks.push((LeaderRequestKind::Shard(shard), StoreRequest::Get(name)));
            }
        }
        asks
    }

    /// Checks deadlines that pass without an answer of the store.
    fn check_deadlines(&mut self, now: Time) {
        match self.phase {
            LeaderPhase::Arriving if now > self.until => {
                let missing: Vec<u32> = (0..)
                    .zip(&self.shards)
                    .filter_map(|(shard, remote)| {
                        (remote.arrived == ArrivalState::Absent).then_some(shard)
                    })
                    .collect();
                let (missing, of) = (ranges(&missing), self.charge.own.of);
                let seconds = self.charge.barrier.as_secs();
                let text = format!("{missing} of {of} did not join within {seconds} s (--barrier)");
                self.fail(text, now);
            }
            LeaderPhase::Connecting
                if now.duration_since(self.progress_sent_at) >= POLL_INTERVAL =>
            {
                self.progress_sent_at = now;
                let up = self.merging.gathering.connecting();
                self.events.push_back(LeaderEvent::Connecting(up));
            }
            LeaderPhase::Running
                if self.orders.stop >= 2
                    && now.duration_since(self.stopped_at) >= SHUTDOWN_TIMEOUT =>
            {
                for shard in 0..self.charge.own.of {
                    if !self.merging.is_gone(shard) {
                        self.drop_shard(shard, "did not stop when it was told to".to_owned());
                    }
                }
                self.emit(now);
            }
            _ => {}
        }
    }

    pub(super) fn answered(&mut self, which: LeaderRequestKind, answer: StoreResponse, now: Time) {
        if let StoreResponse::Failed { problem, for_good } = answer {
            let lane = match which {
                LeaderRequestKind::Head => &mut self.head,
                LeaderRequestKind::List => &mut self.list,
                LeaderRequestKind::StopRequest => &mut self.wish,
                LeaderRequestKind::Orders => &mut self.write,
                LeaderRequestKind::Shard(shard) => {
                    let remote = &mut self.shards[shard as usize];
                    remote.asked = now;
                    &mut remote.lane
                }
            };
            let failing = lane.failed(now);
            let patience = match self.phase {
                LeaderPhase::Arriving => self.charge.barrier.max(STORE_TIMEOUT),
                _ => STORE_TIMEOUT,
            };
            if (for_good && self.phase == LeaderPhase::Arriving) || failing >= patience {
                let failing = (!for_good).then_some(failing);
                self.lose_store(unusable(&problem, failing), now);
            }
            return;
        }
        match which {
            LeaderRequestKind::Head => {
                self.head_written = true;
                self.head.answered(now);
            }
            LeaderRequestKind::Orders => {
                self.written = self.being_written.clone();
                let more = self.orders != self.written;
                let sent = self.write.sent();
                let next = if more { now } else { sent + POLL_INTERVAL };
                self.write.answered(next);
            }
            LeaderRequestKind::StopRequest => {
                self.wish.answered(now + STOP_POLL_INTERVAL);
                if let StoreResponse::Bytes { bytes, .. } = answer
                    && let Ok(wish) = from_json::<StopRequest>(STOP_REQUEST_OBJECT, &bytes)
                    && wish.stop > self.orders.stop
                {
                    self.events.push_back(LeaderEvent::Notice(
                        "stopping: an observer of the run asked for it".to_owned(),
                    ));
                    self.events.push_back(LeaderEvent::StopRequested);
                }
            }
            LeaderRequestKind::List => {
                self.list.answered(now + POLL_INTERVAL);
                if let StoreResponse::Names(names) = answer {
                    self.on_arrivals_listed(&names, now);
                }
            }
            LeaderRequestKind::Shard(shard) => match self.shards[shard as usize].arrived {
                ArrivalState::Verified => self.on_log_part(shard, answer, now),
                _ => self.verify_arrival(shard, &answer, now),
            },
        }
    }

    /// Updates arrivals and withdrawals from a listing.
    fn on_arrivals_listed(&mut self, names: &[String], now: Time) {
        if self.phase != LeaderPhase::Arriving {
            return;
        }
        let of = self.charge.own.of;
        for shard in names.iter().filter_map(|name| objects::arrived(name)) {
            match self.shards.get_mut(shard as usize) {
                Some(remote) if remote.arrived == ArrivalState::Absent => {
                    remote.arrived = ArrivalState::Listed
                }
                Some(_) => {}
                None => {
                    let text = format!(
                        "shard {shard} joined, but --shards is {of} (numbered from 0): pass the same --shards to every shard"
                    );
                    return self.fail(text, now);
                }
            }
        }
        for shard in names.iter().filter_map(|name| objects::withdrawn(name)) {
            // Skip this while a request is in flight, whose answer would be taken for the withdrawal. The list is read
            // again anyway.
            if let Some(remote) = self.shards.get_mut(shard as usize)
                && remote.lane.is_idle()
            {
                remote.arrived = ArrivalState::Withdrawn;
                remote.lane.make_due(now);
            }
        }
    }

    /// Handles the content of an arrival or withdrawal: verifies that the shard belongs to this run.
    fn verify_arrival(&mut self, shard: u32, answer: &StoreResponse, now: Time) {
        let remote = &mut self.shards[shard as usize];
        remote.asked = now;
        let StoreResponse::Bytes { bytes, .. } = answer else {
            // A store may list an object before it can be read.
            remote.lane.answered(now + POLL_INTERVAL);
            return;
        };
        remote.lane.answered(now);
        if remote.arrived == ArrivalState::Withdrawn {
            let reason = objects::reason(bytes);
            let text = format!("shard {shard} of {}: {reason}", self.charge.own.of);
            return self.fail(text, now);
        }
        remote.arrived = ArrivalState::Verified;
        let own = &self.charge.own;
        let problem = match from_json::<Arrival>("arrival", bytes) {
            Err(problem) => Some(problem),
            Ok(there) if there.version != own.version => {
                Some("runs another version of plimsoll than shard 0".to_owned())
            }
            Ok(there) if there.of != own.of => Some(format!(
                "counts {} shards, and shard 0 {}: give all the same --shards",
                there.of, own.of
            )),
            Ok(there) => own
                .digests
                .difference(&there.digests)
                .map(|what| format!("has {what} than shard 0: give all shards the same")),
        };
        if let Some(problem) = problem {
            return self.fail(format!("shard {shard} {problem}"), now);
        }
        if self.head_written
            && self
                .shards
                .iter()
                .all(|s| s.arrived == ArrivalState::Verified)
        {
            self.phase = LeaderPhase::Connecting;
            self.orders.connect = true;
            self.write.make_due(now);
        }
    }

    /// Handles the answer to reading a part of a shard's log.
    fn on_log_part(&mut self, shard: u32, answer: StoreResponse, now: Time) {
        let remote = &mut self.shards[shard as usize];
        let waited = now.duration_since(remote.asked).min(MAX_COUNTED_GAP);
        remote.asked = now;
        let StoreResponse::Bytes { bytes, .. } = answer else {
            remote.silence += waited;
            remote.lane.answered(now + POLL_INTERVAL);
            if remote.silence >= MAX_SILENCE {
                let seconds = remote.silence.as_secs();
                let why = format!(
                    "it sent nothing for {seconds} s (killed, stopped, or cut off from the rendezvous); what it did after its last message is unknown"
                );
                match self.phase {
                    LeaderPhase::Connecting => self.fail(format!("shard {shard}: {why}"), now),
                    _ => self.drop_shard(shard, why),
                }
                self.emit(now);
            }
            return;
        };
        remote.silence = Duration::ZERO;
        remote.next += 1;
        remote.lane.answered(now + LOG_POLL_INTERVAL);
        for message in objects::messages(&bytes) {
            self.take(shard, message, now);
        }
        self.emit(now);
    }

    fn take(&mut self, shard: u32, message: ShardMessage, now: Time) {
        if self.merging.is_gone(shard) {
            return;
        }
        self.merging.add_message(shard, message, &self.orders);
        if let Some(problem) = self.merging.problem(shard) {
            let text = format!("shard {shard} of {}: {problem}", self.charge.own.of);
            match self.phase {
                LeaderPhase::Connecting | LeaderPhase::Arriving => self.fail(text, now),
                _ => self.stop_all(text, now),
            }
        }
    }

    /// Stops all shards after one has failed: the rest would not be the planned load.
    fn stop_all(&mut self, text: String, now: Time) {
        self.events
            .push_back(LeaderEvent::Notice(format!("{text}; stopping the others")));
        self.failure.get_or_insert(text);
        if self.orders.stop == 0 {
            (self.orders.stop, self.stopped_at) = (1, now);
            self.write.make_due(now);
        }
    }

    /// Drops a shard; the others continue, since stopping them would not improve their measurements.
    fn drop_shard(&mut self, shard: u32, why: String) {
        let text = format!("shard {shard} of {}: {why}", self.charge.own.of);
        self.events.push_back(LeaderEvent::Notice(format!(
            "{text}; the run goes on without it"
        )));
        self.merging.mark_lost(shard, why);
        self.failure.get_or_insert(text);
    }

    /// Passes on complete intervals, starts the load once all shards are ready, and sets the result once all have
    /// ended.
    fn emit(&mut self, now: Time) {
        while let Some((record, requests)) = self.merging.gathering.intervals.next(None) {
            let event = LeaderEvent::Interval(Box::new(record), requests);
            self.events.push_back(event);
        }
        match self.phase {
            LeaderPhase::Connecting => {
                if self.merging.gathering.is_ready() {
                    self.begin(now);
                }
            }
            LeaderPhase::Running => {
                if (0..self.charge.own.of).all(|shard| self.merging.is_gone(shard)) {
                    self.phase = LeaderPhase::Over;
                    self.result = Some(match self.failure.take() {
                        Some(text) => Err(EngineError::Shards(text)),
                        None => Ok(()),
                    });
                }
            }
            LeaderPhase::Arriving | LeaderPhase::Over => {}
        }
    }

    fn begin(&mut self, now: Time) {
        let (established, workers) = self.merging.gathering.established();
        let attempted = u64::from(established.open) + u64::from(established.failed);
        if let Err(error) = established.check(&self.charge.url, attempted) {
            return self.give_up(error.to_string(), error, now);
        }
        let offset = i128::from(self.merging.offset(0).unwrap_or_default().offset_us) * 1_000;
        let begin = i128::from(self.unix_zero) + i128::from((now + START_LEAD_TIME).0) + offset;
        self.orders.begin_unix_ns = Some(u64::try_from(begin).unwrap_or(0));
        self.write.make_due(now);
        self.phase = LeaderPhase::Running;
        self.events.push_back(LeaderEvent::Started {
            workers,
            connections: u64::from(established.open),
        });
    }

    /// Aborts the run before the load, when nothing was measured.
    fn fail(&mut self, reason: String, now: Time) {
        self.give_up(reason.clone(), EngineError::Shards(reason), now);
    }

    fn give_up(&mut self, reason: String, error: EngineError, now: Time) {
        if self.phase == LeaderPhase::Over {
            return;
        }
        self.phase = LeaderPhase::Over;
        self.orders.abort = Some(reason);
        self.result = Some(Err(error));
        self.write.make_due(now);
    }

    /// Ends the run when the store is unreachable. No orders can be written; members detect this by timeout.
    fn lose_store(&mut self, reason: String, now: Time) {
        if self.phase != LeaderPhase::Over {
            self.merging.gathering.intervals.all_ended();
            self.phase = LeaderPhase::Over;
            self.emit(now);
            self.result = Some(Err(EngineError::Shards(reason.clone())));
        }
        self.orders.abort.get_or_insert(reason);
        self.written = self.orders.clone();
    }
}

/// Formats shard numbers: `shard 2` or `shards 2, 5 to 7`.
pub(super) fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = numbers;
    while let Some(&first) = rest.first() {
        let run = (first..).zip(rest).take_while(|(a, b)| a == *b).count();
        let last = rest[run - 1];
        parts.push(match run {
            1 => first.to_string(),
            2 => format!("{first}, {last}"),
            _ => format!("{first} to {last}"),
        });
        rest = &rest[run..];
    }
    let word = if numbers.len() == 1 {
        "shard"
    } else {
        "shards"
    };
    format!("{word} {}", parts.join(", "))
}
