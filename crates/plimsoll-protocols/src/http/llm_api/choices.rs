//! Reads responses with `choices`, which chat completions and completions have in common, streamed or not.
//!
//! Chat completions have their text in `choices[].delta`, completions in `choices[].text`. Reasoning models write their
//! reasoning next to the content, or into parts of it. Everything else in an event is skipped, whatever its type.

use std::borrow::Cow;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess};
use serde::{Deserialize, Deserializer};

use crate::http::finish_reason::FinishReasonField;
use crate::http::lenient_json::{
    FromAnyJson, LenientCount, LenientString, LenientValue, ObjectKey, TruthyValue, read_value,
    skip_value,
};
use crate::http::tokens::{
    AnswerChunk, Choice, ContentParts, Delta, TokenCounts, ToolCallLength, is_reasoning, read_json,
};

/// Parses an event, or a response that is not streamed.
///
/// # Errors
/// Returns an error if the data are not JSON, or `choices` is not a list; the message gives the position.
pub(super) fn read(data: &[u8]) -> Result<AnswerChunk<'_>, serde_json::Error> {
    read_json::<RawChunk<'_>>(data).map(RawChunk::into_chunk)
}

/// The keys of an event. Some forms of errors are recognised by a combination of keys.
#[derive(Default)]
struct RawChunk<'a> {
    choices: Option<Vec<Choice<'a>>>,
    usage: TokenCounts,
    /// The token counts in Groq's own key, `x_groq`.
    nested_usage: TokenCounts,
    error: bool,
    /// Whether the event has `"object": "error"` or `"type": "error"`.
    is_named_error: bool,
    /// Whether there is a message, which together with the code of an error means an error.
    has_message: bool,
    /// Whether there is a `detail`, which FastAPI writes in place of an answer.
    has_detail: bool,
    code: ErrorCode,
}

impl<'a> RawChunk<'a> {
    fn into_chunk(self) -> AnswerChunk<'a> {
        let is_coded = self.has_message && self.code == ErrorCode::Error;
        let is_detailed = self.has_detail && self.code != ErrorCode::Success;
        let has_no_answer = self.choices.is_none();
        AnswerChunk {
            is_error: self.error
                || self.is_named_error
                || has_no_answer && (is_coded || is_detailed),
            usage: self
                .usage
                .some_if_reported()
                .or(self.nested_usage.some_if_reported()),
            choices: self.choices.unwrap_or_default(),
            ..AnswerChunk::default()
        }
    }
}

impl<'de> FromAnyJson<'de> for RawChunk<'de> {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "choices" => self.choices = object.next_value::<ChoicesField<'_>>()?.0,
                "usage" => self.usage = read_value(&mut object)?,
                "x_groq" => self.nested_usage = read_value::<NestedUsage, _>(&mut object)?.0,
                // FastChat writes `error_code`, a number, next to a message.
                "error" | "errors" | "error_code" | "error_message" | "error_msg" => {
                    self.error |= read_value::<TruthyValue, _>(&mut object)?.0;
                }
                "object" | "type" => {
                    self.is_named_error |=
                        read_value::<LenientString<'_>, _>(&mut object)?.0 == "error";
                }
                "status" => {
                    let status = read_value::<LenientString<'_>, _>(&mut object)?.0;
                    self.is_named_error |= ["error", "failed", "failure"]
                        .iter()
                        .any(|failure| status.eq_ignore_ascii_case(failure));
                }
                "message" => self.has_message |= read_value::<TruthyValue, _>(&mut object)?.0,
                "detail" => self.has_detail |= read_value::<TruthyValue, _>(&mut object)?.0,
                "code" => self.code = read_value(&mut object)?,
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }
}

/// What a code means: 0 and the status of a success mean no error.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ErrorCode {
    #[default]
    Missing,
    Success,
    Error,
}

impl<'de> FromAnyJson<'de> for ErrorCode {
    fn on_text(&mut self, text: Cow<'de, str>) {
        *self = match &*text {
            "" => ErrorCode::Missing,
            "0" | "200" | "ok" | "OK" => ErrorCode::Success,
            _ => ErrorCode::Error,
        };
    }

    fn on_number(&mut self, number: f64) {
        *self = if number == 0.0 || number == 200.0 {
            ErrorCode::Success
        } else {
            ErrorCode::Error
        };
    }
}

/// A field that must be a list of choices; `None` for null.
struct ChoicesField<'a>(Option<Vec<Choice<'a>>>);

impl<'de> Deserialize<'de> for ChoicesField<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ChoicesField<'de>, D::Error> {
        let found = LenientValue::<ChoiceList<'de>>::deserialize(deserializer)?.0;
        match found {
            ChoiceList { is_other: true, .. } => Err(D::Error::custom("`choices` is not a list")),
            found => Ok(ChoicesField(found.list)),
        }
    }
}

#[derive(Default)]
struct ChoiceList<'a> {
    list: Option<Vec<Choice<'a>>>,
    is_other: bool,
}

impl<'de> FromAnyJson<'de> for ChoiceList<'de> {
    fn on_text(&mut self, _text: Cow<'de, str>) {
        self.is_other = true;
    }

    fn on_number(&mut self, _number: f64) {
        self.is_other = true;
    }

    fn on_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        let choices = self.list.insert(Vec::new());
        while let Some(choice) = list.next_element::<LenientValue<Choice<'de>>>()? {
            choices.push(choice.0);
        }
        Ok(())
    }

    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        self.is_other = true;
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// The `usage` inside another object.
#[derive(Default)]
struct NestedUsage(TokenCounts);

impl<'de> FromAnyJson<'de> for NestedUsage {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "usage" => self.0 = read_value(&mut object)?,
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }
}

impl<'de> FromAnyJson<'de> for Choice<'de> {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "index" => self.index = read_value::<LenientCount, _>(&mut object)?.0.unwrap_or(0),
                "delta" => self.delta = Some(read_value(&mut object)?),
                "message" => self.message = Some(read_value(&mut object)?),
                "text" => self.text = read_value::<ContentParts<'_>, _>(&mut object)?.text,
                "finish_reason" => {
                    self.finish_reason = read_value::<FinishReasonField, _>(&mut object)?.0
                }
                "usage" => {
                    self.usage = read_value::<TokenCounts, _>(&mut object)?.some_if_reported()
                }
                "error" => self.error |= read_value::<TruthyValue, _>(&mut object)?.0,
                _ => skip_value(&mut object)?,
            }
        }
        self.error |= self.delta_or_message().is_some_and(|delta| delta.error);
        Ok(())
    }
}

impl<'de> FromAnyJson<'de> for Delta<'de> {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "content" => self.content = read_value(&mut object)?,
                "refusal" => self.refusal = read_value::<ContentParts<'_>, _>(&mut object)?.text,
                "tool_calls" | "function_call" => {
                    self.call_bytes += read_value::<ToolCallLength, _>(&mut object)?.0;
                    self.calls_tools |= self.call_bytes > 0;
                }
                "error" => self.error |= read_value::<TruthyValue, _>(&mut object)?.0,
                key if self.thought.is_empty() && is_reasoning(key) => {
                    self.thought = read_value::<ContentParts<'_>, _>(&mut object)?.into_text();
                }
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }

    fn on_text(&mut self, text: Cow<'de, str>) {
        self.content.on_text(text);
    }
}

#[cfg(test)]
mod tests;
