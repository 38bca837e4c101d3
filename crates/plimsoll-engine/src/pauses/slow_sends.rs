//! Finds calls that left later than their recorded send times.
//!
//! The calls that are started in one go have the same send time: that of the clock before they are encoded. They are
//! passed to the kernel a few microseconds later, or much later if the worker is preempted in between. The next time
//! the loop reads the clock, they have been sent, so the time between the two readings is an upper bound of that delay.

use std::collections::VecDeque;

use plimsoll_model::Time;

/// Delays up to this one, in nanoseconds, are the normal cost of encoding and sending calls.
const MAX_NORMAL_DELAY_NS: u64 = 20_000;

/// Maximum number of remembered delays. Older ones are forgotten; the answers to their calls have been read by then, or
/// took so long that the delay hardly counts.
const MAX_SLOW_SENDS: usize = 256;

/// The delays with which the calls of one event loop were sent.
pub(crate) struct SlowSends {
    /// Send time of the calls that may not have been sent yet; [`Time::NEVER`] if there are none.
    pending: Time,
    /// The latest send time in `delays`: later calls were sent without delay.
    latest: Time,
    /// Send times, ascending, each with the delay in nanoseconds.
    delays: VecDeque<(Time, u64)>,
}

impl SlowSends {
    pub(crate) fn new() -> SlowSends {
        SlowSends {
            pending: Time::NEVER,
            latest: Time::ZERO,
            delays: VecDeque::new(),
        }
    }

    /// Records that calls with the send time `sent` are about to be started.
    #[inline]
    pub(crate) fn begin(&mut self, sent: Time) {
        self.pending = sent;
    }

    /// Records that the calls which were started last have been sent by `now`.
    #[inline]
    pub(crate) fn end(&mut self, now: Time) {
        // Closed loops have no pending calls here.
        if self.pending == Time::NEVER {
            return;
        }
        let sent = std::mem::replace(&mut self.pending, Time::NEVER);
        let delay_ns = now.since(sent);
        if delay_ns > MAX_NORMAL_DELAY_NS {
            self.add_delay(sent, delay_ns);
        }
    }

    #[cold]
    fn add_delay(&mut self, sent: Time, delay_ns: u64) {
        if self.delays.len() == MAX_SLOW_SENDS {
            self.delays.pop_front();
        }
        self.delays.push_back((sent, delay_ns));
        self.latest = sent;
    }

    /// Returns by how many nanoseconds a call with the send time `sent` may have been sent late; 0 if the delay was
    /// normal or has been forgotten.
    #[inline]
    pub(crate) fn delay_ns(&self, sent: Time) -> u64 {
        if sent > self.latest {
            return 0;
        }
        self.find_delay(sent)
    }

    #[cold]
    fn find_delay(&self, sent: Time) -> u64 {
        let found = self.delays.binary_search_by_key(&sent, |(at, _)| *at);
        found.map_or(0, |index| self.delays[index].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_apply_to_same_send_time() {
        let mut sends = SlowSends::new();
        sends.begin(Time(1_000));
        sends.end(Time(2_000));
        assert_eq!(sends.delay_ns(Time(1_000)), 0);
        sends.begin(Time(50_000));
        sends.end(Time(250_000));
        // The clock was read again, but no call was started in between.
        sends.end(Time(900_000));
        sends.begin(Time(950_000));
        sends.end(Time(1_000_000));
        let delays = [1_000, 50_000, 250_000, 950_000, 1_000_000];
        let delays = delays.map(|sent| sends.delay_ns(Time(sent)));
        assert_eq!(delays, [0, 200_000, 0, 50_000, 0]);
    }

    #[test]
    fn oldest_delays_are_forgotten() {
        let mut sends = SlowSends::new();
        for number in 0..=MAX_SLOW_SENDS as u64 {
            sends.begin(Time(number * 1_000_000));
            sends.end(Time(number * 1_000_000 + 100_000));
        }
        assert_eq!(sends.delay_ns(Time(0)), 0);
        assert_eq!(sends.delay_ns(Time(1_000_000)), 100_000);
    }
}
