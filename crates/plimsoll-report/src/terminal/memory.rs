//! Renders the memory that idle connections hold.

use plimsoll_model::run::Run;

use super::{TerminalOptions, lines, told};
use crate::memory::{MEMORY_NOTE, held, table};

pub(super) fn memory(out: &mut String, run: &Run, options: &TerminalOptions) {
    let Some(memory) = &run.summary.memory else {
        return;
    };
    told(out, [held(memory)], options);
    out.push('\n');
    *out += &table(memory).on_terminal(options.width);
    lines(out, MEMORY_NOTE, options);
    out.push('\n');
}
