//! Counts of connections and calls at each address of a target's name.
//!
//! A worker counts by the number that [`crate::Recorder::address_number`] returned for an address, so counting a call
//! takes two additions. When workers are merged, the counts move to the record of their stage, with the address as key.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The counts of one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressCounts {
    /// Calls that ended on a connection to it.
    pub calls: u64,
    /// Calls among these that ended with an error.
    pub errors: u64,
    /// Connections that were established.
    pub connections: u64,
    /// Attempts to connect that failed, or were given up because another address connected first.
    pub connect_failures: u64,
}

impl AddressCounts {
    /// Adds the counts of another worker, interval or shard.
    pub fn merge(&mut self, other: &AddressCounts) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.connections += other.connections;
        self.connect_failures += other.connect_failures;
    }

    /// Returns whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == AddressCounts::default()
    }
}

/// The counts of one address within its worker, by stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerAddressCounts {
    /// The address as text: IP address and port, or the path of a Unix socket.
    pub address: Arc<str>,
    /// The counts of each of the plan's stages.
    pub stages: Vec<AddressCounts>,
}

impl WorkerAddressCounts {
    pub(crate) fn new(address: Arc<str>, stages: usize) -> WorkerAddressCounts {
        WorkerAddressCounts {
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
