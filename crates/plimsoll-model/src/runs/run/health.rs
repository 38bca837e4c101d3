//! Determines whether a run's figures describe the target, or the generator and its machine.
//!
//! The result is a pure function of the records, so it is the same when a run ends and when it is read back.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::Outcome;
use crate::formats::quantity::{planned_time as planned_length, plural};
use crate::records::record::{OutcomeCounts, StageRecord, TimeHistogram};
use crate::statistics::quantile::quantile;

use super::delivery::{DeliverySummary, count_calls_noticed_too_late};
use super::header::{PlannedStage, RunHeader};
use super::shards::ShardFigures;

mod generator_stats;
mod waits;

pub use generator_stats::GeneratorStats;
pub use waits::ConnectionsNeeded;

/// The nominal length of an interval.
pub const INTERVAL_LENGTH: Duration = Duration::from_secs(1);

/// Minimum length of a complete interval, since workers may end an interval slightly early or late.
pub const MIN_COMPLETE_INTERVAL: Duration =
    INTERVAL_LENGTH.saturating_sub(Duration::from_millis(100));

/// A worker that used more than this share of a core in an interval counts as fully busy.
pub const BUSY_RATIO: f64 = 0.95;

/// The kinds of problems that a run can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The event loop noticed arrivals so late that only bounds of times are known.
    PacingLate,
    /// Arrivals deviated too much from the plan, or were never sent.
    LoadNotDelivered,
    /// A worker used a whole CPU core.
    WorkerBusy,
    /// A shard's own resources were the limit.
    ShardLimited,
    /// File descriptors ran out.
    NoDescriptors,
    /// Local ports ran out.
    NoPorts,
    /// Memory, an address or the permission for a socket is missing.
    NoSocket,
    /// The machine was stalled for a while.
    MachineStalled,
    /// The target did not respond for a while.
    TargetGone,
    /// Calls waited for an available connection.
    WaitedForConnection,
    /// The plan has fewer connections than its rate needs, so the client itself is the reason why calls waited.
    TooFewConnections,
    /// Calls that were due were never sent.
    NotStarted,
    /// Failed calls took much longer than the times of successful ones suggest.
    SlowFailures,
    /// Planned connections were never established.
    ConnectionsMissing,
    /// Connections were established and ended before an answer arrived on them.
    ConnectionsUnused,
    /// Handshakes were full although the plan resumes sessions.
    NotResumed,
    /// Connections that should have carried many calls were closed after few.
    NotReused,
    /// Calls were sent in bundles, as planned.
    Bundled,
    /// The server's certificate was not verified.
    ServerUnchecked,
    /// The counts don't add up.
    CountsDiffer,
}

impl ProblemKind {
    /// Returns whether the problem shows that the generator could not send the planned load.
    pub fn is_generator_limit(self) -> bool {
        matches!(
            self,
            ProblemKind::PacingLate
                | ProblemKind::LoadNotDelivered
                | ProblemKind::WorkerBusy
                | ProblemKind::ShardLimited
                | ProblemKind::NoDescriptors
                | ProblemKind::NoPorts
                | ProblemKind::NoSocket
        )
    }

    fn invalidating_problem(self, text: String) -> HealthProblem {
        HealthProblem {
            kind: self,
            invalidates: true,
            text,
        }
    }

    fn noted_problem(self, text: String) -> HealthProblem {
        HealthProblem {
            invalidates: false,
            ..self.invalidating_problem(text)
        }
    }
}

/// A problem that a reader of the figures must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthProblem {
    /// The kind of problem, for programs.
    pub kind: ProblemKind,
    /// Whether the problem means that the figures don't describe the target.
    pub invalidates: bool,
    /// A sentence about what was observed and what to do.
    pub text: String,
}

impl HealthProblem {
    /// Describes full handshakes in a run that resumes sessions. `first`: how many of the `full` handshakes were on a
    /// worker's first connection.
    pub(super) fn connections_not_resumed(full: u64, first: u64, resumed: u64) -> HealthProblem {
        // If no session was resumed, the server may not support resumption at all.
        let unavoidable = full == first && resumed > 0;
        let advice = if unavoidable {
            "the first of each worker, which can't have had a ticket; a warm-up keeps it out of the figures"
        } else if resumed == 0 {
            "the server sends no tickets, or does not accept them"
        } else {
            "a longer warm-up gives every connection in flight a ticket; otherwise the server refuses some"
        };
        HealthProblem {
            kind: ProblemKind::NotResumed,
            invalidates: !unavoidable,
            text: format!(
                "{full} of {} handshakes were full ones, although resumption was requested: {advice}",
                full + resumed
            ),
        }
    }

    /// Describes a mix of full and resumed handshakes in which the share of full ones deviates from `share`; `None`: it
    /// is close enough.
    pub(super) fn wrong_handshake_mix(
        share: f64,
        (full, resumed): (u64, u64),
    ) -> Option<HealthProblem> {
        let all = (full + resumed) as f64;
        let off = (full as f64 - share * all).abs();
        // The tolerance is needed because the warm-up ends at an arbitrary point of each worker's mix.
        if off <= 10.0 + 0.01 * all {
            return None;
        }
        Some(ProblemKind::NotResumed.invalidating_problem(format!(
                "{full} of {} handshakes were full ones, where {}% were requested: the server refuses tickets or sends none, or the warm-up is too short for every connection in flight to have had one",
                full + resumed,
                share * 100.0
            ),
        ))
    }

    /// Describes connections that were replaced too often: `made` connections carried `calls` calls where `wanted`
    /// connections were planned. `None`: so few were replaced that one restart of the target, or one redirection of its
    /// clients, explains them.
    pub(super) fn connections_not_reused(
        wanted: u64,
        made: u64,
        calls: u64,
    ) -> Option<HealthProblem> {
        let again = made.saturating_sub(wanted);
        if again <= wanted || wanted == 0 {
            return None;
        }
        // If more than 1 % of the calls had to wait for a new connection, the p99 includes connection setup.
        let often = again.saturating_mul(100) > calls;
        let consequence = if often {
            "the figures mostly measure connecting"
        } else {
            "fewer than 1 % of the calls had to wait for one"
        };
        Some(HealthProblem {
            kind: ProblemKind::NotReused,
            invalidates: often,
            text: format!(
                "{made} connections were made for {calls} calls, though {wanted} {} to carry them all: the target closes connections that are in use, and {consequence}; let it keep them longer, or measure a new connection for each call (--cold)",
                if wanted == 1 { "was" } else { "were" }
            ),
        })
    }

    /// Describes missing connections: of the `wanted` ones, at most `open` were open at the same time. `reasons`: the
    /// failures, with their counts.
    pub(super) fn connections_missing(
        wanted: u64,
        open: u64,
        reasons: &OutcomeCounts,
    ) -> HealthProblem {
        let why: Vec<String> = reasons
            .iter()
            .map(|(outcome, n)| format!("{} ({})", outcome.explanation(), plural(n, "time")))
            .collect();
        ProblemKind::ConnectionsMissing.invalidating_problem(format!(
                "{open} of {wanted} connections came up: {}; only their load was measured, so use at most as many as the target accepts",
                why.join(", ")
            ),
        )
    }

    /// Keeps the problem from invalidating a measurement of memory: a late generator doesn't change how much memory
    /// idle connections use.
    pub(super) fn keep_memory_figures_valid(&mut self) {
        if self.kind == ProblemKind::LoadNotDelivered {
            self.invalidates = false;
            self.text
                .push_str("; times include the generator's delay, memory is not affected");
        }
    }

    /// Returns the problems of a run that `shards` made.
    pub(super) fn from_shards(shards: &[ShardFigures]) -> impl Iterator<Item = HealthProblem> {
        let each = shards.iter();
        each.flat_map(|shard| shard.limits.iter().map(move |l| (shard.shard, l)))
            .map(|(shard, text)| {
                ProblemKind::ShardLimited
                    .invalidating_problem(format!("shard {shard} of {}: {text}", shards.len()))
            })
    }

    pub(super) fn server_certificate_unchecked() -> HealthProblem {
        ProblemKind::ServerUnchecked.noted_problem("INSECURE: the server's certificate was not checked (tls.insecure), so anyone may have answered; to be sure, use a CA file or a pinned fingerprint".to_owned())
    }

    pub(super) fn counts_differ(due: u64, accounted: u64) -> HealthProblem {
        ProblemKind::CountsDiffer.invalidating_problem(format!(
                "{due} calls were scheduled but {accounted} are accounted for: a bug in plimsoll; please report it with the run directory"
            ),
        )
    }
}

/// Returns the highest percentile up to p99 that the sample supports, with its name and share; the maximum if there are
/// too few values for any. With few calls, a single outlier would determine the maximum.
fn highest_supported_percentile(times: &TimeHistogram) -> Option<(&'static str, f64, u64)> {
    let h = times.histogram()?;
    let supported = [("p99", 0.99), ("p90", 0.9), ("p50", 0.5)]
        .into_iter()
        .find_map(|(name, p)| Some((name, p, quantile(h, p)?)));
    Some(supported.unwrap_or(("max", 1.0, h.max())))
}

/// A time in nanoseconds, displayed in a suitable unit.
struct ReadableDuration(u64);

impl fmt::Display for ReadableDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} µs", ns / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.2} ms", ns / 1e6),
            _ => write!(f, "{:.2} s", ns / 1e9),
        }
    }
}

/// Returns the problems of the generator and other notable facts of a run whose measured stages merge to `record`;
/// `delivery`: how closely the load followed the plan, where that is known. Problems that invalidate the run come
/// first.
pub fn find_problems(
    record: &StageRecord,
    header: &RunHeader,
    observed: &GeneratorStats,
    delivery: Option<&DeliverySummary>,
) -> Vec<HealthProblem> {
    let response = record.response.histogram();
    let response_p50 = response.map(|h| h.value_at_quantile(0.5));
    let mut problems: Vec<HealthProblem> =
        describe_late_arrivals(record, header, (observed, delivery), response_p50)
            .into_iter()
            .chain(describe_busy_worker(header, observed))
            .chain(describe_exhausted_resources(record))
            .chain(describe_machine_stalls(observed))
            .chain(describe_target_outage(observed))
            .chain(
                waits::describe_waits(record, header, response_p50)
                    .filter(|_| header.is_open_loop()),
            )
            .chain(describe_unused_connections(record))
            .chain(describe_unsent_calls(record))
            .chain(describe_slow_failures(record))
            .collect();
    problems.sort_by_key(|p| !p.invalidates);
    problems
}

/// A load counts as not delivered if more than this share of its calls was never sent.
const MAX_UNSENT_SHARE: f64 = 0.01;

/// A load also counts as not delivered if 1 % of its calls were late by more than this share of the load's length,
/// because the same share of all arrivals was then missing at some time.
const MAX_LATE_SHARE: f64 = 0.1;

/// Describes arrivals that the generator noticed late, and calls that were sent in bundles.
fn describe_late_arrivals(
    record: &StageRecord,
    header: &RunHeader,
    (observed, delivery): (&GeneratorStats, Option<&DeliverySummary>),
    response_p50: Option<u64>,
) -> Vec<HealthProblem> {
    let mut problems = Vec::new();
    // Waiting for the next tick is planned, so it is not lateness.
    let bundled = u64::try_from(header.tick_length().as_nanos()).unwrap_or(u64::MAX);
    if let (true, Some((name, _, pacing))) = (
        header.is_open_loop(),
        highest_supported_percentile(&observed.pacing_while_target_up(record)),
    ) {
        let late = pacing.saturating_sub(bundled);
        let cause = observed.describe_lateness_cause();
        if let Some(undelivered) = describe_undelivered_load(record, header, observed, (name, late))
        {
            let distance = delivery.map_or_else(String::new, |delivery| {
                format!("; {}", format_plan_distance(delivery.generator_distance))
            });
            problems.push(ProblemKind::LoadNotDelivered.invalidating_problem(format!(
                "the load was not delivered: {undelivered}{distance}{cause}; failures still count: {LATE_GENERATOR_ADVICE}"
            )));
        } else if let Some(response) = response_p50
            && late > response / 10
        {
            problems.push(ProblemKind::PacingLate.noted_problem(format!(
                "the generator sent requests late ({name} {}), more than a tenth of the response time's p50 ({}){cause}: each true time is between a known minimum and the measured time; to narrow this, {LATE_GENERATOR_ADVICE}",
                ReadableDuration(pacing),
                ReadableDuration(response),
            )));
        }
    }
    if bundled > 0 && !record.pacing.is_empty() {
        problems.push(ProblemKind::Bundled.noted_problem(format!(
                "calls scheduled within {} left together (load.tick): response times include the wait, service times don't",
                ReadableDuration(bundled)
            ),
        ));
    }
    problems
}

/// Formats the distance of a load from its plan.
fn format_plan_distance([low, high]: [f64; 2]) -> String {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let (low, high) = (percent(low), percent(high));
    if low == high {
        format!("{high} % of all calls were waiting to be sent at the same time")
    } else {
        format!("between {low} and {high} % of all calls were waiting to be sent at the same time")
    }
}

/// Advice for a late generator.
const LATE_GENERATOR_ADVICE: &str = "give it an idle core, more workers or a lower rate";

/// Describes a load that deviated too much from the plan. `late`: a high percentile of how late calls were noticed, in
/// nanoseconds, with its name.
fn describe_undelivered_load(
    record: &StageRecord,
    header: &RunHeader,
    observed: &GeneratorStats,
    (name, late): (&str, u64),
) -> Option<String> {
    let unsent = count_calls_noticed_too_late(record);
    if unsent as f64 > MAX_UNSENT_SHARE * record.due as f64 {
        return Some(format!(
            "{unsent} of {} calls were not sent, because the generator reached them after their deadline",
            record.due
        ));
    }
    let measured = header.planned_stages.iter().filter(|stage| !stage.warmup);
    let planned: Option<Duration> = measured.map(PlannedStage::duration).sum();
    let length = planned
        .filter(|length| !length.is_zero())
        .unwrap_or(INTERVAL_LENGTH * u32::try_from(observed.intervals).unwrap_or(u32::MAX));
    let share = Duration::from_nanos(late).as_secs_f64() / length.as_secs_f64();
    (!length.is_zero() && share > MAX_LATE_SHARE).then(|| {
        format!(
            "calls were sent up to {} late ({name}), {:.0} % of the load's length of {}",
            ReadableDuration(late),
            share * 100.0,
            planned_length(length)
        )
    })
}

/// Describes a generator at its limit. In a closed loop, this lowers the rate, which then doesn't describe the target.
/// In an open loop, calls are late, which is recorded for each call.
fn describe_busy_worker(header: &RunHeader, observed: &GeneratorStats) -> Option<HealthProblem> {
    let busy_intervals = observed.busy_interval_count();
    if busy_intervals == 0 {
        return None;
    }
    let seen = format!(
        "a worker used {:.0} % of a core ({} of {} intervals at {:.0} % or more)",
        observed.busiest_ratio * 100.0,
        busy_intervals,
        observed.intervals,
        BUSY_RATIO * 100.0
    );
    Some(if header.is_open_loop() {
        ProblemKind::WorkerBusy.noted_problem(format!("{seen}: use more workers or a lower rate"))
    } else {
        ProblemKind::WorkerBusy.noted_problem(format!(
            "{seen}: the rate achieved may be the generator's limit, not the target's"
        ))
    })
}

/// Describes resources of this machine that ran out.
fn describe_exhausted_resources(record: &StageRecord) -> impl Iterator<Item = HealthProblem> {
    let limits = [
        (
            Outcome::NoDescriptors,
            ProblemKind::NoDescriptors,
            "raise `ulimit -n` or use fewer connections",
        ),
        (
            Outcome::NoPorts,
            ProblemKind::NoPorts,
            "connect from several source addresses, or less often",
        ),
        (
            Outcome::NoSocket,
            ProblemKind::NoSocket,
            "the error messages name what is missing",
        ),
    ];
    limits.into_iter().filter_map(|(outcome, kind, advice)| {
        let n = record.outcomes.get(outcome) + record.connect_failures.get(outcome);
        let times = plural(n, "time");
        let text = format!("{}, {times}: {advice}", outcome.explanation());
        (n > 0).then(|| kind.invalidating_problem(text))
    })
}

fn describe_machine_stalls(observed: &GeneratorStats) -> Option<HealthProblem> {
    let text = format!(
        "the machine stalled: {} of {} intervals were longer than requested, the longest {:.2} s instead of 1 s",
        observed.stalled_intervals,
        observed.intervals,
        observed.longest_interval.as_secs_f64()
    );
    (observed.stalled_intervals > 0).then(|| ProblemKind::MachineStalled.noted_problem(text))
}

fn describe_target_outage(observed: &GeneratorStats) -> Option<HealthProblem> {
    let text = format!(
        "the target was down in {} of {} intervals: no call succeeded in them, and connections failed; the load generator's delay is judged by the others",
        observed.gone_intervals, observed.intervals
    );
    (observed.gone_intervals > 0).then(|| ProblemKind::TargetGone.noted_problem(text))
}

fn describe_unused_connections(record: &StageRecord) -> Option<HealthProblem> {
    let text = format!(
        "{} of {} connections ended before they brought an answer: the server, or what is in front of it, closes them or breaks the protocol; after the second in a row there is a pause before the next",
        record.connections_unused,
        record.connections_full + record.connections_resumed
    );
    (record.connections_unused > 0).then(|| ProblemKind::ConnectionsUnused.noted_problem(text))
}

fn describe_unsent_calls(record: &StageRecord) -> Option<HealthProblem> {
    let text = format!(
        "{} of {} scheduled calls were dropped before they were sent: the run ended, or this process reached them after their deadline; objectives do not count them",
        record.not_started, record.due
    );
    (record.not_started > 0).then(|| ProblemKind::NotStarted.noted_problem(text))
}

/// Describes failed calls that took longer than the successful ones, whose times reports show.
fn describe_slow_failures(record: &StageRecord) -> Option<HealthProblem> {
    let (name, p, ok) =
        highest_supported_percentile(&record.response).filter(|_| !record.failed.is_empty())?;
    let mut all = record.response.clone();
    all.merge(&record.failed);
    // The percentile of the successful calls can be used for all calls, because a larger number of calls supports at
    // least as high a percentile.
    let with_failed = all.histogram().map_or(0, |h| h.value_at_quantile(p));
    let text = format!(
        "response times are of successful calls; the failed ones took longer: with them the {name} is {}, not {}",
        ReadableDuration(with_failed),
        ReadableDuration(ok)
    );
    (with_failed > ok + ok / 10).then(|| ProblemKind::SlowFailures.noted_problem(text))
}

#[cfg(test)]
mod tests;
