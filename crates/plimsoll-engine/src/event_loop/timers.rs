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

    /// Removes and returns the payload of a timer for which `is_wanted` returns true. All timers are searched.
    #[cold]
    pub(crate) fn remove(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
        let mut timers = std::mem::take(&mut self.0).into_vec();
        let mut payloads = timers.iter().map(|Reverse((_, what))| what);
        let place = payloads.position(is_wanted);
        let removed = place.map(|place| timers.swap_remove(place));
        self.0 = BinaryHeap::from(timers);
        removed.map(|Reverse((_, what))| what)
    }

    /// Removes all timers, and returns their payloads in no order.
    #[cold]
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        let timers = std::mem::take(&mut self.0).into_vec();
        let payloads = timers.into_iter().map(|Reverse((_, what))| what);
        payloads.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_timer_leaves_others_in_order() {
        let mut timers = TimerQueue::new();
        for at in [4, 1, 3, 2, 5] {
            timers.push(Time(at), at);
        }
        assert_eq!(timers.remove(|what| *what == 1), Some(1));
        assert_eq!(timers.remove(|what| *what == 1), None);
        assert_eq!(timers.next_time(), Time(2));
        for at in [2, 3] {
            assert_eq!(timers.pop_due(Time(3)), Some((Time(at), at)));
        }
        assert_eq!(timers.pop_due(Time(3)), None);
        let mut others = timers.take_all();
        others.sort_unstable();
        assert_eq!((others, timers.next_time()), (vec![4, 5], Time::NEVER));
    }
}
