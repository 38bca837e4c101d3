//! The interface of scripts: one simulated user, and the context that is passed to it.

use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::plan::Target;
use plimsoll_model::records::recorder::RequestContext;
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::{CallSample, Outcome, Recorder, Time};

use crate::tls::TlsClient;

/// Maximum number of connections of a script.
pub const MAX_LINKS: usize = 8;

/// The number of a connection among those of its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkId(pub u8);

/// The position of a script in its run, and how late it was started.
#[derive(Clone, Copy, Debug)]
pub struct ScriptStart {
    /// The script's position in the run's schedule, from which everything that varies between scripts is derived.
    pub number: u64,
    /// The delay with which the script was started, in nanoseconds; 0 in a closed loop.
    pub late_ns: u64,
}

/// The state machine of one simulated user.
pub trait Script: Send {
    /// Starts the user; called once.
    fn start(&mut self, now: Time, context: &mut ScriptContext<'_>);

    /// Called when a connection requested with [`ScriptContext::connect`] is established, after `took_ns`
    /// nanoseconds.
    fn on_connected(
        &mut self,
        link: LinkId,
        took_ns: u64,
        now: Time,
        context: &mut ScriptContext<'_>,
    );

    /// Processes bytes from the peer, which may be split at any position.
    fn receive(&mut self, link: LinkId, bytes: &[u8], now: Time, context: &mut ScriptContext<'_>);

    /// Called when a connection was lost or could not be established; it is already closed.
    fn on_link_lost(
        &mut self,
        link: LinkId,
        outcome: Outcome,
        detail: &str,
        now: Time,
        context: &mut ScriptContext<'_>,
    );

    /// Called when the time set with [`ScriptContext::wake_at`] is reached.
    fn on_timer(&mut self, now: Time, context: &mut ScriptContext<'_>);

    /// Returns whether a call of the user is due and has not been sent, because it has no connection yet.
    fn is_waiting(&self) -> bool;

    /// Returns whether the user makes no call for some time, so that its connections give back what can be rebuilt.
    fn is_pausing(&self, _now: Time) -> bool {
        false
    }

    /// Ends a call in flight with `outcome` at the end of the run; no other function is called afterwards.
    fn abort(&mut self, outcome: Outcome, now: Time, context: &mut ScriptContext<'_>);
}

/// A factory of a run's scripts, with the state that they share.
pub trait ScriptFactory: Send + Sync + 'static {
    /// The script of one user.
    type Script: Script;

    /// Creates a script for the user that starts now.
    fn new_script(&self, origin: ScriptStart) -> Self::Script;

    /// Returns the target that each link leads to: 1 to [`MAX_LINKS`] targets.
    fn targets(&self) -> Vec<&Target>;

    /// Returns the TLS settings of a link, which never change; `None` for plaintext.
    fn tls(&self, _link: LinkId) -> Option<&TlsClient> {
        None
    }

    /// Returns the number of calls that a script makes if it does not fail.
    fn calls_per_script(&self) -> u32;

    /// Returns whether the users that a client of a closed loop starts have numbers of that client: of `n` clients,
    /// client `k` starts the users `k`, `k + n`, `k + 2n` and so on. Otherwise users are numbered in the order in which
    /// they start.
    fn numbers_users_by_client(&self) -> bool {
        false
    }

    /// Returns the same as [`crate::driver::Protocol::trace_ids`].
    fn trace_ids(&self) -> Option<TraceIds> {
        None
    }

    /// Sets the wall-clock time at [`Time::ZERO`], in nanoseconds since 1970. Called before the first script,
    /// and never where time is simulated.
    fn set_clock_origin(&self, _unix_ns: u64) {}
}

pub(crate) enum ScriptAction {
    Connect(LinkId),
    Close(LinkId),
}

/// The properties of a call's request by which traces identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTrace {
    /// The number from which the request's trace ids were derived, if it carries several calls; `None` if they were
    /// derived from the call's own number.
    pub shared: Option<u64>,
    /// The index of the journey's step; `None` if the call belongs to no journey.
    pub step: Option<usize>,
}

/// The context in which a script is called, with which it sends, connects and records.
pub struct ScriptContext<'a> {
    pub(crate) recorder: &'a mut Recorder,
    pub(crate) stage: u8,
    pub(crate) is_stopping: bool,
    pub(crate) is_interrupted: bool,
    /// For each link, the index of its address in the worker's recorder.
    pub(crate) addresses: [u32; MAX_LINKS],
    /// The links' connections, as indices into the worker's table; `None` if a link has no connection.
    pub(crate) connections: [Option<u32>; MAX_LINKS],
    pub(crate) in_flight: &'a mut u64,
    pub(crate) calls_begun: &'a mut u64,
    pub(crate) actions: &'a mut Vec<ScriptAction>,
    pub(crate) outboxes: &'a mut [Vec<u8>],
    pub(crate) wake: Option<Time>,
    pub(crate) ended: Option<bool>,
}

impl ScriptContext<'_> {
    /// Requests a connection; [`Script::on_connected`] or [`Script::on_link_lost`] follows.
    pub fn connect(&mut self, link: LinkId) {
        self.actions.push(ScriptAction::Connect(link));
    }

    /// Closes a connection after sending the bytes that were appended to [`ScriptContext::out_buffer`], as far as that does
    /// not block. No further events of the connection follow.
    pub fn close(&mut self, link: LinkId) {
        self.actions.push(ScriptAction::Close(link));
    }

    /// Returns the buffer of the link's outgoing bytes; scripts only append to it.
    pub fn out_buffer(&mut self, link: LinkId) -> &mut Vec<u8> {
        &mut self.outboxes[usize::from(link.0)]
    }

    /// Sets the time at which [`Script::on_timer`] is called, replacing the previous one. [`Time::NEVER`] disables it.
    pub fn wake_at(&mut self, at: Time) {
        self.wake = Some(at);
    }

    /// Returns whether the load is over, so that the script must not start another call.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Returns whether the run was stopped early, so that nothing more must be sent.
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Counts a call as due; exactly one [`ScriptContext::record_call`] must follow.
    pub fn count_due_call(&mut self) {
        *self.in_flight += 1;
        *self.calls_begun += 1;
        self.recorder.stage_mut(self.stage).due += 1;
    }

    /// Records a call that ended on a link, in the current stage. `counts` and `times` are stored with the call if
    /// calls are recorded individually, and are not added to the run's measures. `traced_as` describes how the trace
    /// ids of its request were derived; `None` if the request was not sent.
    pub fn record_call(
        &mut self,
        link: LinkId,
        sample: CallSample,
        counts: &[(Count, u64)],
        times: &[(TimeMeasure, u64)],
        traced_as: Option<RequestTrace>,
    ) {
        *self.in_flight -= 1;
        let address = self.addresses[usize::from(link.0)];
        self.recorder
            .count_call_at_address(address, self.stage, sample.outcome);
        let sample = CallSample {
            stage: self.stage,
            ..sample
        };
        let connection = self.connections[usize::from(link.0)];
        let carried = traced_as.map(|traced_as| RequestContext {
            connection,
            shared_trace_number: traced_as.shared,
            step: traced_as.step.and_then(|step| u32::try_from(step).ok()),
        });
        (self.recorder).record_call_with_measures(&sample, counts, times, carried);
    }

    /// Counts a call of a journey's step as due, in addition to [`ScriptContext::count_due_call`]. `names` contains the
    /// names of all steps.
    pub fn count_due_step(&mut self, step: usize, names: &[String]) {
        self.recorder.count_due_step_call(self.stage, step, names);
    }

    /// Records the end of a call of a journey's step, in addition to [`ScriptContext::record_call`].
    pub fn record_step_call(&mut self, sample: CallSample, step: usize, names: &[String]) {
        let stage = self.stage;
        (self.recorder).record_step_call(&CallSample { stage, ..sample }, step, names);
    }

    /// Adds `n` to a count other than calls.
    pub fn add_to_count(&mut self, count: Count, n: u64) {
        if n > 0 {
            self.recorder.add_protocol_count(self.stage, count, n);
        }
    }

    /// Records a duration other than the times of calls, in nanoseconds.
    #[inline]
    pub fn record_time(&mut self, measure: TimeMeasure, ns: u64) {
        self.recorder.record_protocol_time(self.stage, measure, ns);
    }

    /// Records a user whose journey of `calls` calls succeeded, `ns` nanoseconds after the user was due.
    pub fn record_journey(&mut self, ns: u64, calls: u64) {
        self.recorder.record_journey(self.stage, ns, calls);
    }

    /// Records the message of a failure.
    pub fn record_failure_message(&mut self, outcome: Outcome, text: &str) {
        self.recorder.add_failure_detail(outcome, text);
    }

    /// Ends the script; `ok` says whether it succeeded.
    pub fn end_script(&mut self, ok: bool) {
        self.ended = Some(ok);
    }
}
