//! When a worker's loop stood still, and how many calls that can have lengthened.
//!
//! A loop that is stopped, swapped out or busy with something long reads answers late and sends
//! late. For every such pause it is recorded how many calls were under way or due until its
//! traces were gone, and by how much it can have lengthened their times. No call is looked at
//! for that: two numbers of the loop are compared, once a turn.

use plimsoll_model::{Recorder, Time};

/// While calls are in flight the loop looks at its sockets at least this often, or it could not
/// tell a pause from a wait. Nanoseconds.
pub(crate) const LOOK_NS: u64 = 5_000_000;

/// What is shorter is the loop's usual work. Nanoseconds.
const SHORTEST_NS: u64 = 1_000_000;

/// A target with a tenth of its capacity to spare has worked off by then what a pause has
/// heaped up: so many times the pause's length.
const LONGEST_RECOVERY: u64 = 10;

/// A loop's pauses.
pub(crate) struct Pauses {
    /// When the loop last went on after a wait.
    awoke: Time,
    aftermath: Option<Aftermath>,
    /// When the last aftermath ended, and by how much its pauses can have lengthened a call's times. Nanoseconds.
    last: (Time, u64),
}

/// From a pause to the end of its traces.
struct Aftermath {
    /// By how much it can have lengthened a call's times.
    lengthened_ns: u64,
    /// The longest of the pauses that follow upon each other here.
    longest_ns: u64,
    ended: Time,
    stage: u8,
    /// Calls under way when the loop went on, which it can have lengthened.
    lengthened: u64,
    /// The aftermath ends when no more calls than this are under way.
    under_way: u64,
    /// How many had been due until then.
    due: u64,
}

impl Pauses {
    pub(crate) fn new() -> Pauses {
        Pauses {
            awoke: Time::NEVER,
            aftermath: None,
            last: (Time::ZERO, 0),
        }
    }

    /// The loop waited from `before` to `now`, with `wake` in mind. Gives the length of the
    /// pause, if there was one. Nanoseconds.
    #[inline]
    pub(crate) fn waited(&mut self, before: Time, wake: Time, now: Time) -> Option<u64> {
        let worked = before.since(self.awoke);
        self.awoke = now;
        let overslept = now.since(wake.max(before));
        if worked <= SHORTEST_NS && overslept <= SHORTEST_NS {
            return None;
        }
        // Nobody knows when in the wait the loop was stopped.
        let waited = if overslept > SHORTEST_NS {
            now.since(before)
        } else {
            0
        };
        Some(worked + waited)
    }

    /// The load that was to begin at `start` begins at `now`. Gives how late that is, if it is a pause. Nanoseconds.
    pub(crate) fn begun_late(&mut self, start: Time, now: Time) -> Option<u64> {
        let late = now.since(start);
        (late > SHORTEST_NS).then(|| {
            // Not a second time in the first turn.
            self.awoke = now;
            late
        })
    }

    /// A pause of `length_ns` is over. `under_way`: calls in flight or waiting; `due`: how many
    /// have been due so far.
    #[cold]
    pub(crate) fn begin(
        &mut self,
        length_ns: u64,
        now: Time,
        (stage, under_way, due): (u8, u64, u64),
        recorder: &mut Recorder,
    ) {
        let mut begun = Aftermath {
            lengthened_ns: length_ns,
            longest_ns: length_ns,
            ended: now,
            stage,
            lengthened: under_way,
            under_way,
            due,
        };
        if let Some(before) = self.aftermath.take() {
            // Sent late because of one, behind a call that another held up, and read late because of this one.
            begun.lengthened_ns += before.lengthened_ns.min(2 * before.longest_ns);
            begun.longest_ns = begun.longest_ns.max(before.longest_ns);
            // What one has heaped up is not what calls come back to.
            begun.under_way = begun.under_way.min(before.under_way);
            before.record(due, stage, recorder);
        }
        self.aftermath = Some(begun);
    }

    /// Whether traces of a pause are left.
    #[inline]
    pub(crate) fn are_felt(&self) -> bool {
        self.aftermath.is_some()
    }

    /// By how much pauses can have lengthened the times of a call that was sent at `sent` and has ended. Nanoseconds.
    #[inline]
    pub(crate) fn lengthened(&self, sent: Time) -> u64 {
        let (ended, last_ns) = self.last;
        let before = if sent <= ended { last_ns } else { 0 };
        let felt = self.aftermath.as_ref().map_or(0, |a| a.lengthened_ns);
        before.max(felt)
    }

    /// Looks whether they are gone.
    #[cold]
    pub(crate) fn look(
        &mut self,
        now: Time,
        (stage, under_way, due): (u8, u64, u64),
        recorder: &mut Recorder,
    ) {
        let is_over = |a: &mut Aftermath| {
            let since = now.since(a.ended);
            let is_back = under_way <= a.under_way && since >= a.longest_ns;
            is_back || since >= LONGEST_RECOVERY * a.longest_ns
        };
        if let Some(aftermath) = self.aftermath.take_if(is_over) {
            self.last = (now, aftermath.lengthened_ns);
            aftermath.record(due, stage, recorder);
        }
    }

    /// The run is over, and so are its pauses.
    pub(crate) fn end(&mut self, (stage, _, due): (u8, u64, u64), recorder: &mut Recorder) {
        if let Some(aftermath) = self.aftermath.take() {
            aftermath.record(due, stage, recorder);
        }
    }
}

impl Aftermath {
    fn record(&self, due: u64, stage: u8, recorder: &mut Recorder) {
        let calls = self.lengthened + (due - self.due);
        if calls == 0 {
            return;
        }
        recorder.delayed(self.stage, self.lengthened_ns, calls);
        if stage != self.stage {
            recorder.delayed(stage, self.lengthened_ns, calls);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn on_time_wakeup_is_not_a_pause() {
        let mut pauses = Pauses::new();
        assert_eq!(pauses.waited(Time(0), Time(5 * MS), Time(5 * MS)), None);
        // An answer came before.
        assert_eq!(
            pauses.waited(Time(5 * MS), Time(90 * MS), Time(6 * MS)),
            None
        );
        // There was work already, and no wait at all.
        assert_eq!(pauses.waited(Time(6 * MS), Time::ZERO, Time(6 * MS)), None);
        // Stopped in a wait, and in the work after it.
        let stopped = pauses.waited(Time(6 * MS), Time(8 * MS), Time(90 * MS));
        assert_eq!(stopped, Some(84 * MS));
        let busy = pauses.waited(Time(120 * MS), Time(121 * MS), Time(121 * MS));
        assert_eq!(busy, Some(30 * MS));
    }

    #[test]
    fn pause_recovery_ends_and_is_bounded() {
        let mut recorder = Recorder::new(1);
        let mut pauses = Pauses::new();
        pauses.begin(80 * MS, Time(0), (0, 3, 100), &mut recorder);
        let mut look = |ms: u64, under_way, due| {
            pauses.look(Time(ms * MS), (0, under_way, due), &mut recorder);
            pauses.are_felt()
        };
        assert!(look(10, 40, 140));
        // As few again, but an answer may still be on its way.
        assert!(look(30, 3, 150));
        assert!(!look(81, 2, 170));
        let delayed = |recorder: &mut Recorder| {
            let interval = recorder.take(None);
            let times = &interval.stages[0].as_ref().unwrap().delayed;
            (
                times.len(),
                times.longer_than(79 * MS),
                times.longer_than(81 * MS),
            )
        };
        assert_eq!(delayed(&mut recorder), (73, 73, 0));
        pauses.begin(10 * MS, Time(0), (0, 3, 0), &mut recorder);
        pauses.begin(20 * MS, Time(50 * MS), (0, 9, 7), &mut recorder);
        pauses.look(Time(249 * MS), (0, 4, 11), &mut recorder);
        assert!(pauses.are_felt());
        pauses.look(Time(250 * MS), (0, 4, 11), &mut recorder);
        assert!(!pauses.are_felt());
        // What was under way at the second of two pauses is lengthened by both.
        assert_eq!(delayed(&mut recorder), (23, 0, 0));
    }
}
