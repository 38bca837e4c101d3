//! Endless streams of events, which are ended when the load ends.
//!
//! A stream that is merely slow must not be cut short. So once any stream of the run has ended on its own, the others
//! may run until their deadlines, like any response.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_engine::driver::Event;

/// The state that decides whether the streams of a run end with the load.
#[derive(Debug)]
pub(super) struct EndlessStreams {
    /// Whether the plan allows streams to end with the load: it neither defines the end of streams nor has an objective
    /// on their duration.
    may_end: bool,
    /// Whether a stream of the run has ended on its own.
    has_one_ended: AtomicBool,
}

impl EndlessStreams {
    pub(super) fn new(allowed: bool) -> EndlessStreams {
        EndlessStreams {
            may_end: allowed,
            has_one_ended: AtomicBool::new(false),
        }
    }

    /// Records that a stream has ended on its own.
    pub(super) fn record_end(&self) {
        // Reads the flag before writing it: all workers share its cache line, and it changes only once.
        if self.may_end && !self.has_one_ended.load(Ordering::Relaxed) {
            self.has_one_ended.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether streams that have delivered events end with the load.
    pub(super) fn should_end_with_load(&self) -> bool {
        self.may_end && !self.has_one_ended.load(Ordering::Relaxed)
    }
}

/// Marks the calls that succeed in `events` as ended with the load.
pub(super) fn mark_ended_with_load(events: &mut [Event]) {
    for event in events {
        if let Event::Done(done) = event
            && done.outcome.is_ok()
        {
            *event = Event::EndedByLoadEnd(*done);
        }
    }
}
