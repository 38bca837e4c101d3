//! What servers and relays print when they have ended.

use plimsoll_engine::defect;

use crate::console;
use crate::defects;
use crate::failure::Failure;

/// Prints counts, in this order, as words or as an object of JSON; panics as well, where there were any.
///
/// # Errors
/// When stdout can't be written to.
pub(super) fn conclude(json: bool, counts: &[(&str, u64)]) -> Result<(), Failure> {
    let panics = Some((defects::COUNT, defect::seen())).filter(|(_, n)| *n > 0);
    let counts: Vec<(&str, u64)> = counts.iter().copied().chain(panics).collect();
    if json {
        let object: serde_json::Map<_, _> = counts
            .iter()
            .map(|(name, n)| (name.replace(' ', "_"), (*n).into()))
            .collect();
        return console::result(format_args!("{}\n", serde_json::Value::Object(object)));
    }
    let words: Vec<String> = counts
        .iter()
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    console::result(format_args!("{}\n", words.join(", ")))
}
