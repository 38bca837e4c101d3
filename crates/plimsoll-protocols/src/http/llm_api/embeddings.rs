//! OpenAI's embeddings (`POST /v1/embeddings`): the vector of a text, or of each text of a list.

use serde_json::{Map, Value, json};

use super::{LlmApi, ModelPrompt, completions, vectors};

pub(super) const API: LlmApi = LlmApi {
    name: "embeddings",
    path: "/embeddings",
    limit_key: None,
    computes_numbers: true,
    counts_on_request: false,
    put_prompt,
    read_event: vectors::read,
    read_answer: vectors::read,
    ..completions::API
};

fn put_prompt(body: &mut Map<String, Value>, prompt: &ModelPrompt<'_>) {
    body.insert("input".to_owned(), json!(prompt.prompt));
}
