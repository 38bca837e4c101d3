//! Suggests names for misspelt ones.

/// Returns the name in `known` that is nearest to the one that the user typed, if it is similar enough.
pub fn suggest<'a>(typed: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|k| {
            (
                strsim::damerau_levenshtein(&typed.to_lowercase(), &k.to_lowercase()),
                *k,
            )
        })
        .min()
        .filter(|(distance, nearest)| *distance <= 1.max(nearest.len().min(typed.len()) / 3))
        .filter(|(distance, nearest)| *distance < nearest.len())
        .map(|(_, nearest)| nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        assert_eq!(suggest("raet", &["rate", "calls"]), Some("rate"));
        assert_eq!(suggest("Rate", &["rate", "calls"]), Some("rate"));
        assert_eq!(suggest("zzzzzz", &["rate", "calls"]), None);
        assert_eq!(suggest("x", &["a"]), None);
    }
}
