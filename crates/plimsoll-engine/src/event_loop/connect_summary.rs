//! The result of connecting before the load.

use plimsoll_model::Outcome;

use crate::error::{ConnectFailure, EngineError};

/// Counts of connections established before the load, and the first failure.
#[derive(Clone, Debug, Default)]
pub struct ConnectSummary {
    /// Connections that were established.
    pub open: u32,
    /// Connections whose first attempt failed.
    pub failed: u32,
    /// The first failure, for the error message.
    pub failure: Option<ConnectFailure>,
    /// Growth of this process's heap in bytes; `None` if it was not measured, or several workers connected at once.
    pub heap_bytes: Option<u64>,
}

impl ConnectSummary {
    /// Adds the result of another worker or shard.
    pub fn add(&mut self, other: ConnectSummary) {
        // Saturating, because another shard's numbers are not trusted.
        self.open = self.open.saturating_add(other.open);
        self.failed = self.failed.saturating_add(other.failed);
        self.failure = self.failure.take().or(other.failure);
        self.heap_bytes = self.heap_bytes.or(other.heap_bytes);
    }

    /// Checks that the load can begin.
    ///
    /// # Errors
    /// Returns an error if connections to `url` were wanted before the load and none was established.
    pub fn require_any(&self, url: &str, wanted: u64) -> Result<(), EngineError> {
        if wanted == 0 || self.open > 0 {
            return Ok(());
        }
        let failure = self.failure.clone().unwrap_or_else(|| {
            ConnectFailure::new(Outcome::ConnectFailed, "no connection was established")
        });
        Err(EngineError::NoConnection {
            url: url.to_owned(),
            failure,
        })
    }
}
