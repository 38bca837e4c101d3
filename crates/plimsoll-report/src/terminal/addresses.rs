//! What became of calls and connections at each of a name's addresses.

use plimsoll_model::run::Run;

use super::Options;
use super::table::{Align, Table};
use crate::quantity::count;

pub(super) fn addresses(out: &mut String, run: &Run, options: &Options) {
    let addresses = &run.summary.total.addresses;
    if addresses.is_empty() {
        return;
    }
    let mut table = Table::new(options.width);
    let head = [
        "address",
        "calls",
        "errors",
        "connections",
        "failed to connect",
    ];
    table.head(head.map(str::to_owned).to_vec(), |i| {
        if i == 0 { Align::Left } else { Align::Right }
    });
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
