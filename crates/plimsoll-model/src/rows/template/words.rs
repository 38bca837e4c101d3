//! Filler texts with a random number of words. Each word is a single token in common tokenizers.

use super::{FieldSource, RenderContext};

/// Maximum number of words of a text.
const MAX_WORDS: u32 = 1_000_000;

const FILLER_WORDS: [&str; 32] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "number", "night", "point",
    "home",
];

/// Appends `count` words, separated by blanks. Every text is the beginning of all longer texts.
pub fn append_filler_words(count: u32, out: &mut Vec<u8>) {
    let mut state = 1u32;
    for nth in 0..count {
        // The linear congruential generator (Numerical Recipes) gives the same text every time.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if nth > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(FILLER_WORDS[(state >> 27) as usize].as_bytes());
    }
}

/// The range of the number of words, which is uniformly distributed from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordRange {
    /// The minimum number of words.
    pub low: u32,
    /// The maximum number of words.
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
        let drawn = moment.random_between(slot, self.low.into(), self.high.into());
        append_filler_words(u32::try_from(drawn).unwrap_or(0), out);
    }

    /// Returns the minimum and the maximum length of the text, in bytes.
    pub(super) fn length_bounds(self) -> (usize, usize) {
        let lengths = FILLER_WORDS.map(str::len);
        let shortest = lengths.into_iter().min().unwrap_or(0);
        let longest = lengths.into_iter().max().unwrap_or(0);
        let length = |count: u32, word: usize| (count as usize * (word + 1)).saturating_sub(1);
        (length(self.low, shortest), length(self.high, longest))
    }
}
