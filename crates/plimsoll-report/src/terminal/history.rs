//! Renders the changes of a folder's histories.

use std::fmt::Write as _;

use super::{TerminalOptions, write_wrapped};
use crate::history::{HistorySeries, describe_method, sanitise};
use crate::quantity::plural;
use crate::sections::facts;
use crate::sections::table::TextTable;

/// Renders the series with their changes, with a line feed at the end.
pub fn render_changes(all: &[HistorySeries<'_>], options: &TerminalOptions) -> String {
    let mut out = String::new();
    for series in all {
        let runs = plural(series.items.len() as u64, series.kind.name());
        let conditions = series.describe_conditions();
        let heading = format!("{}: {runs} {conditions}", sanitise(series.name));
        for line in super::wrap(heading.trim_end(), options.width) {
            let _ = writeln!(out, "{}", options.bold(&line));
        }
        if series.changes.is_empty() {
            out.push_str("no change\n\n");
            continue;
        }
        let rows = series.changes.iter().map(|change| {
            [
                facts::format_time(change.first.began),
                change.metric.name().to_owned(),
                change.before_text(),
                change.after_text(),
                change.describe_size(),
                change.format_p_value(),
                change.remarks().join("; "),
                change.first.id.clone(),
            ]
        });
        let head = [
            "since", "metric", "before", "after", "change", "p", "remarks", "run",
        ];
        out += &TextTable::new(head, &[0, 1, 6, 7], rows).render(options.width);
        out.push('\n');
    }
    write_wrapped(&mut out, &describe_method(), options);
    out
}
