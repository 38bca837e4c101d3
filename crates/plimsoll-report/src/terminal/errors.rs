//! What calls and connections failed with.

use plimsoll_model::run::Run;
use plimsoll_model::run::summary::ErrorSummary;

use super::{Options, sentences};
use crate::errors::table;

pub(super) fn errors(out: &mut String, run: &Run, options: &Options) {
    let summary = &run.summary;
    let t = &summary.total;
    let mut show = |title: &str, errors: &[ErrorSummary], whole: u64| {
        if errors.is_empty() {
            return;
        }
        *out += &table(title, errors, whole).on_terminal(options.width);
        for detail in &summary.details {
            let code = detail.code.code();
            if errors.iter().any(|e| e.code == code) {
                let line = format!("{code}: {}", printable(&detail.text));
                sentences(out, [line], options);
            }
        }
        out.push('\n');
    };
    show("error", &t.errors_by_code, t.ok + t.errors);
    show("cut off", &t.cut_off_by_code, t.due);
    // Attempts at shared connections happen in any stage, and before the first call.
    let mut failures: Vec<ErrorSummary> = Vec::new();
    let mut attempts = 0;
    for stage in &summary.stages {
        attempts += stage.connections_full + stage.connections_resumed;
        for e in &stage.connect_failures_by_code {
            attempts += e.count;
            match failures.iter_mut().find(|f| f.code == e.code) {
                Some(known) => known.count += e.count,
                None => failures.push(e.clone()),
            }
        }
    }
    show("connection failed", &failures, attempts);
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
