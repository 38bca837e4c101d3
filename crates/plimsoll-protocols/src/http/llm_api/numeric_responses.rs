//! Reads responses with numbers computed from inputs: embeddings, and the scores of ranked documents.
//!
//! OpenAI's embeddings are in `data`, scores in `results`; TEI's response is the list itself. Only the presence of
//! numbers is checked.

use std::borrow::Cow;

use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use crate::http::lenient_json::{
    FromAnyJson, LenientCount, LenientString, LenientValue, ObjectKey, TruthyValue, read_value,
    skip_value,
};
use crate::http::tokens::{AnswerChunk, TokenCounts, read_json};

/// Parses a response.
///
/// # Errors
/// Returns an error if the data are not JSON; the message gives the position.
pub(super) fn read(data: &[u8]) -> Result<AnswerChunk<'_>, serde_json::Error> {
    read_json::<NumericAnswer>(data).map(NumericAnswer::into_chunk)
}

/// A response, or the list in it.
#[derive(Default)]
struct NumericAnswer {
    /// The number of items in the list that have an embedding or a score: one for each input.
    inputs: u64,
    /// Whether an item has no embedding and no score, or not all of its numbers.
    has_gap: bool,
    /// The number of tokens of the inputs.
    tokens: Option<u64>,
    has_error: bool,
}

impl NumericAnswer {
    fn into_chunk<'a>(self) -> AnswerChunk<'a> {
        let usage = TokenCounts {
            prompt: self.tokens,
            ..TokenCounts::default()
        };
        AnswerChunk {
            // An answer that lacks some of its results is as useless as one without any.
            inputs: if self.has_gap { 0 } else { self.inputs },
            usage: usage.some_if_reported(),
            is_error: self.has_error,
            ..AnswerChunk::default()
        }
    }
}

impl<'de> FromAnyJson<'de> for NumericAnswer {
    fn on_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(LenientValue(item)) = list.next_element::<LenientValue<InputResult>>()? {
            self.inputs += u64::from(item.0);
            self.has_gap |= !item.0;
        }
        Ok(())
    }

    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "data" | "results" | "embeddings" => {
                    let found = read_value::<NumericAnswer, _>(&mut object)?;
                    self.inputs += found.inputs;
                    self.has_gap |= found.has_gap;
                }
                "usage" | "meta" => {
                    let tokens = read_value::<InputTokens, _>(&mut object)?;
                    self.tokens = tokens.prompt_or_total().or(self.tokens);
                }
                "error" => self.has_error |= read_value::<TruthyValue, _>(&mut object)?.0,
                "object" | "type" => {
                    self.has_error |= read_value::<LenientString<'_>, _>(&mut object)?.0 == "error";
                }
                _ => skip_value(&mut object)?,
            }
        }
        Ok(())
    }
}

/// Whether an item of the list is an embedding or a score, or has one under any name that services use.
#[derive(Default)]
struct InputResult(bool);

/// Parts of the keys behind which servers have an input's vector or score: `embedding`, `relevance_score`, `probs`,
/// and `data` or `values` in pooled and nested answers.
const VALUE_KEYS: [&str; 8] = [
    "data",
    "embedding",
    "logit",
    "prob",
    "score",
    "similarity",
    "values",
    "vector",
];

impl<'de> FromAnyJson<'de> for InputResult {
    fn on_text(&mut self, text: Cow<'de, str>) {
        self.0 = is_encoded_vector(&text);
    }

    fn on_number(&mut self, number: f64) {
        self.0 = number.is_finite();
    }

    fn on_list<A: SeqAccess<'de>>(&mut self, list: A) -> Result<(), A::Error> {
        let mut numbers = NumericValue::default();
        numbers.on_list(list)?;
        self.0 = numbers.0;
        Ok(())
    }

    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            let has = |part: &&str| key.contains(part);
            if VALUE_KEYS.iter().any(has) {
                self.0 |= read_value::<NumericValue, _>(&mut object)?.0;
            } else {
                skip_value(&mut object)?;
            }
        }
        Ok(())
    }
}

/// Whether a value is a number, or a list of numbers without gaps; also in Base64, or sparse as an object.
#[derive(Default)]
struct NumericValue(bool);

impl<'de> FromAnyJson<'de> for NumericValue {
    fn on_text(&mut self, text: Cow<'de, str>) {
        self.0 = is_encoded_vector(&text);
    }

    fn on_number(&mut self, number: f64) {
        self.0 = number.is_finite();
    }

    fn on_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        let (mut is_empty, mut is_whole) = (true, true);
        while let Some(LenientValue(number)) = list.next_element::<LenientValue<NumericValue>>()? {
            is_empty = false;
            is_whole &= number.0;
        }
        self.0 = is_whole && !is_empty;
        Ok(())
    }

    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            self.0 = true;
        }
        Ok(())
    }
}

/// Returns whether a text may be numbers in Base64.
fn is_encoded_vector(text: &str) -> bool {
    let text = text.trim();
    !text.is_empty() && !text.eq_ignore_ascii_case("nan")
}

/// The service's count of the inputs' tokens, under the names that services use.
#[derive(Default)]
struct InputTokens {
    prompt: Option<u64>,
    total: Option<u64>,
}

impl InputTokens {
    fn prompt_or_total(self) -> Option<u64> {
        // Some services report only a total for rankings, or a total and 0 prompt tokens.
        self.prompt.filter(|tokens| *tokens > 0).or(self.total)
    }
}

impl<'de> FromAnyJson<'de> for InputTokens {
    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "prompt_tokens" | "input_tokens" => {
                    self.prompt = read_value::<LenientCount, _>(&mut object)?.0;
                }
                "total_tokens" => self.total = read_value::<LenientCount, _>(&mut object)?.0,
                // Cohere nests the counts in `tokens` within `meta`.
                "tokens" => *self = read_value(&mut object)?,
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
    fn inputs_and_tokens_are_counted() {
        for (json, inputs, tokens) in [
            (
                r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,-2e-3]}],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}"#,
                1,
                Some(8),
            ),
            (
                r#"{"data":[{"embedding":"AAAA"},{"embedding":"AAAA"}],"usage":{"total_tokens":5}}"#,
                2,
                Some(5),
            ),
            (
                r#"{"id":"r","results":[{"index":1,"relevance_score":0.9},{"index":0,"relevance_score":0.1}],"usage":{"prompt_tokens":0,"total_tokens":56}}"#,
                2,
                Some(56),
            ),
            (
                r#"{"results":[{"index":0,"relevance_score":1}],"meta":{"billed_units":{"search_units":1},"tokens":{"input_tokens":7,"output_tokens":0}}}"#,
                1,
                Some(7),
            ),
            (
                r#"[{"index":0,"score":0.9},{"index":1,"score":0.2}]"#,
                2,
                None,
            ),
            ("[[0.1,0.2]]", 1, None),
            (r#"[{"index":0,"embedding":[[0.1,0.2],[3,4]]}]"#, 1, None),
            (r#"[[{"index":4,"value":0.2}]]"#, 1, None),
            (r#"{"embeddings":[[0.1],[-1]]}"#, 2, None),
            (r#"{"data":[]}"#, 0, None),
            (r#"{"data":[{"index":0,"embedding":null}]}"#, 0, None),
            (r#"{"data":[{"index":0,"embedding":[]}]}"#, 0, None),
            (r#"{"data":[{"index":0,"embedding":""}]}"#, 0, None),
            (r#"{"data":[{"index":0}]}"#, 0, None),
            // NaN is not JSON, and is read as null.
            (r#"{"data":[{"embedding":[null,0.1]}]}"#, 0, None),
            (
                r#"{"data":[{"embedding":[0.1]},{"embedding":null}]}"#,
                0,
                None,
            ),
            (
                r#"{"results":[{"index":0,"relevance_score":null}]}"#,
                0,
                None,
            ),
            ("[[]]", 0, None),
            ("[null]", 0, None),
            ("\"x\"", 0, None),
        ] {
            let chunk = read(json.as_bytes()).unwrap();
            let counted = chunk.usage().and_then(|usage| usage.prompt);
            assert_eq!((chunk.inputs, counted), (inputs, tokens), "{json}");
            assert!(!chunk.is_error(), "{json}");
        }
        for json in [
            r#"{"error":"Input validation error","error_type":"Validation"}"#,
            r#"{"object":"error","message":"no"}"#,
            r#"{"type":"error","message":"no"}"#,
        ] {
            assert!(read(json.as_bytes()).unwrap().is_error(), "{json}");
        }
        assert!(read(b"{\"data\":[").is_err());
    }
}
