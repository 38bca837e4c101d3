//! Times of the tokens that the calls of one rung (variant) of a ladder stream, by round.

use super::percentiles::pooled_quantile_us;
use crate::comparisons::ladder::{LadderMetric, TokenFigures};
use crate::metrics::measure::{CallMeasures, TimeMeasure};

/// Times in nanoseconds of the measured calls that ended ok, by round. Rounds at the end may be missing.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenTimes {
    /// The time from the send of a call to its first token.
    first: Vec<Vec<u64>>,
    /// The mean time from one token of a call to the next.
    per_token: Vec<Vec<u64>>,
}

impl TokenTimes {
    /// Adds the times of a call, if it streamed tokens.
    pub(super) fn add(&mut self, round: usize, measures: &CallMeasures) {
        for (times, measure) in [
            (&mut self.first, TimeMeasure::FirstToken),
            (&mut self.per_token, TimeMeasure::TokenMean),
        ] {
            let Some(ns) = measures.time_ns(measure) else {
                continue;
            };
            if round >= times.len() {
                times.resize(round + 1, Vec::new());
            }
            times[round].push(ns);
        }
    }

    /// Appends the times of a later group of batches. `rounds`: the number of rounds before it.
    pub(super) fn append(&mut self, rounds: usize, more: TokenTimes) {
        for (before, after) in [
            (&mut self.first, more.first),
            (&mut self.per_token, more.per_token),
        ] {
            before.resize(rounds, Vec::new());
            before.extend(after);
        }
    }

    /// Returns the times of a metric by round; empty if the metric is not about tokens.
    pub(super) fn by_round(&self, metric: LadderMetric) -> &[Vec<u64>] {
        match metric {
            LadderMetric::FirstToken => &self.first,
            LadderMetric::TimePerToken => &self.per_token,
            _ => &[],
        }
    }

    /// Returns whether any call has a time of the metric.
    pub(super) fn has(&self, metric: LadderMetric) -> bool {
        self.by_round(metric).iter().any(|times| !times.is_empty())
    }

    /// Returns the percentiles of all calls; `None` if they streamed no tokens.
    pub(super) fn figures(&self) -> Option<TokenFigures> {
        self.has(LadderMetric::FirstToken).then(|| TokenFigures {
            first_p50_us: pooled_quantile_us(&self.first, 0.5),
            per_token_p50_us: pooled_quantile_us(&self.per_token, 0.5),
            // The gaps of a call are not kept, only their mean.
            gap_p99_us: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BatchesRecord, RungMeasurement};
    use super::*;
    use crate::comparisons::ladder::ALPHA;
    use crate::formats::time::Time;
    use crate::metrics::outcome::Outcome;
    use crate::metrics::sample::CallSample;
    use crate::plan::BatchSchedule;
    use crate::records::record::RequestRecord;

    const US: u64 = 1_000;
    const ROUNDS: u64 = 60;

    /// Returns a rung whose calls stream a token after each `gap_us`, the first of them `first_us` later.
    fn streaming(index: u32, first_us: u64, gap_us: u64) -> RungMeasurement {
        let turns = BatchSchedule {
            of: 2,
            index,
            share: 1,
            calls: 4,
            seed: 1,
            read_cpu: true,
            slot: None,
        };
        let mut measured = RungMeasurement::new(turns, 1, vec![false]);
        for number in 0..ROUNDS * 4 {
            // The first call of a batch does not count.
            let is_first = number.is_multiple_of(4);
            let noise_us = number * u64::from(31 + 6 * index) % 17;
            let wake_us = if is_first { 50_000 } else { noise_us };
            let first_ns = (first_us + gap_us + wake_us) * US;
            let gap_ns = (gap_us + number * u64::from(13 + 4 * index) % 5) * US;
            let done = Time(first_ns + 10 * gap_us * US);
            measured.add_request(&RequestRecord {
                sample: CallSample {
                    number,
                    stage: 0,
                    outcome: Outcome::Ok,
                    arrival: Time::ZERO,
                    sent: Time::ZERO,
                    first_byte: Time(first_ns),
                    done,
                    bytes_sent: 1,
                    bytes_received: 1,
                },
                phases: None,
                measures: Some(Box::new(CallMeasures::new(
                    &[],
                    &[
                        (TimeMeasure::FirstToken, first_ns),
                        (TimeMeasure::TokenMean, gap_ns),
                    ],
                ))),
            });
        }
        measured
    }

    #[test]
    fn token_times_differ_apart_from_calls() {
        let mut rungs = vec![streaming(0, 100, 2_000), streaming(1, 400, 2_000)];
        let more = rungs.clone();
        RungMeasurement::extend_with_replicate(&mut rungs, more);
        let record = BatchesRecord::from_measurements(&rungs, ALPHA, 0, 1);
        assert_eq!(record.rounds, 2 * ROUNDS as usize);
        let first = record.difference(1, 0, LadderMetric::FirstToken).unwrap();
        assert!(first.low > 283.0 && first.high < 317.0, "{first:?}");
        let gap = record.difference(1, 0, LadderMetric::TimePerToken).unwrap();
        assert!(gap.low <= 0.0 && gap.high >= 0.0, "{gap:?}");
        let all = rungs[1].percentiles().tokens.unwrap();
        let [first_us, gap_us] = [all.first_p50_us, all.per_token_p50_us].map(Option::unwrap);
        assert!((2_400.0..2_417.0).contains(&first_us), "{all:?}");
        assert!((2_000.0..2_005.0).contains(&gap_us), "{all:?}");
    }

    #[test]
    fn calls_without_tokens_have_no_token_metrics() {
        let mut rungs = vec![streaming(0, 100, 2_000), streaming(1, 400, 2_000)];
        for rung in &mut rungs {
            rung.tokens = TokenTimes::default();
        }
        let record = BatchesRecord::from_measurements(&rungs, ALPHA, 0, 1);
        assert!(record.difference(1, 0, LadderMetric::P50).is_some());
        assert_eq!(record.difference(1, 0, LadderMetric::FirstToken), None);
        assert!(rungs[0].percentiles().tokens.is_none());
    }
}
