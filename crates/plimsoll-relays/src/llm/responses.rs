//! OpenAI's Responses API. Its events are numbered, and the last one repeats the whole response.

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::completion::{
    AnswerInfo, AnswerWriter, ModelRequest, ServedApi, count_words, invalid_body_message,
    put_named_event,
};
use super::openai::error_body;

pub(super) static RESPONSES_API: ServedApi = ServedApi {
    path: "/v1/responses",
    read,
    begin: |info| Box::new(ResponseWriter::new(info)),
    error_body,
};

/// The parameters of a request; other keys are ignored.
#[derive(Deserialize)]
struct ResponseRequest {
    model: String,
    input: Option<Value>,
    instructions: Option<Value>,
    stream: Option<bool>,
    max_output_tokens: Option<u64>,
}

fn read(_: &HeaderMap, body: &[u8]) -> Result<ModelRequest, String> {
    let request: ResponseRequest =
        serde_json::from_slice(body).map_err(|e| invalid_body_message(&e))?;
    let input = match &request.input {
        Some(input @ Value::String(_)) => input,
        Some(input @ Value::Array(items)) if !items.is_empty() => input,
        _ => return Err("input: missing, or an empty list".to_owned()),
    };
    Ok(ModelRequest {
        prompt_tokens: count_words(input) + request.instructions.as_ref().map_or(0, count_words),
        limit: ("max_output_tokens", request.max_output_tokens),
        streams: request.stream == Some(true),
        with_usage: true,
        inputs: None,
        model: request.model,
    })
}

/// Writes a response whose output is one message.
struct ResponseWriter {
    info: AnswerInfo,
    /// The number of the next event.
    next_number: u64,
    text: String,
}

impl ResponseWriter {
    fn new(info: AnswerInfo) -> ResponseWriter {
        ResponseWriter {
            info,
            next_number: 0,
            text: String::new(),
        }
    }

    fn put_numbered_event(&mut self, mut event: Value, out: &mut String) {
        event["sequence_number"] = json!(self.next_number);
        self.next_number += 1;
        put_named_event(out, &event);
    }

    /// Appends an event about the text.
    fn put_part(&mut self, kind: &str, key: &str, value: Value, out: &mut String) {
        let mut event = json!({
            "type": format!("response.{kind}"),
            "item_id": self.item_id(),
            "output_index": 0,
            "content_index": 0,
        });
        event[key] = value;
        if key != "part" {
            event["logprobs"] = json!([]);
        }
        self.put_numbered_event(event, out);
    }

    fn put_item(&mut self, kind: &str, item: Value, out: &mut String) {
        let event = json!({
            "type": format!("response.{kind}"),
            "output_index": 0,
            "item": item,
        });
        self.put_numbered_event(event, out);
    }

    fn item_id(&self) -> String {
        format!("msg_{}", self.info.id)
    }

    /// Returns the message; without a text, as it is before its first token.
    fn message(&self, text: Option<&str>) -> Value {
        let status = match text {
            None => "in_progress",
            Some(_) => self.completion_status(),
        };
        let content: Vec<Value> = text.into_iter().map(text_part).collect();
        json!({
            "id": self.item_id(), "type": "message", "status": status, "role": "assistant",
            "content": content,
        })
    }

    fn completion_status(&self) -> &'static str {
        if self.info.is_cut {
            "incomplete"
        } else {
            "completed"
        }
    }

    /// Returns the response; without a text, as it is before its end.
    fn response(&self, text: Option<&str>) -> Value {
        let (status, output, usage) = match text {
            None => ("in_progress", json!([]), Value::Null),
            Some(_) => (
                self.completion_status(),
                json!([self.message(text)]),
                self.usage(),
            ),
        };
        let is_cut = text.is_some() && self.info.is_cut;
        let incomplete = is_cut.then(|| json!({ "reason": "max_output_tokens" }));
        json!({
            "id": format!("resp_{}", self.info.id),
            "object": "response",
            "created_at": self.info.created,
            "status": status,
            "error": null,
            "incomplete_details": incomplete,
            "instructions": null,
            "max_output_tokens": self.info.limit,
            "metadata": {},
            "model": self.info.model,
            "output": output,
            "parallel_tool_calls": true,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": usage,
        })
    }

    fn usage(&self) -> Value {
        let (prompt, answer) = (self.info.prompt_tokens, self.info.tokens);
        json!({
            "input_tokens": prompt,
            "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": answer,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": prompt + answer,
        })
    }
}

impl AnswerWriter for ResponseWriter {
    fn write_start(&mut self, out: &mut String) {
        for kind in ["response.created", "response.in_progress"] {
            let event = json!({ "type": kind, "response": self.response(None) });
            self.put_numbered_event(event, out);
        }
    }

    fn write_token(&mut self, token: &str, out: &mut String) {
        if self.text.is_empty() {
            self.put_item("output_item.added", self.message(None), out);
            self.put_part("content_part.added", "part", text_part(""), out);
        }
        self.text.push_str(token);
        self.put_part("output_text.delta", "delta", json!(token), out);
    }

    fn write_end(&mut self, out: &mut String) {
        let text = std::mem::take(&mut self.text);
        self.put_part("output_text.done", "text", json!(text), out);
        self.put_part("content_part.done", "part", text_part(&text), out);
        self.put_item("output_item.done", self.message(Some(&text)), out);
        let kind = format!("response.{}", self.completion_status());
        let event = json!({ "type": kind, "response": self.response(Some(&text)) });
        self.put_numbered_event(event, out);
    }

    fn full_response(&self, text: &str) -> Value {
        self.response(Some(text))
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}
