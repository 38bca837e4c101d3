//! Moments at which something is to be done, in whichever order they were set.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use plimsoll_model::Time;

/// Moments, each with what is to be done then.
pub(crate) struct Timers<T>(BinaryHeap<Reverse<(Time, T)>>);

impl<T: Ord> Timers<T> {
    pub(crate) fn new() -> Timers<T> {
        Timers(BinaryHeap::new())
    }

    #[inline]
    pub(crate) fn push(&mut self, at: Time, what: T) {
        self.0.push(Reverse((at, what)));
    }

    /// The first of them; [`Time::NEVER`]: there is none.
    #[inline]
    pub(crate) fn next(&self) -> Time {
        self.0.peek().map_or(Time::NEVER, |first| first.0.0)
    }

    /// Takes the first, where its time has come.
    #[inline]
    pub(crate) fn due(&mut self, now: Time) -> Option<(Time, T)> {
        let first = self.0.peek_mut().filter(|first| first.0.0 <= now)?;
        Some(PeekMut::pop(first).0)
    }
}
