//! The APIs of language models: their properties, how requests are written, and how responses are read.
//!
//! Each API is a submodule and an entry of [`LLM_APIS`]. `llm` uses it to write requests, and `body_inspection` to read
//! responses.

mod chat;
mod choices;
mod completions;
mod content_blocks;
mod embeddings;
mod messages;
mod numeric_responses;
mod rerank;
mod responses;

use std::fmt;

use plimsoll_model::plan::GoodputBounds;
use serde_json::{Map, Value, json};

use super::finish_reason::FinishReason;
use super::tokens::AnswerChunk;

/// All APIs, in the order in which flags and messages list them.
const LLM_APIS: [&LlmApi; 6] = [
    &chat::API,
    &completions::API,
    &responses::API,
    &messages::API,
    &embeddings::API,
    &rerank::API,
];

/// An API of language models.
pub struct LlmApi {
    /// The name in flags and plans.
    pub(super) name: &'static str,
    /// The path below `/v1`.
    pub(super) path: &'static str,
    pub(super) key: ApiKeyField,
    /// Header fields that every request needs.
    pub(super) headers: &'static [(&'static str, &'static str)],
    /// The request key that contains the messages of a conversation; `None` if the API has no conversations.
    pub(super) messages_key: Option<&'static str>,
    /// Whether requests may have a system message before the prompt.
    pub(super) has_system: bool,
    /// The request key that limits the tokens of an answer; `None` if answers have no tokens.
    pub(super) limit_key: Option<&'static str>,
    /// The limit that is sent if the user sets none; `None` leaves it to the service.
    pub(super) default_limit: Option<u32>,
    /// Whether requests have documents in addition to the prompt.
    pub(super) has_documents: bool,
    /// Whether responses contain numbers (embeddings or scores) instead of tokens, and are never streamed.
    pub(super) computes_numbers: bool,
    /// Whether services count the tokens of a stream only on request (`stream_options`).
    pub(super) counts_on_request: bool,
    /// Writes the prompt into a request.
    pub(super) put_prompt: fn(&mut Map<String, Value>, &ModelPrompt<'_>),
    /// Reads an event of a streamed response.
    pub(super) read_event: ReadAnswerFn,
    /// Reads a response that is not streamed.
    pub(super) read_answer: ReadAnswerFn,
}

/// A function that reads an event, or a response that is not streamed.
///
/// # Errors
/// Returns an error if the data are not JSON, or can't be a response of the API; the message gives the position.
pub(super) type ReadAnswerFn = for<'a> fn(&'a [u8]) -> Result<AnswerChunk<'a>, serde_json::Error>;

/// How an API's key is sent.
#[derive(Debug)]
pub(super) struct ApiKeyField {
    /// The environment variable that usually contains the key.
    pub(super) variable: &'static str,
    /// The header field.
    pub(super) field: &'static str,
    /// The text before the key in the field's value.
    pub(super) scheme: &'static str,
}

impl ApiKeyField {
    /// The field for the key of OpenAI's API, and of services that implement it.
    const OPENAI_KEY_FIELD: ApiKeyField = ApiKeyField {
        variable: "OPENAI_API_KEY",
        field: "authorization",
        scheme: "Bearer ",
    };
}

/// The texts of a request, which may contain template fields.
#[derive(Debug)]
pub(super) struct ModelPrompt<'a> {
    pub(super) system: Option<&'a str>,
    pub(super) prompt: &'a str,
    pub(super) documents: &'a [String],
}

impl ModelPrompt<'_> {
    /// Returns the prompt as a message with the role `user`.
    fn user_message(&self) -> Value {
        json!({ "role": "user", "content": self.prompt })
    }
}

impl LlmApi {
    /// Returns the API with this name.
    pub fn find(name: &str) -> Option<&'static LlmApi> {
        LLM_APIS.into_iter().find(|api| api.name == name)
    }

    /// Returns the error that a response document reports, to be shown to the user; `None` if it reports none, or is
    /// not a document of this API.
    pub(super) fn error_message(&self, document: &[u8]) -> Option<Vec<u8>> {
        let answer = (self.read_answer)(document).ok()?;
        let has_failed =
            |reason: Option<FinishReason>| reason.is_some_and(FinishReason::is_failure);
        let is_error = answer.is_error()
            || answer
                .finish_reasons()
                .any(|(_, reason)| has_failed(reason));
        is_error.then(|| answer.explanation_or_event(document).to_vec())
    }

    /// Returns the names of all APIs.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        LLM_APIS.into_iter().map(|api| api.name)
    }

    /// Returns the names of the APIs that satisfy `has`, as a list for an error message.
    pub(super) fn names_where(has: impl Fn(&LlmApi) -> bool) -> String {
        let apis = LLM_APIS.into_iter().filter(|api| has(api));
        let names: Vec<String> = apis.map(|api| format!("--api {}", api.name)).collect();
        names.join(" or ")
    }
}

impl PartialEq for LlmApi {
    fn eq(&self, other: &LlmApi) -> bool {
        self.name == other.name
    }
}

impl Eq for LlmApi {}

impl fmt::Debug for LlmApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The rules by which the responses of a model are read, and by which they count as good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelResponseRules {
    /// The API of the service.
    pub api: &'static LlmApi,
    /// The bounds that a response must meet to count as good.
    pub goodput: GoodputBounds,
}

impl Default for ModelResponseRules {
    /// Returns the settings for chat completions, without bounds for good responses.
    fn default() -> ModelResponseRules {
        ModelResponseRules {
            api: &chat::API,
            goodput: GoodputBounds::default(),
        }
    }
}
