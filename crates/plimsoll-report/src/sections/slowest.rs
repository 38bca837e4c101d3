//! The table of a run's slowest calls, with the ids that identify them in traces.

use plimsoll_model::runs::run::Run;

use crate::quantity::time;
use crate::sections::table::TextTable;

/// Returns a row for each call, the slowest first; no rows if requests carried no trace ids.
pub(crate) fn table(run: &Run) -> TextTable {
    let rows = run.summary.slowest.iter().map(|call| {
        [
            time(call.response_us),
            time(call.service_us),
            time(call.due_us),
            call.code.to_owned(),
            match call.connection {
                Some(connection) => format!("{connection} of worker {}", call.worker),
                None => format!("closed, of worker {}", call.worker),
            },
            call.trace_id.to_string(),
        ]
    });
    calls_table(rows)
}

pub(crate) fn calls_table(rows: impl IntoIterator<Item = [String; 6]>) -> TextTable {
    let head = [
        "slowest calls",
        "service time",
        "scheduled",
        "outcome",
        "connection",
        "trace id",
    ];
    TextTable::new(head, &[3, 4, 5], rows)
}
