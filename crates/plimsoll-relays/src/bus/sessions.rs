//! Types that describe a session on the bus, its runs and frames, and the errors of the bus.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// An error of the bus.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Clone, Debug, thiserror::Error)]
pub enum BusError {
    #[error("redis at {0} is not reachable at the moment")]
    Down(String),
    #[error("redis at {address} is not reachable: {why}")]
    Unreachable { address: String, why: String },
    #[error("redis at {address} answered: {message}")]
    ErrorReply { address: String, message: String },
    #[error("redis at {0} did not answer within {1:?}")]
    TimedOut(String, Duration),
}

/// Why a run cannot begin.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Clone, Debug, thiserror::Error)]
pub enum BeginError {
    #[error("no such session: it was never created, was closed, or has expired")]
    Unknown,
    #[error("a run of this session is in progress")]
    Busy,
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// A position in a session's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// The epoch, which identifies the log that the frame numbers belong to; 0 if the backend sends no epoch.
    pub epoch: u64,
    /// The number of the last frame; 0 if there is none yet.
    pub last: u64,
}

impl LogPosition {
    /// Returns the number of the first frame after this position, which identifies a run that
    /// begins here.
    pub(crate) fn run_id(&self) -> u64 {
        self.last + 1
    }
}

/// State of a session's run when the session is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunStatus {
    /// The run is in progress, so its lock is taken again.
    Active,
    /// The run's last frame was posted.
    Finished,
}

/// State of a session on the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionStatus {
    /// The session was created and was neither closed nor forgotten.
    pub(crate) is_open: bool,
    /// The stamp of the newest frame, empty if there is none.
    pub(crate) newest: FrameStamp,
    /// The log was lost, including the newest frame.
    pub(crate) log_lost: bool,
    /// The last frame sent to a socket of the session; `None` if no socket has recorded one.
    pub(crate) last_delivered: Option<LogPosition>,
}

/// The position of a frame in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePosition {
    /// The first frame, which restarts the log's lifetime.
    First,
    /// A frame between the first and the last.
    Middle,
    /// The last frame, after which the next run may begin.
    Last,
}

/// The direction of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelDirection {
    /// Carries messages to the client.
    Down,
    /// Carries messages from the client.
    Up,
}

impl ChannelDirection {
    pub(super) fn name(self) -> &'static str {
        match self {
            ChannelDirection::Down => "down",
            ChannelDirection::Up => "up",
        }
    }
}

/// Returns the channel's name: `session:{id}:down` or `session:{id}:up`.
pub(crate) fn channel_name(session: &str, way: ChannelDirection) -> String {
    format!("session:{session}:{}", way.name())
}

/// Returns the epoch of a log that begins now: milliseconds since 1970.
pub(crate) fn new_epoch() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(1)
}

/// A frame's number and log, read from its JSON fields. Frames of backends that add no numbers have
/// neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct FrameStamp {
    /// The frame's number in the log, from 1.
    #[serde(default)]
    pub(crate) seq: Option<u64>,
    /// The epoch of the log that the number belongs to.
    #[serde(default)]
    pub(crate) epoch: Option<u64>,
}

impl FrameStamp {
    /// Reads the stamp of a JSON frame; returns an empty one if there is none.
    pub(crate) fn parse(frame: &[u8]) -> FrameStamp {
        serde_json::from_slice(frame).unwrap_or_default()
    }
}
