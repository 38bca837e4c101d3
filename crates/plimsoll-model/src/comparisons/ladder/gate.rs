//! Evaluates the gates of a ladder: limits on how much each rung (variant) may exceed the first.

use serde::{Deserialize, Serialize};

use super::batches::BatchesRecord;
use super::{AddedCost, LadderRecord, Rung};
use crate::metrics::gate::{Gate, LadderMetric};

/// Largest difference between two rungs' failure rates at which their figures are compared. Only calls that succeed are
/// measured, so with a larger difference the figures may only reflect which calls failed.
const MAX_FAILURE_DIFFERENCE: f64 = 0.01;

/// Where the confidence interval of a difference lies relative to the gate's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateOutcome {
    /// The whole interval is within the limit.
    Within,
    /// The whole interval exceeds the limit.
    Beyond,
    /// The limit is within the interval, a required value is not known, or the rungs' failure rates differ too much.
    Undecided,
}

/// Why a gate can't be decided, whatever the interval is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateObstacle {
    /// The rungs' failure rates differ so much that their figures can't be compared.
    FailsDifferently,
    /// The server's CPU time can't be measured, or the calls stream no tokens.
    NotMeasured,
    /// The servers were started too few times to know how much two processes of one version differ.
    TooFewReplicates,
}

/// The result of one gate for one rung.
#[derive(Clone, Debug, PartialEq)]
pub struct GateResult {
    /// The gate, from the plan.
    pub gate: Gate,
    /// The rung's position in the ladder, from 0.
    pub rung: usize,
    /// Where the interval of this rung's difference from the first rung lies.
    pub outcome: GateOutcome,
    /// Why the gate is undecided; `None` where it is decided, or the interval alone is the reason.
    pub obstacle: Option<GateObstacle>,
    /// The allowed value, in the metric's unit; `None`: the first rung's value is not known.
    pub allowed: Option<f64>,
}

impl LadderRecord {
    /// Evaluates every gate for every rung but the first.
    pub fn evaluate_gates(&self) -> Vec<GateResult> {
        let rungs = 1..self.rungs.len();
        rungs
            .flat_map(|rung| {
                self.gates
                    .iter()
                    .map(move |gate| self.evaluate_gate(*gate, rung))
            })
            .collect()
    }

    /// Returns whether the failure rates of two rungs differ so much that their figures can't be compared. Returns
    /// `false` for records of older versions, which lack the counts.
    pub fn failure_rates_differ(&self, of: usize, to: usize) -> bool {
        let share = |rung: usize| self.rungs.get(rung).and_then(Rung::failed_share);
        let both = share(of).zip(share(to));
        both.is_some_and(|(of, to)| (of - to).abs() > MAX_FAILURE_DIFFERENCE)
    }

    /// Returns whether failure rates also differ in most replicates, so that measuring longer will hardly change that.
    pub fn failure_rates_differ_in_most_replicates(&self, of: usize, to: usize) -> bool {
        let (Some(upper), Some(lower)) = (self.rungs.get(of), self.rungs.get(to)) else {
            return false;
        };
        let both = upper.slices.iter().zip(&lower.slices);
        let differ = both.filter(|(upper, lower)| {
            let both = upper.failed_share().zip(lower.failed_share());
            both.is_some_and(|(of, to)| (of - to).abs() > MAX_FAILURE_DIFFERENCE)
        });
        self.failure_rates_differ(of, to) && 3 * differ.count() >= 2 * upper.slices.len()
    }

    fn gate_obstacle(&self, gate: Gate, rung: usize) -> Option<GateObstacle> {
        let is_unseen = |rung: usize| self.rungs[rung].median(gate.metric).is_none();
        let is_replicated =
            |batches: &BatchesRecord| batches.replicates >= batches.required_replicates;
        if self.failure_rates_differ(rung, 0) {
            Some(GateObstacle::FailsDifferently)
        } else if !self.batches.as_ref().is_none_or(is_replicated) {
            Some(GateObstacle::TooFewReplicates)
        } else if (gate.metric == LadderMetric::ServerCpu || gate.metric.is_about_tokens())
            && (is_unseen(0) || is_unseen(rung))
        {
            Some(GateObstacle::NotMeasured)
        } else {
            None
        }
    }

    fn evaluate_gate(&self, gate: Gate, rung: usize) -> GateResult {
        let allowed = gate.allowed_difference(self.rungs[0].median(gate.metric));
        let (low, high) = match self.added_cost(rung, 0, gate.metric) {
            AddedCost::Significant(d) | AddedCost::NotSignificant(d) => (d.low, d.high),
            AddedCost::Exact(more) => (more, more),
            AddedCost::TooFewRounds => (f64::NEG_INFINITY, f64::INFINITY),
        };
        let obstacle = self.gate_obstacle(gate, rung);
        let passage = match allowed {
            _ if obstacle.is_some() => GateOutcome::Undecided,
            Some(allowed) if high <= allowed => GateOutcome::Within,
            Some(allowed) if low > allowed => GateOutcome::Beyond,
            _ => GateOutcome::Undecided,
        };
        GateResult {
            gate,
            rung,
            outcome: passage,
            obstacle,
            allowed,
        }
    }
}
