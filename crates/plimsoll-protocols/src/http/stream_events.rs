//! Handles the events of a streamed response: counts them, reads the tokens of a model, and decides the call's outcome.
//!
//! `body_inspection` creates a handler for each received piece of a body.

use plimsoll_engine::driver::{CallId, Event};
use plimsoll_model::Outcome;
use plimsoll_model::metrics::measure::Count;

use super::call::{EventFormat, EventStream};
use super::checks::to_printable;
use super::envelopes;
use super::events::{StreamEvent, StreamEventKind};
use super::finish_reason::FinishReason;
use super::lenient_json;
use super::llm_api::LlmApi;
use super::tokens::{AnswerChunk, TokenCounts};

/// The tokens of a response that have been read so far.
#[derive(Debug, Default)]
pub(super) struct TokenState {
    /// Whether some text has arrived.
    has_text: bool,
    /// Whether the response contains results other than text, such as embeddings.
    has_numbers: bool,
    /// Whether some of the text is reasoning.
    has_reasoning: bool,
    /// The service's own counts so far.
    reported: TokenCounts,
    /// The choices that have begun, as a bit set.
    begun_choices: u128,
    ended_choices: u128,
    /// The choices that have called tools of the client, as a bit set.
    tool_calling_choices: u128,
}

impl TokenState {
    /// Returns whether the model has given a finish reason for every choice.
    pub(super) fn all_choices_ended(&self) -> bool {
        self.begun_choices != 0 && self.begun_choices == self.ended_choices
    }

    /// Returns the service's own count of the answer's tokens.
    pub(super) fn reported_tokens(&self) -> u64 {
        self.reported.answer.unwrap_or(0)
    }

    /// Returns whether the response has at least one token, which may have no text.
    pub(super) fn has_tokens(&self) -> bool {
        self.has_text || self.has_numbers || self.all_choices_ended() && self.reported_tokens() > 0
    }
}

/// The handler for the events in one piece of a body.
pub(super) struct StreamEventHandler<'a> {
    pub(super) stream: &'a EventStream,
    pub(super) call: CallId,
    pub(super) found: &'a mut u32,
    pub(super) tokens: &'a mut TokenState,
    pub(super) text: Option<&'a mut String>,
    pub(super) written: Option<&'a mut Vec<String>>,
    pub(super) settled: &'a mut Option<(Outcome, Option<String>)>,
    pub(super) events: &'a mut Vec<Event>,
}

impl StreamEventHandler<'_> {
    /// Handles an event. Returns whether more events are wanted.
    pub(super) fn handle(&mut self, event: &StreamEvent<'_>) -> bool {
        *self.found = self.found.saturating_add(1);
        let tokens = self.stream.tokens;
        let is_end = event.kind != StreamEventKind::Ordinary
            && envelopes::last_envelope_flag(self.stream.format).is_some();
        if tokens.is_none() && !is_end {
            self.events.push(Event::Message(self.call));
        }
        match event.kind {
            StreamEventKind::Ordinary => {
                return tokens.is_none_or(|answers| self.read_tokens(answers.api, event));
            }
            StreamEventKind::Last => *self.settled = Some((Outcome::Ok, None)),
            StreamEventKind::Error => self.settle_as_error(event.data),
        }
        false
    }

    /// Returns whether the response is not streamed, so that its tokens have no times.
    fn is_single_document(&self) -> bool {
        self.stream.format == EventFormat::Document
    }

    /// Returns how error messages name the event: by its position in the stream, or "the answer" if it is not streamed.
    fn describe_event(&self) -> String {
        if self.is_single_document() {
            "the answer".to_owned()
        } else {
            format!("event {}", self.found)
        }
    }

    fn settle_as_error(&mut self, data: &[u8]) {
        let text = format!(
            "{} reports an error: {}",
            self.describe_event(),
            to_printable(data)
        );
        let ended = envelopes::parse_last_envelope(self.stream.format, data);
        *self.settled = Some((ended.unwrap_or(Outcome::EventError), Some(text)));
    }

    /// Reads an event that may contain tokens. Skips events without an answer: keep-alives, which have no data, or have
    /// an event name of their own.
    fn read_tokens(&mut self, api: &LlmApi, event: &StreamEvent<'_>) -> bool {
        let data = event.data.trim_ascii();
        if data.is_empty() {
            return true;
        }
        let read = if self.is_single_document() {
            api.read_answer
        } else {
            api.read_event
        };
        let error = match read(data) {
            Ok(chunk) => return self.handle_chunk(chunk, data),
            Err(error) => error,
        };
        if let Some(mended) = lenient_json::repair_json(data)
            && let Ok(chunk) = read(mended.as_bytes())
        {
            return self.handle_chunk(chunk, data);
        }
        let is_named = !matches!(event.name, b"" | b"message");
        if is_named && !data.starts_with(b"{") {
            return true;
        }
        let name = if is_named {
            format!(" ({})", to_printable(event.name))
        } else {
            String::new()
        };
        let text = format!(
            "{}{name}: {error}: {}",
            self.describe_event(),
            to_printable(data)
        );
        *self.settled = Some((Outcome::BadAnswer, Some(text)));
        false
    }

    fn handle_chunk(&mut self, chunk: AnswerChunk<'_>, data: &[u8]) -> bool {
        if chunk.is_error() {
            self.settle_as_error(chunk.explanation_or_event(data));
            return false;
        }
        let is_whole = self.is_single_document();
        let (call, tokens) = (self.call, &mut *self.tokens);
        if is_whole {
            self.events.push(Event::WholeAnswer(call));
        }
        let mut failure = None;
        tokens.tool_calling_choices |= chunk.tool_calling_choices();
        for (choice, reason) in chunk.finish_reasons() {
            let choice = 1 << choice;
            tokens.begun_choices |= choice;
            // Some services repeat the finish reason in later events, so only the first counts.
            if let Some(reason) = reason.filter(|_| tokens.ended_choices & choice == 0) {
                tokens.ended_choices |= choice;
                // The last event may report a normal stop although the answer called a tool.
                let reason = match reason {
                    FinishReason::Stop if tokens.tool_calling_choices & choice != 0 => {
                        FinishReason::ToolCalls
                    }
                    reason => reason,
                };
                let count = reason.counter();
                self.events.push(Event::Count { call, count, n: 1 });
                failure = failure.or(Some(reason).filter(|reason| reason.is_failure()));
            }
        }
        let (usage, text_bytes, is_last) = (chunk.usage(), chunk.text_length(), chunk.is_last);
        let inputs = chunk.inputs;
        let failure = failure.map(|reason| {
            let why = to_printable(chunk.explanation_or_event(data));
            format!("ends the answer with {}: {why}", reason.counter().key())
        });
        if text_bytes > 0 {
            tokens.has_text = true;
            tokens.has_reasoning |= chunk.has_reasoning();
            if let Some(text) = &mut self.text {
                text.extend(chunk.first_reply());
            }
            if let Some(texts) = &mut self.written {
                chunk.append_texts(texts);
            }
            let bytes = u32::try_from(text_bytes).unwrap_or(u32::MAX);
            if !is_whole {
                self.events.push(Event::Token { call, bytes });
            }
        }
        if inputs > 0 {
            tokens.has_numbers = true;
            let count = Count::InputsAnswered;
            self.events.push(Event::Count {
                call,
                count,
                n: inputs,
            });
        }
        if let Some(usage) = usage {
            tokens.reported = usage.or_earlier(tokens.reported);
            let usage = tokens.reported.usage(tokens.has_reasoning);
            self.events.push(Event::Usage { call, usage });
        }
        if !tokens.has_text && tokens.all_choices_ended() {
            self.events.push(Event::EndedWithoutText(call));
        }
        if let Some(text) = failure {
            let text = format!("{} {text}", self.describe_event());
            *self.settled = Some((Outcome::EventError, Some(text)));
        } else if is_last {
            *self.settled = Some((Outcome::Ok, None));
        }
        self.settled.is_none()
    }
}
