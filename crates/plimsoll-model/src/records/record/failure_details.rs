//! Texts of failures: the first few distinct ones of an outcome.

use serde::{Deserialize, Serialize};

use super::OutcomeCounts;
use crate::Outcome;

/// Maximum number of distinct texts for each outcome.
pub const MAX_DETAILS_PER_OUTCOME: usize = 3;

/// The text of a failure, with its code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FailureDetail {
    /// The outcome of the failed calls or connections.
    pub code: Outcome,
    /// The text from the server, the system or a library.
    pub text: String,
}

/// Adds `text` for the outcome `code`, unless the text is in the list or the outcome has enough texts. Returns whether
/// it was added.
pub(crate) fn add_detail(details: &mut Vec<FailureDetail>, code: Outcome, text: &str) -> bool {
    const MAX_TEXT_CHARS: usize = 400;
    let text = match text.char_indices().nth(MAX_TEXT_CHARS) {
        Some((end, _)) => &text[..end],
        None => text,
    };
    let known = details.iter().filter(|detail| detail.code == code);
    if known.clone().any(|detail| detail.text == text) || known.count() >= MAX_DETAILS_PER_OUTCOME {
        return false;
    }
    let text = text.to_owned();
    details.push(FailureDetail { code, text });
    true
}

/// Adds the details of another part of the same interval. The result does not depend on the order of parts.
pub(crate) fn merge_details(ours: &mut Vec<FailureDetail>, theirs: &[FailureDetail]) {
    ours.extend_from_slice(theirs);
    ours.sort();
    ours.dedup();
    let mut kept = OutcomeCounts::default();
    ours.retain(|detail| {
        kept.add(detail.code, 1);
        kept.get(detail.code) <= MAX_DETAILS_PER_OUTCOME as u64
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
