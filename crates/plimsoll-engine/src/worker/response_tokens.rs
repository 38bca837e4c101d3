//! Answers of language models: token timings, which a worker keeps until the answer's call has ended.
//!
//! The timings are in a separate table, so that calls without tokens have no cost.

use std::time::Duration;

use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::metrics::token_times::TokenTimes;
use plimsoll_model::plan::GoodputBounds;
use plimsoll_model::{Outcome, Recorder, Time};

use super::call_table::InFlightCall;
use crate::driver::{CallId, TokenUsage};

/// The tokens of one answer received so far. Their times are recorded after the call has succeeded.
#[derive(Clone, Debug)]
pub(crate) struct ResponseTokens {
    times: TokenTimes,
    /// Number of stream events that contained tokens.
    received: u64,
    /// Lengths in bytes of the text of the first token event, and of all token events.
    first_bytes: u64,
    bytes: u64,
    /// Number of tokens in the first token event, if the service reports counts while streaming.
    first_tokens: Option<u64>,
    /// The token counts that the service reported.
    usage: Option<TokenUsage>,
    /// The time at which an answer without text ended; [`Time::NEVER`] otherwise.
    ended_without_text: Time,
    /// Whether the answer arrived in one piece, so that its tokens have no times.
    is_whole: bool,
}

impl ResponseTokens {
    pub(crate) const EMPTY: ResponseTokens = ResponseTokens {
        times: TokenTimes::EMPTY,
        received: 0,
        first_bytes: 0,
        bytes: 0,
        first_tokens: None,
        usage: None,
        ended_without_text: Time::NEVER,
        is_whole: false,
    };

    /// Resets the entry and keeps its allocation.
    fn reset(&mut self) {
        let mut times = std::mem::replace(&mut self.times, TokenTimes::EMPTY);
        times.reset();
        *self = ResponseTokens {
            times,
            ..ResponseTokens::EMPTY
        };
    }

    /// Records a stream event with tokens for a call of `stage`; `bytes` is the length of their text.
    pub(crate) fn record_token_event(
        &mut self,
        stage: u8,
        bytes: u32,
        now: Time,
        recorder: &mut Recorder,
    ) {
        if self.received == 0 {
            self.first_bytes = u64::from(bytes);
        }
        self.times.record(now);
        self.received += 1;
        self.bytes += u64::from(bytes);
        recorder.add_protocol_count(stage, Count::TokensReceived, 1);
    }

    /// Stores the token counts that the service reported.
    pub(crate) fn set_usage(&mut self, usage: TokenUsage) {
        if self.received == 1 && self.first_tokens.is_none() {
            self.first_tokens = Some(usage.streamed).filter(|tokens| *tokens > 0);
        }
        self.usage = Some(usage);
    }

    /// Records that the answer has ended without any text.
    pub(crate) fn set_ended_without_text(&mut self, now: Time) {
        self.ended_without_text = self.ended_without_text.min(now);
    }

    /// Records that the answer arrived in one piece.
    pub(crate) fn set_whole_answer(&mut self) {
        self.is_whole = true;
    }

    /// Returns the number of tokens after the first token event, at least 1. Events are counted instead if the service
    /// reports no count, or a count above the number of the text's bytes, since some of these tokens were not streamed.
    /// If events contain several tokens, the share of the first one is estimated from its text.
    fn tokens_after_first(&self) -> u64 {
        let pieces = self.received.saturating_sub(1).max(1);
        let streamed = self.usage.map_or(0, |usage| usage.streamed);
        if streamed <= self.received || streamed > self.bytes {
            return pieces;
        }
        let share = streamed as f64 * self.first_bytes as f64 / self.bytes as f64;
        let first = self.first_tokens.unwrap_or(share.round() as u64);
        streamed.saturating_sub(first.max(1)).max(pieces)
    }

    /// Returns the measures of a call that succeeded at `now`; `None` if its answer contained no token.
    pub(crate) fn token_measures(
        &self,
        (arrival, sent): (Time, Time),
        goodput: &GoodputBounds,
        now: Time,
    ) -> Option<TokenMeasures> {
        let usage = self.usage.unwrap_or_default();
        if self.is_whole {
            return Some(TokenMeasures::for_whole_answer(
                usage,
                goodput.is_met(Duration::ZERO, Duration::ZERO, now.duration_since(arrival)),
            ));
        }
        // A token without text counts as received at the end of the answer.
        let (first, last) = match (self.received, usage.answer) {
            (0, 0) => return None,
            (0, _) => (
                self.ended_without_text.min(now),
                self.ended_without_text.min(now),
            ),
            _ => (self.times.first(), self.times.last()),
        };
        let per_token = last.since(first) / self.tokens_after_first();
        let is_good = goodput.is_met(
            first.duration_since(arrival),
            Duration::from_nanos(per_token),
            now.duration_since(arrival),
        );
        Some(TokenMeasures {
            counts: [
                (Count::TokensReceived, self.received),
                (Count::TokensPrompt, usage.prompt),
                (Count::TokensAnswer, usage.answer),
                (Count::UsageMissing, u64::from(usage.answer == 0)),
                (Count::QueriesGood, u64::from(is_good)),
            ],
            times: [
                (TimeMeasure::TimeToFirstToken, first.since(arrival)),
                (TimeMeasure::FirstToken, first.since(sent)),
                (TimeMeasure::TokenMean, per_token),
            ],
        })
    }

    /// Adds a successful answer to the records of its stage, except for the counts that were added while it was
    /// streamed.
    pub(crate) fn record(&self, measured: &TokenMeasures, stage: u8, recorder: &mut Recorder) {
        let pieces = (Count::PiecesAnswer, self.received);
        for (count, n) in measured.counts[1..].iter().copied().chain([pieces]) {
            if n > 0 {
                recorder.add_protocol_count(stage, count, n);
            }
        }
        if self.is_whole {
            return;
        }
        // A single token has no mean, and one that arrived before its call was sent no time to the first.
        let known = measured.times.into_iter().filter(|(_, ns)| *ns > 0);
        for (measure, ns) in known {
            recorder.record_protocol_time(stage, measure, ns);
        }
        for ns in self.times.gaps_ns() {
            recorder.record_protocol_time(stage, TimeMeasure::TokenGap, ns);
        }
    }
}

/// The token timings of all calls in flight.
#[derive(Debug)]
pub(super) struct TokenTracker {
    /// Token timings, indexed by [`CallId`], up to the highest id whose answer had tokens.
    answers: Vec<ResponseTokens>,
    goodput: GoodputBounds,
}

/// The counts and times of an answer that succeeded.
#[derive(Debug)]
pub(crate) struct TokenMeasures {
    pub(crate) counts: [(Count, u64); 5],
    pub(crate) times: [(TimeMeasure, u64); 3],
}

impl TokenMeasures {
    /// Creates the measures of an answer whose tokens have no times.
    fn for_whole_answer(usage: TokenUsage, is_good: bool) -> TokenMeasures {
        let is_uncounted = usage.prompt == 0 && usage.answer == 0;
        TokenMeasures {
            counts: [
                (Count::TokensReceived, 0),
                (Count::TokensPrompt, usage.prompt),
                (Count::TokensAnswer, usage.answer),
                (Count::UsageMissing, u64::from(is_uncounted)),
                (Count::QueriesGood, u64::from(is_good)),
            ],
            times: [
                (TimeMeasure::TimeToFirstToken, 0),
                (TimeMeasure::FirstToken, 0),
                (TimeMeasure::TokenMean, 0),
            ],
        }
    }
}

impl TokenTracker {
    pub(super) fn new(goodput: GoodputBounds) -> TokenTracker {
        TokenTracker {
            answers: Vec::new(),
            goodput,
        }
    }

    fn answer_mut(&mut self, id: CallId) -> &mut ResponseTokens {
        let index = id.0 as usize;
        if index >= self.answers.len() {
            self.answers.resize(index + 1, ResponseTokens::EMPTY);
        }
        &mut self.answers[index]
    }

    /// Records a token event of the answer to `call`; `bytes` is the length of its tokens' text.
    pub(super) fn record_token_event(
        &mut self,
        id: CallId,
        bytes: u32,
        (call, now): (&InFlightCall, Time),
        recorder: &mut Recorder,
    ) {
        self.answer_mut(id)
            .record_token_event(call.stage, bytes, now, recorder);
    }

    /// Stores the token counts that the service reported for a call.
    pub(super) fn set_usage(&mut self, id: CallId, usage: TokenUsage) {
        self.answer_mut(id).set_usage(usage);
    }

    /// Records that the answer to a call arrived in one piece.
    pub(super) fn set_whole_answer(&mut self, id: CallId) {
        self.answer_mut(id).set_whole_answer();
    }

    /// Records that the answer of a call has ended without any text.
    pub(super) fn set_ended_without_text(&mut self, id: CallId, now: Time) {
        self.answer_mut(id).set_ended_without_text(now);
    }

    /// Ends a call's entry and records its measures if the call succeeded. Returns `None` if it failed, or if its
    /// answer contained no token, as with most protocols.
    #[inline]
    pub(super) fn finish_call(
        &mut self,
        id: CallId,
        outcome: Outcome,
        (call, now): (&InFlightCall, Time),
        recorder: &mut Recorder,
    ) -> Option<TokenMeasures> {
        let answer = self.answers.get_mut(id.0 as usize)?;
        let measured = if outcome.is_ok() {
            answer.token_measures((call.arrival, call.sent), &self.goodput, now)
        } else {
            None
        };
        if let Some(measured) = &measured {
            answer.record(measured, call.stage, recorder);
        }
        answer.reset();
        measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Makes an answer of pieces, each with its arrival in milliseconds and its length in bytes.
    fn answer(pieces: &[(u64, u32)], usage: Option<TokenUsage>) -> ResponseTokens {
        let (mut answer, mut recorder) = (ResponseTokens::EMPTY, Recorder::new(1));
        for (ms, bytes) in pieces {
            answer.record_token_event(0, *bytes, Time(ms * MS), &mut recorder);
        }
        if let Some(usage) = usage {
            answer.set_usage(usage);
        }
        answer
    }

    fn usage(answer: u64, streamed: u64) -> Option<TokenUsage> {
        Some(TokenUsage {
            prompt: 1,
            answer,
            streamed,
        })
    }

    /// Returns the milliseconds per token.
    fn per_token(answer: &ResponseTokens) -> f64 {
        let times = (Time::ZERO, Time::ZERO);
        let now = Time(1_000 * MS);
        let measured = answer
            .token_measures(times, &GoodputBounds::default(), now)
            .unwrap();
        let (measure, ns) = measured.times[2];
        assert_eq!(measure, TimeMeasure::TokenMean);
        ns as f64 / MS as f64
    }

    #[test]
    fn time_per_token_excludes_first_piece() {
        let steady: Vec<(u64, u32)> = (0..10).map(|n| (100 + n * 20, 4)).collect();
        for (usage, expected) in [
            (None, 20.0),
            (usage(10, 10), 20.0),
            // Hidden reasoning tokens that are not streamed.
            (usage(210, 10), 20.0),
            // More tokens than bytes of text, so they were not streamed.
            (usage(210, 210), 20.0),
            // The service also counts a token for the end.
            (usage(11, 11), 18.0),
            // Two tokens per piece, also in the first.
            (usage(20, 20), 10.0),
        ] {
            assert_eq!(per_token(&answer(&steady, usage)), expected, "{usage:?}");
        }
        // Ten tokens in the first piece, then ten in five pieces.
        let mut bundled = vec![(100, 40)];
        bundled.extend((1..=5).map(|n| (100 + n * 20, 8)));
        assert_eq!(per_token(&answer(&bundled, usage(20, 20))), 10.0);
        let mut counted = answer(&[(100, 10)], usage(15, 15));
        counted.record_token_event(0, 70, Time(200 * MS), &mut Recorder::new(1));
        counted.set_usage(usage(20, 20).unwrap());
        assert_eq!(per_token(&counted), 20.0);
        assert_eq!(per_token(&answer(&[(100, 40)], usage(10, 10))), 0.0);
    }

    #[test]
    fn failed_answers_have_no_times() {
        let mut tokens = TokenTracker::new(GoodputBounds::default());
        let mut recorder = Recorder::new(1);
        let call = InFlightCall::new(0, Time::ZERO, Time::ZERO, 0, 0);
        for outcome in [Outcome::Ok, Outcome::EventError] {
            for ms in [10, 30, 50] {
                let at = (&call, Time(ms * MS));
                tokens.record_token_event(CallId(0), 4, at, &mut recorder);
            }
            let ended =
                tokens.finish_call(CallId(0), outcome, (&call, Time(60 * MS)), &mut recorder);
            assert_eq!(ended.is_some(), outcome.is_ok());
        }
        let record = recorder.stage_mut(0);
        let measures = &record.measures;
        assert_eq!(measures.counter(Count::TokensReceived), 6);
        assert_eq!(measures.counter(Count::PiecesAnswer), 3);
        for (measure, n) in [
            (TimeMeasure::TimeToFirstToken, 1),
            (TimeMeasure::FirstToken, 1),
            (TimeMeasure::TokenGap, 2),
            (TimeMeasure::TokenMean, 1),
        ] {
            assert_eq!(measures.times(measure).len(), n, "{measure:?}");
        }
    }

    #[test]
    fn earlier_tokens_have_no_first_time() {
        let answer = answer(&[(10, 4), (30, 4)], None);
        let times = (Time(20 * MS), Time(20 * MS));
        let measured = answer.token_measures(times, &GoodputBounds::default(), Time(40 * MS));
        let mut recorder = Recorder::new(1);
        answer.record(&measured.unwrap(), 0, &mut recorder);
        let measures = &recorder.stage_mut(0).measures;
        for (measure, n) in [
            (TimeMeasure::TimeToFirstToken, 0),
            (TimeMeasure::FirstToken, 0),
            (TimeMeasure::TokenGap, 1),
            (TimeMeasure::TokenMean, 1),
        ] {
            assert_eq!(measures.times(measure).len(), n, "{measure:?}");
        }
    }

    #[test]
    fn textless_single_token_arrives_at_end() {
        let mut answer = answer(&[], usage(1, 1));
        answer.set_ended_without_text(Time(70 * MS));
        answer.set_ended_without_text(Time(80 * MS));
        let times = (Time::ZERO, Time(10 * MS));
        let measured = answer.token_measures(times, &GoodputBounds::default(), Time(90 * MS));
        let [first, from_sent, _] = measured.unwrap().times;
        assert_eq!((first.1, from_sent.1), (70 * MS, 60 * MS));
        let silent =
            ResponseTokens::EMPTY.token_measures(times, &GoodputBounds::default(), Time(90 * MS));
        assert!(silent.is_none());
    }

    #[test]
    fn whole_answers_have_counts_without_times() {
        let mut tokens = TokenTracker::new(GoodputBounds {
            query: Some(Duration::from_millis(80)),
            ..GoodputBounds::default()
        });
        let mut recorder = Recorder::new(1);
        let call = InFlightCall::new(0, Time::ZERO, Time::ZERO, 0, 0);
        for ms in [60, 90] {
            tokens.set_whole_answer(CallId(0));
            tokens.set_usage(CallId(0), usage(20, 20).unwrap());
            let at = (&call, Time(ms * MS));
            assert!(
                tokens
                    .finish_call(CallId(0), Outcome::Ok, at, &mut recorder)
                    .is_some()
            );
        }
        let measures = &recorder.stage_mut(0).measures;
        for (count, n) in [
            (Count::TokensAnswer, 40),
            (Count::TokensPrompt, 2),
            (Count::QueriesGood, 1),
            (Count::TokensReceived, 0),
            (Count::UsageMissing, 0),
        ] {
            assert_eq!(measures.counter(count), n, "{count:?}");
        }
        for measure in TimeMeasure::all() {
            assert!(measures.times(measure).is_empty(), "{measure:?}");
        }
    }
}
