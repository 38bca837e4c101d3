//! A search on the terminal: the load line with its bounds, the curve, and why it stopped.

use std::fmt::Write as _;

use plimsoll_model::search::{Finding, Limit, Purpose, SearchRecord, Trial, Verdict};

use crate::quantity::{rate, time};
use crate::terminal::{Align, Options, Table, wrap};

/// The word for what a trial is made for.
pub fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Probe => "probe",
        Purpose::Narrow => "narrow",
        Purpose::Confirm => "confirm",
        Purpose::Curve => "curve",
    }
}

/// How a trial ended, in a few words.
pub fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Met => "met".to_owned(),
        Verdict::Missed { errors: true, .. } => "errors".to_owned(),
        Verdict::Missed { objectives, .. } => format!("missed {}", objectives.join(", ")),
        Verdict::GeneratorLimited { .. } => "generator-limited".to_owned(),
    }
}

/// The result in a sentence.
pub fn headline(record: &SearchRecord) -> String {
    let Some(finding) = &record.finding else {
        return "The search has not ended.".to_owned();
    };
    let held = record.objectives.join(", ");
    match (finding.line_per_s, &finding.limit) {
        (Some(line), Limit::Generator { .. }) => format!(
            "At least {} ({held}): the generator, not the target, was the limit.",
            rate(line)
        ),
        (Some(line), Limit::MostRate | Limit::NotReached) => {
            format!("At least {} ({held}).", rate(line))
        }
        (Some(line), _) => format!("{} is the load line ({held}).", rate(line)),
        (None, Limit::Generator { .. }) => {
            "No rate was shown: the generator was the limit from the start.".to_owned()
        }
        (None, _) => format!("No rate that was tried meets {held}."),
    }
}

/// Where the line lies, how sure that is, and what lies above it.
pub fn explanation(record: &SearchRecord, finding: &Finding) -> Vec<String> {
    let mut text = Vec::new();
    if let (Some(low), Some(high)) = (finding.low_per_s, finding.high_per_s) {
        let width = (high - low) / high * 100.0;
        text.push(format!(
            "it lies between {} and {} ({width:.1} % apart, as the trials scattered)",
            rate(low),
            rate(high)
        ));
    }
    if finding.line_per_s.is_some() {
        text.push(if finding.confirmed {
            format!(
                "a trial of {} s at the line met every objective",
                record.goal.confirm_s
            )
        } else {
            "NOT CONFIRMED: no longer trial at the line met every objective".to_owned()
        });
    }
    text.push(match &finding.limit {
        Limit::Objective { objectives } => {
            format!("above it the target misses {}", objectives.join(", "))
        }
        Limit::ServerErrors => "above it the target answers with errors".to_owned(),
        Limit::Generator { reason } => format!(
            "the generator could not make {}: {reason}",
            finding
                .generator_limit_per_s
                .map_or_else(|| "more".to_owned(), rate)
        ),
        Limit::MostRate => format!(
            "{} is the highest rate that was allowed, and it meets every objective",
            rate(record.goal.most_per_s)
        ),
        Limit::LeastRate => format!(
            "{} is the lowest rate that was allowed",
            rate(record.goal.least_per_s)
        ),
        Limit::NotReached => "no rate was found that misses an objective".to_owned(),
    });
    if finding.budget_spent && !record.interrupted {
        text.push(format!(
            "the budget of {} s was spent before the precision of {} % was reached and the line confirmed",
            record.goal.budget_s,
            record.goal.precision * 100.0
        ));
    }
    if record.interrupted {
        text.push("the search was interrupted".to_owned());
    }
    if let Some(knee) = finding.knee {
        text.push(format!(
            "the knee: up to about {} the p99 stays near {}",
            rate(knee.rate_per_s),
            time(knee.p99_us)
        ));
    }
    text
}

/// The trials by rate, the shorter before the longer.
pub fn by_rate(record: &SearchRecord) -> Vec<&Trial> {
    let mut trials: Vec<&Trial> = record.trials.iter().collect();
    trials.sort_by(|a, b| {
        (a.rate_per_s.total_cmp(&b.rate_per_s)).then(a.length_s.total_cmp(&b.length_s))
    });
    trials
}

/// The search, with a line's end at its end.
pub fn render(record: &SearchRecord, options: &Options) -> String {
    let mut out = format!(
        "{} at {}\n\n{}\n",
        record.name,
        record.target,
        options.bold(&headline(record))
    );
    if let Some(finding) = &record.finding {
        for sentence in explanation(record, finding) {
            let lines = wrap(&sentence, options.width.saturating_sub(4));
            for (i, line) in lines.iter().enumerate() {
                let _ = writeln!(out, "{}{line}", if i == 0 { "  - " } else { "    " });
            }
        }
    }
    if record.trials.is_empty() {
        return out;
    }
    out.push('\n');
    let mut table = Table::new(options.width);
    table.head(
        [
            "rate", "achieved", "p50", "p99", "p99.9", "errors", "s", "trial", "verdict",
        ]
        .map(str::to_owned)
        .to_vec(),
        |i| if i < 7 { Align::Right } else { Align::Left },
    );
    let dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    for trial in by_rate(record) {
        table.row(vec![
            rate(trial.rate_per_s),
            dash(trial.achieved_per_s.map(rate)),
            dash(trial.p50_us.map(time)),
            dash(trial.p99_us.map(time)),
            dash(trial.p99_9_us.map(time)),
            dash(trial.errors_share.map(|s| format!("{:.2} %", s * 100.0))),
            format!("{}", (trial.length_s * 10.0).round() / 10.0),
            purpose(trial.purpose).to_owned(),
            verdict(&trial.verdict),
        ]);
    }
    out += &table.to_string();
    out
}
