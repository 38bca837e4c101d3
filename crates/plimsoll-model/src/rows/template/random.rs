//! The range of a field with random numbers.

use super::FieldSource;

/// Maximum number of decimals of a random number.
const MAX_DECIMALS: usize = 9;

/// A uniform distribution of numbers with `digits` decimals from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomRange {
    /// The lowest number, in units of the last decimal: 0.25 with two decimals is 25.
    pub low: i64,
    /// The highest number, in units of the last decimal.
    pub high: i64,
    /// The number of decimals, at most 9.
    pub digits: u8,
}

/// Parses a range such as `1 100`, or `0.00 1.00` with decimals.
pub(super) fn parse_random_range(low: &str, high: &str) -> Result<FieldSource, String> {
    let digits_of = |text: &str| text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let digits = digits_of(low).max(digits_of(high));
    if digits > MAX_DECIMALS {
        return Err(format!(
            "at most {MAX_DECIMALS} digits after the decimal point"
        ));
    }
    let scaled = |text: &str| {
        let bad = || format!("`{text}` is not a number such as 7, -3 or 0.25");
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let all_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if !all_digits(fraction) || !all_digits(whole.strip_prefix('-').unwrap_or(whole)) {
            return Err(bad());
        }
        if whole.trim_start_matches('-').is_empty() || (text.contains('.') && fraction.is_empty()) {
            return Err(bad());
        }
        let padded = format!("{whole}{fraction}{}", "0".repeat(digits - fraction.len()));
        padded
            .parse::<i64>()
            .map_err(|_| format!("`{text}` is too large"))
    };
    let (low, high) = (scaled(low)?, scaled(high)?);
    if low > high {
        return Err("the first number is above the second".to_owned());
    }
    Ok(FieldSource::Random(RandomRange {
        low,
        high,
        digits: digits as u8,
    }))
}
