//! Inspects the body of a response as it arrives: looks for the expected text, and reads events.
//!
//! Each connection, or HTTP/2 stream, has one inspector, which it reuses for every response.

use plimsoll_engine::driver::{CallId, Event};
use plimsoll_model::Outcome;
use plimsoll_model::metrics::measure::Count;

use super::call::{EventFormat, EventStream};
use super::checks::{BODY_MISMATCH, BodyMetadata, EVENT_STREAM_TYPE, ResponseChecks, to_printable};
use super::events::{EventReader, EventStreamError, begins_with_error};
use super::missing_page::MAX_COMPARED_BYTES;
use super::refusals::Refusal;
use super::stream_events::{StreamEventHandler, TokenState};
use crate::shared::unpacking::{UnpackError, Unpacker};

/// The outcome if the response is a page that reports a missing file.
const FILE_MISSING: Outcome = Outcome::coded("FILE_MISSING");

/// The maximum size of a body that is kept for a journey to take values from, in bytes.
const MAX_CAPTURED_BYTES: usize = 1 << 20;

const TEXT_MISSING_MESSAGE: &str = "the body does not contain the expected text";

/// The maximum length of the excerpt of a failed response's body in a message, in bytes.
const MAX_EXCERPT_BYTES: usize = MAX_COMPARED_BYTES;

/// The maximum size of a document that is recognised as an error in place of a stream of tokens, in bytes.
const MAX_ERROR_DOCUMENT_BYTES: usize = 16 << 10;

/// The inspector of one body at a time; see the module's documentation.
#[derive(Debug, Default)]
pub(super) struct BodyInspector {
    unpacker: Option<Box<Unpacker>>,
    /// The number of encoded bytes of a compressed body.
    encoded_bytes: u64,
    events: EventReader,
    /// The number of bytes of the expected text that match so far.
    matched: usize,
    has_expected_text: bool,
    /// The number of events read.
    events_found: u32,
    tokens: TokenState,
    /// The text of the tokens, kept if the next turn of a conversation needs it.
    text: String,
    /// The text of each choice, reasoning included, kept if its tokens are counted.
    choice_texts: Vec<String>,
    /// The outcome and the failure text, if they are decided before the end of the response.
    settled: Option<(Outcome, Option<String>)>,
    /// The beginning of the body, if its call has failed or no event was found yet.
    excerpt: Vec<u8>,
    /// The number of decoded bytes of a body that is read as events or as a document.
    document_bytes: u64,
    /// Whether the excerpt no longer grows, because the rest of the body can't be decoded.
    excerpt_is_complete: bool,
    /// The decoded body, if values are taken from it. Limited to [`MAX_CAPTURED_BYTES`] and one byte, which shows that
    /// it is too large.
    captured: Vec<u8>,
    /// What the head says about the body.
    metadata: BodyMetadata,
}

impl BodyInspector {
    pub(super) fn restart(&mut self, checks: &ResponseChecks, reading: BodyMetadata) {
        self.unpacker = Unpacker::new(reading.codings, checks.max_unpacked);
        self.encoded_bytes = 0;
        self.events.restart();
        self.matched = 0;
        self.has_expected_text = false;
        self.events_found = 0;
        self.tokens = TokenState::default();
        self.text.clear();
        self.choice_texts.clear();
        self.settled = reading.succeeded_in_head.then_some((Outcome::Ok, None));
        self.excerpt.clear();
        self.excerpt.shrink_to(MAX_EXCERPT_BYTES);
        self.document_bytes = 0;
        self.excerpt_is_complete = false;
        self.captured.clear();
        self.metadata = reading;
    }

    /// Returns how the server refuses the call for now; `None`: it does not.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.metadata.refusal
    }

    /// Reads a part of the body, for a `call` that has not failed so far.
    pub(super) fn push(
        &mut self,
        checks: &ResponseChecks,
        data: &[u8],
        call: CallId,
        events: &mut Vec<Event>,
    ) {
        if self.settled.is_some() {
            return;
        }
        let Some(mut unpacker) = self.unpacker.take() else {
            return self.inspect(checks, data, call, events);
        };
        self.encoded_bytes += data.len() as u64;
        let taken = unpacker.decode(data, &mut |piece| self.inspect(checks, piece, call, events));
        self.unpacker = Some(unpacker);
        self.settle_on_unpack_error(taken);
    }

    fn settle_on_unpack_error(&mut self, result: Result<(), UnpackError>) {
        let outcome = match &result {
            Ok(()) => return,
            Err(UnpackError::TooLarge(_)) => Outcome::MessageTooLarge,
            Err(UnpackError::Corrupt(_)) => Outcome::BadAnswer,
        };
        let text = result.err().map(|e| e.to_string());
        // Keeps an outcome that was settled before the error.
        self.settled.get_or_insert((outcome, text));
    }

    /// Inspects a decoded part of the body.
    fn inspect(
        &mut self,
        checks: &ResponseChecks,
        data: &[u8],
        call: CallId,
        events: &mut Vec<Event>,
    ) {
        if self.settled.is_some() {
            return;
        }
        let mut read = data.len();
        if checks.captures_body {
            let room = (MAX_CAPTURED_BYTES + 1).saturating_sub(self.captured.len());
            self.captured
                .extend_from_slice(&data[..room.min(data.len())]);
        }
        if self.metadata.may_be_page {
            add_to_excerpt(&mut self.excerpt, data);
        }
        if let Some(stream) = &checks.stream {
            if self.events_found == 0 {
                let may_be_error = stream.format == EventFormat::Sse && stream.tokens.is_some();
                let mut bytes = self.excerpt.iter().chain(data);
                let first = bytes.find(|byte| !byte.is_ascii_whitespace());
                if may_be_error && first == Some(&b'{') {
                    extend_up_to(&mut self.excerpt, data, MAX_ERROR_DOCUMENT_BYTES);
                } else {
                    add_to_excerpt(&mut self.excerpt, data);
                }
            }
            self.document_bytes += data.len() as u64;
            if stream.format == EventFormat::Document && self.document_bytes > checks.max_unpacked {
                let text = format!("a document of more than {} bytes", checks.max_unpacked);
                self.settled = Some((Outcome::MessageTooLarge, Some(text)));
                return;
            }
            let (reader, mut notes) = self.event_handler(checks, stream, call, events);
            match reader.push(stream, data, |event| notes.handle(&event)) {
                Ok(taken) => read = taken,
                Err(error) => return self.settle_as_unreadable(error),
            }
        }
        // Searches only up to the event that ends a stream, so that the result does not depend on how the bytes were
        // split.
        if let Some(needle) = checks.body.as_ref().filter(|_| !self.has_expected_text) {
            self.has_expected_text = needle.search(&mut self.matched, &data[..read]);
        }
    }

    /// Returns the reader of events, and the handler that gets the events.
    fn event_handler<'a>(
        &'a mut self,
        checks: &ResponseChecks,
        stream: &'a EventStream,
        call: CallId,
        events: &'a mut Vec<Event>,
    ) -> (&'a mut EventReader, StreamEventHandler<'a>) {
        let notes = StreamEventHandler {
            stream,
            call,
            found: &mut self.events_found,
            tokens: &mut self.tokens,
            text: checks.keeps_text.then_some(&mut self.text),
            written: checks.counts_text.then_some(&mut self.choice_texts),
            settled: &mut self.settled,
            events,
        };
        (&mut self.events, notes)
    }

    /// Settles the call as failed, because the stream can't be read.
    #[cold]
    fn settle_as_unreadable(&mut self, error: EventStreamError) {
        let text = match self.events_found {
            0 => format!("{error}; {}", self.describe_beginning()),
            found => format!("{error}, after event {found}"),
        };
        self.settled = Some((Outcome::BadAnswer, Some(text)));
    }

    /// Describes the media type of a body and its beginning, for a message.
    fn describe_beginning(&self) -> String {
        let text = to_printable(self.excerpt.trim_ascii());
        format!(
            "content-type {}, it begins: {text}",
            self.metadata.media_type
        )
    }

    /// Reads a part of the body of a response that failed because of its head.
    pub(super) fn keep_excerpt(&mut self, data: &[u8]) {
        let excerpt = &mut self.excerpt;
        let mut add = |data: &[u8]| add_to_excerpt(excerpt, data);
        match &mut self.unpacker {
            _ if self.excerpt_is_complete => {}
            None => add(data),
            // A body that can't be decoded is not shown.
            Some(unpacker) => self.excerpt_is_complete = unpacker.decode(data, &mut add).is_err(),
        }
    }

    /// Returns the heap memory in use, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        let written = self.choice_texts.iter().map(String::capacity);
        let texts = self.text.capacity() + written.sum::<usize>();
        self.events.heap_bytes() + self.excerpt.capacity() + self.captured.capacity() + texts
    }

    /// Gives back the memory of the last response's body.
    pub(super) fn release_buffers(&mut self) {
        (self.captured, self.excerpt) = (Vec::new(), Vec::new());
    }

    /// Returns the decoded body of the last response if bodies are kept; `None` if it was too large to keep.
    pub(super) fn captured_body(&self) -> Option<&[u8]> {
        (self.captured.len() <= MAX_CAPTURED_BYTES).then_some(&self.captured)
    }

    pub(super) fn excerpt(&self) -> &[u8] {
        &self.excerpt
    }

    /// Settles the call as successful, because the stream is ended at its set duration or with the load.
    pub(super) fn settle_as_success(&mut self) {
        self.settled.get_or_insert((Outcome::Ok, None));
    }

    /// Returns whether the response is a stream that has not ended, has delivered events, and has met all expectations
    /// so far.
    pub(super) fn is_open_and_as_expected(&self, checks: &ResponseChecks) -> bool {
        let lacks_text = checks.body.is_some() && !self.has_expected_text;
        self.settled.is_none() && self.events_found > 0 && !lacks_text
    }

    /// Returns whether the outcome of the call is known, even if the body has not ended.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.is_some()
    }

    /// Ends the body. Returns the outcome of the call and the failure text.
    pub(super) fn finish(
        &mut self,
        checks: &ResponseChecks,
        call: CallId,
        events: &mut Vec<Event>,
    ) -> (Outcome, Option<String>) {
        let ended_by_itself = self.settled.is_none();
        if let Some(mut unpacker) = self.unpacker.take() {
            // If the outcome was decided before the end of the body, the rest was not decoded.
            if self.settled.is_none() {
                let ended = unpacker.finish(&mut |piece| self.inspect(checks, piece, call, events));
                self.settle_on_unpack_error(ended);
            }
            for (count, n) in [
                (Count::BytesPacked, self.encoded_bytes),
                (Count::BytesUnpacked, unpacker.decoded_bytes()),
            ] {
                events.push(Event::Count { call, count, n });
            }
        }
        if let (Some(stream), None) = (&checks.stream, &self.settled) {
            let (reader, mut notes) = self.event_handler(checks, stream, call, events);
            let read = reader.finish(stream, |event| notes.handle(&event));
            if let Err(error) = read {
                self.settle_as_unreadable(error);
            }
            self.settle_if_not_a_stream(stream);
        }
        if checks.keeps_text {
            let text = std::mem::take(&mut self.text);
            events.push(Event::AnswerText { call, text });
        }
        if let Some(missing) = checks
            .missing_page
            .as_ref()
            .filter(|_| self.metadata.may_be_page)
            && let Some(reason) = missing.error_page_reason(&self.excerpt)
        {
            self.settled.get_or_insert((FILE_MISSING, Some(reason)));
        }
        let (outcome, why) = self.take_outcome(checks);
        if outcome == Outcome::Ok {
            if ended_by_itself {
                checks.endless.record_end();
            }
            let texts = self.choice_texts.drain(..);
            events.extend(texts.map(|text| Event::TextToCount { call, text }));
        } else {
            // No values are taken from the answer to a failed call.
            self.captured = Vec::new();
        }
        (outcome, why)
    }

    /// Settles a response whose body is not empty but contains no event: it is not the expected stream.
    fn settle_if_not_a_stream(&mut self, stream: &EventStream) {
        let is_stream = stream.format != EventFormat::Sse || self.events_found > 0;
        let body = self.excerpt.trim_ascii();
        if is_stream || body.is_empty() {
            return;
        }
        let tokens = stream.tokens.as_ref();
        if let Some(why) = tokens.and_then(|answers| answers.api.error_message(body)) {
            let text = format!(
                "the answer is an error in place of an event stream, content-type {}: {}",
                self.metadata.media_type,
                to_printable(&why)
            );
            self.settled
                .get_or_insert((Outcome::EventError, Some(text)));
            return;
        }
        if self.metadata.media_type == EVENT_STREAM_TYPE {
            return;
        }
        let is_error = begins_with_error(body)
            || [r#""object":"error""#, r#""object": "error""#]
                .iter()
                .any(|key| body.windows(key.len()).any(|part| part == key.as_bytes()));
        let outcome = if is_error {
            Outcome::EventError
        } else {
            Outcome::BadAnswer
        };
        let text = format!(
            "the answer is not an event stream: {}",
            self.describe_beginning()
        );
        self.settled.get_or_insert((outcome, Some(text)));
    }

    /// Returns the outcome of a complete body, and the failure text.
    fn take_outcome(&mut self, checks: &ResponseChecks) -> (Outcome, Option<String>) {
        let held = checks.body.is_none() || self.has_expected_text;
        let stream = checks.stream.as_ref();
        let counts_tokens = stream.is_some_and(|stream| stream.tokens.is_some());
        let needs_end = stream.is_some_and(|stream| match stream.until {
            Some(_) => true,
            None if stream.format == EventFormat::Document => false,
            None if counts_tokens => !self.tokens.all_choices_ended(),
            None => checks.has_prefix,
        });
        match self.settled.take() {
            Some((outcome, text)) if !outcome.is_ok() => (outcome, text),
            None if held && needs_end => {
                let mut why = "the stream ended without the event that marks success".to_owned();
                if self.events_found == 0 && !self.excerpt.is_empty() {
                    why = format!("{why}; {}", self.describe_beginning());
                }
                (Outcome::StreamShort, Some(why))
            }
            ended if ended.is_some() || held => match counts_tokens && !self.tokens.has_tokens() {
                true => (Outcome::StreamShort, Some(self.no_token_message(stream))),
                false if held => (Outcome::Ok, None),
                false => (BODY_MISMATCH, Some(TEXT_MISSING_MESSAGE.to_owned())),
            },
            _ => (BODY_MISMATCH, Some(TEXT_MISSING_MESSAGE.to_owned())),
        }
    }

    fn no_token_message(&self, stream: Option<&EventStream>) -> String {
        let is_whole = stream.is_some_and(|stream| stream.format == EventFormat::Document);
        let why = if is_whole {
            "the answer contains no token, or lacks an embedding or a score"
        } else {
            "the stream ended successfully, but contained no token"
        };
        match self.tokens.reported_tokens() {
            0 => why.to_owned(),
            counted => format!("{why}, although the service counts {counted}"),
        }
    }
}

fn add_to_excerpt(excerpt: &mut Vec<u8>, data: &[u8]) {
    extend_up_to(excerpt, data, MAX_EXCERPT_BYTES);
}

fn extend_up_to(excerpt: &mut Vec<u8>, data: &[u8], limit: usize) {
    let room = limit.saturating_sub(excerpt.len()).min(data.len());
    excerpt.extend_from_slice(&data[..room]);
}

#[cfg(test)]
mod tests {
    use super::super::call::HttpCall;
    use super::super::llm_api::ModelResponseRules;
    use super::*;

    /// Returns the outcome of a document of `bytes` bytes, read in pieces with this limit.
    fn outcome_of_document(bytes: usize, limit: u64) -> Option<Outcome> {
        let call = HttpCall {
            stream: Some(EventStream {
                format: EventFormat::Document,
                until: None,
                error: None,
                tokens: Some(ModelResponseRules::default()),
            }),
            max_body: u32::MAX,
            ..HttpCall::default()
        };
        let mut checks = ResponseChecks::new(&call);
        checks.max_unpacked = limit;
        let mut inspector = BodyInspector::default();
        let mut events = Vec::new();
        // The limit counts anew for each answer.
        for _ in 0..2 {
            inspector.restart(&checks, BodyMetadata::UNINSPECTED_BODY);
            for piece in vec![b' '; bytes].chunks(1_000) {
                inspector.push(&checks, piece, CallId(0), &mut events);
            }
        }
        inspector.settled.map(|(outcome, _)| outcome)
    }

    #[test]
    fn documents_are_limited_as_unpacked_bodies() {
        // Large batches of embeddings have more than 16 MiB.
        let batch = 20 << 20;
        let limit = ResponseChecks::new(&HttpCall {
            max_body: u32::MAX,
            ..HttpCall::default()
        });
        assert_eq!(outcome_of_document(batch, limit.max_unpacked), None);
        assert_eq!(outcome_of_document(5_000, 5_000), None);
        let outcome = outcome_of_document(5_001, 5_000);
        assert_eq!(outcome, Some(Outcome::MessageTooLarge));
    }
}
