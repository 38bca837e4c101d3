//! OpenAI's completions (`POST /v1/completions`): a text that the model continues.

use serde_json::{Map, Value, json};

use super::{ApiKeyField, LlmApi, ModelPrompt, choices};

/// The simplest API; the other APIs are defined by their differences from it.
pub(super) const API: LlmApi = LlmApi {
    name: "completions",
    path: "/completions",
    key: ApiKeyField::OPENAI_KEY_FIELD,
    headers: &[],
    messages_key: None,
    has_system: false,
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
    body.insert("prompt".to_owned(), json!(prompt.prompt));
}
