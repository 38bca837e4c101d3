//! What is recorded of connections being made, and of the messages of streams.

use super::Times;
use crate::ConnectPhases;

/// The phases of connections made. Times of phases that did not happen are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseRecord {
    /// Name resolution.
    pub resolve: Times,
    /// TCP's handshake.
    pub connect: Times,
    /// TLS's handshake.
    pub handshake: Times,
    /// The protocol's greeting.
    pub ready: Times,
    /// All phases of a connection together.
    pub total: Times,
    /// Cold calls that ended ok: from the beginning of the connection to the end of the call.
    pub cold_total: Times,
}

impl PhaseRecord {
    pub(super) fn record(&mut self, p: &ConnectPhases) {
        for (times, ns) in [
            (&mut self.resolve, p.resolve_ns),
            (&mut self.connect, p.connect_ns),
            (&mut self.handshake, p.handshake_ns),
            (&mut self.ready, p.ready_ns),
        ] {
            if ns > 0 {
                times.record(ns);
            }
        }
        self.total.record(p.total_ns());
    }

    pub(crate) fn all_mut(&mut self) -> [&mut Times; 6] {
        [
            &mut self.resolve,
            &mut self.connect,
            &mut self.handshake,
            &mut self.ready,
            &mut self.total,
            &mut self.cold_total,
        ]
    }

    pub(crate) fn all(&self) -> [&Times; 6] {
        [
            &self.resolve,
            &self.connect,
            &self.handshake,
            &self.ready,
            &self.total,
            &self.cold_total,
        ]
    }

    /// Adds what another worker, interval or shard recorded.
    pub fn merge(&mut self, other: &PhaseRecord) {
        for (ours, theirs) in self.all_mut().into_iter().zip(other.all()) {
            ours.merge(theirs);
        }
    }

    /// No connection was recorded.
    pub fn is_empty(&self) -> bool {
        self.all().into_iter().all(Times::is_empty)
    }
}

/// The messages of calls that carry more than one: streams.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageRecord {
    /// Messages sent on calls.
    pub sent: u64,
    /// Messages that arrived, whole, on calls.
    pub received: u64,
    /// From a call's actual send to its first message from the server.
    pub first_message: Times,
    /// From a message from the server to the next on the same call.
    pub inter_message: Times,
}

impl MessageRecord {
    pub(super) fn merge(&mut self, other: &MessageRecord) {
        self.sent += other.sent;
        self.received += other.received;
        self.first_message.merge(&other.first_message);
        self.inter_message.merge(&other.inter_message);
    }

    pub(super) fn clear(&mut self) {
        self.sent = 0;
        self.received = 0;
        self.first_message.clear();
        self.inter_message.clear();
    }

    /// No message was counted.
    pub fn is_empty(&self) -> bool {
        self.sent == 0 && self.received == 0
    }
}
