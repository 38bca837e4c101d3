//! The table of calls and connections at each address of the target's name, for all reports.

use plimsoll_model::runs::run::Run;

use crate::quantity::count;
use crate::sections::table::TextTable;

/// Returns a row for each address; no rows if there is only one address.
pub(crate) fn table(run: &Run) -> TextTable {
    let head = [
        "address",
        "calls",
        "errors",
        "connections",
        "failed to connect",
    ];
    let rows = run.summary.total.addresses.iter().map(|a| {
        [
            a.address.clone(),
            count(a.counts.calls),
            count(a.counts.errors),
            count(a.counts.connections),
            count(a.counts.connect_failures),
        ]
    });
    TextTable::new(head, &[0], rows)
}
