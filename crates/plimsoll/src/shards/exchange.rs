//! Drives the state machines: a thread makes the store requests of [`Member`], and a loop those of [`Leader`].

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_engine::worker::StopLevel;
use plimsoll_engine::{Clock, EngineError, Finished, Observation, Stop};

use super::leader::{self, Leader};
use super::member::{Event, Member, Which};
use super::objects::Ended;
use super::store::{Answer, Store};
use crate::console;
use crate::failure::Failure;
use crate::spread::wire::Message;
use crate::threads;

/// How often due requests are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An input of the member's thread.
enum Input {
    Message(Message),
    Close,
    Answer(Which, Answer),
}

/// Handle to the thread that runs a shard's [`Member`]. Any thread may send messages through it.
pub(super) struct Rendezvous {
    inputs: Sender<Input>,
    pub(super) events: Receiver<Event>,
}

impl Rendezvous {
    /// Starts the thread. It requests `stop` when the coordinator orders that.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(
        member: Member,
        store: Arc<Store>,
        clock: Clock,
        stop: Stop,
    ) -> Result<Rendezvous, Failure> {
        let (inputs, heard) = mpsc::channel();
        let (sender, events) = mpsc::channel();
        let serving = Serving {
            store,
            clock,
            stop,
            answers: inputs.clone(),
            heard,
            sender,
        };
        threads::start("shard", move || serving.serve(member))?;
        Ok(Rendezvous { inputs, events })
    }

    pub(super) fn send(&self, message: Message) {
        // The thread may have ended; then the message is obsolete.
        let _ = self.inputs.send(Input::Message(message));
    }

    /// Tells the thread that no more messages follow.
    pub(super) fn close(&self) {
        let _ = self.inputs.send(Input::Close);
    }
}

/// State of the thread that runs a member.
struct Serving {
    store: Arc<Store>,
    clock: Clock,
    stop: Stop,
    answers: Sender<Input>,
    heard: Receiver<Input>,
    sender: Sender<Event>,
}

impl Serving {
    fn serve(self, mut member: Member) {
        let mut stopped = 0;
        while !member.is_over() {
            for (which, ask) in member.poll(self.clock.now()) {
                let answers = self.answers.clone();
                self.store.ask(ask, move |answer| {
                    let _ = answers.send(Input::Answer(which, answer));
                });
            }
            let mut input = self.heard.recv_timeout(POLL_INTERVAL).ok();
            while let Some(one) = input {
                match one {
                    Input::Message(message) => member.log(&message),
                    Input::Close => member.close(self.clock.now()),
                    Input::Answer(which, answer) => {
                        member.answered(which, answer, self.clock.now())
                    }
                }
                input = self.heard.try_recv().ok();
            }
            while let Some(event) = member.event() {
                let level = match &event {
                    Event::Stop(level) => *level,
                    Event::Notice(text) => {
                        console::notice(text);
                        continue;
                    }
                    // Without a coordinator nobody reads the measurements, so stop immediately.
                    Event::Lost(_) => 2,
                    _ => 0,
                };
                // Send the event before the stop that it explains. The receiver may be gone.
                let _ = self.sender.send(event);
                while stopped < level {
                    self.stop.request();
                    stopped += 1;
                }
            }
        }
    }
}

/// The coordinator's state machine with its store requests. An answer may arrive after the load has ended; until then
/// the leader makes no other request of that kind.
pub(super) struct Leading {
    leader: Leader,
    store: Arc<Store>,
    clock: Clock,
    answers: Sender<(leader::Which, Answer)>,
    heard: Receiver<(leader::Which, Answer)>,
}

impl Leading {
    pub(super) fn new(leader: Leader, store: Arc<Store>, clock: Clock) -> Leading {
        let (answers, heard) = mpsc::channel();
        Leading {
            leader,
            store,
            clock,
            answers,
            heard,
        }
    }

    /// Makes the leader's store requests until there is a result, passing observations to `observe` and `stop` on to
    /// all shards. `wished` is called when an observer requests a stop; `wanted` is the number of connections to be
    /// made.
    ///
    /// # Errors
    /// When a shard is missing, was lost, or did not complete its part.
    pub(super) fn lead(
        &mut self,
        stop: &Stop,
        wished: &mut dyn FnMut(),
        wanted: u64,
        observe: &mut dyn FnMut(Observation<'_>),
    ) -> Result<Finished, EngineError> {
        loop {
            self.turn();
            while let Some(event) = self.leader.event() {
                match event {
                    leader::Event::Connecting(open) => {
                        observe(Observation::Connecting { open, wanted });
                    }
                    leader::Event::Started {
                        workers,
                        connections,
                    } => observe(Observation::Started {
                        workers,
                        connections,
                    }),
                    leader::Event::Interval(record, requests) => {
                        observe(Observation::Interval(&record, &requests));
                    }
                    leader::Event::Notice(text) => console::notice(text),
                    leader::Event::Wished => wished(),
                }
            }
            let level = match stop.level() {
                StopLevel::Run => 0,
                StopLevel::Graceful => 1,
                StopLevel::Now => 2,
            };
            self.leader.stop(level, self.clock.now());
            if let Some(result) = self.leader.result() {
                observe(Observation::Shards(&self.leader.merging.figures()));
                result?;
                let (established, workers) = self.leader.merging.gathering.established();
                return Ok(Finished {
                    interrupted: stop.level() != StopLevel::Run,
                    workers,
                    established,
                    watched_pids: Vec::new(),
                    negotiated: self.leader.merging.gathering.negotiated(),
                });
            }
        }
    }

    fn turn(&mut self) {
        self.ask();
        let mut answer = self.heard.recv_timeout(POLL_INTERVAL).ok();
        while let Some((which, one)) = answer {
            self.leader.answered(which, one, self.clock.now());
            answer = self.heard.try_recv().ok();
        }
    }

    /// Makes the requests that are due.
    fn ask(&mut self) {
        for (which, ask) in self.leader.poll(self.clock.now()) {
            let answers = self.answers.clone();
            self.store.ask(ask, move |answer| {
                let _ = answers.send((which, answer));
            });
        }
    }
}

/// Keeps the leader's heartbeat going from a thread until the end of the run is announced and written.
pub(super) struct Closing {
    end: Sender<Ended>,
    thread: JoinHandle<()>,
}

impl Closing {
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(mut leading: Leading) -> Result<Closing, Failure> {
        let (end, ended) = mpsc::channel();
        let thread = threads::start("leader", move || {
            let mut patience = None;
            while !leading.leader.has_ended() {
                leading.turn();
                let now = leading.clock.now();
                match ended.try_recv() {
                    Ok(ended) => {
                        leading.leader.end(ended, now);
                        patience = Some(now + super::member::STORE_PATIENCE);
                    }
                    // The command ended without reporting a result.
                    Err(mpsc::TryRecvError::Disconnected) if patience.is_none() => break,
                    Err(_) => {}
                }
                if patience.is_some_and(|until| now > until) {
                    break;
                }
            }
        })?;
        Ok(Closing { end, thread })
    }

    /// Announces how the run ended; returns once the announcement is in the store.
    pub(super) fn end(self, ended: Ended) {
        let _ = self.end.send(ended);
        // If the thread panicked, the other shards notice the missing heartbeat.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::{ORDERS_OBJECT, Orders, from_json};
    use super::super::store::{Access, Ask, Role};
    use super::super::tests::fixtures::charge;
    use super::*;

    /// The answer to the leader's request arrives while the end is announced, or before.
    #[test]
    fn in_flight_request_does_not_delay_end_announcement() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().display());
        let store = Arc::new(Store::open(&url, &Access::default(), Role::Leader).unwrap());
        let clock = Clock::new();
        let leader = Leader::new(charge(1, Duration::from_secs(60)), clock.now(), 0);
        let mut leading = Leading::new(leader, Arc::clone(&store), clock);
        leading.ask();
        Closing::start(leading).unwrap().end(Ended::with(7));
        let Ok(Answer::Bytes { bytes, .. }) = store.ask_now(&Ask::Get(ORDERS_OBJECT.to_owned()))
        else {
            panic!("no orders");
        };
        let ended = from_json::<Orders>(ORDERS_OBJECT, &bytes).unwrap().ended;
        assert_eq!(ended.map(|ended| ended.exit), Some(7));
    }
}
