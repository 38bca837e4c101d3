//! Separates the target's share in a missed objective from the share that the generator may have caused.
//!
//! A generator that is paused for 80 ms sends late, reads answers late, and catches up in a burst. Each of these
//! effects lengthens a call's times by at most 80 ms: where calls are served in order, no call is answered later than
//! if all of them had arrived 80 ms later. So a call that took more than `limit + a` spent more than `limit` in the
//! target, unless the generator lengthened it by more than `a`; and the number of calls that it may have lengthened by
//! more than `a` is recorded ([`LatenessBounds`]). The remaining calls are attributed to the target, for the value of
//! `a` that leaves the most of them.

use std::time::Duration;

use crate::metrics::measure::TimeMeasure;
use crate::plan::TimeMetric;
use crate::records::instrument::{
    LatenessBounds, MAX_UNRECORDED_DELAY_NS, TailCounts, max_count_beyond_quantile,
    response_lower_bounds,
};
use crate::records::record::{MAX_TIME_NS, StageRecord, TimeHistogram};

/// Conditions of the judged run that are not in its stage records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCircumstances {
    /// The time after which a call fails.
    pub deadline: Option<Duration>,
    /// Whether descriptors or ports ran out, so that calls had to wait for resources of the generator itself.
    pub is_short_of_resources: bool,
    /// Whether calls waited because the plan has too few connections.
    pub too_few_connections: bool,
    /// Whether a worker used a whole core.
    pub has_busy_worker: bool,
    /// Whether handshakes were full although the plan resumes sessions.
    pub not_resumed: bool,
}

/// Failed calls by cause. Abandoned calls are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FailureCounts {
    /// Failures of the target or of the connection.
    pub(super) certain: u64,
    /// Timeouts: a late generator may have caused them.
    pub(super) timeouts: u64,
    /// Failures of this process itself.
    pub(super) local: u64,
}

impl FailureCounts {
    pub(super) fn from_record(record: &StageRecord) -> FailureCounts {
        use crate::metrics::outcome::FailureSource;
        let mut failed = FailureCounts::default();
        for (outcome, n) in record.outcomes.iter() {
            match outcome.failure_source() {
                None => {}
                _ if outcome.is_abandoned() => {}
                Some(FailureSource::Client) => failed.local += n,
                Some(FailureSource::Link | FailureSource::Target) if outcome.is_timeout() => {
                    failed.timeouts += n
                }
                Some(FailureSource::Link | FailureSource::Target) => failed.certain += n,
            }
        }
        failed
    }

    pub(super) fn total(self) -> u64 {
        self.certain + self.timeouts + self.local
    }

    /// Returns the number of failures that can't have been caused by a late generator or by this process itself.
    pub(super) fn count_external_failures(
        self,
        record: &StageRecord,
        circumstances: &RunCircumstances,
    ) -> u64 {
        if circumstances.too_few_connections {
            // Timeouts don't count if connections are too few, because a call may have spent its time waiting for one.
            return self.certain;
        }
        let deadline = circumstances.deadline.unwrap_or(FALLBACK_DEADLINE);
        self.certain
            + self.timeouts.saturating_sub(
                LatenessBounds::from_record(record)
                    .count_longer_than(deadline_tolerance_ns(deadline)),
            )
    }
}

/// The deadline that is assumed where it is not known: the default of plans.
const FALLBACK_DEADLINE: Duration = Duration::from_secs(10);

fn to_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the tolerance within which a time counts as having reached the deadline: a hundredth of it.
fn deadline_tolerance_ns(deadline: Duration) -> u64 {
    to_nanos(deadline / 100)
}

/// Returns the recorded times that an objective limits; `None` where there are none.
pub(super) fn times_for_objective(
    timed: TimeMetric,
    record: &StageRecord,
) -> Option<&TimeHistogram> {
    let of = |measure| record.measures.times(measure);
    Some(match timed {
        TimeMetric::Response => &record.response,
        TimeMetric::Service => &record.service,
        TimeMetric::FirstByte => &record.first_byte,
        TimeMetric::Lag => &record.lag,
        TimeMetric::FirstToken => {
            // Prefer the time from when the call was due, where it is measured. For streams, fall back to the time of
            // the first message.
            let mut known = [TimeMeasure::TimeToFirstToken, TimeMeasure::FirstToken]
                .map(of)
                .into_iter();
            let message = || record.messages.map(|_| of(TimeMeasure::FirstMessage));
            known.find(|times| !times.is_empty()).or_else(message)?
        }
        TimeMetric::Measure(measure) => of(measure),
    })
}

/// The recorded distribution of one kind of time, with bounds of the generator's influence on it.
pub(super) struct TimeEvidence<'a> {
    record: &'a StageRecord,
    times: TailCounts,
    /// Lower bounds of the individual times, where they are known.
    least: Option<TailCounts>,
    least_mean_ns: f64,
    /// The mean service time, if `times` are service times although the objective limits response times.
    own_mean_ns: Option<f64>,
    /// Times of calls that were cut off; empty where this kind of time does not count failures.
    cut_off: TailCounts,
    failed: FailureCounts,
    lateness: LatenessBounds,
    deadline: Duration,
    counts_failures: bool,
    cannot_blame_target: bool,
}

impl<'a> TimeEvidence<'a> {
    pub(super) fn new(
        timed: TimeMetric,
        record: &'a StageRecord,
        circumstances: &RunCircumstances,
    ) -> TimeEvidence<'a> {
        let counts_failures = timed.counts_failures_as_slowest();
        let is_queued = circumstances.too_few_connections && timed == TimeMetric::Response;
        let (failed, cut_off) = if counts_failures && circumstances.too_few_connections {
            // It is not known how long these failed calls waited for a connection.
            let failed = FailureCounts::from_record(record);
            let ours = failed.local + failed.timeouts;
            (
                FailureCounts {
                    local: ours,
                    timeouts: 0,
                    ..failed
                },
                TailCounts::default(),
            )
        } else if counts_failures {
            (
                FailureCounts::from_record(record),
                TailCounts::new(&record.cut_off),
            )
        } else {
            (FailureCounts::default(), TailCounts::default())
        };
        // If a response time includes a wait for a connection, only the service time is certainly due to the target.
        let own = if is_queued {
            TimeMetric::Service
        } else {
            timed
        };
        let least = match own {
            TimeMetric::Response => response_lower_bounds(record),
            _ => None,
        };
        TimeEvidence {
            record,
            times: times_for_objective(own, record)
                .map(TailCounts::new)
                .unwrap_or_default(),
            least: least.map(TailCounts::new),
            least_mean_ns: least
                .and_then(TimeHistogram::histogram)
                .map_or(0.0, |h| h.mean()),
            own_mean_ns: is_queued.then(|| record.service.histogram().map_or(0.0, |h| h.mean())),
            cut_off,
            failed,
            lateness: match timed {
                TimeMetric::Measure(TimeMeasure::Journey) => LatenessBounds::from_journeys(record),
                _ => LatenessBounds::from_record(record),
            },
            deadline: circumstances.deadline.unwrap_or(FALLBACK_DEADLINE),
            counts_failures,
            cannot_blame_target: cannot_blame_target(timed, record, circumstances),
        }
    }

    /// Returns how many calls would have taken longer than `limit` ns even if the generator had never been late. Failed
    /// calls are included if this kind of time counts failures.
    pub(super) fn min_count_longer_than(&self, limit: u64) -> u64 {
        if self.cannot_blame_target {
            return self.failed.certain;
        }
        // A call that hit its deadline took at least that long, but it is not known how much longer.
        let reach = to_nanos(self.deadline)
            .saturating_sub(limit)
            .max(deadline_tolerance_ns(self.deadline));
        // For each `a`: the calls that took more than `limit + a`, minus those that may have been lengthened by more
        // than `a`.
        let unrecorded = if self.least.is_some() {
            MAX_UNRECORDED_DELAY_NS
        } else {
            0
        };
        let over = |times: Option<&TailCounts>| {
            self.lateness
                .lateness_steps()
                .map(|(length, lengthened)| {
                    let beyond = limit.saturating_add(length);
                    let ended = times.map_or(0, |times| {
                        times.count_longer_than(beyond.saturating_add(unrecorded))
                    });
                    let timeouts = if length <= reach {
                        self.failed.timeouts
                    } else {
                        0
                    };
                    (ended + self.cut_off.count_longer_than(beyond) + timeouts)
                        .saturating_sub(lengthened)
                })
                .max()
                .unwrap_or(0)
        };
        let of_all = over(Some(&self.times));
        let least = self.least.as_ref();
        let of_each = least.map_or(0, |least| least.count_longer_than(limit) + over(None));
        // Failures that lateness can't have caused count in any case.
        self.failed.certain + of_all.max(of_each)
    }

    /// Returns the number of calls from which the statistic is computed. Abandoned calls are included only if they are
    /// known to have taken longer than `limit`.
    fn population_size(&self, limit: u64) -> u64 {
        let failed = if self.counts_failures {
            FailureCounts::from_record(self.record).total()
        } else {
            0
        };
        self.times.len() + failed + self.cut_off.count_longer_than(limit)
    }

    /// Returns whether the percentile (0–100) certainly exceeds `limit` ns: more calls took longer than the percentile
    /// leaves out.
    pub(super) fn certainly_exceeds(&self, percentile: f64, limit: u64) -> bool {
        self.min_count_longer_than(limit)
            > max_count_beyond_quantile(percentile / 100.0, self.population_size(limit))
    }

    /// Returns the lower end, in nanoseconds, of a percentile's instrument interval ([`crate::records::instrument`]).
    /// It is infinite if so large a share of calls failed that the percentile is a failed call.
    pub(super) fn lower_bound(&self, percentile: f64) -> f64 {
        if self.certainly_exceeds(percentile, MAX_TIME_NS) {
            return f64::INFINITY;
        }
        let (mut low, mut high) = (0, MAX_TIME_NS);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.certainly_exceeds(percentile, middle) {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low as f64
    }

    /// Returns the lower end of the instrument interval of the measured mean `mean_ns`.
    pub(super) fn lower_bound_of_mean(
        &self,
        mean_ns: f64,
        circumstances: &RunCircumstances,
    ) -> f64 {
        if self.counts_failures
            && self
                .failed
                .count_external_failures(self.record, circumstances)
                > 0
        {
            return f64::INFINITY;
        }
        if circumstances.is_short_of_resources || circumstances.not_resumed || !mean_ns.is_finite()
        {
            0.0
        } else {
            // A call may have many times of one kind, such as gaps between tokens; the call's lateness is an upper
            // bound for all of them together. Conversely, a journey has one time, which the lateness of all its calls
            // can lengthen.
            let of_each = self.lateness.sum_ns() / self.times.len().max(1) as f64;
            let mean_ns = self.own_mean_ns.unwrap_or(mean_ns);
            let unrecorded = if self.least.is_some() {
                MAX_UNRECORDED_DELAY_NS
            } else {
                0
            };
            (mean_ns - of_each - unrecorded as f64)
                .max(self.least_mean_ns)
                .max(0.0)
        }
    }
}

/// Returns whether these times may be long because of the client's machine, or were measured under other conditions
/// than the plan asks for (full handshakes instead of resumed sessions).
fn cannot_blame_target(
    timed: TimeMetric,
    record: &StageRecord,
    circumstances: &RunCircumstances,
) -> bool {
    let from_due = record.measures.times(TimeMeasure::TimeToFirstToken);
    let waits_for_connection = match timed {
        TimeMetric::Response | TimeMetric::Lag => true,
        TimeMetric::Measure(measure) => measure != TimeMeasure::InterMessage,
        TimeMetric::FirstToken => !from_due.is_empty(),
        TimeMetric::Service | TimeMetric::FirstByte => false,
    };
    let is_unserved = circumstances.is_short_of_resources
        || circumstances.too_few_connections && timed != TimeMetric::Response;
    is_unserved && waits_for_connection || circumstances.not_resumed
}

/// Returns the largest share of all calls by which pauses of the generator may have lowered a rate.
pub(super) fn max_rate_loss(record: &StageRecord) -> f64 {
    /// Pauses up to this length are ignored, because the generator makes up for them.
    const MIN_RECORDED_PAUSE_NS: u64 = 1_000_000;
    LatenessBounds::from_record(record).count_longer_than(MIN_RECORDED_PAUSE_NS) as f64
        / record.ended_calls().max(1) as f64
}

/// Returns an upper bound of the time that the generator may have added to a mean, in nanoseconds.
pub(super) fn max_mean_error_ns(record: &StageRecord) -> f64 {
    LatenessBounds::from_record(record).sum_ns() / record.ok_calls().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    const MS: u64 = 1_000_000;

    fn over(record: &StageRecord, limit_ms: u64) -> u64 {
        let circumstances = RunCircumstances {
            deadline: Some(Duration::from_secs(1)),
            ..RunCircumstances::default()
        };
        TimeEvidence::new(TimeMetric::Response, record, &circumstances)
            .min_count_longer_than(limit_ms * MS)
    }

    fn record(calls: &[(u64, u64)]) -> StageRecord {
        let mut record = StageRecord::default();
        for (n, ms) in calls {
            record.response.record_n(ms * MS, *n);
            record.outcomes.add(Outcome::Ok, *n);
            record.pacing.record_n(20_000, *n);
        }
        record
    }

    #[test]
    fn slow_calls_blame_target_without_pauses() {
        assert_eq!(over(&record(&[(900, 5), (100, 50)]), 20), 100);
        assert_eq!(over(&record(&[(900, 5), (100, 20)]), 20), 0);
    }

    #[test]
    fn answers_read_late_excuse_target_without_pauses() {
        let mut late = StageRecord::default();
        late.response.record_n(20 * MS + 60_000, 100);
        late.outcomes.add(Outcome::Ok, 100);
        late.pacing.record_n(4_000, 100);
        late.response_low.record_n(20 * MS - 20_000, 100);
        assert_eq!(over(&late, 20), 0);
        assert_eq!(over(&late, 19), 100);
    }

    #[test]
    fn calls_delayed_by_pause_excuse_target() {
        let mut paused = record(&[(900, 5), (60, 50)]);
        paused.delayed.record_n(80 * MS, 70);
        assert_eq!(over(&paused, 20), 0);
        // Calls longer than limit and pause together are the target's own.
        let mut slow = record(&[(900, 5), (60, 150)]);
        slow.delayed.record_n(80 * MS, 70);
        assert_eq!(over(&slow, 20), 60);
        // So are slow calls at the time of the pause.
        let mut both = record(&[(500, 5), (400, 50)]);
        both.delayed.record_n(80 * MS, 70);
        assert_eq!(over(&both, 20), 330);
    }

    #[test]
    fn failures_blame_target_unless_local() {
        let mut failing = record(&[(900, 5)]);
        failing.outcomes.add(Outcome::ConnectRefused, 60);
        failing.outcomes.add(Outcome::NoPorts, 7);
        failing.outcomes.add(Outcome::Interrupted, 3);
        failing.not_started = 5;
        failing.delayed.record_n(80 * MS, 500);
        assert_eq!(over(&failing, 20), 60);
        let mut late = record(&[(900, 5)]);
        late.outcomes.add(Outcome::DeadlineExceeded, 60);
        assert_eq!(over(&late, 20), 60);
        // A limit beyond the deadline makes no difference.
        assert_eq!(over(&late, 2_000), 60);
        late.delayed.record_n(1_500 * MS, 50);
        assert_eq!(over(&late, 20), 10);
        assert_eq!(over(&late, 2_000), 10);
    }

    /// Ten calls with 20 gaps of 600 ms each. Pauses of 2 s a call account for 100 ms of a gap.
    #[test]
    fn pauses_lengthen_all_gaps_of_a_call_together() {
        let mut paused = record(&[(10, 12_000)]);
        for _ in 0..200 {
            paused.measures.record(TimeMeasure::InterMessage, 600 * MS);
        }
        paused.delayed.record_n(2_000 * MS, 10);
        let circumstances = RunCircumstances::default();
        let timed = TimeMetric::Measure(TimeMeasure::InterMessage);
        let evidence = TimeEvidence::new(timed, &paused, &circumstances);
        let low = evidence.lower_bound_of_mean(600.0 * MS as f64, &circumstances);
        assert!((499.0..500.5).contains(&(low / MS as f64)), "{low}");
    }

    /// Calls of 5 ms that waited up to 400 ms for the only connection.
    #[test]
    fn wait_for_own_connection_excuses_target() {
        let mut queued = record(&[(500, 200), (500, 400)]);
        queued.service.record_n(5 * MS, 1_000);
        queued.outcomes.add(Outcome::DeadlineExceeded, 40);
        let evidence = |too_few_connections, timed| {
            let circumstances = RunCircumstances {
                deadline: Some(Duration::from_secs(1)),
                too_few_connections,
                ..RunCircumstances::default()
            };
            let evidence = TimeEvidence::new(timed, &queued, &circumstances);
            (
                evidence.min_count_longer_than(20 * MS),
                evidence.min_count_longer_than(3 * MS),
            )
        };
        assert_eq!(evidence(false, TimeMetric::Response), (1_040, 1_040));
        // The part of their time that the target took is still known.
        assert_eq!(evidence(true, TimeMetric::Response), (0, 1_000));
        assert_eq!(evidence(true, TimeMetric::Lag), (0, 0));
        assert_eq!(evidence(false, TimeMetric::Service), (40, 1_040));
        assert_eq!(evidence(true, TimeMetric::Service), (0, 1_000));
    }

    #[test]
    fn cut_off_call_counts_elapsed_time() {
        let mut cut = record(&[(900, 5)]);
        cut.not_started = 30;
        cut.cut_off.record_n(10 * MS, 20);
        cut.cut_off.record_n(50 * MS, 10);
        assert_eq!(over(&cut, 20), 10);
        assert_eq!(over(&cut, 60), 0);
    }
}
