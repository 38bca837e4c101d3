//! How a run ended, as it is written to `run.json`.

use super::{Run, RunError, RunState};

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEnding {
    /// The state to write.
    pub state: RunState,
    /// The reason, if the state is not [`RunState::Complete`].
    pub reason: Option<String>,
}

impl RunEnding {
    /// Describes a run that reached its planned end.
    pub fn complete() -> RunEnding {
        RunEnding {
            state: RunState::Complete,
            reason: None,
        }
    }

    /// Describes a run that was stopped early, and whose data was all written.
    pub fn aborted(reason: impl Into<String>) -> RunEnding {
        RunEnding {
            state: RunState::Aborted,
            reason: Some(reason.into()),
        }
    }

    /// Describes a run with missing data.
    pub fn partial(reason: impl Into<String>) -> RunEnding {
        RunEnding {
            state: RunState::Partial,
            reason: Some(reason.into()),
        }
    }
}

/// A run that ended, but whose `run.json` could not be written.
#[derive(Debug)]
pub struct UnsavedRun {
    /// The run, with complete figures.
    pub run: Box<Run>,
    /// Why `run.json` could not be written.
    pub error: RunError,
}
