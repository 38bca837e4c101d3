//! One user, and what it may do each time that something happens to it.

use plimsoll_model::measure::{Count, TimeMeasure};
use plimsoll_model::plan::Target;
use plimsoll_model::recorder::Carried;
use plimsoll_model::template::TraceIds;
use plimsoll_model::{Outcome, Recorder, Sample, Time};

use crate::tls::TlsClient;

/// Connections that a script may have at once.
pub const MAX_LINKS: usize = 2;

/// One of a script's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub u8);

/// The place of a script in its run.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The script's place in the run's schedule; what varies is chosen by it.
    pub number: u64,
    /// How late it was begun. Nanoseconds; 0 in a closed loop.
    pub late_ns: u64,
}

/// One user.
pub trait Script: Send {
    /// Called once.
    fn begin(&mut self, now: Time, turn: &mut Turn<'_>);

    /// A connection asked for with [`Turn::connect`] is up; making it took `took_ns`.
    fn connected(&mut self, link: Link, took_ns: u64, now: Time, turn: &mut Turn<'_>);

    /// Bytes from the peer, in any split.
    fn receive(&mut self, link: Link, bytes: &[u8], now: Time, turn: &mut Turn<'_>);

    /// A connection was lost or could not be made. It is closed already.
    fn lost(&mut self, link: Link, outcome: Outcome, detail: &str, now: Time, turn: &mut Turn<'_>);

    /// The moment of [`Turn::wake_at`] has come.
    fn expire(&mut self, now: Time, turn: &mut Turn<'_>);

    /// The run is over: a call in flight ends with `outcome`, and nothing follows.
    fn abort(&mut self, outcome: Outcome, now: Time, turn: &mut Turn<'_>);
}

/// A kind of script with everything that its scripts share.
pub trait Scripts: Send + Sync + 'static {
    /// One user of the plan.
    type Script: Script;

    /// A script for the user who begins now.
    fn script(&self, origin: Origin) -> Self::Script;

    /// Returns the target that each link leads to.
    fn targets(&self) -> [&Target; MAX_LINKS];

    /// How a link is secured; `None`: plain TCP. The same each time.
    fn tls(&self, _link: Link) -> Option<&TlsClient> {
        None
    }

    /// Calls in each script, where all goes well.
    fn calls(&self) -> u32;

    /// Returns the same as [`crate::driver::Protocol::trace_ids`].
    fn trace_ids(&self) -> Option<TraceIds> {
        None
    }

    /// What the clocks on walls showed at [`Time::ZERO`], in nanoseconds since 1970. Called
    /// before the first script, and never where time is simulated.
    fn clock_began(&self, _unix_ns: u64) {}
}

pub(crate) enum Action {
    Connect(Link),
    Close(Link),
}

/// What a script may do when it is called.
pub struct Turn<'a> {
    pub(crate) recorder: &'a mut Recorder,
    pub(crate) stage: u8,
    pub(crate) stopping: bool,
    pub(crate) interrupted: bool,
    /// What is counted at the addresses of the links is counted with these numbers.
    pub(crate) addresses: [u32; MAX_LINKS],
    /// The links' connections, by the worker's numbers.
    pub(crate) connections: [Option<u32>; MAX_LINKS],
    pub(crate) in_flight: &'a mut u64,
    pub(crate) calls_begun: &'a mut u64,
    pub(crate) actions: &'a mut Vec<Action>,
    pub(crate) outs: &'a mut [Vec<u8>; MAX_LINKS],
    pub(crate) wake: Option<Time>,
    pub(crate) ended: Option<bool>,
}

impl Turn<'_> {
    /// Asks for a connection; [`Script::connected`] or [`Script::lost`] follows.
    pub fn connect(&mut self, link: Link) {
        self.actions.push(Action::Connect(link));
    }

    /// Closes a connection after what was put into [`Turn::out`] has been sent, as far as
    /// that takes no waiting. No more events of it follow.
    pub fn close(&mut self, link: Link) {
        self.actions.push(Action::Close(link));
    }

    /// Bytes to send: appended to, never cleared.
    pub fn out(&mut self, link: Link) -> &mut Vec<u8> {
        &mut self.outs[usize::from(link.0)]
    }

    /// When [`Script::expire`] is to be called; replaces the moment asked for before.
    /// [`Time::NEVER`]: not at all.
    pub fn wake_at(&mut self, at: Time) {
        self.wake = Some(at);
    }

    /// Whether the load is over: the script is to begin no further call.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Whether the run was stopped before its time: nothing more is to be sent.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// A call is due: exactly one [`Turn::call`] follows.
    pub fn due(&mut self) {
        *self.in_flight += 1;
        *self.calls_begun += 1;
        self.recorder.stage(self.stage).due += 1;
    }

    /// A call on a link has ended. Its stage is filled in here. What was measured of it
    /// besides is kept with it where calls are kept, and not added to the run's measures. `traced_as`: the number that
    /// the trace ids of its request are made of; `None` where it was not sent.
    pub fn call(
        &mut self,
        link: Link,
        sample: Sample,
        counts: &[(Count, u64)],
        times: &[(TimeMeasure, u64)],
        traced_as: Option<u64>,
    ) {
        *self.in_flight -= 1;
        let address = self.addresses[usize::from(link.0)];
        self.recorder.call_at(address, self.stage, sample.outcome);
        let sample = Sample {
            stage: self.stage,
            ..sample
        };
        let connection = self.connections[usize::from(link.0)];
        let carried = traced_as.map(|traced_as| Carried {
            connection,
            traced_as,
        });
        (self.recorder).measured_call(&sample, counts, times, carried);
    }

    /// Adds to what is counted besides calls.
    pub fn count(&mut self, count: Count, n: u64) {
        if n > 0 {
            self.recorder.count(self.stage, count, n);
        }
    }

    /// Adds a time that is measured besides calls. Nanoseconds.
    #[inline]
    pub fn time(&mut self, measure: TimeMeasure, ns: u64) {
        self.recorder.time(self.stage, measure, ns);
    }

    /// The text of a failure.
    pub fn detail(&mut self, outcome: Outcome, text: &str) {
        self.recorder.detail(outcome, text);
    }

    /// The script is over; `ok`: as it was meant to be.
    pub fn end(&mut self, ok: bool) {
        self.ended = Some(ok);
    }
}
