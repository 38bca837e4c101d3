//! Texts of common short words, each a single token in common tokenizers, of which each call has a random number.

use super::{FieldSource, RenderContext};

/// The most words of a text.
const MAX_WORDS: u32 = 1_000_000;

const FILLER_WORDS: [&str; 32] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "number", "night", "point",
    "home",
];

/// Appends this many words, with a blank between two of them. A text is the beginning of every longer one.
pub fn filler_words(count: u32, out: &mut Vec<u8>) {
    let mut state = 1u32;
    for nth in 0..count {
        // A linear congruential generator (Numerical Recipes) makes the same text every time.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if nth > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(FILLER_WORDS[(state >> 27) as usize].as_bytes());
    }
}

/// How many words a text has: a uniform choice from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordRange {
    /// The fewest words.
    pub low: u32,
    /// The most words.
    pub high: u32,
}

impl WordRange {
    /// Parses the arguments of `words 5 9`.
    pub(super) fn parse(limits: &[&str]) -> Result<FieldSource, String> {
        let count = |text: &str| text.parse::<u32>().ok().filter(|n| *n <= MAX_WORDS);
        let [low, high] = limits else {
            return Err("takes two numbers: words 50 100".to_owned());
        };
        match (count(low), count(high)) {
            (Some(low), Some(high)) if low <= high => {
                Ok(FieldSource::Words(WordRange { low, high }))
            }
            (Some(_), Some(_)) => Err("the first number is above the second".to_owned()),
            _ => Err(format!("takes two whole numbers of at most {MAX_WORDS}")),
        }
    }

    /// Appends the text of a call.
    pub(super) fn write(self, slot: u32, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        let drawn = moment.between(slot, self.low.into(), self.high.into());
        filler_words(u32::try_from(drawn).unwrap_or(0), out);
    }

    /// Returns the minimum and the maximum length of the text, in bytes.
    pub(super) fn bounds(self) -> (usize, usize) {
        let lengths = FILLER_WORDS.map(str::len);
        let shortest = lengths.into_iter().min().unwrap_or(0);
        let longest = lengths.into_iter().max().unwrap_or(0);
        let length = |count: u32, word: usize| (count as usize * (word + 1)).saturating_sub(1);
        (length(self.low, shortest), length(self.high, longest))
    }
}
