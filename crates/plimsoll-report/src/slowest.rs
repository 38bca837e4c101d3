//! The slowest calls of a run, and the ids under which traces show what became of them.

use plimsoll_model::run::Run;

use crate::quantity::time;
use crate::table::Table;

/// A row a call, the slowest first; none where requests carried no trace ids.
pub(crate) fn table(run: &Run) -> Table {
    let rows = run.summary.slowest.iter().map(|call| {
        [
            time(call.response_us),
            time(call.service_us),
            time(call.due_us),
            call.code.to_owned(),
            match call.connection {
                Some(connection) => format!("{connection} of worker {}", call.worker),
                None => format!("lost, of worker {}", call.worker),
            },
            call.trace_id.to_string(),
        ]
    });
    of(rows)
}

pub(crate) fn of(rows: impl IntoIterator<Item = [String; 6]>) -> Table {
    let head = [
        "slowest calls",
        "service time",
        "due at",
        "outcome",
        "connection",
        "trace id",
    ];
    Table::new(head, &[3, 4, 5], rows)
}
