//! A random sample of a run's calls, from which spans are made.
//!
//! Each call has a rank, a function of its number and the plan's seed, and the calls of the lowest ranks are the
//! sample. So workers, processes and shards choose the sample without communicating, and merging their samples only
//! means keeping the lowest ranks. A worker remembers the lowest ranks of the run so far ([`CallSampler`]), so that the
//! intervals of a long run contain few calls that are not in the final sample: of n calls, about k (1 + ln(n/k)) for a
//! sample of k.

use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use super::traced_call::TracedCall;
use crate::rows::mixing::{GOLDEN_GAMMA, mix};
use crate::rows::template::TraceId;

/// Maximum number of calls in a sample.
pub const MAX_SAMPLED_CALLS: usize = 1_000;

/// A constant that makes the ranks independent of other random numbers that are drawn from the same seed.
const RANK_KEY: u64 = 0x7370_616e_735f_7261;

/// A call of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledCall {
    /// The call's rank; the sample consists of the calls with the lowest ranks.
    pub rank: u32,
    /// The call itself.
    #[serde(flatten)]
    pub call: TracedCall,
}

impl SampledCall {
    /// Returns the sort key; calls of equal rank have a fixed order.
    fn sort_key(&self) -> (u32, Option<u64>, TraceId) {
        let number = self.call.span.map(|span| span.number);
        (self.rank, number, self.call.trace_id)
    }
}

/// The calls of the lowest ranks, in the order of their ranks; at most [`MAX_SAMPLED_CALLS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SampledCalls(Vec<SampledCall>);

impl SampledCalls {
    pub(crate) fn add(&mut self, call: SampledCall) {
        let place = self
            .0
            .partition_point(|other| other.sort_key() < call.sort_key());
        if place < MAX_SAMPLED_CALLS {
            self.0.truncate(MAX_SAMPLED_CALLS - 1);
            self.0.insert(place, call);
        }
    }

    pub(super) fn merge(&mut self, other: &SampledCalls) {
        other.0.iter().for_each(|call| self.add(*call));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the calls in the order of their ranks.
    pub fn calls(&self) -> &[SampledCall] {
        &self.0
    }
}

/// A sampler that chooses one worker's part of the sample.
#[derive(Clone, Debug)]
pub struct CallSampler {
    key: u64,
    limit: usize,
    /// Whether each stage is warm-up, whose calls are not sampled.
    warmup: Vec<bool>,
    /// Ranks and numbers of the calls that were kept, the highest on top; at most `limit`.
    kept: BinaryHeap<(u32, u64)>,
    /// The highest rank that may still be kept.
    highest: u32,
}

impl CallSampler {
    /// Creates the sampler of a run that keeps `limit` calls, at most [`MAX_SAMPLED_CALLS`]. `warmup`: whether each
    /// stage is warm-up.
    pub fn new(seed: u64, limit: u32, warmup: Vec<bool>) -> CallSampler {
        CallSampler {
            key: mix(seed ^ RANK_KEY),
            limit: (limit as usize).clamp(1, MAX_SAMPLED_CALLS),
            warmup,
            kept: BinaryHeap::new(),
            highest: u32::MAX,
        }
    }

    /// Returns the call's rank if the call may be in the sample.
    #[inline]
    pub(crate) fn rank_if_sampled(&mut self, number: u64, stage: u8) -> Option<u32> {
        let rank = mix(self.key.wrapping_add(number.wrapping_mul(GOLDEN_GAMMA))) >> 32;
        let rank = rank as u32;
        if rank > self.highest {
            return None;
        }
        self.remember_if_lowest(rank, number, stage).then_some(rank)
    }

    /// Remembers the call's rank if it is among the lowest so far.
    #[cold]
    fn remember_if_lowest(&mut self, rank: u32, number: u64, stage: u8) -> bool {
        let is_warmup = self.warmup.get(usize::from(stage)) == Some(&true);
        let is_full = self.kept.len() >= self.limit;
        let is_higher = is_full && self.kept.peek().is_some_and(|top| (rank, number) >= *top);
        if is_warmup || is_higher {
            return false;
        }
        if is_full {
            self.kept.pop();
        }
        self.kept.push((rank, number));
        if self.kept.len() >= self.limit {
            self.highest = self.kept.peek().map_or(u32::MAX, |(rank, _)| *rank);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Outcome;
    use crate::records::record::SpanFacts;
    use crate::rows::template::TraceIds;

    fn call(number: u64) -> TracedCall {
        let ids = TraceIds::new(1, 2);
        TracedCall {
            response_ns: 5,
            service_ns: 4,
            due_ns: number,
            outcome: Outcome::Ok,
            worker: 0,
            connection: None,
            trace_id: ids.trace_id(number),
            span: Some(SpanFacts {
                number,
                span_id: ids.span_id(number),
                parent_span_id: None,
                due_unix_ns: number,
                first_byte_ns: 3,
                bytes_sent: 1,
                bytes_received: 2,
                step: None,
                phases: None,
            }),
        }
    }

    /// Returns what a worker that makes these calls hands over.
    fn kept(seed: u64, limit: u32, numbers: impl Iterator<Item = u64>) -> SampledCalls {
        let mut sampler = CallSampler::new(seed, limit, vec![false]);
        let mut sampled = SampledCalls::default();
        for number in numbers {
            if let Some(rank) = sampler.rank_if_sampled(number, 0) {
                let call = call(number);
                sampled.add(SampledCall { rank, call });
            }
        }
        sampled
    }

    proptest! {
        #[test]
        fn sample_is_independent_of_workers_and_order(
            seed: u64, limit in 1u32..40, calls in 0u64..400, workers in 1u64..6, turned in 0usize..6,
        ) {
            let mut parts: Vec<SampledCalls> = (0..workers)
                .map(|worker| kept(seed, limit, (0..calls).filter(|n| n % workers == worker)))
                .collect();
            let places = turned % parts.len();
            parts.rotate_left(places);
            let mut merged = SampledCalls::default();
            parts.iter().for_each(|part| merged.merge(part));
            let whole = kept(seed, limit, (0..calls).rev());
            let chosen = calls.min(u64::from(limit)) as usize;
            prop_assert!(merged.calls().len() >= chosen && whole.calls().len() >= chosen);
            prop_assert_eq!(&merged.calls()[..chosen], &whole.calls()[..chosen]);
        }
    }

    #[test]
    fn sample_is_uniform_over_seeds() {
        // 20,000 draws of a fair choice between halves: a share beyond 0.47 to 0.53 has a probability below 1e-15.
        let mut early = 0;
        let mut samples = BTreeSet::new();
        for seed in 0..200 {
            let sampled = kept(seed, 100, 0..5_000);
            let numbers = sampled.calls()[..100].iter();
            let numbers = numbers.filter_map(|sampled| Some(sampled.call.span?.number));
            let numbers: Vec<u64> = numbers.collect();
            early += numbers.iter().filter(|number| **number < 2_500).count();
            assert!(samples.insert(numbers), "seed {seed} repeats a sample");
        }
        assert!((9_400..=10_600).contains(&early), "{early} of 20,000");
    }

    #[test]
    fn worker_hands_over_little_more_than_sample() {
        let mut sampler = CallSampler::new(7, 10, vec![true, false]);
        assert!((0..1_000).all(|number| sampler.rank_if_sampled(number, 0).is_none()));
        let handed_over =
            (0..1_000_000).filter(|number| sampler.rank_if_sampled(*number, 1).is_some());
        // The expectation is 10 (1 + ln 100,000) = 125, with a standard deviation of about 11.
        let handed_over = handed_over.count();
        assert!((60..200).contains(&handed_over), "{handed_over}");
    }

    #[test]
    fn sample_is_bounded_however_long_its_parts() {
        let text = serde_json::to_string(&SampledCall {
            rank: 1,
            call: call(1),
        })
        .unwrap();
        let long = format!("[{}]", vec![text; 3 * MAX_SAMPLED_CALLS].join(","));
        let long: SampledCalls = serde_json::from_str(&long).unwrap();
        let mut merged = SampledCalls::default();
        merged.merge(&long);
        assert_eq!(merged.calls().len(), MAX_SAMPLED_CALLS);
    }
}
