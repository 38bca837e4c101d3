//! What the body of an answer says, as it arrives: the text that it has to hold, its events.
//!
//! One connection, or stream, has one of these and uses it again for each answer.

use plimsoll_model::Outcome;

use super::checks::{Checks, printable};
use super::events::{EventReader, Kind};

/// Of the body of an answer that failed, so much is shown. Bytes.
const EXCERPT: usize = 200;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Content {
    events: EventReader,
    /// Of the text that is looked for.
    matched: usize,
    found: bool,
    /// How the answer ended, where that is known before its end, and the text of its failure.
    settled: Option<(Outcome, Option<String>)>,
    /// The beginning of a body that nobody expected.
    excerpt: Vec<u8>,
}

impl Content {
    pub(super) fn restart(&mut self) {
        self.events.restart();
        self.matched = 0;
        self.found = false;
        self.settled = None;
        self.excerpt.clear();
    }

    /// Takes a part of the body of an answer that is good so far; `on_event` is called for each
    /// event.
    pub(super) fn take(&mut self, checks: &Checks, data: &[u8], on_event: &mut impl FnMut()) {
        if self.settled.is_some() {
            return;
        }
        let mut read = data.len();
        if let Some(stream) = &checks.stream {
            let settled = &mut self.settled;
            let taken = self.events.take(stream, data, |kind, data| {
                on_event();
                note(settled, kind, data)
            });
            match taken {
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

    /// Takes a part of the body of an answer that failed by its head.
    pub(super) fn keep(&mut self, data: &[u8]) {
        let room = EXCERPT.saturating_sub(self.excerpt.len()).min(data.len());
        self.excerpt.extend_from_slice(&data[..room]);
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.events.heap_bytes() + self.excerpt.capacity()
    }

    pub(super) fn excerpt(&self) -> &[u8] {
        &self.excerpt
    }

    /// The call is over, although the body may not be.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.is_some()
    }

    /// The body is over, or settled: how its call ended, and the text of its failure.
    pub(super) fn end(
        &mut self,
        checks: &Checks,
        on_event: &mut impl FnMut(),
    ) -> (Outcome, Option<String>) {
        if let (Some(stream), None) = (&checks.stream, &self.settled) {
            let settled = &mut self.settled;
            let read = self.events.end(stream, |kind, data| {
                on_event();
                note(settled, kind, data)
            });
            if let Err(error) = read {
                self.settled = Some((Outcome::BadAnswer, Some(error.to_string())));
            }
        }
        let held = checks.body.is_none() || self.found;
        match self.settled.take() {
            Some((Outcome::Ok, _)) if held => (Outcome::Ok, None),
            Some((outcome, text)) if outcome != Outcome::Ok => (outcome, text),
            None if held => match &checks.stream {
                Some(stream) if stream.until.is_some() => {
                    let why = "the stream ended without the event that ends it well";
                    (Outcome::StreamShort, Some(why.to_owned()))
                }
                _ => (Outcome::Ok, None),
            },
            _ => {
                let why = "the body does not hold the text that is expected";
                (Outcome::HttpBody, Some(why.to_owned()))
            }
        }
    }
}

/// Whether more events are wanted after one.
fn note(settled: &mut Option<(Outcome, Option<String>)>, kind: Kind, data: &[u8]) -> bool {
    match kind {
        Kind::Usual => return true,
        Kind::Last => *settled = Some((Outcome::Ok, None)),
        Kind::Error => {
            let text = format!("an event reports: {}", printable(data));
            *settled = Some((Outcome::EventError, Some(text)));
        }
    }
    false
}
