//! Resolves `[call.http]` to a call with all defaults, and writes a resolved call back to the section.

pub(super) mod journey;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_model::formats::redaction;
use plimsoll_model::formats::units::{ByteSize, Period};
use plimsoll_model::plan::TokenCounter;
use plimsoll_model::rows::template::{self, Template};
use plimsoll_model::spec::{
    CallMetadata, CallSection, DEFAULT_DEADLINE, GoodputSpec, LoadSpec, MetadataSpec,
    OptionalPeriod, PlanRows, Problems, ProxiedCalls, ResolveContext, Spec, UrlSchemes, call_path,
    is_visible_ascii, struct_keys,
};

use super::call::{
    ConversationPlan, EventStream, HttpCall, HttpVersion, VaryingBody, VaryingRequest,
    WebSocketCall,
};
use super::flags::would_queue;
use super::header_names::HEADER_NAMES;
use super::limits::{
    canonicalize, check_scheme, reject_template_fields, required_headers,
    resolve_expected_statuses, resolve_limits, streams_end_with_load,
};
use super::paths::{check_path, requested_path};
use super::payload::{Payload, TemplateContext, escape_template, parse_payload};
use super::response_settings::{resolve_socket, resolve_stream, resolve_tokenizer};
use super::section::{
    ConversationSpec, FormPartSpec, FrameSpec, HttpSpec, StatusSpec, WebSocketSpec,
};
use super::user_scenarios::{resolve_conversation, resolve_script};
use super::{envelopes, form, replayed_call};
use crate::http2::resolve_max_head;
use crate::journey::{StepScope, change_fields, has_secured_target, keys_within, step_files};

impl CallSection for HttpSpec {
    const SCHEMES: UrlSchemes = UrlSchemes {
        section: "http",
        purpose: "for HTTP",
        plain: "http",
        secured: Some("https"),
        aliases: Some(("ws", "wss")),
        foreign_schemes: &[],
        ports: Some((80, 443)),
        with_path: true,
    };
    const SUPPORTS_ROWS: bool = true;
    const SUPPORTS_TRACEPARENT: bool = true;
    type Call = HttpCall;

    fn nested_keys(path: &str) -> Option<&'static [&'static str]> {
        match path {
            path if path.split('.').next() == Some("steps") => keys_within::<HttpSpec>(path),
            "websocket" => Some(struct_keys::<WebSocketSpec>()),
            "websocket.script" => Some(struct_keys::<FrameSpec>()),
            "form" => Some(struct_keys::<FormPartSpec>()),
            "conversation" => Some(struct_keys::<ConversationSpec>()),
            "goodput" => Some(struct_keys::<GoodputSpec>()),
            path => path.starts_with("headers.").then(MetadataSpec::keys),
        }
    }

    fn fields(&mut self) -> Option<&mut BTreeMap<String, MetadataSpec>> {
        Some(&mut self.headers)
    }

    fn change_nested_fields(&mut self, change: &dyn Fn(&str, &mut MetadataSpec)) {
        change_fields(self.steps.as_deref_mut().unwrap_or_default(), change);
        let socket = self.websocket.as_mut();
        let subprotocols = socket.and_then(|socket| socket.subprotocol.as_mut());
        crate::shared::bearer_token::change_token(subprotocols, change);
    }

    /// Gives each client a connection of its own if clients that share an HTTP/1.1 connection or a WebSocket would only
    /// queue.
    fn apply_defaults(&self, load: &mut LoadSpec) {
        if self.calls_per_user().is_none() && would_queue(load, self.version) {
            load.connections = load.clients;
        }
        // The default deadline of a stream with a set duration counts from the end of that duration.
        if let (Some(lasts), None) = (self.stream_duration, self.deadline) {
            let deadline = OptionalPeriod::After(Period(lasts.0 + DEFAULT_DEADLINE));
            load.deadline.get_or_insert(deadline);
        }
        // HTTP/1.1 can end a stream early only by closing its connection.
        let ends_early = self.stream_duration.is_some() && self.websocket.is_none();
        let is_kept = load.reuse.as_deref() != Some("never");
        if ends_early && is_kept && self.version.unwrap_or_default() == HttpVersion::V1 {
            load.calls_per_connection.get_or_insert(1);
        }
    }

    fn uses_tls(&self, spec: &Spec) -> bool {
        has_secured_target(self.journey_steps().unwrap_or_default(), spec)
    }

    fn input_files(&self) -> Vec<(&'static str, PathBuf)> {
        let socket = self.websocket.as_ref();
        let script = socket.and_then(|socket| socket.script.as_ref());
        let frames = script.into_iter().flatten();
        let frames = frames.map(|frame| ("websocket.script", &frame.body_file));
        let own = [
            ("body_file", &self.body_file),
            ("tokenizer", &self.tokenizer),
        ];
        let parts = self.form.iter().flatten();
        let parts = parts.map(|part| ("form", &part.file));
        let all = own.into_iter().chain(parts).chain(frames);
        let all = all.filter_map(|(key, path)| Some((key, path.clone()?)));
        let steps = self.journey_steps().unwrap_or_default();
        all.chain(step_files(HttpSpec::SCHEMES.section, steps))
            .collect()
    }

    fn proxied_calls(&self, spec: &Spec) -> ProxiedCalls {
        self.proxied_calls(spec)
    }

    fn calls_per_user(&self) -> Option<u32> {
        if self.journey_steps().is_some() {
            // The number of calls differs between journeys, so a journey counts as one call.
            return Some(1);
        }
        if let Some(talk) = &self.conversation {
            return Some(talk.turns.unwrap_or(1));
        }
        let script = self.websocket.as_ref()?.script.as_ref()?;
        let answered = script.iter().filter(|frame| frame.answer != Some(false));
        (!script.is_empty()).then(|| answered.count() as u32)
    }

    fn resolve(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn ResolveContext,
    ) -> Option<HttpCall> {
        check_scheme(problems, spec, self);
        match self.journey_steps() {
            Some(steps) => journey::resolve(problems, spec, self, steps, surroundings),
            None => resolve_call(problems, spec, self, surroundings),
        }
    }

    fn into_canonical(self) -> HttpSpec {
        canonicalize(self)
    }

    fn with_defaults(mut self, call: &HttpCall) -> HttpSpec {
        write_defaults(&mut self, call);
        self
    }
}

/// Writes the defaults into the section.
fn write_defaults(spec: &mut HttpSpec, call: &HttpCall) {
    spec.version = Some(call.version);
    // The deadline is written to the `[load]` section instead.
    spec.deadline = None;
    if call.journey.is_some() {
        // The steps of a journey contain its requests, so the section has none.
        return;
    }
    spec.method = Some(call.method.clone());
    let path_varies = call.varying.as_ref().is_some_and(|all| all.path.is_some());
    spec.path = Some(if path_varies {
        call.path.clone()
    } else {
        escape_template(&call.path)
    });
    // A call that opens a WebSocket always expects status 101, so no statuses are written.
    if call.socket.is_none() {
        let statuses = call.expect.iter();
        let spec_of = |&(from, to): &(u16, u16)| StatusSpec { from, to };
        spec.expect = Some(statuses.map(spec_of).collect());
    }
    // Replaces the file's name by its content, so that the run can be repeated when the file changes.
    let varying = call.varying.as_ref().and_then(|all| all.body.as_ref());
    let body = (&mut spec.body, &mut spec.body_file);
    inline_body_file(body, &call.body, varying);
    form::inline_form_files(spec, call);
    let frames = spec
        .websocket
        .as_mut()
        .and_then(|socket| socket.script.as_mut());
    let resolved = call.socket.iter().flat_map(|socket| &socket.script);
    for (frame, resolved) in frames.into_iter().flatten().zip(resolved) {
        let body = (&mut frame.body, &mut frame.body_file);
        inline_body_file(body, &resolved.payload, resolved.varying.as_ref());
    }
    spec.max_body = Some(ByteSize(call.max_body.into()));
    spec.max_head = Some(ByteSize(call.max_head.into()));
}

/// Replaces the name of a body's file by its text.
fn inline_body_file(
    (typed, file): (&mut Option<String>, &mut Option<PathBuf>),
    bytes: &[u8],
    varying: Option<&VaryingBody>,
) {
    let text = match varying {
        Some(body) => Some(body.typed.clone()),
        None => std::str::from_utf8(bytes).ok().map(escape_template),
    };
    if file.is_some() && text.is_some() {
        (*typed, *file) = (text, None);
    }
}

fn resolve_call(
    problems: &mut Problems,
    spec: &Spec,
    call: &HttpSpec,
    surroundings: &dyn ResolveContext,
) -> Option<HttpCall> {
    let rows = problems.resolve_rows(spec, surroundings);
    let variation = problems
        .resolve_variation(spec, rows.as_ref())
        .with_calls_per_client(spec.call.calls_per_user().unwrap_or(1));
    let scope = StepScope {
        rows: rows.as_ref(),
        metadata: PlanRows::from_spec(rows.as_ref(), spec).into(),
        variation: &variation,
    };
    problems.report_user_load_conflicts(spec);
    let before = problems.0.len();
    let replayed = replayed_call::resolve_replayed_call(problems, spec, call, rows.as_ref());
    let sent = replayed.as_ref().map_or(call, |replayed| &replayed.call);
    let (mut resolved, uses_rows) = resolve_request(problems, spec, sent, &scope, surroundings)?;
    if let Some(replayed) = replayed {
        replayed.apply_to_call(&mut resolved, call);
    }
    if spec.rows.is_some() && !uses_rows {
        problems.add(
            "rows",
            "not used by path, headers or body: write {{row.NAME}} where a column belongs",
        );
    }
    (problems.0.len() == before).then_some(resolved)
}

/// Resolves one request, which may be a step of a journey. Returns the call and whether it uses rows.
pub(super) fn resolve_request(
    problems: &mut Problems,
    spec: &Spec,
    call: &HttpSpec,
    scope: &StepScope<'_>,
    surroundings: &dyn ResolveContext,
) -> Option<(HttpCall, bool)> {
    let before = problems.0.len();
    let (rows, fields) = (scope.rows, scope.fields());
    let mut metadata =
        problems.resolve_metadata(&HEADER_NAMES, &call.headers, scope.metadata, surroundings);
    problems.add_traceparent(&HEADER_NAMES, spec, &mut metadata);
    let mut slots = 0;
    let section = HttpSpec::SCHEMES.section;
    let path = resolve_call_path(problems, section, spec, call.path.as_deref(), surroundings);
    if spec.rows.is_some() && rows.is_none() {
        return None;
    }
    let method = resolve_method(problems, call);
    let path = replayed_call::resolve_path(spec, call, rows, path);
    let path_template = path.as_deref().and_then(|path| {
        let template = Template::parse(path, &mut slots, fields);
        let template = problems.ok_or_report("call.http.path", template)?;
        let checked = check_path(&template, rows);
        problems.ok_or_report("call.http.path", checked)?;
        Some(template)
    });
    let mut texts = TemplateContext {
        slots: &mut slots,
        scope: fields,
        uses_rows: false,
        surroundings,
    };
    let mut payload = form::resolve_body(problems, call, &mut texts);
    check_host(problems, HttpSpec::SCHEMES.section, call.host.as_deref());
    let expect = resolve_expected_statuses(problems, call, &method);
    reject_template_fields(problems, call);
    let answers = resolve_response_settings(problems, spec, call, payload.as_mut(), &mut texts);
    let (max_body, refusal_retries) = resolve_limits(problems, spec, call);
    let uses_rows =
        path.as_deref().is_some_and(template::uses_rows) || texts.uses_rows || metadata.uses_rows;
    let max_head = resolve_max_head(problems, HttpSpec::SCHEMES.section, call.max_head);
    if problems.0.len() > before {
        return None;
    }
    let (path_template, payload) = (path_template?, payload?);
    let headers = resolve_headers(&metadata, call, &payload);
    let constant_path = path_template.constant_text().map(str::to_owned);
    let varies = constant_path.is_none()
        || payload.varying.is_some()
        || !metadata.varying.is_empty()
        || call.frames().is_some()
        || answers.has_varying_greeting();
    let resolved = HttpCall {
        version: call.version.unwrap_or_default(),
        method,
        path: constant_path.clone().or(path)?,
        host: call.host.clone(),
        headers,
        typed_names: call.case_preserved_names(),
        body: payload.bytes,
        varying: varies.then_some(VaryingRequest {
            variation: scope.variation.clone(),
            path: Some(path_template).filter(|_| constant_path.is_none()),
            headers: metadata.varying,
            body: payload.varying,
            expectations: None,
        }),
        expect,
        expect_headers: required_headers(call),
        expect_body: call.expect_body.clone(),
        expect_size: call.expect_size.map(|size| size.0),
        compressed: call.compressed.unwrap_or(false),
        socket: answers.socket,
        stream: answers.stream,
        stream_duration: call.stream_duration.map(|period| period.0),
        ends_with_load: streams_end_with_load(spec, call),
        tokenizer: answers.tokenizer,
        conversation: answers.conversation,
        refusal_retries,
        max_body,
        max_head,
        ..HttpCall::default()
    };
    Some((resolved, uses_rows))
}

/// The settings for reading responses, counting their tokens, and continuing conversations.
struct ResponseSettings {
    socket: Option<Box<WebSocketCall>>,
    stream: Option<EventStream>,
    tokenizer: Option<TokenCounter>,
    conversation: Option<Box<ConversationPlan>>,
}

impl ResponseSettings {
    fn has_varying_greeting(&self) -> bool {
        let socket = self.socket.as_ref();
        socket.is_some_and(|socket| socket.greeting_varies())
    }
}

fn resolve_response_settings(
    problems: &mut Problems,
    spec: &Spec,
    call: &HttpSpec,
    payload: Option<&mut Payload>,
    texts: &mut TemplateContext<'_>,
) -> ResponseSettings {
    let think = spec.load.think.map_or(Duration::ZERO, |think| think.0);
    let mut socket = resolve_socket(problems, call, payload.as_deref(), texts.surroundings);
    let greeting = call
        .websocket
        .as_ref()
        .and_then(|socket| socket.greeting.as_ref());
    if let (Some(socket), Some(text)) = (&mut socket, greeting) {
        let key = "call.http.websocket.greeting";
        let payload = parse_payload(problems, key, text.clone().into_bytes(), texts);
        socket.greeting = payload.map(|payload| (payload.bytes, payload.varying));
    }
    if let (Some(socket), Some(frames)) = (&mut socket, call.frames()) {
        socket.script = resolve_script(problems, think, call, frames, texts);
    }
    let stream = match socket {
        None => resolve_stream(problems, call),
        Some(_) => None,
    };
    let tokens = stream.as_ref().and_then(|stream| stream.tokens);
    let tokenizer = resolve_tokenizer(problems, call, tokens, texts.surroundings);
    let conversation = match (&call.conversation, tokens) {
        (Some(talk), Some(answers)) if call.version != Some(HttpVersion::Auto) => {
            resolve_conversation(problems, (think, talk, answers.api), payload, texts)
        }
        (Some(_), _) => {
            problems.add(
                "call.http.conversation",
                "continues from a model's answers: needs call.http.api, or call.http.stream = \"openai\", and \
                 one version (\"1.1\" or \"2\")",
            );
            None
        }
        (None, _) => None,
    };
    ResponseSettings {
        socket,
        stream,
        tokenizer,
        conversation,
    }
}

/// Resolves the path: the one in `section`, else the target's, else `/`.
pub(crate) fn resolve_call_path(
    problems: &mut Problems,
    section: &str,
    spec: &Spec,
    path: Option<&str>,
    surroundings: &dyn ResolveContext,
) -> Option<String> {
    let in_url = spec
        .target
        .as_deref()
        .and_then(call_path)
        .map(requested_path);
    match (path, in_url.as_deref()) {
        (Some(path), Some(other)) if path != other && other != "/" => {
            let (path, other) = (redaction::mask_urls(path), redaction::mask_urls(other));
            problems.add(
                format!("call.{section}.path"),
                format!("`{path}` differs from the target's path `{other}`: use one of the two"),
            );
            None
        }
        (Some(path), _) | (None, Some(path)) => {
            let filled_in = redaction::fill_variables(path, |name| surroundings.env_variable(name));
            problems.ok_or_report(&format!("call.{section}.path"), filled_in)
        }
        (None, None) => Some("/".to_owned()),
    }
}

pub(crate) fn check_host(problems: &mut Problems, section: &str, host: Option<&str>) {
    problems.reject_template_fields(format!("call.{section}.host"), host);
    if let Some(host) = host.filter(|host| !is_visible_ascii(host)) {
        problems.add(
            format!("call.{section}.host"),
            format!("`{host}` is not a host or host:port"),
        );
    }
}

fn resolve_method(problems: &mut Problems, call: &HttpSpec) -> String {
    let has_body = call.body.is_some()
        || call.body_file.is_some()
        || call.form.is_some()
        || envelopes::sends_envelopes(call);
    let method = match &call.method {
        Some(method) => method.clone(),
        None if call.websocket.is_some() => "GET".to_owned(),
        None if has_body => "POST".to_owned(),
        None => "GET".to_owned(),
    };
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if method.is_empty() || !method.bytes().all(is_token) {
        problems.add(
            "call.http.method",
            format!("`{method}` is not a method: write GET, POST, PUT and the like"),
        );
    } else if method == "CONNECT" {
        problems.add(
            "call.http.method",
            "CONNECT opens a tunnel and has no answer to measure: use another method",
        );
    } else if method.bytes().any(|b| b.is_ascii_lowercase()) {
        let upper = method.to_ascii_uppercase();
        problems.add(
            "call.http.method",
            format!("methods are case-sensitive (RFC 9110, 9.1): write {upper}"),
        );
    }
    method
}

/// Returns the constant header fields, with a default content type if there is a body.
fn resolve_headers(
    metadata: &CallMetadata,
    call: &HttpSpec,
    payload: &Payload,
) -> Vec<(String, String)> {
    let mut headers = metadata.constant.clone();
    let has_body =
        payload.varying.is_some() || !payload.bytes.is_empty() || envelopes::sends_envelopes(call);
    let typed = call
        .headers
        .keys()
        .any(|name| name.eq_ignore_ascii_case("content-type"));
    if has_body && !typed {
        let plain = if payload.is_json {
            "application/json"
        } else {
            "application/octet-stream"
        };
        let kind = envelopes::content_type(call.stream_format(), payload);
        let kind = payload.content_type.as_deref().or(kind).unwrap_or(plain);
        headers.push(("content-type".to_owned(), kind.to_owned()));
    }
    headers
}

#[cfg(test)]
mod tests;
