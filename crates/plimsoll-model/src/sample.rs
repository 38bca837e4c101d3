//! What was measured of one call, and of one connection being made.

use serde::{Deserialize, Serialize};

use crate::{Outcome, Time};

/// One call that was started, from the moment it was due to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The call's number in the run's global schedule (closed loop: in its worker's order).
    pub number: u64,
    /// Index into the plan's stages.
    pub stage: u8,
    /// How it ended.
    #[serde(rename = "code")]
    pub outcome: Outcome,
    /// The intended send time, at which it was due. In a closed loop, when it was sent.
    #[serde(rename = "arrival_ns")]
    pub arrival: Time,
    /// The time at which it was handed to the connection: for a call with a connection of its own, after
    /// the phases of making it.
    #[serde(rename = "sent_ns")]
    pub sent: Time,
    /// The time at which its answer's first byte arrived; equal to `done` where none did.
    #[serde(rename = "first_byte_ns")]
    pub first_byte: Time,
    /// The time at which it ended.
    #[serde(rename = "done_ns")]
    pub done: Time,
    /// Bytes of the protocol's messages, without framing, TLS or TCP.
    pub bytes_sent: u32,
    /// The same of its answer.
    pub bytes_received: u32,
}

impl Sample {
    /// Nanoseconds from the arrival to the end.
    #[inline]
    pub fn response_ns(&self) -> u64 {
        self.done.since(self.arrival)
    }
    /// Nanoseconds from the actual send to the end.
    #[inline]
    pub fn service_ns(&self) -> u64 {
        self.done.since(self.sent)
    }
    /// Nanoseconds from the arrival to the actual send.
    #[inline]
    pub fn lag_ns(&self) -> u64 {
        self.sent.since(self.arrival)
    }
    /// Nanoseconds from the actual send to the first byte of the answer.
    #[inline]
    pub fn first_byte_ns(&self) -> u64 {
        self.first_byte.since(self.sent)
    }
    /// It was sent when it was due, and its answer came in one piece and is ok: its response
    /// time, its service time and the time to its first byte are one.
    #[inline]
    pub fn has_one_time(&self) -> bool {
        self.outcome.is_ok() && self.arrival == self.sent && self.first_byte == self.done
    }
}

/// The phases of making one connection, in nanoseconds; 0 where a phase did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectPhases {
    /// Host name to address.
    pub resolve_ns: u64,
    /// TCP: SYN to established.
    pub connect_ns: u64,
    /// TLS: first byte sent to keys agreed.
    pub handshake_ns: u64,
    /// The protocol's greeting: transport ready to the first call allowed (HTTP/2: the server's SETTINGS).
    pub ready_ns: u64,
    /// The TLS handshake was resumed from a ticket.
    pub resumed: bool,
    /// The server asked for another `ClientHello`, a round trip more (HelloRetryRequest, RFC
    /// 8446 §4.1.4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retried: bool,
    /// A certificate was another one than before: the server's, or the client's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
}

impl ConnectPhases {
    /// Nanoseconds for all phases together.
    pub fn total_ns(&self) -> u64 {
        self.resolve_ns + self.connect_ns + self.handshake_ns + self.ready_ns
    }
}
