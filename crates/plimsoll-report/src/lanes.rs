//! The report of a run of several lanes (loads that run side by side): a row for each lane, and their sum. Terminal,
//! page and Markdown share the table.

use std::fmt::Write as _;

use plimsoll_model::objective::{self, RunVerdict};
use plimsoll_model::runs::lanes::LanesRecord;
use plimsoll_model::runs::run::Run;

use crate::quantity::{count, exact_rate, or_dash};
use crate::sections::table::TextTable;
use crate::sections::totals;
use crate::terminal::TerminalOptions;

/// Renders the lanes for the terminal, with a line feed at the end. `runs`: the lanes' runs, in order.
pub fn render(record: &LanesRecord, runs: &[Run], options: &TerminalOptions) -> String {
    let mut out = format!("{}\n\n", options.bold(&record.name));
    let _ = writeln!(
        out,
        "{}",
        table(record, runs).render_unwrapped(options.width)
    );
    let _ = writeln!(out, "{}", table_notes(runs));
    out
}

/// Returns notes on the table.
pub(crate) fn table_notes(runs: &[Run]) -> String {
    let due = runs.iter().map(|run| run.summary.total.due).sum();
    format!(
        "{} calls were scheduled in all lanes together; times are response times.",
        count(due)
    )
}

/// Returns a row for each lane, and a row with their sum.
pub(crate) fn table(record: &LanesRecord, runs: &[Run]) -> TextTable {
    let head = [
        "lane",
        "weight",
        "target rate",
        "ok",
        "failed",
        "p50",
        "p99",
        "objectives",
    ];
    let mut rows = Vec::new();
    let (mut ok, mut errors, mut rate) = (0, 0, 0.0);
    for (lane, run) in record.lanes.iter().zip(runs) {
        let total = &run.summary.total;
        (ok, errors) = (ok + total.ok, errors + total.errors);
        rate += total.offered_per_s.unwrap_or(0.0);
        let at = |n| totals::format_percentile(run, n);
        let conclusion = RunVerdict::from_results(&objective::judge_run(run));
        rows.push(vec![
            lane.name.clone(),
            lane.weight.to_string(),
            or_dash(total.offered_per_s, exact_rate),
            count(total.ok),
            count(total.errors),
            at(0),
            at(4),
            or_dash(conclusion, |c| c.name().to_owned()),
        ]);
    }
    let weights: u32 = record.lanes.iter().map(|lane| lane.weight).sum();
    let mut sum = vec![
        "all lanes".to_owned(),
        weights.to_string(),
        exact_rate(rate),
        count(ok),
        count(errors),
    ];
    sum.resize(head.len(), String::new());
    rows.push(sum);
    TextTable::new(head, &[0, head.len() - 1], rows)
}
