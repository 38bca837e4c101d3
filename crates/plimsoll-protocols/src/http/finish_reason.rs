//! Parses the reason why a model stopped (`finish_reason`), as various services spell it.

use std::borrow::Cow;

use plimsoll_model::metrics::measure::Count;

use super::lenient_json::FromAnyJson;

/// The reason why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FinishReason {
    /// The model finished, or reached a stop sequence.
    Stop,
    /// The limit of tokens was reached.
    Length,
    /// The model calls a tool.
    ToolCalls,
    /// A content filter withheld the rest.
    ContentFilter,
    /// The service failed.
    Error,
    /// The service aborted the request.
    Abort,
    /// An unknown reason.
    Other,
}

impl FinishReason {
    /// Parses a finish reason; `None` if the choice has not ended.
    pub(super) fn parse(word: &str) -> Option<FinishReason> {
        let word = word.trim().to_ascii_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| word.contains(part));
        Some(match word.as_str() {
            "" | "null" | "none" => return None,
            "stop" | "eos" | "eos_token" | "stop_sequence" | "end_turn" | "complete" => {
                FinishReason::Stop
            }
            "length"
            | "model_length"
            | "max_length"
            | "max_tokens"
            | "max_new_tokens"
            | "max_output_tokens"
            | "model_context_window_exceeded" => FinishReason::Length,
            "tool_calls" | "tool_call" | "tool_use" | "function_call" => FinishReason::ToolCalls,
            // A classifier of the service has cut off the answer.
            "refusal" => FinishReason::ContentFilter,
            _ if has(&[
                "filter",
                "safety",
                "sensitive",
                "recitation",
                "blocklist",
                "prohibited",
                "moderation",
                "guardrail",
            ]) =>
            {
                FinishReason::ContentFilter
            }
            _ if has(&["abort", "cancel", "interrupt"]) => FinishReason::Abort,
            _ if has(&[
                "error",
                "fail",
                "insufficient",
                "timeout",
                "timed_out",
                "timed out",
                "malformed",
                "overload",
                "unavailable",
                "exception",
                "out_of_memory",
                "resource_exhausted",
            ]) =>
            {
                FinishReason::Error
            }
            _ => FinishReason::Other,
        })
    }

    /// Returns whether an answer that ends for this reason has failed.
    pub(super) fn is_failure(self) -> bool {
        matches!(
            self,
            FinishReason::ContentFilter | FinishReason::Error | FinishReason::Abort
        )
    }

    /// Returns the counter for answers that end for this reason.
    pub(super) fn counter(self) -> Count {
        match self {
            FinishReason::Stop => Count::FinishStop,
            FinishReason::Length => Count::FinishLength,
            FinishReason::ToolCalls => Count::FinishToolCalls,
            FinishReason::ContentFilter => Count::FinishContentFilter,
            FinishReason::Error => Count::FinishError,
            FinishReason::Abort => Count::FinishAbort,
            FinishReason::Other => Count::FinishOther,
        }
    }
}

/// A finish reason in JSON; `None` if the choice has not ended, or the value is not a string.
#[derive(Clone, Copy, Default)]
pub(super) struct FinishReasonField(pub(super) Option<FinishReason>);

impl<'de> FromAnyJson<'de> for FinishReasonField {
    fn on_text(&mut self, text: Cow<'de, str>) {
        self.0 = FinishReason::parse(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_finish_reasons_are_recognised() {
        use FinishReason::{Abort, ContentFilter, Error, Length, Other, Stop, ToolCalls};
        for (word, reason) in [
            ("stop", Some(Stop)),
            ("STOP", Some(Stop)),
            ("eos_token", Some(Stop)),
            ("length", Some(Length)),
            ("model_length", Some(Length)),
            ("max_output_tokens", Some(Length)),
            ("model_context_window_exceeded", Some(Length)),
            ("tool_calls", Some(ToolCalls)),
            ("tool_use", Some(ToolCalls)),
            ("refusal", Some(ContentFilter)),
            ("pause_turn", Some(Other)),
            ("content_filter", Some(ContentFilter)),
            ("sensitive", Some(ContentFilter)),
            ("error", Some(Error)),
            ("network_error", Some(Error)),
            ("insufficient_system_resource", Some(Error)),
            ("timeout", Some(Error)),
            ("TIMEOUT", Some(Error)),
            ("MALFORMED_FUNCTION_CALL", Some(Error)),
            ("PROHIBITED_CONTENT", Some(ContentFilter)),
            ("abort", Some(Abort)),
            ("cancelled", Some(Abort)),
            ("repetition", Some(Other)),
            ("", None),
            ("null", None),
        ] {
            assert_eq!(FinishReason::parse(word), reason, "{word}");
        }
    }
}
