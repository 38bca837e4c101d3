//! Scripts as clients of the event loop: simulated users with several connections each.
//!
//! A user that arrives, or starts again in a closed loop, gets a script; [`links`] transfers the bytes of its
//! connections. The conductor creates one [`ScriptWorker`] per thread. Invariant: every call that a script has reported
//! as due is recorded exactly once; a script that is aborted at the end of the run must end its call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::plan::ArrivalModel as ArrivalsPlan;
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::runs::run::UserLevels;
use plimsoll_model::schedule::Arrival;
use plimsoll_model::{Outcome, Time};

use super::client_numbers::ClientNumbers;
use super::context::{
    LinkId, MAX_LINKS, Script, ScriptAction, ScriptContext, ScriptFactory, ScriptStart,
};
use super::user_meter::UserMeter;
use crate::event_loop::client::{ConnectDecision, LoopClient, LoopHandler};
use crate::event_loop::due_calls::{CallSource, LoadPhase};
use crate::event_loop::timers::TimerQueue;
use crate::event_loop::{EventLoop, WorkerControl, WorkerShare};
use crate::fault;
use crate::structures::slab::GenerationalSlab;
use crate::tls::TlsClient;
use crate::transport::addresses::NO_ADDRESS;
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::{LookupScope, Network, ResolveResult, SocketReady, SocketToken};

mod links;

use links::LinkOwner;

/// Size of the read buffer in bytes. It is small because a peer may fill it with thousands of tiny messages, whose
/// processing delays all other users.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// Minimum pause of a user whose script failed.
const MIN_PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// An event loop whose clients are users that follow scripts.
pub type ScriptWorker<C, N> = EventLoop<ScriptClient<C>, N>;

struct ScriptSlot<C> {
    /// The script's number, unique across all workers and processes.
    number: u64,
    script: C,
    links: Box<[LinkSlot]>,
    timer: Time,
    stage: u8,
    /// Whether the user is counted as one who waits for a connection.
    is_waiting: bool,
}

/// The connection of one of a script's links.
#[derive(Clone, Copy)]
struct LinkSlot {
    /// The index of the connection in the loop's table.
    connection: Option<u32>,
    /// The index of the address that was used last, for links that currently have no connection.
    last_address: u32,
}

/// The client state of an event loop that runs scripts.
pub struct ScriptClient<C: ScriptFactory> {
    scripts: Arc<C>,
    /// The TLS settings of each link, with this worker's own session tickets and key log.
    tls: Vec<Option<TlsClient>>,
    slots: GenerationalSlab<ScriptSlot<C::Script>>,
    /// Timers of the scripts, with the keys of their slots.
    timers: TimerQueue<u64>,
    /// Decrypted contents of the loop's read buffer.
    plain: Vec<u8>,
    actions: Vec<ScriptAction>,
    /// The outgoing bytes of each link of the script that is being called.
    outboxes: Vec<Vec<u8>>,
    in_flight: u64,
    meter: UserMeter,
    /// The numbers of users, if each client has numbers of its own.
    client_numbers: Option<ClientNumbers>,
}

/// A request for the connection of one of a script's links.
#[derive(Clone, Copy)]
pub struct LinkRequest {
    slot: u64,
    link: LinkId,
}

impl<C: ScriptFactory, N: Network> ScriptWorker<C, N> {
    /// Creates a worker whose users follow `scripts`. Connections are established only when scripts request them.
    pub fn new(mut share: WorkerShare, network: N, scripts: Arc<C>) -> Self {
        let calls = u64::from(scripts.calls_per_script().max(1));
        share.calls = share.calls.map(|n| n.div_ceil(calls));
        let clients = share.clients;
        let links = scripts.targets().len().min(MAX_LINKS);
        let by_client = clients > 0 && scripts.numbers_users_by_client();
        let tls = (0..links).map(|link| scripts.tls(LinkId(link as u8)).map(TlsClient::for_worker));
        let users = ScriptClient {
            tls: tls.collect(),
            scripts,
            slots: GenerationalSlab::default(),
            timers: TimerQueue::new(),
            plain: Vec::new(),
            actions: Vec::new(),
            outboxes: vec![Vec::new(); links],
            in_flight: 0,
            meter: UserMeter::default(),
            client_numbers: by_client.then(|| ClientNumbers::from_share(&share)),
        };
        let mut worker = EventLoop::with_client(users, share, network, links, READ_BUFFER_BYTES);
        // Plans with users have no ticks, so an open loop has nothing to set here: answers are read on arrival.
        if let CallSource::Closed(closed) = &mut worker.call_source {
            closed.ready_clients = clients;
        }
        worker
    }

    fn begin_script(&mut self, control: &mut impl WorkerControl, origin: ScriptStart, now: Time) {
        let users = &mut self.client;
        let unconnected = LinkSlot {
            connection: None,
            last_address: NO_ADDRESS,
        };
        let index = users.slots.insert(ScriptSlot {
            number: origin.number,
            script: users.scripts.new_script(origin),
            links: vec![unconnected; users.outboxes.len()].into(),
            timer: Time::NEVER,
            stage: self.stage,
            is_waiting: false,
        });
        users.meter.add_user(origin.late_ns, now);
        self.dispatch(control, index, now, &mut |script, context| {
            script.start(now, context);
        });
    }

    /// Passes an event to a script with `tell`, and performs the actions that it requests.
    fn dispatch(
        &mut self,
        control: &mut impl WorkerControl,
        index: u64,
        now: Time,
        tell: &mut dyn FnMut(&mut C::Script, &mut ScriptContext<'_>),
    ) {
        let users = &mut self.client;
        let Some(slot) = users.slots.get_mut(index) else {
            return;
        };
        fault::point("script");
        let mut addresses = [NO_ADDRESS; MAX_LINKS];
        let mut connections = [None; MAX_LINKS];
        for (number, link) in slot.links.iter().enumerate() {
            let connection = link
                .connection
                .and_then(|at| self.connections[at as usize].as_ref());
            let place = connection.map_or(link.last_address, |there| there.address_index);
            addresses[number] = self.addresses[number].recorder_index(place);
            connections[number] = link.connection;
        }
        let is_closed = matches!(self.call_source, CallSource::Closed(_));
        let mut context = ScriptContext {
            recorder: &mut self.recorder,
            stage: slot.stage,
            is_interrupted: self.interrupted,
            // After the end of an open loop, users that have arrived complete their scripts. In a closed loop that is
            // limited by time, users stop.
            is_stopping: self.interrupted
                || self.phase != LoadPhase::Loading && is_closed && self.share.calls.is_none(),
            in_flight: &mut users.in_flight,
            calls_begun: &mut self.calls_due,
            addresses,
            connections,
            actions: &mut users.actions,
            outboxes: &mut users.outboxes,
            wake: None,
            ended: None,
        };
        tell(&mut slot.script, &mut context);
        let (wake, ended) = (context.wake, context.ended);
        let is_pausing = slot.script.is_pausing(now);
        let is_waiting = slot.script.is_waiting();
        if is_waiting != slot.is_waiting {
            slot.is_waiting = is_waiting;
            if is_waiting {
                users.meter.begin_wait(now);
            } else {
                users.meter.end_wait(now);
            }
        }
        if let Some(at) = wake
            && at != slot.timer
        {
            slot.timer = at;
            if at != Time::NEVER {
                users.timers.push(at, index);
            }
        }
        for link in 0..self.client.outboxes.len() {
            if !self.client.outboxes[link].is_empty() {
                self.send_link_bytes(index, link);
            }
        }
        if is_pausing {
            self.rest_links(index);
        }
        for action in std::mem::take(&mut self.client.actions) {
            match action {
                ScriptAction::Connect(link) => {
                    self.to_connect.push_back(LinkRequest { slot: index, link })
                }
                ScriptAction::Close(link) => {
                    self.to_connect
                        .retain(|wanted| (wanted.slot, wanted.link) != (index, link));
                    self.close_link(control, index, link);
                }
            }
        }
        if let Some(ok) = ended {
            let number = self.end_script(control, index, now);
            self.schedule_next_script(number, ok, now);
        }
    }

    /// Closes a script's lost connection and notifies the script.
    fn close_lost_link(
        &mut self,
        control: &mut impl WorkerControl,
        slot: u64,
        link: LinkId,
        loss: &ConnectionLoss,
        now: Time,
    ) {
        self.close_link(control, slot, link);
        self.dispatch(control, slot, now, &mut |script, context| {
            script.on_link_lost(link, loss.outcome, &loss.detail, now, context);
        });
    }

    /// Removes a script and closes its connections. Returns its number.
    fn end_script(
        &mut self,
        control: &mut impl WorkerControl,
        index: u64,
        now: Time,
    ) -> Option<u64> {
        for link in 0..self.client.outboxes.len() {
            self.close_link(control, index, LinkId(link as u8));
        }
        let slot = self.client.slots.remove(index)?;
        if slot.is_waiting {
            self.client.meter.end_wait(now);
        }
        self.client.meter.remove_user(now);
        Some(slot.number)
    }

    /// Lets the client of user `number` start its next script, after a pause.
    fn schedule_next_script(&mut self, number: Option<u64>, ok: bool, now: Time) {
        if let ArrivalsPlan::Closed { think, .. } = self.share.load.arrivals {
            let pause = if ok {
                think
            } else {
                think.max(MIN_PAUSE_AFTER_FAILURE)
            };
            if let (Some(numbers), Some(number)) = (&mut self.client.client_numbers, number) {
                numbers.release(number, now + pause);
            }
            self.call_source.release_client(pause, now);
        }
    }
}

impl<C: ScriptFactory> LoopClient for ScriptClient<C> {
    type ConnectionData = LinkOwner;
    type ConnectRequest = LinkRequest;
    const COUNTS_WARMUP: bool = true;
    const AWAITS_LATE_ANSWERS: bool = false;

    fn tls(&self, target: usize) -> Option<&TlsClient> {
        self.tls.get(target)?.as_ref()
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.scripts.trace_ids()
    }

    fn calls_in_flight(&self) -> u64 {
        self.in_flight
    }

    fn take_users(&mut self, now: Time) -> Option<UserLevels> {
        Some(self.meter.take(now))
    }

    /// Scripts end on their own if each call has a deadline. Otherwise, the drain time limits them.
    fn is_bounded_by_drain(&self, share: &WorkerShare) -> bool {
        let is_closed = matches!(share.load.arrivals, ArrivalsPlan::Closed { .. });
        is_closed && share.calls.is_none() || share.load.deadline.is_none()
    }
}

impl<C: ScriptFactory, N: Network> LoopHandler<LinkRequest> for ScriptWorker<C, N> {
    fn serve(&mut self, control: &mut impl WorkerControl, index: u32, ready: SocketReady) {
        self.serve_link(control, index, ready);
    }

    fn on_transport_up(&mut self, control: &mut impl WorkerControl, index: u32, now: Time) {
        self.on_tcp_established(control, index, now);
    }

    fn on_disconnect(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        loss: &ConnectionLoss,
        now: Time,
    ) {
        self.on_link_lost(control, index, loss, now);
    }

    fn on_resolved(
        &mut self,
        control: &mut impl WorkerControl,
        token: SocketToken,
        found: ResolveResult,
    ) {
        let now = self.network.now();
        let until = now + self.share.load.resolve_interval;
        let link = LinkId(token.0 as u8);
        let addresses = &mut self.addresses[usize::from(link.0)];
        let Err(loss) =
            addresses.store_lookup_result(found, LookupScope::Shared, until, &mut self.recorder)
        else {
            return;
        };
        let waiting = std::mem::take(&mut self.to_connect);
        let (lost, rest): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|wanted| wanted.link == link);
        self.to_connect = rest;
        for wanted in lost {
            if self.client.slots.get(wanted.slot).is_some() {
                self.close_lost_link(control, wanted.slot, link, &loss, now);
            }
        }
    }

    /// Starts a lookup of the link's name if necessary. Previously resolved addresses are used while it is in progress.
    fn decide_connect(
        &mut self,
        control: &mut impl WorkerControl,
        wanted: LinkRequest,
        now: Time,
    ) -> ConnectDecision {
        if self.client.slots.get(wanted.slot).is_none() {
            return ConnectDecision::Drop;
        }
        let target = usize::from(wanted.link.0);
        let addresses = &mut self.addresses[target];
        if !addresses.is_fresh(now) && !addresses.is_resolving() {
            addresses.start_lookup(SocketToken(target as u64), &mut self.network);
            // Names that need no lookup are resolved at once.
            self.process_lookups(control);
        }
        if self.addresses[target].has_any() {
            ConnectDecision::Start
        } else {
            ConnectDecision::Defer
        }
    }

    fn begin_connection(
        &mut self,
        control: &mut impl WorkerControl,
        wanted: LinkRequest,
        now: Time,
    ) {
        let LinkRequest { slot, link } = wanted;
        self.close_link(control, slot, link);
        let index = self.add_connection(LinkOwner { slot, link }, link.0, now);
        if let Some(slot) = self.client.slots.get_mut(slot) {
            slot.links[usize::from(link.0)].connection = Some(index);
            let number = slot.number;
            self.connect(control, index, number, now);
        }
    }

    fn next_timer(&self) -> Time {
        self.client.timers.next_time()
    }

    fn expire_timers(&mut self, control: &mut impl WorkerControl, now: Time) {
        self.expire_connect_attempts(control, now);
        self.start_due_attempts(control, now);
        while let Some((when, index)) = self.client.timers.pop_due(now) {
            if let Some(slot) = self.client.slots.get_mut(index)
                && slot.timer == when
            {
                slot.timer = Time::NEVER;
                self.dispatch(control, index, now, &mut |script, context| {
                    script.on_timer(now, context);
                });
            }
        }
    }

    fn on_arrival(&mut self, control: &mut impl WorkerControl, arrival: Arrival, now: Time) {
        let origin = ScriptStart {
            number: arrival.number,
            late_ns: now.since(self.start.plus_nanos(arrival.at)),
        };
        self.begin_script(control, origin, now);
    }

    fn on_missed_deadline(&mut self, stage: u8) {
        let calls = u64::from(self.client.scripts.calls_per_script());
        self.recorder.stage_mut(stage).due += calls;
        self.recorder.stage_mut(stage).not_started += calls;
    }

    fn start_client_call(&mut self, control: &mut impl WorkerControl, number: u64, now: Time) {
        let numbers = self.client.client_numbers.as_mut();
        let number = numbers
            .and_then(ClientNumbers::start_next)
            .unwrap_or(number);
        self.begin_script(control, ScriptStart { number, late_ns: 0 }, now);
    }

    fn flush(&mut self, control: &mut impl WorkerControl) {
        // Scripts have already written their bytes, so only the connections that new scripts have requested remain to
        // be started.
        let now = self.network.now();
        self.begin_connections(control, now);
    }

    fn is_idle(&self) -> bool {
        self.client.slots.is_empty()
    }

    fn shut_down(&mut self, control: &mut impl WorkerControl, outcome: Outcome, now: Time) {
        for index in self.client.slots.keys() {
            self.dispatch(control, index, now, &mut |script, context| {
                script.abort(outcome, now, context);
            });
            self.end_script(control, index, now);
        }
        self.races.cancel_all(&mut self.network);
    }
}
