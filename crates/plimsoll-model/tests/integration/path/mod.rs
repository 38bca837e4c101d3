//! Formats the path of a search as text.

use std::fmt::Write as _;

use plimsoll_model::search::{SearchResult, Trial, TrialVerdict};

/// Formats one line for each trial, and one for the result.
pub(crate) fn path(name: &str, (found, trials): &(SearchResult, Vec<Trial>)) -> String {
    let mut text = format!("{name}\n");
    for trial in trials {
        let verdict = match &trial.verdict {
            TrialVerdict::Met => "met",
            TrialVerdict::Missed { .. } => "missed",
            TrialVerdict::Growing => "growing",
            TrialVerdict::TooFewCalls { .. } => "too few calls",
            TrialVerdict::GeneratorLimited { .. } => "generator-limited",
        };
        let _ = writeln!(
            text,
            "  {:?} {}/s {:.2} s {verdict}",
            trial.purpose, trial.rate_per_s, trial.length_s
        );
    }
    let _ = writeln!(
        text,
        "  line {:?}, from {:.5?} to {:.5?}, width {:.5?}, confirmed {}, budget spent {}, {:?}",
        found.line_per_s,
        found.low_per_s,
        found.high_per_s,
        found.width,
        found.confirmed,
        found.budget_spent,
        found.limit
    );
    text
}
