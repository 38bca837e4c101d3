//! How connecting went before the load.

use plimsoll_model::Outcome;

use crate::error::EngineError;

/// How the connecting went.
#[derive(Clone, Debug, Default)]
pub struct Established {
    /// Connections that came up.
    pub open: u32,
    /// Those whose first attempt failed.
    pub failed: u32,
    /// The first failure, for the error message.
    pub failure: Option<(Outcome, String)>,
    /// What it added to this process's heap, bytes. `None`: it was not looked at, or several
    /// workers connected at the same time.
    pub heap_bytes: Option<u64>,
}

impl Established {
    /// Adds how it went for other connections.
    pub fn add(&mut self, other: Established) {
        // What another shard says of itself may be any number.
        self.open = self.open.saturating_add(other.open);
        self.failed = self.failed.saturating_add(other.failed);
        self.failure = self.failure.take().or(other.failure);
        self.heap_bytes = self.heap_bytes.or(other.heap_bytes);
    }

    /// # Errors
    /// Where connections were `wanted` to `url` before the load, and not one came up.
    pub fn check(&self, url: &str, wanted: u64) -> Result<(), EngineError> {
        if wanted == 0 || self.open > 0 {
            return Ok(());
        }
        let (outcome, detail) = self
            .failure
            .clone()
            .unwrap_or((Outcome::ConnectFailed, "no connection came up".to_owned()));
        Err(EngineError::NoConnection {
            url: url.to_owned(),
            outcome,
            detail,
        })
    }
}
