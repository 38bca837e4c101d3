//! The table of the shards of a run on several machines: a row for each.

use std::cmp::Reverse;

use plimsoll_model::runs::run::{Run, ShardFigures, ShardState};

use crate::quantity::{count, or_dash};
use crate::sections::table::TextTable;

/// Maximum number of rows; if there are more shards, the most notable ones are shown.
const MAX_ROWS: usize = 32;

/// Returns the table; it has no rows if the run had no shards.
pub(crate) fn table(run: &Run) -> TextTable {
    let head = [
        "shard",
        "calls",
        "errors",
        "rate",
        "p99",
        "send delay p99",
        "CPU",
        "clock",
        "health",
    ];
    let mut shards: Vec<&ShardFigures> = run.header.shards.iter().collect();
    if shards.len() > MAX_ROWS {
        shards.sort_by_key(|s| {
            let fine = s.state == ShardState::Complete && s.limits.is_empty();
            let lag = s.lag_p99_us.map_or(0, |us| us as u64);
            (fine, Reverse(lag), s.shard)
        });
        shards.truncate(MAX_ROWS);
    }
    TextTable::new(head, &[8], shards.into_iter().map(row))
}

/// Describes the shards that the rows do not show.
pub(crate) fn note(run: &Run) -> Option<String> {
    let of = run.header.shards.len();
    (of > MAX_ROWS).then(|| {
        format!(
            "{MAX_ROWS} of {} shards: incomplete or limited ones first, then those with the longest send delay",
            count(of as u64)
        )
    })
}

fn row(s: &ShardFigures) -> [String; 9] {
    let ms = |us: Option<f64>| or_dash(us, |us| format!("{:.3} ms", us / 1e3));
    let clock = s.clock_offset_us.zip(s.clock_uncertainty_us);
    let clock = or_dash(clock, |(offset, uncertainty)| {
        let (offset, uncertainty) = (offset as f64 / 1e3, uncertainty as f64 / 1e3);
        format!("{offset:+.1} ± {uncertainty:.1} ms")
    });
    let health = match s.state {
        ShardState::Complete if s.limits.is_empty() => "ok",
        ShardState::Complete => "generator-limited",
        ShardState::Stopped => "stopped",
        ShardState::Failed => "failed",
        ShardState::Lost => "lost",
    };
    [
        s.shard.to_string(),
        count(s.ok + s.errors),
        count(s.errors),
        or_dash(s.achieved_per_s, |n| {
            format!("{}/s", count(n.round() as u64))
        }),
        ms(s.response_p99_us),
        ms(s.lag_p99_us),
        or_dash(s.cores_used, |n| format!("{n:.2} cores")),
        clock,
        health.to_owned(),
    ]
}
