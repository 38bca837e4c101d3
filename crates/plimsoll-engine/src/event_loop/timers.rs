//! A priority queue of timers, used by the event loop's clients.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use plimsoll_model::Time;

/// Timers ordered by their times, each with a payload.
pub(crate) struct TimerQueue<T>(BinaryHeap<Reverse<(Time, T)>>);

impl<T: Ord> TimerQueue<T> {
    pub(crate) fn new() -> TimerQueue<T> {
        TimerQueue(BinaryHeap::new())
    }

    #[inline]
    pub(crate) fn push(&mut self, at: Time, what: T) {
        self.0.push(Reverse((at, what)));
    }

    /// Returns the earliest time; [`Time::NEVER`] if there is no timer.
    #[inline]
    pub(crate) fn next_time(&self) -> Time {
        self.0.peek().map_or(Time::NEVER, |first| first.0.0)
    }

    /// Removes and returns the earliest timer if it is due.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Time, T)> {
        let first = self.0.peek_mut().filter(|first| first.0.0 <= now)?;
        Some(PeekMut::pop(first).0)
    }
}
