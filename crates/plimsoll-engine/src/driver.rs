//! The interface between the engine and a protocol: bytes and time in, bytes and events out.
//!
//! A [`Driver`] is the client side of one connection. It owns no socket, task or clock, so the same code runs over TCP
//! and TLS, on byte arrays in tests, in a fuzzer and on the simulated network. Workers and user scripts call it.

mod boxed;
mod event;
mod refusals;
mod tracer;

use std::time::Duration;

use plimsoll_model::plan::GoodputBounds;
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::{Outcome, Time};

pub use self::event::{CallId, CallProgress, CompletedCall, Event, RefusedCall, TokenUsage};
pub use self::refusals::RefusalRetries;
pub use self::tracer::{Direction, Tracer};

/// Unsent bytes of a connection above which no more requests are appended. A peer that does not read then shows up as
/// waiting calls rather than as memory growth.
pub const MAX_UNSENT_BYTES: usize = 1 << 20;

/// An error after which a connection cannot continue: the peer violated the protocol, or the driver failed. The
/// connection is closed after its outbox has been sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", outcome.code())]
pub struct ProtocolError {
    /// The outcome of the calls in flight.
    pub outcome: Outcome,
    /// A description of what was received and what was expected.
    pub detail: String,
}

/// What becomes of a driver whose connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterConnection {
    /// It is dropped; another connection has a driver of its own.
    Drop,
    /// It is kept, and still accepts calls. It answers them from data that arrived earlier, or with the reason why the
    /// connection ended.
    Keep,
    /// It is kept, and needs another connection, on which [`Driver::open`] is called again. Only users' connections are
    /// replaced like this, after a call of [`Driver::on_timer`].
    Reconnect,
}

/// The client side of one connection of a protocol.
///
/// Functions only append to `out` and never clear it: the worker sends everything that one iteration produced in one
/// write.
pub trait Driver {
    /// Called before any other function when the TLS handshake is complete, with the protocol chosen by ALPN (RFC
    /// 7301), if the protocol offers a choice ([`Protocol::alpn_choices`]).
    fn on_alpn(&mut self, _alpn: Option<&[u8]>) {}

    /// Appends the protocol's opening bytes, now that the transport is established.
    fn open(&mut self, now: Time, out: &mut Vec<u8>);

    /// Returns whether receiving takes so little time that the clock need not be read again: a few kilobytes are
    /// processed in a microsecond or two, without decompression and without calling foreign code.
    fn has_negligible_receive_time(&self) -> bool {
        false
    }

    /// Returns whether the peer's opening bytes have arrived, so that calls may start. Stays true from then on.
    fn is_ready(&self) -> bool;

    /// Returns how many calls may start now: 0 before [`Driver::is_ready`] and, permanently, after
    /// [`Driver::is_draining`].
    fn capacity(&self) -> usize;

    /// Returns whether the connection briefly accepts no call because it is reading the remainder of an answer whose
    /// call has ended: bytes that the server sends after the event that ended the call. No answer may keep a connection
    /// in this state for long.
    fn is_reading_answer_remainder(&self) -> bool {
        false
    }

    /// Returns whether the connection carries one call at a time. Between calls it is idle, and the peer may close it.
    fn carries_one_call_at_a_time(&self) -> bool {
        false
    }

    /// Returns whether the connection accepts no more calls (GOAWAY, stream ids used up). It is closed when the calls
    /// in flight have ended, and replaced.
    fn is_draining(&self) -> bool;

    /// Returns the outcome of calls that waited for this connection, if it is draining before its first call. Protocols
    /// in which a server announces that have an outcome of their own.
    fn draining_outcome(&self) -> Outcome {
        Outcome::ConnectionClosed
    }

    /// Returns what becomes of the driver, now that its connection has ended or while it has none.
    fn after_connection(&self) -> AfterConnection {
        AfterConnection::Drop
    }

    /// Starts a call. Only called when [`Driver::capacity`] is above 0.
    ///
    /// `number` is the call's position in the run's schedule; everything that varies from call to call is
    /// derived from it.
    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>);

    /// Returns the number from which the trace ids shared by all calls of the connection are derived, if calls have
    /// trace ids ([`Protocol::trace_ids`]). `None` means that each call has its own ids, derived from its number.
    #[inline]
    fn shared_trace_number(&self) -> Option<u64> {
        None
    }

    /// Starts a call that has waited since it was due. A driver that sends the call's timeout to the peer sends the
    /// remaining time.
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

    /// Returns the progress of a call in flight; called before [`Driver::cancel`].
    fn call_progress(&self, _call: CallId) -> CallProgress {
        CallProgress::default()
    }

    /// Returns how many bytes the peer must send before anything else can happen, such as the rest of a body whose
    /// length is known. The worker need not be woken until they have all arrived.
    fn awaited_bytes(&self) -> u64 {
        0
    }

    /// Prefetches the memory that receiving needs ([`crate::structures::prefetch`]), except for the driver itself.
    #[inline]
    fn prefetch(&self) {}

    /// Processes bytes from the peer, which may be split at any position.
    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError>;

    /// Processes an orderly end of the byte stream. The error contains the outcome of the calls in flight; for most
    /// protocols it is `CONNECTION_CLOSED`.
    fn receive_end(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError>;

    /// Returns the earliest time at which [`Driver::on_timer`] must be called.
    fn next_timer(&self) -> Option<Time> {
        None
    }

    /// Returns the total number of bytes of call messages that [`Driver::receive`] has appended so far. The other bytes
    /// that it has appended are replies, which the peer must read before more is read from the peer.
    fn appended_payload_bytes(&self) -> u64 {
        0
    }

    /// Returns whether messages that the peer would accept are waiting because [`MAX_UNSENT_BYTES`] bytes are in the
    /// outbox.
    fn has_held_back_messages(&self) -> bool {
        false
    }

    /// Appends the messages that were held back, after the outbox has been written.
    fn resume_sending(&mut self, _now: Time, _out: &mut Vec<u8>) {}

    /// Handles an expired timer of the driver ([`Driver::next_timer`]).
    fn on_timer(&mut self, _now: Time, _out: &mut Vec<u8>, _events: &mut Vec<Event>) {}

    /// Ends the calls that would never end on their own, each as a success with [`Event::EndedByLoadEnd`]; other calls
    /// continue. Called when the drain begins, before the deadlines of that moment are checked.
    fn end_open_ended_calls(&mut self, _now: Time, _out: &mut Vec<u8>, _events: &mut Vec<Event>) {}

    /// Ends every call in flight with `outcome` because the transport has failed or was closed.
    fn abort(&mut self, outcome: Outcome, now: Time, events: &mut Vec<Event>);

    /// Appends the protocol's closing message (HTTP/2: GOAWAY) before the transport is closed.
    fn finish(&mut self, out: &mut Vec<u8>);
}

/// A protocol with a prepared call; it creates a driver for each connection.
///
/// State that is the same on all connections (encoded requests, tables) belongs to the protocol and is shared
/// by its drivers.
pub trait Protocol: Send + Sync + 'static {
    /// One connection of the protocol.
    type Driver: Driver;

    /// Returns the ALPN protocol id to offer over TLS (RFC 7301), if any.
    fn alpn(&self) -> Option<&'static [u8]>;

    /// Returns the ALPN ids to offer instead of [`Protocol::alpn`] if the server may choose, in order of preference.
    /// The driver speaks the chosen protocol, and a default if the server chose none.
    fn alpn_choices(&self) -> &'static [&'static [u8]] {
        &[]
    }

    /// Returns the name of the protocol chosen by ALPN, for the handshake records; `None` if there was no choice.
    fn alpn_label(&self, _alpn: Option<&[u8]>) -> Option<&'static str> {
        None
    }

    /// Sets the wall-clock time at [`Time::ZERO`], in nanoseconds since 1970. Called before the first
    /// connection, and never where time is simulated.
    fn set_clock_origin(&self, _unix_ns: u64) {}

    /// Creates a driver for a new connection.
    fn new_driver(&self) -> Self::Driver;

    /// Returns whether the protocol's connections are numerous and mostly idle. The engine then keeps idle connections
    /// small, which costs a few microseconds per iteration, and measures the memory of client and server.
    fn is_mostly_idle(&self) -> bool {
        false
    }

    /// Returns the objectives that a call with a token answer must meet to count as good.
    fn goodput_bounds(&self) -> GoodputBounds {
        GoodputBounds::default()
    }

    /// Returns how often calls that the server refuses for now are sent again.
    fn refusal_retries(&self) -> RefusalRetries {
        RefusalRetries::default()
    }

    /// Returns the trace ids that requests carry, if any.
    fn trace_ids(&self) -> Option<TraceIds> {
        None
    }

    /// Creates a tracer that describes one connection's bytes, one line per frame, for `--trace`.
    fn new_tracer(&self) -> Option<Box<dyn Tracer>> {
        None
    }
}
