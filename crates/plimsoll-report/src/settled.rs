//! How many calls have a result, whatever it is: what shares of success are of.

use plimsoll_model::Outcome;
use plimsoll_model::run::StageSummary;

/// Calls without an answer when the drain time ended: they did not succeed.
pub(crate) fn drained(total: &StageSummary) -> u64 {
    let given_up = total.cut_off_by_code.iter();
    let drained = given_up.filter(|error| error.code == Outcome::CutOff.code());
    drained.map(|error| error.count).sum()
}

/// Calls that succeeded or did not. What an interrupt cut off might have.
pub(crate) fn settled(total: &StageSummary) -> u64 {
    total.ok + total.errors + drained(total)
}
