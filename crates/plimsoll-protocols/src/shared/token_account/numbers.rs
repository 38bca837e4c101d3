//! The numbers of messages, by which those that are missing, that arrive twice or that arrive late are recognised.

/// The maximum number of gaps in the numbers that are remembered. A late message of a forgotten gap counts as a
/// duplicate instead of out of order; its query fails either way.
const MAX_REMEMBERED_GAPS: usize = 1_024;

/// How a message's number relates to the numbers received before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenArrival {
    New,
    /// New, but received after a message with a higher number.
    Late,
    Duplicate,
}

/// The numbers of the messages received so far, which begin with 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedNumbers {
    /// The highest number received.
    highest: u64,
    /// Ranges of lower numbers that have not been received.
    missing: Vec<(u64, u64)>,
}

impl ReceivedNumbers {
    /// Returns the highest number received; 0 if there is none.
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Starts a new numbering.
    pub(crate) fn restart(&mut self) {
        self.highest = 0;
        self.missing = Vec::new();
    }

    /// Forgets which numbers are missing, so that a message with one of them counts as a duplicate.
    pub(crate) fn forget_missing(&mut self) {
        self.missing = Vec::new();
    }

    /// Records the arrival of a message; `number` is `None` if it has no number.
    pub(crate) fn record(&mut self, number: Option<u64>) -> TokenArrival {
        let Some(number) = number else {
            return TokenArrival::New;
        };
        if number > self.highest {
            if number > self.highest + 1 {
                self.remember_gap(self.highest + 1, number - 1);
            }
            self.highest = number;
            return TokenArrival::New;
        }
        let Some(at) = self
            .missing
            .iter()
            .position(|(from, to)| (*from..=*to).contains(&number))
        else {
            return TokenArrival::Duplicate;
        };
        let (from, to) = self.missing.remove(at);
        if from < number {
            self.remember_gap(from, number - 1);
        }
        if number < to {
            self.remember_gap(number + 1, to);
        }
        TokenArrival::Late
    }

    fn remember_gap(&mut self, from: u64, to: u64) {
        if self.missing.len() == MAX_REMEMBERED_GAPS {
            self.missing.remove(0);
        }
        self.missing.push((from, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_and_duplicate_numbers_are_distinguished() {
        let mut numbers = ReceivedNumbers::default();
        for (number, arrived) in [
            (1, TokenArrival::New),
            (5, TokenArrival::New),
            (3, TokenArrival::Late),
            (3, TokenArrival::Duplicate),
            (2, TokenArrival::Late),
            (4, TokenArrival::Late),
            (4, TokenArrival::Duplicate),
            (6, TokenArrival::New),
            (1, TokenArrival::Duplicate),
        ] {
            assert_eq!(numbers.record(Some(number)), arrived, "{number}");
        }
        assert!(numbers.missing.is_empty());
        assert_eq!(numbers.highest(), 6);
    }

    #[test]
    fn sequence_gap_tracking_is_bounded() {
        let mut numbers = ReceivedNumbers::default();
        for number in (1..=100_001).step_by(2) {
            assert_eq!(numbers.record(Some(number)), TokenArrival::New);
        }
        assert_eq!(numbers.missing.len(), MAX_REMEMBERED_GAPS);
        assert_eq!(numbers.record(Some(100_000)), TokenArrival::Late);
        assert_eq!(numbers.record(Some(2)), TokenArrival::Duplicate);
    }

    proptest::proptest! {
        #[test]
        fn arrivals_are_counted_once_in_any_order(
            order in proptest::collection::vec(1u64..40, 0..120)
        ) {
            let mut numbers = ReceivedNumbers::default();
            let arrivals: Vec<TokenArrival> =
                order.iter().map(|number| numbers.record(Some(*number))).collect();
            let duplicates =
                arrivals.iter().filter(|arrival| **arrival == TokenArrival::Duplicate).count();
            let distinct: std::collections::BTreeSet<u64> = order.iter().copied().collect();
            proptest::prop_assert_eq!(duplicates, order.len() - distinct.len());
            let missing: u64 = numbers.missing.iter().map(|(from, to)| to - from + 1).sum();
            proptest::prop_assert_eq!(missing + distinct.len() as u64, numbers.highest());
        }
    }
}
