//! OpenAI's embeddings. The vectors are the same for every text.

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::completion::{
    AnswerInfo, AnswerWriter, ModelRequest, ServedApi, count_words, invalid_body_message,
};
use super::openai::error_body;

/// Length of a vector.
const VECTOR_DIMENSIONS: usize = 16;

pub(super) static EMBEDDINGS_API: ServedApi = ServedApi {
    path: "/v1/embeddings",
    read,
    begin: |info| Box::new(EmbeddingWriter(info)),
    error_body,
};

/// The parameters of a request; other keys are ignored.
#[derive(Deserialize)]
struct EmbeddingRequest {
    model: String,
    input: Value,
}

fn read(_: &HeaderMap, body: &[u8]) -> Result<ModelRequest, String> {
    let request: EmbeddingRequest =
        serde_json::from_slice(body).map_err(|e| invalid_body_message(&e))?;
    let inputs = match &request.input {
        Value::String(_) => 1,
        // A list of numbers is one text, given as its token ids.
        Value::Array(items) if items.iter().any(Value::is_number) => 1,
        Value::Array(items) if !items.is_empty() => items.len(),
        _ => return Err("input: use a text, or a list of them".to_owned()),
    };
    Ok(ModelRequest {
        prompt_tokens: count_words(&request.input),
        limit: ("max_tokens", None),
        streams: false,
        with_usage: true,
        inputs: Some(inputs),
        model: request.model,
    })
}

/// Writes the vectors of all inputs.
struct EmbeddingWriter(AnswerInfo);

impl AnswerWriter for EmbeddingWriter {
    fn write_start(&mut self, _out: &mut String) {}

    fn write_token(&mut self, _token: &str, _out: &mut String) {}

    fn write_end(&mut self, _out: &mut String) {}

    fn full_response(&self, _text: &str) -> Value {
        let vector = vec![0.25; VECTOR_DIMENSIONS];
        let data = (0..self.0.inputs)
            .map(|index| json!({ "object": "embedding", "index": index, "embedding": vector }));
        json!({
            "object": "list",
            "data": data.collect::<Vec<_>>(),
            "model": self.0.model,
            "usage": {
                "prompt_tokens": self.0.prompt_tokens,
                "total_tokens": self.0.prompt_tokens,
            },
        })
    }
}
