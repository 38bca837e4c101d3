//! The interface between the engine and a protocol: bytes and time in, bytes and events out.
//!
//! A [`Driver`] is the client side of one connection. It owns no socket, task or clock, so the same code runs
//! over TCP and TLS, on byte arrays in tests, in a fuzzer and on the simulated network. Workers and scripts
//! of users call it.

use std::time::Duration;

use plimsoll_model::plan::GoodputBounds;
use plimsoll_model::template::TraceIds;
use plimsoll_model::{Count, Outcome, Time};

/// Unsent bytes of a connection above which no more requests are appended: a peer that does not read then
/// shows as waiting calls and not as memory growth.
pub const MAX_UNSENT: usize = 1 << 20;

/// The worker's number of a call in flight, which a driver returns unchanged. Numbers are small and are
/// reused when a call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub u32);

/// How a call ended, as reported by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedCall {
    /// The call that has ended.
    pub call: CallId,
    /// The outcome, before the worker checks the call's deadline.
    pub outcome: Outcome,
    /// When the first byte of the answer arrived; [`Time::NEVER`] if none did.
    pub first_byte: Time,
    /// Bytes of the protocol's messages that were sent (gRPC: message bytes with their 5-byte prefix).
    pub bytes_sent: u32,
    /// Bytes of the answer's messages, counted like those sent.
    pub bytes_received: u32,
}

/// What a call in flight has sent and received so far, in the units of [`CompletedCall`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallProgress {
    /// Messages sent so far, for calls that carry several.
    pub messages_sent: u32,
    /// Bytes sent so far, counted as [`CompletedCall::bytes_sent`].
    pub bytes_sent: u32,
    /// Bytes received so far, counted as [`CompletedCall::bytes_received`].
    pub bytes_received: u32,
}

/// What a driver reports to the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call has ended. Reported exactly once for every call that was started and not cancelled.
    Done(CompletedCall),
    /// A call has ended without the server having processed it, so it may be sent again. Reported instead of
    /// [`Event::Done`]; its outcome counts if the call is not retried.
    Unprocessed(CompletedCall),
    /// A call that would not end by itself, such as an endless stream, has ended because the load's time is up.
    EndedWithLoad(CompletedCall),
    /// A call that carries several messages (a stream) has received a complete one.
    Message(CallId),
    /// One token of a streamed answer has arrived, or several in one piece.
    Token {
        /// The call in flight.
        call: CallId,
        /// Bytes of the tokens' text.
        bytes: u32,
    },
    /// The token counts that the service reports. Comes before the call's end; the last such event counts.
    Usage {
        /// The call in flight.
        call: CallId,
        /// The tokens counted so far.
        usage: TokenUsage,
    },
    /// An answer of tokens has ended without any text: a single token may have none.
    EndedWithoutText(CallId),
    /// An answer of a model has arrived as a whole, so that its tokens have no times. Comes before the call's end.
    WholeAnswer(CallId),
    /// The text of a call's answer, if it was requested. Comes before the call's end.
    AnswerText {
        /// The call in flight.
        call: CallId,
        /// The complete text.
        text: String,
    },
    /// Text whose tokens the generator must count: that of a call's answer, or of one of several answers to it. Comes
    /// before the call's end.
    TextToCount {
        /// The call in flight.
        call: CallId,
        /// The complete text.
        text: String,
    },
    /// A further count of the protocol for a call.
    Count {
        /// The call in flight.
        call: CallId,
        /// The kind of count.
        count: Count,
        /// The number to add.
        n: u64,
    },
    /// The number of messages sent on a stream; the next event ends it.
    MessagesSent {
        /// The call in flight.
        call: CallId,
        /// Number of complete messages.
        messages: u32,
    },
    /// The answer to a cancelled call has arrived.
    Late,
    /// A message has arrived that answers no call.
    Unsolicited,
    /// The server's message about a failure (a gRPC status message, a GOAWAY's debug data): text for people,
    /// kept for the first few failures of each outcome.
    Detail {
        /// The outcome of the failure.
        outcome: Outcome,
        /// The message without any addition.
        text: String,
    },
}

impl Event {
    /// Returns the call that this event ends, whether or not it may be retried; `None` for other events.
    #[must_use]
    pub fn ended(&self) -> Option<&CompletedCall> {
        match self {
            Self::Done(done) | Self::Unprocessed(done) | Self::EndedWithLoad(done) => Some(done),
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
    /// Tokens of the answer that the service streamed, without hidden ones.
    pub streamed: u64,
}

/// The peer violated the protocol, or the driver cannot continue. The connection is closed after its outbox
/// has been sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", outcome.code())]
pub struct ProtocolError {
    /// The outcome of the calls in flight.
    pub outcome: Outcome,
    /// What was received and what was expected.
    pub detail: String,
}

/// The client side of one connection of a protocol.
///
/// `out` is always appended to and never cleared: the worker writes everything that one iteration produced in
/// one write.
pub trait Driver {
    /// Called when the TLS handshake is complete, with the protocol chosen by ALPN (RFC 7301), before any
    /// other function, if the protocol offers a choice ([`Protocol::alpn_choices`]).
    fn on_alpn(&mut self, _alpn: Option<&[u8]>) {}

    /// Appends the greeting now that the transport is established.
    fn open(&mut self, now: Time, out: &mut Vec<u8>);

    /// Returns whether receiving is cheap: a few kilobytes are processed in a microsecond or two, without
    /// decompression and without calling foreign code.
    fn is_cheap_to_receive(&self) -> bool {
        false
    }

    /// Returns whether the peer's greeting has arrived, so that calls may start. Never returns to false.
    fn is_ready(&self) -> bool;

    /// Returns how many calls may start now: 0 before [`Driver::is_ready`], and permanently once
    /// [`Driver::is_draining`].
    fn capacity(&self) -> usize;

    /// Returns whether the connection briefly takes no call because it reads the remainder of an answer whose call
    /// has ended: bytes that the server sends after the event that ended the call. No answer may keep a connection in
    /// this state for long.
    fn is_reading_remainder(&self) -> bool {
        false
    }

    /// Returns whether the connection carries one call at a time and is idle in between, when the peer may close it.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Returns whether the connection takes no more calls (GOAWAY, stream ids used up): it is closed when the
    /// calls in flight have ended, and replaced.
    fn is_draining(&self) -> bool;

    /// Starts a call. Only called when [`Driver::capacity`] is above 0.
    ///
    /// `number` is the call's position in the run's schedule; everything that varies from call to call is
    /// derived from it.
    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>);

    /// Returns the number from which the trace ids are derived that all calls of the connection share, if calls have
    /// any ([`Protocol::trace_ids`]); `None`: each call has ids of its own, derived from its number.
    #[inline]
    fn shared_trace_number(&self) -> Option<u64> {
        None
    }

    /// Starts a call that has waited since it was due. A driver that sends the peer a call's timeout sends
    /// the remaining time.
    fn start_delayed(
        &mut self,
        call: CallId,
        number: u64,
        _waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        self.start(call, number, now, out);
    }

    /// Cancels a call whose deadline has passed, on the wire and in the driver's state. No [`Event::Done`]
    /// follows; [`Event::Late`] may.
    fn cancel(&mut self, call: CallId, now: Time, out: &mut Vec<u8>);

    /// Returns what a call in flight has sent and received so far; called before [`Driver::cancel`].
    fn call_progress(&self, _call: CallId) -> CallProgress {
        CallProgress::default()
    }

    /// Returns how many bytes the peer must send before anything else can happen, such as the rest of a body
    /// of announced length. The worker need not be woken for parts of them.
    fn still_to_come(&self) -> u64 {
        0
    }

    /// Prefetches the memory that receiving needs ([`crate::prefetch`]), except for the driver itself.
    #[inline]
    fn prefetch(&self) {}

    /// Processes bytes from the peer; they may be split anywhere.
    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError>;

    /// Processes an orderly end of stream. An error gives the outcome of the calls in flight; for most
    /// protocols it is `CONNECTION_CLOSED`.
    fn receive_end(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError>;

    /// Returns the earliest time at which [`Driver::expire`] must be called.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// Returns the total bytes of call messages that [`Driver::receive`] has appended so far. Everything else that it
    /// has appended is a reply, which the peer must read before more is read from it.
    fn payload_bytes(&self) -> u64 {
        0
    }

    /// Returns whether messages that the peer would accept wait because [`MAX_UNSENT`] bytes are in the outbox.
    fn is_held_back(&self) -> bool {
        false
    }

    /// Appends the messages that were held back, after the outbox has been written.
    fn resume_sending(&mut self, _now: Time, _out: &mut Vec<u8>) {}

    /// Handles an expired timer of the driver ([`Driver::deadline`]).
    fn expire(&mut self, _now: Time, _out: &mut Vec<u8>, _events: &mut Vec<Event>) {}

    /// Ends the calls that would never end by themselves, each as a success with [`Event::EndedWithLoad`];
    /// others continue. Called when the drain begins, before the deadlines of that time are checked.
    fn end_with_load(&mut self, _now: Time, _out: &mut Vec<u8>, _events: &mut Vec<Event>) {}

    /// Ends every call in flight with `outcome` because the transport is gone.
    fn abort(&mut self, outcome: Outcome, now: Time, events: &mut Vec<Event>);

    /// Appends the protocol's closing message (HTTP/2: GOAWAY) before the transport is closed.
    fn finish(&mut self, out: &mut Vec<u8>);
}

impl<D: Driver + ?Sized> Driver for Box<D> {
    fn on_alpn(&mut self, alpn: Option<&[u8]>) {
        (**self).on_alpn(alpn);
    }

    fn open(&mut self, now: Time, out: &mut Vec<u8>) {
        (**self).open(now, out);
    }

    fn is_cheap_to_receive(&self) -> bool {
        (**self).is_cheap_to_receive()
    }

    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }

    fn capacity(&self) -> usize {
        (**self).capacity()
    }

    fn is_reading_remainder(&self) -> bool {
        (**self).is_reading_remainder()
    }

    fn is_exclusive(&self) -> bool {
        (**self).is_exclusive()
    }

    fn is_draining(&self) -> bool {
        (**self).is_draining()
    }

    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        (**self).start(call, number, now, out);
    }

    fn shared_trace_number(&self) -> Option<u64> {
        (**self).shared_trace_number()
    }

    fn start_delayed(
        &mut self,
        call: CallId,
        number: u64,
        waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        (**self).start_delayed(call, number, waited, now, out);
    }

    fn cancel(&mut self, call: CallId, now: Time, out: &mut Vec<u8>) {
        (**self).cancel(call, now, out);
    }

    fn call_progress(&self, call: CallId) -> CallProgress {
        (**self).call_progress(call)
    }

    fn still_to_come(&self) -> u64 {
        (**self).still_to_come()
    }

    fn prefetch(&self) {
        (**self).prefetch();
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        (**self).receive(bytes, now, out, events)
    }

    fn receive_end(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        (**self).receive_end(now, events)
    }

    fn deadline(&self) -> Option<Time> {
        (**self).deadline()
    }

    fn payload_bytes(&self) -> u64 {
        (**self).payload_bytes()
    }

    fn is_held_back(&self) -> bool {
        (**self).is_held_back()
    }

    fn resume_sending(&mut self, now: Time, out: &mut Vec<u8>) {
        (**self).resume_sending(now, out);
    }

    fn expire(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        (**self).expire(now, out, events);
    }

    fn end_with_load(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        (**self).end_with_load(now, out, events);
    }

    fn abort(&mut self, outcome: Outcome, now: Time, events: &mut Vec<Event>) {
        (**self).abort(outcome, now, events);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        (**self).finish(out);
    }
}

/// A protocol with a prepared call, which makes a driver for each connection.
///
/// State that is the same on all connections (encoded requests, tables) belongs to the protocol and is shared
/// by its drivers.
pub trait Protocol: Send + Sync + 'static {
    /// One connection of the protocol.
    type Driver: Driver;

    /// Returns the ALPN protocol id to offer over TLS (RFC 7301), if any.
    fn alpn(&self) -> Option<&'static [u8]>;

    /// Returns the ALPN ids to offer instead where the server may choose, in order of preference. The driver
    /// speaks whichever was chosen, and a default if none was.
    fn alpn_choices(&self) -> &'static [&'static [u8]] {
        &[]
    }

    /// Returns the name of the chosen protocol for the handshake records; `None` if there was no choice.
    fn chosen(&self, _alpn: Option<&[u8]>) -> Option<&'static str> {
        None
    }

    /// Sets the wall-clock time at [`Time::ZERO`], in nanoseconds since 1970. Called before the first
    /// connection, and never where time is simulated.
    fn set_clock_origin(&self, _unix_ns: u64) {}

    /// Makes a driver for a new connection.
    fn driver(&self) -> Self::Driver;

    /// Returns whether the protocol's connections are numerous and mostly idle: idle ones are then kept small, at a
    /// few microseconds more per iteration, and the memory of client and server is measured.
    fn is_mostly_idle(&self) -> bool {
        false
    }

    /// Returns the objectives that a call with a token answer must meet to count as good.
    fn goodput(&self) -> GoodputBounds {
        GoodputBounds::default()
    }

    /// Returns the trace ids that requests carry, if they carry any.
    fn trace_ids(&self) -> Option<TraceIds> {
        None
    }

    /// Makes a tracer that describes one connection's bytes, a line per frame, for `--trace`.
    fn tracer(&self) -> Option<Box<dyn Tracer>> {
        None
    }
}

/// The direction in which bytes were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The driver sent them to the peer.
    Sent,
    /// The peer sent them.
    Received,
}

/// Describes a connection's bytes as lines of text. Not on the hot path.
pub trait Tracer {
    /// Appends the lines that describe `bytes`. An incomplete frame is kept for the next call.
    fn bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>);
}
