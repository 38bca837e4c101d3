//! What each of several addresses of a target had, and what each shard of a run on several machines did.

use plimsoll_model::run::Run;

use super::table::Table;
use super::{Options, sentences};
use crate::{addresses, shards};

pub(super) fn addresses(out: &mut String, run: &Run, options: &Options) {
    if rows_below(out, addresses::HEAD, 0, addresses::rows(run), options) {
        out.push('\n');
    }
}

pub(super) fn shards(out: &mut String, run: &Run, options: &Options) {
    let last = shards::HEAD.len() - 1;
    if rows_below(out, shards::HEAD, last, shards::rows(run), options) {
        sentences(out, shards::note(run).as_deref(), options);
        out.push('\n');
    }
}

/// A table with one column of text; false: it has no rows, and is left out.
fn rows_below<const N: usize>(
    out: &mut String,
    head: [&str; N],
    text: usize,
    rows: Vec<[String; N]>,
    options: &Options,
) -> bool {
    let is_there = !rows.is_empty();
    if is_there {
        *out += &Table::new(options.width, head, &[text])
            .rows(rows)
            .to_string();
    }
    is_there
}
