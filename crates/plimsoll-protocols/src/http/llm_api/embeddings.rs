//! OpenAI's embeddings (`POST /v1/embeddings`): the vector of a text, or of each text of a list.

use serde_json::{Map, Value, json};

use super::{ApiKeyField, LlmApi, ModelPrompt, vectors};

pub(super) static API: LlmApi = LlmApi {
    name: "embeddings",
    path: "/embeddings",
    key: ApiKeyField::BEARER,
    headers: &[],
    messages_key: None,
    has_system: false,
    limit_key: None,
    default_limit: None,
    has_documents: false,
    computes_numbers: true,
    counts_on_request: false,
    put_prompt,
    read_event: vectors::read,
    read_answer: vectors::read,
};

fn put_prompt(body: &mut Map<String, Value>, prompt: &ModelPrompt<'_>) {
    body.insert("input".to_owned(), json!(prompt.prompt));
}
