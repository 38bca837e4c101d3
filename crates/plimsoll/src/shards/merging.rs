//! Merges the logs of all shards of a run: in the coordinator during the run, and in `plimsoll merge` afterwards.
//!
//! Invariant: the result depends only on the logs, not on where and when they are merged.

use plimsoll_model::runs::run::{
    CountSum, IntervalRecord, RunHeader, ShardFigures, ShardState, ShardTotals, check_stage_numbers,
};

use super::objects::{Orders, RunManifest};
use crate::load::multiprocess::aggregation::IntervalAggregator;
use crate::load::multiprocess::wire::{ClockOffset, ShardMessage};

/// Merger of the logs that a run's shards write, with the state of each shard.
pub(super) struct LogMerger {
    header: RunHeader,
    pub(super) aggregator: IntervalAggregator,
    shards: Vec<ShardProgress>,
    /// Sum of all shards' counts, kept to detect overflow.
    sum: CountSum,
}

/// The state of one shard according to the log read so far.
#[derive(Default)]
struct ShardProgress {
    /// The shard's totals; `None` until its first interval.
    totals: Option<Box<ShardTotals>>,
    offset: Option<ClockOffset>,
    state: Option<ShardState>,
    reason: Option<String>,
}

impl LogMerger {
    pub(super) fn new(head: &RunManifest) -> LogMerger {
        LogMerger {
            header: head.header.clone(),
            aggregator: IntervalAggregator::new(head.of as usize),
            shards: (0..head.of).map(|_| ShardProgress::default()).collect(),
            sum: CountSum::default(),
        }
    }

    /// Returns whether the shard has ended; its later messages are ignored.
    pub(super) fn has_ended(&self, shard: u32) -> bool {
        self.shards[shard as usize].state.is_some()
    }

    /// Returns why the shard did not complete its share of the load; `None` if it did, or if it has not ended.
    pub(super) fn incomplete_reason(&self, shard: u32) -> Option<&str> {
        self.shards[shard as usize].reason.as_deref()
    }

    pub(super) fn clock_offset(&self, shard: u32) -> Option<ClockOffset> {
        self.shards[shard as usize].offset
    }

    /// Adds a message of the shard's log. `orders`, the coordinator's orders so far, shows whether a stop was ordered.
    pub(super) fn add_message(&mut self, shard: u32, message: ShardMessage, orders: &Orders) {
        let one = &mut self.shards[shard as usize];
        if one.state.is_some() {
            return;
        }
        match &message {
            ShardMessage::Clock(offset) => one.offset = Some(*offset),
            ShardMessage::Interval(interval) => {
                if let Err(problem) = self.add_interval(shard, interval) {
                    self.mark_failed(shard, format!("it sent impossible measurements: {problem}"));
                    return;
                }
            }
            ShardMessage::Finished(end) => {
                if let Some(contradiction) =
                    one.totals.as_ref().and_then(|t| t.find_contradiction())
                {
                    self.mark_failed(shard, contradiction);
                    return;
                }
                one.state = Some(if end.interrupted {
                    ShardState::Stopped
                } else {
                    ShardState::Complete
                });
                one.reason = (end.interrupted && orders.stop == 0)
                    .then(|| "was stopped early, and handed over its measurements".to_owned());
            }
            ShardMessage::Failed(problem) | ShardMessage::Defect(problem) => {
                self.mark_failed(shard, problem.clone());
                return;
            }
            _ => {}
        }
        self.aggregator.add_message(shard as usize, message);
    }

    /// Adds an interval to the shard's totals, unless the counts of all shards would overflow, or it has a stage that is
    /// not planned.
    fn add_interval(&mut self, shard: u32, interval: &IntervalRecord) -> Result<(), String> {
        check_stage_numbers(interval, self.header.planned_stages.len())?;
        self.sum.add(interval)?;
        let one = &mut self.shards[shard as usize];
        let totals = one.totals.get_or_insert_default();
        totals.add(&self.header, interval);
        Ok(())
    }

    /// Marks the shard as failed; its later messages are ignored.
    fn mark_failed(&mut self, shard: u32, problem: String) {
        let one = &mut self.shards[shard as usize];
        one.state = Some(ShardState::Failed);
        one.reason = Some(problem);
        self.aggregator.intervals.mark_ended(shard as usize);
    }

    /// Marks the shard as lost for the reason `why`.
    pub(super) fn mark_lost(&mut self, shard: u32, why: String) {
        let one = &mut self.shards[shard as usize];
        one.state = Some(ShardState::Lost);
        one.reason = Some(why);
        self.aggregator.intervals.mark_ended(shard as usize);
    }

    pub(super) fn shard_figures(&self) -> Vec<ShardFigures> {
        let figures = (0..).zip(&self.shards).map(|(shard, one)| ShardFigures {
            state: one.state.unwrap_or(ShardState::Lost),
            reason: one.reason.clone(),
            clock_offset_us: one.offset.map(|o| o.offset_us),
            clock_uncertainty_us: one.offset.map(|o| o.uncertainty_us),
            ..match &one.totals {
                Some(totals) => totals.figures(&self.header, shard),
                None => ShardTotals::default().figures(&self.header, shard),
            }
        });
        figures.collect()
    }
}
