//! Tests of token streams as servers write them: each file of `token_streams/API/` is the body of one response,
//! modelled on what the server of its name sends. For any split of the bytes, the same tokens, counts and end
//! must be found.

mod ends;

use std::fs;
use std::path::Path;

use plimsoll_engine::driver::{CallId, CompletedCall, Driver, Event, Protocol, TokenUsage};
use plimsoll_model::metrics::measure::Count;
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::http::{
    EventFormat, EventStream, Http1Driver, Http1Protocol, HttpCall, HttpRequest, LlmApi,
    ModelResponseRules,
};

/// The results of parsing a response.
#[derive(Debug, Default, PartialEq)]
struct ParseResult {
    outcome: Option<Outcome>,
    /// The number of events with tokens.
    pieces: u32,
    /// The answer came as a whole.
    is_whole: bool,
    /// Token counts: of the prompt, of the completion, and streamed.
    usage: Option<(u64, u64, u64)>,
    finished: Vec<Count>,
    details: Vec<String>,
}

fn driver(api: &str, format: EventFormat) -> Http1Driver {
    let call = HttpCall {
        method: "POST".into(),
        path: "/v1/chat/completions".into(),
        expect: vec![(200, 299)],
        stream: Some(EventStream {
            format,
            until: None,
            error: None,
            tokens: Some(ModelResponseRules {
                api: LlmApi::find(api).expect("an API"),
                ..ModelResponseRules::default()
            }),
        }),
        max_body: u32::MAX,
        ..HttpCall::default()
    };
    let request = HttpRequest {
        call: &call,
        authority: "h:1",
        closes: false,
    };
    let mut driver = Http1Protocol::new(&request).new_driver();
    driver.open(Time::ZERO, &mut Vec::new());
    driver
}

/// The media type by which [`parse`] expects a whole answer.
const WHOLE: &str = "application/json; whole";

/// Parses `body`, which arrives in pieces of `step` bytes, on a new connection to a service that speaks `api`.
fn parse(api: &str, (body, media_type): (&[u8], &str), step: usize) -> ParseResult {
    let format = match media_type {
        WHOLE => EventFormat::Document,
        _ => EventFormat::Sse,
    };
    let mut driver = driver(api, format);
    let (mut out, mut events) = (Vec::new(), Vec::new());
    driver.start(CallId(0), 0, Time::ZERO, &mut out);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\r\n"
    );
    let answer = [head.as_bytes(), body].concat();
    for piece in answer.chunks(step) {
        driver
            .receive(piece, Time(1), &mut out, &mut events)
            .expect("bytes that are taken");
    }
    let mut found = ParseResult::default();
    for event in events {
        match event {
            Event::Done(CompletedCall { outcome, .. }) => found.outcome = Some(outcome),
            Event::Token { .. } => found.pieces += 1,
            Event::WholeAnswer(_) => found.is_whole = true,
            Event::Usage {
                usage:
                    TokenUsage {
                        prompt,
                        answer,
                        streamed,
                    },
                ..
            } => found.usage = Some((prompt, answer, streamed)),
            Event::Count { count, .. } => found.finished.push(count),
            Event::Detail { text, .. } => found.details.push(text),
            _ => {}
        }
    }
    found
}

/// A server's name, the number of pieces, token usage, and what ended the response.
type ExpectedResult = (
    &'static str,
    u32,
    Option<(u64, u64, u64)>,
    Option<Count>,
    Outcome,
);

const OK: Outcome = Outcome::Ok;
const ERROR: Outcome = Outcome::EventError;

const CHAT: &[ExpectedResult] = &[
    ("azure", 1, Some((8, 1, 1)), Some(Count::FinishStop), OK),
    (
        "azure-filtered",
        1,
        None,
        Some(Count::FinishContentFilter),
        ERROR,
    ),
    ("deepseek", 2, Some((6, 3, 3)), Some(Count::FinishStop), OK),
    ("fastchat", 2, None, Some(Count::FinishStop), OK),
    ("fastchat-error", 0, None, None, ERROR),
    ("gateway", 2, None, Some(Count::FinishStop), OK),
    ("gemini", 2, Some((4, 2, 2)), Some(Count::FinishStop), OK),
    ("groq", 1, Some((11, 1, 1)), Some(Count::FinishStop), OK),
    ("half-surrogates", 2, None, Some(Count::FinishStop), OK),
    ("litellm", 2, Some((9, 2, 2)), Some(Count::FinishStop), OK),
    ("llama-cpp", 2, Some((5, 2, 2)), Some(Count::FinishStop), OK),
    (
        "lmdeploy",
        1,
        Some((3, 2, 2)),
        Some(Count::FinishLength),
        OK,
    ),
    ("lmdeploy-error", 1, None, Some(Count::FinishError), ERROR),
    ("mistral", 4, Some((8, 4, 4)), Some(Count::FinishStop), OK),
    ("moonshot", 1, Some((19, 1, 1)), Some(Count::FinishStop), OK),
    ("ollama", 2, Some((26, 3, 3)), Some(Count::FinishStop), OK),
    (
        "one-token",
        0,
        Some((7, 1, 1)),
        Some(Count::FinishLength),
        OK,
    ),
    // 64 of its tokens are reasoning that is not streamed.
    ("openai", 2, Some((8, 66, 2)), Some(Count::FinishStop), OK),
    (
        "openai-completions",
        2,
        Some((1, 2, 2)),
        Some(Count::FinishLength),
        OK,
    ),
    ("openai-tools", 3, None, Some(Count::FinishToolCalls), OK),
    (
        "openrouter",
        2,
        Some((5, 2, 2)),
        Some(Count::FinishStop),
        OK,
    ),
    ("openrouter-error", 1, None, None, ERROR),
    (
        "perplexity",
        2,
        Some((4, 2, 2)),
        Some(Count::FinishStop),
        OK,
    ),
    ("sglang", 2, Some((9, 3, 3)), Some(Count::FinishStop), OK),
    ("sglang-abort", 1, None, Some(Count::FinishAbort), ERROR),
    (
        "tensorrt-llm",
        1,
        Some((4, 2, 2)),
        Some(Count::FinishStop),
        OK,
    ),
    ("tgi", 2, Some((4, 2, 2)), Some(Count::FinishLength), OK),
    ("tgi-error", 1, None, None, ERROR),
    ("vllm", 2, Some((7, 3, 3)), Some(Count::FinishStop), OK),
    (
        "vllm-continuous-usage",
        2,
        Some((7, 4, 4)),
        Some(Count::FinishLength),
        OK,
    ),
    ("vllm-error", 1, None, None, ERROR),
    (
        "zhipu-sensitive",
        1,
        None,
        Some(Count::FinishContentFilter),
        ERROR,
    ),
];

const RESPONSES: &[ExpectedResult] = &[
    ("cut-off", 1, None, None, Outcome::StreamShort),
    ("litellm", 2, Some((8, 2, 2)), Some(Count::FinishStop), OK),
    ("llama-cpp", 3, Some((6, 3, 3)), Some(Count::FinishStop), OK),
    // 64 of its tokens are reasoning that is not streamed.
    ("openai", 3, Some((11, 67, 3)), Some(Count::FinishStop), OK),
    ("openai-error", 0, None, None, ERROR),
    ("openai-failed", 1, None, Some(Count::FinishError), ERROR),
    (
        "openai-filtered",
        2,
        None,
        Some(Count::FinishContentFilter),
        ERROR,
    ),
    (
        "openai-incomplete",
        2,
        Some((9, 2, 2)),
        Some(Count::FinishLength),
        OK,
    ),
    (
        "openai-refusal",
        2,
        Some((12, 6, 6)),
        Some(Count::FinishStop),
        OK,
    ),
    (
        "openai-summary",
        4,
        Some((11, 30, 4)),
        Some(Count::FinishStop),
        OK,
    ),
    (
        "openai-tools",
        4,
        Some((60, 9, 9)),
        Some(Count::FinishToolCalls),
        OK,
    ),
    ("vllm", 4, Some((14, 4, 4)), Some(Count::FinishStop), OK),
];

const MESSAGES: &[ExpectedResult] = &[
    (
        "anthropic",
        3,
        Some((12, 6, 6)),
        Some(Count::FinishStop),
        OK,
    ),
    (
        "anthropic-cached",
        2,
        Some((1109, 2, 2)),
        Some(Count::FinishStop),
        OK,
    ),
    (
        "anthropic-max-tokens",
        1,
        Some((9, 2, 2)),
        Some(Count::FinishLength),
        OK,
    ),
    ("anthropic-overloaded", 1, Some((9, 0, 0)), None, ERROR),
    (
        "anthropic-refusal",
        1,
        Some((9, 3, 3)),
        Some(Count::FinishContentFilter),
        ERROR,
    ),
    (
        "anthropic-thinking",
        4,
        Some((40, 21, 21)),
        Some(Count::FinishStop),
        OK,
    ),
    // The name of the tool is a piece, and an empty piece of its input is none.
    (
        "anthropic-tools",
        5,
        Some((380, 47, 47)),
        Some(Count::FinishToolCalls),
        OK,
    ),
    ("cut-off", 1, Some((9, 0, 0)), None, Outcome::StreamShort),
    ("litellm", 2, Some((8, 2, 2)), Some(Count::FinishStop), OK),
    ("llama-cpp", 3, Some((6, 3, 3)), Some(Count::FinishStop), OK),
    ("vllm", 2, Some((14, 3, 3)), Some(Count::FinishStop), OK),
];

#[test]
fn streams_of_many_servers_parse() {
    for (api, expected) in [
        ("chat", CHAT),
        ("responses", RESPONSES),
        ("messages", MESSAGES),
    ] {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/token_streams"));
        check_streams(api, &folder.join(api), expected);
    }
}

/// Parses the files of a folder in many splits, and compares the results.
fn check_streams(api: &str, folder: &Path, expected: &[ExpectedResult]) {
    let files = fs::read_dir(folder).expect("a folder").count();
    assert_eq!(files, expected.len());
    for (name, pieces, usage, finished, outcome) in expected {
        let body = fs::read(folder.join(name).with_extension("sse")).expect("a file");
        for step in [1, 2, 3, 7, 64, 1_000, body.len() + 200] {
            let mut found = parse(api, (&body, "text/event-stream"), step);
            let details = std::mem::take(&mut found.details);
            let expected = ParseResult {
                outcome: Some(*outcome),
                pieces: *pieces,
                is_whole: false,
                usage: *usage,
                finished: finished.iter().copied().collect(),
                details: Vec::new(),
            };
            assert_eq!(found, expected, "{name} by {step}: {details:?}");
            assert_eq!(details.is_empty(), outcome.is_ok(), "{name}: {details:?}");
        }
    }
}

#[test]
fn stream_errors_name_event_and_excerpt() {
    let token = "data: {\"choices\":[{\"delta\":{\"content\":\"it\"}}]}\n\n";
    for (body, media_type, outcome, parts) in [
        (
            format!("{token}data: {{\"choices\":[}}\n\n"),
            "text/event-stream",
            Outcome::BadAnswer,
            &["event 2: ", "line 1 column 13", "{\"choices\":[}"][..],
        ),
        (
            format!("{token}event: chunk\ndata: {{\"choices\":7}}\n\n"),
            "text/event-stream",
            Outcome::BadAnswer,
            &["event 2 (chunk): `choices` is not a list"],
        ),
        (
            "data: hello\n\n".to_owned(),
            "text/plain",
            Outcome::BadAnswer,
            &["event 1: expected value at line 1 column 1: hello"],
        ),
        (
            "{\"choices\":[{\"message\":{\"content\":\"hello there\"}}]}".to_owned(),
            "application/json; charset=utf-8",
            Outcome::BadAnswer,
            &["not an event stream", "application/json", "hello there"],
        ),
        (
            "<html>\n<h1>Sign in</h1>\n</html>\n".to_owned(),
            "text/html",
            Outcome::BadAnswer,
            &["not an event stream", "text/html", "Sign in"],
        ),
        (
            "{\"error\": {\"message\": \"no such model\"}}".to_owned(),
            "application/json",
            Outcome::EventError,
            &["application/json", "no such model"],
        ),
        (
            "{\"object\":\"error\",\"message\":\"busy\"}\n".to_owned(),
            "application/json",
            Outcome::EventError,
            &["busy"],
        ),
        (
            format!("{token}data: [DONE"),
            "text/event-stream",
            Outcome::StreamShort,
            &["without the event that marks success"],
        ),
        (
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
                .to_owned(),
            "text/event-stream",
            Outcome::StreamShort,
            &["contained no token"],
        ),
    ] {
        for step in [1, 5, 1_000] {
            let found = parse("chat", (body.as_bytes(), media_type), step);
            assert_eq!(found.outcome, Some(outcome), "{body} by {step}: {found:?}");
            let text = found.details.join("\n");
            for part in parts {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }
}

#[test]
fn whole_answers_are_counted_without_pieces() {
    let stop = Some(Count::FinishStop);
    for (api, body, usage, finished, outcome) in [
        (
            "chat",
            r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"It is","reasoning_content":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}"#,
            Some((7, 2, 2)),
            stop,
            OK,
        ),
        (
            "completions",
            r#"{"object":"text_completion","choices":[{"index":0,"text":"It","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#,
            Some((1, 1, 1)),
            Some(Count::FinishLength),
            OK,
        ),
        (
            "responses",
            r#"{"object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"It"}]}],"usage":{"input_tokens":3,"output_tokens":1}}"#,
            Some((3, 1, 1)),
            stop,
            OK,
        ),
        (
            "responses",
            r#"{"object":"response","status":"failed","output":[],"error":{"code":"server_error","message":"no"}}"#,
            None,
            Some(Count::FinishError),
            ERROR,
        ),
        (
            "messages",
            r#"{"type":"message","content":[{"type":"text","text":"It"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":1}}"#,
            Some((3, 1, 1)),
            stop,
            OK,
        ),
        // Some services give no reason, and do not count.
        ("chat", r#"{"choices":[{"text":"It"}]}"#, None, None, OK),
        (
            "chat",
            r#"{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}"#,
            None,
            stop,
            Outcome::StreamShort,
        ),
        ("chat", r#"{"error":{"message":"no"}}"#, None, None, ERROR),
        (
            "chat",
            r#"{"choices":[{"text":"#,
            None,
            None,
            Outcome::BadAnswer,
        ),
        ("chat", "", None, None, Outcome::StreamShort),
    ] {
        for step in [1, 7, 1_000] {
            let mut found = parse(api, (body.as_bytes(), WHOLE), step);
            let details = std::mem::take(&mut found.details);
            let is_read = outcome == OK || finished.is_some();
            let expected = ParseResult {
                outcome: Some(outcome),
                usage,
                is_whole: is_read,
                finished: finished.into_iter().collect(),
                ..ParseResult::default()
            };
            assert_eq!(found, expected, "{body} by {step}: {details:?}");
            assert_eq!(details.is_empty(), outcome.is_ok(), "{details:?}");
        }
    }
    let cut = parse("chat", (b"{\"choices\":[", WHOLE), 1_000);
    let text = cut.details.join(" ");
    assert!(text.contains("the answer: EOF while parsing"), "{text}");
}
