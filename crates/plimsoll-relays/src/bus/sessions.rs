//! What a bus knows of a session, its runs and their frames, and why it may not answer.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What went wrong on the bus.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Clone, Debug, thiserror::Error)]
pub enum BusError {
    #[error("redis at {0} is not reachable at the moment")]
    Down(String),
    #[error("redis at {address} is not reachable: {why}")]
    Away { address: String, why: String },
    #[error("redis at {address} answered: {message}")]
    Refused { address: String, message: String },
    #[error("redis at {0} did not answer within {1:?}")]
    Slow(String, Duration),
}

/// Why a run can't begin.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Clone, Debug, thiserror::Error)]
pub enum BeginError {
    #[error("no such session: it was never created, was closed, or has expired")]
    Unknown,
    #[error("a run of this session is going on")]
    Busy,
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// How far a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// Names the log that the sequence numbers belong to; 0: of a backend that names none.
    pub epoch: u64,
    /// The number of the last frame; 0: none yet.
    pub last: u64,
}

impl Reached {
    /// Names the run that goes on from there: the number of its first frame.
    pub(crate) fn run(&self) -> u64 {
        self.last + 1
    }
}

/// Whether a session's run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// Its lock is taken again.
    GoesOn,
    /// Its last frame is posted.
    Over,
}

/// What the bus knows of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// It was made, and neither closed nor forgotten.
    pub(crate) open: bool,
    /// Its newest frame, where there was one.
    pub(crate) newest: Stamp,
    /// The log was lost, and that frame with it.
    pub(crate) gone: bool,
    /// The last frame that was sent to a socket of the session; `None`: no socket of its has
    /// ended yet, or none had a frame.
    pub(crate) stopped: Option<Reached>,
}

/// Which frame of a run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It begins the log's lifetime anew.
    First,
    /// Neither.
    Middle,
    /// It lets the next run begin.
    Last,
}

/// Which way a channel goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Messages go to the client.
    Down,
    /// Messages come from the client.
    Up,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Down => "down",
            Way::Up => "up",
        }
    }
}

/// The channel's name: `session:{id}:down` or `session:{id}:up`.
pub(crate) fn channel(session: &str, way: Way) -> String {
    format!("session:{session}:{}", way.name())
}

/// Names a log that begins now: milliseconds since 1970.
pub(crate) fn new_epoch() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(1)
}

/// A frame's place in the session, as its fields give it. Frames of backends that stamp nothing
/// have neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Stamp {
    /// Its number in the log, from 1 on.
    #[serde(default)]
    pub(crate) seq: Option<u64>,
    /// Which log the number belongs to.
    #[serde(default)]
    pub(crate) epoch: Option<u64>,
}

impl Stamp {
    /// The stamp of a JSON frame; an empty one where there is none.
    pub(crate) fn of(frame: &[u8]) -> Stamp {
        serde_json::from_slice(frame).unwrap_or_default()
    }
}
