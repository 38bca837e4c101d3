//! Reads responses with numbers computed from inputs: embeddings, and the scores of ranked documents.
//!
//! OpenAI's embeddings are in `data`, scores in `results`; TEI's response is the list itself. The numbers are skipped.

use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use crate::http::lenient_json::{
    FromAnyJson, LenientCount, LenientString, ObjectKey, TruthyValue, read_value, skip_value,
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
    /// The number of items in the list: one for each input.
    inputs: u64,
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
            inputs: self.inputs,
            usage: usage.some_if_reported(),
            is_error: self.has_error,
            ..AnswerChunk::default()
        }
    }
}

impl<'de> FromAnyJson<'de> for NumericAnswer {
    fn on_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {
            self.inputs += 1;
        }
        Ok(())
    }

    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = object.next_key()? {
            match &*key {
                "data" | "results" | "embeddings" => {
                    self.inputs += read_value::<NumericAnswer, _>(&mut object)?.inputs;
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
            (r#"{"data":[]}"#, 0, None),
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
