//! What became of calls and connections at each of a name's addresses.

use plimsoll_model::run::Run;

use super::Options;
use super::table::Table;
use crate::quantity::count;

pub(super) fn addresses(out: &mut String, run: &Run, options: &Options) {
    let addresses = &run.summary.total.addresses;
    if addresses.is_empty() {
        return;
    }
    let head = [
        "address",
        "calls",
        "errors",
        "connections",
        "failed to connect",
    ];
    let mut table = Table::new(options.width, head, &[0]);
    for a in addresses {
        table.row(vec![
            a.address.clone(),
            count(a.counts.calls),
            count(a.counts.errors),
            count(a.counts.connections),
            count(a.counts.connect_failures),
        ]);
    }
    out.push_str(&table.to_string());
    out.push('\n');
}
