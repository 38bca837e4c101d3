//! A time limit that can be switched off.

use std::fmt;
use std::time::Duration;

use crate::formats::units::{Period, typed_with_unit};

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
