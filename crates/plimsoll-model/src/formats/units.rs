//! Parses and formats durations, rates and sizes in the form that people type, always with a unit.
//!
//! A number without unit is rejected, because `30` could be seconds or milliseconds. Formatted values parse to the same
//! value. The spec and the command line use these types; a plan contains plain numbers and durations.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A length of time: `"30s"`, `"500ms"`, `"1m30s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// A number per second: `"2000/s"`, `"60/m"`, `"0.5/s"`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// A number of bytes: `"4MiB"`, `"512B"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const TIME_UNITS: &[(&str, f64)] = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("μs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("min", 60e9),
    ("h", 3_600e9),
    ("d", 86_400e9),
];

const RATE_UNITS: &[(&str, f64)] = &[
    ("/s", 1.0),
    ("/sec", 1.0),
    ("/m", 60.0),
    ("/min", 60.0),
    ("/h", 3_600.0),
];

const SIZE_UNITS: &[(&str, f64)] = &[
    ("B", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
];

/// Maximum duration: ten years, which is longer than any run and fits into 64 bits of nanoseconds.
const MAX_PERIOD_NS: f64 = 3_650.0 * 86_400e9;

/// Splits `text` into the leading number (digits, one point, `_` between digits) and the rest.
fn split_leading_number(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let digits: String = text[..end].chars().filter(|&c| c != '_').collect();
    Some((digits.parse().ok()?, &text[end..]))
}

/// The syntax of one kind of quantity, and words for its error messages.
struct QuantityKind {
    /// The name, singular and plural: `a rate`, `rates`.
    names: [&'static str; 2],
    example: &'static str,
    units: &'static [(&'static str, f64)],
    /// The accepted units, in words.
    known_units: &'static str,
    /// The smallest value that is too large, and the text of the largest valid value.
    limit: (f64, &'static str),
}

impl QuantityKind {
    /// Trims blanks and rejects negative values.
    ///
    /// # Errors
    /// When the value is negative.
    fn trim_non_negative<'a>(&self, text: &'a str) -> Result<&'a str, String> {
        match text.trim() {
            text if text.starts_with('-') => Err(format!("`{text}` is negative")),
            text => Ok(text),
        }
    }

    fn not_a_number_message(&self, text: &str) -> String {
        let [what, _] = self.names;
        format!("`{text}` is not {what}: write {}", self.example)
    }

    /// Parses the number at the start of `rest` and the unit after it. Returns the number, the factor of the unit, and
    /// the remaining text. Messages contain `whole`, the complete text, and `right`, examples with a unit.
    fn parse_quantity<'a>(
        &self,
        (whole, rest): (&str, &'a str),
        end_of_unit: fn(char) -> bool,
        right: &str,
    ) -> Result<(f64, f64, &'a str), String> {
        let (value, after) =
            split_leading_number(rest).ok_or_else(|| self.not_a_number_message(whole))?;
        let after = after.trim_start();
        let (unit, rest) = after.split_at(after.find(end_of_unit).unwrap_or(after.len()));
        let unit = unit.trim_end();
        if unit.is_empty() {
            return Err(format!("`{whole}` has no unit: write {right}"));
        }
        // "60 / m" is accepted as "60/m".
        let bare = |unit: &'a str| unit.strip_prefix('/').map(str::trim_start);
        let known = (self.units.iter()).find(|(name, _)| {
            *name == unit
                || name
                    .strip_prefix('/')
                    .is_some_and(|name| bare(unit) == Some(name))
        });
        let (_, scale) = known.ok_or_else(|| {
            let [_, what] = self.names;
            format!("`{unit}` is not a unit of {what}: use {}", self.known_units)
        })?;
        Ok((value, *scale, rest))
    }

    fn check_limit(&self, value: f64, text: &str) -> Result<(), String> {
        let (most, words) = self.limit;
        if value >= most {
            Err(format!("`{text}` is too large: at most {words}"))
        } else {
            Ok(())
        }
    }
}

const PERIOD_KIND: QuantityKind = QuantityKind {
    names: ["a duration", "time"],
    example: "\"30s\" or \"500ms\"",
    units: TIME_UNITS,
    known_units: "ns, us, ms, s, m or h",
    limit: (MAX_PERIOD_NS, "ten years"),
};

const RATE_KIND: QuantityKind = QuantityKind {
    names: ["a rate", "rates"],
    example: "\"1000/s\" or \"60/m\"",
    units: RATE_UNITS,
    known_units: "/s, /m or /h",
    limit: (f64::next_up(1e9), "1000000000/s"),
};

const SIZE_KIND: QuantityKind = QuantityKind {
    names: ["a size", "sizes"],
    example: "\"4MiB\" or \"512B\"",
    units: SIZE_UNITS,
    known_units: "B, KiB, MiB, GiB, kB, MB or GB",
    limit: ((1_u64 << 53) as f64, "8388608GiB"),
};

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Period, String> {
        let text = PERIOD_KIND.trim_non_negative(text)?;
        if text.is_empty() {
            return Err(PERIOD_KIND.not_a_number_message(text));
        }
        let right = format!("\"{text}s\" or \"{text}ms\"");
        let ends = |c: char| c.is_ascii_digit() || c == ' ';
        let (mut rest, mut total, mut whole) = (text, 0.0, Duration::ZERO);
        while !rest.is_empty() {
            let (value, scale, after) = PERIOD_KIND.parse_quantity((text, rest), ends, &right)?;
            total += value * scale;
            PERIOD_KIND.check_limit(total, text)?;
            whole += Duration::from_nanos((value * scale).round() as u64);
            rest = after.trim_start();
        }
        Ok(Period(whole))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        match nanos {
            0 => f.write_str("0s"),
            n if n % 1_000_000_000 == 0 => write!(f, "{}s", n / 1_000_000_000),
            n if n % 1_000_000 == 0 => write!(f, "{}ms", n / 1_000_000),
            n if n % 1_000 == 0 => write!(f, "{}us", n / 1_000),
            n => write!(f, "{n}ns"),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let text = RATE_KIND.trim_non_negative(text)?;
        let (value, seconds, _) =
            RATE_KIND.parse_quantity((text, text), |_| false, &format!("\"{text}/s\""))?;
        RATE_KIND.check_limit(value / seconds, text)?;
        Ok(Rate(value / seconds))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rust formats a float with the fewest digits that parse to the same number.
        write!(f, "{}/s", self.0)
    }
}

/// Parses a duration, such as that of a load. A number without a unit means seconds.
///
/// # Errors
/// When `text` is not a duration.
pub fn parse_seconds(text: &str) -> Result<Period, String> {
    with_default_unit(text, "s").parse()
}

/// Parses a rate. A number without a unit is per second.
///
/// # Errors
/// When `text` is not a rate.
pub fn parse_per_second<T: FromStr<Err = String>>(text: &str) -> Result<T, String> {
    with_default_unit(text, "/s").parse()
}

fn with_default_unit(text: &str, unit: &str) -> String {
    match split_leading_number(text.trim()) {
        Some((_, "")) => format!("{}{unit}", text.trim()),
        _ => text.to_owned(),
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteSize, String> {
        let text = SIZE_KIND.trim_non_negative(text)?;
        let right = format!("\"{text}B\" or \"{text}KiB\"");
        let (value, scale, _) = SIZE_KIND.parse_quantity((text, text), |_| false, &right)?;
        SIZE_KIND.check_limit(value * scale, text)?;
        Ok(ByteSize((value * scale).round() as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0B"),
            n if n % (1 << 30) == 0 => write!(f, "{}GiB", n >> 30),
            n if n % (1 << 20) == 0 => write!(f, "{}MiB", n >> 20),
            n if n % (1 << 10) == 0 => write!(f, "{}KiB", n >> 10),
            n => write!(f, "{n}B"),
        }
    }
}

/// Implements serialisation as text. Deserialisation rejects numbers, which have no unit, with an error that says which
/// unit to add.
macro_rules! typed_with_unit {
    ($type:ident, $expecting:literal) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$type, D::Error> {
                struct Quantity;
                impl serde::de::Visitor<'_> for Quantity {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                    // Parsing the number as text gives an error that says which unit to add.
                    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<$type, E> {
                        self.visit_str(&number.to_string())
                    }
                    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$type, E> {
                        self.visit_str(&number.to_string())
                    }
                    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<$type, E> {
                        self.visit_str(&number.to_string())
                    }
                }
                deserializer.deserialize_any(Quantity)
            }
        }
    };
}

typed_with_unit!(
    Period,
    "a duration with its unit, such as \"30s\" or \"500ms\""
);
typed_with_unit!(Rate, "a rate with its unit, such as \"1000/s\"");
typed_with_unit!(ByteSize, "a size with its unit, such as \"4MiB\"");

pub(crate) use typed_with_unit;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn period(text: &str) -> Result<Duration, String> {
        text.parse::<Period>()
            .map(|p| p.0)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn durations_are_read() {
        assert_eq!(period("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(period("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(period("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(period("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(period("50 µs"), Ok(Duration::from_micros(50)));
        assert_eq!(period("1_000 ns"), Ok(Duration::from_micros(1)));
    }

    #[test]
    fn typed_loads_may_leave_their_unit_out() {
        assert_eq!(parse_seconds("2"), Ok(Period(Duration::from_secs(2))));
        assert_eq!(
            parse_seconds("1.5 "),
            Ok(Period(Duration::from_millis(1500)))
        );
        assert_eq!(parse_seconds("2ms"), Ok(Period(Duration::from_millis(2))));
        assert_eq!(parse_per_second("100"), Ok(Rate(100.0)));
        assert_eq!(parse_per_second("60/m"), Ok(Rate(1.0)));
        for wrong in ["", "-2", "2 x", "two"] {
            assert_eq!(parse_seconds(wrong), wrong.parse::<Period>(), "{wrong}");
            assert_eq!(parse_per_second(wrong), wrong.parse::<Rate>(), "{wrong}");
        }
    }

    #[test]
    fn malformed_duration_errors_suggest_fix() {
        assert_eq!(
            period("30"),
            Err("`30` has no unit: write \"30s\" or \"30ms\"".into())
        );
        assert_eq!(
            period("30sec"),
            Err("`sec` is not a unit of time: use ns, us, ms, s, m or h".into())
        );
        assert_eq!(
            period("soon"),
            Err("`soon` is not a duration: write \"30s\" or \"500ms\"".into())
        );
        assert_eq!(
            period(""),
            Err("`` is not a duration: write \"30s\" or \"500ms\"".into())
        );
        assert_eq!(period("-1s"), Err("`-1s` is negative".into()));
        assert_eq!(
            period("99999999h"),
            Err("`99999999h` is too large: at most ten years".into())
        );
    }

    #[test]
    fn rates_are_read() {
        assert_eq!("2000/s".parse(), Ok(Rate(2000.0)));
        assert_eq!("60/m".parse(), Ok(Rate(1.0)));
        assert_eq!("0.5 / s".parse(), Ok(Rate(0.5)));
        let wrong = |text: &str| text.parse::<Rate>().expect_err("wrong").to_string();
        assert_eq!(wrong("1000"), "`1000` has no unit: write \"1000/s\"");
        assert_eq!(
            wrong("1000rps"),
            "`rps` is not a unit of rates: use /s, /m or /h"
        );
        assert_eq!(wrong("-5/s"), "`-5/s` is negative");
        assert_eq!(
            wrong("1e9/s"),
            "`e9/s` is not a unit of rates: use /s, /m or /h"
        );
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!("4MiB".parse(), Ok(ByteSize(4 << 20)));
        assert_eq!("1.5KiB".parse(), Ok(ByteSize(1536)));
        assert_eq!("10 kB".parse(), Ok(ByteSize(10_000)));
        for wrong in ["10", "10 k B", "/s"] {
            assert!(wrong.parse::<ByteSize>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn printed_units_parse_back(nanos in 0u64..300_000_000_000_000_000, rate in 0.0f64..1e9, bytes in 0u64..(1 << 52)) {
            let rounded = Duration::from_nanos(nanos);
            // Above 2^53 ns (104 days) only whole microseconds can be typed.
            if nanos < (1 << 53) {
                prop_assert_eq!(Period(rounded).to_string().parse(), Ok(Period(rounded)));
            }
            prop_assert_eq!(Rate(rate).to_string().parse(), Ok(Rate(rate)));
            prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }

        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = text.parse::<Period>();
            let _ = text.parse::<Rate>();
            let _ = text.parse::<ByteSize>();
        }
    }
}
