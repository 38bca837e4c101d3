//! A run of several lanes on the terminal: a line each, and their sum.

use std::fmt::Write as _;

use plimsoll_model::lanes::LanesRecord;
use plimsoll_model::objective::{self, Conclusion};
use plimsoll_model::run::Run;

use crate::quantity::{count, exact_rate, or_dash, time};
use crate::table::Table;
use crate::terminal::Options;

/// The lanes' lines; `runs` are theirs, in order. With a line's end at its end.
pub fn render(record: &LanesRecord, runs: &[Run], options: &Options) -> String {
    let mut out = format!("{}\n\n", options.bold(&record.name));
    let head = [
        "lane",
        "weight",
        "offered",
        "ok",
        "failed",
        "p50",
        "p99",
        "objectives",
    ];
    let mut rows = Vec::new();
    let (mut due, mut ok, mut errors, mut rate) = (0, 0, 0, 0.0);
    for (lane, run) in record.lanes.iter().zip(runs) {
        let total = &run.summary.total;
        (due, ok, errors) = (due + total.due, ok + total.ok, errors + total.errors);
        rate += total.offered_per_s.unwrap_or(0.0);
        let conclusion = Conclusion::of(&objective::judge_run(run));
        rows.push(vec![
            lane.name.clone(),
            lane.weight.to_string(),
            or_dash(total.offered_per_s, exact_rate),
            count(total.ok),
            count(total.errors),
            or_dash(total.response.and_then(|r| r.p50_us), time),
            or_dash(total.response.and_then(|r| r.p99_us), time),
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
    let table = Table::new(head, &[0, head.len() - 1], rows);
    let _ = writeln!(out, "{}", table.unbroken(options.width));
    let _ = writeln!(
        out,
        "{} calls were due in all lanes together; times are response times.",
        count(due)
    );
    out
}
