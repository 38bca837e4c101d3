//! The measurements of one call, and of one connection's setup.

use serde::{Deserialize, Serialize};

use crate::{Outcome, Time};

/// One call, from the moment at which it was due to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSample {
    /// The call's number in the run's global schedule (closed loop: in its worker's order).
    pub number: u64,
    /// Index into the plan's stages.
    pub stage: u8,
    /// The call's outcome.
    #[serde(rename = "code")]
    pub outcome: Outcome,
    /// The intended send time. In a closed loop it equals the actual send time.
    #[serde(rename = "arrival_ns")]
    pub arrival: Time,
    /// The time at which the call was passed to the connection. If the call opens a new connection, that is after the
    /// connection was established.
    #[serde(rename = "sent_ns")]
    pub sent: Time,
    /// The time at which the first byte of the call's answer arrived; equal to `done` if there was no answer.
    #[serde(rename = "first_byte_ns")]
    pub first_byte: Time,
    /// The time at which the call ended.
    #[serde(rename = "done_ns")]
    pub done: Time,
    /// Payload bytes of the request, without framing, TLS or TCP.
    pub bytes_sent: u32,
    /// Payload bytes of the answer.
    pub bytes_received: u32,
}

impl CallSample {
    /// Returns the nanoseconds from the arrival to the end.
    #[inline]
    pub fn response_ns(&self) -> u64 {
        self.done.since(self.arrival)
    }
    /// Returns the nanoseconds from the actual send to the end.
    #[inline]
    pub fn service_ns(&self) -> u64 {
        self.done.since(self.sent)
    }
    /// Returns the nanoseconds from the arrival to the actual send.
    #[inline]
    pub fn lag_ns(&self) -> u64 {
        self.sent.since(self.arrival)
    }
    /// Returns the nanoseconds from the actual send to the first byte of the answer.
    #[inline]
    pub fn first_byte_ns(&self) -> u64 {
        self.first_byte.since(self.sent)
    }
    /// Returns whether response time, service time and time to first byte are all equal: the call was sent when it was
    /// due, succeeded, and its answer arrived in one read.
    #[inline]
    pub fn has_equal_times(&self) -> bool {
        self.outcome.is_ok() && self.arrival == self.sent && self.first_byte == self.done
    }
}

/// The phases of establishing one connection, in nanoseconds; 0 where a phase did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectPhases {
    /// Name resolution.
    pub resolve_ns: u64,
    /// TCP: SYN to established.
    pub connect_ns: u64,
    /// TLS: from the first byte sent to the negotiated keys.
    pub handshake_ns: u64,
    /// The protocol's handshake: from when TCP and TLS are established until calls are allowed (HTTP/2: until the
    /// server's SETTINGS).
    pub ready_ns: u64,
    /// Whether the TLS session was resumed from a ticket.
    pub resumed: bool,
    /// Whether the server asked for a second `ClientHello`, which costs a round trip (HelloRetryRequest, RFC 8446
    /// §4.1.4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retried: bool,
    /// Whether the certificate of server or client differs from the previous connection's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
}

impl ConnectPhases {
    /// Returns the sum of all phases in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        self.resolve_ns + self.connect_ns + self.handshake_ns + self.ready_ns
    }
}
