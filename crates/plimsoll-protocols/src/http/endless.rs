//! Streams of events without an end of their own, which end with the load.
//!
//! A stream that is merely slow must not be cut short: as soon as one stream of a run has ended by itself, the others
//! are waited for until their deadlines, like any answer.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_engine::driver::Event;

/// Decides whether the streams of a run end with the load.
#[derive(Debug)]
pub(super) struct EndlessStreams {
    /// The plan does not define the end of a stream, and has no objective on its duration.
    may_end: bool,
    /// A stream has ended by itself.
    has_one_ended: AtomicBool,
}

impl EndlessStreams {
    pub(super) fn new(allowed: bool) -> EndlessStreams {
        EndlessStreams {
            may_end: allowed,
            has_one_ended: AtomicBool::new(false),
        }
    }

    /// Records that a stream has ended by itself.
    pub(super) fn note_end(&self) {
        // Read first: many workers share it, and it changes only once.
        if self.may_end && !self.has_one_ended.load(Ordering::Relaxed) {
            self.has_one_ended.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether streams that have brought events end with the load.
    pub(super) fn end_with_load(&self) -> bool {
        self.may_end && !self.has_one_ended.load(Ordering::Relaxed)
    }
}

/// Marks the calls that end successfully in `events` as ended with the load.
pub(super) fn mark_ended_with_load(events: &mut [Event]) {
    for event in events {
        if let Event::Done(done) = event
            && done.outcome.is_ok()
        {
            *event = Event::EndedWithLoad(*done);
        }
    }
}
