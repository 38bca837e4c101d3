//! OpenAI's embeddings (`POST /v1/embeddings`): the vector of a text, or of each text of a list.

use serde_json::{Map, Value, json};

use super::{LlmApi, ModelPrompt, completions, numeric_responses};

pub(super) const API: LlmApi = LlmApi {
    name: "embeddings",
    path: "/embeddings",
    limit_key: None,
    computes_numbers: true,
    counts_on_request: false,
    put_prompt,
    read_event: numeric_responses::read,
    read_answer: numeric_responses::read,
    ..completions::API
};

fn put_prompt(body: &mut Map<String, Value>, prompt: &ModelPrompt<'_>) {
    body.insert("input".to_owned(), json!(prompt.prompt));
}
