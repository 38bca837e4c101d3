//! The coordinator in shard 0: waits for all shards, sets the start time, reads and merges their logs, and decides
//! when the run is over.
//!
//! Like [`super::member`], the leader is a state machine without I/O. Shard 0's own load is run by a member like all
//! others, and its log is read from the store. A shard that writes nothing while the store answers is dropped; a shard
//! that has failed stops the run for all. Earlier measurements are kept.
//!
//! This file is long because it is a single state machine: the end of a run depends on all of its states.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_engine::EngineError;
use plimsoll_model::Time;
use plimsoll_model::records::record::RequestRecord;
use plimsoll_model::runs::run::IntervalRecord;

use super::member::{MAX_SILENCE_PER_READ, POLL_INTERVAL, STORE_TIMEOUT};
use super::merging::LogMerger;
use super::objects::{
    self, ARRIVALS_FOLDER, Arrival, HEAD_OBJECT, ORDERS_OBJECT, Orders, RunManifest, RunResult,
    STOP_REQUEST_OBJECT, StopRequest, from_json,
};
use super::store::{StoreRequest, StoreResponse};
use super::store_request_slot::{StoreRequestSlot, store_failure_message};
use crate::load::multiprocess::wire::ShardMessage;

/// Time without a new part of a shard's log, while the store answers, after which the shard counts as lost.
pub(super) const MAX_SILENCE: Duration = Duration::from_secs(30);

/// Delay between reading a part of a shard's log and requesting the next part.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Time from announcing the start time to the start: long enough for every shard to poll the orders several times.
const START_LEAD_TIME: Duration = Duration::from_secs(4);

/// How often the store is polled for a stop request from `plimsoll watch`.
const STOP_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Time after an immediate stop request at which shards that have not ended are dropped, even with heartbeats.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// The kind of a store request that the leader makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaderRequestKind {
    Manifest,
    List,
    StopRequest,
    Orders,
    Shard(u32),
}

/// An event of the run, which is shown or recorded.
pub(super) enum LeaderEvent {
    Connecting(u64),
    Started {
        workers: u32,
        connections: u64,
    },
    Interval(Box<IntervalRecord>, Vec<RequestRecord>),
    /// A message for the user.
    Notice(String),
    /// `plimsoll watch` has requested a stop.
    StopRequested,
}

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaderPhase {
    Arriving,
    Connecting,
    Running,
    /// The load has a result.
    Over,
}

/// What the leader knows about a shard's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArrivalState {
    Absent,
    /// The arrival object is listed, but has not been read yet.
    Listed,
    /// The arrival object was read; the shard has the same plan, build and data.
    Verified,
    /// A withdrawal object is listed, but has not been read yet.
    Withdrawn,
}

/// The leader's view of a shard.
struct RemoteShard {
    arrival: ArrivalState,
    slot: StoreRequestSlot,
    /// Number of the next part of the shard's log to read.
    next_part: u64,
    answered_at: Time,
    silence: Duration,
}

/// The leader's settings: its own arrival, the run's manifest, and the barrier timeout.
pub(super) struct LeaderConfig {
    pub(super) arrival: Arrival,
    pub(super) manifest: RunManifest,
    /// The target's URL, for messages.
    pub(super) url: String,
    pub(super) barrier: Duration,
}

/// The coordinator's state machine.
pub(super) struct Leader {
    config: LeaderConfig,
    unix_zero: u64,
    /// Time until which all shards must have arrived.
    arrival_deadline: Time,
    phase: LeaderPhase,
    manifest_slot: StoreRequestSlot,
    manifest_written: bool,
    list_slot: StoreRequestSlot,
    stop_request_slot: StoreRequestSlot,
    orders_slot: StoreRequestSlot,
    orders: Orders,
    /// The orders that have been written to the store.
    written_orders: Orders,
    pending_orders: Orders,
    shards: Vec<RemoteShard>,
    pub(super) merger: LogMerger,
    stopped_at: Time,
    progress_sent_at: Time,
    failure: Option<String>,
    result: Option<Result<(), EngineError>>,
    events: VecDeque<LeaderEvent>,
}

impl Leader {
    pub(super) fn new(charge: LeaderConfig, now: Time, unix_zero: u64) -> Leader {
        let shards = (0..charge.arrival.of).map(|shard| {
            let offset = Duration::from_millis(u64::from(shard) * 379 % 1_000);
            RemoteShard {
                arrival: ArrivalState::Absent,
                slot: StoreRequestSlot::new(now + offset),
                next_part: 0,
                answered_at: now,
                silence: Duration::ZERO,
            }
        });
        Leader {
            arrival_deadline: now + charge.barrier,
            unix_zero,
            phase: LeaderPhase::Arriving,
            manifest_slot: StoreRequestSlot::new(now),
            manifest_written: false,
            list_slot: StoreRequestSlot::new(now),
            stop_request_slot: StoreRequestSlot::new(now + STOP_POLL_INTERVAL),
            orders_slot: StoreRequestSlot::new(now),
            orders: Orders::default(),
            written_orders: Orders::default(),
            pending_orders: Orders::default(),
            shards: shards.collect(),
            merger: LogMerger::new(&charge.manifest),
            stopped_at: Time::NEVER,
            progress_sent_at: now,
            failure: None,
            result: None,
            events: VecDeque::new(),
            config: charge,
        }
    }

    pub(super) fn next_event(&mut self) -> Option<LeaderEvent> {
        self.events.pop_front()
    }

    /// Returns the result of the load; `None` while it is running.
    pub(super) fn result(&mut self) -> Option<Result<(), EngineError>> {
        // After an abort, return the result only once the reason is in the store, where the other shards read it.
        let is_written = self.orders.abort.is_none() || self.written_orders.abort.is_some();
        if is_written { self.result.take() } else { None }
    }

    /// Orders all shards to stop. `level` is as in [`Orders::stop`].
    pub(super) fn order_stop(&mut self, level: u8, now: Time) {
        if level <= self.orders.stop {
            return;
        }
        self.orders.stop = level;
        self.stopped_at = now;
        self.orders_slot.make_due(now);
        if matches!(self.phase, LeaderPhase::Arriving | LeaderPhase::Connecting) {
            self.abort_with_error(
                "the run was interrupted before the load began".to_owned(),
                EngineError::Interrupted,
                now,
            );
        }
    }

    /// Announces the result of the run. Call this after the run directory is written and judged.
    pub(super) fn announce_result(&mut self, ended: RunResult, now: Time) {
        self.orders.ended = Some(ended);
        self.orders_slot.make_due(now);
    }

    /// Returns whether the end or the abort of the run has been announced in the store.
    pub(super) fn has_ended(&self) -> bool {
        self.written_orders.ended.is_some() || self.written_orders.abort.is_some()
    }

    pub(super) fn poll(&mut self, now: Time) -> Vec<(LeaderRequestKind, StoreRequest)> {
        let mut asks = Vec::new();
        self.check_deadlines(now);
        if !self.manifest_written && self.manifest_slot.is_due(now) {
            self.manifest_slot.mark_sent(now);
            asks.push((
                LeaderRequestKind::Manifest,
                StoreRequest::put_json_request(HEAD_OBJECT, &self.config.manifest),
            ));
        }
        if self.orders_slot.is_due(now) && !self.has_ended() {
            self.orders_slot.mark_sent(now);
            self.orders.beat += 1;
            self.pending_orders = self.orders.clone();
            asks.push((
                LeaderRequestKind::Orders,
                StoreRequest::put_json_request(ORDERS_OBJECT, &self.orders),
            ));
        }
        if self.phase == LeaderPhase::Over {
            return asks;
        }
        if self.phase == LeaderPhase::Arriving && self.list_slot.is_due(now) {
            self.list_slot.mark_sent(now);
            asks.push((
                LeaderRequestKind::List,
                StoreRequest::List(ARRIVALS_FOLDER.to_owned()),
            ));
        }
        if self.stop_request_slot.is_due(now) {
            self.stop_request_slot.mark_sent(now);
            asks.push((
                LeaderRequestKind::StopRequest,
                StoreRequest::Get(STOP_REQUEST_OBJECT.to_owned()),
            ));
        }
        for (shard, remote) in (0..).zip(&mut self.shards) {
            let wanted = match (self.phase, remote.arrival) {
                (_, ArrivalState::Listed) => Some(objects::arrival_object_name(shard)),
                (_, ArrivalState::Withdrawn) => Some(objects::withdrawal_object_name(shard)),
                (LeaderPhase::Arriving, _) => None,
                _ if self.merger.has_ended(shard) => None,
                _ => Some(objects::log_part_object_name(shard, remote.next_part)),
            };
            if let Some(name) = wanted.filter(|_| remote.slot.is_due(now)) {
                remote.slot.mark_sent(now);
                asks.push((LeaderRequestKind::Shard(shard), StoreRequest::Get(name)));
            }
        }
        asks
    }

    /// Checks the deadlines that don't depend on answers of the store.
    fn check_deadlines(&mut self, now: Time) {
        match self.phase {
            LeaderPhase::Arriving if now > self.arrival_deadline => {
                let missing: Vec<u32> = (0..)
                    .zip(&self.shards)
                    .filter_map(|(shard, remote)| {
                        (remote.arrival == ArrivalState::Absent).then_some(shard)
                    })
                    .collect();
                let (missing, of) = (format_shards(&missing), self.config.arrival.of);
                let seconds = self.config.barrier.as_secs();
                let text = format!("{missing} of {of} did not join within {seconds} s (--barrier)");
                self.abort(text, now);
            }
            LeaderPhase::Connecting
                if now.duration_since(self.progress_sent_at) >= POLL_INTERVAL =>
            {
                self.progress_sent_at = now;
                let up = self.merger.aggregator.open_connection_count();
                self.events.push_back(LeaderEvent::Connecting(up));
            }
            LeaderPhase::Running
                if self.orders.stop >= 2
                    && now.duration_since(self.stopped_at) >= SHUTDOWN_TIMEOUT =>
            {
                for shard in 0..self.config.arrival.of {
                    if !self.merger.has_ended(shard) {
                        self.drop_shard(shard, "did not stop when it was told to".to_owned());
                    }
                }
                self.advance_phase(now);
            }
            _ => {}
        }
    }

    pub(super) fn on_answer(&mut self, which: LeaderRequestKind, answer: StoreResponse, now: Time) {
        if let StoreResponse::Failed { problem, for_good } = answer {
            let lane = match which {
                LeaderRequestKind::Manifest => &mut self.manifest_slot,
                LeaderRequestKind::List => &mut self.list_slot,
                LeaderRequestKind::StopRequest => &mut self.stop_request_slot,
                LeaderRequestKind::Orders => &mut self.orders_slot,
                LeaderRequestKind::Shard(shard) => {
                    let remote = &mut self.shards[shard as usize];
                    remote.answered_at = now;
                    &mut remote.slot
                }
            };
            let failing = lane.mark_failed(now);
            let patience = match self.phase {
                LeaderPhase::Arriving => self.config.barrier.max(STORE_TIMEOUT),
                _ => STORE_TIMEOUT,
            };
            if (for_good && self.phase == LeaderPhase::Arriving) || failing >= patience {
                let failing = (!for_good).then_some(failing);
                self.on_store_lost(store_failure_message(&problem, failing), now);
            }
            return;
        }
        match which {
            LeaderRequestKind::Manifest => {
                self.manifest_written = true;
                self.manifest_slot.mark_answered(now);
            }
            LeaderRequestKind::Orders => {
                self.written_orders = self.pending_orders.clone();
                let more = self.orders != self.written_orders;
                let sent = self.orders_slot.sent_or_due_at();
                let next = if more { now } else { sent + POLL_INTERVAL };
                self.orders_slot.mark_answered(next);
            }
            LeaderRequestKind::StopRequest => {
                self.stop_request_slot
                    .mark_answered(now + STOP_POLL_INTERVAL);
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
                self.list_slot.mark_answered(now + POLL_INTERVAL);
                if let StoreResponse::Names(names) = answer {
                    self.on_arrivals_listed(&names, now);
                }
            }
            LeaderRequestKind::Shard(shard) => match self.shards[shard as usize].arrival {
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
        let of = self.config.arrival.of;
        for shard in names
            .iter()
            .filter_map(|name| objects::shard_from_arrival_name(name))
        {
            match self.shards.get_mut(shard as usize) {
                Some(remote) if remote.arrival == ArrivalState::Absent => {
                    remote.arrival = ArrivalState::Listed
                }
                Some(_) => {}
                None => {
                    let text = format!(
                        "shard {shard} joined, but --shards is {of} (numbered from 0): pass the same --shards to every shard"
                    );
                    return self.abort(text, now);
                }
            }
        }
        for shard in names
            .iter()
            .filter_map(|name| objects::shard_from_withdrawal_name(name))
        {
            // Skip the withdrawal while a request is in flight, because the answer to that request would be mistaken
            // for the withdrawal. The next listing contains the withdrawal again.
            if let Some(remote) = self.shards.get_mut(shard as usize)
                && remote.slot.is_idle()
            {
                remote.arrival = ArrivalState::Withdrawn;
                remote.slot.make_due(now);
            }
        }
    }

    /// Handles the content of an arrival or withdrawal. Verifies that a shard that has arrived belongs to this run.
    fn verify_arrival(&mut self, shard: u32, answer: &StoreResponse, now: Time) {
        let remote = &mut self.shards[shard as usize];
        remote.answered_at = now;
        let StoreResponse::Bytes { bytes, .. } = answer else {
            // Retry, because a store may list an object before it can be read.
            remote.slot.mark_answered(now + POLL_INTERVAL);
            return;
        };
        remote.slot.mark_answered(now);
        if remote.arrival == ArrivalState::Withdrawn {
            let reason = objects::parse_withdrawal_reason(bytes);
            let text = format!("shard {shard} of {}: {reason}", self.config.arrival.of);
            return self.abort(text, now);
        }
        remote.arrival = ArrivalState::Verified;
        let own = &self.config.arrival;
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
                .describe_difference(&there.digests)
                .map(|what| format!("has {what} than shard 0: give all shards the same")),
        };
        if let Some(problem) = problem {
            return self.abort(format!("shard {shard} {problem}"), now);
        }
        if self.manifest_written
            && self
                .shards
                .iter()
                .all(|s| s.arrival == ArrivalState::Verified)
        {
            self.phase = LeaderPhase::Connecting;
            self.orders.connect = true;
            self.orders_slot.make_due(now);
        }
    }

    /// Handles the answer to reading a part of a shard's log.
    fn on_log_part(&mut self, shard: u32, answer: StoreResponse, now: Time) {
        let remote = &mut self.shards[shard as usize];
        let waited = now
            .duration_since(remote.answered_at)
            .min(MAX_SILENCE_PER_READ);
        remote.answered_at = now;
        let StoreResponse::Bytes { bytes, .. } = answer else {
            remote.silence += waited;
            remote.slot.mark_answered(now + POLL_INTERVAL);
            if remote.silence >= MAX_SILENCE {
                let seconds = remote.silence.as_secs();
                let why = format!(
                    "it sent nothing for {seconds} s (killed, stopped, or cut off from the rendezvous); what it did after its last message is unknown"
                );
                match self.phase {
                    LeaderPhase::Connecting => self.abort(format!("shard {shard}: {why}"), now),
                    _ => self.drop_shard(shard, why),
                }
                self.advance_phase(now);
            }
            return;
        };
        remote.silence = Duration::ZERO;
        remote.next_part += 1;
        remote.slot.mark_answered(now + LOG_POLL_INTERVAL);
        for message in objects::read_log_part(&bytes) {
            self.on_message(shard, message, now);
        }
        self.advance_phase(now);
    }

    fn on_message(&mut self, shard: u32, message: ShardMessage, now: Time) {
        if self.merger.has_ended(shard) {
            return;
        }
        self.merger.add_message(shard, message, &self.orders);
        if let Some(problem) = self.merger.incomplete_reason(shard) {
            let text = format!("shard {shard} of {}: {problem}", self.config.arrival.of);
            match self.phase {
                LeaderPhase::Connecting | LeaderPhase::Arriving => self.abort(text, now),
                _ => self.stop_all(text, now),
            }
        }
    }

    /// Stops all shards after one has failed, because the remaining load is not the planned load.
    fn stop_all(&mut self, text: String, now: Time) {
        self.events
            .push_back(LeaderEvent::Notice(format!("{text}; stopping the others")));
        self.failure.get_or_insert(text);
        if self.orders.stop == 0 {
            (self.orders.stop, self.stopped_at) = (1, now);
            self.orders_slot.make_due(now);
        }
    }

    /// Drops a shard; the others continue, because stopping them would not improve the measurements.
    fn drop_shard(&mut self, shard: u32, why: String) {
        let text = format!("shard {shard} of {}: {why}", self.config.arrival.of);
        self.events.push_back(LeaderEvent::Notice(format!(
            "{text}; the run goes on without it"
        )));
        self.merger.mark_lost(shard, why);
        self.failure.get_or_insert(text);
    }

    /// Emits events for complete intervals, starts the load once all shards are ready, and sets the result once all
    /// shards have ended.
    fn advance_phase(&mut self, now: Time) {
        while let Some((record, requests)) = self.merger.aggregator.intervals.next(None) {
            let event = LeaderEvent::Interval(Box::new(record), requests);
            self.events.push_back(event);
        }
        match self.phase {
            LeaderPhase::Connecting => {
                if self.merger.aggregator.is_ready() {
                    self.begin(now);
                }
            }
            LeaderPhase::Running => {
                if (0..self.config.arrival.of).all(|shard| self.merger.has_ended(shard)) {
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
        let (established, workers) = self.merger.aggregator.connect_summary();
        let attempted = u64::from(established.open) + u64::from(established.failed);
        if let Err(error) = established.require_any(&self.config.url, attempted) {
            return self.abort_with_error(error.to_string(), error, now);
        }
        let offset = i128::from(self.merger.clock_offset(0).unwrap_or_default().offset_us) * 1_000;
        let begin = i128::from(self.unix_zero) + i128::from((now + START_LEAD_TIME).0) + offset;
        self.orders.begin_unix_ns = Some(u64::try_from(begin).unwrap_or(0));
        self.orders_slot.make_due(now);
        self.phase = LeaderPhase::Running;
        self.events.push_back(LeaderEvent::Started {
            workers,
            connections: u64::from(established.open),
        });
    }

    /// Aborts the run before the load starts.
    fn abort(&mut self, reason: String, now: Time) {
        self.abort_with_error(reason.clone(), EngineError::Shards(reason), now);
    }

    fn abort_with_error(&mut self, reason: String, error: EngineError, now: Time) {
        if self.phase == LeaderPhase::Over {
            return;
        }
        self.phase = LeaderPhase::Over;
        self.orders.abort = Some(reason);
        self.result = Some(Err(error));
        self.orders_slot.make_due(now);
    }

    /// Ends the run because the store is unreachable. Orders can't be written either; members detect this by timeout.
    fn on_store_lost(&mut self, reason: String, now: Time) {
        if self.phase != LeaderPhase::Over {
            self.merger.aggregator.intervals.mark_all_ended();
            self.phase = LeaderPhase::Over;
            self.advance_phase(now);
            self.result = Some(Err(EngineError::Shards(reason.clone())));
        }
        self.orders.abort.get_or_insert(reason);
        self.written_orders = self.orders.clone();
    }
}

/// Formats shard numbers: `shard 2` or `shards 2, 5 to 7`.
pub(super) fn format_shards(numbers: &[u32]) -> String {
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
