//! The tables of failures of calls and connections.

use plimsoll_model::runs::run::Run;
use plimsoll_model::runs::run::summary::ErrorSummary;

use crate::quantity::{count, share};
use crate::sections::table::TextTable;

/// Returns the errors of calls.
pub(crate) fn call_errors(run: &Run) -> TextTable {
    let total = &run.summary.total;
    table("error", &total.errors_by_code, total.ok + total.errors)
}

/// Returns the calls that the end of the run cut off.
pub(crate) fn cut_off_call_count(run: &Run) -> TextTable {
    let total = &run.summary.total;
    table("cut off", &total.cut_off_by_code, total.due)
}

/// Returns the abandoned calls, which were cut off or never sent and say nothing about the target.
pub(crate) fn abandoned_calls(run: &Run) -> TextTable {
    let total = &run.summary.total;
    let mut given_up = table("abandoned", &total.cut_off_by_code, total.due);
    if total.not_started > 0 {
        given_up.rows.push(vec![
            "not started".to_owned(),
            count(total.not_started),
            share(total.not_started, total.due),
            "client".to_owned(),
            "scheduled, and never sent before the run ended".to_owned(),
        ]);
    }
    given_up
}

/// Returns failed attempts to connect, which are not calls.
pub(crate) fn connection_errors(run: &Run) -> TextTable {
    // Attempts at shared connections happen in any stage, and before the first call.
    let mut failures: Vec<ErrorSummary> = Vec::new();
    let mut attempts = 0;
    for stage in &run.summary.stages {
        attempts += stage.connections_full + stage.connections_resumed;
        for e in &stage.connect_failures_by_code {
            attempts += e.count;
            match failures.iter_mut().find(|f| f.code == e.code) {
                Some(known) => known.count += e.count,
                None => failures.push(e.clone()),
            }
        }
    }
    table("connection failed", &failures, attempts)
}

/// Returns a row for each error code. `what`: the heading of the codes; `whole`: the total of calls or attempts.
fn table(what: &str, errors: &[ErrorSummary], whole: u64) -> TextTable {
    let head = [what, "count", "share", "source", "what happened"];
    let rows = errors.iter().map(|e| {
        [
            e.code.clone(),
            count(e.count),
            share(e.count, whole),
            source_label(e).to_owned(),
            e.explanation.clone(),
        ]
    });
    TextTable::new(head, &[0, 3, 4], rows)
}

/// Error codes by which a target refuses the request itself.
const REFUSED_REQUEST_CODES: [&str; 14] = [
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "UNIMPLEMENTED",
    "HTTP_400",
    "HTTP_401",
    "HTTP_403",
    "HTTP_404",
    "HTTP_405",
    "HTTP_413",
    "HTTP_415",
    "HTTP_422",
];

/// Returns the label of a failure's source, as shown in the tables.
fn source_label(e: &ErrorSummary) -> &str {
    if REFUSED_REQUEST_CODES.contains(&e.code.as_str()) {
        "request"
    } else {
        &e.blame
    }
}

/// Returns the error messages that servers, the system and libraries gave for the codes in `errors`.
pub(crate) fn error_messages(run: &Run, errors: &TextTable) -> Vec<String> {
    let details = run.summary.details.iter();
    let told = details.filter(|detail| errors.rows.iter().any(|row| row[0] == detail.code.code()));
    told.map(|detail| format!("{}: {}", detail.code.code(), escape_controls(&detail.text)))
        .collect()
}

/// Escapes text from the network, so that it cannot control the terminal or break lines.
fn escape_controls(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' | '\n' | '\r' => line.extend(c.escape_default()),
            c if c.is_control() => line.push(char::REPLACEMENT_CHARACTER),
            c => line.push(c),
        }
    }
    line
}
