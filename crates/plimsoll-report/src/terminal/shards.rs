//! What each shard of a run on several machines did.

use plimsoll_model::run::Run;

use super::table::Table;
use super::{Options, sentences};
use crate::shards;

pub(super) fn shards(out: &mut String, run: &Run, options: &Options) {
    let rows = shards::rows(run);
    if rows.is_empty() {
        return;
    }
    let last = shards::HEAD.len() - 1;
    let mut table = Table::new(options.width, shards::HEAD, &[last]);
    for row in rows {
        table.row(row.to_vec());
    }
    out.push_str(&table.to_string());
    sentences(out, shards::note(run).as_deref(), options);
    out.push('\n');
}
