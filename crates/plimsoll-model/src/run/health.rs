//! Whether a run's figures describe the target, or the generator and its machine.
//!
//! A pure function of what was recorded, so the verdict of a run that is read is the
//! verdict of the run that was made.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::Outcome;
use crate::quantity::planned as planned_length;
use crate::record::{Counts, StageRecord, Times};
use crate::statistics::quantile::quantile;

use super::delivery::{DeliverySummary, given_up_late};
use super::header::{PlannedStage, RunHeader};
use super::shards::ShardFigures;

mod observed;
mod waits;

pub use observed::Observed;
pub use waits::ConnectionsNeeded;

/// Intervals are one second.
pub const INTERVAL_LENGTH: Duration = Duration::from_secs(1);

/// The least that counts as a whole interval: workers end theirs at most a little early or late.
pub const WHOLE_INTERVAL: Duration = INTERVAL_LENGTH.saturating_sub(Duration::from_millis(100));

/// A worker that used more of a core than this over an interval had no time to spare.
pub const BUSY_RATIO: f64 = 0.95;

/// The kinds of problems that a run can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The loop noticed arrivals so late that times are known only between two numbers.
    PacingLate,
    /// Arrivals were sent too far from the plan, or not at all.
    LoadNotDelivered,
    /// A worker used a whole core.
    WorkerBusy,
    /// One of the shards was at its limit.
    ShardLimited,
    /// Descriptors ran out.
    NoDescriptors,
    /// Ports ran out.
    NoPorts,
    /// Memory, an address or the permission for a connection is missing.
    NoSocket,
    /// The machine stood still for a while.
    MachineStalled,
    /// Nobody answered for a while.
    TargetGone,
    /// Calls waited for a connection that would take them.
    WaitedForConnection,
    /// The plan has fewer connections than its rate needs: what calls waited for is the client's own.
    TooFewConnections,
    /// Calls that were due were never sent.
    NotStarted,
    /// Calls that failed took longer than the times of those that didn't let one think.
    SlowFailures,
    /// Connections that the plan wants never came up.
    ConnectionsMissing,
    /// Connections came up and ended without carrying a call.
    ConnectionsUnused,
    /// Full handshakes in a run that was to resume sessions.
    NotResumed,
    /// Connections that were to carry many calls, and were closed after few.
    NotReused,
    /// Calls waited for each other, as the plan wants it.
    Bundled,
    /// The server's certificate was not checked.
    ServerUnchecked,
    /// The counts don't add up.
    CountsDiffer,
}

impl ProblemKind {
    /// The generator could not make the load that was asked for.
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

    fn invalidates(self, text: String) -> HealthProblem {
        HealthProblem {
            kind: self,
            invalidates: true,
            text,
        }
    }

    fn noted(self, text: String) -> HealthProblem {
        HealthProblem {
            invalidates: false,
            ..self.invalidates(text)
        }
    }
}

/// One thing that a reader of the figures must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthProblem {
    /// The kind of problem, for programs.
    pub kind: ProblemKind,
    /// The figures don't describe the target.
    pub invalidates: bool,
    /// A sentence for people: what was seen, and what to do.
    pub text: String,
}

impl HealthProblem {
    /// `first`: those of `full` that were a worker's first.
    pub(super) fn not_resumed(full: u64, first: u64, resumed: u64) -> HealthProblem {
        // Where nothing was resumed it is not known whether the server would have.
        let unavoidable = full == first && resumed > 0;
        let advice = if unavoidable {
            "the first of each worker, which can't have had a ticket; a warm-up keeps it out of the figures"
        } else if resumed == 0 {
            "the server sends no tickets, or does not take them back"
        } else {
            "a longer warm-up gives every connection in flight a ticket; otherwise the server refuses some"
        };
        HealthProblem {
            kind: ProblemKind::NotResumed,
            invalidates: !unavoidable,
            text: format!(
                "{full} of {} handshakes were full ones, though sessions were to be resumed: {advice}",
                full + resumed
            ),
        }
    }

    /// Full and resumed handshakes, of which the full ones were to be `share`; `None`: about as
    /// asked.
    pub(super) fn not_mixed(share: f64, (full, resumed): (u64, u64)) -> Option<HealthProblem> {
        let all = (full + resumed) as f64;
        let off = (full as f64 - share * all).abs();
        // The warm-up's end cuts the mix of each worker somewhere.
        if off <= 10.0 + 0.01 * all {
            return None;
        }
        Some(ProblemKind::NotResumed.invalidates(format!(
                "{full} of {} handshakes were full ones, where {}% were asked for: the server refuses tickets or sends none, or the warm-up is too short for every connection in flight to have had one",
                full + resumed,
                share * 100.0
            ),
        ))
    }

    /// `made` connections carried `calls` calls for which `wanted` were planned. `None`: not
    /// more than a target that was started again, or sends its clients elsewhere once, causes.
    pub(super) fn not_reused(wanted: u64, made: u64, calls: u64) -> Option<HealthProblem> {
        let again = made.saturating_sub(wanted);
        if again <= wanted || wanted == 0 {
            return None;
        }
        // More calls than the p99 leaves out had to wait for a connection of their own.
        let often = again.saturating_mul(100) > calls;
        let consequence = if often {
            "what was measured is mostly connecting"
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

    /// Of the `wanted` connections at most `open` were ever up at a time; `reasons`: why the
    /// others were not, with how often.
    pub(super) fn connections_missing(wanted: u64, open: u64, reasons: &Counts) -> HealthProblem {
        let why: Vec<String> = reasons
            .iter()
            .map(|(outcome, n)| format!("{} ({n} times)", outcome.explanation()))
            .collect();
        ProblemKind::ConnectionsMissing.invalidates(format!(
                "{open} of {wanted} connections came up: {}; what was measured is the load of those, so ask for as many as the target takes",
                why.join(", ")
            ),
        )
    }

    /// A generator that was late has not changed what connections at rest hold.
    pub(super) fn leaves_memory_alone(&mut self) {
        if self.kind == ProblemKind::LoadNotDelivered {
            self.invalidates = false;
            self.text.push_str(
                "; the times are not the target's alone, the memory is not touched by it",
            );
        }
    }

    /// The problems of a run that had these shards.
    pub(super) fn of_shards(shards: &[ShardFigures]) -> impl Iterator<Item = HealthProblem> {
        let each = shards.iter();
        each.flat_map(|shard| shard.limits.iter().map(move |l| (shard.shard, l)))
            .map(|(shard, text)| {
                ProblemKind::ShardLimited
                    .invalidates(format!("shard {shard} of {}: {text}", shards.len()))
            })
    }

    pub(super) fn server_unchecked() -> HealthProblem {
        ProblemKind::ServerUnchecked.noted("INSECURE: the server's certificate was not checked (tls.insecure), so anyone may have answered; a CA file or a pinned fingerprint makes sure".to_owned())
    }

    pub(super) fn counts_differ(due: u64, accounted: u64) -> HealthProblem {
        ProblemKind::CountsDiffer.invalidates(format!(
                "{due} calls were due but {accounted} are accounted for: an error in plimsoll; please report it with the run directory"
            ),
        )
    }
}

/// The highest percentile up to p99 that the sample supports, with its name and share; of
/// very few values the largest. One hiccup in twenty calls must not condemn their median.
fn high(times: &Times) -> Option<(&'static str, f64, u64)> {
    let h = times.histogram()?;
    let supported = [("p99", 0.99), ("p90", 0.9), ("p50", 0.5)]
        .into_iter()
        .find_map(|(name, p)| Some((name, p, quantile(h, p)?)));
    Some(supported.unwrap_or(("max", 1.0, h.max())))
}

/// Nanoseconds with a unit that people read.
struct Ns(u64);

impl fmt::Display for Ns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} µs", ns / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.2} ms", ns / 1e6),
            _ => write!(f, "{:.2} s", ns / 1e9),
        }
    }
}

/// The problems of the generator, and what else is worth knowing, in the run of this header whose measured stages
/// merge to `record`; `delivery`: how far its load was from the plan, where that is known. Problems that invalidate come
/// first.
pub fn health(
    record: &StageRecord,
    header: &RunHeader,
    observed: &Observed,
    delivery: Option<&DeliverySummary>,
) -> Vec<HealthProblem> {
    let response = record.response.histogram();
    let response_p50 = response.map(|h| h.value_at_quantile(0.5));
    let mut problems: Vec<HealthProblem> = late(record, header, (observed, delivery), response_p50)
        .into_iter()
        .chain(busy(header, observed))
        .chain(exhausted(record))
        .chain(stalled(observed))
        .chain(gone(observed))
        .chain(waits::waited(record, header, response_p50).filter(|_| header.is_open()))
        .chain(unused(record))
        .chain(not_started(record))
        .chain(slow_failures(record))
        .collect();
    problems.sort_by_key(|p| !p.invalidates);
    problems
}

/// A load is not delivered when more than this share of its calls was never sent.
const MAX_UNSENT_SHARE: f64 = 0.01;

/// Or when a call in a hundred was sent later than by this share of the load's length, so that as large a share of all
/// arrivals was missing at some time.
const MAX_LATE_SHARE: f64 = 0.1;

/// Arrivals that the generator noticed late, and calls that left together.
fn late(
    record: &StageRecord,
    header: &RunHeader,
    (observed, delivery): (&Observed, Option<&DeliverySummary>),
    response_p50: Option<u64>,
) -> Vec<HealthProblem> {
    let mut problems = Vec::new();
    // What calls waited for a tick is what the plan asks for, and no lateness.
    let bundled = u64::try_from(header.tick().as_nanos()).unwrap_or(u64::MAX);
    if let (true, Some((name, _, pacing))) = (header.is_open(), high(&observed.pacing(record))) {
        let late = pacing.saturating_sub(bundled);
        let cause = observed.cause();
        if let Some(undelivered) = undelivered(record, header, observed, (name, late)) {
            let distance = delivery.map_or_else(String::new, |delivery| {
                format!("; {}", missing_at_once(delivery.generator_distance))
            });
            problems.push(ProblemKind::LoadNotDelivered.invalidates(format!(
                "the load was not delivered: {undelivered}{distance}{cause}; what failed stands: {LATE_GENERATOR_ADVICE}"
            )));
        } else if let Some(response) = response_p50
            && late > response / 10
        {
            problems.push(ProblemKind::PacingLate.noted(format!(
                "the generator sent requests late ({name} {}), more than a tenth of the response time's p50 ({}){cause}: each time lies between what it was at least and what was measured; to know it closer, {LATE_GENERATOR_ADVICE}",
                Ns(pacing),
                Ns(response),
            )));
        }
    }
    if bundled > 0 && !record.pacing.is_empty() {
        problems.push(ProblemKind::Bundled.noted(format!(
                "calls that were due within {} left together (load.tick): response times hold what each waited for that, service times don't",
                Ns(bundled)
            ),
        ));
    }
    problems
}

/// The distance of a load from its plan as words.
fn missing_at_once([low, high]: [f64; 2]) -> String {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let (low, high) = (percent(low), percent(high));
    if low == high {
        format!("{high} % of all calls were due and not sent at one time")
    } else {
        format!("at one time between {low} and {high} % of all calls were due and not sent")
    }
}

/// What helps a late generator.
const LATE_GENERATOR_ADVICE: &str = "give it an idle core, more workers or a lower rate";

/// How far the load was from the plan, where it was too far. `late`: a high percentile of how late calls were noticed,
/// in nanoseconds, with its name.
fn undelivered(
    record: &StageRecord,
    header: &RunHeader,
    observed: &Observed,
    (name, late): (&str, u64),
) -> Option<String> {
    let unsent = given_up_late(record);
    if unsent as f64 > MAX_UNSENT_SHARE * record.due as f64 {
        return Some(format!(
            "{unsent} of {} calls were not sent, because the generator came to them after their deadline",
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
            Ns(late),
            share * 100.0,
            planned_length(length)
        )
    })
}

/// In a closed loop a generator at its limit lowers the rate, which is then not the target's; in an open loop it sends
/// late, and how late is known of each call.
fn busy(header: &RunHeader, observed: &Observed) -> Option<HealthProblem> {
    let busy_intervals = observed.busy_intervals();
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
    Some(if header.is_open() {
        ProblemKind::WorkerBusy.noted(format!("{seen}: use more workers or a lower rate"))
    } else {
        ProblemKind::WorkerBusy.noted(format!(
            "{seen}: the rate achieved may be the generator's limit, not the target's"
        ))
    })
}

/// What this machine ran out of.
fn exhausted(record: &StageRecord) -> impl Iterator<Item = HealthProblem> {
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
            "the texts of the errors name what is missing",
        ),
    ];
    limits.into_iter().filter_map(|(outcome, kind, advice)| {
        let n = record.outcomes.of(outcome) + record.connect_failures.of(outcome);
        let text = format!("{}, {n} times: {advice}", outcome.explanation());
        (n > 0).then(|| kind.invalidates(text))
    })
}

fn stalled(observed: &Observed) -> Option<HealthProblem> {
    let text = format!(
        "the machine stood still: {} of {} intervals were longer than asked, the longest {:.2} s instead of 1 s",
        observed.stalled_intervals,
        observed.intervals,
        observed.longest_interval.as_secs_f64()
    );
    (observed.stalled_intervals > 0).then(|| ProblemKind::MachineStalled.noted(text))
}

fn gone(observed: &Observed) -> Option<HealthProblem> {
    let text = format!(
        "the target was gone in {} of {} intervals: no call succeeded in them, and connections failed; whether the load generator was late is judged by the others",
        observed.gone_intervals, observed.intervals
    );
    (observed.gone_intervals > 0).then(|| ProblemKind::TargetGone.noted(text))
}

fn unused(record: &StageRecord) -> Option<HealthProblem> {
    let text = format!(
        "{} of {} connections ended without carrying a call: the server, or what is in front of it, accepts connections and closes them; after the second in a row there is a pause before the next",
        record.connections_unused,
        record.connections_full + record.connections_resumed
    );
    (record.connections_unused > 0).then(|| ProblemKind::ConnectionsUnused.noted(text))
}

fn not_started(record: &StageRecord) -> Option<HealthProblem> {
    let text = format!(
        "{} of {} calls that were due were given up before they were sent: the run ended, or this process came to them after their deadline; they are in no objective",
        record.not_started, record.due
    );
    (record.not_started > 0).then(|| ProblemKind::NotStarted.noted(text))
}

/// Failures that took longer than the calls whose times are shown.
fn slow_failures(record: &StageRecord) -> Option<HealthProblem> {
    let (name, p, ok) = high(&record.response).filter(|_| !record.failed.is_empty())?;
    let mut all = record.response.clone();
    all.merge(&record.failed);
    // The same percentile as of the calls that ended ok: more calls support no less.
    let with_failed = all.histogram().map_or(0, |h| h.value_at_quantile(p));
    let text = format!(
        "response times are of calls that ended ok; the failed ones took longer: with them the {name} is {}, not {}",
        Ns(with_failed),
        Ns(ok)
    );
    (with_failed > ok + ok / 10).then(|| ProblemKind::SlowFailures.noted(text))
}

#[cfg(test)]
mod tests;
