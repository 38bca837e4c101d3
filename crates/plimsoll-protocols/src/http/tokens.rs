//! Parses the events of OpenAI's streams: tokens, the service's own token count, finish reasons, errors.
//!
//! Chat completions have their text in `choices[].delta`, completions in `choices[].text`. Reasoning models put their
//! reasoning beside the content, or into parts of it. Everything else in an event is skipped, whatever its shape.
//! `content` passes it each event.

use std::borrow::Cow;

use plimsoll_engine::driver::TokenUsage;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess};
use serde::{Deserialize, Deserializer};

use super::finish_reason::FinishReason;
use super::lenient_json::{
    AnyShape, FromAnyShape, LenientCount, LenientString, ObjectKey, TruthyValue, skip, value,
};

/// The most choices that one request may ask for.
pub(super) const MAX_CHOICES: u64 = 128;

/// The parts of an event that matter. Texts without escapes are not copied.
#[derive(Default)]
pub(super) struct CompletionChunk<'a> {
    /// `None` if the event has no such key.
    choices: Option<Vec<Choice<'a>>>,
    usage: Option<TokenCounts>,
    error: bool,
}

impl<'a> CompletionChunk<'a> {
    /// Parses an event.
    ///
    /// # Errors
    /// When it is not JSON, or its choices are not a list; the message says where.
    pub(super) fn read(data: &'a [u8]) -> Result<CompletionChunk<'a>, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(data);
        let chunk = AnyShape::<RawChunk<'a>>::deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(chunk.0.into_chunk())
    }

    /// Returns whether the event reports an error.
    pub(super) fn is_error(&self) -> bool {
        self.error || self.choices().any(|choice| choice.error)
    }

    /// Returns the service's token count so far, of the event or of one of its choices.
    pub(super) fn usage(&self) -> Option<TokenCounts> {
        let of_choice = || self.choices().find_map(|choice| choice.usage);
        self.usage.or_else(of_choice)
    }

    /// Returns the index of each choice in the event (below [`MAX_CHOICES`]), and its finish reason if it ends.
    pub(super) fn ends(&self) -> impl Iterator<Item = (u32, Option<FinishReason>)> {
        let index = |choice: &Choice<'_>| choice.index.min(MAX_CHOICES - 1) as u32;
        self.choices()
            .map(move |choice| (index(choice), choice.finish_reason))
    }

    /// Returns whether some of the text is reasoning.
    pub(super) fn has_thoughts(&self) -> bool {
        let mut written = self.choices().filter_map(Choice::delta_or_message);
        written.any(|delta| !delta.thought.is_empty() || !delta.content.thought.is_empty())
    }

    /// Returns the length of the text and of the arguments of tool calls. Bytes.
    pub(super) fn text_bytes(&self) -> usize {
        self.choices().map(Choice::text_bytes).sum()
    }

    /// Returns the content of the first choice without its reasoning: the next turn of a conversation repeats it.
    pub(super) fn first_content(&self) -> &str {
        let first = self.choices().next().and_then(Choice::delta_or_message);
        first.map_or("", |delta| &delta.content.text)
    }

    /// Appends the text of each choice to its own string, with reasoning and refusals, because these are tokens, too.
    /// Arguments of tool calls are not included.
    pub(super) fn write(self, texts: &mut Vec<String>) {
        for choice in self.choices.into_iter().flatten() {
            let index = choice.index.min(MAX_CHOICES - 1) as usize;
            if index >= texts.len() {
                texts.resize(index + 1, String::new());
            }
            let delta = choice.delta.or(choice.message).unwrap_or_default();
            let pieces = [
                delta.thought,
                delta.content.thought,
                delta.content.text,
                delta.refusal,
                choice.text,
            ];
            texts[index].extend(pieces);
        }
    }

    fn choices(&self) -> impl Iterator<Item = &Choice<'a>> {
        self.choices.iter().flatten()
    }
}

/// The keys of an event. Some forms of errors can only be told by several keys.
#[derive(Default)]
struct RawChunk<'a> {
    choices: Option<Vec<Choice<'a>>>,
    usage: TokenCounts,
    /// The count in Groq's own key.
    nested_usage: TokenCounts,
    error: bool,
    /// The event has `"object": "error"` or `"type": "error"`.
    is_named_error: bool,
    /// Explains an error if there is also a code.
    has_message: bool,
    has_code: bool,
}

impl<'a> RawChunk<'a> {
    fn into_chunk(self) -> CompletionChunk<'a> {
        let is_coded = self.choices.is_none() && self.has_message && self.has_code;
        CompletionChunk {
            error: self.error || self.is_named_error || is_coded,
            usage: self.usage.if_reported().or(self.nested_usage.if_reported()),
            choices: self.choices,
        }
    }
}

impl<'de> FromAnyShape<'de> for RawChunk<'de> {
    fn take_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "choices" => self.choices = object.next_value::<ChoicesField<'_>>()?.0,
                "usage" => self.usage = value(&mut object)?,
                "x_groq" => self.nested_usage = value::<NestedUsage, _>(&mut object)?.0,
                // FastChat writes `error_code`, a number, beside a message.
                "error" | "error_code" | "error_message" | "error_msg" => {
                    self.error |= value::<TruthyValue, _>(&mut object)?.0;
                }
                "object" | "type" => {
                    self.is_named_error |= value::<LenientString<'_>, _>(&mut object)?.0 == "error";
                }
                "message" | "detail" => self.has_message |= value::<TruthyValue, _>(&mut object)?.0,
                "code" => self.has_code |= value::<ErrorCode, _>(&mut object)?.0,
                _ => skip(&mut object)?,
            }
        }
        Ok(())
    }
}

/// Whether a code stands for an error: it is neither 0 nor the status of a success.
#[derive(Default)]
struct ErrorCode(bool);

impl<'de> FromAnyShape<'de> for ErrorCode {
    fn take_text(&mut self, text: Cow<'de, str>) {
        self.0 = !matches!(&*text, "" | "0" | "200" | "ok" | "OK");
    }

    fn take_number(&mut self, number: f64) {
        self.0 = number != 0.0 && number != 200.0;
    }
}

/// A list of choices, which accepts no other type; `None` for null.
struct ChoicesField<'a>(Option<Vec<Choice<'a>>>);

impl<'de> Deserialize<'de> for ChoicesField<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ChoicesField<'de>, D::Error> {
        let found = AnyShape::<ChoiceList<'de>>::deserialize(deserializer)?.0;
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

impl<'de> FromAnyShape<'de> for ChoiceList<'de> {
    fn take_text(&mut self, _text: Cow<'de, str>) {
        self.is_other = true;
    }

    fn take_number(&mut self, _number: f64) {
        self.is_other = true;
    }

    fn take_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        let choices = self.list.insert(Vec::new());
        while let Some(choice) = list.next_element::<AnyShape<Choice<'de>>>()? {
            choices.push(choice.0);
        }
        Ok(())
    }

    fn take_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        self.is_other = true;
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// The token counts of a service; `None` where it does not report one.
#[derive(Clone, Copy, Default)]
pub(super) struct TokenCounts {
    prompt: Option<u64>,
    answer: Option<u64>,
    /// Tokens of the answer that are reasoning.
    reasoning: Option<u64>,
}

impl TokenCounts {
    fn if_reported(self) -> Option<TokenCounts> {
        (self.prompt.is_some() || self.answer.is_some()).then_some(self)
    }

    /// Converts to the engine's type. Reasoning that is counted but not streamed took no time between tokens.
    pub(super) fn usage(self, streams_thoughts: bool) -> TokenUsage {
        let answer = self.answer.unwrap_or(0);
        let hidden = if streams_thoughts {
            0
        } else {
            self.reasoning.unwrap_or(0)
        };
        TokenUsage {
            prompt: self.prompt.unwrap_or(0),
            answer,
            streamed: answer.saturating_sub(hidden),
        }
    }
}

impl<'de> FromAnyShape<'de> for TokenCounts {
    fn take_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            let place = match &*key {
                "prompt_tokens" | "input_tokens" => &mut self.prompt,
                "completion_tokens" | "output_tokens" => &mut self.answer,
                "reasoning_tokens" => &mut self.reasoning,
                "completion_tokens_details" | "output_tokens_details" => {
                    let details: TokenCounts = value(&mut object)?;
                    self.reasoning = details.reasoning.or(self.reasoning);
                    continue;
                }
                _ => {
                    skip(&mut object)?;
                    continue;
                }
            };
            *place = value::<LenientCount, _>(&mut object)?.0.or(*place);
        }
        Ok(())
    }
}

/// The `usage` within another object.
#[derive(Default)]
struct NestedUsage(TokenCounts);

impl<'de> FromAnyShape<'de> for NestedUsage {
    fn take_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "usage" => self.0 = value(&mut object)?,
                _ => skip(&mut object)?,
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Choice<'a> {
    index: u64,
    delta: Option<Delta<'a>>,
    /// Replaces the delta if a service does not stream.
    message: Option<Delta<'a>>,
    text: Cow<'a, str>,
    finish_reason: Option<FinishReason>,
    usage: Option<TokenCounts>,
    error: bool,
}

impl<'a> Choice<'a> {
    fn delta_or_message(&self) -> Option<&Delta<'a>> {
        self.delta.as_ref().or(self.message.as_ref())
    }

    fn text_bytes(&self) -> usize {
        self.text.len() + self.delta_or_message().map_or(0, Delta::text_bytes)
    }
}

impl<'de> FromAnyShape<'de> for Choice<'de> {
    fn take_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "index" => self.index = value::<LenientCount, _>(&mut object)?.0.unwrap_or(0),
                "delta" => self.delta = Some(value(&mut object)?),
                "message" => self.message = Some(value(&mut object)?),
                "text" => self.text = value::<ContentParts<'_>, _>(&mut object)?.text,
                "finish_reason" => {
                    let word = value::<LenientString<'_>, _>(&mut object)?.0;
                    self.finish_reason = FinishReason::of(&word);
                }
                "usage" => self.usage = value::<TokenCounts, _>(&mut object)?.if_reported(),
                "error" => self.error |= value::<TruthyValue, _>(&mut object)?.0,
                _ => skip(&mut object)?,
            }
        }
        self.error |= self.delta_or_message().is_some_and(|delta| delta.error);
        Ok(())
    }
}

#[derive(Default)]
struct Delta<'a> {
    content: ContentParts<'a>,
    refusal: Cow<'a, str>,
    /// The first non-empty one of several keys with reasoning, because others repeat it.
    thought: Cow<'a, str>,
    /// Length of the names and arguments of tool calls. Bytes.
    call_bytes: usize,
    error: bool,
}

impl Delta<'_> {
    fn text_bytes(&self) -> usize {
        let texts = [
            &self.content.text,
            &self.content.thought,
            &self.refusal,
            &self.thought,
        ];
        texts.map(|text| text.len()).iter().sum::<usize>() + self.call_bytes
    }
}

impl<'de> FromAnyShape<'de> for Delta<'de> {
    fn take_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "content" => self.content = value(&mut object)?,
                "refusal" => self.refusal = value::<ContentParts<'_>, _>(&mut object)?.text,
                "tool_calls" | "function_call" => {
                    self.call_bytes += value::<CallBytes, _>(&mut object)?.0;
                }
                "error" => self.error |= value::<TruthyValue, _>(&mut object)?.0,
                key if self.thought.is_empty() && is_reasoning(key) => {
                    self.thought = value::<ContentParts<'_>, _>(&mut object)?.all();
                }
                _ => skip(&mut object)?,
            }
        }
        Ok(())
    }

    fn take_text(&mut self, text: Cow<'de, str>) {
        self.content.take_text(text);
    }
}

/// Returns whether a key holds reasoning: services call it reasoning, reasoning_content, thinking, thoughts and so
/// on. Signed or encrypted forms are not text.
fn is_reasoning(key: &str) -> bool {
    let has = |part: &&str| key.contains(part);
    let is_sealed = ["signature", "opaque", "encrypted", "effort", "tokens"]
        .iter()
        .any(has);
    !is_sealed && ["reasoning", "think", "thought"].iter().any(has)
}

/// A text, or a list of parts with content and reasoning.
#[derive(Default)]
struct ContentParts<'a> {
    text: Cow<'a, str>,
    thought: Cow<'a, str>,
}

impl<'a> ContentParts<'a> {
    fn all(mut self) -> Cow<'a, str> {
        append(&mut self.thought, self.text);
        self.thought
    }
}

fn append<'a>(text: &mut Cow<'a, str>, more: Cow<'a, str>) {
    if text.is_empty() {
        *text = more;
    } else if !more.is_empty() {
        text.to_mut().push_str(&more);
    }
}

impl<'de> FromAnyShape<'de> for ContentParts<'de> {
    fn take_text(&mut self, text: Cow<'de, str>) {
        append(&mut self.text, text);
    }

    fn take_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(AnyShape(part)) = list.next_element::<AnyShape<ContentParts<'de>>>()? {
            append(&mut self.text, part.text);
            append(&mut self.thought, part.thought);
        }
        Ok(())
    }

    fn take_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        let mut is_thought = false;
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "type" => is_thought = is_reasoning(&value::<LenientString<'_>, _>(&mut object)?.0),
                "text" | "content" | "summary" => {
                    let part: ContentParts<'_> = value(&mut object)?;
                    append(&mut self.text, part.text);
                    append(&mut self.thought, part.thought);
                }
                key if is_reasoning(key) => {
                    append(
                        &mut self.thought,
                        value::<ContentParts<'_>, _>(&mut object)?.all(),
                    );
                }
                _ => skip(&mut object)?,
            }
        }
        if is_thought {
            let said = std::mem::take(&mut self.text);
            append(&mut self.thought, said);
        }
        Ok(())
    }
}

/// The length of the names and arguments of tool calls; 1 for a call that has none yet.
#[derive(Default)]
struct CallBytes(usize);

impl<'de> FromAnyShape<'de> for CallBytes {
    fn take_text(&mut self, text: Cow<'de, str>) {
        self.0 += text.len();
    }

    fn take_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(call) = list.next_element::<AnyShape<CallBytes>>()? {
            self.0 += call.0.0.max(1);
        }
        Ok(())
    }

    fn take_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "function" | "name" | "arguments" | "input" => {
                    self.0 += value::<CallBytes, _>(&mut object)?.0;
                }
                _ => skip(&mut object)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
