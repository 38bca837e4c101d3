//! What a load that takes turns records when one begins.

use serde::{Deserialize, Serialize};

/// What both ends of a load that takes turns had used of the CPU when a turn began, in nanoseconds
/// from a moment before the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnBegan {
    /// The turn's number among the load's own, from 0.
    #[serde(alias = "turn")]
    pub turn: u64,
    /// CPU time of the worker's thread.
    pub client_ns: u64,
    /// CPU time of the watched server's processes; `None`: not known.
    pub server_ns: Option<u64>,
    /// What the turns of a closed loop had come to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<Done>,
}

impl TurnBegan {
    /// Add what another worker read when the same turn began, of the same server.
    pub(crate) fn beside(&mut self, other: &TurnBegan) {
        self.client_ns += other.client_ns;
        if let (Some(ours), Some(theirs)) = (&mut self.done, other.done) {
            ours.ok += theirs.ok;
            ours.bytes_received += theirs.bytes_received;
            ours.began_ns = ours.began_ns.min(theirs.began_ns);
            ours.ended_ns = ours.ended_ns.max(theirs.ended_ns);
        }
    }
}

/// What the turns of a closed loop had come to when another began, warm-up included. Nanoseconds on the run's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Calls that ended well.
    pub ok: u64,
    /// Bytes received by all calls, as drivers count them.
    pub bytes_received: u64,
    /// When this turn began.
    pub began_ns: u64,
    /// When the last call of the turn before had ended.
    pub ended_ns: u64,
}
