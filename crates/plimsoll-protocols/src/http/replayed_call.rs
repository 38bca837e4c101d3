//! Resolves HTTP calls that replay the lines of a log or a recording: the parts of their requests that the lines set.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_model::rows::template::{FieldScope, RowColumn, Rows, Template};
use plimsoll_model::spec::{Problems, Spec, call_path};

use super::call::HttpCall;
use super::envelopes::sends_envelopes;
use super::replayed_parts::{ReplayedParts, expects_body, parse_fields};
use super::section::HttpSpec;

/// The column with the path of a request.
const PATH_COLUMN: &str = "path";
const METHOD_COLUMN: &str = "method";
const HEADERS_COLUMN: &str = "headers";
const BODY_COLUMN: &str = "body";

/// The templates for the parts of each line.
const LINE_PATH_TEMPLATE: &str = "{{row.path}}";
const LINE_METHOD_TEMPLATE: &str = "{{row.method}}";
const LINE_HEADERS_TEMPLATE: &str = "{{row.headers}}";
const LINE_BODY_TEMPLATE: &str = "{{row.body}}";

const REPLAY_KEY: &str = "load.replay";

/// A call whose requests are set by the lines of a replayed file.
pub(super) struct ReplayedCall {
    /// The call with templates for the parts that the lines set.
    pub(super) call: HttpSpec,
    parts: ReplayedParts,
    has_bodies: bool,
}

/// Returns whether each call gets its path from its line, because neither the plan nor the target sets one.
fn has_line_paths(spec: &Spec, call: &HttpSpec, rows: Option<&Rows>) -> bool {
    let in_url = spec.target.as_deref().and_then(call_path);
    let has_own = call
        .path
        .as_deref()
        .is_some_and(|path| path != LINE_PATH_TEMPLATE)
        || in_url.is_some_and(|path| !matches!(path, "" | "/"))
        || call.websocket.is_some()
        || spec.rows.is_some();
    !has_own && rows.is_some_and(|rows| rows.column(PATH_COLUMN).is_some())
}

/// Returns the path of the calls: the template for the line's path if neither the plan nor the target has a path, else
/// `path`.
pub(super) fn resolve_path(
    spec: &Spec,
    call: &HttpSpec,
    rows: Option<&Rows>,
    path: Option<String>,
) -> Option<String> {
    if has_line_paths(spec, call, rows) && spec.load.recording_key().is_some() {
        Some(LINE_PATH_TEMPLATE.to_owned())
    } else {
        path
    }
}

/// Returns the call with the methods, header fields and bodies of the lines. Returns `None` if the lines set at most
/// the path. Reports lines that the call can't send unchanged.
pub(super) fn resolve_replayed_call(
    problems: &mut Problems,
    spec: &Spec,
    call: &HttpSpec,
    rows: Option<&Rows>,
) -> Option<ReplayedCall> {
    spec.load.recording_key()?;
    let rows = rows.filter(|_| has_line_paths(spec, call, rows))?;
    let own_method = call
        .method
        .as_deref()
        .filter(|method| *method != LINE_METHOD_TEMPLATE);
    let has_own_body = call
        .body
        .as_deref()
        .is_some_and(|body| body != LINE_BODY_TEMPLATE)
        || call.body_file.is_some()
        || call.form.is_some()
        || sends_envelopes(call);
    let filled = |name: &str| {
        rows.column(name)
            .filter(|column| column.value_length_bounds().1 > 0)
    };
    let methods = distinct_methods(problems, rows.column(METHOD_COLUMN))?;
    if has_own_body || own_method.is_some() {
        let usual = if has_own_body { "POST" } else { "GET" };
        check_method(problems, own_method.unwrap_or(usual), &methods);
    }
    if has_own_body {
        return None;
    }
    let has_bodies = filled(BODY_COLUMN).is_some();
    let has_headers = filled(HEADERS_COLUMN).is_some_and(|column| check_headers(problems, column));
    let mut replayed = ReplayedCall {
        call: HttpSpec {
            path: Some(LINE_PATH_TEMPLATE.to_owned()),
            ..call.clone()
        },
        parts: ReplayedParts::default(),
        has_bodies,
    };
    let parse = |typed: &str| {
        let scope = FieldScope {
            rows: Some(rows),
            captured: &[],
        };
        Template::parse(typed, &mut 0, scope)
    };
    if has_headers {
        replayed.parts.headers = problems.ok_or_report(REPLAY_KEY, parse(LINE_HEADERS_TEMPLATE));
    }
    if has_bodies {
        replayed.call.body = Some(LINE_BODY_TEMPLATE.to_owned());
    }
    if own_method.is_none() {
        let carrier = methods
            .iter()
            .find(|method| expects_body(method.as_bytes()));
        if let Some(method) = carrier.filter(|_| !has_bodies) {
            problems.add(REPLAY_KEY, format!(
                "the file has requests of {method}, and no column `{BODY_COLUMN}` with what they sent: leave them out by the filter \"method!={method}\" (load.filter), or give all calls a method and body (call.http.method, call.http.body)"
            ));
        }
        let mut all = methods.iter();
        replayed.call.method = match (all.next(), all.next()) {
            (Some(only), None) => Some(only.clone()),
            (Some(_), Some(_)) => {
                check_mixed_methods(problems, &methods);
                replayed.parts.method =
                    problems.ok_or_report(REPLAY_KEY, parse(LINE_METHOD_TEMPLATE));
                // GET is a placeholder for the checks: each line sets its own method.
                Some("GET".to_owned())
            }
            (None, _) => call
                .method
                .clone()
                .filter(|method| method != LINE_METHOD_TEMPLATE),
        };
    }
    Some(replayed)
}

impl ReplayedCall {
    /// Sets the parts of the resolved call that differ from line to line.
    pub(super) fn apply_to_call(mut self, call: &mut HttpCall, typed: &HttpSpec) {
        let parts = &self.parts;
        if parts.method.is_none() && parts.headers.is_none() && !self.has_bodies {
            return;
        }
        if parts.method.is_some() {
            call.method = LINE_METHOD_TEMPLATE.to_owned();
        }
        let mut names = typed.headers.keys();
        if !names.any(|name| name.eq_ignore_ascii_case("content-type")) {
            // Each line sets the content type of its body.
            call.headers.retain(|(name, _)| name != "content-type");
        }
        let varying = call.varying.iter().flat_map(|all| &all.headers);
        let names = call.headers.iter().map(|(name, _)| name);
        let names = names.chain(varying.map(|field| &field.name));
        self.parts.own_names = names.cloned().collect();
        call.replayed = Some(self.parts);
    }
}

/// Returns the different methods of the lines; `None` if one of them is invalid.
fn distinct_methods(
    problems: &mut Problems,
    column: Option<&Arc<RowColumn>>,
) -> Option<BTreeSet<String>> {
    let mut methods = BTreeSet::new();
    for method in column.into_iter().flat_map(|column| column.values()) {
        if methods.contains(&*method) {
            continue;
        }
        let is_method =
            !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
        if !is_method {
            problems.add(
                REPLAY_KEY,
                format!("column `{METHOD_COLUMN}`: {method:?} is not a method such as GET"),
            );
            return None;
        }
        methods.insert(method.into_owned());
    }
    Some(methods)
}

/// Reports lines whose method differs from the method of the call.
fn check_method(problems: &mut Problems, method: &str, methods: &BTreeSet<String>) {
    if let Some(other) = methods.iter().find(|other| *other != method) {
        problems.add(REPLAY_KEY, format!(
            "the file has requests of {other}, and this call's method is {method}: replay those of one method with the filter \"method={method}\" (load.filter)"
        ));
    }
}

/// Reports methods that can't be combined with other methods in one load.
fn check_mixed_methods(problems: &mut Problems, methods: &BTreeSet<String>) {
    for (method, reason) in [
        ("HEAD", "whose answers have no body"),
        ("CONNECT", "which opens a tunnel"),
    ] {
        if methods.contains(method) {
            problems.add(REPLAY_KEY, format!(
                "the file has requests of {method}, {reason}, and of other methods: leave them out by the filter \"method!={method}\" (load.filter)"
            ));
        }
    }
}

/// Checks that the header fields of all lines can be sent.
fn check_headers(problems: &mut Problems, column: &RowColumn) -> bool {
    for (number, json) in (1..).zip(column.values()) {
        if let Err(problem) = parse_fields(&json) {
            problems.add(
                REPLAY_KEY,
                format!("column `{HEADERS_COLUMN}`, row {number}: {problem}"),
            );
            return false;
        }
    }
    true
}
