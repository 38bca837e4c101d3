//! The API that ranks documents by how well they answer a query (`POST /v1/rerank`), as in vLLM, Jina and Cohere, and
//! in TEI under `/rerank`.

use serde_json::{Map, Value, json};

use super::{LlmApi, ModelPrompt, embeddings};

pub(super) static API: LlmApi = LlmApi {
    name: "rerank",
    path: "/rerank",
    has_documents: true,
    put_prompt,
    ..embeddings::API
};

fn put_prompt(body: &mut Map<String, Value>, prompt: &ModelPrompt<'_>) {
    body.insert("query".to_owned(), json!(prompt.prompt));
    if !prompt.documents.is_empty() {
        body.insert("documents".to_owned(), json!(prompt.documents));
    }
}
