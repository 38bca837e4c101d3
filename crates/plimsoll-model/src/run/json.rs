//! `run.json`: header, state and figures.

use serde::{Deserialize, Serialize};

use super::{RunHeader, State, Summary};

/// The document as it is written.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    pub(super) state: State,
    pub(super) reason: Option<&'a str>,
    #[serde(flatten)]
    pub(super) header: &'a RunHeader,
    #[serde(flatten)]
    pub(super) summary: &'a Summary,
}

/// The part that is read back; the figures are computed again from the intervals.
#[derive(Deserialize)]
pub(super) struct Head {
    pub(super) state: State,
    pub(super) reason: Option<String>,
    #[serde(flatten)]
    pub(super) header: RunHeader,
}
