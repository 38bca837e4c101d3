//! The slowest calls of a run.

use plimsoll_model::run::Run;

use super::Options;
use super::table::Table;
use crate::slowest;

pub(super) fn slowest(out: &mut String, run: &Run, options: &Options) {
    let rows = slowest::rows(run);
    if rows.is_empty() {
        return;
    }
    let table = Table::new(options.width, slowest::HEAD, &slowest::TEXTS);
    // Trace ids are copied.
    *out += &table.unbroken().rows(rows).to_string();
    out.push('\n');
}
