//! The event loop of a worker. There is about one worker per core, and workers share no state.
//!
//! One iteration waits for the next arrival or ready socket, reads the clock, lets the client start due calls and serve
//! ready sockets, and records the results. [`due_calls`] decides which calls are due (open or closed loop), [`connecting`]
//! establishes connections, and the [`client`] decides how they are used. Order within an iteration: wait, sockets,
//! timers, connections, arrivals, writes. The conductor runs one event loop per worker thread.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use plimsoll_model::records::record::RecordedInterval;
use plimsoll_model::records::recorder::{CallTracing, Recorder};
use plimsoll_model::runs::run::NegotiatedTls;
use plimsoll_model::{Outcome, Time};

use crate::pauses::{MAX_POLL_GAP_NS, PauseTracker};
use crate::tls::{HandshakeTally, TlsClient};
use crate::transport::addresses::TargetAddresses;
use crate::transport::network::{Network, SocketReady, SocketToken, WaitKind, WakeTime};
use crate::transport::poller::MAX_EVENTS;

mod address_racing;
mod batches;
pub(crate) mod client;
mod connect_summary;
pub(crate) mod connecting;
pub(crate) mod connection;
pub(crate) mod due_calls;
mod intervals;
mod tick_sleep;
pub(crate) mod timers;
mod worker_control;
mod worker_share;

use address_racing::ConnectRaces;
use client::{LoopClient, LoopHandler};
pub use connect_summary::ConnectSummary;
use connection::Connection;
use due_calls::{CallSource, LoadPhase};
pub use intervals::INTERVAL_NS;
use intervals::IntervalClock;
pub use worker_control::{StopUrgency, WorkerControl, WorkerInterval};
pub use worker_share::WorkerShare;

/// One worker's event loop; the module documentation describes an iteration.
pub struct EventLoop<C: LoopClient, N: Network> {
    pub(crate) client: C,
    pub(crate) network: N,
    pub(crate) share: WorkerShare,
    /// The addresses of each target, indexed by the target's number.
    pub(crate) addresses: Vec<TargetAddresses>,
    pub(crate) races: ConnectRaces<N::Socket>,

    pub(crate) connections: Vec<Option<Connection<C::ConnectionData, N::Socket>>>,
    free_indices: Vec<u32>,
    next_generation: u32,
    /// Connection requests that have not been started, oldest first.
    pub(crate) to_connect: VecDeque<C::ConnectRequest>,
    /// Number of connections that are being established.
    pub(crate) connecting: usize,
    next_connect: Time,
    connect_deadlines: VecDeque<(Time, SocketToken)>,
    /// Connections that still had unread bytes when their read limit for one iteration was reached.
    pub(crate) unfinished: Vec<SocketToken>,
    pub(crate) open_connections: u32,
    pub(crate) handshakes: HandshakeTally,
    /// Read buffer, shared by all connections.
    pub(crate) buffer: Vec<u8>,

    pub(crate) recorder: Recorder,
    /// An emptied interval whose allocations are reused for the next one.
    spare: Option<RecordedInterval>,
    intervals: IntervalClock,
    pub(crate) pauses: PauseTracker,
    /// Whether a lower bound of each call's response time is recorded as well.
    pub(crate) records_lower_bounds: bool,
    /// Time of the previous poll of the sockets: everything that this iteration finds has arrived since then.
    pub(crate) last_poll: Time,
    /// The time at which the wait of the current iteration ended.
    awoke_at: Time,

    pub(crate) start: Time,
    /// The time at which the load ends; [`Time::NEVER`] after the end has been handled, or if the load ends after a
    /// number of calls.
    load_end: Time,
    pub(crate) call_source: CallSource,
    pub(crate) stage: u8,
    pub(crate) phase: LoadPhase,
    pub(crate) stopped_at: Time,
    /// Whether the run was stopped early, so that waiting calls are no longer started.
    pub(crate) interrupted: bool,
    /// A call's deadline in nanoseconds from when it was due; `u64::MAX` if there is none.
    pub(crate) deadline_ns: u64,
    /// Number of calls that have become due so far.
    pub(crate) calls_due: u64,
}

impl<C: LoopClient, N: Network> EventLoop<C, N>
where
    Self: LoopHandler<C::ConnectRequest>,
{
    /// Creates an event loop with connections to `targets` targets and a read buffer of `buffer` bytes.
    pub(crate) fn with_client(
        client: C,
        share: WorkerShare,
        network: N,
        targets: usize,
        buffer: usize,
    ) -> Self {
        // Connections established before the load are counted in the first stage that counts towards the totals.
        let first_counted = share.load.stages.iter().position(|stage| !stage.warmup);
        let stamps = share.measures_lateness() && network.has_receive_times();
        let mut call_source = CallSource::from_share(&share);
        if let CallSource::Open(open) = &mut call_source
            && !stamps
        {
            open.tick_sleep = None;
        }
        EventLoop {
            client,
            network,
            addresses: (0..targets).map(TargetAddresses::for_target).collect(),
            races: ConnectRaces::default(),
            connections: Vec::new(),
            free_indices: Vec::new(),
            next_generation: 0,
            to_connect: VecDeque::new(),
            connecting: 0,
            next_connect: Time::ZERO,
            connect_deadlines: VecDeque::new(),
            unfinished: Vec::new(),
            open_connections: 0,
            handshakes: HandshakeTally::default(),
            buffer: vec![0; buffer],
            recorder: Recorder::new(share.load.stages.len()).with_request_log(share.keep_requests),
            spare: None,
            intervals: IntervalClock::starting_at(Time::NEVER),
            pauses: PauseTracker::new(),
            records_lower_bounds: stamps,
            last_poll: Time::ZERO,
            awoke_at: Time::ZERO,
            start: Time::NEVER,
            load_end: Time::NEVER,
            call_source,
            stage: first_counted.unwrap_or(0) as u8,
            phase: LoadPhase::Connecting,
            stopped_at: Time::NEVER,
            interrupted: false,
            deadline_ns: (share.load.deadline)
                .map_or(u64::MAX, |deadline| (Time::ZERO + deadline).0),
            calls_due: 0,
            share,
        }
    }

    /// Serves the connections until the load begins. Returns `false` if the run is stopped before that.
    ///
    /// # Errors
    /// Returns an error if a system call of the event loop fails, which targets cannot cause.
    pub fn await_start(&mut self, control: &mut impl WorkerControl) -> io::Result<bool> {
        let mut ready = Vec::new();
        while control.start_time().is_none() {
            if control.stop_urgency() != StopUrgency::Run {
                return Ok(false);
            }
            let soon = self.network.now() + Duration::from_millis(50);
            self.run_iteration(control, Some(soon), &mut ready)?;
        }
        Ok(true)
    }

    /// Runs the load from `start` until the last call has ended.
    ///
    /// # Errors
    /// Returns the same errors as [`EventLoop::await_start`]. Everything recorded before the error has been sent to the
    /// conductor.
    ///
    /// # Panics
    /// Panics if a driver, a script or the loop itself panics; everything recorded until then is sent to the conductor
    /// first.
    pub fn run(&mut self, start: Time, control: &mut impl WorkerControl) -> io::Result<()> {
        let carried = catch_unwind(AssertUnwindSafe(|| self.run_load(start, control)));
        carried.unwrap_or_else(|panic| {
            self.send_records_after_panic(control);
            resume_unwind(panic)
        })
    }

    fn run_load(&mut self, start: Time, control: &mut impl WorkerControl) -> io::Result<()> {
        self.start = start;
        if let Some(ids) = self.client.trace_ids() {
            self.recorder.enable_tracing(CallTracing {
                ids,
                worker: self.share.index,
                start,
                unix_zero_ns: self.share.unix_zero_ns,
                sampler: self.share.sampler.take(),
            });
        }
        self.intervals = IntervalClock::starting_at(start);
        self.start_issuing();
        // Detects a pause that began before the load, when pauses were not tracked yet, and extends into it.
        let now = self.network.now();
        if let Some(length) = self.pauses.late_start_ns(start, now) {
            self.record_pause(length, now);
        }
        let mut ready = Vec::new();
        let mut result = Ok(());
        while self.phase != LoadPhase::Ended {
            if let Err(e) = self.run_iteration(control, None, &mut ready) {
                result = Err(e);
                break;
            }
        }
        let now = self.network.now();
        let calls = self.call_counts();
        self.pauses.end_recovery(calls, &mut self.recorder);
        let outcome = match control.stop_urgency() {
            StopUrgency::Run => Outcome::CutOff,
            _ => Outcome::Interrupted,
        };
        self.shut_down(control, outcome, now);
        self.finish_interval(control, now, true);
        result
    }

    /// Runs one iteration of the loop.
    pub(crate) fn run_iteration(
        &mut self,
        control: &mut impl WorkerControl,
        at_latest: Option<Time>,
        ready: &mut Vec<SocketReady>,
    ) -> io::Result<()> {
        let before = self.network.now();
        self.pauses.slow_sends.end(before);
        let wake = self.next_wake(at_latest, before);
        self.network.wait(Some(wake), ready)?;
        let mut now = self.network.now();
        let found = ready.len();
        // If the event buffer was full, more events may have been pending already before the previous poll.
        self.last_poll = if found < MAX_EVENTS {
            self.awoke_at
        } else {
            Time::ZERO
        };
        self.awoke_at = now;
        self.intervals.add_wait(now.since(before), found);
        if let Some(length) = self.pauses.check_wait(before, wake.at, now) {
            self.record_pause(length, now);
        }

        for (i, event) in ready.iter().copied().enumerate() {
            self.prefetch_ready_connections(&ready[i..]);
            self.serve_socket(control, event);
            // Start due calls in between, so that they do not have to wait until many answers have been processed.
            if self.call_source.is_due(self.start, now) || i % 64 == 63 {
                now = self.network.now();
                self.pauses.slow_sends.end(now);
                self.issue_due_calls(control, now);
                self.flush(control);
            }
        }
        self.process_lookups(control);
        // The unread bytes of these connections may have arrived before the last poll, so no lower bound of their
        // arrival is known.
        self.last_poll = Time::ZERO;
        for token in std::mem::take(&mut self.unfinished) {
            self.serve_socket(control, SocketReady::with_unread_bytes(token));
        }
        now = self.network.now();
        self.pauses.slow_sends.end(now);
        if now >= self.load_end {
            self.end_load(control, now);
        }
        self.expire_timers(control, now);
        self.begin_connections(control, now);
        self.issue_due_calls(control, now);
        // A literal address needs no lookup and is available at once: connect to it in this iteration.
        self.process_lookups(control);
        self.flush(control);
        self.advance_phase(control, now);
        if self.pauses.is_recovering() {
            let calls = self.call_counts();
            self.pauses.check_recovery(now, calls, &mut self.recorder);
        }
        if now >= self.intervals.end() {
            self.finish_interval(control, now, false);
        }
        Ok(())
    }

    /// Ends the load at its scheduled end: starts the calls that were still due, then notifies the client before
    /// deadlines are checked.
    #[cold]
    fn end_load(&mut self, control: &mut impl WorkerControl, now: Time) {
        let end = std::mem::replace(&mut self.load_end, Time::NEVER);
        self.issue_due_calls(control, now);
        if self.is_exhausted(now) {
            self.stop_issuing(now);
        }
        if !self.interrupted {
            self.on_load_end(control, end, now);
        }
    }

    #[cold]
    fn record_pause(&mut self, length_ns: u64, now: Time) {
        // A pause before the load affects no call.
        if self.phase == LoadPhase::Connecting || now < self.start {
            return;
        }
        let calls = self.call_counts();
        let length_ns = length_ns.min(now.since(self.start));
        self.pauses
            .begin_recovery(length_ns, now, calls, &mut self.recorder);
    }

    /// Returns the stage, the number of calls in flight or waiting, and the number of calls due so far.
    fn call_counts(&self) -> (u8, u64, u64) {
        let under_way = self.client.calls_in_flight()
            + self.client.connecting_calls()
            + self.call_source.backlog_length();
        (self.stage, under_way, self.calls_due)
    }

    /// Returns when the loop must wake up at the latest.
    fn next_wake(&self, at_latest: Option<Time>, now: Time) -> WakeTime {
        // Maximum wait in nanoseconds, so that stop requests and pauses are noticed.
        let look = if self.client.calls_in_flight() > 0 {
            MAX_POLL_GAP_NS
        } else {
            100_000_000
        };
        let mut at = now.plus_nanos(look).min(self.intervals.end());
        at = at.min(at_latest.unwrap_or(Time::NEVER));
        if let Some((deadline, _)) = self.connect_deadlines.front() {
            at = at.min(*deadline);
        }
        at = at.min(self.races.next_timer());
        // While names are being resolved, no other connection attempt is started.
        let can_connect = self.connecting < self.share.max_pending_connections()
            && !self.addresses.iter().any(TargetAddresses::is_resolving);
        if !self.to_connect.is_empty() && can_connect {
            at = at.min(self.next_connect);
        }
        at = at.min(self.next_timer());
        if !self.unfinished.is_empty() || self.client.has_unsent_bytes() {
            at = now;
        }
        at = at.min(self.next_issue_time()).min(self.drain_end());
        let leaves = self.next_arrival();
        if leaves <= at {
            let kind = if self.may_sleep_until(leaves, now) {
                WaitKind::Asleep
            } else {
                WaitKind::Precise
            };
            WakeTime { at: leaves, kind }
        } else {
            WakeTime {
                at,
                kind: WaitKind::Rough,
            }
        }
    }

    /// Returns whether the loop may sleep until the arrival at `at` without looking at its sockets.
    #[inline]
    fn may_sleep_until(&self, at: Time, now: Time) -> bool {
        let CallSource::Open(open) = &self.call_source else {
            return false;
        };
        open.tick_sleep
            .as_ref()
            .is_some_and(|sleep| sleep.allows(now, at))
            && self.phase == LoadPhase::Loading
            && self.connecting == 0
            && self.to_connect.is_empty()
            && self.unfinished.is_empty()
            && self.client.connecting_calls() == 0
            && self.client.calls_in_flight() <= u64::from(self.open_connections)
            && self.call_source.backlog_length() == 0
    }

    /// Returns the parameters that the TLS handshakes negotiated; `None` if there were none.
    fn negotiated_tls(&mut self) -> Option<NegotiatedTls> {
        let clients = (0..self.addresses.len()).filter_map(|target| self.client.tls(target));
        let renewed = clients.clone().map(TlsClient::reload_count).max();
        let mut taken: Vec<_> = clients
            .flat_map(TlsClient::certificate_exceptions)
            .collect();
        taken.dedup();
        let mut negotiated = self.handshakes.take(taken)?;
        negotiated.renewed = renewed.unwrap_or(0);
        Some(negotiated)
    }

    /// Sends the recorded data to the conductor after a panic. The loop's tables may be inconsistent, so the number of
    /// calls in flight is derived from the records: calls that were due and have no recorded end.
    fn send_records_after_panic(&mut self, control: &mut impl WorkerControl) {
        let now = self.network.now();
        let recorded = self.recorder.take_interval(None);
        control.add_connections(-i64::from(self.open_connections));
        control.send_interval(WorkerInterval {
            is_last: true,
            negotiated: self.negotiated_tls(),
            connections: self.open_connections,
            ..self
                .intervals
                .finish_interval(self.share.index, recorded, now)
        });
    }

    /// Sends the completed interval to the conductor and begins the next one.
    fn finish_interval(&mut self, control: &mut impl WorkerControl, now: Time, last: bool) {
        let recorded = self.recorder.take_interval(self.spare.take());
        self.spare = control.send_interval(WorkerInterval {
            is_last: last,
            negotiated: if last { self.negotiated_tls() } else { None },
            in_flight: self.client.calls_in_flight(),
            backlog: self.call_source.backlog_length(),
            connections: self.open_connections,
            users: self.client.take_users(now),
            ..self
                .intervals
                .finish_interval(self.share.index, recorded, now)
        });
    }
}
