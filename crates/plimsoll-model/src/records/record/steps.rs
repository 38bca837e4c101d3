//! Records of the individual steps of a journey, which are kept in addition to the record of all calls.

use serde::{Deserialize, Serialize};

use super::{OutcomeCounts, TimeHistogram};
use crate::{CallSample, Outcome};

/// The record of one step. Each call of a journey belongs to one step, and a retried or repeated step makes several
/// calls: `due = outcomes.total() + in flight`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step's name in the plan.
    pub name: String,
    /// Calls that were due.
    pub due: u64,
    /// Calls that ended, by outcome.
    pub outcomes: OutcomeCounts,
    /// Time from when a call was due to its end; calls that ended ok.
    #[serde(skip)]
    pub response: TimeHistogram,
    /// Time from the actual send to the end; calls that ended ok.
    #[serde(skip)]
    pub service: TimeHistogram,
}

type StepTimesSelector = fn(&StepRecord) -> &TimeHistogram;
type StepTimesSelectorMut = fn(&mut StepRecord) -> &mut TimeHistogram;

/// The histograms of a step, by their keys in a line of `intervals.jsonl`.
pub(crate) const STEP_TIMES_BY_KEY: [(&str, StepTimesSelector, StepTimesSelectorMut); 2] = [
    ("response_ns", |s| &s.response, |s| &mut s.response),
    ("service_ns", |s| &s.service, |s| &mut s.service),
];

impl StepRecord {
    /// Creates the empty records of a journey's steps.
    pub(crate) fn empty_records(names: &[String]) -> Vec<StepRecord> {
        let named = |name: &String| StepRecord {
            name: name.clone(),
            ..StepRecord::default()
        };
        names.iter().map(named).collect()
    }

    pub(crate) fn add_call(&mut self, sample: &CallSample) {
        self.outcomes.add(sample.outcome, 1);
        if sample.outcome.is_ok() {
            self.response.record(sample.response_ns());
            self.service.record(sample.service_ns());
        }
    }

    /// Returns the number of calls that ended ok.
    pub fn ok_calls(&self) -> u64 {
        self.outcomes.get(Outcome::Ok)
    }

    /// Returns the number of calls that were sent, and abandoned because the run ended.
    pub fn cut_off_call_count(&self) -> u64 {
        let given_up = self.outcomes.iter().filter(|(o, _)| o.is_abandoned());
        given_up.map(|(_, n)| n).sum()
    }

    fn merge(&mut self, other: &StepRecord) {
        self.due += other.due;
        self.outcomes.merge(&other.outcomes);
        for (_, of, of_mut) in STEP_TIMES_BY_KEY {
            of_mut(self).merge(of(other));
        }
    }

    fn clear(&mut self) {
        (self.due, self.outcomes) = (0, OutcomeCounts::default());
        for (_, _, of_mut) in STEP_TIMES_BY_KEY {
            of_mut(self).clear();
        }
    }
}

/// Adds the records of another worker, interval or shard, whose steps are the same.
pub(super) fn merge(ours: &mut Vec<StepRecord>, theirs: &[StepRecord]) {
    for (index, step) in theirs.iter().enumerate() {
        match ours.get_mut(index) {
            Some(own) => own.merge(step),
            None => ours.push(step.clone()),
        }
    }
}

/// Resets the records and keeps their memory.
pub(super) fn clear(steps: &mut [StepRecord]) {
    steps.iter_mut().for_each(StepRecord::clear);
}
