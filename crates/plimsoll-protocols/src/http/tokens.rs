//! What an event of OpenAI's streams holds: tokens, and the service's own count of them.
//!
//! Chat completions have their text in `choices[].delta`, completions in `choices[].text`; servers
//! that reason put what they think beside the content. `content` calls this with each event.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Answers that one request may ask for.
const MAX_CHOICES: usize = 128;

/// What one event brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) has_tokens: bool,
    /// Tokens of the prompt, and of the answer.
    pub(super) usage: Option<(u64, u64)>,
    /// It is an error that does not begin as one.
    pub(super) is_error: bool,
}

/// What a chunk says of the first choice, without what was thought before it: as the next request of
/// a conversation repeats it. Nothing where it is no such chunk.
pub(super) fn said(data: &[u8], text: &mut String) {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow)]
        choices: Option<Vec<Choice<'a>>>,
    }
    #[derive(Deserialize)]
    struct Choice<'a> {
        #[serde(borrow)]
        delta: Option<Piece<'a>>,
    }
    #[derive(Deserialize)]
    struct Piece<'a> {
        #[serde(borrow)]
        content: Option<Cow<'a, str>>,
    }
    let event: Option<Event<'_>> = serde_json::from_slice(data).ok();
    let first = event.and_then(|event| event.choices?.into_iter().next());
    if let Some(piece) = first.and_then(|said| said.delta?.content) {
        text.push_str(&piece);
    }
}

/// What the tokens of a chunk say, each choice's to its own text: thoughts and refusals are tokens, too.
/// What tools are called with is not text, and is left out.
pub(super) fn written(data: &[u8], texts: &mut Vec<String>) {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow)]
        choices: Option<Vec<Written<'a>>>,
    }
    #[derive(Deserialize)]
    struct Written<'a> {
        index: Option<usize>,
        #[serde(borrow)]
        delta: Option<Pieces<'a>>,
        #[serde(borrow)]
        text: Option<Cow<'a, str>>,
    }
    #[derive(Default, Deserialize)]
    struct Pieces<'a> {
        #[serde(borrow)]
        reasoning_content: Option<Cow<'a, str>>,
        #[serde(borrow)]
        reasoning: Option<Cow<'a, str>>,
        #[serde(borrow)]
        content: Option<Cow<'a, str>>,
        #[serde(borrow)]
        refusal: Option<Cow<'a, str>>,
    }
    let event: Option<Event<'_>> = serde_json::from_slice(data).ok();
    let choices = event.and_then(|event| event.choices).unwrap_or_default();
    for choice in choices {
        let index = choice.index.unwrap_or(0).min(MAX_CHOICES - 1);
        if index >= texts.len() {
            texts.resize(index + 1, String::new());
        }
        let delta = choice.delta.unwrap_or_default();
        let thought = delta.reasoning_content.or(delta.reasoning);
        let pieces = [thought, delta.content, delta.refusal, choice.text];
        texts[index].extend(pieces.into_iter().flatten());
    }
}

impl Chunk {
    /// `None`: it is no object of JSON, or its keys hold something else.
    pub(super) fn read(data: &[u8]) -> Option<Chunk> {
        let event: EventJson = serde_json::from_slice(data).ok()?;
        let usage = event.usage.map(|usage| {
            let answer = usage.completion_tokens.unwrap_or(0);
            (usage.prompt_tokens.unwrap_or(0), answer)
        });
        let choices = event.choices.unwrap_or_default();
        Some(Chunk {
            has_tokens: choices.iter().any(Choice::has_tokens),
            usage,
            is_error: event.error.is_some(),
        })
    }
}

#[derive(Deserialize)]
struct EventJson {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    text: Option<Text>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<Text>,
    refusal: Option<Text>,
    reasoning_content: Option<Text>,
    reasoning: Option<Text>,
    tool_calls: Option<Vec<IgnoredAny>>,
}

impl Choice {
    fn has_tokens(&self) -> bool {
        let is_some = |text: &Option<Text>| text.as_ref().is_some_and(|text| !text.is_empty);
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

/// A text of which nothing is kept.
struct Text {
    is_empty: bool,
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Text;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text {
                    is_empty: text.is_empty(),
                })
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_tokens(json: &str) -> bool {
        Chunk::read(json.as_bytes()).unwrap().has_tokens
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
            written(json.as_bytes(), &mut texts);
        }
        assert_eq!(texts, ["so: ano", "b\"c"]);
        let far = r#"{"choices":[{"index":18446744073709551615,"text":"x"}]}"#;
        written(far.as_bytes(), &mut texts);
        assert_eq!(texts.len(), MAX_CHOICES);
    }

    #[test]
    fn usage_is_read_and_what_is_no_event_of_this_kind_is_not() {
        let json = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":20,"total_tokens":27,"prompt_tokens_details":{"cached_tokens":0}}}"#;
        assert_eq!(Chunk::read(json.as_bytes()).unwrap().usage, Some((7, 20)));
        let late = br#"{"object":"error","message":"no","error":{"code":500}}"#;
        assert!(Chunk::read(late).unwrap().is_error);
        for json in ["", "[]x", "\"text\"", r#"{"choices":[{"text":3}]}"#, "{"] {
            assert_eq!(Chunk::read(json.as_bytes()), None, "{json}");
        }
    }
}
