//! The verdict of a trial.

use serde::{Deserialize, Serialize};

/// The verdict of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum TrialVerdict {
    /// Every objective was met.
    #[default]
    Met,
    /// One or more objectives were missed.
    Missed {
        /// The missed objectives, as the user wrote them.
        objectives: Vec<String>,
        /// Whether the reason is that too many calls ended with an error of the target or the connection, although the
        /// objectives were met.
        errors: bool,
    },
    /// Every objective was met, but the backlog grew from beginning to end: in a longer trial, the target would not
    /// sustain the rate.
    Growing,
    /// No objective was missed, but some could not be judged by so few calls. Only trials of a number of users end so,
    /// because their number of calls is not known beforehand.
    TooFewCalls {
        /// The objectives that need more calls, as the user wrote them.
        objectives: Vec<String>,
    },
    /// The generator rather than the target was the limit, so the trial says nothing about the target.
    GeneratorLimited {
        /// The reason, a sentence.
        reason: String,
    },
}

impl TrialVerdict {
    /// Returns whether the target did not sustain the rate.
    pub fn is_failure(&self) -> bool {
        matches!(self, TrialVerdict::Missed { .. } | TrialVerdict::Growing)
    }

    /// Returns whether the trial shows nothing about the target.
    pub(super) fn is_undecided(&self) -> bool {
        let is_short = matches!(self, TrialVerdict::TooFewCalls { .. });
        is_short || self.is_generator_limited()
    }

    pub(super) fn is_generator_limited(&self) -> bool {
        matches!(self, TrialVerdict::GeneratorLimited { .. })
    }
}
