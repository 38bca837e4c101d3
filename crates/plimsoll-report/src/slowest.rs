//! The slowest calls of a run, and the ids under which traces show what became of them.

use plimsoll_model::run::Run;

use crate::quantity::time;

/// The columns of [`rows`].
pub(crate) const HEAD: [&str; 6] = [
    "slowest calls",
    "service time",
    "due at",
    "outcome",
    "connection",
    "trace id",
];

/// Those of them that are text.
pub(crate) const TEXTS: [usize; 3] = [3, 4, 5];

/// A row a call, the slowest first; none where requests carried no trace ids.
pub(crate) fn rows(run: &Run) -> Vec<[String; 6]> {
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
    rows.collect()
}
