//! Numbers of tokens in flags: one number, or a range from which each request draws a number.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

/// The maximum number of tokens of a prompt or an answer.
const MAX_TOKENS: u32 = 1_000_000;

/// A range of token counts, from `low` to `high` inclusive; each request draws one uniformly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenRange {
    pub(super) low: u32,
    pub(super) high: u32,
}

impl TokenRange {
    /// Returns a range with a single number.
    pub(super) fn exactly(tokens: u32) -> TokenRange {
        TokenRange {
            low: tokens,
            high: tokens,
        }
    }

    /// Returns the number, or as a string the template field that draws a number.
    pub(super) fn to_json(self) -> Value {
        if self.low == self.high {
            json!(self.low)
        } else {
            json!(format!("{{{{random {} {}}}}}", self.low, self.high))
        }
    }
}

impl FromStr for TokenRange {
    type Err = String;

    fn from_str(text: &str) -> Result<TokenRange, String> {
        let (low, high) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| {
            let number = text.trim().parse::<u32>().ok();
            number.filter(|number| (1..=MAX_TOKENS).contains(number))
        };
        match (number(low), number(high)) {
            (Some(low), Some(high)) if low <= high => Ok(TokenRange { low, high }),
            _ => Err(format!(
                "use a number from 1 to {MAX_TOKENS}, or a range such as 200..800"
            )),
        }
    }
}

impl fmt::Display for TokenRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.low == self.high {
            write!(f, "{}", self.low)
        } else {
            write!(f, "{}..{}", self.low, self.high)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_parse_and_print() {
        for (text, low, high) in [("5", 5, 5), ("200..800", 200, 800), ("1..1", 1, 1)] {
            let range: TokenRange = text.parse().unwrap();
            assert_eq!(range, TokenRange { low, high });
            let again: TokenRange = range.to_string().parse().unwrap();
            assert_eq!(again, range);
        }
        for text in ["", "0", "x", "5..", "..5", "9..5", "1..2000000", "-1"] {
            assert!(text.parse::<TokenRange>().is_err(), "{text}");
        }
    }
}
