//! The content of a model's events: texts, the service's own token counts, finish reasons and errors.
//!
//! Each API of `llm_api` reads its events into an [`AnswerChunk`], which `body_inspection` handles.

use std::borrow::Cow;

use plimsoll_engine::driver::TokenUsage;
use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess};

use super::finish_reason::FinishReason;
use super::lenient_json::{
    FromAnyJson, LenientCount, LenientString, LenientValue, ObjectKey, read_value, skip_value,
};

/// The maximum number of choices that one request may ask for.
pub(super) const MAX_CHOICES: u64 = 128;

/// Parses JSON leniently: a value of an unexpected type is ignored.
///
/// # Errors
/// Returns an error if the data are not JSON; the message gives the position.
pub(super) fn read_json<'a, T: FromAnyJson<'a>>(data: &'a [u8]) -> Result<T, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(data);
    let read = LenientValue::<T>::deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(read.0)
}

/// The relevant parts of an event, or of a response that is not streamed. Texts without escapes are borrowed.
#[derive(Default)]
pub(super) struct AnswerChunk<'a> {
    pub(super) choices: Vec<Choice<'a>>,
    pub(super) usage: Option<TokenCounts>,
    /// The number of inputs for which embeddings or scores were computed.
    pub(super) inputs: u64,
    /// Whether the event itself reports an error; choices may also report errors.
    pub(super) is_error: bool,
    /// Whether the event is the last one of its response; ignored if the event reports a failure.
    pub(super) is_last: bool,
    /// The service's explanation of a failure; empty if the event has no key for it.
    pub(super) explanation: String,
}

impl<'a> AnswerChunk<'a> {
    /// Creates a chunk with one choice, for APIs without several choices.
    pub(super) fn from_choice(
        delta: Delta<'a>,
        finish_reason: Option<FinishReason>,
    ) -> AnswerChunk<'a> {
        AnswerChunk {
            choices: vec![Choice {
                delta: Some(delta),
                finish_reason,
                ..Choice::default()
            }],
            ..AnswerChunk::default()
        }
    }

    /// Returns the explanation of a failure; if there is none, `event`, the bytes of the event.
    pub(super) fn explanation_or_event<'b>(&'b self, event: &'b [u8]) -> &'b [u8] {
        match self.explanation.as_bytes() {
            [] => event,
            explanation => explanation,
        }
    }

    /// Returns whether the event reports an error.
    pub(super) fn is_error(&self) -> bool {
        self.is_error || self.choices.iter().any(|choice| choice.error)
    }

    /// Returns the service's token counts so far, from the event or from one of its choices.
    pub(super) fn usage(&self) -> Option<TokenCounts> {
        let of_choice = || self.choices.iter().find_map(|choice| choice.usage);
        self.usage.or_else(of_choice)
    }

    /// Returns the index of each choice in the event (below [`MAX_CHOICES`]), and its finish reason if it has ended.
    pub(super) fn finish_reasons(&self) -> impl Iterator<Item = (u32, Option<FinishReason>)> {
        let choices = self.choices.iter();
        choices.map(|choice| (choice.bit_index(), choice.finish_reason))
    }

    /// Returns whether some of the text is reasoning. Summaries do not count, because the counted tokens are those of
    /// the full reasoning.
    pub(super) fn has_reasoning(&self) -> bool {
        let mut written = self.choices.iter().filter_map(Choice::delta_or_message);
        written.any(|delta| {
            let has_thought = !delta.thought.is_empty() || !delta.content.thought.is_empty();
            has_thought && !delta.is_summary
        })
    }

    /// Returns the length of the text and of the arguments of tool calls, in bytes.
    pub(super) fn text_length(&self) -> usize {
        self.choices.iter().map(Choice::text_bytes).sum()
    }

    /// Returns the content and the refusal of the first choice, one of which is usually empty. The next turn of a
    /// conversation repeats them.
    pub(super) fn first_reply(&self) -> [&str; 2] {
        let first = self.choices.iter().find(|choice| choice.index == 0);
        let delta = first.and_then(Choice::delta_or_message);
        delta.map_or([""; 2], |delta| [&delta.content.text, &delta.refusal])
    }

    /// Returns the choices that call tools of the client, as a bit set.
    pub(super) fn tool_calling_choices(&self) -> u128 {
        let calls = |choice: &&Choice<'_>| {
            let delta = choice.delta_or_message();
            delta.is_some_and(|delta| delta.calls_tools)
        };
        let calling = self.choices.iter().filter(calls);
        calling.fold(0, |set, choice| set | 1 << choice.bit_index())
    }

    /// Appends the text of each choice to its own string, including reasoning and refusals, whose tokens are counted,
    /// too. Arguments of tool calls are not included.
    pub(super) fn append_texts(self, texts: &mut Vec<String>) {
        for choice in self.choices {
            let index = choice.bit_index() as usize;
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
}

/// The token counts that a service reports; `None` for counts that it does not report.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenCounts {
    pub(super) prompt: Option<u64>,
    /// The tokens of the prompt that were read from or written to a cache, if `prompt` does not include them.
    pub(super) cached: Option<u64>,
    pub(super) answer: Option<u64>,
    /// The tokens of the answer that are reasoning.
    pub(super) reasoning: Option<u64>,
}

impl TokenCounts {
    pub(super) fn some_if_reported(self) -> Option<TokenCounts> {
        let counts = [self.prompt, self.cached, self.answer];
        counts.iter().any(Option::is_some).then_some(self)
    }

    /// Returns these counts; counts that are missing are taken from an earlier event of the same response.
    pub(super) fn or_earlier(self, earlier: TokenCounts) -> TokenCounts {
        TokenCounts {
            // Some services report 0 prompt tokens in the first event, others in the last, and an event may have only
            // one of the prompt's two counts.
            prompt: self.prompt.filter(|n| *n > 0).or(earlier.prompt),
            cached: self.cached.filter(|n| *n > 0).or(earlier.cached),
            answer: self.answer.or(earlier.answer),
            reasoning: self.reasoning.or(earlier.reasoning),
        }
    }

    /// Converts the counts to the engine's type. `streams_thoughts`: whether reasoning is streamed; if not, its tokens
    /// are excluded from times between tokens.
    pub(super) fn usage(self, streams_thoughts: bool) -> TokenUsage {
        let answer = self.answer.unwrap_or(0);
        let hidden = if streams_thoughts {
            0
        } else {
            self.reasoning.unwrap_or(0)
        };
        TokenUsage {
            prompt: self.prompt.unwrap_or(0) + self.cached.unwrap_or(0),
            answer,
            streamed: answer.saturating_sub(hidden),
        }
    }
}

impl<'de> FromAnyJson<'de> for TokenCounts {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            let place = match &*key {
                "prompt_tokens" | "input_tokens" => &mut self.prompt,
                "completion_tokens" | "output_tokens" => &mut self.answer,
                "reasoning_tokens" => &mut self.reasoning,
                "completion_tokens_details" | "output_tokens_details" => {
                    let details: TokenCounts = read_value(&mut object)?;
                    self.reasoning = details.reasoning.or(self.reasoning);
                    continue;
                }
                _ => {
                    skip_value(&mut object)?;
                    continue;
                }
            };
            *place = read_value::<LenientCount, _>(&mut object)?.0.or(*place);
        }
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Choice<'a> {
    pub(super) index: u64,
    pub(super) delta: Option<Delta<'a>>,
    /// The message, which takes the place of `delta` in responses that are not streamed.
    pub(super) message: Option<Delta<'a>>,
    pub(super) text: Cow<'a, str>,
    pub(super) finish_reason: Option<FinishReason>,
    pub(super) usage: Option<TokenCounts>,
    pub(super) error: bool,
}

impl<'a> Choice<'a> {
    /// Returns the choice's index as a bit position, below [`MAX_CHOICES`].
    fn bit_index(&self) -> u32 {
        self.index.min(MAX_CHOICES - 1) as u32
    }

    pub(super) fn delta_or_message(&self) -> Option<&Delta<'a>> {
        self.delta.as_ref().or(self.message.as_ref())
    }

    fn text_bytes(&self) -> usize {
        self.text.len() + self.delta_or_message().map_or(0, Delta::text_length)
    }
}

#[derive(Default)]
pub(super) struct Delta<'a> {
    pub(super) content: ContentParts<'a>,
    pub(super) refusal: Cow<'a, str>,
    /// The reasoning, from the first non-empty key, because other keys repeat it.
    pub(super) thought: Cow<'a, str>,
    /// The length of the names and arguments of tool calls, in bytes.
    pub(super) call_bytes: usize,
    /// Whether a tool call has to be executed by the client, not by the service.
    pub(super) calls_tools: bool,
    /// Whether the reasoning is a summary of reasoning that was not streamed.
    pub(super) is_summary: bool,
    pub(super) error: bool,
}

impl Delta<'_> {
    fn text_length(&self) -> usize {
        let texts = [
            &self.content.text,
            &self.content.thought,
            &self.refusal,
            &self.thought,
        ];
        texts.map(|text| text.len()).iter().sum::<usize>() + self.call_bytes
    }
}

/// Returns whether a key contains reasoning, under any name that services use: reasoning, reasoning_content, thinking,
/// thoughts and so on. Signed or encrypted forms are not text.
pub(super) fn is_reasoning(key: &str) -> bool {
    let has = |part: &&str| key.contains(part);
    let is_sealed = ["signature", "opaque", "encrypted", "effort", "tokens"]
        .iter()
        .any(has);
    !is_sealed && ["reasoning", "think", "thought"].iter().any(has)
}

/// A text, or a list of parts with content and reasoning.
#[derive(Default)]
pub(super) struct ContentParts<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) thought: Cow<'a, str>,
}

impl<'a> ContentParts<'a> {
    /// Appends more parts.
    pub(super) fn append_parts(&mut self, more: ContentParts<'a>) {
        append_text(&mut self.text, more.text);
        append_text(&mut self.thought, more.thought);
    }

    /// Returns the same parts with all text as reasoning.
    pub(super) fn into_reasoning(self) -> ContentParts<'a> {
        ContentParts {
            thought: self.into_text(),
            ..ContentParts::default()
        }
    }

    pub(super) fn into_text(mut self) -> Cow<'a, str> {
        append_text(&mut self.thought, self.text);
        self.thought
    }
}

/// Appends to a text; a text of a single piece is not copied.
pub(super) fn append_text<'a>(text: &mut Cow<'a, str>, more: Cow<'a, str>) {
    if text.is_empty() {
        *text = more;
    } else if !more.is_empty() {
        text.to_mut().push_str(&more);
    }
}

impl<'de> FromAnyJson<'de> for ContentParts<'de> {
    fn on_text(&mut self, text: Cow<'de, str>) {
        append_text(&mut self.text, text);
    }

    fn on_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(LenientValue(part)) =
            list.next_element::<LenientValue<ContentParts<'de>>>()?
        {
            self.append_parts(part);
        }
        Ok(())
    }

    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        let mut is_thought = false;
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "type" => {
                    is_thought = is_reasoning(&read_value::<LenientString<'_>, _>(&mut object)?.0)
                }
                "text" | "content" | "summary" | "refusal" => {
                    self.append_parts(read_value(&mut object)?)
                }
                key if is_reasoning(key) => {
                    append_text(
                        &mut self.thought,
                        read_value::<ContentParts<'_>, _>(&mut object)?.into_text(),
                    );
                }
                _ => skip_value(&mut object)?,
            }
        }
        if is_thought {
            let said = std::mem::take(&mut self.text);
            append_text(&mut self.thought, said);
        }
        Ok(())
    }
}

/// The length of the names and arguments of tool calls, in bytes; 1 for a call without name and arguments.
#[derive(Default)]
pub(super) struct ToolCallLength(pub(super) usize);

impl<'de> FromAnyJson<'de> for ToolCallLength {
    fn on_text(&mut self, text: Cow<'de, str>) {
        self.0 += text.len();
    }

    fn on_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(call) = list.next_element::<LenientValue<ToolCallLength>>()? {
            self.0 += call.0.0.max(1);
        }
        Ok(())
    }

    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "function" | "name" | "arguments" | "input" => {
                    self.0 += read_value::<ToolCallLength, _>(&mut object)?.0;
                }
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }
}
