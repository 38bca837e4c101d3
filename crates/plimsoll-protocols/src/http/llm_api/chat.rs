//! OpenAI's chat completions (`POST /v1/chat/completions`), which most services implement.

use serde_json::{Map, Value, json};

use super::{LlmApi, ModelPrompt, completions};

pub(super) static API: LlmApi = LlmApi {
    name: "chat",
    path: "/chat/completions",
    messages_key: Some("messages"),
    has_system: true,
    put_prompt,
    ..completions::API
};

fn put_prompt(body: &mut Map<String, Value>, prompt: &ModelPrompt<'_>) {
    let system = prompt.system.into_iter();
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    let messages = system.chain([prompt.user_message()]);
    body.insert("messages".to_owned(), messages.collect());
}
