//! Drives the state machines of a shard: a thread sends the store requests of [`Member`], and a loop sends those of
//! [`Leader`].

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_engine::worker::StopUrgency;
use plimsoll_engine::{Clock, EngineError, Observation, RunCompletion, StopFlag};

use super::leader::{self, Leader};
use super::member::{Member, MemberEvent, MemberRequestKind};
use super::objects::RunResult;
use super::store::{RendezvousStore, StoreResponse};
use crate::failure::Failure;
use crate::load::multiprocess::wire::ShardMessage;
use crate::screen::console;
use crate::system::threads;

/// Maximum time between two polls of the state machines for requests that are due.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An input of the thread that runs a shard's [`Member`].
enum MemberInput {
    Message(ShardMessage),
    Close,
    Answer(MemberRequestKind, StoreResponse),
}

/// Handle to the thread that runs a shard's [`Member`].
pub(super) struct MemberHandle {
    inputs: Sender<MemberInput>,
    pub(super) events: Receiver<MemberEvent>,
}

impl MemberHandle {
    /// Starts the thread. It sets `stop` when the coordinator orders a stop.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub(super) fn start(
        member: Member,
        store: Arc<RendezvousStore>,
        clock: Clock,
        stop: StopFlag,
    ) -> Result<MemberHandle, Failure> {
        let (inputs, heard) = mpsc::channel();
        let (sender, events) = mpsc::channel();
        let serving = MemberThread {
            store,
            clock,
            stop,
            answers: inputs.clone(),
            inputs: heard,
            events: sender,
        };
        threads::start("shard", move || serving.run(member))?;
        Ok(MemberHandle { inputs, events })
    }

    pub(super) fn send(&self, message: ShardMessage) {
        // Sending fails if the thread has ended because the run is over; the message is then not needed.
        let _ = self.inputs.send(MemberInput::Message(message));
    }

    /// Tells the thread that no more messages will follow.
    pub(super) fn close(&self) {
        let _ = self.inputs.send(MemberInput::Close);
    }
}

/// Channels and state of the thread that runs a member.
struct MemberThread {
    store: Arc<RendezvousStore>,
    clock: Clock,
    stop: StopFlag,
    answers: Sender<MemberInput>,
    inputs: Receiver<MemberInput>,
    events: Sender<MemberEvent>,
}

impl MemberThread {
    fn run(self, mut member: Member) {
        let mut stopped = 0;
        while !member.is_over() {
            for (which, ask) in member.poll(self.clock.now()) {
                let answers = self.answers.clone();
                self.store.send(ask, move |answer| {
                    let _ = answers.send(MemberInput::Answer(which, answer));
                });
            }
            let mut input = self.inputs.recv_timeout(POLL_INTERVAL).ok();
            while let Some(one) = input {
                match one {
                    MemberInput::Message(message) => member.log_message(&message),
                    MemberInput::Close => member.close(self.clock.now()),
                    MemberInput::Answer(which, answer) => {
                        member.on_answer(which, answer, self.clock.now())
                    }
                }
                input = self.inputs.try_recv().ok();
            }
            while let Some(event) = member.next_event() {
                let level = match &event {
                    MemberEvent::Stop(level) => *level,
                    MemberEvent::Notice(text) => {
                        console::print_notice(text);
                        continue;
                    }
                    // The coordinator is lost, so nobody reads the measurements: stop immediately.
                    MemberEvent::Lost(_) => 2,
                    _ => 0,
                };
                // Send the event before requesting the stop that it explains. Ignore errors: the receiver may have been
                // dropped.
                let _ = self.events.send(event);
                while stopped < level {
                    self.stop.request();
                    stopped += 1;
                }
            }
        }
    }
}

/// Driver of [`Leader`], the coordinator's state machine: sends its store requests and passes it the answers. At most
/// one request of each kind is in flight; answers may arrive after the load has ended.
pub(super) struct LeaderDriver {
    leader: Leader,
    store: Arc<RendezvousStore>,
    clock: Clock,
    answers: Sender<(leader::LeaderRequestKind, StoreResponse)>,
    answer_receiver: Receiver<(leader::LeaderRequestKind, StoreResponse)>,
}

impl LeaderDriver {
    pub(super) fn new(leader: Leader, store: Arc<RendezvousStore>, clock: Clock) -> LeaderDriver {
        let (answers, heard) = mpsc::channel();
        LeaderDriver {
            leader,
            store,
            clock,
            answers,
            answer_receiver: heard,
        }
    }

    /// Runs the leader until the load has a result. Passes observations to `observe`, and forwards a stop request,
    /// which `stop` signals, to all shards. Calls `wished` when `plimsoll watch` requests a stop. `wanted` is the
    /// planned number of connections.
    ///
    /// # Errors
    /// When a shard is missing, was lost, or did not complete its share.
    pub(super) fn run_leader(
        &mut self,
        stop: &StopFlag,
        wished: &mut dyn FnMut(),
        wanted: u64,
        observe: &mut dyn FnMut(Observation<'_>),
    ) -> Result<RunCompletion, EngineError> {
        loop {
            self.exchange_once();
            while let Some(event) = self.leader.next_event() {
                match event {
                    leader::LeaderEvent::Connecting(open) => {
                        observe(Observation::Connecting { open, wanted });
                    }
                    leader::LeaderEvent::Started {
                        workers,
                        connections,
                    } => observe(Observation::Started {
                        workers,
                        connections,
                        lead: Duration::ZERO,
                    }),
                    leader::LeaderEvent::Interval(record, requests) => {
                        observe(Observation::Interval(&record, &requests));
                    }
                    leader::LeaderEvent::Notice(text) => console::print_notice(text),
                    leader::LeaderEvent::StopRequested => wished(),
                }
            }
            let level = match stop.level() {
                StopUrgency::Run => 0,
                StopUrgency::Graceful => 1,
                StopUrgency::Now => 2,
            };
            self.leader.order_stop(level, self.clock.now());
            if let Some(result) = self.leader.result() {
                observe(Observation::Shards(&self.leader.merger.shard_figures()));
                result?;
                let (established, workers) = self.leader.merger.aggregator.connect_summary();
                return Ok(RunCompletion {
                    interrupted: stop.level() != StopUrgency::Run,
                    workers,
                    established,
                    watched_pids: Vec::new(),
                    negotiated: self.leader.merger.aggregator.negotiated_tls(),
                });
            }
        }
    }

    fn exchange_once(&mut self) {
        self.send_due_requests();
        let mut answer = self.answer_receiver.recv_timeout(POLL_INTERVAL).ok();
        while let Some((which, one)) = answer {
            self.leader.on_answer(which, one, self.clock.now());
            answer = self.answer_receiver.try_recv().ok();
        }
    }

    /// Sends the requests that are due.
    fn send_due_requests(&mut self) {
        for (which, ask) in self.leader.poll(self.clock.now()) {
            let answers = self.answers.clone();
            self.store.send(ask, move |answer| {
                let _ = answers.send((which, answer));
            });
        }
    }
}

/// A thread that continues the leader's heartbeats after the load, until the end of the run is announced in the store.
pub(super) struct LeaderShutdown {
    end: Sender<RunResult>,
    thread: JoinHandle<()>,
}

impl LeaderShutdown {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub(super) fn start(mut leading: LeaderDriver) -> Result<LeaderShutdown, Failure> {
        let (end, ended) = mpsc::channel();
        let thread = threads::start("leader", move || {
            let mut patience = None;
            while !leading.leader.has_ended() {
                leading.exchange_once();
                let now = leading.clock.now();
                match ended.try_recv() {
                    Ok(ended) => {
                        leading.leader.announce_result(ended, now);
                        patience = Some(now + super::member::STORE_TIMEOUT);
                    }
                    // The handle was dropped without announcing a result.
                    Err(mpsc::TryRecvError::Disconnected) if patience.is_none() => break,
                    Err(_) => {}
                }
                if patience.is_some_and(|until| now > until) {
                    break;
                }
            }
        })?;
        Ok(LeaderShutdown { end, thread })
    }

    /// Announces the result of the run; returns once the announcement is in the store, or the store fails.
    pub(super) fn announce_result(self, ended: RunResult) {
        let _ = self.end.send(ended);
        // Ignore a panic of the thread: the other shards detect it by the missing heartbeats.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::{ORDERS_OBJECT, Orders, from_json};
    use super::super::store::{RendezvousAccess, ShardRole, StoreRequest};
    use super::super::tests::fixtures::charge;
    use super::*;

    /// The answer to the leader's request arrives while the end is announced, or before.
    #[test]
    fn in_flight_request_does_not_delay_end_announcement() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().display());
        let store = Arc::new(
            RendezvousStore::open(&url, &RendezvousAccess::default(), ShardRole::Leader).unwrap(),
        );
        let clock = Clock::new();
        let leader = Leader::new(charge(1, Duration::from_secs(60)), clock.now(), 0);
        let mut leading = LeaderDriver::new(leader, Arc::clone(&store), clock);
        leading.send_due_requests();
        LeaderShutdown::start(leading)
            .unwrap()
            .announce_result(RunResult::from_exit(7));
        let Ok(StoreResponse::Bytes { bytes, .. }) =
            store.send_and_wait(&StoreRequest::Get(ORDERS_OBJECT.to_owned()))
        else {
            panic!("no orders");
        };
        let ended = from_json::<Orders>(ORDERS_OBJECT, &bytes).unwrap().ended;
        assert_eq!(ended.map(|ended| ended.exit), Some(7));
    }
}
