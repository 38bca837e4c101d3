//! Searches for a text in bytes that arrive in pieces. The Knuth-Morris-Pratt automaton needs to keep only one number
//! between pieces.

/// A text to search for.
#[derive(Clone, Debug)]
pub(super) struct Needle {
    text: Box<[u8]>,
    /// For each matched length, the next shorter length that also matches.
    fallbacks: Box<[usize]>,
}

impl Needle {
    /// Builds the automaton; `text` must not be empty.
    pub(super) fn new(text: &str) -> Needle {
        Needle::from_bytes(text.as_bytes())
    }

    /// Builds the automaton for a text that need not be UTF-8; it must not be empty.
    pub(super) fn from_bytes(text: &[u8]) -> Needle {
        let mut shorter = vec![0; text.len() + 1];
        let mut matched = 0;
        for at in 1..text.len() {
            while matched > 0 && text[at] != text[matched] {
                matched = shorter[matched];
            }
            matched += usize::from(text[at] == text[matched]);
            shorter[at + 1] = matched;
        }
        Needle {
            text: text.into(),
            fallbacks: shorter.into(),
        }
    }

    /// Returns whether the text has been found by the end of `bytes`. `matched`: the length matched so far, which is
    /// updated.
    pub(super) fn search(&self, matched: &mut usize, bytes: &[u8]) -> bool {
        for b in bytes {
            while *matched > 0 && self.text[*matched] != *b {
                *matched = self.fallbacks[*matched];
            }
            *matched += usize::from(self.text[*matched] == *b);
            if *matched == self.text.len() {
                *matched = 0;
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_found_across_any_split() {
        for (text, hay, there) in [
            ("ok", "it is ok", true),
            ("aab", "aaaaab", true),
            ("abcabd", "abcabcabd", true),
            ("abab", "abaabaab", false),
            ("x", "", false),
            ("aa", "abababa", false),
        ] {
            let needle = Needle::new(text);
            for step in 1..=hay.len().max(1) {
                let mut matched = 0;
                let mut pieces = hay.as_bytes().chunks(step);
                let found = pieces.any(|piece| needle.search(&mut matched, piece));
                assert_eq!(found, there, "{text} in {hay} by {step}");
            }
        }
    }
}
