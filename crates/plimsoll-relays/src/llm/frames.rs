//! The JSON frames that are sent to the client.

use std::io::Write;

use bytes::Bytes;
use jiff::Timestamp;

use crate::bus::LogPosition;

/// The answer's tokens, each encoded as a JSON string.
#[derive(Debug)]
pub(super) struct AnswerText(Vec<String>);

impl AnswerText {
    /// Splits the text into one token per word, including the space after it. With `tokens`, the words are repeated or
    /// truncated to that number.
    pub(super) fn new(text: &str, tokens: Option<usize>) -> AnswerText {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        if words.is_empty() {
            words.push("-");
        }
        let count = tokens.unwrap_or(words.len());
        let encoded = (0..count).map(|i| {
            let blank = if i + 1 < count { " " } else { "" };
            serde_json::Value::from(format!("{}{blank}", words[i % words.len()])).to_string()
        });
        AnswerText(encoded.collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns token `index` of an answer that is cut to `tokens`.
    pub(super) fn token(&self, index: usize, tokens: usize) -> String {
        let encoded = &self.0[index % self.0.len()];
        let token: String = serde_json::from_str(encoded).unwrap_or_default();
        if index + 1 < tokens {
            token
        } else {
            token.trim_end().to_owned()
        }
    }
}

/// How a run ended, as its `done` frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunOutcome {
    Stop,
    Cancelled,
    Error,
}

impl RunOutcome {
    fn name(self) -> &'static str {
        match self {
            RunOutcome::Stop => "stop",
            RunOutcome::Cancelled => "cancelled",
            RunOutcome::Error => "error",
        }
    }
}

/// Frames of the run whose first frame follows this position in the session's log.
impl LogPosition {
    /// Returns the frame of the run's token number `index`, counted from 0.
    pub(super) fn token_frame(&self, text: &AnswerText, index: usize) -> Bytes {
        let seq = self.run_id() + index as u64;
        // A run that another instance began may be longer than this instance's answer, so the index wraps around.
        let content = &text.0[index % text.len()];
        let mut frame = Vec::with_capacity(112 + content.len());
        // Writing to memory cannot fail.
        let _ = write!(
            frame,
            r#"{{"type":"token","content":{content},"seq":{seq},"run":{},"epoch":{},"ts":{:.6}}}"#,
            self.run_id(),
            self.epoch,
            unix_time_s()
        );
        Bytes::from(frame)
    }

    /// Returns the frame that ends a run of `tokens` tokens.
    pub(super) fn done_frame(&self, tokens: usize, finish: RunOutcome) -> Bytes {
        let seq = self.run_id() + tokens as u64;
        Bytes::from(format!(
            r#"{{"type":"done","content":"","seq":{seq},"run":{},"epoch":{},"ts":{:.6},"tokens":{tokens},"finish":"{}"}}"#,
            self.run_id(),
            self.epoch,
            unix_time_s(),
            finish.name()
        ))
    }
}

/// Returns the current time, in seconds since 1970.
fn unix_time_s() -> f64 {
    Timestamp::now().as_duration().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn default_text_has_eighteen_tokens() {
        let text = AnswerText::new(crate::llm::DEFAULT_RESPONSE_TEXT, None);
        assert_eq!(text.len(), 18);
        let joined: String = text
            .0
            .iter()
            .map(|t| serde_json::from_str::<String>(t).unwrap())
            .collect();
        assert_eq!(joined, crate::llm::DEFAULT_RESPONSE_TEXT);
    }

    #[test]
    fn any_text_yields_valid_json() {
        let text = AnswerText::new("a\"b \\ \u{1f6a2}", Some(5));
        let begun = LogPosition { epoch: 7, last: 19 };
        for index in 0..5 {
            let frame: Value = serde_json::from_slice(&begun.token_frame(&text, index)).unwrap();
            assert_eq!(frame["seq"], 20 + index as u64);
            assert_eq!(
                (frame["run"].as_u64(), frame["epoch"].as_u64()),
                (Some(20), Some(7))
            );
        }
        let done: Value = serde_json::from_slice(&begun.done_frame(5, RunOutcome::Stop)).unwrap();
        assert_eq!(
            (done["seq"].as_u64(), done["tokens"].as_u64()),
            (Some(25), Some(5))
        );
        assert_eq!(
            (done["finish"].as_str(), done["content"].as_str()),
            (Some("stop"), Some(""))
        );
        assert_eq!(AnswerText::new("", None).len(), 1);
    }
}
