//! The record that a load in batches (consecutive calls of one variant) makes at the start of each batch.

use serde::{Deserialize, Serialize};

/// CPU time that client and server had used when a batch began, in nanoseconds since some moment before the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchStart {
    /// The batch's number, from 0, among the batches of this load.
    #[serde(alias = "turn")]
    pub batch: u64,
    /// CPU time of the worker's thread.
    pub client_ns: u64,
    /// CPU time of the watched server's processes; `None`: not known.
    pub server_ns: Option<u64>,
    /// The totals of the previous batches, in a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<BatchTotals>,
}

impl BatchStart {
    /// Adds the reading of another worker at the start of the same batch, with the same server.
    pub(crate) fn add_worker(&mut self, other: &BatchStart) {
        self.client_ns += other.client_ns;
        if let (Some(ours), Some(theirs)) = (&mut self.done, other.done) {
            ours.ok += theirs.ok;
            ours.bytes_received += theirs.bytes_received;
            ours.began_ns = ours.began_ns.min(theirs.began_ns);
            ours.ended_ns = ours.ended_ns.max(theirs.ended_ns);
        }
    }
}

/// Totals of a closed loop's batches at the start of the next one, warm-up included. Times are in nanoseconds on the
/// run's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchTotals {
    /// Calls that ended ok.
    pub ok: u64,
    /// Bytes received by all calls, as counted by drivers.
    pub bytes_received: u64,
    /// When this batch began.
    pub began_ns: u64,
    /// When the last call of the previous batch ended.
    pub ended_ns: u64,
}
