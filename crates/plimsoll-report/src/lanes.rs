//! A run of several lanes on the terminal: a line each, and their sum.

use std::fmt::Write as _;

use plimsoll_model::lanes::LanesRecord;
use plimsoll_model::objective::{self, Conclusion};
use plimsoll_model::run::Run;

use crate::quantity::{count, exact_rate, time};
use crate::terminal::{Options, Table};

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
    let mut table = Table::new(options.width, head, &[0, head.len() - 1]);
    table.unbroken();
    let (mut due, mut ok, mut errors, mut rate) = (0, 0, 0, 0.0);
    for (lane, run) in record.lanes.iter().zip(runs) {
        let total = &run.summary.total;
        (due, ok, errors) = (due + total.due, ok + total.ok, errors + total.errors);
        rate += total.offered_per_s.unwrap_or(0.0);
        let at = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), time);
        let conclusion = Conclusion::of(&objective::judge_run(run));
        table.row(vec![
            lane.name.clone(),
            lane.weight.to_string(),
            total
                .offered_per_s
                .map_or_else(|| "–".to_owned(), exact_rate),
            count(total.ok),
            count(total.errors),
            at(total.response.and_then(|r| r.p50_us)),
            at(total.response.and_then(|r| r.p99_us)),
            conclusion.map_or_else(|| "–".to_owned(), |c| c.name().to_owned()),
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
    table.row(sum);
    let _ = writeln!(out, "{table}");
    let _ = writeln!(
        out,
        "{} calls were due in all lanes together; times are response times.",
        count(due)
    );
    out
}
