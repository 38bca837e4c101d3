//! Resolves how responses are read by `[call.http]`: as events, as tokens, or as messages of a WebSocket.

use plimsoll_model::plan::TokenCounter;
use plimsoll_model::spec::{CallIndependentValue, MetadataSpec, Problems, ResolveContext};

use super::call::{
    EventFormat, EventMatch, EventStream, HttpVersion, WebSocketCall, WelcomeMessage,
};
use super::envelopes;
use super::llm_api::{LlmApi, ModelResponseRules};
use super::payload::Payload;
use super::section::{HttpSpec, StreamSpec, WebSocketSpec};
use super::tokenizer;

/// The value of `call.http.stream` for events of OpenAI's chat completions, as older plans wrote it.
const LEGACY_CHAT_STREAM: &str = "openai";
const NO_TOKENS_MESSAGE: &str =
    "needs call.http.api, or call.http.stream = \"openai\": other answers have no tokens";

pub(super) fn resolve_stream(problems: &mut Problems, call: &HttpSpec) -> Option<EventStream> {
    let api = resolve_api(problems, call);
    let goodput = problems.resolve_goodput("call.http.goodput", call.goodput.as_ref());
    if call.goodput.is_some() && api.is_none() {
        problems.add("call.http.goodput", NO_TOKENS_MESSAGE);
    }
    let format = match call.stream_format() {
        Some("sse" | LEGACY_CHAT_STREAM) => EventFormat::Sse,
        None if call.stream == Some(StreamSpec::Whole) => {
            reject_stream_keys(problems, call, api.is_some());
            EventFormat::Document
        }
        None if api.is_some_and(|api| api.computes_numbers) => {
            reject_stream_keys(problems, call, true);
            EventFormat::Document
        }
        None if api.is_some() => EventFormat::Sse,
        Some("ndjson") => EventFormat::NdJson,
        Some(other) => {
            let Some(format) = envelopes::find_format(other) else {
                let [web, connect] = envelopes::FORMAT_NAMES;
                problems.add(
                    "call.http.stream",
                    format!("`{other}` is unknown: use \"sse\", \"ndjson\", \"openai\", \"{web}\" or \"{connect}\""),
                );
                return None;
            };
            let why = format!("streams of {other} mark their end themselves: leave it out");
            reject_end_event_keys(problems, call, &why);
            format
        }
        None => {
            let why = "needs call.http.stream: \"sse\" for server-sent events, \"ndjson\" for a JSON document a line";
            reject_end_event_keys(problems, call, why);
            return None;
        }
    };
    let (until, error) = resolve_end_events(problems, call, format);
    Some(EventStream {
        format,
        until,
        error,
        tokens: api.map(|api| ModelResponseRules { api, goodput }),
    })
}

/// Reports keys that only apply to streams, for a plan whose responses are not streamed.
fn reject_stream_keys(problems: &mut Problems, call: &HttpSpec, has_api: bool) {
    if !has_api {
        problems.add(
            "call.http.stream",
            "false is only for the answers of a model: set call.http.api, or leave it out",
        );
    }
    reject_end_event_keys(problems, call, "not used with whole answers: leave it out");
    let why = "not used where answers come as a whole, so that tokens have no times: leave it out";
    let goodput = call.goodput.clone().unwrap_or_default();
    for (key, is_given) in [
        ("goodput.first_token", goodput.first_token.is_some()),
        ("goodput.time_per_token", goodput.time_per_token.is_some()),
        ("stream_duration", call.stream_duration.is_some()),
    ] {
        if is_given {
            problems.add(format!("call.http.{key}"), why);
        }
    }
}

/// Resolves the API of the language model; `None` if the target is not a model.
fn resolve_api(problems: &mut Problems, call: &HttpSpec) -> Option<&'static LlmApi> {
    const API_PLAN_KEY: &str = "call.http.api";
    let streams_chat = call.stream_format() == Some(LEGACY_CHAT_STREAM);
    let Some(name) = call.api.as_deref() else {
        return streams_chat.then(|| ModelResponseRules::default().api);
    };
    if call.stream_format().is_some() {
        let api = "can't be combined with call.http.stream: an API has a format of its own";
        problems.add(API_PLAN_KEY, api);
    }
    let api = LlmApi::find(name);
    if api.is_none() {
        let names: Vec<&str> = LlmApi::names().collect();
        let text = format!("`{name}` is unknown: use one of {}", names.join(", "));
        problems.add(API_PLAN_KEY, text);
    }
    api
}

/// Sets `api` from the older way of writing it in `stream`, and removes a `stream` value that the API implies.
pub(super) fn normalize_api(call: &mut HttpSpec) {
    if call.stream_format() == Some(LEGACY_CHAT_STREAM) && call.api.is_none() {
        let path = call.path.as_deref().unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let is_chat = path.ends_with("/chat/completions") || !path.ends_with("/completions");
        let api = if is_chat { "chat" } else { "completions" };
        (call.stream, call.api) = (None, Some(api.to_owned()));
    }
    let api = call.api.as_deref().and_then(LlmApi::find);
    if api.is_some_and(|api| api.computes_numbers) {
        call.stream = None;
    }
}

/// Reports `stream_until` and `stream_error` in a plan whose responses are not read as events.
fn reject_end_event_keys(problems: &mut Problems, call: &HttpSpec, why: &str) {
    for (key, given) in [
        ("stream_until", &call.stream_until),
        ("stream_error", &call.stream_error),
    ] {
        if given.is_some() {
            problems.add(format!("call.http.{key}"), why);
        }
    }
}

/// Resolves the tokenizer, which counts tokens in addition to the service's own count.
pub(super) fn resolve_tokenizer(
    problems: &mut Problems,
    call: &HttpSpec,
    tokens: Option<ModelResponseRules>,
    surroundings: &dyn ResolveContext,
) -> Option<TokenCounter> {
    let path = call.tokenizer.as_ref()?;
    let api = match tokens {
        None => {
            problems.add("call.http.tokenizer", NO_TOKENS_MESSAGE);
            return None;
        }
        Some(answers) => answers.api,
    };
    if api.computes_numbers {
        let why = format!(
            "counts the tokens of answers, but those of {} are numbers: leave it out",
            api.name
        );
        problems.add("call.http.tokenizer", why);
        return None;
    }
    problems.ok_or_report(
        "call.http.tokenizer",
        tokenizer::counter(path, surroundings),
    )
}

/// Resolves the event that ends a response successfully, and the event that reports an error.
fn resolve_end_events(
    problems: &mut Problems,
    call: &HttpSpec,
    format: EventFormat,
) -> (Option<EventMatch>, Option<EventMatch>) {
    let mut meant =
        |key, text: &Option<String>| parse_event_match(problems, key, text.as_ref(), format);
    (
        meant("call.http.stream_until", &call.stream_until),
        meant("call.http.stream_error", &call.stream_error),
    )
}

/// Parses `text`, the value of `key`: the rule by which an event is recognised.
pub(super) fn parse_event_match(
    problems: &mut Problems,
    key: &str,
    text: Option<&String>,
    format: EventFormat,
) -> Option<EventMatch> {
    let text = text?;
    let of = |what: &str| text.strip_prefix(what).map(|rest| rest.trim().to_owned());
    let meant = match (of("event:"), of("contains:")) {
        (Some(name), _) => EventMatch::Named(name),
        (_, Some(part)) => EventMatch::Contains(part),
        _ => EventMatch::Data(text.trim().to_owned()),
    };
    let (EventMatch::Named(inner) | EventMatch::Contains(inner) | EventMatch::Data(inner)) = &meant;
    if inner.is_empty() {
        problems.add(
            key,
            "empty: write the data of an event, such as [DONE], or event:NAME, or contains:TEXT",
        );
    } else if format == EventFormat::NdJson && matches!(meant, EventMatch::Named(_)) {
        problems.add(
            key,
            "lines of JSON and messages have no event names: write contains:TEXT, such as contains:\"done\":true",
        );
    }
    Some(meant)
}

/// Resolves the settings of the WebSocket, if the request opens one.
pub(super) fn resolve_socket(
    problems: &mut Problems,
    call: &HttpSpec,
    payload: Option<&Payload>,
    surroundings: &dyn ResolveContext,
) -> Option<Box<WebSocketCall>> {
    let socket = call.websocket.as_ref()?;
    let given = [
        ("stream", call.stream.is_some()),
        ("api", call.api.is_some()),
        ("goodput", call.goodput.is_some()),
        ("expect", call.expect.is_some()),
        ("expect_headers", !call.expect_headers.is_empty()),
    ];
    for (key, _) in given.into_iter().filter(|(_, given)| *given) {
        problems.add(
            format!("call.http.{key}"),
            "not used with call.http.websocket: a socket is opened with 101, and its answers are messages",
        );
    }
    if call
        .version
        .is_some_and(|version| version != HttpVersion::V1)
    {
        problems.add(
            "call.http.version",
            "WebSockets are supported only over HTTP/1.1: write \"1.1\", or leave it out",
        );
    }
    if call.method.as_deref().is_some_and(|method| method != "GET") {
        problems.add(
            "call.http.method",
            "a WebSocket is opened with GET (RFC 6455, 4.1): leave it out",
        );
    }
    let is_empty = |payload: &Payload| payload.varying.is_none() && payload.bytes.is_empty();
    let has_script = socket
        .script
        .as_ref()
        .is_some_and(|script| !script.is_empty());
    match (payload.map(is_empty), has_script) {
        (Some(true), false) => problems.add(
            "call.http.body",
            "missing: set the frame that each call sends",
        ),
        (Some(false), true) => problems.add(
            "call.http.body",
            "can't be combined with call.http.websocket.script: write it there as a frame",
        ),
        _ => {}
    }
    let binary = socket.binary.unwrap_or(false);
    let is_text = |payload: &Payload| std::str::from_utf8(&payload.bytes).is_ok();
    if !binary && payload.is_some_and(|payload| !is_text(payload)) {
        problems.add(
            "call.http.body_file",
            "text frames must be UTF-8, and this file is not: write call.http.websocket.binary = true",
        );
    }
    let own = |name: &&String| name.to_ascii_lowercase().starts_with("sec-websocket-");
    if let Some(name) = call.headers.keys().find(own) {
        problems.add(
            format!("call.http.headers.{name}"),
            "set by the WebSocket handshake itself: leave it out; subprotocols are offered with \
             call.http.websocket.subprotocol, compression with call.http.compressed",
        );
    }
    let subprotocols = resolve_subprotocols(problems, socket, surroundings);
    let welcome = match socket.welcome.as_deref() {
        None => None,
        Some("any") => Some(WelcomeMessage::Any),
        Some(_) => {
            let key = "call.http.websocket.welcome";
            let meant =
                parse_event_match(problems, key, socket.welcome.as_ref(), EventFormat::NdJson);
            meant.map(WelcomeMessage::Message)
        }
    };
    let (until, error) = resolve_end_events(problems, call, EventFormat::NdJson);
    Some(Box::new(WebSocketCall {
        subprotocols,
        welcome,
        binary,
        greeting: None,
        script: Vec::new(),
        until,
        error,
    }))
}

/// Resolves the subprotocols to offer, in order of preference.
fn resolve_subprotocols(
    problems: &mut Problems,
    socket: &WebSocketSpec,
    surroundings: &dyn ResolveContext,
) -> Vec<String> {
    const SUBPROTOCOL_PLAN_KEY: &str = "call.http.websocket.subprotocol";
    let mut names = Vec::new();
    for spec in socket.subprotocol.iter().flat_map(MetadataSpec::values) {
        match problems.resolve_call_independent_value(SUBPROTOCOL_PLAN_KEY, spec, surroundings) {
            None => {}
            Some(CallIndependentValue::Live(_)) => problems.add(
                SUBPROTOCOL_PLAN_KEY,
                "a command can't set it, as it is the same on all sockets: write a name, or { env = \"NAME\" }",
            ),
            Some(CallIndependentValue::Constant(typed)) => {
                problems.reject_template_fields(SUBPROTOCOL_PLAN_KEY, Some(&typed));
                // Commas separate names, as in the header field.
                names.extend(typed.split(',').map(|name| name.trim().to_owned()));
            }
        }
    }
    // The message does not show a subprotocol's name, which may be secret.
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if names
        .iter()
        .any(|name| name.is_empty() || !name.bytes().all(is_token))
    {
        problems.add(
            SUBPROTOCOL_PLAN_KEY,
            "not the name of a subprotocol (RFC 6455, 4.1): use letters, digits and !#$%&'*+-.^_`|~",
        );
    }
    names
}
