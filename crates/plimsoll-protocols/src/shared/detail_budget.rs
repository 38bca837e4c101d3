//! Limits how many failure texts a connection reports: the first few of each outcome.

use plimsoll_model::Outcome;

/// The maximum number of texts that a connection reports for one outcome.
const MAX_TEXTS_PER_OUTCOME: u64 = 3;

/// The number of texts that a connection has reported, in two bits for each outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DetailBudget([u64; Outcome::COUNT.div_ceil(32)]);

impl DetailBudget {
    /// Returns whether a text of this outcome would be reported.
    pub(crate) fn has_room(&self, outcome: Outcome) -> bool {
        let (word, shift) = bit_position(outcome);
        self.0[word] >> shift & 3 < MAX_TEXTS_PER_OUTCOME
    }

    /// Counts a text. Returns false if the limit is reached and the text must not be reported.
    #[cold]
    pub(crate) fn try_count(&mut self, outcome: Outcome) -> bool {
        let wanted = self.has_room(outcome);
        let (word, shift) = bit_position(outcome);
        self.0[word] += u64::from(wanted) << shift;
        wanted
    }
}

/// Returns the word and the shift of an outcome's two bits.
fn bit_position(outcome: Outcome) -> (usize, usize) {
    (outcome.index() / 32, outcome.index() % 32 * 2)
}
