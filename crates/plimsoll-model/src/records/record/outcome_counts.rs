//! Counts of outcomes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Outcome;

/// A count for every outcome. Serialised, it contains the outcomes that occurred, by their codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "BTreeMap<String, u64>", from = "BTreeMap<Outcome, u64>")]
pub struct OutcomeCounts([u64; Outcome::COUNT]);

impl Default for OutcomeCounts {
    fn default() -> OutcomeCounts {
        OutcomeCounts([0; Outcome::COUNT])
    }
}

impl From<OutcomeCounts> for BTreeMap<String, u64> {
    fn from(counts: OutcomeCounts) -> BTreeMap<String, u64> {
        let by_code = counts.iter().map(|(o, n)| (o.code().to_owned(), n));
        by_code.collect()
    }
}

impl From<BTreeMap<Outcome, u64>> for OutcomeCounts {
    fn from(by_outcome: BTreeMap<Outcome, u64>) -> OutcomeCounts {
        let mut counts = OutcomeCounts::default();
        for (outcome, n) in by_outcome {
            counts.add(outcome, n);
        }
        counts
    }
}

impl OutcomeCounts {
    /// Adds `n` to the count of an outcome.
    #[inline]
    pub fn add(&mut self, outcome: Outcome, n: u64) {
        self.0[outcome.index()] += n;
    }

    /// Returns the count of an outcome.
    pub fn get(&self, outcome: Outcome) -> u64 {
        self.0[outcome.index()]
    }

    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the outcomes that occurred with their counts, in the order of [`Outcome::all`].
    pub fn iter(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        Outcome::all().zip(self.0).filter(|(_, n)| *n > 0)
    }

    /// Adds the counts of another worker, interval or shard.
    pub fn merge(&mut self, other: &OutcomeCounts) {
        for (ours, theirs) in self.0.iter_mut().zip(other.0) {
            *ours += theirs;
        }
    }
}
