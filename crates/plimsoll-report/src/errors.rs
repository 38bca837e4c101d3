//! What calls and connections failed with, as every report shows it.

use plimsoll_model::run::Run;
use plimsoll_model::run::summary::ErrorSummary;

use crate::quantity::{count, share};
use crate::table::Table;

/// The errors of calls.
pub(crate) fn calls(run: &Run) -> Table {
    let total = &run.summary.total;
    table("error", &total.errors_by_code, total.ok + total.errors)
}

/// Calls that the run's end cut off.
pub(crate) fn cut_off(run: &Run) -> Table {
    let total = &run.summary.total;
    table("cut off", &total.cut_off_by_code, total.due)
}

/// Calls that say nothing of the target: those, and the ones that were never sent.
pub(crate) fn given_up(run: &Run) -> Table {
    let total = &run.summary.total;
    let mut given_up = table("given up", &total.cut_off_by_code, total.due);
    if total.not_started > 0 {
        given_up.rows.push(vec![
            "not started".to_owned(),
            count(total.not_started),
            share(total.not_started, total.due),
            "client".to_owned(),
            "due, and never sent before the run ended".to_owned(),
        ]);
    }
    given_up
}

/// Attempts at a connection that failed, apart from calls.
pub(crate) fn connections(run: &Run) -> Table {
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

/// A row a code, below the name of what happened; `whole`: the calls, or attempts, of which these are some.
fn table(what: &str, errors: &[ErrorSummary], whole: u64) -> Table {
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

/// What servers, the system and libraries said of the codes in `errors`.
pub(crate) fn details(run: &Run, errors: &Table) -> Vec<String> {
    let details = run.summary.details.iter();
    let told = details.filter(|detail| errors.rows.iter().any(|row| row[0] == detail.code.code()));
    told.map(|detail| format!("{}: {}", detail.code.code(), printable(&detail.text)))
        .collect()
}

/// Text from the network must not steer the terminal, and stays in its line.
fn printable(text: &str) -> String {
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
