//! `run.json`: header, state and figures.

use serde::{Deserialize, Serialize};

use super::{RunHeader, RunState, RunSummary};

/// The document as it is written.
#[derive(Serialize)]
pub(super) struct RunDocument<'a> {
    pub(super) state: RunState,
    pub(super) reason: Option<&'a str>,
    #[serde(flatten)]
    pub(super) header: &'a RunHeader,
    #[serde(flatten)]
    pub(super) summary: &'a RunSummary,
}

/// The part of the document that is read back; the figures are computed again from the intervals.
#[derive(Deserialize)]
pub(super) struct StoredRunHead {
    pub(super) state: RunState,
    pub(super) reason: Option<String>,
    #[serde(flatten)]
    pub(super) header: RunHeader,
}
