//! Texts of failures: the first few distinct ones of an outcome.

use super::Counts;
use crate::Outcome;

/// Distinct texts kept of an outcome.
pub const DETAILS_PER_OUTCOME: usize = 3;

/// Keep `text` of `outcome` unless it is known or there are enough. True: it was kept.
pub(crate) fn add_detail(
    details: &mut Vec<(Outcome, String)>,
    outcome: Outcome,
    text: &str,
) -> bool {
    const LONGEST_TEXT: usize = 400;
    let text = match text.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => &text[..end],
        None => text,
    };
    let known = details.iter().filter(|(o, _)| *o == outcome);
    if known.clone().any(|(_, t)| t == text) || known.count() >= DETAILS_PER_OUTCOME {
        return false;
    }
    details.push((outcome, text.to_owned()));
    true
}

/// Adds the details of another part of the same interval. Which are kept does not depend on the
/// order of parts.
pub(crate) fn merge_details(ours: &mut Vec<(Outcome, String)>, theirs: &[(Outcome, String)]) {
    ours.extend_from_slice(theirs);
    ours.sort();
    ours.dedup();
    let mut kept = Counts::default();
    ours.retain(|(outcome, _)| {
        kept.add(*outcome, 1);
        kept.of(*outcome) <= DETAILS_PER_OUTCOME as u64
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_distinct_few_and_bounded() {
        let mut details = Vec::new();
        assert!(add_detail(&mut details, Outcome::Reset, "a"));
        assert!(!add_detail(&mut details, Outcome::Reset, "a"));
        assert!(add_detail(&mut details, Outcome::Reset, "b"));
        assert!(add_detail(&mut details, Outcome::Reset, &"é".repeat(5000)));
        assert!(!add_detail(&mut details, Outcome::Reset, "d"));
        assert!(add_detail(&mut details, Outcome::Goaway, "a"));
        assert_eq!(details[2].1.chars().count(), 400);
    }
}
