//! Resolves the expectations and limits of `[call.http]` for responses.

use std::time::Duration;

use plimsoll_model::formats::units::ByteSize;
use plimsoll_model::plan::{Metric, Objective, TimeMetric};
use plimsoll_model::spec::{Problems, Spec, is_valid_field_value, is_visible_ascii, scheme_alias};

use super::refusals::RefusalRetries;
use super::response_settings::normalize_api;
use super::section::HttpSpec;
use crate::http2::DEFAULT_MAX_HEAD;

/// The maximum value of a body limit: body lengths are counted in 32 bits for each call.
const MAX_BODY_LIMIT: ByteSize = ByteSize(u32::MAX as u64);

/// The default of `retry_wait`.
const DEFAULT_RETRY_WAIT: Duration = Duration::from_secs(60);

/// The maximum of `retry_refused`.
const MAX_RETRIES: u32 = 100;

/// Rewrites `call` in the form that this version of Plimsoll writes. Older versions wrote the only model API as a
/// stream format, and left out defaults.
pub(super) fn canonicalize(mut call: HttpSpec) -> HttpSpec {
    normalize_api(&mut call);
    call.version.get_or_insert_default();
    call.max_body.get_or_insert(MAX_BODY_LIMIT);
    call.max_head.get_or_insert(DEFAULT_MAX_HEAD);
    call
}

/// Resolves the maximum size of a response's body, in bytes, and how often refused requests are sent again; checks the
/// duration of streams.
pub(super) fn resolve_limits(
    problems: &mut Problems,
    spec: &Spec,
    call: &HttpSpec,
) -> (u32, RefusalRetries) {
    let max_body = resolve_max_body(problems, call);
    check_stream_duration(problems, spec, call);
    (max_body, resolve_refusal_retries(problems, spec, call))
}

/// Resolves `retry_refused` and `retry_wait`.
fn resolve_refusal_retries(
    problems: &mut Problems,
    spec: &Spec,
    call: &HttpSpec,
) -> RefusalRetries {
    const RETRIES_KEY: &str = "call.http.retry_refused";
    const WAIT_KEY: &str = "call.http.retry_wait";
    let max_wait = call.retry_wait.map_or(DEFAULT_RETRY_WAIT, |wait| wait.0);
    let Some(max_retries) = call.retry_refused else {
        if call.retry_wait.is_some() {
            problems.add(
                WAIT_KEY,
                "no request is sent again: add retry_refused (--retry-refused)",
            );
        }
        return RefusalRetries::default();
    };
    if !(1..=MAX_RETRIES).contains(&max_retries) {
        problems.add(
            RETRIES_KEY,
            format!("{max_retries}: use 1 to {MAX_RETRIES}, or leave it out"),
        );
    }
    if max_wait.is_zero() {
        problems.add(
            WAIT_KEY,
            "0 sends requests again at once: use a duration such as \"60s\"",
        );
    }
    if spec.load.reuse.as_deref() == Some("never") {
        problems.add(
            RETRIES_KEY,
            "not used with a new connection for each call: leave it out, or keep connections",
        );
    }
    if call.websocket.is_some() {
        problems.add(
            RETRIES_KEY,
            "messages of WebSockets are not refused by a status: leave it out",
        );
    }
    RefusalRetries {
        max_retries,
        max_wait,
    }
}

/// Resolves the maximum size of a response's body, in bytes.
fn resolve_max_body(problems: &mut Problems, call: &HttpSpec) -> u32 {
    let max_body = call.max_body.unwrap_or(MAX_BODY_LIMIT).0;
    if !(1..=MAX_BODY_LIMIT.0).contains(&max_body) {
        problems.add("call.http.max_body", "out of range: use 1B to 4294967295B");
    }
    if call.expect_size.is_some_and(|size| size.0 > max_body) {
        problems.add(
            "call.http.expect_size",
            format!(
                "larger than call.http.max_body allows: at most {}",
                ByteSize(max_body)
            ),
        );
    }
    max_body as u32
}

/// Reports a target with a WebSocket scheme in a plan without `[call.http.websocket]`.
pub(super) fn check_scheme(problems: &mut Problems, spec: &Spec, call: &HttpSpec) {
    let alias = spec.target.as_deref().and_then(scheme_alias);
    let has_socket = call.websocket.is_some() || call.journey_steps().is_some();
    if let Some(scheme) = alias.filter(|_| !has_socket) {
        problems.add(
            "target",
            format!("{scheme}:// is for WebSockets: add [call.http.websocket], or write http:// or https://"),
        );
    }
}

/// Checks that responses are streams, and that `stream_duration` is below the deadline.
fn check_stream_duration(problems: &mut Problems, spec: &Spec, call: &HttpSpec) {
    const STREAM_DURATION_KEY: &str = "call.http.stream_duration";
    let Some(lasts) = call.stream_duration else {
        return;
    };
    if lasts.0.is_zero() {
        problems.add(
            STREAM_DURATION_KEY,
            "0 ends every stream before it begins: use a time such as \"30s\"",
        );
    }
    if !call.reads_events() && call.websocket.is_none() {
        problems.add(
            STREAM_DURATION_KEY,
            "only for streams: needs call.http.stream, such as \"sse\", or call.http.websocket",
        );
    }
    if call.frames().is_some() || call.conversation.is_some() {
        problems.add(
            STREAM_DURATION_KEY,
            "the calls of a user end with their answers: leave it out",
        );
    }
    if spec.deadline().is_some_and(|deadline| deadline <= lasts.0) {
        problems.add(
            STREAM_DURATION_KEY,
            format!("streams of {lasts} would exceed their deadline: give a longer deadline, or \"none\""),
        );
    }
}

/// Returns whether endless streams are ended with the load: the plan does not define their end, and has no objective
/// on their duration.
pub(super) fn streams_end_with_load(spec: &Spec, call: &HttpSpec) -> bool {
    let is_raw = matches!(call.stream_format(), Some("sse" | "ndjson"));
    let has_end = call.stream_until.is_some() || call.stream_duration.is_some();
    let is_about_length = |objective: Objective| {
        matches!(
            objective.metric,
            Metric::Time(TimeMetric::Response | TimeMetric::Service, _)
        )
    };
    is_raw && !has_end && !spec.objectives().into_iter().any(is_about_length)
}

/// Resolves the statuses of successful calls, and checks the other expectations.
pub(super) fn resolve_expected_statuses(
    problems: &mut Problems,
    call: &HttpSpec,
    method: &str,
) -> Vec<(u16, u16)> {
    for (name, values) in &call.expect_headers {
        let are_printable = values
            .as_slice()
            .iter()
            .all(|value| is_valid_field_value(value));
        if !is_visible_ascii(name)
            || name.contains(':')
            || !are_printable
            || values.as_slice().is_empty()
        {
            problems.add(
                format!("call.http.expect_headers.{name}"),
                "not a header field: use a name without blanks, and a value of printable ASCII",
            );
        }
    }
    if call.expect_body.as_deref() == Some("") {
        problems.add(
            "call.http.expect_body",
            "empty, which every body contains: write a text, or leave it out",
        );
    }
    if call.expect_size.is_some() && (call.websocket.is_some() || call.reads_events()) {
        problems.add(
            "call.http.expect_size",
            "not used with streams or WebSockets: leave it out",
        );
    }
    let looks = call.expect_body.is_some() || call.expect_size.is_some() || call.reads_events();
    if method == "HEAD" && looks {
        problems.add(
            "call.http.method",
            "answers to HEAD have no body to check: use GET",
        );
    }
    match &call.expect {
        None => vec![(200, 299)],
        Some(statuses) if statuses.is_empty() => {
            problems.add(
                "call.http.expect",
                "empty, so no call could succeed: write [200], or leave it out",
            );
            Vec::new()
        }
        Some(statuses) => statuses.iter().map(|s| (s.from, s.to)).collect(),
    }
}

/// Reports template fields in texts that can't vary between calls.
pub(super) fn reject_template_fields(problems: &mut Problems, call: &HttpSpec) {
    let key = |key: &str| format!("call.http.{key}");
    for (name, text) in [
        ("stream_until", &call.stream_until),
        ("stream_error", &call.stream_error),
        ("expect_body", &call.expect_body),
    ] {
        problems.reject_template_fields(key(name), text.as_deref());
    }
    for (name, values) in &call.expect_headers {
        for value in values.as_slice() {
            problems.reject_template_fields(key(&format!("expect_headers.{name}")), Some(value));
        }
    }
    if let Some(socket) = &call.websocket {
        problems.reject_template_fields(key("websocket.welcome"), socket.welcome.as_deref());
    }
    for (nth, frame) in call.frames().into_iter().flatten().enumerate() {
        let key = |name: &str| key(&format!("websocket.script.{nth}.{name}"));
        problems.reject_template_fields(key("until"), frame.until.as_deref());
        problems.reject_template_fields(key("expect"), frame.expect.as_deref());
    }
}

/// Returns the header fields that a response must have, one for each value, with names in lower case.
pub(super) fn required_headers(call: &HttpSpec) -> Vec<(String, String)> {
    let all = call.expect_headers.iter();
    let all = all.flat_map(|(name, values)| {
        let one = |value: &String| (name.to_ascii_lowercase(), value.clone());
        values.as_slice().iter().map(one)
    });
    all.collect()
}
