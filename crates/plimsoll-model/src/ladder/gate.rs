//! Evaluates the gates of a ladder.

use serde::{Deserialize, Serialize};

use super::{AddedCost, LadderRecord};
use crate::gate::Gate;

/// The position of a difference's interval relative to what a gate allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateOutcome {
    /// The whole interval is within what is allowed.
    Within,
    /// The whole interval is beyond.
    Beyond,
    /// The interval is on both sides, or a value that is needed is not known.
    Undecided,
}

/// The result of one gate for one rung.
#[derive(Clone, Debug, PartialEq)]
pub struct GateResult {
    /// The gate as the plan has it.
    pub gate: Gate,
    /// The rung's position in the ladder, from 0.
    pub rung: usize,
    /// The position of the rung's difference to the first rung.
    pub outcome: GateOutcome,
    /// The allowed value, in the metric's unit; `None`: the first rung's value is not known.
    pub allowed: Option<f64>,
}

impl LadderRecord {
    /// Evaluates every gate for every rung but the first.
    pub fn gated(&self) -> Vec<GateResult> {
        let rungs = 1..self.rungs.len();
        rungs
            .flat_map(|rung| {
                self.gates
                    .iter()
                    .map(move |gate| self.evaluate_gate(*gate, rung))
            })
            .collect()
    }

    fn evaluate_gate(&self, gate: Gate, rung: usize) -> GateResult {
        let allowed = gate.allowed(self.rungs[0].median(gate.metric));
        let (low, high) = match self.added(rung, 0, gate.metric) {
            AddedCost::Significant(d) | AddedCost::NotSignificant(d) => (d.low, d.high),
            AddedCost::Exact(more) => (more, more),
            AddedCost::TooFewRounds => (f64::NEG_INFINITY, f64::INFINITY),
        };
        let passage = match allowed {
            Some(allowed) if high <= allowed => GateOutcome::Within,
            Some(allowed) if low > allowed => GateOutcome::Beyond,
            _ => GateOutcome::Undecided,
        };
        GateResult {
            gate,
            rung,
            outcome: passage,
            allowed,
        }
    }
}
