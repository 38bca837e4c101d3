//! Answers requests to the model over HTTP alone, with one response or a stream of server-sent events. An answer has
//! the same text and pace as a run of a session.
//!
//! Each API has a file in this directory, with a [`ServedApi`] that reads its requests and begins its answers. Each
//! word counts as a token, in the prompt too. Any model name is accepted. An answer begins at once, but if slots are
//! limited and all are taken, its first token waits for a slot.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Body as Streamed, Frame};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::run::{RunGuard, add_jitter};
use super::{LlmService, RefusalReason, read_body};

/// Maximum number of tokens that a request may ask for.
const MAX_TOKENS: u64 = 1_000_000;
/// Maximum number of chunks of a stream that are queued for a slow client.
const MAX_QUEUED_CHUNKS: usize = 64;

/// An API that the model is served over.
#[derive(Debug)]
pub(super) struct ServedApi {
    pub(super) path: &'static str,
    /// Reads a request; the error says what is wrong with it.
    pub(super) read: fn(&HeaderMap, &[u8]) -> Result<ModelRequest, String>,
    /// Returns the writer of an answer.
    pub(super) begin: fn(AnswerInfo) -> Box<dyn AnswerWriter>,
    /// Builds the body of a response that reports an error.
    pub(super) error_body: fn(&str, StatusCode) -> Value,
}

/// The parts of a request that affect the answer.
#[derive(Debug)]
pub(super) struct ModelRequest {
    pub(super) model: String,
    pub(super) prompt_tokens: usize,
    /// The key that limits the answer's tokens, and its value.
    pub(super) limit: (&'static str, Option<u64>),
    pub(super) streams: bool,
    /// The events of the stream include token counts, which some APIs make optional.
    pub(super) with_usage: bool,
    /// Number of inputs to compute vectors or scores for; `None` if the answer is a text.
    pub(super) inputs: Option<usize>,
}

/// The properties of an answer, known before its first token.
#[derive(Debug)]
pub(super) struct AnswerInfo {
    /// The part of ids that is unique to the answer.
    pub(super) id: String,
    /// Time at which the answer was begun, in seconds since 1970.
    pub(super) created: i64,
    pub(super) model: String,
    pub(super) prompt_tokens: usize,
    /// The limit of tokens that the request sets.
    pub(super) limit: Option<u64>,
    /// Number of tokens of the answer.
    pub(super) tokens: usize,
    /// Whether the limit cuts the answer short.
    pub(super) is_cut: bool,
    /// See [`ModelRequest::with_usage`].
    pub(super) with_usage: bool,
    /// Number of inputs to compute vectors or scores for.
    pub(super) inputs: usize,
}

/// Writes one answer in the format of an API.
pub(super) trait AnswerWriter: Send {
    /// Appends the events that precede the first token.
    fn write_start(&mut self, out: &mut String);

    /// Appends the events of a token.
    fn write_token(&mut self, token: &str, out: &mut String);

    /// Appends the events that end the answer.
    fn write_end(&mut self, out: &mut String);

    /// Returns the response with the whole text, for a request without streaming.
    fn full_response(&self, text: &str) -> Value;
}

/// Answers a request over `api`.
pub(super) async fn answer_request(
    llm: Arc<LlmService>,
    api: &'static ServedApi,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let body = match read_body(&llm, body).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let request = match (api.read)(&headers, &body).and_then(check_limits) {
        Ok(request) => request,
        Err(message) => return error_response(api, StatusCode::BAD_REQUEST, "body", &message),
    };
    let whole = llm.text.len();
    let limit = request.limit.1.map_or(whole, |limit| limit as usize);
    let tokens = match request.inputs {
        // Vectors and scores take as long as one token.
        Some(_) => 1,
        None => whole.min(limit),
    };
    let mut answer = (api.begin)(AnswerInfo {
        id: uuid::Uuid::new_v4().simple().to_string(),
        created: Timestamp::now().as_second(),
        model: request.model,
        prompt_tokens: request.prompt_tokens,
        limit: request.limit.1,
        tokens,
        is_cut: limit < whole,
        with_usage: request.with_usage,
        inputs: request.inputs.unwrap_or(0),
    });
    llm.metrics.runs.inc();
    if request.streams {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_CHUNKS);
        tokio::spawn(async move { stream_events(&llm, &mut *answer, tokens, sender).await });
        let kind = [
            (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        return (kind, Body::new(EventBody(receiver))).into_response();
    }
    let (mut text, mut pace) = (String::new(), TokenPacer::new(&llm, tokens));
    while let Some(token) = pace.next().await {
        text.push_str(&token);
    }
    if pace.has_ended() {
        Json(answer.full_response(&text)).into_response()
    } else {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        error_response(api, status, "stopping", "the service is stopping")
    }
}

/// Refuses a request for no tokens, or for too many.
fn check_limits(request: ModelRequest) -> Result<ModelRequest, String> {
    let (key, limit) = request.limit;
    if limit.is_some_and(|limit| !(1..=MAX_TOKENS).contains(&limit)) {
        return Err(format!("{key}: out of range, use 1 to {MAX_TOKENS}"));
    }
    Ok(request)
}

/// Sends the events of an answer.
///
/// # Errors
/// Returns an error when the client has stopped reading.
async fn stream_events(
    llm: &Arc<LlmService>,
    answer: &mut dyn AnswerWriter,
    tokens: usize,
    sender: mpsc::Sender<Bytes>,
) -> Result<(), SendError<Bytes>> {
    let mut pace = TokenPacer::new(llm, tokens);
    let mut out = String::new();
    answer.write_start(&mut out);
    if !out.is_empty() {
        sender.send(std::mem::take(&mut out).into()).await?;
    }
    while let Some(token) = pace.next().await {
        answer.write_token(&token, &mut out);
        sender.send(std::mem::take(&mut out).into()).await?;
    }
    if !pace.has_ended() {
        return Ok(());
    }
    answer.write_end(&mut out);
    sender.send(out.into()).await
}

/// Appends an event without a name.
pub(super) fn put_event(out: &mut String, event: &Value) {
    out.push_str(&format!("data: {event}\n\n"));
}

/// Appends an event whose name is the type in its data.
pub(super) fn put_named_event(out: &mut String, event: &Value) {
    let name = event["type"].as_str().unwrap_or_default();
    out.push_str(&format!("event: {name}\ndata: {event}\n\n"));
}

/// Counts the words of a content or prompt: a text, or nested lists of messages and parts.
pub(super) fn count_words(value: &Value) -> usize {
    match value {
        Value::String(text) => text.split_whitespace().count(),
        Value::Array(parts) => parts.iter().map(count_words).sum(),
        Value::Object(part) => ["text", "content"]
            .iter()
            .filter_map(|key| part.get(*key))
            .map(count_words)
            .sum(),
        // A prompt may be a list of token numbers.
        Value::Number(_) => 1,
        Value::Null | Value::Bool(_) => 0,
    }
}

/// Returns the error message for a body that is not a valid request.
pub(super) fn invalid_body_message(e: &serde_json::Error) -> String {
    format!("the body is not a request: {e}")
}

fn error_response(
    api: &ServedApi,
    status: StatusCode,
    reason: &'static str,
    message: &str,
) -> Response {
    let problem = Json((api.error_body)(message, status));
    (status, RefusalReason::new_extension(reason), problem).into_response()
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
    fn new(llm: &Arc<LlmService>, tokens: usize) -> TokenPacer {
        TokenPacer {
            running: RunGuard::new(llm),
            halt: llm.halt.subscribe(),
            slot: None,
            begun: None,
            next: 0,
            tokens,
        }
    }

    fn has_ended(&self) -> bool {
        self.next == self.tokens
    }

    /// Waits for the next token; returns `None` when there are no more or the service stops.
    async fn next(&mut self) -> Option<String> {
        if self.has_ended() {
            return None;
        }
        let llm = Arc::clone(self.running.llm());
        if let (None, Some(slots)) = (&self.slot, &llm.slots) {
            let slots = Arc::clone(slots);
            let _waiting = llm.waiting.enter();
            self.slot = tokio::select! {
                slot = slots.acquire_owned() => slot.ok(),
                _ = self.halt.wait_for(|halt| *halt) => return None,
            };
        }
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let due = begun + llm.options.token_delay * (self.next as u32 + 1);
        let due = add_jitter(due, llm.options.jitter);
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
            (
                r#"[{"role":"user","content":"a b"},{"role":"user","content":[{"type":"input_text","text":"c"}]}]"#,
                3,
            ),
            (r#"["one two","three"]"#, 3),
            ("[1,2,3]", 3),
            ("null", 0),
        ] {
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(count_words(&value), count, "{json}");
        }
    }
}
