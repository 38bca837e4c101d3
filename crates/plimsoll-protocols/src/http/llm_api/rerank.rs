//! Ranking documents by how well they answer a query (`POST /v1/rerank`), as vLLM, Jina and Cohere have it, and TEI
//! under `/rerank`.

use serde_json::{Map, Value, json};

use super::{ApiKeyField, LlmApi, ModelPrompt, vectors};

pub(super) static API: LlmApi = LlmApi {
    name: "rerank",
    path: "/rerank",
    key: ApiKeyField::BEARER,
    headers: &[],
    messages_key: None,
    has_system: false,
    limit_key: None,
    default_limit: None,
    has_documents: true,
    computes_numbers: true,
    counts_on_request: false,
    put_prompt,
    read_event: vectors::read,
    read_answer: vectors::read,
};

fn put_prompt(body: &mut Map<String, Value>, prompt: &ModelPrompt<'_>) {
    body.insert("query".to_owned(), json!(prompt.prompt));
    if !prompt.documents.is_empty() {
        body.insert("documents".to_owned(), json!(prompt.documents));
    }
}
