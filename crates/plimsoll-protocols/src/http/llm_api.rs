//! The APIs of language models: what is particular to each, how its requests are written, and how its answers are read.
//!
//! An API is a file below and a line in [`LLM_APIS`]. `llm` writes requests by it, and `content` reads answers.

mod blocks;
mod chat;
mod choices;
mod completions;
mod embeddings;
mod messages;
mod rerank;
mod responses;
mod vectors;

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
    /// The key of a request with the messages of a conversation; `None` if there are no conversations.
    pub(super) messages_key: Option<&'static str>,
    /// Requests may have instructions before the prompt.
    pub(super) has_system: bool,
    /// The key of a request that limits the tokens of an answer; `None` if an answer has none.
    pub(super) limit_key: Option<&'static str>,
    /// The limit to send if the user gives none; `None` leaves it to the service.
    pub(super) default_limit: Option<u32>,
    /// Requests have documents beside the prompt.
    pub(super) has_documents: bool,
    /// Answers hold numbers that are computed from the inputs, and come as a whole.
    pub(super) computes_numbers: bool,
    /// Services count the tokens of a stream only if asked to (`stream_options`).
    pub(super) counts_on_request: bool,
    /// Writes the prompt into a request.
    pub(super) put_prompt: fn(&mut Map<String, Value>, &ModelPrompt<'_>),
    /// Reads an event of a streamed answer.
    pub(super) read_event: ReadAnswer,
    /// Reads an answer that comes as a whole.
    pub(super) read_answer: ReadAnswer,
}

/// A reader of an event, or of a whole answer.
///
/// # Errors
/// When it is not JSON, or can't be an answer of the API; the message says where.
pub(super) type ReadAnswer = for<'a> fn(&'a [u8]) -> Result<AnswerChunk<'a>, serde_json::Error>;

/// How an API's key is sent.
#[derive(Debug)]
pub(super) struct ApiKeyField {
    /// The environment variable that usually holds the key.
    pub(super) variable: &'static str,
    /// The header field.
    pub(super) field: &'static str,
    /// The text before the key in the field's value.
    pub(super) scheme: &'static str,
}

impl ApiKeyField {
    /// The key of OpenAI's API, and of services that speak it.
    const BEARER: ApiKeyField = ApiKeyField {
        variable: "OPENAI_API_KEY",
        field: "authorization",
        scheme: "Bearer ",
    };
}

/// The text of a request, with template fields.
#[derive(Debug)]
pub(super) struct ModelPrompt<'a> {
    pub(super) system: Option<&'a str>,
    pub(super) prompt: &'a str,
    pub(super) documents: &'a [String],
}

impl ModelPrompt<'_> {
    /// Returns the prompt as the only message of its user.
    fn user_message(&self) -> Value {
        json!({ "role": "user", "content": self.prompt })
    }
}

impl LlmApi {
    /// Returns the API of this name.
    pub fn named(name: &str) -> Option<&'static LlmApi> {
        LLM_APIS.into_iter().find(|api| api.name == name)
    }

    /// Returns what a document with an answer as a whole says of a failure, for a message; `None`: it reports none, or is
    /// not a document of this API.
    pub(super) fn error_of(&self, document: &[u8]) -> Option<Vec<u8>> {
        let answer = (self.read_answer)(document).ok()?;
        let has_failed =
            |reason: Option<FinishReason>| reason.is_some_and(FinishReason::is_failure);
        let is_error = answer.is_error() || answer.ends().any(|(_, reason)| has_failed(reason));
        is_error.then(|| answer.explanation_or(document).to_vec())
    }

    /// Returns the names of all APIs.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        LLM_APIS.into_iter().map(|api| api.name)
    }

    /// Returns the names of the APIs for which `has` holds, for a message.
    pub(super) fn names_with(has: impl Fn(&LlmApi) -> bool) -> String {
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

/// How the answers of a model are read and judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelAnswers {
    /// The API that the service speaks.
    pub api: &'static LlmApi,
    /// The bounds that an answer must meet to count as good.
    pub goodput: GoodputBounds,
}

impl Default for ModelAnswers {
    /// Returns the answers of chat completions, all of which are good.
    fn default() -> ModelAnswers {
        ModelAnswers {
            api: &chat::API,
            goodput: GoodputBounds::default(),
        }
    }
}
