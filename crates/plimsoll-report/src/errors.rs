//! What calls and connections failed with, as every report shows it.

use plimsoll_model::run::summary::ErrorSummary;

use crate::quantity::{count, share};
use crate::table::Table;

/// A row a code, below the name of what happened; `whole`: the calls, or attempts, of which these are some.
pub(crate) fn table(what: &str, errors: &[ErrorSummary], whole: u64) -> Table {
    let head = [what, "count", "share", "whose", "what happened"];
    let rows = errors.iter().map(|e| {
        [
            e.code.clone(),
            count(e.count),
            share(e.count, whole),
            e.blame.clone(),
            e.explanation.clone(),
        ]
    });
    Table::new(head, &[0, 3, 4], rows)
}
