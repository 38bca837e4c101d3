//! What an event of OpenAI's streams holds: tokens, and the service's own count of them.
//!
//! Chat completions have their text in `choices[].delta`, completions in `choices[].text`; servers
//! that reason put what they think beside the content. `content` calls this with each event.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Answers that one request may ask for.
const MAX_CHOICES: u64 = 128;

/// An event, as far as it matters. Texts without escapes are not copied.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    usage: Option<Usage>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

/// Borrowed where it can be, which `serde` does for a field that is a `Cow` itself.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Choice<'a> {
    index: Option<Value>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    text: Option<Text<'a>>,
}

#[derive(Default, Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
    #[serde(borrow)]
    refusal: Option<Text<'a>>,
    #[serde(borrow)]
    reasoning_content: Option<Text<'a>>,
    #[serde(borrow)]
    reasoning: Option<Text<'a>>,
    tool_calls: Option<Vec<IgnoredAny>>,
}

impl<'a> Chunk<'a> {
    /// `None`: it is no object of JSON, or its keys hold something else.
    pub(super) fn read(data: &'a [u8]) -> Option<Chunk<'a>> {
        serde_json::from_slice(data).ok()
    }

    /// It is an error that does not begin as one.
    pub(super) fn is_error(&self) -> bool {
        self.error.is_some()
    }

    /// Tokens of the prompt, and of the answer.
    pub(super) fn usage(&self) -> Option<(u64, u64)> {
        let usage = self.usage.as_ref()?;
        let answer = usage.completion_tokens.unwrap_or(0);
        Some((usage.prompt_tokens.unwrap_or(0), answer))
    }

    pub(super) fn has_tokens(&self) -> bool {
        self.choices.iter().flatten().any(Choice::has_tokens)
    }

    /// The content of the first choice, without its reasoning: as the next request of a
    /// conversation repeats it.
    pub(super) fn first_content(&self) -> &str {
        let first = self.choices.iter().flatten().next();
        let delta = first.and_then(|choice| choice.delta.as_ref());
        delta
            .and_then(|delta| delta.content.as_ref())
            .map_or("", |text| &text.0)
    }

    /// What its tokens say, each choice's to its own text: thoughts and refusals are tokens, too.
    /// What tools are called with is not text, and is left out.
    pub(super) fn write(self, texts: &mut Vec<String>) {
        for choice in self.choices.into_iter().flatten() {
            let index = choice.index.and_then(|index| index.as_u64()).unwrap_or(0);
            let index = index.min(MAX_CHOICES - 1) as usize;
            if index >= texts.len() {
                texts.resize(index + 1, String::new());
            }
            let delta = choice.delta.unwrap_or_default();
            let thought = delta.reasoning_content.or(delta.reasoning);
            let pieces = [thought, delta.content, delta.refusal, choice.text];
            texts[index].extend(pieces.into_iter().flatten().map(|text| text.0));
        }
    }
}

impl Choice<'_> {
    fn has_tokens(&self) -> bool {
        let is_some =
            |text: &Option<Text<'_>>| text.as_ref().is_some_and(|text| !text.0.is_empty());
        is_some(&self.text)
            || self.delta.as_ref().is_some_and(|delta| {
                let texts = [
                    &delta.content,
                    &delta.refusal,
                    &delta.reasoning_content,
                    &delta.reasoning,
                ];
                let calls = delta.tool_calls.as_ref();
                texts.into_iter().any(is_some) || calls.is_some_and(|calls| !calls.is_empty())
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_tokens(json: &str) -> bool {
        Chunk::read(json.as_bytes()).unwrap().has_tokens()
    }

    #[test]
    fn tokens_are_found_wherever_services_put_them() {
        for json in [
            r#"{"id":"a","choices":[{"index":0,"delta":{"content":" it"},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":"a\n\"b"}}],"usage":null}"#,
            r#"{"choices":[{"delta":{"content":null,"reasoning_content":"so"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"so","content":""}}]}"#,
            r#"{"choices":[{"delta":{"refusal":"no"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}"#,
            r#"{"object":"text_completion","choices":[{"text":"x","logprobs":null}]}"#,
            r#"{"choices":[{"text":""},{"text":"second"}]}"#,
        ] {
            assert!(has_tokens(json), "{json}");
        }
        for json in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[]}}]}"#,
            r#"{"choices":[]}"#,
            r#"{"choices":null}"#,
            "{}",
        ] {
            assert!(!has_tokens(json), "{json}");
        }
    }

    #[test]
    fn what_is_counted_is_all_that_was_written_choice_by_choice() {
        let mut texts = Vec::new();
        for json in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"reasoning_content":"so: "}}]}"#,
            r#"{"choices":[{"index":1,"text":"b\"c"},{"index":0,"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":null,"refusal":"no"}}]}"#,
            r#"{"choices":null}"#,
            "{",
        ] {
            if let Some(chunk) = Chunk::read(json.as_bytes()) {
                chunk.write(&mut texts);
            }
        }
        assert_eq!(texts, ["so: ano", "b\"c"]);
        let far = r#"{"choices":[{"index":18446744073709551615,"text":"x"}]}"#;
        Chunk::read(far.as_bytes()).unwrap().write(&mut texts);
        assert_eq!(texts.len() as u64, MAX_CHOICES);
    }

    #[test]
    fn usage_is_read_and_what_is_no_event_of_this_kind_is_not() {
        let json = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":20,"total_tokens":27,"prompt_tokens_details":{"cached_tokens":0}}}"#;
        assert_eq!(Chunk::read(json.as_bytes()).unwrap().usage(), Some((7, 20)));
        let late = br#"{"object":"error","message":"no","error":{"code":500}}"#;
        assert!(Chunk::read(late).unwrap().is_error());
        for json in ["", "[]x", "\"text\"", r#"{"choices":[{"text":3}]}"#, "{"] {
            assert!(Chunk::read(json.as_bytes()).is_none(), "{json}");
        }
    }
}
