//! The number of calls with a definite result, the base of success shares.

use plimsoll_model::Outcome;
use plimsoll_model::runs::run::StageSummary;

/// Returns the calls that were still unanswered at the end of the drain time and therefore did not succeed.
pub(crate) fn unanswered_calls(total: &StageSummary) -> u64 {
    let given_up = total.cut_off_by_code.iter();
    let drained = given_up.filter(|error| error.code == Outcome::CutOff.code());
    drained.map(|error| error.count).sum()
}

/// Returns the calls that either succeeded or failed. Calls cut off by an interrupt are excluded, because they might
/// have succeeded.
pub(crate) fn settled_calls(total: &StageSummary) -> u64 {
    total.ok + total.errors + unanswered_calls(total)
}
