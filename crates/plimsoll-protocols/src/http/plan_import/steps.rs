//! Builds the steps of a plan from recorded exchanges, in the order in which the requests were sent.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_model::formats::redaction;

use super::answer_values::response_cookies;
use super::correlation::ValueCorrelator;
use super::draft::{HeaderText, PartDraft, StepDraft};
use super::exchange::{
    RecordedExchange, RecordedPart, RequestBody, find_header, origin_host, split_url,
};
use super::request_parts::{find_body_values, find_path_values};
use super::request_value::{RequestValue, ValueSyntax};
use super::secrets::{SecretPlaceholders, is_secret_under_name};
use super::selection::RecordedTraffic;
use super::template_text::TemplateText;
use super::value_classes::is_credential;
use crate::journey::has_only_template_fields;

/// The minimum length of a pause that is kept.
const MIN_KEPT_PAUSE: Duration = Duration::from_millis(50);
/// The maximum length of a step's name, in characters.
const MAX_STEP_NAME_CHARS: usize = 80;

/// Header fields that browsers and HTTP clients set on their own.
const DROPPED_HEADERS: [&str; 49] = [
    "accept-encoding",
    "accept-language",
    "alt-used",
    "baggage",
    "cache-control",
    "connection",
    "content-length",
    "cookie",
    "date",
    "device-memory",
    "dnt",
    "downlink",
    "dpr",
    "ect",
    "expect",
    "forwarded",
    "host",
    "if-modified-since",
    "if-none-match",
    "keep-alive",
    "newrelic",
    "origin",
    "pragma",
    "priority",
    "proxy-authorization",
    "proxy-connection",
    "purpose",
    "referer",
    "rtt",
    "save-data",
    "sentry-trace",
    "te",
    "trace-id",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "upgrade-insecure-requests",
    "user-agent",
    "via",
    "viewport-width",
    "width",
    "x-client-data",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
];

/// Header fields whose values never come from responses.
const LITERAL_HEADERS: [&str; 4] = ["accept", "content-type", "origin", "x-requested-with"];

/// Header fields with an id that is different in each request.
const REQUEST_ID_HEADERS: [&str; 5] = [
    "idempotency-key",
    "x-correlation-id",
    "x-idempotency-key",
    "x-request-id",
    "x-trace-id",
];

/// Prefixes of cookie names that scripts use to count visitors.
const ANALYTICS_COOKIE_PREFIXES: [&str; 16] = [
    "OptanonAlertBoxClosed",
    "OptanonConsent",
    "__gads",
    "__utm",
    "_clck",
    "_clsk",
    "_fbp",
    "_ga",
    "_gcl",
    "_gid",
    "_hj",
    "_pk_",
    "ajs_",
    "amplitude_",
    "intercom-",
    "mp_",
];

/// The steps of a plan, and the notes and secrets that belong to them.
#[derive(Debug)]
pub(super) struct StepList {
    pub(super) steps: Vec<StepDraft>,
    pub(super) secrets: SecretPlaceholders,
    /// The number of values that later steps take from responses.
    pub(super) taken: usize,
    /// The names of cookies that were left out because they only count visitors.
    pub(super) counting_cookies: BTreeSet<String>,
}

/// Builds the steps of the plan with this name.
pub(super) fn build_steps(plan: &str, recording: &RecordedTraffic) -> StepList {
    let mut builder = StepBuilder {
        correlator: ValueCorrelator::new(SecretPlaceholders::new(plan)),
        jar: HashMap::new(),
        names: HashSet::new(),
        last_end: None,
        counting_cookies: BTreeSet::new(),
    };
    let mut steps: Vec<StepDraft> = Vec::new();
    for exchange in &recording.exchanges {
        let mut step = builder.build_step(exchange);
        if exchange.origin != recording.origin {
            step.target = Some(exchange.origin.clone());
            step.is_http2 = recording.is_mostly_http2(&exchange.origin);
        }
        steps.push(step);
        builder.correlator.add_answer(exchange);
        builder.update_cookie_jar(exchange);
    }
    let counting_cookies = builder.counting_cookies;
    let (takes, list_items, secrets) = builder.correlator.into_result();
    let taken = takes.iter().map(BTreeMap::len).sum();
    for (step, take) in steps.iter_mut().zip(takes) {
        step.take = take;
    }
    for (step, name) in list_items {
        steps[step].comments.push(format!(
            "`{name}` is the item of a list that was recorded: a JSONPath such as $.items[*].id takes one at random."
        ));
    }
    StepList {
        steps,
        secrets,
        taken,
        counting_cookies,
    }
}

struct StepBuilder {
    correlator: ValueCorrelator,
    /// The cookies that responses have set so far, by host and name.
    jar: HashMap<(String, String), String>,
    names: HashSet<String>,
    /// The latest end of a response so far.
    last_end: Option<Timestamp>,
    counting_cookies: BTreeSet<String>,
}

impl StepBuilder {
    fn build_step(&mut self, exchange: &RecordedExchange) -> StepDraft {
        let mut step = StepDraft {
            method: exchange.method.clone(),
            pause: self.pause_before(exchange),
            ..StepDraft::default()
        };
        let place = self
            .correlator
            .redirect_field(&exchange.origin, &exchange.path);
        step.path = place.unwrap_or_else(|| {
            // In a plan, a query value that begins with `$` is a variable, so a literal `$` is encoded.
            let path = exchange.path.replace("=$", "=%24");
            let values = find_path_values(&path);
            self.correlator.replace_known_values(&path, &values)
        });
        step.name = self.unique_name(&step);
        let content_type = find_header(&exchange.headers, "content-type").unwrap_or_default();
        match &exchange.body {
            RequestBody::Empty => {}
            RequestBody::Text(text) => {
                let values = find_body_values(text, content_type);
                step.body = Some(self.correlator.replace_known_values(text, &values));
            }
            RequestBody::Parts(parts) => {
                step.parts = parts.iter().map(|part| self.build_part(part)).collect();
                if parts.iter().any(|part| part.file.is_some()) {
                    let comment =
                        "The recording has no contents of files: put each where the form names it.";
                    step.comments.push(comment.to_owned());
                }
            }
        }
        self.add_headers(exchange, &mut step);
        self.add_cookies(exchange, &mut step);
        let status = exchange.answer.as_ref().map(|answer| answer.status);
        // A recorded 304 becomes a full response, because conditions such as `if-none-match` are not sent.
        step.expect = status.filter(|status| !(200..300).contains(status) && *status != 304);
        step
    }

    /// Returns the pause between the end of the last response and this request.
    fn pause_before(&mut self, exchange: &RecordedExchange) -> Option<Duration> {
        let (start, end) = exchange.times?;
        let last = self.last_end;
        self.last_end = Some(last.map_or(end, |last| last.max(end)));
        let pause = Duration::try_from(start.duration_since(last?)).ok()?;
        let unit_ms = match pause.as_millis() {
            ..1_000 => 10,
            1_000..10_000 => 100,
            _ => 1_000,
        };
        let rounded = (pause.as_millis() as u64 + unit_ms / 2) / unit_ms * unit_ms;
        Some(Duration::from_millis(rounded)).filter(|_| pause >= MIN_KEPT_PAUSE)
    }

    /// Returns a unique name for the step.
    fn unique_name(&mut self, step: &StepDraft) -> String {
        let path = step.path.to_label();
        let path = path.split('?').next().unwrap_or_default();
        let name = format!("{} {path}", step.method);
        let base: String = name.chars().take(MAX_STEP_NAME_CHARS).collect();
        let mut name = base.clone();
        let mut number = 2;
        while !self.names.insert(name.clone()) {
            name = format!("{base} {number}");
            number += 1;
        }
        name
    }

    fn add_headers(&mut self, exchange: &RecordedExchange, step: &mut StepDraft) {
        let changes = !matches!(&*exchange.method, "GET" | "HEAD");
        let has_origin = find_header(&exchange.headers, "origin").is_some();
        for (name, value) in &exchange.headers {
            let is_kept = match &**name {
                "origin" => changes,
                // CSRF checks read the referer of requests without an origin.
                "referer" => changes && !has_origin,
                "accept" => value != "*/*",
                "content-type" => step.body.is_some(),
                name => !is_dropped(name),
            };
            let is_sendable = |byte: u8| (b' '..=b'~').contains(&byte);
            let value = value.trim();
            // The query of the referer may contain secrets.
            let value = match &**name {
                "referer" => value.split('?').next().unwrap_or_default(),
                _ => value,
            };
            if !is_kept || value.is_empty() || !value.bytes().all(is_sendable) {
                continue;
            }
            let text = self.build_header(name, value);
            step.headers.entry(name.clone()).or_default().push(text);
        }
    }

    fn build_part(&mut self, part: &RecordedPart) -> PartDraft {
        let value = RequestValue {
            span: 0..part.value.len(),
            value: part.value.clone(),
            name: part.name.clone(),
            place: ValueSyntax::Text,
        };
        PartDraft {
            name: part.name.clone(),
            value: self.correlator.replace_known_values(&part.value, &[value]),
            file: part.file.clone(),
        }
    }

    fn build_header(&mut self, name: &str, value: &str) -> HeaderText {
        if LITERAL_HEADERS.contains(&name) {
            return HeaderText::Text(TemplateText::from_literal(value));
        }
        if REQUEST_ID_HEADERS.contains(&name) && is_uuid(value) {
            let mut text = TemplateText::default();
            text.push_field("uuid");
            return HeaderText::Text(text);
        }
        if name == "referer"
            && let Ok((origin, path)) = split_url(value)
        {
            let mut text = TemplateText::from_literal(&origin);
            text.append(
                self.correlator
                    .replace_known_values(&path, &find_path_values(&path)),
            );
            return HeaderText::Text(text);
        }
        let text = self.correlator.replace_in_header_value(name, value);
        let is_secret = redaction::is_secret_field_name(name)
            || is_secret_under_name(name, value)
            || value.split(' ').any(is_credential);
        if is_secret && !has_only_template_fields(&text.to_string()) {
            return HeaderText::Env(self.correlator.secrets.assign_variable(name, value));
        }
        HeaderText::Text(text)
    }

    /// Adds a `cookie` field if a cookie was sent that no response had set; journeys send all other cookies on their
    /// own.
    fn add_cookies(&mut self, exchange: &RecordedExchange, step: &mut StepDraft) {
        let fields = exchange.headers.iter().filter(|(name, _)| name == "cookie");
        let pairs = fields.flat_map(|(_, field)| field.split(';'));
        let mut sent: Vec<(String, String)> = Vec::new();
        for pair in pairs {
            let Some((name, value)) = pair.trim().split_once('=') else {
                continue;
            };
            if ANALYTICS_COOKIE_PREFIXES
                .iter()
                .any(|known| name.starts_with(known))
            {
                self.counting_cookies.insert(name.to_owned());
            } else if !value.is_empty() {
                sent.push((name.to_owned(), value.to_owned()));
            }
        }
        let host = origin_host(&exchange.origin);
        let is_kept = |name: &str| self.jar.contains_key(&(host.to_owned(), name.to_owned()));
        if sent.iter().all(|(name, _)| is_kept(name)) {
            return;
        }
        let mut text = TemplateText::default();
        for (name, value) in sent {
            let separator = if text == TemplateText::default() {
                ""
            } else {
                "; "
            };
            text.push(&format!("{separator}{name}="));
            // A site may set a cookie for several of its hosts, which journeys do not send to another host on their own.
            let own = self.jar.get(&(host.to_owned(), name.clone()));
            let mut others = self.jar.iter();
            let mut of_site = || others.find(|((_, other), set)| *other == name && **set == value);
            match own.or_else(|| Some(of_site()?.1)).cloned() {
                Some(set) => match self.correlator.cookie_field(&name, &set) {
                    Some(field) => text.push_field(&field),
                    None => text.push(&set),
                },
                None => {
                    let column = self
                        .correlator
                        .secrets
                        .assign_column(&format!("cookie_{name}"), &value);
                    text.push_field(&format!("row.{column}"));
                }
            }
        }
        step.headers
            .insert("cookie".to_owned(), vec![HeaderText::Text(text)]);
    }

    fn update_cookie_jar(&mut self, exchange: &RecordedExchange) {
        let answer = exchange.answer.as_ref();
        for (name, value) in answer
            .into_iter()
            .flat_map(|answer| response_cookies(&answer.headers))
        {
            let host = origin_host(&exchange.origin).to_owned();
            if value.is_empty() {
                self.jar.remove(&(host, name.to_owned()));
            } else {
                self.jar.insert((host, name.to_owned()), value.to_owned());
            }
        }
    }
}

fn is_dropped(name: &str) -> bool {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    name.is_empty()
        || !name.bytes().all(is_token)
        || name.starts_with("sec-")
        || name.starts_with("x-devtools-")
        || DROPPED_HEADERS.contains(&name)
}

fn is_uuid(value: &str) -> bool {
    let bytes = value.as_bytes();
    bytes.len() == 36
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}
