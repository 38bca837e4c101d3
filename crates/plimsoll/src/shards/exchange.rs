//! The state machines at work: a thread that asks the store what [`Member`] wants, and the loop
//! that does so for [`Leader`].

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use plimsoll_engine::worker::StopLevel;
use plimsoll_engine::{Clock, EngineError, Finished, Observation, Stop};

use super::leader::{self, Leader};
use super::member::{Event, Member, Which};
use super::objects::Line;
use super::store::{Answer, Store};
use crate::console;
use crate::failure::Failure;
use crate::spread::wire::Message;

/// How often it is looked what is due.
const TURN: Duration = Duration::from_millis(50);

enum Input {
    Line(Line),
    Close,
    Answer(Which, Answer),
}

/// A shard's connection to the rendezvous. Any thread may send over it.
pub(super) struct Rendezvous {
    inputs: Sender<Input>,
    pub(super) events: Receiver<Event>,
}

impl Rendezvous {
    /// Starts the thread. `stop` is pulled as the leader orders.
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
        let answers = inputs.clone();
        thread::Builder::new()
            .name("shard".into())
            .spawn(move || serve(member, &store, clock, &stop, &answers, &heard, &sender))
            .map_err(|e| Failure::error(format_args!("can't start a thread: {e}")))?;
        Ok(Rendezvous { inputs, events })
    }

    pub(super) fn send(&self, message: Message) {
        // Once the connection is over nobody listens.
        let _ = self.inputs.send(Input::Line(Line::Message(message)));
    }

    /// Nothing more is sent.
    pub(super) fn close(&self) {
        let _ = self.inputs.send(Input::Close);
    }
}

fn serve(
    mut member: Member,
    store: &Store,
    clock: Clock,
    stop: &Stop,
    answers: &Sender<Input>,
    heard: &Receiver<Input>,
    sender: &Sender<Event>,
) {
    let mut stopped = 0;
    while !member.is_over() {
        for (which, ask) in member.poll(clock.now()) {
            let answers = answers.clone();
            store.ask(ask, move |answer| {
                let _ = answers.send(Input::Answer(which, answer));
            });
        }
        let mut input = heard.recv_timeout(TURN).ok();
        while let Some(one) = input {
            match one {
                Input::Line(line) => member.log(&line),
                Input::Close => member.close(clock.now()),
                Input::Answer(which, answer) => member.answered(which, answer, clock.now()),
            }
            input = heard.try_recv().ok();
        }
        while let Some(event) = member.event() {
            let level = match &event {
                Event::Stop(level) => *level,
                Event::Notice(text) => {
                    console::notice(text);
                    continue;
                }
                // Nobody is there any more who could want what is measured.
                Event::Lost(_) => 2,
                _ => 0,
            };
            while stopped < level {
                stop.request();
                stopped += 1;
            }
            // Whoever started the shard may have ended.
            let _ = sender.send(event);
        }
    }
}

/// Asks the store for the leader until there is a result; everything observed goes to `observe`. `wanted`: so many
/// connections are to be made.
/// `stop` is passed on to all shards.
///
/// # Errors
/// Where shards did not come together, or not all carried their part out.
pub(super) fn lead(
    leader: &mut Leader,
    store: &Arc<Store>,
    clock: Clock,
    stop: &Stop,
    wished: &mut dyn FnMut(),
    wanted: u64,
    observe: &mut dyn FnMut(Observation<'_>),
) -> Result<Finished, EngineError> {
    let (answers, heard) = mpsc::channel();
    loop {
        turn(leader, store, clock, &answers, &heard);
        while let Some(event) = leader.event() {
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
        leader.stop(level, clock.now());
        if let Some(result) = leader.result() {
            observe(Observation::Shards(&leader.figures()));
            result?;
            let (established, workers) = leader.established();
            return Ok(Finished {
                interrupted: stop.level() != StopLevel::Run,
                workers,
                established,
                watched_pids: Vec::new(),
                negotiated: leader.negotiated(),
            });
        }
    }
}

/// Keeps giving signs of the leader, from a thread of its own, until the end is announced and written.
pub(super) struct Closing {
    end: Sender<u8>,
    thread: thread::JoinHandle<()>,
}

impl Closing {
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(
        mut leader: Leader,
        store: Arc<Store>,
        clock: Clock,
    ) -> Result<Closing, Failure> {
        let (end, ended) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("leader".into())
            .spawn(move || {
                let (answers, heard) = mpsc::channel();
                let mut patience = None;
                while !leader.has_ended() {
                    turn(&mut leader, &store, clock, &answers, &heard);
                    match ended.try_recv() {
                        Ok(exit) => {
                            leader.end(exit, clock.now());
                            patience = Some(clock.now() + super::member::STORE_PATIENCE);
                        }
                        // The command has ended without saying how.
                        Err(mpsc::TryRecvError::Disconnected) if patience.is_none() => break,
                        Err(_) => {}
                    }
                    if patience.is_some_and(|until| clock.now() > until) {
                        break;
                    }
                }
            })
            .map_err(|e| Failure::error(format_args!("can't start a thread: {e}")))?;
        Ok(Closing { end, thread })
    }

    /// Says how the run ended; returns once all can know it.
    pub(super) fn end(self, exit: u8) {
        let _ = self.end.send(exit);
        // It does not panic; if it did, the others notice that the leader is silent.
        let _ = self.thread.join();
    }
}

fn turn(
    leader: &mut Leader,
    store: &Store,
    clock: Clock,
    answers: &Sender<(leader::Which, Answer)>,
    heard: &Receiver<(leader::Which, Answer)>,
) {
    for (which, ask) in leader.poll(clock.now()) {
        let answers = answers.clone();
        store.ask(ask, move |answer| {
            let _ = answers.send((which, answer));
        });
    }
    let mut answer = heard.recv_timeout(TURN).ok();
    while let Some((which, one)) = answer {
        leader.answered(which, one, clock.now());
        answer = heard.try_recv().ok();
    }
}
