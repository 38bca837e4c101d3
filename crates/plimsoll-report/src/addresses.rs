//! What became of calls and connections at each of a name's addresses.

use plimsoll_model::run::Run;

use crate::quantity::count;

/// The columns of [`rows`].
pub(crate) const HEAD: [&str; 5] = [
    "address",
    "calls",
    "errors",
    "connections",
    "failed to connect",
];

/// A row an address; none where there is but one.
pub(crate) fn rows(run: &Run) -> Vec<[String; 5]> {
    let addresses = run.summary.total.addresses.iter();
    let rows = addresses.map(|a| {
        [
            a.address.clone(),
            count(a.counts.calls),
            count(a.counts.errors),
            count(a.counts.connections),
            count(a.counts.connect_failures),
        ]
    });
    rows.collect()
}
