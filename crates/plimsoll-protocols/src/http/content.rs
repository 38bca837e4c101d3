//! What the body of an answer says, as it arrives: the text that it has to hold, its events.
//!
//! One connection, or stream, has one of these and uses it again for each answer.

use plimsoll_engine::driver::{CallId, Event};
use plimsoll_model::Outcome;
use plimsoll_model::measure::Count;

use super::call::EventStream;
use super::checks::{BODY, Checks, Reading, printable};
use super::envelopes;
use super::events::{EventReader, Kind};
use super::tokens::Chunk;
use crate::unpacking::{UnpackError, Unpacker};

/// Of the body of an answer that failed, so much is shown. Bytes.
const EXCERPT: usize = 200;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Content {
    unpacker: Option<Box<Unpacker>>,
    /// Bytes of a packed body, as they came.
    packed: u64,
    events: EventReader,
    /// Of the text that is looked for.
    matched: usize,
    found: bool,
    /// A token has come.
    has_tokens: bool,
    /// What the tokens say, where that is asked for.
    text: String,
    /// What they say by choice, thoughts included, where that is counted.
    written: Vec<String>,
    /// How the answer ended, where that is known before its end, and the text of its failure.
    settled: Option<(Outcome, Option<String>)>,
    /// The beginning of a body that nobody expected.
    excerpt: Vec<u8>,
    /// The rest of it can't be read.
    excerpt_is_over: bool,
}

impl Content {
    pub(super) fn restart(&mut self, checks: &Checks, reading: Reading) {
        self.unpacker = Unpacker::new(reading.codings, checks.max_unpacked);
        self.packed = 0;
        self.events.restart();
        self.matched = 0;
        self.found = false;
        self.has_tokens = false;
        self.text.clear();
        self.written.clear();
        self.settled = reading.ended.then_some((Outcome::Ok, None));
        self.excerpt.clear();
        self.excerpt_is_over = false;
    }

    /// Takes a part of the body of an answer of `call` that is good so far.
    pub(super) fn take(
        &mut self,
        checks: &Checks,
        data: &[u8],
        call: CallId,
        events: &mut Vec<Event>,
    ) {
        if self.settled.is_some() {
            return;
        }
        let Some(mut unpacker) = self.unpacker.take() else {
            return self.look(checks, data, call, events);
        };
        self.packed += data.len() as u64;
        let taken = unpacker.take(data, &mut |piece| self.look(checks, piece, call, events));
        self.unpacker = Some(unpacker);
        self.note_unpacked(taken);
    }

    fn note_unpacked(&mut self, result: Result<(), UnpackError>) {
        let outcome = match &result {
            Ok(()) => return,
            Err(UnpackError::TooLarge(_)) => Outcome::MessageTooLarge,
            Err(UnpackError::Corrupt(_)) => Outcome::BadAnswer,
        };
        let text = result.err().map(|e| e.to_string());
        // What settled the call before the body was broken, stands.
        self.settled.get_or_insert((outcome, text));
    }

    /// Looks at a part of the body as it reads.
    fn look(&mut self, checks: &Checks, data: &[u8], call: CallId, events: &mut Vec<Event>) {
        if self.settled.is_some() {
            return;
        }
        let mut read = data.len();
        if let Some(stream) = &checks.stream {
            let (reader, mut notes) = self.noting(checks, stream, call, events);
            match reader.take(stream, data, |kind, data| notes.event(kind, data)) {
                Ok(taken) => read = taken,
                Err(error) => {
                    self.settled = Some((Outcome::BadAnswer, Some(error.to_string())));
                    return;
                }
            }
        }
        // What comes behind the event that ends a stream is none of it, in whatever piece it comes.
        if let Some(needle) = checks.body.as_ref().filter(|_| !self.found) {
            self.found = needle.is_in(&mut self.matched, &data[..read]);
        }
    }

    /// What finds the events of a body, and what makes notes of them.
    fn noting<'a>(
        &'a mut self,
        checks: &Checks,
        stream: &'a EventStream,
        call: CallId,
        events: &'a mut Vec<Event>,
    ) -> (&'a mut EventReader, Notes<'a>) {
        let notes = Notes {
            stream,
            call,
            has_tokens: &mut self.has_tokens,
            text: checks.keeps_text.then_some(&mut self.text),
            written: checks.counts_text.then_some(&mut self.written),
            settled: &mut self.settled,
            events,
        };
        (&mut self.events, notes)
    }

    /// Takes a part of the body of an answer that failed by its head.
    pub(super) fn keep(&mut self, data: &[u8]) {
        let excerpt = &mut self.excerpt;
        let mut add = |data: &[u8]| {
            let room = EXCERPT.saturating_sub(excerpt.len()).min(data.len());
            excerpt.extend_from_slice(&data[..room]);
        };
        match &mut self.unpacker {
            _ if self.excerpt_is_over => {}
            None => add(data),
            // What can't be unpacked is not shown.
            Some(unpacker) => self.excerpt_is_over = unpacker.take(data, &mut add).is_err(),
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let written = self.written.iter().map(String::capacity);
        let texts = self.text.capacity() + written.sum::<usize>();
        self.events.heap_bytes() + self.excerpt.capacity() + texts
    }

    pub(super) fn excerpt(&self) -> &[u8] {
        &self.excerpt
    }

    /// The plan ends the stream here, as a success.
    pub(super) fn settle(&mut self) {
        self.settled.get_or_insert((Outcome::Ok, None));
    }

    /// The call is over, although the body may not be.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.is_some()
    }

    /// The body is over, or settled: how its call ended, and the text of its failure.
    pub(super) fn end(
        &mut self,
        checks: &Checks,
        call: CallId,
        events: &mut Vec<Event>,
    ) -> (Outcome, Option<String>) {
        if let Some(mut unpacker) = self.unpacker.take() {
            // A stream may end before its body.
            if self.settled.is_none() {
                let ended = unpacker.end(&mut |piece| self.look(checks, piece, call, events));
                self.note_unpacked(ended);
            }
            for (count, n) in [
                (Count::BytesPacked, self.packed),
                (Count::BytesUnpacked, unpacker.unpacked()),
            ] {
                events.push(Event::Count { call, count, n });
            }
        }
        if let (Some(stream), None) = (&checks.stream, &self.settled) {
            let (reader, mut notes) = self.noting(checks, stream, call, events);
            let read = reader.end(stream, |kind, data| notes.event(kind, data));
            if let Err(error) = read {
                self.settled = Some((Outcome::BadAnswer, Some(error.to_string())));
            }
        }
        if checks.keeps_text {
            let text = std::mem::take(&mut self.text);
            events.push(Event::Answer { call, text });
        }
        let (outcome, why) = self.judged(checks);
        if outcome == Outcome::Ok {
            let texts = self.written.drain(..);
            events.extend(texts.map(|text| Event::Text { call, text }));
        }
        (outcome, why)
    }

    /// What a body that is over makes of its call, and the text of its failure.
    fn judged(&mut self, checks: &Checks) -> (Outcome, Option<String>) {
        let held = checks.body.is_none() || self.found;
        let counts_tokens = (checks.stream.as_ref()).is_some_and(|stream| stream.tokens.is_some());
        match self.settled.take() {
            Some((Outcome::Ok, _)) if counts_tokens && !self.has_tokens => {
                let why = "the stream ended well, and held no token";
                (Outcome::StreamShort, Some(why.to_owned()))
            }
            Some((Outcome::Ok, _)) if held => (Outcome::Ok, None),
            Some((outcome, text)) if outcome != Outcome::Ok => (outcome, text),
            None if held => match &checks.stream {
                Some(stream) if stream.until.is_some() || checks.has_prefix => {
                    let why = "the stream ended without the event that ends it well";
                    (Outcome::StreamShort, Some(why.to_owned()))
                }
                _ => (Outcome::Ok, None),
            },
            _ => {
                let why = "the body does not hold the text that is expected";
                (BODY, Some(why.to_owned()))
            }
        }
    }
}

/// Where what is found in an answer goes.
struct Notes<'a> {
    stream: &'a EventStream,
    call: CallId,
    has_tokens: &'a mut bool,
    text: Option<&'a mut String>,
    written: Option<&'a mut Vec<String>>,
    settled: &'a mut Option<(Outcome, Option<String>)>,
    events: &'a mut Vec<Event>,
}

impl Notes<'_> {
    /// Whether more events are wanted after one.
    fn event(&mut self, kind: Kind, data: &[u8]) -> bool {
        let counts_tokens = self.stream.tokens.is_some();
        let is_end = kind != Kind::Usual && envelopes::last_flag(self.stream.format).is_some();
        if !counts_tokens && !is_end {
            self.events.push(Event::Message(self.call));
        }
        match kind {
            Kind::Usual if counts_tokens => return self.chunk(data),
            Kind::Usual => return true,
            Kind::Last => *self.settled = Some((Outcome::Ok, None)),
            Kind::Error => self.error(data),
        }
        false
    }

    fn error(&mut self, data: &[u8]) {
        let text = format!("an event reports: {}", printable(data));
        let ended = envelopes::ended(self.stream.format, data);
        *self.settled = Some((ended.unwrap_or(Outcome::EventError), Some(text)));
    }

    fn chunk(&mut self, data: &[u8]) -> bool {
        let Some(chunk) = Chunk::read(data) else {
            let text = format!("an event that holds no tokens: {}", printable(data));
            *self.settled = Some((Outcome::BadAnswer, Some(text)));
            return false;
        };
        if chunk.is_error() {
            self.error(data);
            return false;
        }
        let usage = chunk.usage();
        if chunk.has_tokens() {
            *self.has_tokens = true;
            if let Some(text) = &mut self.text {
                text.push_str(chunk.first_content());
            }
            if let Some(texts) = &mut self.written {
                chunk.write(texts);
            }
            self.events.push(Event::Token(self.call));
        }
        if let Some((prompt, answer)) = usage {
            let call = self.call;
            self.events.push(Event::Usage {
                call,
                prompt,
                answer,
            });
        }
        true
    }
}
