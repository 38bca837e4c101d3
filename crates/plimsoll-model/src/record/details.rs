//! Texts of failures: the first few distinct ones of an outcome.

use serde::{Deserialize, Serialize};

use super::Counts;
use crate::Outcome;

/// Distinct texts kept of an outcome.
pub const DETAILS_PER_OUTCOME: usize = 3;

/// What is known of a failure besides its code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Detail {
    /// The outcome of the calls or connections that failed so.
    pub code: Outcome,
    /// The text as the server, the system or a library has it.
    pub text: String,
}

/// Keep `text` of `outcome` unless it is known or there are enough. True: it was kept.
pub(crate) fn add_detail(details: &mut Vec<Detail>, code: Outcome, text: &str) -> bool {
    const LONGEST_TEXT: usize = 400;
    let text = match text.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => &text[..end],
        None => text,
    };
    let known = details.iter().filter(|detail| detail.code == code);
    if known.clone().any(|detail| detail.text == text) || known.count() >= DETAILS_PER_OUTCOME {
        return false;
    }
    let text = text.to_owned();
    details.push(Detail { code, text });
    true
}

/// Adds the details of another part of the same interval. Which are kept does not depend on the
/// order of parts.
pub(crate) fn merge_details(ours: &mut Vec<Detail>, theirs: &[Detail]) {
    ours.extend_from_slice(theirs);
    ours.sort();
    ours.dedup();
    let mut kept = Counts::default();
    ours.retain(|detail| {
        kept.add(detail.code, 1);
        kept.of(detail.code) <= DETAILS_PER_OUTCOME as u64
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_details_are_distinct_and_bounded() {
        let mut details = Vec::new();
        assert!(add_detail(&mut details, Outcome::Reset, "a"));
        assert!(!add_detail(&mut details, Outcome::Reset, "a"));
        assert!(add_detail(&mut details, Outcome::Reset, "b"));
        assert!(add_detail(&mut details, Outcome::Reset, &"é".repeat(5000)));
        assert!(!add_detail(&mut details, Outcome::Reset, "d"));
        assert!(add_detail(&mut details, Outcome::Goaway, "a"));
        assert_eq!(details[2].text.chars().count(), 400);
    }
}
