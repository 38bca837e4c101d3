//! What client and server used while the calls ran, as every report shows it.

use plimsoll_model::run::Run;

use crate::quantity::{bytes, count, known, or_dash, time};
use crate::table::Table;

/// A row an end of which it is known.
pub(crate) fn table(run: &Run) -> Table {
    let head = [
        "process",
        "CPU a call",
        "CPU user",
        "CPU system",
        "memory",
        "descriptors",
        "threads",
    ];
    let total = &run.summary.total;
    let ends = [("client", total.client), ("server", total.server)];
    let rows = ends.into_iter().filter_map(|(name, used)| {
        let used = used?;
        Some([
            name.to_owned(),
            or_dash(used.cpu_us_per_call, |us| format!("{us:.2} µs")),
            time(used.cpu_user_us),
            or_dash(used.cpu_system_us, time),
            known(used.rss_bytes_max, bytes),
            known(used.descriptors_max, count),
            known(used.threads_max, count),
        ])
    });
    Table::new(head, &[], rows)
}
