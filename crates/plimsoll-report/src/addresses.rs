//! What became of calls and connections at each of a name's addresses.

use plimsoll_model::run::Run;

use crate::quantity::count;
use crate::table::Table;

/// A row an address; none where there is but one.
pub(crate) fn table(run: &Run) -> Table {
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
    Table::new(head, &[0], rows)
}
