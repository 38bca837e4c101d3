//! OpenAI's Responses API (`POST /v1/responses`). Each event has a type. Events whose type ends in `.delta` contain
//! text, and the last event contains the whole response with its status and token counts. There is no `[DONE]`.

use std::borrow::Cow;

use serde::de::MapAccess;
use serde_json::{Map, Value, json};

use super::content_blocks::{AnswerItem, ErrorFields};
use super::{LlmApi, ModelPrompt, completions};
use crate::http::finish_reason::{FinishReason, FinishReasonField};
use crate::http::lenient_json::{
    FromAnyJson, LenientString, ObjectKey, TruthyValue, read_value, skip_value,
};
use crate::http::tokens::{AnswerChunk, ContentParts, Delta, TokenCounts, is_reasoning, read_json};

pub(super) static API: LlmApi = LlmApi {
    name: "responses",
    path: "/responses",
    messages_key: Some("input"),
    has_system: true,
    limit_key: Some("max_output_tokens"),
    counts_on_request: false,
    put_prompt,
    read_event,
    read_answer,
    ..completions::API
};

fn put_prompt(body: &mut Map<String, Value>, prompt: &ModelPrompt<'_>) {
    if let Some(system) = prompt.system {
        body.insert("instructions".to_owned(), json!(system));
    }
    body.insert("input".to_owned(), json!([prompt.user_message()]));
}

fn read_event(data: &[u8]) -> Result<AnswerChunk<'_>, serde_json::Error> {
    read_json::<ResponseEvent<'_>>(data).map(ResponseEvent::into_chunk)
}

fn read_answer(data: &[u8]) -> Result<AnswerChunk<'_>, serde_json::Error> {
    read_json::<ResponseObject<'_>>(data).map(ResponseObject::into_unstreamed_chunk)
}

/// An event of a stream.
#[derive(Default)]
struct ResponseEvent<'a> {
    kind: Cow<'a, str>,
    delta: ContentParts<'a>,
    item: AnswerItem<'a>,
    response: ResponseObject<'a>,
    /// The error in the event's own keys, outside of a response.
    error: ErrorFields<'a>,
    has_error: bool,
}

impl<'de> FromAnyJson<'de> for ResponseEvent<'de> {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "type" => self.kind = read_value::<LenientString<'_>, _>(&mut object)?.0,
                "delta" => self.delta = read_value(&mut object)?,
                "item" => self.item = read_value(&mut object)?,
                "response" => self.response = read_value(&mut object)?,
                "error" => self.has_error = read_value::<TruthyValue, _>(&mut object)?.0,
                "code" => self.error.code = read_value::<LenientString<'_>, _>(&mut object)?.0,
                "message" => {
                    self.error.message = read_value::<LenientString<'_>, _>(&mut object)?.0
                }
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }
}

impl<'a> ResponseEvent<'a> {
    fn into_chunk(self) -> AnswerChunk<'a> {
        let kind = self.kind.strip_prefix("response.").unwrap_or(&self.kind);
        if kind == "error" || self.has_error {
            return AnswerChunk {
                is_error: true,
                explanation: self.error.display_text(),
                ..AnswerChunk::default()
            };
        }
        if let Some(what) = kind.strip_suffix(".delta") {
            return AnswerChunk::from_choice(build_delta(what, self.delta), None);
        }
        match kind {
            // The name of a tool is the first part of a tool call that the model generates.
            "output_item.added" if self.item.kind.ends_with("_call") => {
                let call = Delta {
                    call_bytes: self.item.call_bytes,
                    calls_tools: self.item.calls_tools,
                    ..Delta::default()
                };
                AnswerChunk::from_choice(call, None)
            }
            // The item's text has already been streamed, so only its kind is read.
            "output_item.done" if self.item.calls_tools => {
                let call = Delta {
                    calls_tools: true,
                    ..Delta::default()
                };
                AnswerChunk::from_choice(call, None)
            }
            "completed" | "incomplete" | "failed" | "cancelled" => {
                self.response.into_last_chunk(kind)
            }
            _ => AnswerChunk::default(),
        }
    }
}

/// Returns a piece of text as content, reasoning or a tool call, depending on the type of its event.
fn build_delta<'a>(what: &str, text: ContentParts<'a>) -> Delta<'a> {
    let mut delta = Delta::default();
    match what {
        "output_text" | "text" | "audio.transcript" | "audio_transcript" => delta.content = text,
        "refusal" => delta.refusal = text.into_text(),
        // Audio is not text, although it is encoded as text.
        "audio" => {}
        what if is_reasoning(what) => {
            delta.thought = text.into_text();
            delta.is_summary = what.starts_with("reasoning_summary");
        }
        // Arguments and inputs of tool calls, and code to run.
        what => {
            delta.call_bytes = text.into_text().len();
            delta.calls_tools =
                matches!(what, "function_call_arguments" | "custom_tool_call_input");
        }
    }
    delta
}

/// A response with the status in which it ended.
#[derive(Default)]
struct ResponseObject<'a> {
    status: Cow<'a, str>,
    /// Whether the object is an error in place of a response.
    is_error: bool,
    usage: TokenCounts,
    error: ErrorFields<'a>,
    /// The error in the object's top-level keys, if the object itself is an error.
    outer_error: ErrorFields<'a>,
    incomplete: IncompleteDetails,
    output: AnswerItem<'a>,
}

impl<'de> FromAnyJson<'de> for ResponseObject<'de> {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "status" => self.status = read_value::<LenientString<'_>, _>(&mut object)?.0,
                "usage" => self.usage = read_value(&mut object)?,
                "error" => self.error = read_value(&mut object)?,
                "type" | "object" => {
                    self.is_error |= read_value::<LenientString<'_>, _>(&mut object)?.0 == "error";
                }
                "code" => {
                    self.outer_error.code = read_value::<LenientString<'_>, _>(&mut object)?.0
                }
                "message" => {
                    self.outer_error.message = read_value::<LenientString<'_>, _>(&mut object)?.0;
                }
                "incomplete_details" => self.incomplete = read_value(&mut object)?,
                "output" => self.output = read_value(&mut object)?,
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }
}

impl<'a> ResponseObject<'a> {
    /// Returns the last chunk of a stream, without the text, which has already been streamed. `status`: the status in
    /// the event's type.
    fn into_last_chunk(self, status: &str) -> AnswerChunk<'a> {
        let reason = match &*self.status {
            // Some services send the event of a success, whatever became of the response.
            inner @ ("failed" | "cancelled" | "incomplete") if status == "completed" => {
                self.finish_reason(inner)
            }
            _ => self.finish_reason(status),
        };
        AnswerChunk {
            usage: self.usage.some_if_reported(),
            is_last: true,
            explanation: self.error.display_text(),
            ..AnswerChunk::from_choice(Delta::default(), Some(reason))
        }
    }

    /// Returns the chunk for a response that was not streamed.
    fn into_unstreamed_chunk(self) -> AnswerChunk<'a> {
        let explanation = match self.error.display_text() {
            text if text.is_empty() && self.is_error => self.outer_error.display_text(),
            text => text,
        };
        let has_ended = !matches!(&*self.status, "" | "queued" | "in_progress");
        let reason = has_ended.then(|| self.finish_reason(&self.status));
        AnswerChunk {
            usage: self.usage.some_if_reported(),
            is_error: self.is_error || self.status.is_empty() && !explanation.is_empty(),
            explanation,
            ..AnswerChunk::from_choice(self.output.into_delta(), reason)
        }
    }

    fn finish_reason(&self, status: &str) -> FinishReason {
        match status {
            "completed" if self.error.is_set => FinishReason::Error,
            "completed" if self.output.calls_tools => FinishReason::ToolCalls,
            "completed" => FinishReason::Stop,
            "incomplete" => self.incomplete.0.unwrap_or(FinishReason::Other),
            status => FinishReason::parse(status).unwrap_or(FinishReason::Other),
        }
    }
}

/// The reason why a response is incomplete.
#[derive(Default)]
struct IncompleteDetails(Option<FinishReason>);

impl<'de> FromAnyJson<'de> for IncompleteDetails {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "reason" => self.0 = read_value::<FinishReasonField, _>(&mut object)?.0,
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_from_deltas_only() {
        for (json, bytes, thinks) in [
            (
                r#"{"type":"response.output_text.delta","delta":" it","item_id":"m","logprobs":[]}"#,
                3,
                false,
            ),
            (
                r#"{"delta":"so","type":"response.reasoning_text.delta"}"#,
                2,
                true,
            ),
            (
                r#"{"type":"response.reasoning_summary_text.delta","delta":"so"}"#,
                2,
                false,
            ),
            (
                r#"{"type":"response.reasoning_summary.delta","delta":{"text":"so"}}"#,
                2,
                false,
            ),
            (
                r#"{"type":"response.refusal.delta","delta":"no"}"#,
                2,
                false,
            ),
            (
                r#"{"type":"response.function_call_arguments.delta","delta":"{\"a"}"#,
                3,
                false,
            ),
            (
                r#"{"type":"response.code_interpreter_call_code.delta","delta":"1+1"}"#,
                3,
                false,
            ),
            (
                r#"{"type":"response.output_item.added","item":{"type":"function_call","name":"find","arguments":""}}"#,
                4,
                false,
            ),
            (
                r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#,
                0,
                false,
            ),
            (
                r#"{"type":"response.output_item.done","item":{"type":"function_call","name":"find"}}"#,
                0,
                false,
            ),
            (
                r#"{"type":"response.output_text.done","text":"it is"}"#,
                0,
                false,
            ),
            (
                r#"{"type":"response.audio.delta","delta":"AAAA"}"#,
                0,
                false,
            ),
            (
                r#"{"type":"response.created","response":{"status":"in_progress","usage":null}}"#,
                0,
                false,
            ),
            (r#"{"type":"keepalive"}"#, 0, false),
            ("{}", 0, false),
            ("7", 0, false),
        ] {
            let chunk = read_event(json.as_bytes()).unwrap();
            assert_eq!(
                (chunk.text_length(), chunk.has_reasoning()),
                (bytes, thinks),
                "{json}"
            );
            assert!(!chunk.is_error() && !chunk.is_last, "{json}");
        }
    }

    #[test]
    fn last_event_has_reason_and_usage() {
        use FinishReason::{Abort, ContentFilter, Error, Length, Other, Stop, ToolCalls};
        for (kind, response, reason) in [
            (
                "completed",
                r#"{"status":"completed","output":[{"type":"message"}]}"#,
                Stop,
            ),
            (
                "completed",
                r#"{"output":[{"type":"reasoning"},{"type":"function_call","name":"f"}]}"#,
                ToolCalls,
            ),
            (
                "incomplete",
                r#"{"incomplete_details":{"reason":"max_output_tokens"}}"#,
                Length,
            ),
            (
                "incomplete",
                r#"{"incomplete_details":{"reason":"content_filter"}}"#,
                ContentFilter,
            ),
            ("incomplete", "{}", Other),
            (
                "failed",
                r#"{"error":{"code":"server_error","message":"no"}}"#,
                Error,
            ),
            ("cancelled", "null", Abort),
            (
                "completed",
                r#"{"status":"failed","error":{"code":"server_error","message":"no"}}"#,
                Error,
            ),
            (
                "completed",
                r#"{"error":{"code":"server_error","message":"no"}}"#,
                Error,
            ),
            ("completed", r#"{"status":"cancelled","error":null}"#, Abort),
            (
                "completed",
                r#"{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}"#,
                Length,
            ),
            (
                "failed",
                r#"{"status":"incomplete","error":"server_error: no"}"#,
                Error,
            ),
        ] {
            let json = format!(r#"{{"type":"response.{kind}","response":{response}}}"#);
            let chunk = read_event(json.as_bytes()).unwrap();
            let ends: Vec<_> = chunk.finish_reasons().collect();
            assert_eq!(
                (ends, chunk.is_last),
                (vec![(0, Some(reason))], true),
                "{json}"
            );
            let explained = if reason == Error {
                "server_error: no"
            } else {
                ""
            };
            assert_eq!(chunk.explanation, explained, "{json}");
        }
        let json = r#"{"type":"response.completed","response":{"usage":{"input_tokens":9,
            "input_tokens_details":{"cached_tokens":4},"output_tokens":70,
            "output_tokens_details":{"reasoning_tokens":64},"total_tokens":79}}}"#;
        let usage = read_event(json.as_bytes()).unwrap().usage().unwrap();
        let usage = usage.usage(false);
        assert_eq!((usage.prompt, usage.answer, usage.streamed), (9, 70, 6));
    }

    #[test]
    fn whole_responses_have_text_and_reason() {
        for (json, content, thinks, reason) in [
            (
                r#"{"object":"response","status":"completed","output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"so"}]},{"type":"message","content":[{"type":"output_text","text":"It"},{"type":"output_text","text":" is"}]}],"error":null}"#,
                "It is",
                true,
                Some(FinishReason::Stop),
            ),
            (
                r#"{"status":"completed","output":[{"type":"message","content":[{"type":"refusal","refusal":"no"}]}]}"#,
                "no",
                false,
                Some(FinishReason::Stop),
            ),
            (
                r#"{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[{"type":"message","content":[{"type":"output_text","text":"It"}]}]}"#,
                "It",
                false,
                Some(FinishReason::Length),
            ),
            (r#"{"status":"in_progress","output":[]}"#, "", false, None),
            (
                r#"{"status":"completed","error":{"message":"no"},"output":[]}"#,
                "",
                false,
                Some(FinishReason::Error),
            ),
        ] {
            let chunk = read_answer(json.as_bytes()).unwrap();
            assert_eq!(
                (chunk.first_reply(), chunk.has_reasoning()),
                ([content, ""], thinks),
                "{json}"
            );
            let ends: Vec<_> = chunk.finish_reasons().collect();
            assert_eq!(ends, [(0, reason)], "{json}");
            assert!(!chunk.is_error(), "{json}");
        }
        let call = r#"{"status":"completed","output":[{"type":"function_call","name":"find","arguments":"{}"}]}"#;
        assert_eq!(read_answer(call.as_bytes()).unwrap().text_length(), 4);
        for (failed, text) in [
            (r#"{"error":{"message":"no such model"}}"#, "no such model"),
            (
                r#"{"type":"error","code":"rate_limit","message":"wait"}"#,
                "rate_limit: wait",
            ),
            (r#"{"object":"error","message":"no"}"#, "no"),
        ] {
            let chunk = read_answer(failed.as_bytes()).unwrap();
            assert!(chunk.is_error(), "{failed}");
            assert_eq!(chunk.explanation, text);
        }
    }

    #[test]
    fn error_events_are_explained() {
        for (json, text) in [
            (
                r#"{"type":"error","code":"rate_limit","message":"wait","param":null}"#,
                "rate_limit: wait",
            ),
            (r#"{"type":"response.error","message":"no"}"#, "no"),
            (r#"{"error":{"message":"no"}}"#, ""),
        ] {
            let chunk = read_event(json.as_bytes()).unwrap();
            assert!(chunk.is_error(), "{json}");
            assert_eq!(chunk.explanation, text, "{json}");
        }
        let fine = r#"{"type":"response.in_progress","error":null}"#;
        assert!(!read_event(fine.as_bytes()).unwrap().is_error());
    }
}
