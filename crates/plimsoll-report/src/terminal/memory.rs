//! What held connections cost in memory.

use plimsoll_model::run::Run;

use super::{Options, lines, row};
use crate::memory::{NOTE, table};
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
    *out += &table(memory).on_terminal(options.width);
    lines(out, NOTE, options);
    out.push('\n');
}
