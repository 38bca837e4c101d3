//! Describes a search and its trials (runs at one rate each) in words that all reports share, and renders it for the
//! terminal.

use plimsoll_model::search::{
    LimitingFactor, SearchRecord, SearchResult, SearchVariable, Trial, TrialPurpose, TrialVerdict,
};

pub use plimsoll_model::search::{amount, amount_interval, none_meets, searched_quantity};

use crate::quantity::{or_dash, plural, rate, time};
use crate::sections::table::TextTable;
use crate::terminal::{TerminalOptions, write_list};

/// Describes the verdict of a trial in a few words.
pub fn verdict(verdict: &TrialVerdict) -> String {
    match verdict {
        TrialVerdict::Met => "met".to_owned(),
        TrialVerdict::Missed { errors: true, .. } => "errors".to_owned(),
        TrialVerdict::Missed { objectives, .. } => format!("missed {}", objectives.join(", ")),
        TrialVerdict::Growing => "calls pile up".to_owned(),
        TrialVerdict::TooFewCalls { .. } => "too few calls".to_owned(),
        TrialVerdict::GeneratorLimited { .. } => "generator-limited".to_owned(),
    }
}

/// Returns the result in a sentence.
pub fn headline(record: &SearchRecord) -> String {
    let Some(finding) = &record.finding else {
        return "The search has not ended.".to_owned();
    };
    let held = record.objectives.join(", ");
    let what = searched_quantity(&record.goal);
    match (finding.line_per_s, &finding.limit) {
        (Some(line), LimitingFactor::Generator { .. }) => match lowest_failed_rate(record, line) {
            Some(rate) => format!(
                "Meets {held} up to {}, and fails at {}; between them the generator was too late to tell.",
                amount(&record.goal, line),
                amount(&record.goal, rate)
            ),
            None => format!(
                "Meets {held} up to {}; above it the generator was too late to tell.",
                amount(&record.goal, line)
            ),
        },
        (Some(line), LimitingFactor::MostRate | LimitingFactor::NotReached) => {
            let is_highest = record.trials.iter().all(|t| t.rate_per_s <= line);
            let highest = if is_highest {
                ", the highest tried"
            } else {
                ""
            };
            format!(
                "Meets {held} up to {}{highest}.",
                amount(&record.goal, line)
            )
        }
        (Some(line), _) => {
            let amount = amount(&record.goal, line);
            match record.goal.variable {
                SearchVariable::Rate => format!("{amount} is the load line ({held})."),
                SearchVariable::Users => format!("Carries {amount} with {held}."),
            }
        }
        (None, _) if record.trials.is_empty() => "No trial was made.".to_owned(),
        (None, _) if record.trials.iter().any(|t| t.verdict == TrialVerdict::Met) => format!(
            "No {what} was found to meet {held}: where some trials met it, longer or more trials missed it."
        ),
        (None, LimitingFactor::Generator { .. }) => {
            format!(
                "No {what} was found: the generator was too late to tell from the first trial on."
            )
        }
        (None, _) if !record.trials.iter().any(|t| t.verdict.is_failure()) => {
            format!("No {what} was found: the generator was late in every trial.")
        }
        (None, _) => format!("No {what} that was tried meets {held}."),
    }
}

/// Returns the lowest rate above `line` at which the target failed, unless a trial at that rate or a higher one met the
/// objectives.
fn lowest_failed_rate(record: &SearchRecord, line: f64) -> Option<f64> {
    let met = record
        .trials
        .iter()
        .filter(|t| t.verdict == TrialVerdict::Met);
    let highest_met = met.map(|t| t.rate_per_s).fold(line, f64::max);
    let failed = record.trials.iter().filter(|t| t.verdict.is_failure());
    let rates = failed.map(|t| t.rate_per_s);
    rates
        .filter(|rate| *rate > highest_met)
        .min_by(f64::total_cmp)
}

/// Explains the load line (the highest rate that meets the objectives), its uncertainty, and what limits the load above
/// it.
pub fn explanation(record: &SearchRecord, finding: &SearchResult) -> Vec<String> {
    let mut text = Vec::new();
    if let (Some(low), Some(high)) = (finding.low_per_s, finding.high_per_s) {
        let width = (high - low) / high * 100.0;
        let (low, high) = amount_interval(&record.goal, low, high);
        text.push(format!(
            "it lies between {low} and {high} ({width:.1} % apart, as the trials scattered)"
        ));
    }
    text.extend(describe_contradictions(record, finding));
    if let Some(line) = finding.line_per_s {
        text.push(
            match confirming_trial(record, line) {
                Some(_) if !finding.confirmed => {
                    "NOT CONFIRMED: a confirmation at the line met every objective, but as many trials there or more did not"
                        .to_owned()
                }
                Some(trial) => format!(
                    "a trial of {} s at the line met every objective{}",
                    round_seconds(trial.length_s),
                    // A trial that is too short does not show whether its backlog grew.
                    match trial.growth {
                        Some(_) => ", and no calls piled up in it",
                        None => "",
                    }
                ),
                None => "NOT CONFIRMED: no confirmation at the line met every objective".to_owned(),
            },
        );
    }
    text.extend(explain_limit(record, finding));
    if finding.budget_spent && !record.interrupted {
        let precise = finding.width.is_some_and(|w| w <= record.goal.precision);
        let mut missing = Vec::new();
        if !precise {
            missing.push(format!(
                "the precision of {} % was reached",
                record.goal.precision * 100.0
            ));
        }
        if !finding.confirmed {
            missing.push("a line was confirmed".to_owned());
        }
        if !missing.is_empty() {
            text.push(format!(
                "the budget of {} s was spent before {}",
                record.goal.budget_s,
                missing.join(" and ")
            ));
        }
    }
    if record.interrupted {
        text.push("the search was interrupted".to_owned());
    }
    if let Some(knee) = finding.knee {
        text.push(format!(
            "the knee: up to about {} the p99 stays near {}",
            amount(&record.goal, knee.rate_per_s),
            time(knee.p99_us)
        ));
    }
    text
}

/// Explains why there is no higher load line, or none at all.
fn explain_limit(record: &SearchRecord, finding: &SearchResult) -> Option<String> {
    let quantity = searched_quantity(&record.goal);
    let what = match &finding.limit {
        LimitingFactor::Objective { objectives } => {
            format!("the target misses {}", objectives.join(", "))
        }
        LimitingFactor::Queue => "calls pile up for as long as the load lasts".to_owned(),
        LimitingFactor::ServerErrors => "the target answers with errors".to_owned(),
        LimitingFactor::Generator { reason } => {
            return finding.generator_limit_per_s.map(|rate| {
                format!(
                    "most trials at {} were generator-limited: {reason}",
                    amount(&record.goal, rate)
                )
            });
        }
        LimitingFactor::MostRate => {
            return Some(format!(
                "{} is the highest {quantity} that was allowed, and it meets every objective",
                amount(&record.goal, record.goal.most_per_s)
            ));
        }
        LimitingFactor::LeastRate => {
            return Some(format!(
                "{} is the lowest {quantity} that was allowed",
                amount(&record.goal, record.goal.least_per_s)
            ));
        }
        LimitingFactor::NotReached => return explain_missing_limit(record, finding),
    };
    let carries_no_more = match finding.limit {
        LimitingFactor::Queue => ": the target's capacity is reached",
        _ => "",
    };
    if finding.line_per_s.is_some() {
        return Some(format!("above it {what}{carries_no_more}"));
    }
    let is_so = |t: &&Trial| match (&finding.limit, &t.verdict) {
        (
            LimitingFactor::Objective { objectives },
            TrialVerdict::Missed {
                objectives: o,
                errors,
            },
        ) => !errors && o == objectives,
        (LimitingFactor::ServerErrors, TrialVerdict::Missed { errors, .. }) => *errors,
        (LimitingFactor::Queue, TrialVerdict::Growing) => true,
        _ => false,
    };
    let lowest = record
        .trials
        .iter()
        .filter(is_so)
        .min_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s))?;
    Some(format!(
        "at {} {what}",
        amount(&record.goal, lowest.rate_per_s)
    ))
}

/// Explains that no rate above the line was shown to be too high.
fn explain_missing_limit(record: &SearchRecord, finding: &SearchResult) -> Option<String> {
    let what = searched_quantity(&record.goal);
    let higher = |t: &&Trial| finding.line_per_s.is_none_or(|line| t.rate_per_s > line);
    let failed = record.trials.iter().filter(higher);
    let failed = failed.filter(|t| t.verdict.is_failure()).count() as u64;
    match (finding.line_per_s, failed) {
        (Some(_), 0) => Some(format!(
            "no higher {what} was found that misses an objective"
        )),
        (Some(_), n) => Some(format!(
            "{} above the line failed, too few to say that the line ends there",
            plural(n, "trial")
        )),
        (None, _) => None,
    }
}

/// Returns the longest trial that confirmed the load line `line`.
fn confirming_trial(record: &SearchRecord, line: f64) -> Option<&Trial> {
    record
        .trials
        .iter()
        .filter(|t| t.rate_per_s == line && t.purpose == TrialPurpose::Confirm)
        .filter(|t| t.verdict == TrialVerdict::Met)
        .max_by(|a, b| a.length_s.total_cmp(&b.length_s))
}

/// Describes the trials whose verdict contradicts their rate's side of the line.
fn describe_contradictions(record: &SearchRecord, finding: &SearchResult) -> Option<String> {
    let line = finding.line_per_s?;
    let higher: Vec<&Trial> = record
        .trials
        .iter()
        .filter(|t| t.rate_per_s > line && t.verdict == TrialVerdict::Met)
        .collect();
    let lower = record
        .trials
        .iter()
        .filter(|t| t.rate_per_s <= line && t.verdict.is_failure())
        .count();
    let highest = higher
        .iter()
        .max_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
    let met = highest.map(|highest| {
        let failed = |t: &Trial| t.rate_per_s <= highest.rate_per_s && t.verdict.is_failure();
        let why = if record.trials.iter().any(failed) {
            "but longer or more trials did not"
        } else {
            "too few or too short to confirm it there"
        };
        format!(
            "{} above the line met every objective (up to {} for {} s), {why}",
            plural(higher.len() as u64, "trial"),
            amount(&record.goal, highest.rate_per_s),
            round_seconds(highest.length_s)
        )
    });
    let missed = (lower > 0).then(|| {
        format!(
            "{} at the line or below it did not",
            plural(lower as u64, "trial")
        )
    });
    match (met, missed) {
        (None, None) => None,
        (Some(met), None) => Some(met),
        (Some(met), Some(missed)) => Some(format!("{met}; {missed}")),
        (None, Some(missed)) => Some(format!("{missed} meet every objective")),
    }
}

fn round_seconds(s: f64) -> f64 {
    (s * 10.0).round() / 10.0
}

/// Returns the trials ordered by rate, shorter ones first.
pub fn trials_by_rate(record: &SearchRecord) -> Vec<&Trial> {
    let mut trials: Vec<&Trial> = record.trials.iter().collect();
    trials.sort_by(|a, b| {
        (a.rate_per_s.total_cmp(&b.rate_per_s)).then(a.length_s.total_cmp(&b.length_s))
    });
    trials
}

/// Renders the search, with a line feed at its end.
pub fn render(record: &SearchRecord, options: &TerminalOptions) -> String {
    let mut out = format!(
        "{} at {}\n\n{}\n",
        record.name,
        record.target,
        options.bold(&headline(record))
    );
    if let Some(finding) = &record.finding {
        write_list(&mut out, explanation(record, finding), options);
    }
    if record.trials.is_empty() {
        return out;
    }
    out.push('\n');
    out += &table(record).render(options.width);
    out
}

/// Returns a row for each trial.
pub(crate) fn table(record: &SearchRecord) -> TextTable {
    let searched = match record.goal.variable {
        SearchVariable::Rate => "rate",
        SearchVariable::Users => "users",
    };
    let head = [
        searched, "achieved", "p50", "p99", "p99.9", "errors", "s", "step", "verdict",
    ];
    // Trials are numbered in the order in which they were made.
    let number = |trial: &Trial| {
        let at = record.trials.iter().position(|t| std::ptr::eq(t, trial));
        at.map_or_else(String::new, |at| (at + 1).to_string())
    };
    let rows = trials_by_rate(record).into_iter().map(|trial| {
        [
            amount(&record.goal, trial.rate_per_s),
            or_dash(trial.achieved_per_s, rate),
            or_dash(trial.p50_us, time),
            or_dash(trial.p99_us, time),
            or_dash(trial.p99_9_us, time),
            or_dash(trial.errors_share, |s| format!("{:.2} %", s * 100.0)),
            round_seconds(trial.length_s).to_string(),
            number(trial),
            verdict(&trial.verdict),
        ]
    });
    TextTable::new(head, &[8], rows)
}
