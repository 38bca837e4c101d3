//! Parts that OpenAI's APIs share: the list of models, and the format of errors.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The model name in the list of models.
const MODEL_ID: &str = "plimsoll";

pub(super) async fn models() -> Response {
    let model = json!({
        "id": MODEL_ID, "object": "model", "created": 1_700_000_000, "owned_by": MODEL_ID,
    });
    Json(json!({ "object": "list", "data": [model] })).into_response()
}

/// Builds the body of a response that reports an error.
pub(super) fn error_body(message: &str, status: StatusCode) -> Value {
    let kind = if status.is_client_error() {
        "invalid_request_error"
    } else {
        "server_error"
    };
    json!({ "error": { "message": message, "type": kind, "param": null, "code": null } })
}
