//! Counts of the messages of streams.

use serde::{Deserialize, Serialize};

/// Numbers of messages on streaming calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageCounts {
    /// Messages sent on calls.
    #[serde(rename = "messages_sent")]
    pub sent: u64,
    /// Complete messages that arrived on calls.
    #[serde(rename = "messages_received")]
    pub received: u64,
}

impl MessageCounts {
    pub(super) fn merge(&mut self, other: MessageCounts) {
        self.sent += other.sent;
        self.received += other.received;
    }
}
