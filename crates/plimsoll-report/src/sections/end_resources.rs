//! The table of resources that client and server used during the calls.

use plimsoll_model::runs::run::summary::ResourcesSummary;
use plimsoll_model::runs::run::{Run, StageSummary};

use crate::quantity::{bytes, count, nonzero_or_dash, or_dash, plural, time};
use crate::sections::table::TextTable;

/// Returns a row for each end (client or server) whose resources are known.
pub(crate) fn table(run: &Run) -> TextTable {
    let head = [
        "process",
        "CPU a call",
        "CPU user",
        "CPU system",
        "memory",
        "open files",
        "threads",
    ];
    let rows = ends_with_resources(&run.summary.total).map(|(name, used)| {
        [
            name.to_owned(),
            or_dash(used.cpu_us_per_call, |us| format!("{us:.2} µs")),
            time(used.cpu_user_us),
            or_dash(used.cpu_system_us, time),
            nonzero_or_dash(used.rss_bytes_max, bytes),
            nonzero_or_dash(used.descriptors_max, count),
            nonzero_or_dash(used.threads_max, count),
        ]
    });
    TextTable::new(head, &[], rows)
}

/// Returns the ends (client or server) whose resources are known.
fn ends_with_resources(
    total: &StageSummary,
) -> impl Iterator<Item = (&'static str, ResourcesSummary)> {
    let ends = [("client", total.client), ("server", total.server)];
    ends.into_iter()
        .filter_map(|(name, used)| Some((name, used?)))
}

/// Returns notes on the table's figures.
pub(crate) fn notes(run: &Run) -> Vec<String> {
    // The process's own growth dominates below this number of connections.
    const MIN_MEMORY_CONNECTIONS: u64 = 1_000;
    let view = run.header.live_view_cpu_us.map(|us| {
        format!(
            "client CPU includes {} of the live view, warm-up included",
            time(us as f64)
        )
    });
    let mut notes = Vec::from_iter(view);
    let total = &run.summary.total;
    // If memory was measured while connections were idle, that more precise figure is reported elsewhere.
    if total.connections_open_max >= MIN_MEMORY_CONNECTIONS && run.summary.memory.is_none() {
        let grown = |r: ResourcesSummary| {
            let grown = r.rss_bytes_max.saturating_sub(r.rss_bytes_before?);
            Some(grown / total.connections_open_max)
        };
        let each: Vec<String> = ends_with_resources(total)
            .filter_map(|(name, r)| Some(format!("{name} {}", bytes(grown(r)?))))
            .collect();
        if !each.is_empty() {
            notes.push(format!(
                "memory a connection, over {}: {} (growth of the process since before the first one)",
                plural(total.connections_open_max, "connection"),
                each.join(", ")
            ));
        }
    }
    notes
}
