//! What a protocol is to the engine: bytes and time in, bytes and events out.
//!
//! A [`Driver`] is one connection's client side. It owns no socket, no task and no
//! clock, so the same code runs over TCP, TLS, byte arrays in a test, a fuzzer and the
//! simulated network. The worker loop calls it and nothing else does.

use std::time::Duration;

use plimsoll_model::plan::Goodput;
use plimsoll_model::template::TraceIds;
use plimsoll_model::{Count, Outcome, Time};

/// Bytes of a connection that may wait for its socket before no more of calls' requests is
/// put behind them: a peer that does not read shows as waiting calls and not as memory.
pub const MAX_UNSENT: usize = 1 << 20;

/// A call in flight, as the worker numbers it. A driver hands it back unchanged.
/// Numbers are small and used again once a call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub u32);

/// How a call ended, as the driver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The call that has ended.
    pub call: CallId,
    /// How it ended, before the worker looks at its deadline.
    pub outcome: Outcome,
    /// When the first byte of the answer arrived; [`Time::NEVER`] if none did.
    pub first_byte: Time,
    /// Bytes of the protocol's messages (gRPC: message bytes with their 5-byte prefix).
    pub bytes_sent: u32,
    /// Bytes of the answer's messages, counted in the same way.
    pub bytes_received: u32,
}

/// What a call has exchanged by now, in the units of [`Done`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// Messages sent so far, where calls carry several.
    pub messages_sent: u32,
    /// Bytes sent so far, counted as [`Done::bytes_sent`].
    pub bytes_sent: u32,
    /// Bytes received so far, counted as [`Done::bytes_received`].
    pub bytes_received: u32,
}

/// What a driver reports to the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call has ended. Exactly once for every call started and not cancelled.
    Done(Done),
    /// A call has ended without the server having acted on it, and may be sent once more; in place of
    /// [`Event::Done`], whose outcome stands where it is not.
    NotTaken(Done),
    /// A call has ended because the load's time is up, as a stream without an end of its own does.
    EndedWithLoad(Done),
    /// A call that carries several messages (a stream) has received a whole one.
    Message(CallId),
    /// A token of a streamed answer has come, or several in one piece.
    Token {
        /// The call in flight.
        call: CallId,
        /// Bytes of the tokens' text.
        bytes: u32,
    },
    /// What the service counts. Before the call's end; the last one counts.
    Usage {
        /// The call in flight.
        call: CallId,
        /// The tokens counted so far.
        usage: Usage,
    },
    /// An answer of tokens has ended, and none of what has come of it is text: a single token may have none.
    Finished(CallId),
    /// The text of a call's answer, where it was asked for. Before the call's end.
    Answer {
        /// The call in flight.
        call: CallId,
        /// All of it.
        text: String,
    },
    /// What the tokens of a call's answer say, or of one of several that it asked for, where they are to be
    /// counted. Before the call's end.
    Text {
        /// The call in flight.
        call: CallId,
        /// All of it.
        text: String,
    },
    /// What the protocol counts of a call besides.
    Count {
        /// The call in flight.
        call: CallId,
        /// What is counted.
        count: Count,
        /// How often it happened.
        n: u64,
    },
    /// Messages sent on a stream that ends with the next event.
    Sent {
        /// The call in flight.
        call: CallId,
        /// Whole ones.
        messages: u32,
    },
    /// The answer to a cancelled call arrived after all.
    Late,
    /// A message has come that answers no call.
    Unasked,
    /// The server's message about a failure (a gRPC status message, a GOAWAY's debug data):
    /// text for a person, kept for the first few failures of a kind.
    Detail {
        /// The kind of failure.
        outcome: Outcome,
        /// The message, and nothing around it.
        text: String,
    },
}

impl Event {
    /// The call that this event ends, whether or not it may be sent once more. None of other events.
    #[must_use]
    pub fn ended(&self) -> Option<&Done> {
        match self {
            Self::Done(done) | Self::NotTaken(done) | Self::EndedWithLoad(done) => Some(done),
            _ => None,
        }
    }
}

/// The tokens of an answer, by the service's own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the answer; 0 where the service does not count them.
    pub answer: u64,
    /// Tokens of the answer that the service streams.
    pub streamed: u64,
}

/// The peer broke the protocol, or the driver can't go on. The connection is closed
/// after what is in the outbox has been sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", outcome.code())]
pub struct ProtocolError {
    /// What the calls in flight are counted as.
    pub outcome: Outcome,
    /// What was seen and what was expected.
    pub detail: String,
}

/// One connection's client side of a protocol.
///
/// `out` is always appended to, never cleared: the worker writes it to the transport,
/// everything that one turn produced in one write.
pub trait Driver {
    /// TLS is up, and this is what it agreed on by ALPN (RFC 7301); called before anything else
    /// where the protocol offers a choice ([`Protocol::choice`]).
    fn agreed(&mut self, _alpn: Option<&[u8]>) {}

    /// The transport is up: send the greeting.
    fn open(&mut self, now: Time, out: &mut Vec<u8>);

    /// Receiving takes next to no time: some kilobytes are looked at in a microsecond or two,
    /// and neither unpacked nor handed to code that is not ours.
    fn receives_lightly(&self) -> bool {
        false
    }

    /// The peer's greeting has arrived, so calls may start. Never goes back to false.
    fn is_ready(&self) -> bool;

    /// How many calls may start now. 0 before [`Driver::is_ready`], and for good once
    /// [`Driver::is_draining`].
    fn capacity(&self) -> usize;

    /// It takes no call for a moment, because it reads the rest of an answer whose call is over: what the server sends
    /// behind the event that ended it. No answer may keep it so for long.
    fn reads_rest(&self) -> bool {
        false
    }

    /// It carries one call at a time, and rests between them, when the peer may close it.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// The connection will take no more calls (GOAWAY, ids used up): it is closed when
    /// the calls in flight have ended, and replaced.
    fn is_draining(&self) -> bool;

    /// Begin a call. Only called when [`Driver::capacity`] is above 0.
    ///
    /// `number` is the call's place in the run's schedule; what varies from call to
    /// call is chosen by it.
    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>);

    /// Where calls have trace ids ([`Protocol::trace_ids`]): the number that those of call `number` are made of. It is
    /// another one where what carries them is sent once a connection.
    #[inline]
    fn traced_as(&self, number: u64) -> u64 {
        number
    }

    /// As [`Driver::start`], for a call that has waited since it was due: a driver that sends
    /// the peer a call's timeout sends what is left of it.
    fn start_waited(
        &mut self,
        call: CallId,
        number: u64,
        _waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        self.start(call, number, now, out);
    }

    /// The call's deadline has passed: cancel it on the wire and forget it. No
    /// [`Event::Done`] follows; [`Event::Late`] may.
    fn cancel(&mut self, call: CallId, now: Time, out: &mut Vec<u8>);

    /// What a call in flight has come to so far; asked before [`Driver::cancel`].
    fn exchanged(&self, _call: CallId) -> Exchanged {
        Exchanged::default()
    }

    /// Bytes that the peer is sure to send before anything else can happen, such as the
    /// rest of a body whose length it has announced. The worker need not be woken for each of them.
    fn still_to_come(&self) -> u64 {
        0
    }

    /// Something will come soon: asks for the memory that it needs ([`crate::prefetch`]), but for the driver's own.
    #[inline]
    fn prefetch(&self) {}

    /// Bytes from the peer, in any split.
    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError>;

    /// The peer closed its side in good order. An error names what that means for the
    /// calls in flight; for most protocols it is `CONNECTION_CLOSED`.
    fn receive_end(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError>;

    /// The earliest moment at which [`Driver::expire`] wants to be called.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// How many bytes of calls' messages [`Driver::receive`] has put out so far: what it puts
    /// out besides is owed to the peer, who has to read it before it is read again.
    fn carried(&self) -> u64 {
        0
    }

    /// Messages may go out as far as the peer is concerned, and wait because
    /// [`MAX_UNSENT`] bytes are in the outbox.
    fn is_held_back(&self) -> bool {
        false
    }

    /// The outbox has been written: put out what was held back.
    fn go_on(&mut self, _now: Time, _out: &mut Vec<u8>) {}

    /// A timer of the driver's own has run out.
    fn expire(&mut self, _now: Time, _out: &mut Vec<u8>, _events: &mut Vec<Event>) {}

    /// The load's time is up, and the drain begins: ends the calls that would never end by themselves, each as a success
    /// with [`Event::EndedWithLoad`]. Others go on. Called before the deadlines of that moment are judged.
    fn end_with_load(&mut self, _now: Time, _out: &mut Vec<u8>, _events: &mut Vec<Event>) {}

    /// The transport is gone: end every call in flight with `outcome`.
    fn abort(&mut self, outcome: Outcome, now: Time, events: &mut Vec<Event>);

    /// Appends the protocol's farewell (HTTP/2: GOAWAY) before the worker closes the transport.
    fn finish(&mut self, out: &mut Vec<u8>);
}

/// A protocol with its call prepared: makes a driver for each connection.
///
/// Everything that is the same on all connections (encoded requests, tables) belongs
/// to the protocol and is shared by its drivers.
pub trait Protocol: Send + Sync + 'static {
    /// One connection of the protocol.
    type Driver: Driver;

    /// The ALPN protocol id to ask for over TLS (RFC 7301).
    fn alpn(&self) -> Option<&'static [u8]>;

    /// The ids to offer in its place where the server may choose, the most wanted first; its driver
    /// speaks whichever it chooses, and something where it chooses none.
    fn choice(&self) -> &'static [&'static [u8]] {
        &[]
    }

    /// What was chosen, for the record of handshakes. `None`: there was no choice.
    fn chosen(&self, _alpn: Option<&[u8]>) -> Option<&'static str> {
        None
    }

    /// What the clocks on walls showed at [`Time::ZERO`], in nanoseconds since 1970; given
    /// before the first connection, and never where time is simulated.
    fn clock_began(&self, _unix_ns: u64) {}

    /// A driver for a new connection.
    fn driver(&self) -> Self::Driver;

    /// Its connections rest most of the time, and are many: they are to be small at rest,
    /// for a few microseconds more a turn, and the memory of both ends is measured.
    fn rests(&self) -> bool {
        false
    }

    /// What a call whose answer is tokens has to meet to be counted as good.
    fn goodput(&self) -> Goodput {
        Goodput::default()
    }

    /// The trace ids that requests carry; `None`: they carry none.
    fn trace_ids(&self) -> Option<TraceIds> {
        None
    }

    /// Explains the bytes of one connection, a line a frame, for `--trace`.
    fn tracer(&self) -> Option<Box<dyn Tracer>> {
        None
    }
}

/// Which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The driver sent them to the peer.
    Sent,
    /// The peer sent them.
    Received,
}

/// Turns a connection's bytes into lines for a person. Off the hot path.
pub trait Tracer {
    /// Adds the lines that explain `bytes`. What ends within a frame is kept for the next call.
    fn bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>);
}
