//! What became of connections and calls at each address of a target's name.
//!
//! A worker counts by the number that [`crate::Recorder::address`] gave an address, so that
//! a call costs two additions; once merged, the counts are kept by address in their stage.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Counts of one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressCounts {
    /// Calls that ended on a connection to it.
    pub calls: u64,
    /// Those of them that ended with an error.
    pub errors: u64,
    /// Connections that came up.
    pub connections: u64,
    /// Attempts at a connection that failed, or that another address won.
    pub connect_failures: u64,
}

impl AddressCounts {
    /// Adds what another worker, interval or shard counted.
    pub fn merge(&mut self, other: &AddressCounts) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.connections += other.connections;
        self.connect_failures += other.connect_failures;
    }

    /// Nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == AddressCounts::default()
    }
}

/// One address's counts as its worker keeps them: by stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressTally {
    /// The address as it is written: IP address and port, or socket.
    pub address: Arc<str>,
    /// The counts of each of the plan's stages.
    pub stages: Vec<AddressCounts>,
}

impl AddressTally {
    pub(crate) fn new(address: Arc<str>, stages: usize) -> AddressTally {
        AddressTally {
            address,
            stages: vec![AddressCounts::default(); stages],
        }
    }

    pub(crate) fn clear(&mut self) {
        self.stages.fill(AddressCounts::default());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stages.iter().all(AddressCounts::is_empty)
    }
}
