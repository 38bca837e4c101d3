//! Anthropic's Messages API (`POST /v1/messages`). A response is a list of blocks, which are streamed one after
//! another. The first event has the prompt's token count, and the last but one has the answer's.

use std::borrow::Cow;

use serde::de::MapAccess;
use serde_json::{Map, Value, json};

use super::content_blocks::{AnswerItem, ErrorFields};
use super::{ApiKeyField, LlmApi, ModelPrompt, completions};
use crate::http::finish_reason::FinishReasonField;
use crate::http::lenient_json::{
    FromAnyJson, LenientCount, LenientString, ObjectKey, read_value, skip_value,
};
use crate::http::tokens::{AnswerChunk, Delta, TokenCounts, read_json};

pub(super) static API: LlmApi = LlmApi {
    name: "messages",
    path: "/messages",
    key: ApiKeyField {
        variable: "ANTHROPIC_API_KEY",
        field: "x-api-key",
        scheme: "",
    },
    headers: &[("anthropic-version", "2023-06-01")],
    messages_key: Some("messages"),
    has_system: true,
    // The API rejects requests without a limit.
    default_limit: Some(1024),
    counts_on_request: false,
    put_prompt,
    read_event,
    read_answer,
    ..completions::API
};

fn put_prompt(body: &mut Map<String, Value>, prompt: &ModelPrompt<'_>) {
    if let Some(system) = prompt.system {
        body.insert("system".to_owned(), json!(system));
    }
    body.insert("messages".to_owned(), json!([prompt.user_message()]));
}

fn read_event(data: &[u8]) -> Result<AnswerChunk<'_>, serde_json::Error> {
    read_json::<MessageEvent<'_>>(data).map(MessageEvent::into_chunk)
}

fn read_answer(data: &[u8]) -> Result<AnswerChunk<'_>, serde_json::Error> {
    read_json::<MessageObject<'_>>(data).map(MessageObject::into_unstreamed_chunk)
}

/// An event of a stream.
#[derive(Default)]
struct MessageEvent<'a> {
    kind: Cow<'a, str>,
    /// A delta of a block, or a change of the message.
    delta: AnswerItem<'a>,
    /// The beginning of a block.
    block: AnswerItem<'a>,
    message: MessageObject<'a>,
    usage: MessageUsage,
    error: ErrorFields<'a>,
}

impl<'de> FromAnyJson<'de> for MessageEvent<'de> {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "type" => self.kind = read_value::<LenientString<'_>, _>(&mut object)?.0,
                "delta" => self.delta = read_value(&mut object)?,
                "content_block" => self.block = read_value(&mut object)?,
                "message" => self.message = read_value(&mut object)?,
                "usage" => self.usage = read_value(&mut object)?,
                "error" => self.error = read_value(&mut object)?,
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }
}

impl<'a> MessageEvent<'a> {
    fn into_chunk(self) -> AnswerChunk<'a> {
        match &*self.kind {
            kind if self.error.is_set || kind == "error" => AnswerChunk {
                is_error: true,
                explanation: self.error.display_text(),
                ..AnswerChunk::default()
            },
            "message_start" => AnswerChunk {
                // The answer's count in this event is not final, so only the prompt's is used.
                usage: self.message.usage.into_counts(None).some_if_reported(),
                ..AnswerChunk::default()
            },
            "content_block_start" => AnswerChunk::from_choice(self.block.into_delta(), None),
            "content_block_delta" => AnswerChunk::from_choice(self.delta.into_delta(), None),
            "message_delta" => {
                let usage = self.usage.into_counts(self.usage.answer);
                AnswerChunk {
                    usage: usage.some_if_reported(),
                    ..AnswerChunk::from_choice(Delta::default(), self.delta.stop_reason)
                }
            }
            "message_stop" => AnswerChunk {
                is_last: true,
                ..AnswerChunk::default()
            },
            // Ignores pings, ends of blocks, and events added to the API later.
            _ => AnswerChunk::default(),
        }
    }
}

/// A message: a response that is not streamed, or the message in the first event of a stream.
#[derive(Default)]
struct MessageObject<'a> {
    kind: Cow<'a, str>,
    content: AnswerItem<'a>,
    stop_reason: FinishReasonField,
    usage: MessageUsage,
    error: ErrorFields<'a>,
}

impl<'a> MessageObject<'a> {
    fn into_unstreamed_chunk(self) -> AnswerChunk<'a> {
        AnswerChunk {
            usage: self.usage.into_counts(self.usage.answer).some_if_reported(),
            is_error: self.error.is_set || self.kind == "error",
            explanation: self.error.display_text(),
            ..AnswerChunk::from_choice(self.content.into_delta(), self.stop_reason.0)
        }
    }
}

impl<'de> FromAnyJson<'de> for MessageObject<'de> {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "type" => self.kind = read_value::<LenientString<'_>, _>(&mut object)?.0,
                "content" => self.content = read_value(&mut object)?,
                "stop_reason" => self.stop_reason = read_value(&mut object)?,
                "usage" => self.usage = read_value(&mut object)?,
                "error" => self.error = read_value(&mut object)?,
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }
}

/// The token counts of a message. The prompt's tokens that are read from or written to a cache are counted separately.
#[derive(Clone, Copy, Default)]
struct MessageUsage {
    uncached: Option<u64>,
    cached: Option<u64>,
    answer: Option<u64>,
    /// The tokens of the answer that are reasoning.
    thinking: Option<u64>,
}

impl MessageUsage {
    /// Returns the counts, in which the cached and uncached tokens of the prompt are added up. `answer`: the tokens of
    /// the answer.
    fn into_counts(self, answer: Option<u64>) -> TokenCounts {
        TokenCounts {
            prompt: self.uncached,
            cached: self.cached,
            answer,
            reasoning: self.thinking,
        }
    }
}

impl<'de> FromAnyJson<'de> for MessageUsage {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "input_tokens" => self.uncached = read_value::<LenientCount, _>(&mut object)?.0,
                "cache_creation_input_tokens" | "cache_read_input_tokens" => {
                    let tokens = read_value::<LenientCount, _>(&mut object)?.0;
                    self.cached = tokens
                        .map(|more| self.cached.unwrap_or(0) + more)
                        .or(self.cached);
                }
                "output_tokens" => self.answer = read_value::<LenientCount, _>(&mut object)?.0,
                "thinking_tokens" => self.thinking = read_value::<LenientCount, _>(&mut object)?.0,
                "output_tokens_details" => {
                    self.thinking = read_value::<MessageUsage, _>(&mut object)?.thinking;
                }
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::finish_reason::FinishReason;

    fn read(json: &str) -> AnswerChunk<'_> {
        read_event(json.as_bytes()).unwrap_or_else(|e| panic!("{e}: {json}"))
    }

    #[test]
    fn text_is_read_from_blocks() {
        for (json, bytes, thinks) in [
            (
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
                0,
                false,
            ),
            (
                r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"find","input":{}}}"#,
                4,
                false,
            ),
            (
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"redacted_thinking","data":"AAAA"}}"#,
                0,
                false,
            ),
            (
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" it"}}"#,
                3,
                false,
            ),
            (
                r#"{"delta":{"thinking":"so","type":"thinking_delta"},"type":"content_block_delta"}"#,
                2,
                true,
            ),
            (
                r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"Eq"}}"#,
                0,
                false,
            ),
            (
                r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"a"}}"#,
                3,
                false,
            ),
            (
                r#"{"type":"content_block_delta","delta":{"type":"citations_delta","citation":{"cited_text":"x"}}}"#,
                0,
                false,
            ),
            (r#"{"type":"content_block_stop","index":0}"#, 0, false),
            (r#"{"type":"ping"}"#, 0, false),
            (r#"{"type":"unheard_of","delta":{"text":"x"}}"#, 0, false),
            ("null", 0, false),
        ] {
            let chunk = read(json);
            assert_eq!(
                (chunk.text_length(), chunk.has_reasoning()),
                (bytes, thinks),
                "{json}"
            );
            assert!(!chunk.is_error() && !chunk.is_last, "{json}");
        }
        assert!(read(r#"{"type":"message_stop"}"#).is_last);
        for json in [
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            r#"{"type":"error"}"#,
            r#"{"error":"no"}"#,
        ] {
            assert!(read(json).is_error(), "{json}");
        }
    }

    #[test]
    fn whole_messages_have_text_and_reason() {
        let json = r#"{"type":"message","content":[{"type":"thinking","thinking":"so","signature":"Eq"},
            {"type":"text","text":"It"},{"type":"text","text":" is"},{"type":"tool_use","name":"f","input":{"a":1}}],
            "stop_reason":"tool_use","usage":{"input_tokens":9,"output_tokens":7}}"#;
        let chunk = read_answer(json.as_bytes()).unwrap();
        assert_eq!(
            (chunk.first_reply(), chunk.text_length()),
            (["It is", ""], 2 + 5 + 1)
        );
        let ends: Vec<_> = chunk.finish_reasons().collect();
        assert_eq!(ends, [(0, Some(FinishReason::ToolCalls))]);
        let usage = chunk.usage().unwrap().usage(true);
        assert_eq!((usage.prompt, usage.answer), (9, 7));
        let failed = r#"{"type":"error","error":{"type":"api_error","message":"no"}}"#;
        assert!(read_answer(failed.as_bytes()).unwrap().is_error());
    }

    #[test]
    fn usage_includes_cached_prompt_tokens() {
        let first = read(
            r#"{"type":"message_start","message":{"content":[],"stop_reason":null,"usage":{"input_tokens":9,
            "cache_creation_input_tokens":100,"cache_read_input_tokens":1000,"output_tokens":1}}}"#,
        );
        let first = first.usage().unwrap();
        assert_eq!((first.usage(true).prompt, first.answer), (1109, None));
        let last = read(
            r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},
            "usage":{"output_tokens":15}}"#,
        );
        let reasons: Vec<_> = last.finish_reasons().collect();
        assert_eq!(reasons, [(0, Some(FinishReason::Length))]);
        let usage = last.usage().unwrap().or_earlier(first).usage(true);
        assert_eq!((usage.prompt, usage.answer), (1109, 15));
        // The last event may repeat the tokens that no cache had, and leave out the others.
        let last = read(r#"{"type":"message_delta","usage":{"input_tokens":9,"output_tokens":2}}"#);
        let usage = last.usage().unwrap().or_earlier(first).usage(true);
        assert_eq!((usage.prompt, usage.answer), (1109, 2));
        // It may also have all counts, which then replace those of the first.
        let last = read(
            r#"{"type":"message_delta","usage":{"input_tokens":9,"cache_creation_input_tokens":0,
            "cache_read_input_tokens":1100,"output_tokens":2}}"#,
        );
        assert_eq!(
            last.usage().unwrap().or_earlier(first).usage(true).prompt,
            1109
        );
        // Proxies that count the prompt only at the end begin with 0.
        let first = read(r#"{"type":"message_start","message":{"usage":{"input_tokens":0}}}"#);
        let last = read(r#"{"type":"message_delta","usage":{"input_tokens":7,"output_tokens":2}}"#);
        let first = first.usage().unwrap();
        assert_eq!(last.usage().unwrap().or_earlier(first).prompt, Some(7));
        assert_eq!(first.or_earlier(last.usage().unwrap()).prompt, Some(7));
    }

    #[test]
    fn errors_are_explained_in_their_own_words() {
        let json = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
        let whole = read_answer(json.as_bytes()).unwrap();
        for chunk in [read(json), whole] {
            assert!(chunk.is_error());
            assert_eq!(chunk.explanation, "overloaded_error: Overloaded");
        }
        let bare = read_answer(br#"{"type":"error","request_id":"r"}"#).unwrap();
        assert!(bare.is_error());
    }
}
