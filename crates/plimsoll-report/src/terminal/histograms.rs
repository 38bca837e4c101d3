//! Renders the response times and the outcomes of calls as bars of text.

use plimsoll_model::runs::run::Run;
use plimsoll_model::statistics::distribution::spread_buckets;

use super::TerminalOptions;
use crate::quantity::{count, share, time};
use crate::sections::table::TextTable;

/// Rows of response times.
const MAX_BUCKETS: u64 = 12;

/// Columns of the longest bar.
const MAX_BAR_COLUMNS: u64 = 40;

/// Columns that names, counts and shares take beside the bars.
const TEXT_COLUMNS: usize = 48;

/// Writes the histograms if they are asked for.
pub(super) fn write_histograms(out: &mut String, run: &Run, options: &TerminalOptions) {
    if !options.histogram {
        return;
    }
    let show = |ns: u64| time(ns as f64 / 1e3);
    let record = run.measured_record();
    let times = record.response.histogram();
    let buckets = times.map(|times| spread_buckets(times, MAX_BUCKETS));
    let times = buckets.into_iter().flatten().map(|bucket| {
        let name = format!("{} to {}", show(bucket.from), show(bucket.to));
        (name, bucket.count)
    });
    write_bars(out, "response time", times.collect(), options);
    let total = &run.summary.total;
    let failures = total.errors_by_code.iter();
    let failures = failures.map(|error| (error.code.clone(), error.count));
    let outcomes = std::iter::once(("ok".to_owned(), total.ok)).chain(failures);
    write_bars(out, "outcome", outcomes.collect(), options);
}

/// Writes a row with a bar for each count; writes nothing if all are zero.
fn write_bars(out: &mut String, what: &str, rows: Vec<(String, u64)>, options: &TerminalOptions) {
    let whole: u64 = rows.iter().map(|(_, calls)| calls).sum();
    if whole == 0 {
        return;
    }
    let most = rows.iter().map(|(_, calls)| *calls).max().unwrap_or(0);
    let room = options.width.saturating_sub(TEXT_COLUMNS).max(1) as u64;
    let columns = room.min(MAX_BAR_COLUMNS);
    let rows = rows.into_iter().map(|(name, calls)| {
        [
            name,
            count(calls),
            share(calls, whole),
            bar(calls, most, columns),
        ]
    });
    let table = TextTable::new([what, "calls", "share", ""], &[0, 3], rows);
    *out += &table.render_unwrapped(options.width);
    out.push('\n');
}

/// Returns a bar of at most `columns` columns for `calls` of `most`. A small count is never shown as zero.
pub(super) fn bar(calls: u64, most: u64, columns: u64) -> String {
    // The counts of a run add up to 2^60 at most, and a product with columns may be beyond 2^64.
    let length = (u128::from(calls) * u128::from(columns)).div_ceil(u128::from(most.max(1)));
    "█".repeat(length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_smallest_counts() {
        let columns = |calls, most| bar(calls, most, 40).chars().count();
        assert_eq!(columns(1_000_000, 1_000_000), 40);
        assert_eq!(columns(500_000, 1_000_000), 20);
        assert_eq!(columns(1, 1_000_000), 1);
        assert_eq!(columns(0, 1_000_000), 0);
        assert_eq!(columns(0, 0), 0);
        assert_eq!(columns(1 << 60, 1 << 60), 40);
    }
}
