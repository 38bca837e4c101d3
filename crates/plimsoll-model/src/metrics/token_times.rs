//! The times at which the tokens of one answer arrived.

use crate::formats::time::Time;

/// Maximum number of gaps between an answer's tokens that are kept until the answer has ended; later ones are dropped.
const MAX_TOKEN_GAPS: usize = 1 << 16;

/// The times of the tokens of an answer that have arrived so far. They are recorded once its call has succeeded.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenTimes {
    first: Time,
    last: Time,
    /// Gaps between tokens in nanoseconds. An `f32` takes half the memory of an `f64`, and is still more precise than
    /// the histograms in which the gaps are recorded.
    gaps: Vec<f32>,
}

impl TokenTimes {
    /// No token has arrived.
    pub const EMPTY: TokenTimes = TokenTimes {
        first: Time::NEVER,
        last: Time::NEVER,
        gaps: Vec::new(),
    };

    /// Records a token, or several in one piece, that arrived at `at`.
    #[inline]
    pub fn record(&mut self, at: Time) {
        let before = std::mem::replace(&mut self.last, at);
        if before == Time::NEVER {
            self.first = at;
        } else if self.gaps.len() < MAX_TOKEN_GAPS {
            self.gaps.push(at.since(before) as f32);
        }
    }

    /// Returns the time of the first token; [`Time::NEVER`] if none has arrived.
    #[inline]
    pub fn first(&self) -> Time {
        self.first
    }

    /// Returns the time of the last token; [`Time::NEVER`] if none has arrived.
    #[inline]
    pub fn last(&self) -> Time {
        self.last
    }

    /// Returns the gaps between one token and the next, in nanoseconds.
    pub fn gaps_ns(&self) -> impl Iterator<Item = u64> + '_ {
        self.gaps.iter().map(|ns| *ns as u64)
    }

    /// Forgets all tokens, and keeps the allocated memory.
    pub fn reset(&mut self) {
        (self.first, self.last) = (Time::NEVER, Time::NEVER);
        self.gaps.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_between_consecutive_tokens() {
        let mut times = TokenTimes::EMPTY;
        for at in [100, 130, 130, 190] {
            times.record(Time(at));
        }
        assert_eq!((times.first(), times.last()), (Time(100), Time(190)));
        assert_eq!(times.gaps_ns().collect::<Vec<_>>(), [30, 0, 60]);
        times.reset();
        assert_eq!(times, TokenTimes::EMPTY);
    }

    #[test]
    fn kept_gaps_are_limited() {
        let mut times = TokenTimes::EMPTY;
        for at in 0..=MAX_TOKEN_GAPS as u64 + 1 {
            times.record(Time(at));
        }
        assert_eq!(times.gaps_ns().count(), MAX_TOKEN_GAPS);
        assert_eq!(times.last(), Time(MAX_TOKEN_GAPS as u64 + 1));
    }
}
