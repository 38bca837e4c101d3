//! What held connections cost in memory.

use std::fmt::Write;

use plimsoll_model::run::Run;

use super::table::{Table, wrap};
use super::{Options, row};
use crate::memory::{HEAD, NOTE, rows};
use crate::quantity::count;

pub(super) fn memory(out: &mut String, run: &Run, options: &Options) {
    let Some(memory) = &run.summary.memory else {
        return;
    };
    let held = format!(
        "{} at rest when memory was first read, {} when it was last",
        count(memory.held.connections),
        count(memory.last.connections)
    );
    row(out, "held", &held, options);
    out.push('\n');
    let table = Table::new(options.width, HEAD, &[0]).rows(rows(memory));
    out.push_str(&table.to_string());
    for line in wrap(NOTE, options.width) {
        let _ = writeln!(out, "{line}");
    }
    out.push('\n');
}
