//! How many users a load had at once, where users make several calls each.

use serde::{Deserialize, Serialize};

/// The users of an interval: those who have arrived and not ended, and those of them who wait, because a call is due
/// and has no connection yet. Of several workers or processes, every figure is the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserLevels {
    /// Users who have arrived and not ended, at the end of the interval.
    pub in_flight: u64,
    /// Users who wait for a connection, at the end of the interval.
    pub waiting: u64,
    /// The greatest number of users at one time of the interval.
    pub in_flight_max: u64,
    /// The greatest number of waiting users at one time of the interval.
    pub waiting_max: u64,
    /// The time that users were in flight in the interval, added up over users, µs.
    pub in_flight_us: u64,
    /// The time that users waited in the interval, added up over users, µs.
    pub waiting_us: u64,
}

impl UserLevels {
    /// Returns the sum of the users of two workers or processes in the same interval.
    #[must_use]
    pub fn combine(self, other: UserLevels) -> UserLevels {
        UserLevels {
            in_flight: self.in_flight + other.in_flight,
            waiting: self.waiting + other.waiting,
            in_flight_max: self.in_flight_max + other.in_flight_max,
            waiting_max: self.waiting_max + other.waiting_max,
            in_flight_us: self.in_flight_us + other.in_flight_us,
            waiting_us: self.waiting_us + other.waiting_us,
        }
    }

    /// Returns these users without `earlier`, the present users of the same source, which were added before.
    #[must_use]
    pub(super) fn without_present(self, earlier: UserLevels) -> UserLevels {
        UserLevels {
            in_flight: self.in_flight.saturating_sub(earlier.in_flight),
            waiting: self.waiting.saturating_sub(earlier.waiting),
            // The part that follows begins with the users with whom the earlier part ended.
            in_flight_max: self.in_flight_max.saturating_sub(earlier.in_flight),
            waiting_max: self.waiting_max.saturating_sub(earlier.waiting),
            ..self
        }
    }

    /// Returns the users of a source that has not reported an interval: those at the end of its last report.
    pub(super) fn present(self) -> UserLevels {
        UserLevels {
            in_flight_max: self.in_flight,
            waiting_max: self.waiting,
            in_flight_us: 0,
            waiting_us: 0,
            ..self
        }
    }
}
