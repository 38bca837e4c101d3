//! A time limit that can be switched off.

use std::fmt;
use std::time::Duration;

use crate::formats::units::{self, Period, typed_with_unit};

/// A duration that can be switched off with `"none"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionalPeriod {
    /// The limit.
    After(Period),
    /// No limit.
    None,
}

impl OptionalPeriod {
    /// Returns whether the limit is zero, which leaves no time.
    pub fn is_zero(self) -> bool {
        matches!(self, OptionalPeriod::After(period) if period.0.is_zero())
    }

    /// Parses a limit of a flag. A number without a unit means seconds.
    ///
    /// # Errors
    /// When `text` is neither a duration nor `none`.
    pub fn parse_seconds(text: &str) -> Result<OptionalPeriod, String> {
        match text.trim() {
            "none" => Ok(OptionalPeriod::None),
            text => units::parse_seconds(text).map(OptionalPeriod::After),
        }
    }

    /// Returns the limit; `None`: it is off.
    pub fn limit(self) -> Option<Duration> {
        match self {
            OptionalPeriod::After(period) => Some(period.0),
            OptionalPeriod::None => None,
        }
    }
}

impl From<Option<Duration>> for OptionalPeriod {
    fn from(length: Option<Duration>) -> OptionalPeriod {
        length.map_or(OptionalPeriod::None, |length| {
            OptionalPeriod::After(Period(length))
        })
    }
}

impl std::str::FromStr for OptionalPeriod {
    type Err = String;
    fn from_str(text: &str) -> Result<OptionalPeriod, Self::Err> {
        match text.trim() {
            "none" => Ok(OptionalPeriod::None),
            text => text.parse().map(OptionalPeriod::After),
        }
    }
}

impl fmt::Display for OptionalPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionalPeriod::After(period) => period.fmt(f),
            OptionalPeriod::None => f.write_str("none"),
        }
    }
}

typed_with_unit!(
    OptionalPeriod,
    "a duration with its unit, such as \"500ms\", or \"none\""
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_numbers_of_flags_are_seconds() {
        let seconds = |n| Ok(OptionalPeriod::After(Period(Duration::from_secs(n))));
        assert_eq!(OptionalPeriod::parse_seconds("5"), seconds(5));
        assert_eq!(OptionalPeriod::parse_seconds("5s"), seconds(5));
        assert_eq!(
            OptionalPeriod::parse_seconds(" none "),
            Ok(OptionalPeriod::None)
        );
        assert!("5".parse::<OptionalPeriod>().is_err());
        assert!(OptionalPeriod::parse_seconds("never").is_err());
    }
}
