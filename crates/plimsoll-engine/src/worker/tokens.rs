//! Answers that are tokens: what a worker keeps of each until its call has ended, and what it
//! comes to.
//!
//! Beside the calls' own table, so that calls without tokens cost nothing by it.

use std::time::Duration;

use plimsoll_model::measure::{Count, TimeMeasure};
use plimsoll_model::plan::Goodput;
use plimsoll_model::{Recorder, Time};

use super::calls::Call;
use crate::driver::CallId;

/// The tokens of one answer, as far as they have come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    first: Time,
    last: Time,
    /// Pieces of the stream that held tokens.
    received: u64,
    /// By the service's own count: of the prompt, and of the answer.
    usage: Option<(u64, u64)>,
}

impl Answer {
    pub(crate) const NONE: Answer = Answer {
        first: Time::NEVER,
        last: Time::NEVER,
        received: 0,
        usage: None,
    };

    /// A token of an answer has come, whose call is of `stage`, was due at `arrival` and was `sent`.
    pub(crate) fn token(
        &mut self,
        stage: u8,
        (arrival, sent): (Time, Time),
        now: Time,
        recorder: &mut Recorder,
    ) {
        let before = std::mem::replace(&mut self.last, now);
        self.received += 1;
        recorder.count(stage, Count::TokensReceived, 1);
        if before != Time::NEVER {
            return recorder.time(stage, TimeMeasure::TokenGap, now.since(before));
        }
        self.first = now;
        recorder.time(stage, TimeMeasure::TimeToFirstToken, now.since(arrival));
        recorder.time(stage, TimeMeasure::FirstToken, now.since(sent));
    }

    /// The service has counted the tokens of the call.
    pub(crate) fn usage(&mut self, prompt: u64, answer: u64) {
        self.usage = Some((prompt, answer));
    }

    /// What a call that has ended by now comes to; `None`: its answer held no token.
    pub(crate) fn measured(
        &self,
        (arrival, sent): (Time, Time),
        goodput: &Goodput,
        now: Time,
    ) -> Option<Measured> {
        if self.received == 0 {
            return None;
        }
        let (prompt, counted) = self.usage.unwrap_or_default();
        // Several tokens may come in one piece: the service knows.
        let tokens = if counted > 0 { counted } else { self.received };
        let per_token = self.last.since(self.first) / (tokens - 1).max(1);
        let is_good = goodput.is_met(
            self.first.duration_since(arrival),
            Duration::from_nanos(per_token),
            now.duration_since(arrival),
        );
        Some(Measured {
            counts: [
                (Count::TokensReceived, self.received),
                (Count::TokensPrompt, prompt),
                (Count::TokensAnswer, counted),
                (Count::UsageMissing, u64::from(self.usage.is_none())),
                (Count::QueriesGood, u64::from(is_good)),
            ],
            times: [
                (TimeMeasure::TimeToFirstToken, self.first.since(arrival)),
                (TimeMeasure::FirstToken, self.first.since(sent)),
                (TimeMeasure::TokenMean, per_token),
            ],
        })
    }
}

/// The tokens of all calls in flight.
#[derive(Debug)]
pub(super) struct Tokens {
    /// By [`CallId`]; as long as the highest that had tokens.
    answers: Vec<Answer>,
    goodput: Goodput,
}

/// What became of an answer that succeeded.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) counts: [(Count, u64); 5],
    pub(crate) times: [(TimeMeasure, u64); 3],
}

impl Tokens {
    pub(super) fn new(goodput: Goodput) -> Tokens {
        Tokens {
            answers: Vec::new(),
            goodput,
        }
    }

    fn answer(&mut self, id: CallId) -> &mut Answer {
        let index = id.0 as usize;
        if index >= self.answers.len() {
            self.answers.resize(index + 1, Answer::NONE);
        }
        &mut self.answers[index]
    }

    /// A token of `call` has come.
    pub(super) fn token(&mut self, id: CallId, call: &Call, now: Time, recorder: &mut Recorder) {
        let times = (call.arrival, call.sent);
        self.answer(id).token(call.stage, times, now, recorder);
    }

    /// The service has counted the tokens of a call.
    pub(super) fn usage(&mut self, id: CallId, prompt: u64, answer: u64) {
        self.answer(id).usage(prompt, answer);
    }

    /// A call has ended; `None`: its answer held no token, as those of most protocols.
    #[inline]
    pub(super) fn ended(&mut self, id: CallId, call: &Call, now: Time) -> Option<Measured> {
        if self.answers.is_empty() {
            return None;
        }
        self.measured(id, call, now)
    }

    fn measured(&mut self, id: CallId, call: &Call, now: Time) -> Option<Measured> {
        let answer = self.answers.get_mut(id.0 as usize)?;
        let answer = std::mem::replace(answer, Answer::NONE);
        answer.measured((call.arrival, call.sent), &self.goodput, now)
    }
}

impl Measured {
    /// Adds to the call's stage what was not added while the tokens came.
    pub(crate) fn add_to(&self, stage: u8, recorder: &mut Recorder) {
        for (count, n) in &self.counts[1..] {
            if *n > 0 {
                recorder.count(stage, *count, *n);
            }
        }
        let (measure, ns) = self.times[2];
        if ns > 0 {
            recorder.time(stage, measure, ns);
        }
    }
}
