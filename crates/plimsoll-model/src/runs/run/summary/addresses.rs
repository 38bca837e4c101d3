//! The calls of each address of a target that has several.

use serde::Serialize;

use crate::records::record::{AddressCounts, StageRecord};

/// Counts of calls and connections at one of several addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AddressSummary {
    /// IP address and port, or path of the socket.
    pub address: String,
    /// The counts of calls and connections.
    #[serde(flatten)]
    pub counts: AddressCounts,
}

impl AddressSummary {
    /// Returns the counts of each address; empty where there is only one address.
    pub(super) fn from_record(record: &StageRecord) -> Vec<AddressSummary> {
        if record.addresses.len() < 2 {
            return Vec::new();
        }
        let addresses = record.addresses.iter();
        addresses
            .map(|(address, counts)| AddressSummary {
                address: address.clone(),
                counts: *counts,
            })
            .collect()
    }
}
