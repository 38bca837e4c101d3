//! Durations, rates and sizes as people type them: always with a unit.
//!
//! A bare number is refused, because `30` might be seconds or
//! milliseconds. What is printed can be read back and means the same. The spec and the
//! command line use these types; a plan holds the bare values.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// Why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnitError {
    #[error("`{text}` has no unit: write {example}")]
    NoUnit { text: String, example: String },
    #[error("`{unit}` is not a unit of {what}: use {units}")]
    UnknownUnit {
        unit: String,
        what: &'static str,
        units: &'static str,
    },
    #[error("`{text}` is not {what}: write {example}")]
    NotANumber {
        text: String,
        what: &'static str,
        example: &'static str,
    },
    #[error("`{text}` is negative")]
    Negative { text: String },
    #[error("`{text}` is too large: at most {most}")]
    TooLarge { text: String, most: &'static str },
}

/// A length of time: `"30s"`, `"500ms"`, `"1m30s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// So many a second: `"2000/s"`, `"60/m"`, `"0.5/s"`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// A number of bytes: `"4MiB"`, `"512B"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

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

const SIZE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// Ten years: longer than any run, short enough that nanoseconds fit 64 bits.
const LONGEST: f64 = 3_650.0 * 86_400e9;
const FASTEST: f64 = 1e9;

/// The leading number of `text` (digits, one point, `_` between digits) and the rest.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let digits: String = text[..end].chars().filter(|&c| c != '_').collect();
    Some((digits.parse().ok()?, &text[end..]))
}

fn check_sign(text: &str) -> Result<(), UnitError> {
    if text.starts_with('-') {
        return Err(UnitError::Negative { text: text.into() });
    }
    Ok(())
}

impl FromStr for Period {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Period, UnitError> {
        let text = text.trim();
        check_sign(text)?;
        let not_a_number = || UnitError::NotANumber {
            text: text.into(),
            what: "a duration",
            example: "\"30s\" or \"500ms\"",
        };
        let mut rest = text;
        let mut total = 0.0f64;
        let mut whole = Duration::ZERO;
        while !rest.is_empty() {
            let (value, after) = number(rest).ok_or_else(not_a_number)?;
            let after = after.trim_start();
            let end = after
                .find(|c: char| c.is_ascii_digit() || c == ' ')
                .unwrap_or(after.len());
            let unit = &after[..end];
            if unit.is_empty() {
                return Err(UnitError::NoUnit {
                    text: text.into(),
                    example: format!("\"{text}s\" or \"{text}ms\""),
                });
            }
            let (_, scale) = TIME_UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .ok_or_else(|| UnitError::UnknownUnit {
                    unit: unit.into(),
                    what: "time",
                    units: "ns, us, ms, s, m or h",
                })?;
            total += value * scale;
            if total >= LONGEST {
                return Err(UnitError::TooLarge {
                    text: text.into(),
                    most: "ten years",
                });
            }
            whole += Duration::from_nanos((value * scale).round() as u64);
            rest = after[end..].trim_start();
        }
        if text.is_empty() {
            return Err(not_a_number());
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
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Rate, UnitError> {
        let text = text.trim();
        check_sign(text)?;
        let (value, unit) = number(text).ok_or_else(|| UnitError::NotANumber {
            text: text.into(),
            what: "a rate",
            example: "\"1000/s\" or \"60/m\"",
        })?;
        let unit: String = unit.split_whitespace().collect();
        if unit.is_empty() {
            return Err(UnitError::NoUnit {
                text: text.into(),
                example: format!("\"{text}/s\""),
            });
        }
        let (_, seconds) = RATE_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| UnitError::UnknownUnit {
                unit: unit.clone(),
                what: "rates",
                units: "/s, /m or /h",
            })?;
        let rate = value / seconds;
        if rate > FASTEST {
            return Err(UnitError::TooLarge {
                text: text.into(),
                most: "1000000000/s",
            });
        }
        Ok(Rate(rate))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rust prints the shortest digits that read back as the same number.
        write!(f, "{}/s", self.0)
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Size, UnitError> {
        let text = text.trim();
        check_sign(text)?;
        let (value, unit) = number(text).ok_or_else(|| UnitError::NotANumber {
            text: text.into(),
            what: "a size",
            example: "\"4MiB\" or \"512B\"",
        })?;
        let unit = unit.trim();
        if unit.is_empty() {
            return Err(UnitError::NoUnit {
                text: text.into(),
                example: format!("\"{text}B\" or \"{text}KiB\""),
            });
        }
        let (_, scale) = SIZE_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| UnitError::UnknownUnit {
                unit: unit.into(),
                what: "sizes",
                units: "B, KiB, MiB, GiB, kB, MB or GB",
            })?;
        let bytes = value * *scale as f64;
        if bytes >= (1u64 << 53) as f64 {
            return Err(UnitError::TooLarge {
                text: text.into(),
                most: "8388608GiB",
            });
        }
        Ok(Size(bytes.round() as u64))
    }
}

impl fmt::Display for Size {
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

/// Written and read as its text; what is read may be a number without its unit, whose error says which to add.
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
                    // Read as text, a number gives the error that says which unit to add.
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
typed_with_unit!(Size, "a size with its unit, such as \"4MiB\"");

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
    fn wrong_durations_say_what_is_right() {
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
        assert_eq!("4MiB".parse(), Ok(Size(4 << 20)));
        assert_eq!("1.5KiB".parse(), Ok(Size(1536)));
        assert_eq!("10 kB".parse(), Ok(Size(10_000)));
        assert!("10".parse::<Size>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(nanos in 0u64..300_000_000_000_000_000, rate in 0.0f64..1e9, bytes in 0u64..(1 << 52)) {
            let rounded = Duration::from_nanos(nanos);
            // Above 2^53 ns (104 days) only whole microseconds are typed.
            if nanos < (1 << 53) {
                prop_assert_eq!(Period(rounded).to_string().parse(), Ok(Period(rounded)));
            }
            prop_assert_eq!(Rate(rate).to_string().parse(), Ok(Rate(rate)));
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }

        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = text.parse::<Period>();
            let _ = text.parse::<Rate>();
            let _ = text.parse::<Size>();
        }
    }
}
