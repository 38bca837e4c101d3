//! The events that drivers report, and the calls that these concern.

use std::time::Duration;

use plimsoll_model::{Count, Outcome, Time, TimeMeasure};

/// The worker's number for a call in flight, which a driver returns unchanged. Numbers are small and are reused after a
/// call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u32);

/// How a call ended, as reported by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedCall {
    /// The call that has ended.
    pub call: CallId,
    /// The outcome, before the worker checks the call's deadline.
    pub outcome: Outcome,
    /// The time at which the first byte of the answer arrived; [`Time::NEVER`] if none did.
    pub first_byte: Time,
    /// Bytes of the protocol's messages that were sent (gRPC: message bytes with their 5-byte prefix).
    pub bytes_sent: u32,
    /// Bytes of the answer's messages, counted like those sent.
    pub bytes_received: u32,
}

/// A call that the server has refused for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedCall {
    /// How the call ended; it counts if the call is not sent again.
    pub done: CompletedCall,
    /// How long the server asks to wait; `None`: it does not say.
    pub retry_after: Option<Duration>,
}

/// The messages and bytes that a call in flight has sent and received so far, in the units of [`CompletedCall`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallProgress {
    /// Messages sent so far, for calls that carry several.
    pub messages_sent: u32,
    /// Bytes sent so far, counted as [`CompletedCall::bytes_sent`].
    pub bytes_sent: u32,
    /// Bytes received so far, counted as [`CompletedCall::bytes_received`].
    pub bytes_received: u32,
}

/// An event that a driver reports to the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call has ended. Reported exactly once for every call that was started and not cancelled.
    Done(CompletedCall),
    /// A call has ended without the server having processed it, so it may be sent again. Reported instead of
    /// [`Event::Done`]; its outcome counts if the call is not retried.
    Unprocessed(CompletedCall),
    /// A call has ended because the server refuses it for now, so it may be sent again later. Reported instead of
    /// [`Event::Done`], only if [`refusal_retries`](super::Protocol::refusal_retries) allows retries.
    Refused(Box<RefusedCall>),
    /// A call that would not end on its own, such as an endless stream, has ended because the load is over.
    EndedByLoadEnd(CompletedCall),
    /// A call that carries several messages (a stream) has received a complete one.
    Message(CallId),
    /// A message that belongs to a call had arrived before the call was started.
    EarlierMessage {
        /// The call in flight.
        call: CallId,
        /// When the message arrived.
        at: Time,
    },
    /// One token of a streamed answer has arrived, or several in the same chunk.
    Token {
        /// The call in flight.
        call: CallId,
        /// Length of the tokens' text in bytes.
        bytes: u32,
    },
    /// Tokens that belong to a call had arrived before the call was started.
    EarlierToken {
        /// The call in flight.
        call: CallId,
        /// Length of the tokens' text in bytes.
        bytes: u32,
        /// When they arrived.
        at: Time,
    },
    /// The token counts that the service reports. Precedes the end of the call; the last report is the one that counts.
    Usage {
        /// The call in flight.
        call: CallId,
        /// The tokens counted so far.
        usage: TokenUsage,
    },
    /// A token answer has ended without any text, which is possible if it consists of a single token.
    EndedWithoutText(CallId),
    /// A model's answer has arrived in one piece, so its tokens have no arrival times. Precedes the end of the call.
    WholeAnswer(CallId),
    /// The text of a call's answer, if texts were requested. Precedes the end of the call.
    AnswerText {
        /// The call in flight.
        call: CallId,
        /// The complete text.
        text: String,
    },
    /// Text whose tokens the generator must count: the answer to a call, or one of several answers to it. Precedes the
    /// end of the call.
    TextToCount {
        /// The call in flight.
        call: CallId,
        /// The complete text.
        text: String,
    },
    /// An increment of one of the protocol's own counters for a call.
    Count {
        /// The call in flight.
        call: CallId,
        /// The counter.
        count: Count,
        /// The number to add.
        n: u64,
    },
    /// A time of the protocol that is not part of a call.
    Time {
        /// What was measured.
        measure: TimeMeasure,
        /// The time in nanoseconds.
        ns: u64,
    },
    /// The number of messages sent on a stream; the next event is the end of that stream.
    MessagesSent {
        /// The call in flight.
        call: CallId,
        /// Number of complete messages.
        messages: u32,
    },
    /// The answer to a cancelled call has arrived.
    Late,
    /// A message that belongs to no call has arrived.
    Unsolicited,
    /// The server's message about a failure (a gRPC status message, a GOAWAY's debug data): human-readable text, kept
    /// for the first few failures of each outcome.
    Detail {
        /// The outcome of the failure.
        outcome: Outcome,
        /// The message as the server sent it.
        text: String,
    },
}

impl Event {
    /// Returns the call that this event ends, whether or not it may be retried; `None` for other events.
    #[must_use]
    pub fn ended_call(&self) -> Option<&CompletedCall> {
        match self {
            Self::Done(done) | Self::Unprocessed(done) | Self::EndedByLoadEnd(done) => Some(done),
            Self::Refused(refused) => Some(&refused.done),
            _ => None,
        }
    }
}

/// Token counts of an answer, as reported by the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the answer; 0 where the service does not count them.
    pub answer: u64,
    /// Tokens of the answer that the service streamed, without hidden ones such as reasoning tokens.
    pub streamed: u64,
}
