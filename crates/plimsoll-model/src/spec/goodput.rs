//! What a query whose answer is tokens has to meet to be counted as good, as typed.

use serde::{Deserialize, Serialize};

use crate::units::Period;

/// Bounds of a query's times, from when it was due. Default: none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GoodputSpec {
    /// To its first token.
    pub first_token: Option<Period>,
    /// The mean time from one token to the next.
    pub time_per_token: Option<Period>,
    /// To its end.
    pub query: Option<Period>,
}
