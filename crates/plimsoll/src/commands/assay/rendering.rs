//! Renders an assay (the comparison of a run's figures with the true values) as text and as JSON.

use std::fmt::Write as _;

use plimsoll_model::formats::units::Period;
use serde_json::{Value, json};

use super::findings::{Assay, FigureCheck, TruthBasis};

impl TruthBasis {
    fn sentence(self) -> &'static str {
        match self {
            TruthBasis::Schedule => {
                "True values are those of a client that sends each call on schedule, and reads its answer when it arrives."
            }
            TruthBasis::Arrivals => {
                "True values are the server's times from each request's arrival: when calls were scheduled is not known."
            }
        }
    }

    fn code(self) -> &'static str {
        match self {
            TruthBasis::Schedule => "schedule",
            TruthBasis::Arrivals => "arrivals",
        }
    }
}

impl Assay {
    /// Returns a summary sentence and the tables.
    pub(super) fn to_text(&self) -> String {
        let mut out = String::new();
        let (held, of) = self.coverage();
        let verdict = if of == 0 {
            "The run has no intervals to compare with the true values".to_owned()
        } else if held == of {
            format!("All {of} intervals contain the true value")
        } else {
            format!(
                "{} of {of} intervals DO NOT CONTAIN the true value",
                of - held
            )
        };
        // Writing to a String does not fail.
        let _ = writeln!(
            out,
            "{verdict}: {} of {} calls compared.",
            self.compared_calls, self.calls
        );
        for sentence in &self.disagreements {
            let _ = writeln!(out, "The comparison is incomplete: {sentence}.");
        }
        if self.is_falsely_valid() {
            let _ = writeln!(out, "The run reports that it is valid.");
        }
        let _ = writeln!(out, "\n{}\n", self.basis.sentence());
        let header = ["", "run", "interval", "true", "width", "error", ""].map(str::to_owned);
        let rows: Vec<[String; 7]> = self.figures.iter().map(row).collect();
        let all = || [&header].into_iter().chain(&rows);
        let widths: [usize; 7] =
            std::array::from_fn(|i| all().map(|row| row[i].chars().count()).max().unwrap_or(0));
        for row in all() {
            let cells = row.iter().zip(widths).enumerate();
            let cells = cells.map(|(i, (cell, width))| {
                if i == 0 {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            let _ = writeln!(out, "{}", line.trim_end());
        }
        for promise in &self.objectives {
            let was = match promise.was_met {
                Some(true) => "actually met",
                Some(false) => "actually missed",
                None => "the true value is too close to the limit to tell",
            };
            let wrong = if promise.is_wrong() { ": WRONG" } else { "" };
            let judged = promise.verdict.words();
            let _ = writeln!(out, "{}: judged {judged}, {was}{wrong}", promise.text);
        }
        let [p50, most] = self.server_late_us;
        let _ = writeln!(
            out,
            "\nThe server itself was {p50:.1} µs late (p50), {most:.1} µs at most; the true values include both. Its envelope matches the commitment: {}. The network round trip is assumed to take at most {}.",
            self.commitment,
            Period(self.path)
        );
        out
    }

    /// Returns the assay as JSON.
    pub(super) fn to_json(&self) -> Value {
        let (held, of) = self.coverage();
        json!({
            "run": self.run,
            "commitment": self.commitment,
            "law": self.law,
            "seed": self.seed,
            "path_us": self.path.as_secs_f64() * 1e6,
            "basis": self.basis.code(),
            "requests": self.requests,
            "calls": self.calls,
            "compared": self.compared_calls,
            "compared_share": self.compared_calls as f64 / self.calls.max(1) as f64,
            "disagreements": self.disagreements,
            "valid": self.claims_validity,
            "falsely_valid": self.is_falsely_valid(),
            "intervals": of,
            "intervals_that_hold": held,
            "server_late_p50_us": self.server_late_us[0],
            "server_late_max_us": self.server_late_us[1],
            "figures": self.figures.iter().map(|figure| json!({
                "name": figure.name,
                "value_us": figure.printed_us,
                "instrument_us": figure.interval_us,
                "true_us": figure.true_us,
                "holds": figure.holds,
                "relative_width": figure.relative_width(),
                "relative_error": figure.relative_error(),
            })).collect::<Vec<_>>(),
            "objectives": self.objectives.iter().map(|promise| json!({
                "objective": promise.text,
                "verdict": promise.verdict,
                "met": promise.was_met,
                "wrong": promise.is_wrong(),
            })).collect::<Vec<_>>(),
        })
    }
}

fn row(figure: &FigureCheck) -> [String; 7] {
    let range = |[low, high]: [f64; 2]| format!("{} to {}", millis(low), millis(high));
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    [
        figure.name.to_owned(),
        millis(figure.printed_us),
        figure.interval_us.map_or("none".to_owned(), range),
        format!("{} ms", range(figure.true_us)),
        figure.relative_width().map_or(String::new(), percent),
        percent(figure.relative_error()),
        match figure.holds {
            Some(true) => "holds".to_owned(),
            Some(false) => "DOES NOT HOLD".to_owned(),
            None => String::new(),
        },
    ]
}

/// Formats µs as milliseconds with three decimals.
fn millis(us: f64) -> String {
    format!("{:.3}", us / 1e3)
}
