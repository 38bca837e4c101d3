//! A time limit that can be switched off.

use std::fmt;
use std::time::Duration;

use crate::units::{Period, typed_with_unit};

/// A duration that can be switched off with `"none"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The limit.
    After(Period),
    /// No limit.
    None,
}

impl Limit {
    /// Returns whether the limit is zero, which leaves no time.
    pub fn is_zero(self) -> bool {
        matches!(self, Limit::After(period) if period.0.is_zero())
    }

    /// Returns the limit; `None`: it is off.
    pub fn length(self) -> Option<Duration> {
        match self {
            Limit::After(period) => Some(period.0),
            Limit::None => None,
        }
    }
}

impl From<Option<Duration>> for Limit {
    fn from(length: Option<Duration>) -> Limit {
        length.map_or(Limit::None, |length| Limit::After(Period(length)))
    }
}

impl std::str::FromStr for Limit {
    type Err = String;
    fn from_str(text: &str) -> Result<Limit, Self::Err> {
        match text.trim() {
            "none" => Ok(Limit::None),
            text => text.parse().map(Limit::After),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::After(period) => period.fmt(f),
            Limit::None => f.write_str("none"),
        }
    }
}

typed_with_unit!(
    Limit,
    "a duration with its unit, such as \"500ms\", or \"none\""
);
