//! Adds up a run's intervals one by one, as the basis of its summary.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ResourcesSummary;
use super::users::UserTotals;
use crate::records::record::{FailureDetail, StageRecord, add_detail};
use crate::runs::run::RunHeader;
use crate::runs::run::delivery::mean_unnoticed_calls;
use crate::runs::run::health::{GeneratorStats, INTERVAL_LENGTH, MIN_COMPLETE_INTERVAL};
use crate::runs::run::interval::{IntervalRecord, ResourceUsage};
use crate::runs::run::memory::MemoryReading;
use crate::runs::run::rotation::RotationTotals;
use crate::runs::run::sampling::StageSeconds;
use crate::runs::run::times_summary::round_to_thousandths;

impl ResourcesSummary {
    /// Converts the resources of an interval. `share`: the stage's share of the interval.
    fn scale_resources(r: &ResourceUsage, share: f64) -> ResourcesSummary {
        ResourcesSummary {
            cpu_user_us: r.cpu_user_us as f64 * share,
            cpu_system_us: r.cpu_system_us.map(|us| us as f64 * share),
            cpu_us_per_call: None,
            rss_bytes_max: r.rss_bytes,
            rss_bytes_before: None,
            descriptors_max: r.descriptors,
            threads_max: r.threads,
        }
    }

    /// Adds the CPU times, and takes the maxima of the other figures. The system time is known only if both system
    /// times are.
    fn combine(self, other: ResourcesSummary) -> ResourcesSummary {
        let system_us = self.cpu_system_us.zip(other.cpu_system_us);
        ResourcesSummary {
            cpu_user_us: self.cpu_user_us + other.cpu_user_us,
            cpu_system_us: system_us.map(|(ours, theirs)| ours + theirs),
            rss_bytes_max: self.rss_bytes_max.max(other.rss_bytes_max),
            descriptors_max: self.descriptors_max.max(other.descriptors_max),
            threads_max: self.threads_max.max(other.threads_max),
            ..self
        }
    }

    /// Rounds the figures, and divides the CPU time by `calls`.
    pub(super) fn with_cpu_per_call(self, calls: u64) -> ResourcesSummary {
        let cpu_us = self.cpu_system_us.map(|us| self.cpu_user_us + us);
        let cpu_us = cpu_us.filter(|_| calls > 0);
        ResourcesSummary {
            cpu_user_us: round_to_thousandths(self.cpu_user_us),
            cpu_system_us: self.cpu_system_us.map(round_to_thousandths),
            cpu_us_per_call: cpu_us.map(|us| round_to_thousandths(us / calls as f64)),
            ..self
        }
    }
}

fn add_resources(ours: &mut Option<ResourcesSummary>, more: Option<ResourcesSummary>) {
    *ours = ours
        .take()
        .into_iter()
        .chain(more)
        .reduce(ResourcesSummary::combine);
}

/// The totals of one stage.
#[derive(Clone, Debug, Default)]
pub(super) struct StageTotals {
    pub(super) record: StageRecord,
    /// Calls of this stage or an earlier one that ended in this stage's window: in intervals that started after the
    /// planned end of the previous stages and before the planned end of this one.
    pub(super) ended_in_window: u64,
    /// End of the last interval in which a call of the stage ended.
    pub(super) last_end: Duration,
    /// The time base of rates; set when the run is summarised.
    pub(super) window: Duration,
    /// Time from the stage's start to the end of its last call, at least `window`; set together with `window`.
    pub(super) lasted: Duration,
    pub(super) connections_open_max: u64,
    pub(super) users: UserTotals,
    /// Lower bound of the number of calls that were due but not yet noticed by the generator at one time.
    pub(super) unnoticed: f64,
    pub(super) client: Option<ResourcesSummary>,
    pub(super) server: Option<ResourcesSummary>,
}

impl StageTotals {
    /// Sets the window, which extends from the stage's start to its planned end, or to the end of the run if that is
    /// earlier. Without a planned end, an open loop's window extends to the end of the run, and a closed loop's to the
    /// end of its last call.
    pub(super) fn with_window(
        &self,
        header: &RunHeader,
        stage: u8,
        run: &RunTotals,
    ) -> StageTotals {
        let (begin, planned_end) = header.stage_span(stage);
        let end = match planned_end {
            // The time of a stage without calls is part of the window, unless the stage measures memory.
            Some(_) if header.has_no_calls(stage) && !run.memory.is_empty() => begin,
            Some(end) => end.min(run.end),
            None if header.is_open_loop() => run.end,
            None => self.last_end,
        };
        StageTotals {
            window: end.saturating_sub(begin),
            lasted: self.last_end.max(end).saturating_sub(begin),
            ..self.clone()
        }
    }

    pub(super) fn merge(&mut self, other: &StageTotals) {
        self.record.merge(&other.record);
        self.ended_in_window += other.ended_in_window;
        self.last_end = self.last_end.max(other.last_end);
        // Stages follow each other, and the last calls of a stage may end during the next stage.
        self.lasted = self.lasted.max(self.window + other.lasted);
        self.window += other.window;
        self.connections_open_max = self.connections_open_max.max(other.connections_open_max);
        self.users.merge(&other.users);
        self.unnoticed = self.unnoticed.max(other.unnoticed);
        add_resources(&mut self.client, other.client);
        add_resources(&mut self.server, other.server);
    }
}

/// The totals of a run's intervals.
#[derive(Clone, Debug, Default)]
pub struct RunTotals {
    pub(super) stages: BTreeMap<u8, StageTotals>,
    /// Statistics of each second, for the stages that are not warm-up.
    pub(super) seconds: BTreeMap<u8, StageSeconds>,
    pub(super) details: Vec<FailureDetail>,
    pub(super) memory: Vec<MemoryReading>,
    pub(super) end: Duration,
    pub(super) in_flight: u64,
    pub(super) backlog: u64,
    intervals: u64,
    pub(super) observed: GeneratorStats,
    pub(super) rotations: RotationTotals,
    /// Resources of client and server in intervals in which no call started or ended.
    unattributed: (Option<ResourceUsage>, Option<ResourceUsage>),
    /// Resident memory of client and server before the first connection.
    pub(super) rss_before: [Option<u64>; 2],
}

/// Adds the CPU time of two intervals; the other values are those of the later one.
fn merge_usage(before: Option<ResourceUsage>, now: Option<ResourceUsage>) -> Option<ResourceUsage> {
    let (Some(before), Some(now)) = (before, now) else {
        return now.or(before);
    };
    let both = before.combine(now);
    Some(ResourceUsage {
        cpu_user_us: both.cpu_user_us,
        cpu_system_us: both.cpu_system_us,
        ..now
    })
}

/// Returns whether the whole interval belongs to the stage, within the precision of the workers' clocks.
fn is_within_stage(header: &RunHeader, stage: u8, interval: &IntervalRecord) -> bool {
    let (begin, end) = header.stage_span(stage);
    let slack = INTERVAL_LENGTH - MIN_COMPLETE_INTERVAL;
    interval.length >= MIN_COMPLETE_INTERVAL
        && interval.start_offset + slack >= begin
        && end.is_none_or(|end| interval.end_offset() <= end + slack)
}

impl RunTotals {
    /// Adds one interval of the run that `header` describes.
    pub fn add(&mut self, header: &RunHeader, interval: &IntervalRecord) {
        self.intervals += 1;
        self.end = self.end.max(interval.end_offset());
        self.in_flight = interval.in_flight;
        self.backlog = interval.backlog;
        for detail in &interval.details {
            add_detail(&mut self.details, detail.code, &detail.text);
        }
        self.memory.extend(&interval.memory);
        // The resources of an interval that spans two stages are divided in proportion to the calls that ended in each
        // stage.
        let weight = |r: &StageRecord| r.ended_calls() as f64 * 1e3 + r.due as f64;
        let all: f64 = interval.stages.iter().map(|(_, r)| weight(r)).sum();
        let client = merge_usage(self.unattributed.0.take(), interval.client);
        let server = merge_usage(self.unattributed.1.take(), interval.server);
        if all == 0.0 {
            // No call started or ended, because calls take longer than an interval. The resources are attributed to the
            // next interval in which calls start or end.
            self.unattributed = (client, server);
        }
        let before = |of: Option<ResourceUsage>| of.and_then(|r| r.rss_bytes_before);
        self.rss_before[0] = self.rss_before[0].or(before(interval.client));
        self.rss_before[1] = self.rss_before[1].or(before(interval.server));
        let mut measured = false;
        for (stage, record) in &interval.stages {
            let totals = self.stages.entry(*stage).or_default();
            totals.record.merge(record);
            if !header.is_warmup(*stage) {
                let whole = is_within_stage(header, *stage, interval).then_some(interval.length);
                self.seconds.entry(*stage).or_default().add(record, whole);
            }
            let unnoticed = mean_unnoticed_calls(&record.pacing, interval.length);
            totals.unnoticed = totals.unnoticed.max(unnoticed);
            if record.ended_calls() > 0 {
                totals.last_end = totals.last_end.max(interval.end_offset());
            }
            totals.connections_open_max =
                totals.connections_open_max.max(interval.connections_open);
            if all > 0.0 {
                let share = weight(record) / all;
                let of = |used: Option<ResourceUsage>| {
                    Some(ResourcesSummary::scale_resources(&used?, share))
                };
                add_resources(&mut totals.client, of(client));
                add_resources(&mut totals.server, of(server));
            }
            measured |= !header.is_warmup(*stage) && record.due + record.ended_calls() > 0;
        }
        if measured {
            self.observed.add(header, interval);
        }
        self.rotations
            .add(|stage| header.is_warmup(stage), interval);
        let ends: Vec<Option<Duration>> = header.stage_ends().collect();
        self.add_stages_without_calls(header, &ends, interval);
        for (stage, totals) in &mut self.stages {
            totals.users.add(header, *stage, interval);
        }
        self.count_calls_in_windows(&ends, interval);
    }

    /// Adds totals for the stages in which the plan has no calls, once the run has reached them; they have no records.
    fn add_stages_without_calls(
        &mut self,
        header: &RunHeader,
        ends: &[Option<Duration>],
        interval: &IntervalRecord,
    ) {
        let mut begin = Duration::ZERO;
        for (stage, end) in (0..=u8::MAX).zip(ends) {
            let Some(end) = *end else {
                return;
            };
            let is_reached = begin < interval.end_offset() && interval.start_offset < end;
            if is_reached && header.has_no_calls(stage) {
                let totals = self.stages.entry(stage).or_default();
                totals.connections_open_max =
                    totals.connections_open_max.max(interval.connections_open);
            }
            begin = end;
        }
    }

    /// Counts calls in the stage in whose window they end, even if they started in an earlier stage.
    fn count_calls_in_windows(&mut self, ends: &[Option<Duration>], interval: &IntervalRecord) {
        let is_over = |stage: u8| {
            let end = ends.get(usize::from(stage)).copied().flatten();
            end.is_some_and(|end| end <= interval.start_offset)
        };
        for (stage, record) in &interval.stages {
            let current = (*stage..u8::MAX).find(|&stage| !is_over(stage));
            if let Some(totals) = current.and_then(|stage| self.stages.get_mut(&stage)) {
                totals.ended_in_window += record.ended_calls();
            }
        }
    }

    /// Returns the merged record of the stages that are not warm-up.
    pub fn measured_record(&self, header: &RunHeader) -> StageRecord {
        let mut merged = StageRecord::default();
        for (stage, totals) in &self.stages {
            if !header.is_warmup(*stage) {
                merged.merge(&totals.record);
            }
        }
        merged
    }

    /// Returns the records of the stages, in order.
    pub(in crate::runs::run) fn stages(&self) -> impl Iterator<Item = &StageRecord> {
        self.stages.values().map(|totals| &totals.record)
    }

    /// Returns the number of intervals that were added.
    pub fn interval_count(&self) -> u64 {
        self.intervals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use crate::runs::run::header::{LoopKind, PlannedStage};
    use crate::runs::run::memory::MemoryPhase;
    use crate::runs::run::summary::RunSummary;

    /// A second at 50/s, a pause of two seconds, and another second at 50/s.
    fn header() -> RunHeader {
        let stage = |name: &str, seconds: u64, rate: f64| PlannedStage {
            name: name.to_owned(),
            warmup: false,
            duration_us: Some(seconds * 1_000_000),
            rate_from_per_s: Some(rate),
            rate_to_per_s: Some(rate),
        };
        RunHeader {
            load_loop: Some(LoopKind::Open),
            planned_stages: vec![
                stage("a", 1, 50.0),
                stage("idle", 2, 0.0),
                stage("b", 1, 50.0),
            ],
            ..RunHeader::default()
        }
    }

    /// Second `index`, in which calls of a stage ended.
    fn second(index: u64, stage: Option<u8>) -> IntervalRecord {
        let mut record = StageRecord {
            due: 50,
            ..StageRecord::default()
        };
        record.outcomes.add(Outcome::Ok, 50);
        IntervalRecord {
            index,
            start_offset: Duration::from_secs(index),
            length: Duration::from_secs(1),
            connections_open: 4,
            stages: stage.map(|stage| (stage, record)).into_iter().collect(),
            ..IntervalRecord::default()
        }
    }

    fn summary(header: &RunHeader, intervals: &[IntervalRecord]) -> RunSummary {
        let mut totals = RunTotals::default();
        intervals.iter().for_each(|i| totals.add(header, i));
        RunSummary::from_totals(header, &totals)
    }

    #[test]
    fn elapsed_time_includes_idle_stage() {
        let header = header();
        let stages = [Some(0), None, None, Some(2)];
        let mut intervals: Vec<IntervalRecord> = (0..)
            .zip(stages)
            .map(|(index, stage)| second(index, stage))
            .collect();
        let whole = summary(&header, &intervals);
        assert_eq!(whole.total.elapsed_us, Some(4_000_000));
        assert_eq!(whole.total.achieved_per_s, Some(25.0));
        let names: Vec<&str> = whole.stages.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["a", "idle", "b"]);
        let idle = &whole.stages[1];
        assert_eq!((idle.due, idle.achieved_per_s), (0, Some(0.0)));
        assert_eq!(
            (idle.elapsed_us, idle.connections_open_max),
            (Some(2_000_000), 4)
        );
        // A run that ended in the pause has no time after it.
        let ended = summary(&header, &intervals[..2]);
        assert_eq!(ended.total.elapsed_us, Some(2_000_000));
        assert_eq!(ended.stages.len(), 2);
        // Idle memory is measured in the pause, so it isn't time in which calls were planned.
        intervals[0].memory.push(MemoryReading {
            moment: MemoryPhase::Before,
            connections: 0,
            client: None,
            server: None,
            kernel: None,
        });
        let held = summary(&header, &intervals);
        assert_eq!(held.total.elapsed_us, Some(2_000_000));
    }
}
