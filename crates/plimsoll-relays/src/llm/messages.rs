//! Anthropic's Messages API. A request must name the version of the API and limit the answer's tokens.

use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::completion::{
    AnswerInfo, AnswerWriter, ModelRequest, ServedApi, count_words, invalid_body_message,
    put_named_event,
};

pub(super) static MESSAGES_API: ServedApi = ServedApi {
    path: "/v1/messages",
    read,
    begin: |info| Box::new(MessageWriter(info)),
    error_body,
};

/// The parameters of a request; other keys are ignored.
#[derive(Deserialize)]
struct MessageRequest {
    model: String,
    messages: Vec<Value>,
    system: Option<Value>,
    stream: Option<bool>,
    max_tokens: Option<u64>,
}

fn read(headers: &HeaderMap, body: &[u8]) -> Result<ModelRequest, String> {
    if !headers.contains_key("anthropic-version") {
        return Err("anthropic-version: the header field is missing".to_owned());
    }
    let request: MessageRequest =
        serde_json::from_slice(body).map_err(|e| invalid_body_message(&e))?;
    if request.messages.is_empty() {
        return Err("messages: an empty list".to_owned());
    }
    if request.max_tokens.is_none() {
        return Err("max_tokens: missing".to_owned());
    }
    let prompt: usize = request.messages.iter().map(count_words).sum();
    Ok(ModelRequest {
        prompt_tokens: prompt + request.system.as_ref().map_or(0, count_words),
        limit: ("max_tokens", request.max_tokens),
        streams: request.stream == Some(true),
        with_usage: true,
        inputs: None,
        model: request.model,
    })
}

fn error_body(message: &str, status: StatusCode) -> Value {
    let kind = if status.is_client_error() {
        "invalid_request_error"
    } else {
        "api_error"
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

/// Writes a message with one block of text.
struct MessageWriter(AnswerInfo);

impl MessageWriter {
    /// Returns the message; without a text, as it is before its first token.
    fn message(&self, text: Option<&str>) -> Value {
        let content: Vec<Value> = text.into_iter().map(text_block).collect();
        let tokens = text.map_or(0, |_| self.0.tokens);
        json!({
            "id": format!("msg_{}", self.0.id),
            "type": "message",
            "role": "assistant",
            "model": self.0.model,
            "content": content,
            "stop_reason": text.map(|_| self.stop_reason()),
            "stop_sequence": null,
            "usage": {
                "input_tokens": self.0.prompt_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": tokens,
            },
        })
    }

    fn stop_reason(&self) -> &'static str {
        if self.0.is_cut {
            "max_tokens"
        } else {
            "end_turn"
        }
    }
}

impl AnswerWriter for MessageWriter {
    fn write_start(&mut self, out: &mut String) {
        let begun = json!({ "type": "message_start", "message": self.message(None) });
        put_named_event(out, &begun);
        let block = json!({
            "type": "content_block_start", "index": 0, "content_block": text_block(""),
        });
        put_named_event(out, &block);
        put_named_event(out, &json!({ "type": "ping" }));
    }

    fn write_token(&mut self, token: &str, out: &mut String) {
        let delta = json!({ "type": "text_delta", "text": token });
        let event = json!({ "type": "content_block_delta", "index": 0, "delta": delta });
        put_named_event(out, &event);
    }

    fn write_end(&mut self, out: &mut String) {
        put_named_event(out, &json!({ "type": "content_block_stop", "index": 0 }));
        let end = json!({
            "type": "message_delta",
            "delta": { "stop_reason": self.stop_reason(), "stop_sequence": null },
            "usage": { "output_tokens": self.0.tokens },
        });
        put_named_event(out, &end);
        put_named_event(out, &json!({ "type": "message_stop" }));
    }

    fn full_response(&self, text: &str) -> Value {
        self.message(Some(text))
    }
}

fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}
