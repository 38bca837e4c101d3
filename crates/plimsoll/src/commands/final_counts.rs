//! Prints the final counts of servers and relays.

use plimsoll_engine::defect;
use serde_json::Value;

use crate::failure::Failure;
use crate::load::documents::JsonFlag;
use crate::screen::defects;

/// Prints all counts in the given order, as text or JSON, and then the number of panics if there were any.
///
/// # Errors
/// When stdout can't be written to.
pub(super) fn print_with_panics(json: &JsonFlag, counts: &[(&str, u64)]) -> Result<(), Failure> {
    let panics = Some((defects::PANICS_COUNTER, defect::panic_count())).filter(|(_, n)| *n > 0);
    let counts: Vec<(&str, u64)> = counts.iter().copied().chain(panics).collect();
    print(json, &counts, |_| true)
}

/// Prints counts as text or JSON. Text contains only the counts for which `is_shown`, called with index and count,
/// returns true.
///
/// # Errors
/// When stdout can't be written to.
pub(super) fn print(
    json: &JsonFlag,
    counts: &[(&str, u64)],
    is_shown: impl Fn((usize, u64)) -> bool,
) -> Result<(), Failure> {
    let object = counts
        .iter()
        .map(|(name, n)| (name.replace(' ', "_"), (*n).into()));
    let words = counts.iter().enumerate();
    let words = words.filter(|(i, (_, n))| is_shown((*i, *n)));
    let words: Vec<String> = words.map(|(_, (name, n))| format!("{name} {n}")).collect();
    json.print_result(&Value::Object(object.collect()), words.join(", "))
}
