//! The figures of a run: a pure function of its header and its intervals.
//!
//! [`RunTotals`] adds up intervals one by one; [`RunSummary`] computes from them the figures that `run.json`
//! contains and that reports show. Percentiles are never averaged.
//!
//! This file is long because the module lists every figure of a run with its meaning.

mod addresses;
mod problems;
mod slow_calls;
mod steps;
mod totals;
mod users;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::Outcome;
use crate::metrics::measure::{Count, StageMeasures, TimeMeasure};
use crate::records::instrument::LatenessBounds;
use crate::records::record::{FailureDetail, OutcomeCounts, StageRecord, is_zero};

use super::count_check::CountCheck;
use super::delivery::{DeliverySummary, ScheduledArrivals};
use super::health::{HealthProblem, ProblemKind};
use super::memory::MemorySummary;
use super::rotation::RotationSummary;
use super::sampling::RunSampling;
use super::times_summary::{TimesSummary, round_to_thousandths};
use super::{RunHeader, RunOrigin};
use problems::collect_problems;
use totals::StageTotals;

pub use addresses::AddressSummary;
pub use slow_calls::SlowCallSummary;
pub use steps::StepSummary;
pub use totals::RunTotals;
pub use users::UsersSummary;

/// The phases of the connections that were made. `None`: the phase did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhasesSummary {
    /// Name resolution.
    pub resolve: Option<TimesSummary>,
    /// The TCP handshake.
    pub connect: Option<TimesSummary>,
    /// The TLS handshake.
    pub handshake: Option<TimesSummary>,
    /// The protocol's handshake.
    pub ready: Option<TimesSummary>,
    /// All phases of a connection together.
    pub connection: Option<TimesSummary>,
    /// Calls that opened a new connection and ended ok: time of connection and call together.
    pub cold_total: Option<TimesSummary>,
}

impl PhasesSummary {
    fn from_measures(
        measures: &StageMeasures,
        lateness: Option<&LatenessBounds>,
    ) -> Option<PhasesSummary> {
        let of = |measure| TimesSummary::with_lateness(measures.times(measure), lateness);
        let phases = PhasesSummary {
            resolve: of(TimeMeasure::Resolve),
            connect: of(TimeMeasure::Connect),
            handshake: of(TimeMeasure::Handshake),
            ready: of(TimeMeasure::Ready),
            connection: of(TimeMeasure::Connection),
            cold_total: of(TimeMeasure::ColdTotal),
        };
        Some(phases).filter(|phases| *phases != PhasesSummary::default())
    }
}

/// Figures of the messages of streams.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MessagesSummary {
    /// Messages sent on calls that ended.
    pub sent: u64,
    /// Complete messages that were received.
    pub received: u64,
    /// Messages received per second, until the last one arrived.
    pub received_per_s: Option<f64>,
    /// Time from a call's actual send to its first message from the server.
    pub first_message: Option<TimesSummary>,
    /// Time from one message from the server to the next on the same call.
    pub inter_message: Option<TimesSummary>,
}

impl MessagesSummary {
    /// Summarises the messages of a stage. `lasted`: the time until the last one arrived.
    fn from_stage(
        record: &StageRecord,
        lasted: Duration,
        lateness: Option<&LatenessBounds>,
    ) -> Option<MessagesSummary> {
        let messages = record.messages?;
        let of = |measure| TimesSummary::with_lateness(record.measures.times(measure), lateness);
        let seconds = lasted.as_secs_f64();
        Some(MessagesSummary {
            sent: messages.sent,
            received: messages.received,
            received_per_s: (seconds > 0.0)
                .then(|| round_to_thousandths(messages.received as f64 / seconds)),
            first_message: of(TimeMeasure::FirstMessage),
            inter_message: of(TimeMeasure::InterMessage),
        })
    }
}

/// Measures that only some protocols have, by their stable names.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MeasuresSummary {
    /// Counters, including zeros.
    pub counts: BTreeMap<&'static str, u64>,
    /// Times that were recorded.
    pub times: BTreeMap<&'static str, TimesSummary>,
    /// How many users were there at once; left out where calls have no users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users: Option<UsersSummary>,
}

impl MeasuresSummary {
    fn from_totals(
        totals: &StageTotals,
        lateness: Option<&LatenessBounds>,
    ) -> Option<MeasuresSummary> {
        let record = &totals.record;
        let measures = &record.measures;
        let counts = Count::all().map(|c| (c.key(), measures.counter(c)));
        let of_journeys = lateness.map(|_| LatenessBounds::from_journeys(record));
        let lateness_of = |measure| match measure {
            TimeMeasure::Journey => of_journeys.as_ref(),
            _ => lateness,
        };
        let times = TimeMeasure::all()
            .filter(|m| m.is_protocol_specific())
            .filter_map(|m| {
                let times = TimesSummary::with_lateness(measures.times(m), lateness_of(m))?;
                Some((m.key(), times))
            });
        let all = MeasuresSummary {
            counts: counts.collect(),
            times: times.collect(),
            users: totals.users.summary(),
        };
        let is_any = all.counts.values().any(|n| *n > 0) || !all.times.is_empty();
        is_any.then_some(all)
    }
}

/// The count of one outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ErrorSummary {
    /// The outcome's code.
    pub code: String,
    /// The number of calls or connections.
    pub count: u64,
    /// The source of the failure: client, link or target.
    pub blame: String,
    /// A human-readable explanation.
    pub explanation: String,
}

impl ErrorSummary {
    /// Returns the summaries of the outcomes in `counts` for which `wanted` is true, the most frequent first.
    fn from_counts(counts: &OutcomeCounts, wanted: fn(Outcome) -> bool) -> Vec<ErrorSummary> {
        let mut errors: Vec<(Outcome, u64)> = counts.iter().filter(|(o, _)| wanted(*o)).collect();
        errors.sort_by_key(|(o, n)| (std::cmp::Reverse(*n), o.index()));
        errors
            .into_iter()
            .filter_map(|(o, count)| {
                Some(ErrorSummary {
                    code: o.code().to_owned(),
                    count,
                    blame: o.failure_source()?.name().to_owned(),
                    explanation: o.explanation().to_owned(),
                })
            })
            .collect()
    }
}

/// Resources that one end (client or server) used while the calls of a stage ran.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ResourcesSummary {
    /// User CPU time without busy waiting.
    pub cpu_user_us: f64,
    /// System CPU time; `None`: not known (runs of other tools).
    pub cpu_system_us: Option<f64>,
    /// User and system CPU time per call, µs; `None`: no call ended, or the CPU time is not completely known.
    pub cpu_us_per_call: Option<f64>,
    /// Maximum resident memory. Here and in `descriptors_max` and `threads_max`, 0 means not known.
    pub rss_bytes_max: u64,
    /// Resident memory before the first connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes_before: Option<u64>,
    /// The highest number of open files and sockets.
    pub descriptors_max: u64,
    /// The highest number of threads, over all processes of this end.
    pub threads_max: u64,
}

/// The figures of one stage, or of all that are not warm-up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSummary {
    /// The name in the plan; `total` for all stages.
    pub name: String,
    /// Whether the stage is warm-up and left out of the totals.
    pub warmup: bool,
    /// Length of the time in which calls were started or, where no end was planned, in which they ran; `None`: not
    /// known.
    pub elapsed_us: Option<u64>,
    /// Time from the stage's start to the end of its last call, at least `elapsed_us`: the time base of message, token
    /// and session rates.
    pub lasted_us: Option<u64>,
    /// Calls that were due.
    pub due: u64,
    /// Calls that ended ok.
    pub ok: u64,
    /// Calls that ended with an error, without the abandoned ones.
    pub errors: u64,
    /// Calls that were sent, and abandoned because the run ended.
    pub cut_off: u64,
    /// Answers that arrived after their call's deadline; these calls are errors.
    pub late: u64,
    /// Calls that were due and never sent.
    pub not_started: u64,
    /// Errors of calls that were never sent, because their deadline passed first.
    pub expired_unsent: u64,
    /// Calls that waited for a free stream; this field and the next one are left out if they are 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub waited_for_stream: u64,
    /// Calls that waited because no connection was open.
    #[serde(skip_serializing_if = "is_zero")]
    pub waited_for_connection: u64,
    /// ok / (ok + errors + calls that the drain time cut off); `None` where all are zero.
    pub success_share: Option<f64>,
    /// Arrivals per second.
    pub offered_per_s: Option<f64>,
    /// Calls per second that ended, ok or not, within `elapsed_us`.
    pub achieved_per_s: Option<f64>,
    /// Where `achieved_per_s` of another run like this one would lie, with a confidence of 95 %; only in the total.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub achieved_sampling_per_s: Option<[f64; 2]>,
    /// How much of the load was sent, and how late; open loops only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySummary>,
    /// Payload bytes of requests.
    pub bytes_sent: u64,
    /// Payload bytes of answers.
    pub bytes_received: u64,
    /// Connections made with a full handshake, or without TLS.
    pub connections_full: u64,
    /// Connections made with a resumed session.
    pub connections_resumed: u64,
    /// Connections, full or resumed, with a HelloRetryRequest; left out where there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub connections_retried: u64,
    /// Shared connections that were open and were lost.
    pub connections_lost: u64,
    /// Shared connections that the peer closed before they carried a call; left out where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_unused: Option<u64>,
    /// Shared connections that the peer closed while they were idle; left out where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_idle_closed: Option<u64>,
    /// The most connections that were open at the end of an interval.
    pub connections_open_max: u64,
    /// Errors, the most frequent first. The next two lists have the same order.
    pub errors_by_code: Vec<ErrorSummary>,
    /// Abandoned calls by outcome; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cut_off_by_code: Vec<ErrorSummary>,
    /// Failed attempts to connect; they are not calls.
    pub connect_failures_by_code: Vec<ErrorSummary>,
    /// The counts of each address, where the target has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AddressSummary>,
    /// The steps of a journey, in the plan's order; left out where the plan has no journey.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepSummary>,
    /// Time from when calls were due to their end. `None`, here and in the fields below: nothing was recorded.
    pub response: Option<TimesSummary>,
    /// Time from the actual send to the end.
    pub service: Option<TimesSummary>,
    /// Time from the actual send to the first byte of the answer.
    pub first_byte: Option<TimesSummary>,
    /// Response times of calls that did not end ok.
    pub failed: Option<TimesSummary>,
    /// Time from when calls were due to their actual send.
    pub lag: Option<TimesSummary>,
    /// How late the generator noticed that calls were due.
    pub pacing: Option<TimesSummary>,
    /// The phases of the connections made in the stage.
    pub phases: Option<PhasesSummary>,
    /// The messages of streams.
    pub messages: Option<MessagesSummary>,
    /// Measures that only some protocols have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measures: Option<MeasuresSummary>,
    /// Resources of the client; `None`: not known.
    pub client: Option<ResourcesSummary>,
    /// Resources of the watched server; `None`: not watched.
    pub server: Option<ResourcesSummary>,
}

/// Converts to whole µs; `None` where no time has passed.
fn nonzero_us(time: Duration) -> Option<u64> {
    (!time.is_zero()).then(|| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

impl StageSummary {
    /// Summarises a stage. `is_lateness_known`: false for runs of other tools. `asked`: the scheduled arrivals, where
    /// the plan schedules them.
    fn new(
        name: String,
        totals: &StageTotals,
        is_lateness_known: bool,
        asked: Option<ScheduledArrivals>,
    ) -> StageSummary {
        let r = &totals.record;
        let lateness = is_lateness_known.then(|| LatenessBounds::from_record(r));
        let lateness = lateness.as_ref();
        let per_second = |n: u64| {
            let seconds = totals.window.as_secs_f64();
            (seconds > 0.0).then(|| round_to_thousandths(n as f64 / seconds))
        };
        // A call without an answer at the end of the drain time counts as not successful. An interrupted call is left
        // out, because it might have succeeded.
        let settled = r.ok_calls() + r.errors() + r.outcomes.get(Outcome::CutOff);
        StageSummary {
            name,
            warmup: false,
            elapsed_us: nonzero_us(totals.window),
            lasted_us: nonzero_us(totals.lasted),
            due: r.due,
            ok: r.ok_calls(),
            errors: r.errors(),
            cut_off: r.cut_off_call_count(),
            late: r.late,
            not_started: r.not_started,
            expired_unsent: r.expired_unsent,
            waited_for_stream: r.waited_for_stream,
            waited_for_connection: r.waited_for_connection,
            success_share: (settled > 0).then(|| r.ok_calls() as f64 / settled as f64),
            offered_per_s: per_second(r.due),
            achieved_per_s: per_second(totals.ended_in_window.min(r.due)),
            achieved_sampling_per_s: None,
            delivery: asked
                .and_then(|asked| DeliverySummary::new(r, &asked, totals.unnoticed, totals.lasted)),
            bytes_sent: r.bytes_sent,
            bytes_received: r.bytes_received,
            connections_full: r.connections_full,
            connections_resumed: r.connections_resumed,
            connections_retried: r.connections_retried,
            connections_lost: r.connections_lost,
            connections_unused: (r.connections_unused > 0).then_some(r.connections_unused),
            connections_idle_closed: (r.connections_idle_closed > 0)
                .then_some(r.connections_idle_closed),
            connections_open_max: totals.connections_open_max,
            errors_by_code: ErrorSummary::from_counts(&r.outcomes, Outcome::is_error),
            cut_off_by_code: ErrorSummary::from_counts(&r.outcomes, Outcome::is_abandoned),
            connect_failures_by_code: ErrorSummary::from_counts(&r.connect_failures, |o| {
                !o.is_ok()
            }),
            addresses: AddressSummary::from_record(r),
            steps: (r.steps.iter())
                .map(|step| StepSummary::from_record(step, lateness))
                .collect(),
            response: TimesSummary::from_response_times(r, lateness),
            service: TimesSummary::with_lateness(&r.service, lateness),
            first_byte: TimesSummary::with_lateness(&r.first_byte, lateness),
            failed: TimesSummary::with_lateness(&r.failed, lateness),
            lag: TimesSummary::from_times(&r.lag),
            pacing: TimesSummary::from_times(&r.pacing),
            phases: PhasesSummary::from_measures(&r.measures, lateness),
            messages: MessagesSummary::from_stage(r, totals.lasted, lateness),
            measures: MeasuresSummary::from_totals(totals, lateness),
            client: totals
                .client
                .map(|used| used.with_cpu_per_call(r.ended_calls())),
            server: totals
                .server
                .map(|used| used.with_cpu_per_call(r.ended_calls())),
        }
    }
}

impl StageSummary {
    fn with_sampling_intervals(self, sampling: &RunSampling) -> StageSummary {
        let with =
            |times: Option<TimesSummary>, sampling| Some(TimesSummary { sampling, ..times? });
        StageSummary {
            response: with(self.response, sampling.response),
            service: with(self.service, sampling.service),
            achieved_sampling_per_s: sampling.achieved_per_s,
            ..self
        }
    }
}

/// Whether the figures are valid, so that they show the target and not a limit of the load generator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunHealth {
    /// Whether no problem invalidates the figures.
    pub valid: bool,
    /// Problems that a reader should know. Each says whether it invalidates the run.
    pub problems: Vec<HealthProblem>,
}

impl RunHealth {
    /// Returns whether the generator was late enough to affect the times.
    pub fn is_late(&self) -> bool {
        let late = [ProblemKind::PacingLate, ProblemKind::LoadNotDelivered];
        self.problems.iter().any(|p| late.contains(&p.kind))
    }
}

/// All figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunSummary {
    /// Time from the first arrival to the end of the last interval; `None`: not known.
    pub elapsed_us: Option<u64>,
    /// The stages that are not warm-up, together.
    pub total: StageSummary,
    /// The stages in the plan's order, warm-up included.
    pub stages: Vec<StageSummary>,
    /// The first few distinct details of each outcome.
    pub details: Vec<FailureDetail>,
    /// The slowest calls, the slowest first, without warm-up; left out where requests carried no trace ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slowest: Vec<SlowCallSummary>,
    /// Memory of idle connections, where the protocol measures it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySummary>,
    /// Cost of certificate rotation; left out where no certificate was replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<RotationSummary>,
    /// The comparison of the calls that were due with those accounted for, over all stages, warm-up included.
    pub count_check: CountCheck,
    /// Whether the figures can be relied on.
    pub health: RunHealth,
}

impl RunSummary {
    /// Returns the phases of the connections that the measured stages made. Shared connections are made before the
    /// first call, so their phases may be in the warm-up.
    pub fn phases(&self) -> Option<&PhasesSummary> {
        let stages = self.stages.iter().filter_map(|s| s.phases.as_ref());
        self.total.phases.as_ref().into_iter().chain(stages).next()
    }

    /// Computes the figures of the run that `header` describes, whose intervals add up to `totals`.
    pub fn from_totals(header: &RunHeader, totals: &RunTotals) -> RunSummary {
        let mut measured = StageTotals::default();
        let mut stages = Vec::new();
        let is_measured = header.source == RunOrigin::Measured;
        let mut check = CountCheck {
            in_flight: totals.in_flight,
            backlog: totals.backlog,
            ..CountCheck::default()
        };
        for (stage, t) in &totals.stages {
            let t = t.with_window(header, *stage, totals);
            check.add(&t.record);
            let name = header
                .planned_stages
                .get(usize::from(*stage))
                .map_or_else(|| format!("stage {stage}"), |s| s.name.clone());
            let asked = ScheduledArrivals::from_header(header, |of| of == *stage);
            let summary = StageSummary::new(name, &t, is_measured, asked);
            let warmup = header.is_warmup(*stage);
            stages.push(StageSummary { warmup, ..summary });
            if !warmup {
                measured.merge(&t);
            }
        }
        // This memory is read before the warm-up, but is also valid for the measured stages.
        let ends = [&mut measured.client, &mut measured.server];
        for (end, before) in ends.into_iter().zip(totals.rss_before) {
            if let Some(end) = end {
                end.rss_bytes_before = before;
            }
        }
        check.matches = check.due == check.accounted_calls();
        let asked = ScheduledArrivals::from_header(header, |stage| !header.is_warmup(stage));
        let sampling = RunSampling::from_stages(totals.seconds.values());
        let total = StageSummary::new("total".to_owned(), &measured, is_measured, asked);
        let total = total.with_sampling_intervals(&sampling);
        let mut problems =
            collect_problems(header, totals, &measured.record, total.delivery.as_ref());
        if !check.matches {
            problems.push(HealthProblem::counts_differ(
                check.due,
                check.accounted_calls(),
            ));
        }
        RunSummary {
            elapsed_us: nonzero_us(totals.end),
            total,
            stages,
            details: totals.details.clone(),
            slowest: SlowCallSummary::from_slowest(&measured.record.slowest),
            memory: MemorySummary::from_readings(&totals.memory),
            rotation: totals.rotations.summary(),
            count_check: check,
            health: RunHealth {
                valid: !problems.iter().any(|p| p.invalidates),
                problems,
            },
        }
    }
}
