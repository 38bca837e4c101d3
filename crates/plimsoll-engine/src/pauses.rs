//! Detects pauses of a worker's event loop, and counts the calls that they may have lengthened.
//!
//! An event loop that is stopped, preempted or busy for long reads answers late and sends requests late. For each
//! pause, the tracker records how many calls were in flight or became due until the load had recovered, with an upper
//! bound of the added time. This examines no individual call: two counters of the loop are compared once per iteration.

mod slow_sends;

use self::slow_sends::SlowSends;
use plimsoll_model::{Recorder, Time};

/// Maximum time in nanoseconds between two polls of the sockets while calls are in flight: longer waits could not be
/// distinguished from pauses.
pub(crate) const MAX_POLL_GAP_NS: u64 = 5_000_000;

/// Minimum length of a pause in nanoseconds; shorter delays are the loop's normal work.
const MIN_PAUSE_NS: u64 = 1_000_000;

/// Maximum length of a recovery, as a multiple of the pause: within this time, a target with a tenth of its capacity to
/// spare has processed the backlog.
const MAX_RECOVERY_FACTOR: u64 = 10;

/// The pauses of one event loop.
pub(crate) struct PauseTracker {
    /// The time at which the loop's last wait ended.
    awoke: Time,
    recovery: Option<PauseRecovery>,
    /// End of the last recovery, and the time in nanoseconds by which its pauses may have lengthened a call.
    last_recovery: (Time, u64),
    /// Delays between the send times of calls and their sending.
    pub(crate) slow_sends: SlowSends,
}

/// The time from a pause until the load has recovered from it.
struct PauseRecovery {
    /// Upper bound of the time added to a call, in nanoseconds.
    lengthened_ns: u64,
    /// The longest of the consecutive pauses in this recovery, in nanoseconds.
    longest_ns: u64,
    ended: Time,
    stage: u8,
    /// Number of calls in flight or waiting at the end of the pause, which may have lengthened them.
    affected_calls: u64,
    /// Number of calls in flight or waiting at or below which the recovery ends.
    normal_calls: u64,
    /// Number of calls that had been due by the end of the pause.
    due_at_end: u64,
}

impl PauseTracker {
    pub(crate) fn new() -> PauseTracker {
        PauseTracker {
            awoke: Time::NEVER,
            recovery: None,
            last_recovery: (Time::ZERO, 0),
            slow_sends: SlowSends::new(),
        }
    }

    /// Examines a wait from `before` to `now` that should have ended at `wake`. Returns the length of the pause in
    /// nanoseconds, if there was one.
    #[inline]
    pub(crate) fn check_wait(&mut self, before: Time, wake: Time, now: Time) -> Option<u64> {
        let worked = before.since(self.awoke);
        self.awoke = now;
        let overslept = now.since(wake.max(before));
        if worked <= MIN_PAUSE_NS && overslept <= MIN_PAUSE_NS {
            return None;
        }
        // The pause may have started at any point of the wait, so assume the earliest.
        let waited = if overslept > MIN_PAUSE_NS {
            now.since(before)
        } else {
            0
        };
        Some(worked + waited)
    }

    /// Returns the delay in nanoseconds of a load that was due to begin at `start` and begins at `now`, if it is long
    /// enough to count as a pause.
    pub(crate) fn late_start_ns(&mut self, start: Time, now: Time) -> Option<u64> {
        let late = now.since(start);
        (late > MIN_PAUSE_NS).then(|| {
            // Prevents the first iteration from counting this delay again.
            self.awoke = now;
            late
        })
    }

    /// Begins the recovery from a pause of `length_ns`. `under_way` is the number of calls in flight or waiting, and
    /// `due` the number of calls due so far.
    #[cold]
    pub(crate) fn begin_recovery(
        &mut self,
        length_ns: u64,
        now: Time,
        (stage, under_way, due): (u8, u64, u64),
        recorder: &mut Recorder,
    ) {
        let mut begun = PauseRecovery {
            lengthened_ns: length_ns,
            longest_ns: length_ns,
            ended: now,
            stage,
            affected_calls: under_way,
            normal_calls: under_way,
            due_at_end: due,
        };
        if let Some(before) = self.recovery.take() {
            // A call may be sent late because of the earlier pause, queue behind a call that the earlier pause delayed,
            // and be read late because of the new pause.
            begun.lengthened_ns += before.lengthened_ns.min(2 * before.longest_ns);
            begun.longest_ns = begun.longest_ns.max(before.longest_ns);
            // Calls that queued up during the earlier pause are not part of the normal number.
            begun.normal_calls = begun.normal_calls.min(before.normal_calls);
            before.record(due, stage, recorder);
        }
        self.recovery = Some(begun);
    }

    /// Returns whether the load is recovering from a pause.
    #[inline]
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// Returns by how many nanoseconds pauses may have lengthened a call that was sent at `sent` and has just ended.
    #[inline]
    pub(crate) fn max_added_ns(&self, sent: Time) -> u64 {
        let (ended, last_ns) = self.last_recovery;
        let before = if sent <= ended { last_ns } else { 0 };
        let felt = self.recovery.as_ref().map_or(0, |a| a.lengthened_ns);
        before.max(felt)
    }

    /// Ends the recovery if the number of calls is back to normal, or its maximum length has passed.
    #[cold]
    pub(crate) fn check_recovery(
        &mut self,
        now: Time,
        (stage, under_way, due): (u8, u64, u64),
        recorder: &mut Recorder,
    ) {
        let is_over = |a: &mut PauseRecovery| {
            let since = now.since(a.ended);
            let is_back = under_way <= a.normal_calls && since >= a.longest_ns;
            is_back || since >= MAX_RECOVERY_FACTOR * a.longest_ns
        };
        if let Some(aftermath) = self.recovery.take_if(is_over) {
            self.last_recovery = (now, aftermath.lengthened_ns);
            aftermath.record(due, stage, recorder);
        }
    }

    /// Records the current recovery at the end of the run.
    pub(crate) fn end_recovery(
        &mut self,
        (stage, _, due): (u8, u64, u64),
        recorder: &mut Recorder,
    ) {
        if let Some(aftermath) = self.recovery.take() {
            aftermath.record(due, stage, recorder);
        }
    }
}

impl PauseRecovery {
    fn record(&self, due: u64, stage: u8, recorder: &mut Recorder) {
        let calls = self.affected_calls + (due - self.due_at_end);
        if calls == 0 {
            return;
        }
        recorder.record_pause(self.stage, self.lengthened_ns, calls);
        if stage != self.stage {
            recorder.record_pause(stage, self.lengthened_ns, calls);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn on_time_wakeup_is_not_a_pause() {
        let mut pauses = PauseTracker::new();
        assert_eq!(pauses.check_wait(Time(0), Time(5 * MS), Time(5 * MS)), None);
        // An answer ended the wait early.
        assert_eq!(
            pauses.check_wait(Time(5 * MS), Time(90 * MS), Time(6 * MS)),
            None
        );
        // Work was pending, so the loop did not wait.
        assert_eq!(
            pauses.check_wait(Time(6 * MS), Time::ZERO, Time(6 * MS)),
            None
        );
        // Stopped during a wait, and then busy after one.
        let stopped = pauses.check_wait(Time(6 * MS), Time(8 * MS), Time(90 * MS));
        assert_eq!(stopped, Some(84 * MS));
        let busy = pauses.check_wait(Time(120 * MS), Time(121 * MS), Time(121 * MS));
        assert_eq!(busy, Some(30 * MS));
    }

    #[test]
    fn pause_recovery_ends_and_is_bounded() {
        let mut recorder = Recorder::new(1);
        let mut pauses = PauseTracker::new();
        pauses.begin_recovery(80 * MS, Time(0), (0, 3, 100), &mut recorder);
        let mut look = |ms: u64, under_way, due| {
            pauses.check_recovery(Time(ms * MS), (0, under_way, due), &mut recorder);
            pauses.is_recovering()
        };
        assert!(look(10, 40, 140));
        // The number is back to normal, but a delayed answer may still be in transit.
        assert!(look(30, 3, 150));
        assert!(!look(81, 2, 170));
        let delayed = |recorder: &mut Recorder| {
            let interval = recorder.take_interval(None);
            let times = &interval.stages[0].as_ref().unwrap().delayed;
            (
                times.len(),
                times.count_longer_than(79 * MS),
                times.count_longer_than(81 * MS),
            )
        };
        assert_eq!(delayed(&mut recorder), (73, 73, 0));
        pauses.begin_recovery(10 * MS, Time(0), (0, 3, 0), &mut recorder);
        pauses.begin_recovery(20 * MS, Time(50 * MS), (0, 9, 7), &mut recorder);
        pauses.check_recovery(Time(249 * MS), (0, 4, 11), &mut recorder);
        assert!(pauses.is_recovering());
        pauses.check_recovery(Time(250 * MS), (0, 4, 11), &mut recorder);
        assert!(!pauses.is_recovering());
        // Calls in flight at the second pause are lengthened by both.
        assert_eq!(delayed(&mut recorder), (23, 0, 0));
    }
}
