//! Which failures a connection still reports in words: of each outcome the first few.

use plimsoll_model::Outcome;

/// Texts of one outcome.
const MAX_TEXTS_PER_OUTCOME: u64 = 3;

/// How many were reported on a connection: two bits an outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Details([u64; Outcome::COUNT.div_ceil(32)]);

impl Details {
    /// A text of this outcome would be reported.
    pub(crate) fn wants(&self, outcome: Outcome) -> bool {
        let (word, shift) = place_of(outcome);
        self.0[word] >> shift & 3 < MAX_TEXTS_PER_OUTCOME
    }

    /// Counts a text; false: it is not to be reported.
    #[cold]
    pub(crate) fn count(&mut self, outcome: Outcome) -> bool {
        let wanted = self.wants(outcome);
        let (word, shift) = place_of(outcome);
        self.0[word] += u64::from(wanted) << shift;
        wanted
    }
}

/// Which two bits are an outcome's.
fn place_of(outcome: Outcome) -> (usize, usize) {
    (outcome.index() / 32, outcome.index() % 32 * 2)
}
