//! OpenAI's API: models, chat completions and completions, as one response or as a stream of
//! server-sent events. The answer and its pace are those of session runs, over HTTP alone.
//!
//! A word counts as a token, in the prompt too. Any model name is accepted. An answer begins at
//! once; with limited slots, one that finds them all taken waits before its first token.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Body as Streamed, Frame};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::run::{RunGuard, jittered};
use super::{Llm, RefusalReason, read_body};

/// The model name in the list of models.
const MODEL_ID: &str = "plimsoll";
/// Most tokens that a request may ask for.
const MAX_TOKENS: u64 = 1_000_000;
/// Most events that are queued for a slow client.
const MAX_QUEUED_EVENTS: usize = 64;

/// The parameters of a request; other keys are ignored.
#[derive(Deserialize)]
struct CompletionRequest {
    model: String,
    messages: Option<Vec<ChatMessage>>,
    prompt: Option<Value>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct ChatMessage {
    content: Option<Value>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompletionApi {
    Chat,
    Completions,
}

/// Metadata of one response.
struct CompletionResponse {
    api: CompletionApi,
    id: String,
    created: i64,
    model: String,
    prompt_tokens: usize,
    tokens: usize,
    finish: &'static str,
    /// Every event has `usage`, and a final one has the counts.
    with_usage: bool,
}

pub(super) async fn models() -> Response {
    let model = json!({
        "id": MODEL_ID, "object": "model", "created": 1_700_000_000, "owned_by": MODEL_ID,
    });
    Json(json!({ "object": "list", "data": [model] })).into_response()
}

pub(super) async fn chat(State(llm): State<Arc<Llm>>, body: Body) -> Response {
    complete(llm, CompletionApi::Chat, body).await
}

pub(super) async fn completions(State(llm): State<Arc<Llm>>, body: Body) -> Response {
    complete(llm, CompletionApi::Completions, body).await
}

async fn complete(llm: Arc<Llm>, api: CompletionApi, body: Body) -> Response {
    let body = match read_body(&llm, body).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let asked: CompletionRequest = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(e) => return refused(&format!("the body is not a request: {e}")),
    };
    let prompt_tokens = match (api, &asked.messages, &asked.prompt) {
        (CompletionApi::Chat, Some(messages), _) if !messages.is_empty() => {
            let contents = messages.iter().filter_map(|m| m.content.as_ref());
            contents.map(words).sum()
        }
        (CompletionApi::Completions, _, Some(prompt)) => words(prompt),
        (CompletionApi::Chat, ..) => return refused("messages: missing, or an empty list"),
        (CompletionApi::Completions, ..) => return refused("prompt: missing"),
    };
    let limit = asked.max_completion_tokens.or(asked.max_tokens);
    if limit.is_some_and(|limit| !(1..=MAX_TOKENS).contains(&limit)) {
        return refused("max_tokens: out of range, use 1 to 1000000");
    }
    let whole = llm.text.len();
    let limit = limit.map_or(whole, |limit| limit as usize);
    let options = asked.stream_options.as_ref();
    let answer = CompletionResponse {
        api,
        id: match api {
            CompletionApi::Chat => format!("chatcmpl-{}", uuid::Uuid::new_v4().simple()),
            CompletionApi::Completions => format!("cmpl-{}", uuid::Uuid::new_v4().simple()),
        },
        created: Timestamp::now().as_second(),
        model: asked.model,
        prompt_tokens,
        tokens: whole.min(limit),
        finish: if limit < whole { "length" } else { "stop" },
        with_usage: options.is_some_and(|options| options.include_usage == Some(true)),
    };
    llm.metrics.runs.inc();
    if asked.stream == Some(true) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_EVENTS);
        tokio::spawn(async move { stream(&llm, &answer, sender).await });
        let kind = [
            (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        return (kind, Body::new(EventBody(receiver))).into_response();
    }
    let (mut text, mut pace) = (String::new(), TokenPacer::of(&llm, answer.tokens));
    while let Some(token) = pace.next().await {
        text.push_str(&token);
    }
    if pace.is_over() {
        Json(answer.to_response(&text)).into_response()
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            RefusalReason::of("stopping"),
            Json(problem("the service is stopping", "server_error")),
        )
            .into_response()
    }
}

/// Sends the events of an answer.
///
/// # Errors
/// The client stopped reading.
async fn stream(
    llm: &Arc<Llm>,
    answer: &CompletionResponse,
    sender: mpsc::Sender<Bytes>,
) -> Result<(), SendError<Bytes>> {
    let mut pace = TokenPacer::of(llm, answer.tokens);
    let mut first = true;
    while let Some(token) = pace.next().await {
        // The role is sent with the first token, so that clients do not mistake it for one.
        if std::mem::take(&mut first) && answer.api == CompletionApi::Chat {
            let role = json!({ "role": "assistant", "content": "" });
            sender.send(sse_event(&answer.chunk(role, None))).await?;
        }
        let piece = answer.token_value(&token);
        sender.send(sse_event(&answer.chunk(piece, None))).await?;
    }
    if !pace.is_over() {
        return Ok(());
    }
    let nothing = match answer.api {
        CompletionApi::Chat => json!({}),
        CompletionApi::Completions => json!(""),
    };
    let last = answer.chunk(nothing, Some(answer.finish));
    sender.send(sse_event(&last)).await?;
    if answer.with_usage {
        sender.send(sse_event(&answer.usage_chunk())).await?;
    }
    sender.send(Bytes::from_static(b"data: [DONE]\n\n")).await
}

/// Yields the tokens of one answer, each when it is due.
struct TokenPacer {
    running: RunGuard,
    halt: watch::Receiver<bool>,
    /// The slot held from before the first token, if slots are limited.
    slot: Option<OwnedSemaphorePermit>,
    begun: Option<Instant>,
    next: usize,
    tokens: usize,
}

impl TokenPacer {
    fn of(llm: &Arc<Llm>, tokens: usize) -> TokenPacer {
        TokenPacer {
            running: RunGuard::new(llm),
            halt: llm.halt.subscribe(),
            slot: None,
            begun: None,
            next: 0,
            tokens,
        }
    }

    fn is_over(&self) -> bool {
        self.next == self.tokens
    }

    /// Waits for the next token; returns `None` when there are no more or the service stops.
    async fn next(&mut self) -> Option<String> {
        if self.is_over() {
            return None;
        }
        let llm = Arc::clone(self.running.llm());
        if let (None, Some(slots)) = (&self.slot, &llm.slots) {
            let slots = Arc::clone(slots);
            self.slot = tokio::select! {
                slot = slots.acquire_owned() => slot.ok(),
                _ = self.halt.wait_for(|halt| *halt) => return None,
            };
        }
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let due = begun + llm.options.token_delay * (self.next as u32 + 1);
        let due = jittered(due, llm.options.jitter);
        tokio::select! {
            biased;
            _ = self.halt.wait_for(|halt| *halt) => return None,
            () = sleep_until(due) => {}
        }
        let token = llm.text.token(self.next, self.tokens);
        self.next += 1;
        llm.metrics.tokens.inc();
        Some(token)
    }
}

impl CompletionResponse {
    fn event(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn object(&self) -> &'static str {
        match self.api {
            CompletionApi::Chat => "chat.completion.chunk",
            CompletionApi::Completions => "text_completion",
        }
    }

    /// Returns the part of an event that holds a token.
    fn token_value(&self, token: &str) -> Value {
        match self.api {
            CompletionApi::Chat => json!({ "content": token }),
            CompletionApi::Completions => json!(token),
        }
    }

    fn chunk(&self, piece: Value, finish: Option<&str>) -> Value {
        let key = match self.api {
            CompletionApi::Chat => "delta",
            CompletionApi::Completions => "text",
        };
        let mut event = self.event(self.object(), &choices(finish, key, piece));
        if self.with_usage {
            event["usage"] = Value::Null;
        }
        event
    }

    fn usage_chunk(&self) -> Value {
        let mut event = self.event(self.object(), &json!([]));
        event["usage"] = self.usage();
        event
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
        })
    }

    /// Returns the response for a request without streaming.
    fn to_response(&self, text: &str) -> Value {
        let (object, key, said) = match self.api {
            CompletionApi::Chat => {
                let message = json!({ "role": "assistant", "content": text });
                ("chat.completion", "message", message)
            }
            CompletionApi::Completions => ("text_completion", "text", json!(text)),
        };
        let mut answer = self.event(object, &choices(Some(self.finish), key, said));
        answer["usage"] = self.usage();
        answer
    }
}

/// Returns a list with one choice that has `said` at `key`.
fn choices(finish: Option<&str>, key: &str, said: Value) -> Value {
    let mut choice = json!({ "index": 0, "logprobs": null, "finish_reason": finish });
    choice[key] = said;
    json!([choice])
}

fn sse_event(event: &Value) -> Bytes {
    Bytes::from(format!("data: {event}\n\n"))
}

/// Counts the words of a content or prompt: a text, or nested lists of parts.
fn words(value: &Value) -> usize {
    match value {
        Value::String(text) => text.split_whitespace().count(),
        Value::Array(parts) => parts.iter().map(words).sum(),
        Value::Object(part) => part.get("text").map_or(0, words),
        // A prompt may be a list of token numbers.
        Value::Number(_) => 1,
        Value::Null | Value::Bool(_) => 0,
    }
}

fn problem(message: &str, kind: &str) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": null, "code": null } })
}

fn refused(message: &str) -> Response {
    let problem = Json(problem(message, "invalid_request_error"));
    (StatusCode::BAD_REQUEST, RefusalReason::of("body"), problem).into_response()
}

/// The body of a streamed response.
struct EventBody(mpsc::Receiver<Bytes>);

impl Streamed for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.get_mut().0.poll_recv(cx);
        next.map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_counted_in_every_form() {
        for (json, count) in [
            (r#""What does it show?""#, 4),
            (
                r#"[{"type":"text","text":"a b"},{"type":"image_url","image_url":{"url":"x y"}}]"#,
                2,
            ),
            (r#"["one two","three"]"#, 3),
            ("[1,2,3]", 3),
            ("null", 0),
        ] {
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(words(&value), count, "{json}");
        }
    }
}
