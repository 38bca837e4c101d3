//! Computes the figures that the live view shows, for the run so far and for its last interval.
//!
//! The figures are computed once per interval, so that drawing needs no computation.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::objective::{self, LiveObjectiveInputs, ObjectiveResult, RunValidity};
use plimsoll_model::plan::Objective;
use plimsoll_model::records::record::{StageRecord, TimeHistogram};
use plimsoll_model::runs::run::health::MIN_COMPLETE_INTERVAL;
use plimsoll_model::runs::run::{IntervalRecord, ResourceUsage, TimesSummary, UserLevels};
use plimsoll_model::schedule::Schedule;
use plimsoll_model::{Outcome, Plan};

use crate::screen::remaining::{self, format_clock};

/// Maximum number of intervals to keep for the charts: the columns of a wide terminal.
const MAX_HISTORY_INTERVALS: usize = 300;

/// The phase of a run, as the live view shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunPhase {
    Connecting { open: u64, wanted: u64 },
    WarmUp,
    Measuring,
}

/// Statistics of one kind of time; `None` if no call has such a time.
pub(super) type TimeStats = Option<TimesSummary>;

/// The figures of a period of the run, such as the last interval.
#[derive(Clone, Debug)]
pub(super) struct PeriodStats {
    pub(super) seconds: f64,
    pub(super) record: StageRecord,
    /// Times by kind, the most important first.
    pub(super) times: Vec<(&'static str, TimeStats)>,
    /// Users at the end of the period; `None` where calls have no users.
    pub(super) users: Option<UserLevels>,
}

impl PeriodStats {
    fn new(record: StageRecord, seconds: f64) -> PeriodStats {
        PeriodStats {
            seconds,
            times: times(&record),
            record,
            users: None,
        }
    }

    /// Returns counts that only some protocols have: messages of streams, tokens of sessions.
    pub(super) fn other_counts(&self) -> Vec<(&'static str, u64)> {
        let mut besides = Vec::new();
        if let Some(messages) = &self.record.messages {
            besides.push(("messages sent", messages.sent));
            besides.push(("messages received", messages.received));
        }
        besides.extend(
            [
                (Count::TokensReceived, "tokens"),
                (const { Count::keyed("sessions_ok") }, "sessions ok"),
                (Count::Reconnects, "reconnects"),
            ]
            .into_iter()
            .map(|(count, name)| (name, self.record.measures.counter(count)))
            .filter(|(_, n)| *n > 0),
        );
        besides
    }

    pub(super) fn response(&self) -> TimeStats {
        self.times.first().and_then(|(_, spread)| *spread)
    }

    pub(super) fn per_second(&self, n: u64) -> f64 {
        n as f64 / self.seconds.max(1e-3)
    }

    /// Returns the errors, the most frequent first.
    pub(super) fn errors_by_code(&self) -> Vec<(Outcome, u64)> {
        let outcomes = self.record.outcomes.iter();
        let mut errors: Vec<_> = outcomes.filter(|(o, _)| o.is_error()).collect();
        errors.sort_by_key(|(o, n)| (std::cmp::Reverse(*n), o.index()));
        errors
    }
}

/// Returns the measured kinds of time, including those of messages and tokens.
fn times(record: &StageRecord) -> Vec<(&'static str, TimeStats)> {
    let mut kinds = vec![("response", TimesSummary::from_times(&record.response))];
    let mut part = |name, times: Option<&TimeHistogram>| {
        if let Some(times) = times.filter(|times| !times.is_empty()) {
            kinds.push((name, TimesSummary::from_times(times)));
        }
    };
    let of = |measure| Some(record.measures.times(measure)).filter(|t| !t.is_empty());
    let due = of(TimeMeasure::TimeToFirstToken);
    part("1st token", due.or_else(|| of(TimeMeasure::FirstToken)));
    part("token gap", of(TimeMeasure::TokenGap));
    part("1st msg", of(TimeMeasure::FirstMessage));
    part("msg gap", of(TimeMeasure::InterMessage));
    kinds.push(("service", TimesSummary::from_times(&record.service)));
    kinds.push(("send delay", TimesSummary::from_times(&record.lag)));
    kinds
}

/// Resource usage of the client or the server over the last interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EndpointUsage {
    /// CPU time per elapsed time; 1.0 is one core.
    pub(super) cpu_share: f64,
    pub(super) cpu_us_per_call: Option<f64>,
    pub(super) rss_bytes: u64,
    pub(super) descriptors: u64,
}

impl EndpointUsage {
    fn from_usage(resources: &ResourceUsage, seconds: f64, ended: u64) -> EndpointUsage {
        let cpu_us = resources.cpu_us().unwrap_or(0) as f64;
        EndpointUsage {
            cpu_share: cpu_us / (seconds.max(1e-3) * 1e6),
            cpu_us_per_call: (ended > 0).then(|| cpu_us / ended as f64),
            rss_bytes: resources.rss_bytes,
            descriptors: resources.descriptors,
        }
    }
}

/// The state of a run as the live view shows it.
#[derive(Clone, Debug)]
pub(super) struct Dashboard {
    pub(super) title: String,
    /// The name of the call, and the target.
    pub(super) subtitle: String,
    /// Lines about the progress of the search or ladder that the run belongs to; empty for a single run.
    pub(super) context: Vec<String>,
    pub(super) phase: RunPhase,
    pub(super) elapsed: Duration,
    pub(super) planned: Option<Duration>,
    pub(super) wanted_calls: Option<u64>,
    /// Number of calls that have ended, without warm-up.
    pub(super) calls: u64,
    /// Figures of the last complete interval, which may belong to the warm-up.
    pub(super) last: PeriodStats,
    /// Figures of the run so far, without warm-up.
    pub(super) so_far: PeriodStats,
    pub(super) in_flight: u64,
    pub(super) backlog: u64,
    pub(super) connections: u64,
    pub(super) client: Option<EndpointUsage>,
    pub(super) server: Option<EndpointUsage>,
    pub(super) busiest_worker: f64,
    /// Share of a core that this view used over the last interval.
    pub(super) view_share: f64,
    /// Provisional verdicts of the objectives.
    pub(super) objectives: Vec<ObjectiveResult>,
    /// Ended calls per second, by interval. `p99s` and `longest` are the p99 and the maximum response time by interval,
    /// µs; 0 if there is none.
    pub(super) rates: VecDeque<u64>,
    p99s: VecDeque<u64>,
    longest: VecDeque<u64>,
    wanted_objectives: Vec<Objective>,
    objective_inputs: LiveObjectiveInputs,
    warmup: Vec<bool>,
    view_cpu: Duration,
}

impl Dashboard {
    /// Returns the dashboard of a run of `plan` before its first call. `view_cpu` is the live view's CPU time so far.
    pub(super) fn new(plan: &Plan, context: Vec<String>, view_cpu: Duration) -> Dashboard {
        let schedule = Schedule::new(&plan.load, plan.seed);
        let (_, call) = plan.call.protocol_and_call_name();
        Dashboard {
            title: plan.name.clone(),
            subtitle: format!("{call} at {}", plan.target.url),
            context,
            phase: RunPhase::Connecting { open: 0, wanted: 0 },
            elapsed: Duration::ZERO,
            planned: schedule.end().map(Duration::from_nanos),
            wanted_calls: plan.load.calls,
            calls: 0,
            last: PeriodStats::new(StageRecord::default(), 0.0),
            so_far: PeriodStats::new(StageRecord::default(), 0.0),
            in_flight: 0,
            backlog: 0,
            connections: 0,
            client: None,
            server: None,
            busiest_worker: 0.0,
            view_share: 0.0,
            rates: VecDeque::new(),
            p99s: VecDeque::new(),
            longest: VecDeque::new(),
            objectives: Vec::new(),
            wanted_objectives: plan.objectives.clone(),
            objective_inputs: LiveObjectiveInputs::new(plan),
            warmup: plan.load.stages.iter().map(|s| s.warmup).collect(),
            view_cpu,
        }
    }

    /// Adds an interval. `view_cpu` is the live view's CPU time so far.
    pub(super) fn add_interval(&mut self, interval: &IntervalRecord, view_cpu: Duration) {
        let seconds = interval.length.as_secs_f64();
        let mut last = StageRecord::default();
        let mut counts = false;
        for (stage, record) in &interval.stages {
            last.merge(record);
            if self.warmup.get(usize::from(*stage)) != Some(&true) {
                counts = true;
                self.so_far.record.merge(record);
            }
        }
        if counts {
            self.so_far.seconds += seconds;
            self.so_far.times = times(&self.so_far.record);
        }
        self.phase = if counts || self.so_far.seconds > 0.0 {
            RunPhase::Measuring
        } else {
            RunPhase::WarmUp
        };
        self.elapsed = interval.end_offset();
        let ended = last.ended_calls();
        // Skip a truncated interval, which is too short to give a rate.
        if interval.length >= MIN_COMPLETE_INTERVAL {
            self.last = PeriodStats::new(last, seconds);
        }
        self.calls = self.so_far.record.ended_calls();
        if !self.wanted_objectives.is_empty() && counts {
            self.objective_inputs.add(interval);
            let (ended, measured_for) = (self.calls as f64, self.so_far.seconds);
            self.objective_inputs.measured.all.achieved_per_s =
                (measured_for > 0.0).then(|| ended / measured_for);
            self.objectives = objective::judge_objectives(
                &self.wanted_objectives,
                &self.objective_inputs.measured,
                RunValidity::Sound,
            );
        }
        self.in_flight = interval.in_flight;
        self.backlog = interval.backlog;
        self.connections = interval.connections_open;
        self.last.users = interval.users;
        let end = |r: &ResourceUsage| EndpointUsage::from_usage(r, seconds, ended);
        self.client = interval.client.as_ref().map(end);
        self.server = interval.server.as_ref().map(end).or(self.server);
        self.busiest_worker = interval.busiest_worker_ratio;
        let used = view_cpu.saturating_sub(self.view_cpu);
        self.view_share = used.as_secs_f64() / seconds.max(1e-3);
        self.view_cpu = view_cpu;
        if interval.length >= MIN_COMPLETE_INTERVAL {
            let rate = self.last.per_second(self.last.record.ended_calls()).round() as u64;
            let response = self.last.response();
            let whole = |us: Option<f64>| us.unwrap_or(0.0).round() as u64;
            for (history, value) in [
                (&mut self.rates, rate),
                (&mut self.p99s, whole(response.and_then(|r| r.p99_us))),
                (&mut self.longest, whole(response.map(|r| r.max_us))),
            ] {
                history.push_back(value);
                if history.len() > MAX_HISTORY_INTERVALS {
                    history.pop_front();
                }
            }
        }
    }

    /// Returns the name and the values, by interval, of the p99 response time, or of the maximum if no interval has
    /// enough calls for a p99.
    pub(super) fn tail_latency_history(&self) -> (&'static str, &VecDeque<u64>) {
        if self.p99s.iter().any(|us| *us > 0) {
            ("p99", &self.p99s)
        } else {
            ("longest", &self.longest)
        }
    }

    /// Returns the completed share of the run, and a text about the remaining time or calls; `None` if the run has no
    /// planned end.
    pub(super) fn progress(&self) -> Option<(f64, String)> {
        if let Some(wanted) = self.wanted_calls.filter(|wanted| *wanted > 0) {
            let rate = self.so_far.per_second(self.calls);
            let left = wanted.saturating_sub(self.calls);
            let words = if rate > 0.0 && self.calls > 0 {
                remaining::format_estimate(left as f64 / rate)
            } else {
                "not yet known".to_owned()
            };
            return Some((self.calls as f64 / wanted as f64, words));
        }
        let planned = self.planned.filter(|planned| !planned.is_zero())?;
        let left = planned.saturating_sub(self.elapsed).as_secs_f64();
        let words = if left > 0.0 {
            format!("{} left", format_clock(left))
        } else {
            "waiting for the last answers".to_owned()
        };
        Some((self.elapsed.as_secs_f64() / planned.as_secs_f64(), words))
    }
}
