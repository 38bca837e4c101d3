//! OpenAI's chat completions (`POST /v1/chat/completions`), which most services speak.

use serde_json::{Map, Value, json};

use super::{ApiKeyField, LlmApi, ModelPrompt, choices};

pub(super) static API: LlmApi = LlmApi {
    name: "chat",
    path: "/chat/completions",
    key: ApiKeyField::BEARER,
    headers: &[],
    messages_key: Some("messages"),
    has_system: true,
    limit_key: Some("max_tokens"),
    default_limit: None,
    has_documents: false,
    computes_numbers: false,
    counts_on_request: true,
    put_prompt,
    read_event: choices::read,
    read_answer: choices::read,
};

fn put_prompt(body: &mut Map<String, Value>, prompt: &ModelPrompt<'_>) {
    let system = prompt.system.into_iter();
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    let messages = system.chain([prompt.user_message()]);
    body.insert("messages".to_owned(), messages.collect());
}
