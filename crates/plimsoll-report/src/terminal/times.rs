//! Renders the times of a run, with notes.

use std::fmt::Write as _;

use plimsoll_model::runs::run::Run;

use super::table::COLUMN_GAP;
use super::{TerminalOptions, write_wrapped};
use crate::sections::protocol_measures::{STREAMS_NOTE, table};
use crate::sections::table::TextTable;
use crate::sections::times::{call_times, dash_note, overhead_text};

/// Writes the measured times: a column for each kind of time, a row for each percentile.
pub(super) fn write_times(out: &mut String, run: &Run, options: &TerminalOptions) {
    let known = call_times(run);
    let Some((_, first)) = known.first() else {
        return;
    };
    let calls = first.count;
    // All rows except the count, which is shown elsewhere.
    let all = table("", known).columns(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    // Columns that don't fit are placed below the others.
    let widest = |cells: &[String]| cells.iter().map(|c| c.chars().count()).max().unwrap_or(0);
    let first = widest(&all.head);
    let mut beside: Vec<Vec<String>> = Vec::new();
    let show = |beside: &mut Vec<Vec<String>>| {
        let table = TextTable::new(all.head.clone(), &[], beside.drain(..));
        table.transpose().render(options.width)
    };
    let mut used = first;
    for single_column in all.rows.iter().cloned() {
        let needed = widest(&single_column) + COLUMN_GAP;
        if used + needed > options.width && !beside.is_empty() {
            *out += &show(&mut beside);
            used = first;
        }
        used += needed;
        beside.push(single_column);
    }
    *out += &show(&mut beside);
    if let Some(text) = dash_note(calls) {
        write_wrapped(out, &text, options);
    }
    if run.summary.total.messages.is_some() {
        let _ = writeln!(out, "{STREAMS_NOTE}");
    }
    if let Some(delay) = options.overhead_over {
        write_wrapped(out, &overhead_text(run, delay), options);
    }
    out.push('\n');
}
