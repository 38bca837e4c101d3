//! A simulated rerank API: it always ranks the documents in the order in which they were sent.

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::completion::{
    AnswerInfo, AnswerWriter, ModelRequest, ServedApi, count_words, invalid_body_message,
};
use super::openai::error_body;

/// The properties that the API has under either path.
const SHARED_RERANK_PROPERTIES: ServedApi = ServedApi {
    path: "",
    read,
    begin: |info| Box::new(RerankWriter(info)),
    error_body,
};

pub(super) static RERANK_API: ServedApi = ServedApi {
    path: "/v1/rerank",
    ..SHARED_RERANK_PROPERTIES
};

/// The same API under a path that some services use.
pub(super) static UNVERSIONED_RERANK_API: ServedApi = ServedApi {
    path: "/rerank",
    ..SHARED_RERANK_PROPERTIES
};

/// The parameters of a request; other keys are ignored.
#[derive(Deserialize)]
struct RerankRequest {
    model: String,
    query: Value,
    documents: Vec<Value>,
}

fn read(_: &HeaderMap, body: &[u8]) -> Result<ModelRequest, String> {
    let request: RerankRequest =
        serde_json::from_slice(body).map_err(|e| invalid_body_message(&e))?;
    if request.documents.is_empty() {
        return Err("documents: an empty list".to_owned());
    }
    let documents: usize = request.documents.iter().map(count_words).sum();
    Ok(ModelRequest {
        prompt_tokens: count_words(&request.query) + documents,
        limit: ("max_tokens", None),
        streams: false,
        with_usage: true,
        inputs: Some(request.documents.len()),
        model: request.model,
    })
}

/// Writes the scores of all documents.
struct RerankWriter(AnswerInfo);

impl AnswerWriter for RerankWriter {
    fn write_start(&mut self, _out: &mut String) {}

    fn write_token(&mut self, _token: &str, _out: &mut String) {}

    fn write_end(&mut self, _out: &mut String) {}

    fn full_response(&self, _text: &str) -> Value {
        let results = (0..self.0.inputs)
            .map(|index| json!({ "index": index, "relevance_score": 1.0 / (index + 1) as f64 }));
        json!({
            "id": format!("rerank-{}", self.0.id),
            "model": self.0.model,
            "results": results.collect::<Vec<_>>(),
            "usage": {
                "prompt_tokens": self.0.prompt_tokens,
                "total_tokens": self.0.prompt_tokens,
            },
        })
    }
}
