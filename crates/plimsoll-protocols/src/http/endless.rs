//! Streams of events without an end of their own, which end with the load.
//!
//! A stream that is merely slow is none of them: as soon as one stream of a run has ended by itself, the others are
//! waited for until their deadlines, as any answer is.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_engine::driver::Event;

/// Whether the streams of a run end with the load.
#[derive(Debug)]
pub(super) struct Endless {
    /// The plan neither says what ends a stream nor holds its length to anything.
    allowed: bool,
    /// A stream has ended by itself.
    one_ended: AtomicBool,
}

impl Endless {
    pub(super) fn new(allowed: bool) -> Endless {
        Endless {
            allowed,
            one_ended: AtomicBool::new(false),
        }
    }

    /// Notes that a stream has ended by itself.
    pub(super) fn note_end(&self) {
        // Many workers read it, and it changes once.
        if self.allowed && !self.one_ended.load(Ordering::Relaxed) {
            self.one_ended.store(true, Ordering::Relaxed);
        }
    }

    /// Streams that have brought events end with the load.
    pub(super) fn end_with_load(&self) -> bool {
        self.allowed && !self.one_ended.load(Ordering::Relaxed)
    }
}

/// The calls that `events` end as a success end with the load.
pub(super) fn mark_ended_with_load(events: &mut [Event]) {
    for event in events {
        if let Event::Done(done) = event
            && done.outcome.is_ok()
        {
            *event = Event::EndedWithLoad(*done);
        }
    }
}
