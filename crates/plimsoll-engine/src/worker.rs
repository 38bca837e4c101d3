//! Runs drivers on the event loop: independent calls over connections, each of which carries many calls.
//!
//! [`call_starts`] starts calls on connections with capacity, [`connection`] and [`lifecycle`] serve connections, and
//! [`slots`] replaces lost ones. The conductor creates one [`Worker`] per thread.
//!
//! This file is long because the state of a worker, which the other files change, is defined and created here.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use plimsoll_model::plan::ConnectionReuse;
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::schedule::Arrival;
use plimsoll_model::{Outcome, Time};

use crate::driver::{Driver, Event, Protocol};
use crate::event_loop::EventLoop;
use crate::event_loop::client::{ConnectDecision, LoopClient, LoopHandler};
use crate::event_loop::connection::ConnectionState;
use crate::event_loop::due_calls::{CallSource, LoadPhase};
use crate::event_loop::timers::TimerQueue;
use crate::host::resources::BatchMeter;
use crate::structures::heap;
use crate::structures::prefetch::prefetch;
use crate::tls::TlsClient;
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::{LookupScope, Network, ResolveResult, SocketReady, SocketToken};

mod answer_remainders;
mod call_starts;
mod call_table;
mod certificate_losses;
mod connection;
mod deadlines;
mod events;
mod in_flight_limiter;
mod lifecycle;
mod response_tokens;
mod retry;
mod slots;

pub use crate::event_loop::{
    ConnectSummary, INTERVAL_NS, StopUrgency, WorkerControl, WorkerInterval, WorkerShare,
};
pub use crate::transport::addresses::classify_connect_error;
pub(crate) use call_starts::MIN_TIMEOUT_REDUCTION;
use call_table::CallTable;
use connection::{ConnectionRole, DriverState, PendingCall, ReadContext, ReadUntil};
use in_flight_limiter::InFlightLimiter;
pub(crate) use response_tokens::ResponseTokens;
use response_tokens::TokenTracker;
use retry::RetryQueue;

/// The event loop for calls that are independent of each other.
pub type Worker<P, N> = EventLoop<DriverClient<P>, N>;

/// A slot for one of the plan's persistent connections. The connection in it is replaced when it is lost.
#[derive(Clone, Debug, Default)]
struct ConnectionSlot {
    connection: Option<u32>,
    /// Closed loop: number of idle clients of this slot, each of which is about to start a call.
    idle: u32,
    /// The times at which idle clients began to wait because the connection had no capacity, oldest first.
    waiting: VecDeque<Time>,
    /// Whether the slot has an entry in the worker's `wait_deadlines`.
    has_wait_timer: bool,
    failures: u32,
    /// The outcome of the last failed connection attempt; `None` if a later one has succeeded.
    last_failure: Option<Outcome>,
    was_tried: bool,
}

/// The state that drivers keep in a worker's event loop.
pub struct DriverClient<P: Protocol> {
    protocol: Arc<P>,
    tls: Option<TlsClient>,
    /// Whether this worker has no session ticket yet, although the plan resumes TLS sessions, because it has not had a
    /// connection.
    ticketless: bool,
    /// The value of [`Protocol::is_mostly_idle`].
    is_mostly_idle: bool,

    slots: Vec<ConnectionSlot>,
    slots_down: usize,
    /// Connections with capacity, in the order in which they are used next.
    available: VecDeque<u32>,
    dirty: Vec<u32>,
    /// Open loop: connections that are reading the remainder of an answer whose call has ended, and the time at which
    /// each began to; oldest first.
    reading_remainders: VecDeque<(Time, SocketToken)>,

    calls: CallTable,
    tokens: TokenTracker,
    events: Vec<Event>,
    spare_outboxes: Vec<Vec<u8>>,
    /// Calls that the server did not process, or refused for now.
    retries: RetryQueue,

    /// Calls that are waiting for a separate connection, by that connection's index in `connections`.
    pending_calls: Vec<PendingCall>,
    /// Number of calls that currently have a separate connection.
    single_calls: usize,
    /// The plan's limit of calls in flight, if it has one.
    limit: Option<InFlightLimiter>,
    /// Deadlines of calls that are waiting for a separate connection; sorted.
    attempt_deadlines: VecDeque<(Time, SocketToken)>,
    /// The time at which the last answer arrived; used to detect a stalled target.
    last_answer: Time,
    /// The earliest time at which the answers that are being processed can have reached this host.
    answers_arrived: Time,
    /// Closed loop: by slot, the time at which the deadline of its longest-waiting client passes.
    wait_deadlines: TimerQueue<u32>,
    reconnects: TimerQueue<u32>,
    /// Closed loop: by slot, the time at which a client's think time ends.
    thinking: TimerQueue<u32>,
    driver_timers: TimerQueue<SocketToken>,
    /// Connections with a low-water mark, and the time at which to check for unread bytes below the mark.
    low_water_checks: VecDeque<(Time, SocketToken)>,

    established: ConnectSummary,
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Creates a worker with the connections and calls of `share`. It connects in [`Worker::establish_connections`].
    pub fn new(share: WorkerShare, network: N, protocol: Arc<P>, tls: Option<TlsClient>) -> Self {
        let slots = match share.load.reuse {
            ConnectionReuse::Always => share.connections,
            ConnectionReuse::Never => 0,
        };
        let drivers = DriverClient {
            is_mostly_idle: protocol.is_mostly_idle(),
            tokens: TokenTracker::new(protocol.goodput_bounds()),
            protocol,
            ticketless: tls.as_ref().is_some_and(TlsClient::resumes_sessions),
            tls,
            slots: vec![ConnectionSlot::default(); slots as usize],
            slots_down: 0,
            available: VecDeque::with_capacity(slots as usize),
            dirty: Vec::new(),
            reading_remainders: VecDeque::new(),
            calls: CallTable::new(),
            events: Vec::new(),
            spare_outboxes: Vec::new(),
            retries: RetryQueue::new(),
            pending_calls: Vec::new(),
            single_calls: 0,
            limit: InFlightLimiter::from_share(&share),
            attempt_deadlines: VecDeque::new(),
            last_answer: Time::ZERO,
            answers_arrived: Time::ZERO,
            wait_deadlines: TimerQueue::new(),
            reconnects: TimerQueue::new(),
            thinking: TimerQueue::new(),
            driver_timers: TimerQueue::new(),
            low_water_checks: VecDeque::new(),
            established: ConnectSummary::default(),
        };
        let (clients, buffer) = (share.clients, share.load.read_buffer);
        let mut worker = EventLoop::with_client(drivers, share, network, 1, buffer);
        worker.connections.reserve_exact(slots as usize);
        worker.to_connect = (0..slots).collect();
        if let CallSource::Closed(closed) = &mut worker.call_source {
            closed.starts_persistent = true;
            if slots == 0 {
                closed.ready_clients = clients;
            } else {
                for client in 0..clients {
                    worker.client.slots[(client % slots) as usize].idle += 1;
                }
            }
        }
        worker
    }

    /// Reads CPU clocks with `meter` at the beginning of each batch.
    pub fn set_batch_meter(&mut self, meter: Option<BatchMeter>) {
        match &mut self.call_source {
            CallSource::Open(open) => open.batch_meter = meter,
            CallSource::Closed(closed) => {
                if let Some((turns, meter)) = closed.batches.as_mut().zip(meter) {
                    turns.set_meter(meter);
                }
            }
        }
    }

    /// Establishes the plan's connections. Returns after each has succeeded or failed once; failed ones are retried
    /// during the load.
    ///
    /// # Errors
    /// Returns the same errors as [`EventLoop::await_start`].
    pub fn establish_connections(
        &mut self,
        control: &mut impl WorkerControl,
    ) -> io::Result<ConnectSummary> {
        let mut ready = Vec::new();
        let alone = self.share.of == 1;
        let before = alone.then(heap::allocated_bytes).flatten();
        while self.client.slots.iter().any(|slot| !slot.was_tried)
            && control.stop_urgency() == StopUrgency::Run
        {
            self.run_iteration(control, None, &mut ready)?;
        }
        let grown = |before| Some(heap::allocated_bytes()?.saturating_sub(before));
        self.client.established.heap_bytes = before.and_then(grown);
        Ok(self.client.established.clone())
    }
}

impl<P: Protocol> DriverClient<P> {
    /// Borrows the buffers and settings that receiving on a connection needs.
    #[inline]
    fn borrow_read_context<'a>(
        &'a mut self,
        buffer: &'a mut [u8],
        until: ReadUntil,
    ) -> ReadContext<'a> {
        ReadContext {
            buffer,
            alpn: self.protocol.alpn(),
            tls: self.tls.as_ref(),
            until,
            events: &mut self.events,
        }
    }
}

impl<P: Protocol> LoopClient for DriverClient<P> {
    type ConnectionData = DriverState<P::Driver>;
    /// The index of a slot.
    type ConnectRequest = u32;
    const COUNTS_WARMUP: bool = false;
    const AWAITS_LATE_ANSWERS: bool = true;

    fn tls(&self, _target: usize) -> Option<&TlsClient> {
        self.tls.as_ref()
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.protocol.trace_ids()
    }

    fn calls_in_flight(&self) -> u64 {
        self.calls.len() as u64
    }

    fn connecting_calls(&self) -> u64 {
        self.single_calls as u64
    }

    fn has_unsent_bytes(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn is_bounded_by_drain(&self, _share: &WorkerShare) -> bool {
        true
    }
}

impl<P: Protocol, N: Network> LoopHandler<u32> for Worker<P, N> {
    #[inline]
    fn prefetch(&self, index: u32) {
        if let Some(connection) = &self.connections[index as usize] {
            connection.data.driver.prefetch();
            if let ConnectionRole::Slot(slot) = connection.data.role {
                prefetch(&self.client.slots[slot as usize]);
            }
        }
    }

    #[inline]
    fn serve(&mut self, control: &mut impl WorkerControl, index: u32, ready: SocketReady) {
        self.serve_connection(control, index, ready);
    }

    fn on_transport_up(&mut self, control: &mut impl WorkerControl, index: u32, now: Time) {
        self.send_greeting(control, index, now);
    }

    fn on_disconnect(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        loss: &ConnectionLoss,
        now: Time,
    ) {
        self.on_connection_lost(control, index, loss, now);
    }

    fn not_ready_reason(&self, index: u32) -> Option<&'static str> {
        let connection = self.connections[index as usize].as_ref()?;
        let own = &connection.data;
        let waits = matches!(own.role, ConnectionRole::SingleCall) && !own.attempt_started;
        (waits && connection.state == ConnectionState::Open).then(|| connection.state.wait_reason())
    }

    fn on_resolved(
        &mut self,
        control: &mut impl WorkerControl,
        token: SocketToken,
        found: ResolveResult,
    ) {
        let Some(index) = self.find_connection(token) else {
            return;
        };
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        // The number is unique over all processes, so that connections are spread evenly over the addresses.
        let (number, lookup) = match connection.data.role {
            ConnectionRole::Slot(slot) => (self.slot_number(slot), LookupScope::Shared),
            ConnectionRole::SingleCall => (
                self.client.pending_calls[index as usize].number,
                LookupScope::Own,
            ),
        };
        let now = self.network.now();
        let until = now + self.share.load.resolve_interval;
        match self.addresses[0].store_lookup_result(found, lookup, until, &mut self.recorder) {
            Ok(()) => self.connect(control, index, number, now),
            Err(loss) => self.on_disconnect(control, index, &loss, now),
        }
    }

    fn decide_connect(
        &mut self,
        _control: &mut impl WorkerControl,
        _lane: u32,
        _now: Time,
    ) -> ConnectDecision {
        // Calls that were due before the load ended may still wait for a connection.
        let awaited = !self.interrupted
            && (self.call_source.backlog_length() > 0 || !self.client.retries.is_empty());
        match self.phase {
            LoadPhase::Draining if !awaited => ConnectDecision::Drop,
            _ => ConnectDecision::Start,
        }
    }

    fn begin_connection(&mut self, control: &mut impl WorkerControl, slot: u32, now: Time) {
        let index = self.add_driver_connection(ConnectionRole::Slot(slot), now);
        if self.addresses[0].is_fresh(now) {
            self.connect(control, index, self.slot_number(slot), now);
        } else {
            self.network
                .resolve(0, self.socket_token(index), LookupScope::Shared);
        }
    }

    fn next_timer(&self) -> Time {
        let client = &self.client;
        let first =
            |queue: &VecDeque<(Time, SocketToken)>| queue.front().map_or(Time::NEVER, |q| q.0);
        let mut at = client
            .reconnects
            .next_time()
            .min(client.thinking.next_time())
            .min(client.retries.next_time())
            .min(client.driver_timers.next_time())
            .min(first(&client.low_water_checks))
            .min(self.next_set_aside_time());
        let Some(deadline) = self.share.load.deadline else {
            return at.min(self.stall_timeout_ends_at());
        };
        if let Some((_, oldest)) = client.calls.oldest() {
            at = at.min(oldest.arrival + deadline);
        }
        if !self.interrupted {
            let backlog = self.call_source.backlog();
            at = backlog.map_or(at, |backlog| {
                at.min(backlog.oldest_due_time(self.start) + deadline)
            });
            at = at.min(client.wait_deadlines.next_time());
        }
        at.min(first(&client.attempt_deadlines))
    }

    fn expire_timers(&mut self, control: &mut impl WorkerControl, now: Time) {
        let is_due = |first: &mut (Time, SocketToken)| first.0 <= now;
        if let Some(deadline) = self.share.load.deadline {
            self.expire_calls(control, deadline, now, now);
            self.expire_waiting_calls(deadline, now);
        } else if self.stall_timeout_ends_at() <= now {
            self.fail_stalled_calls(control, now);
        }
        if self.next_set_aside_time() <= now {
            self.set_aside_connections(control, now);
        }
        self.expire_connect_attempts(control, now);
        while let Some((_, token)) = self.client.attempt_deadlines.pop_front_if(is_due) {
            self.fail_expired_attempt(control, token, now);
        }
        self.start_due_attempts(control, now);
        while let Some((_, slot)) = self.client.reconnects.pop_due(now) {
            self.to_connect.push_back(slot);
        }
        self.client.retries.release_due(now);
        while let Some((_, token)) = self.client.driver_timers.pop_due(now) {
            self.on_driver_timer(control, token, now);
        }
        while let Some((_, token)) = self.client.low_water_checks.pop_front_if(is_due) {
            self.check_low_water(control, token, now);
        }
    }

    fn on_load_end(&mut self, control: &mut impl WorkerControl, end: Time, now: Time) {
        self.end_open_ended_calls(control, end, now);
    }

    #[inline]
    fn on_arrival(&mut self, _control: &mut impl WorkerControl, arrival: Arrival, now: Time) {
        self.count_due_call(arrival.stage);
        let late_ns = now.since(self.start.plus_nanos(arrival.at));
        if self.client.limit.is_some() && self.shed_if_at_limit(arrival, now) {
            return;
        }
        if self.call_source.backlog().is_some() || !self.try_start(arrival, now, late_ns) {
            self.enqueue_call(arrival, late_ns);
        }
        self.update_time_at_limit(now);
    }

    fn on_missed_deadline(&mut self, stage: u8) {
        self.count_due_call(stage);
        self.recorder.stage_mut(stage).not_started += 1;
    }

    #[inline]
    fn start_backlog(&mut self, now: Time) {
        self.update_time_at_limit(now);
        if self.client.retries.has_ready() {
            // Retries were due before all calls in the backlog, so they come first.
            self.start_retries(now);
        }
        if self.call_source.backlog().is_some() && !self.interrupted {
            self.drain_backlog(now);
            self.update_time_at_limit(now);
        }
    }

    fn issue_on_persistent_connections(&mut self, now: Time) {
        if self.call_source.take_persistent_start_flag() {
            for slot in 0..self.client.slots.len() {
                if self.share.load.batches.is_some() {
                    // Time in which another load's batch was running does not count as waiting for a connection.
                    self.client.slots[slot].waiting.clear();
                }
                self.start_idle_clients(slot as u32, now);
            }
        }
        while let Some((_, slot)) = self.client.thinking.pop_due(now) {
            self.client.slots[slot as usize].idle += 1;
            self.start_idle_clients(slot, now);
        }
    }

    fn start_client_call(&mut self, _control: &mut impl WorkerControl, number: u64, now: Time) {
        self.count_due_call(self.stage);
        self.connect_for_call(PendingCall {
            number,
            arrival: now,
            begun: now,
            stage: self.stage,
            is_retry: false,
        });
    }

    #[inline]
    fn flush(&mut self, control: &mut impl WorkerControl) {
        if self.client.retries.has_ready() {
            let now = self.network.now();
            self.start_retries(now);
        }
        self.flush_dirty_connections(control);
    }

    fn is_idle(&self) -> bool {
        let waiting = self.call_source.backlog().is_some() && !self.interrupted;
        self.client.calls.len() == 0 && self.client.single_calls == 0 && !waiting
    }

    fn shut_down(&mut self, control: &mut impl WorkerControl, outcome: Outcome, now: Time) {
        // Report the change before closing, since an observer of the server must not see fewer connections than were
        // reported.
        control.add_connections(-i64::from(self.open_connections));
        self.abandon_backlog(now);
        self.races.cancel_all(&mut self.network);
        for index in 0..self.connections.len() as u32 {
            self.close_connection_at_run_end(index, outcome, now);
        }
        self.end_retries(outcome, now);
    }
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Returns the stage in which a connection's events are counted: the stage of its call, or the current stage if it
    /// has none.
    fn connection_stage(&self, index: u32, role: ConnectionRole) -> u8 {
        match role {
            ConnectionRole::Slot(_) => self.stage,
            ConnectionRole::SingleCall => self.client.pending_calls[index as usize].stage,
        }
    }

    /// Returns a slot's number, which is unique across all workers and processes.
    fn slot_number(&self, slot: u32) -> u64 {
        u64::from(slot) * u64::from(self.share.of) + u64::from(self.share.index)
    }
}
