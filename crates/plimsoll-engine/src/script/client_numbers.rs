//! The numbers of users in a closed loop in which each client's users have numbers of its own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use plimsoll_model::Time;

use crate::event_loop::WorkerShare;

/// Numbers of users by client: of `n` clients, client `k` starts the users `k`, `k + n`, `k + 2n` and so on. Workers
/// divide the clients, so no number occurs twice in a run.
#[derive(Debug)]
pub(super) struct ClientNumbers {
    /// The clients of the whole run.
    clients: u64,
    /// For each idle client, the time from which it may start its next user, and the number of that user.
    idle: BinaryHeap<Reverse<(Time, u64)>>,
}

impl ClientNumbers {
    /// Creates the numbers of a worker's clients, all of which are idle.
    pub(super) fn from_share(share: &WorkerShare) -> ClientNumbers {
        let first = (0..u64::from(share.clients))
            .map(|client| u64::from(share.index) + client * u64::from(share.of));
        ClientNumbers {
            clients: share.load.arrivals.clients().map_or(1, u64::from).max(1),
            idle: first.map(|number| Reverse((Time::ZERO, number))).collect(),
        }
    }

    /// Returns the number of the user that the client starts that has been idle for longest, or `None` if no client is
    /// idle.
    pub(super) fn start_next(&mut self) -> Option<u64> {
        self.idle.pop().map(|Reverse((_, number))| number)
    }

    /// Makes the client of user `number` idle, which may start its next user at `ready`.
    pub(super) fn release(&mut self, number: u64, ready: Time) {
        self.idle.push(Reverse((ready, number + self.clients)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_keep_their_numbers() {
        let first = [1, 3, 5].map(|number| Reverse((Time::ZERO, number)));
        let mut numbers = ClientNumbers {
            clients: 6,
            idle: first.into_iter().collect(),
        };
        let started: Vec<_> = std::iter::from_fn(|| numbers.start_next()).collect();
        assert_eq!(started, [1, 3, 5]);
        // The client that is ready first is next, in whatever order the others ended.
        numbers.release(5, Time(30));
        numbers.release(1, Time(20));
        assert_eq!(numbers.start_next(), Some(7));
        numbers.release(7, Time(40));
        assert_eq!(numbers.start_next(), Some(11));
        assert_eq!(numbers.start_next(), Some(13));
        assert_eq!(numbers.start_next(), None);
    }
}
