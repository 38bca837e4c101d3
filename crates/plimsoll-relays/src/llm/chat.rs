//! OpenAI's chat completions and completions. The two differ in the keys of a request's prompt and of a choice's text.

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::completion::{
    AnswerInfo, AnswerWriter, ModelRequest, ServedApi, count_words, invalid_body_message, put_event,
};
use super::openai::error_body;

pub(super) static CHAT_API: ServedApi = ServedApi {
    path: "/v1/chat/completions",
    read: read_chat,
    begin: |info| Box::new(ChoiceWriter::new(info, &CHAT_FORMAT)),
    error_body,
};

pub(super) static COMPLETIONS_API: ServedApi = ServedApi {
    path: "/v1/completions",
    read: read_completion,
    begin: |info| Box::new(ChoiceWriter::new(info, &COMPLETION_FORMAT)),
    error_body,
};

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

fn read_chat(_: &HeaderMap, body: &[u8]) -> Result<ModelRequest, String> {
    read(body, |request| {
        let messages = request.messages.iter().flatten();
        let contents = messages
            .clone()
            .filter_map(|message| message.content.as_ref());
        let tokens = contents.map(count_words).sum();
        let has_any = messages.clone().next().is_some();
        has_any
            .then_some(tokens)
            .ok_or("messages: missing, or an empty list")
    })
}

fn read_completion(_: &HeaderMap, body: &[u8]) -> Result<ModelRequest, String> {
    read(body, |request| {
        let prompt = request.prompt.as_ref().map(count_words);
        prompt.ok_or("prompt: missing")
    })
}

fn read(
    body: &[u8],
    count: fn(&CompletionRequest) -> Result<usize, &'static str>,
) -> Result<ModelRequest, String> {
    let request: CompletionRequest =
        serde_json::from_slice(body).map_err(|e| invalid_body_message(&e))?;
    let options = request.stream_options.as_ref();
    Ok(ModelRequest {
        prompt_tokens: count(&request)?,
        limit: (
            "max_tokens",
            request.max_completion_tokens.or(request.max_tokens),
        ),
        streams: request.stream == Some(true),
        with_usage: options.is_some_and(|options| options.include_usage == Some(true)),
        inputs: None,
        model: request.model,
    })
}

/// The keys and names by which the two APIs' responses differ.
struct ChoiceFormat {
    id_prefix: &'static str,
    /// The value of `object` in an event, and in a whole response.
    objects: [&'static str; 2],
    /// The key of a choice's text in an event, and in a whole response.
    keys: [&'static str; 2],
    /// A choice's text is the content of a message, whose role is sent first.
    has_roles: bool,
}

const CHAT_FORMAT: ChoiceFormat = ChoiceFormat {
    id_prefix: "chatcmpl",
    objects: ["chat.completion.chunk", "chat.completion"],
    keys: ["delta", "message"],
    has_roles: true,
};

const COMPLETION_FORMAT: ChoiceFormat = ChoiceFormat {
    id_prefix: "cmpl",
    objects: ["text_completion", "text_completion"],
    keys: ["text", "text"],
    has_roles: false,
};

/// Writes an answer with one choice.
struct ChoiceWriter {
    info: AnswerInfo,
    format: &'static ChoiceFormat,
    has_begun: bool,
}

impl ChoiceWriter {
    fn new(info: AnswerInfo, format: &'static ChoiceFormat) -> ChoiceWriter {
        ChoiceWriter {
            info,
            format,
            has_begun: false,
        }
    }

    fn response_json(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": format!("{}-{}", self.format.id_prefix, self.info.id),
            "object": object,
            "created": self.info.created,
            "model": self.info.model,
            "choices": choices,
        })
    }

    /// Appends an event with a piece of the choice.
    fn put_chunk(&self, piece: Value, finish: Option<&str>, out: &mut String) {
        let [key, _] = self.format.keys;
        let [object, _] = self.format.objects;
        let mut event = self.response_json(object, choices(finish, key, piece));
        if self.info.with_usage {
            event["usage"] = Value::Null;
        }
        put_event(out, &event);
    }

    fn usage(&self) -> Value {
        let (prompt, answer) = (self.info.prompt_tokens, self.info.tokens);
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        })
    }

    fn finish_reason(&self) -> &'static str {
        if self.info.is_cut { "length" } else { "stop" }
    }
}

impl AnswerWriter for ChoiceWriter {
    fn write_start(&mut self, _out: &mut String) {}

    fn write_token(&mut self, token: &str, out: &mut String) {
        if !self.format.has_roles {
            return self.put_chunk(json!(token), None, out);
        }
        // The role is sent together with the first token, so that clients do not mistake the role for a token.
        if !std::mem::replace(&mut self.has_begun, true) {
            let role = json!({ "role": "assistant", "content": "" });
            self.put_chunk(role, None, out);
        }
        self.put_chunk(json!({ "content": token }), None, out);
    }

    fn write_end(&mut self, out: &mut String) {
        let nothing = if self.format.has_roles {
            json!({})
        } else {
            json!("")
        };
        self.put_chunk(nothing, Some(self.finish_reason()), out);
        if self.info.with_usage {
            let [object, _] = self.format.objects;
            let mut event = self.response_json(object, json!([]));
            event["usage"] = self.usage();
            put_event(out, &event);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn full_response(&self, text: &str) -> Value {
        let said = if self.format.has_roles {
            json!({ "role": "assistant", "content": text })
        } else {
            json!(text)
        };
        let [_, key] = self.format.keys;
        let [_, object] = self.format.objects;
        let choices = choices(Some(self.finish_reason()), key, said);
        let mut answer = self.response_json(object, choices);
        answer["usage"] = self.usage();
        answer
    }
}

/// Returns a list with one choice, which has the value `said` at `key`.
fn choices(finish: Option<&str>, key: &str, said: Value) -> Value {
    let mut choice = json!({ "index": 0, "logprobs": null, "finish_reason": finish });
    choice[key] = said;
    json!([choice])
}
