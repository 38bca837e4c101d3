//! The slowest calls whose requests carried trace ids, so that they can be looked up in the services' traces.
//!
//! Invariant: merging keeps the slowest calls of both parts, so the order of merging makes no difference.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::traced_call::TracedCall;
use crate::rows::template::TraceId;

/// Maximum number of calls for each stage.
pub const MAX_SLOWEST_CALLS: usize = 10;

/// Returns the sort key: the slowest first, with a fixed order of equally slow calls.
fn sort_key(call: &TracedCall) -> (Reverse<u64>, u64, TraceId) {
    (Reverse(call.response_ns), call.due_ns, call.trace_id)
}

/// The slowest calls, the slowest first; at most [`MAX_SLOWEST_CALLS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlowestCalls(Vec<TracedCall>);

impl SlowestCalls {
    /// Returns whether a call of this response time may be one of the slowest.
    #[inline]
    pub(crate) fn may_include(&self, response_ns: u64) -> bool {
        let last = self.0.get(MAX_SLOWEST_CALLS - 1);
        last.is_none_or(|last| response_ns >= last.response_ns)
    }

    pub(crate) fn add(&mut self, call: TracedCall) {
        let place = self
            .0
            .partition_point(|other| sort_key(other) < sort_key(&call));
        if place < MAX_SLOWEST_CALLS {
            self.0.truncate(MAX_SLOWEST_CALLS - 1);
            self.0.insert(place, call);
        }
    }

    pub(super) fn merge(&mut self, other: &SlowestCalls) {
        other.0.iter().for_each(|call| self.add(*call));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the calls, the slowest first.
    pub fn calls(&self) -> &[TracedCall] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Outcome;
    use crate::rows::template::TraceIds;

    fn call(response_ns: u64, number: u64) -> TracedCall {
        TracedCall {
            response_ns,
            service_ns: response_ns / 2,
            due_ns: number % 3,
            outcome: Outcome::Ok,
            worker: 1,
            connection: Some(2),
            trace_id: TraceIds::new(1, 2).trace_id(number),
            span: None,
        }
    }

    fn slowest(calls: &[TracedCall]) -> SlowestCalls {
        let mut slowest = SlowestCalls::default();
        for call in calls {
            if slowest.may_include(call.response_ns) {
                slowest.add(*call);
            }
        }
        slowest
    }

    proptest! {
        #[test]
        fn slowest_calls_match_full_sort(
            // Few distinct times, so that some calls are equally slow.
            times in proptest::collection::vec(0u64..40, 0..200), workers in 1usize..5, turned in 0usize..5,
        ) {
            let numbered = times.iter().zip(0..);
            let calls: Vec<TracedCall> = numbered.map(|(time, number)| call(*time, number)).collect();
            let mut parts: Vec<SlowestCalls> = (0..workers)
                .map(|worker| {
                    let own = calls.iter().skip(worker).step_by(workers);
                    slowest(&own.copied().collect::<Vec<_>>())
                })
                .collect();
            parts.rotate_left(turned % workers);
            let mut merged = SlowestCalls::default();
            parts.iter().for_each(|part| merged.merge(part));
            let mut sorted = calls.clone();
            sorted.sort_by_key(sort_key);
            sorted.truncate(MAX_SLOWEST_CALLS);
            prop_assert_eq!(merged.calls(), &sorted[..]);
            prop_assert_eq!(slowest(&calls), merged);
        }
    }

    #[test]
    fn calls_faster_than_kept_are_skipped() {
        let mut slowest = SlowestCalls::default();
        for number in 0..MAX_SLOWEST_CALLS as u64 {
            assert!(slowest.may_include(0));
            slowest.add(call(100 + number, number));
        }
        assert!(!slowest.may_include(99) && slowest.may_include(100));
        slowest.add(call(500, 77));
        assert!(!slowest.may_include(100) && slowest.may_include(101));
        assert_eq!(slowest.calls().len(), MAX_SLOWEST_CALLS);
        slowest = SlowestCalls::default();
        assert!(slowest.is_empty() && slowest.may_include(0));
    }
}
