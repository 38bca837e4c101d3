//! What each of several addresses of a target had, and what each shard of a run on several machines did.

use plimsoll_model::run::Run;

use super::{Options, sentences};
use crate::{addresses, shards};

pub(super) fn addresses(out: &mut String, run: &Run, options: &Options) {
    let table = addresses::table(run);
    if !table.rows.is_empty() {
        *out += &(table.on_terminal(options.width) + "\n");
    }
}

pub(super) fn shards(out: &mut String, run: &Run, options: &Options) {
    let table = shards::table(run);
    if !table.rows.is_empty() {
        *out += &table.on_terminal(options.width);
        sentences(out, shards::note(run), options);
        out.push('\n');
    }
}
