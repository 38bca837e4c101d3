//! Renders measures that only some protocols have, such as the tokens of sessions.

use plimsoll_model::runs::run::Run;

use super::histograms::bar;
use super::{TerminalOptions, write_facts, write_times_table};
use crate::quantity::{count, time};
use crate::sections::protocol_measures::{
    describe_distribution, protocol_facts, protocol_times, protocol_times_heading,
};
use crate::sections::table::TextTable;
use plimsoll_model::statistics::distribution::buckets;

pub(super) fn write_measures(out: &mut String, run: &Run, options: &TerminalOptions) {
    let Some(measures) = &run.summary.total.measures else {
        return;
    };
    write_facts(out, protocol_facts(run), options);
    out.push('\n');
    if measures.times.is_empty() {
        return;
    }
    let heading = protocol_times_heading(run);
    write_times_table(out, heading, protocol_times(measures), options);
    write_distribution(out, run, options);
}

/// Writes the distribution of the queries' times: percentiles and bars.
fn write_distribution(out: &mut String, run: &Run, options: &TerminalOptions) {
    const MAX_BUCKETS: u64 = 12;
    const MAX_BAR_COLUMNS: u64 = 40;
    let record = run.measured_record();
    let Some(h) = record.response.histogram().filter(|h| !h.is_empty()) else {
        return;
    };
    if let Some(fact) = describe_distribution(run) {
        write_facts(out, [fact], options);
        out.push('\n');
    }
    let show = |ns: u64| time(ns as f64 / 1e3);
    let buckets = buckets(h, MAX_BUCKETS);
    let most = buckets.iter().map(|b| b.count).max().unwrap_or(0);
    let rows = buckets.iter().map(|b| {
        [
            format!("{} to {}", show(b.from), show(b.to)),
            count(b.count),
            bar(b.count, most, MAX_BAR_COLUMNS),
        ]
    });
    *out += &TextTable::new([""; 3], &[2], rows).render_unwrapped(options.width);
    out.push('\n');
}
