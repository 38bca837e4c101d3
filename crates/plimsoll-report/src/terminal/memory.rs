//! Renders the memory that idle connections hold.

use plimsoll_model::runs::run::Run;

use super::{TerminalOptions, write_facts, write_wrapped};
use crate::sections::memory::{MEMORY_NOTE, describe_open_connections, table};

pub(super) fn write_memory(out: &mut String, run: &Run, options: &TerminalOptions) {
    let Some(memory) = &run.summary.memory else {
        return;
    };
    write_facts(out, [describe_open_connections(memory)], options);
    out.push('\n');
    *out += &table(memory).render(options.width);
    write_wrapped(out, MEMORY_NOTE, options);
    out.push('\n');
}
