//! Who is suspected when an upstream's connection ends.
//!
//! What a connection dies of is held against those whom it was sent for. A protocol of frames does not say which call
//! that was, and HTTP/2 at best names the last one that was looked at: the one beside it may have been it as well. So
//! several are suspected, those most likely first, and the next calls of each go alone: to who is innocent that does no
//! harm, and the second time it harms nobody but who made it.

use std::time::Duration;

use plimsoll_model::Time;

use super::super::calls::Call;
use super::super::count;
use super::Worker;
use super::http2::Http2;

/// Clients that one end of a connection upstream is held against.
const MAX_SUSPECTS: usize = 16;
/// A request without an answer is suspected for so long: nothing says when it was done.
const ONEWAY_SUSPECTED_FOR: Duration = Duration::from_secs(1);

/// The clients of calls in this order, each once.
fn first_clients(calls: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut clients = Vec::new();
    for client in calls {
        if clients.len() == MAX_SUSPECTS {
            break;
        }
        if !clients.contains(&client) {
            clients.push(client);
        }
    }
    clients
}

/// The clients of the newest calls that were lost. `oneway`: the last request without an answer.
fn suspects(lost: &[Call], oneway: Option<(u64, Time)>, now: Time) -> Vec<u64> {
    let mut newest: Vec<_> = lost.iter().map(|call| (call.began, call.from)).collect();
    let oneway = oneway.filter(|(_, at)| now < *at + ONEWAY_SUSPECTED_FOR);
    newest.extend(oneway.map(|(from, at)| (at, from)));
    newest.sort_unstable_by(|a, b| b.cmp(a));
    first_clients(newest.into_iter().map(|(_, from)| from))
}

/// The clients of the calls whose streams are next to `last`, which an upstream says it has looked at: from there up
/// and down in turn, as it may have ended by that one or by the next.
fn suspects_around(last: u32, mut calls: Vec<(u32, u64)>) -> Vec<u64> {
    calls.sort_unstable();
    let (seen, unseen) = calls.split_at(calls.partition_point(|(stream, _)| *stream <= last));
    let (mut seen, mut unseen) = (seen.iter().rev(), unseen.iter());
    let in_turn = (0..calls.len()).flat_map(|_| [seen.next(), unseen.next()]);
    first_clients(in_turn.flatten().map(|(_, client)| *client))
}

impl Worker {
    /// An HTTP/2 connection upstream ends with an error, or without a word. `last`: the last stream that was looked at,
    /// as far as that is known.
    pub(super) fn blame_around(&mut self, route: usize, last: u32, http2: &Http2, now: Time) {
        let calls = http2.session.open_calls();
        let open = calls.filter_map(|(stream, key)| {
            let exchange = self.exchanges.get(key)?;
            Some((stream, exchange.down.token))
        });
        let calls = open.chain(http2.reset_calls.recent(now)).collect();
        let suspects = suspects_around(last, calls);
        self.isolate_all(route, &suspects, now);
    }

    /// A connection upstream has ended, and its protocol does not say what for: it may be any call that it has not
    /// answered, and most likely a new one.
    pub(super) fn blame_newest(
        &mut self,
        route: usize,
        lost: &[Call],
        oneway: Option<(u64, Time)>,
        now: Time,
    ) {
        let suspects = suspects(lost, oneway, now);
        self.isolate_all(route, &suspects, now);
    }

    fn isolate_all(&mut self, route: usize, suspects: &[u64], now: Time) {
        count(&self.counters(route).suspected, suspects.len() as u64);
        for client in suspects {
            self.isolate(*client, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_protocols::relayed::Manner;

    use super::*;

    #[test]
    fn suspects_are_newest_distinct_callers() {
        let second = |n: u64| Time::ZERO + Duration::from_secs(n);
        let call = |from, at| Call {
            from,
            id: 0,
            manner: Manner::default(),
            began: second(at),
            deadline: Time::NEVER,
            bytes: 0,
        };
        let lost = [call(1, 1), call(2, 4), call(1, 3), call(3, 2)];
        let now = second(5);
        assert_eq!(suspects(&lost, None, now), [2, 1, 3]);
        // What wants no answer is forgotten soon.
        assert_eq!(suspects(&lost, Some((7, now)), now), [7, 2, 1, 3]);
        assert_eq!(suspects(&[], Some((7, second(4))), now), [0; 0]);
        let many: Vec<_> = (0..1000).map(|n| call(n, n)).collect();
        let newest: Vec<_> = (0..1000).rev().take(MAX_SUSPECTS).collect();
        assert_eq!(suspects(&many, None, second(1000)), newest);
    }

    #[test]
    fn suspects_are_neighbours_of_last_stream() {
        let calls = vec![(9, 90), (1, 10), (5, 50), (7, 70), (3, 50)];
        assert_eq!(suspects_around(5, calls.clone()), [50, 70, 90, 10]);
        // Nothing says where it ended: the newest are first.
        assert_eq!(suspects_around(u32::MAX, calls), [90, 70, 50, 10]);
        let many: Vec<_> = (0..1000u32).map(|n| (n, u64::from(n))).collect();
        let suspects = suspects_around(500, many);
        assert_eq!(suspects.len(), MAX_SUSPECTS);
        assert!(suspects.iter().all(|client| (493..=508).contains(client)));
    }
}
