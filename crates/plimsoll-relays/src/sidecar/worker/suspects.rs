//! Determines which clients are suspected when an upstream closes a connection.
//!
//! When a connection ends, the clients whose calls may be the cause are suspected. A framed protocol does not reveal
//! which call that was, and HTTP/2 at best names the last stream that was processed, although the next one may be the
//! cause. So several clients are suspected, the most likely ones first, and their next calls are isolated: that does
//! not harm an innocent client, and a second failure affects only the client that caused it.

use std::time::Duration;

use plimsoll_model::Time;

use super::super::add_to_counter;
use super::super::upstream_calls::UpstreamCall;
use super::Worker;
use super::http2::Http2State;

/// Maximum number of clients that are suspected for one closed connection.
const MAX_SUSPECTS: usize = 16;
/// How long a one-way request is suspected. It gets no answer, so nothing tells when the upstream has processed it.
const ONEWAY_SUSPICION_PERIOD: Duration = Duration::from_secs(1);

/// Returns the distinct clients of these calls, in order.
fn first_distinct_clients(calls: impl Iterator<Item = u64>) -> Vec<u64> {
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

/// Returns the clients of the newest lost calls. `oneway` is the client and time of the last one-way request, which
/// gets no answer.
fn newest_suspects(lost: &[UpstreamCall], oneway: Option<(u64, Time)>, now: Time) -> Vec<u64> {
    let mut newest: Vec<_> = lost.iter().map(|call| (call.began, call.client)).collect();
    let oneway = oneway.filter(|(_, at)| now < *at + ONEWAY_SUSPICION_PERIOD);
    newest.extend(oneway.map(|(from, at)| (at, from)));
    newest.sort_unstable_by(|a, b| b.cmp(a));
    first_distinct_clients(newest.into_iter().map(|(_, from)| from))
}

/// Returns the clients of the calls whose streams are closest to `last`, the last one that the
/// upstream has processed, alternately below and above it: the cause may be that stream or the
/// next.
fn suspects_around_stream(last: u32, mut calls: Vec<(u32, u64)>) -> Vec<u64> {
    calls.sort_unstable();
    let (seen, unseen) = calls.split_at(calls.partition_point(|(stream, _)| *stream <= last));
    let (mut seen, mut unseen) = (seen.iter().rev(), unseen.iter());
    let in_turn = (0..calls.len()).flat_map(|_| [seen.next(), unseen.next()]);
    first_distinct_clients(in_turn.flatten().map(|(_, client)| *client))
}

impl Worker {
    /// Suspects clients when an upstream ends an HTTP/2 connection with an error or without GOAWAY.
    /// `last` is the last processed stream, if known.
    pub(super) fn blame_clients_around_stream(
        &mut self,
        route: usize,
        last: u32,
        http2: &Http2State,
        now: Time,
    ) {
        let calls = http2.session.open_calls();
        let open = calls.filter_map(|(stream, key)| {
            let exchange = self.exchanges.get(key)?;
            Some((stream, exchange.down.token))
        });
        let calls = open.chain(http2.reset_calls.recent_resets(now)).collect();
        let suspects = suspects_around_stream(last, calls);
        self.isolate_clients(route, &suspects, now);
    }

    /// Suspects clients when an upstream closes a connection without a reason: any unanswered call
    /// may be the cause, most likely a new one.
    pub(super) fn blame_newest_clients(
        &mut self,
        route: usize,
        lost: &[UpstreamCall],
        oneway: Option<(u64, Time)>,
        now: Time,
    ) {
        let suspects = newest_suspects(lost, oneway, now);
        self.isolate_clients(route, &suspects, now);
    }

    fn isolate_clients(&mut self, route: usize, suspects: &[u64], now: Time) {
        add_to_counter(&self.counters(route).suspected, suspects.len() as u64);
        for client in suspects {
            self.isolate(*client, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_protocols::interface::relayed::FrameFlavor;

    use super::*;

    #[test]
    fn suspects_are_newest_distinct_callers() {
        let second = |n: u64| Time::ZERO + Duration::from_secs(n);
        let call = |from, at| UpstreamCall {
            client: from,
            id: 0,
            flavor: FrameFlavor::default(),
            began: second(at),
            deadline: Time::NEVER,
            bytes: 0,
        };
        let lost = [call(1, 1), call(2, 4), call(1, 3), call(3, 2)];
        let now = second(5);
        assert_eq!(newest_suspects(&lost, None, now), [2, 1, 3]);
        // Requests without an answer are suspected only briefly.
        assert_eq!(newest_suspects(&lost, Some((7, now)), now), [7, 2, 1, 3]);
        assert_eq!(newest_suspects(&[], Some((7, second(4))), now), [0; 0]);
        let many: Vec<_> = (0..1000).map(|n| call(n, n)).collect();
        let newest: Vec<_> = (0..1000).rev().take(MAX_SUSPECTS).collect();
        assert_eq!(newest_suspects(&many, None, second(1000)), newest);
    }

    #[test]
    fn suspects_are_neighbours_of_last_stream() {
        let calls = vec![(9, 90), (1, 10), (5, 50), (7, 70), (3, 50)];
        assert_eq!(suspects_around_stream(5, calls.clone()), [50, 70, 90, 10]);
        // If the last stream is unknown, the newest calls come first.
        assert_eq!(suspects_around_stream(u32::MAX, calls), [90, 70, 50, 10]);
        let many: Vec<_> = (0..1000u32).map(|n| (n, u64::from(n))).collect();
        let suspects = suspects_around_stream(500, many);
        assert_eq!(suspects.len(), MAX_SUSPECTS);
        assert!(suspects.iter().all(|client| (493..=508).contains(client)));
    }
}
