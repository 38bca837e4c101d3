//! The parts of an answer that some APIs list one by one, and the errors that they report: what `messages` and
//! `responses` have in common.

use std::borrow::Cow;

use serde::de::{MapAccess, SeqAccess};

use crate::http::finish_reason::{FinishReason, StopWord};
use crate::http::lenient_json::{AnyShape, FromAnyShape, LenientString, ObjectKey, skip, value};
use crate::http::tokens::{CallBytes, ContentParts, Delta, is_reasoning};

/// Kinds of calls that the client has to answer; services make all others themselves.
const CLIENT_CALLS: [&str; 5] = [
    "function_call",
    "custom_tool_call",
    "computer_call",
    "local_shell_call",
    "tool_use",
];

/// A block of a message, an item of a response, a piece of one of them, or all of a list.
#[derive(Default)]
pub(super) struct AnswerItem<'a> {
    pub(super) kind: Cow<'a, str>,
    pub(super) content: ContentParts<'a>,
    /// Length of the names of tools, and of their input where it comes in pieces. Bytes.
    pub(super) call_bytes: usize,
    /// Whether a block is a call that the client has to answer.
    pub(super) calls_tools: bool,
    /// Why the answer ended, if this is the piece of an answer that says so.
    pub(super) stop_reason: Option<FinishReason>,
}

impl<'a> AnswerItem<'a> {
    pub(super) fn into_delta(self) -> Delta<'a> {
        Delta {
            content: self.content,
            call_bytes: self.call_bytes,
            calls_tools: self.calls_tools,
            ..Delta::default()
        }
    }
}

impl<'de> FromAnyShape<'de> for AnswerItem<'de> {
    fn take_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(AnyShape(block)) = list.next_element::<AnyShape<AnswerItem<'de>>>()? {
            self.content.add(block.content);
            self.call_bytes += block.call_bytes;
            self.calls_tools |= block.calls_tools;
        }
        Ok(())
    }

    fn take_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "type" => self.kind = value::<LenientString<'_>, _>(&mut object)?.0,
                "text" | "thinking" | "content" | "summary" => {
                    self.content.add(value(&mut object)?);
                }
                // The input of a call is empty where its block begins, and comes in pieces.
                "name" | "partial_json" => {
                    self.call_bytes += value::<CallBytes, _>(&mut object)?.0;
                }
                "stop_reason" => self.stop_reason = value::<StopWord, _>(&mut object)?.0,
                // Signatures and citations are not tokens of the answer.
                _ => skip(&mut object)?,
            }
        }
        if is_reasoning(&self.kind) {
            self.content = std::mem::take(&mut self.content).into_thought();
        }
        // The result of a tool that the service has called was not written by the model.
        if self.kind.ends_with("_result") {
            self.content = ContentParts::default();
        }
        self.calls_tools = CLIENT_CALLS.contains(&&*self.kind);
        Ok(())
    }
}

/// What a service says of an error: an object, or only a text.
#[derive(Default)]
pub(super) struct ErrorFields<'a> {
    pub(super) code: Cow<'a, str>,
    pub(super) message: Cow<'a, str>,
    /// The kind of error, which stands for a code where there is none.
    kind: Cow<'a, str>,
    /// Whether the value is neither empty nor null.
    pub(super) is_set: bool,
}

impl ErrorFields<'_> {
    /// Returns code and message for people; empty if there is neither.
    pub(super) fn text(&self) -> String {
        let code = if self.code.is_empty() {
            &self.kind
        } else {
            &self.code
        };
        let both = [&**code, &*self.message];
        let given: Vec<&str> = both.into_iter().filter(|text| !text.is_empty()).collect();
        given.join(": ")
    }
}

impl<'de> FromAnyShape<'de> for ErrorFields<'de> {
    fn take_text(&mut self, text: Cow<'de, str>) {
        self.is_set = !text.trim().is_empty();
        self.message = text;
    }

    fn take_number(&mut self, number: f64) {
        self.is_set = number != 0.0;
    }

    fn take_bool(&mut self, value: bool) {
        self.is_set = value;
    }

    fn take_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            self.is_set = true;
            let place = match &*key {
                "code" => &mut self.code,
                "type" => &mut self.kind,
                "message" => &mut self.message,
                _ => {
                    skip(&mut object)?;
                    continue;
                }
            };
            *place = value::<LenientString<'_>, _>(&mut object)?.0;
        }
        Ok(())
    }
}
