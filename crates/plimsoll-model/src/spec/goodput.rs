//! Bounds that a query with a token stream must meet to count as good, as the plan contains them.

use serde::{Deserialize, Serialize};

use super::problem::Problems;
use crate::formats::units::Period;
use crate::plan::GoodputBounds;

/// Bounds of a query's times, from when it was due. Default: none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GoodputSpec {
    /// The time to its first token.
    pub first_token: Option<Period>,
    /// The mean time from one token to the next.
    pub time_per_token: Option<Period>,
    /// The time to its end.
    pub query: Option<Period>,
}

impl Problems {
    /// Resolves the bounds at `key`, each of which must be attainable.
    pub fn resolve_goodput(&mut self, key: &str, spec: Option<&GoodputSpec>) -> GoodputBounds {
        let spec = spec.cloned().unwrap_or_default();
        for (name, bound) in [
            ("first_token", spec.first_token),
            ("time_per_token", spec.time_per_token),
            ("query", spec.query),
        ] {
            if bound.is_some_and(|bound| bound.0.is_zero()) {
                self.add(
                    format!("{key}.{name}"),
                    "a bound of 0, which no query meets: use a longer time, or leave it out",
                );
            }
        }
        GoodputBounds {
            first_token: spec.first_token.map(|p| p.0),
            time_per_token: spec.time_per_token.map(|p| p.0),
            query: spec.query.map(|p| p.0),
        }
    }
}
