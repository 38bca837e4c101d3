//! How a run ended.

use super::{Run, RunError, State};

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The state to write.
    pub state: State,
    /// The reason, if the state is not [`State::Complete`].
    pub reason: Option<String>,
}

impl Ending {
    /// Describes a run that reached its planned end.
    pub fn complete() -> Ending {
        Ending {
            state: State::Complete,
            reason: None,
        }
    }

    /// Describes a run that was stopped early, with everything written.
    pub fn aborted(reason: impl Into<String>) -> Ending {
        Ending {
            state: State::Aborted,
            reason: Some(reason.into()),
        }
    }

    /// Describes a run of which some data is missing.
    pub fn partial(reason: impl Into<String>) -> Ending {
        Ending {
            state: State::Partial,
            reason: Some(reason.into()),
        }
    }
}

/// A run that has ended but whose `run.json` could not be written.
#[derive(Debug)]
pub struct Unsaved {
    /// The run, with complete figures.
    pub run: Box<Run>,
    /// Why `run.json` could not be written.
    pub error: RunError,
}
