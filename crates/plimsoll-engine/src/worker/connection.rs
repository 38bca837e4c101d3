//! One connection of a worker: its socket, its TLS session, its driver, and how far it
//! has come.
//!
//! Buffers belong to the worker; a connection keeps only what it could not write, and an
//! idle one keeps nothing. What it owes to a peer that does not read is bounded: beyond
//! [`MAX_OWED`] the socket is not read until that has gone.

use std::io::{self, IoSlice};
use std::time::Duration;

use plimsoll_model::{ConnectPhases, Outcome, Time};

use rustix::io::Errno;

use crate::addresses::NOWHERE;
use crate::driver::{Direction, Driver, Event, MAX_UNSENT, ProtocolError, Tracer};
use crate::network::Network;
use crate::tls::{CLOSED_IN_HANDSHAKE, TlsSession, UNINVITED};

/// Bytes of answers to what a peer sent (acknowledgements of PING and SETTINGS, answers to
/// heartbeats) that may wait for the socket. What one more read brings about comes on top.
pub(crate) const MAX_OWED: u32 = 64 << 10;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Resolving,
    Connecting,
    Handshaking,
    /// The transport is up; the protocol's greeting has not been answered.
    Greeting,
    Open,
    /// Takes no more calls; ends with its last one.
    Draining,
}

impl State {
    /// What a call that has no other connection waits for.
    pub(crate) fn waiting_for(self) -> &'static str {
        match self {
            State::Resolving => "the host name to resolve",
            State::Connecting => "the TCP connection",
            State::Handshaking => "the TLS handshake",
            State::Greeting => {
                "the server's greeting (it accepted the connection and sent nothing)"
            }
            State::Open | State::Draining => "the server to allow a call",
        }
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Kept, and replaced when lost: one of the plan's connections.
    Lane(u32),
    /// Made for one call.
    Attempt(Attempt),
}

impl Role {
    /// The stage of the call that the connection was made for.
    pub(crate) fn stage(self) -> Option<u8> {
        match self {
            Role::Lane(_) => None,
            Role::Attempt(attempt) => Some(attempt.stage),
        }
    }
}

/// A call that waits for a connection of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) number: u64,
    pub(crate) arrival: Time,
    pub(crate) begun: Time,
    pub(crate) stage: u8,
}

/// Whether a request goes out with the first bytes of TLS (0-RTT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Early {
    No,
    /// It may; so many bytes of the outbox have been sealed for it.
    Sent(usize),
    Accepted,
    /// It had to be sent again after the handshake.
    Rejected,
}

/// Why a connection ended.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) outcome: Outcome,
    pub(crate) detail: String,
}

impl From<ProtocolError> for Loss {
    fn from(e: ProtocolError) -> Loss {
        Loss {
            outcome: e.outcome,
            detail: e.detail,
        }
    }
}

impl From<(Outcome, String)> for Loss {
    fn from((outcome, detail): (Outcome, String)) -> Loss {
        Loss { outcome, detail }
    }
}

/// What receiving came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Everything that was there has been read.
    Drained,
    /// There may be more; come back after serving the others.
    More,
}

/// How much was read, and when last.
#[derive(Default)]
struct Reads {
    bytes: usize,
    at: Time,
}

pub(crate) struct Connection<D, S> {
    pub(crate) generation: u32,
    pub(crate) state: State,
    pub(crate) role: Role,
    /// Of its address, and the number that is counted with there: a worker has but one name.
    /// [`NOWHERE`] before it has one.
    pub(crate) place: u32,
    pub(crate) socket: Option<S>,
    pub(crate) driver: D,
    pub(crate) tls: Option<Box<TlsSession>>,
    /// Bytes of the protocol that have not been written (or sealed) yet.
    pub(crate) out: Vec<u8>,
    written: usize,
    traced: usize,
    pub(crate) in_flight: u32,
    /// The number of calls that may still start; practically unlimited where the plan does not say.
    pub(crate) calls_left: u64,
    /// Replaced from then on.
    pub(crate) until: Time,
    /// An answer has begun to arrive, or a call has ended well.
    pub(crate) has_carried: bool,
    /// The call that the connection was made for has been handed to the driver.
    pub(crate) attempt_started: bool,
    /// Stands in the worker's queue of connections with capacity.
    pub(crate) queued: bool,
    pub(crate) dirty: bool,
    pub(crate) write_failed: bool,
    /// By a reset. The kernel reports that once, and an end to whoever reads after it.
    was_reset: bool,
    /// Not read for the time being: it owes the peer too much.
    choked: bool,
    /// Of the unsent bytes, at most so many answer what the peer sent.
    owed: u32,
    pub(crate) early: Early,
    /// The driver's timer that is in the worker's heap.
    pub(crate) timer: Time,
    /// How many bytes the socket waits for before it is readable.
    low_water: u64,
    /// The worker has it among those that wait for a mark.
    pub(crate) watched: bool,
    /// Bytes have come since the worker last looked.
    fresh: bool,
    /// No mark before then: the last one was not reached in time.
    unmarked_until: Time,
    phase_began: Time,
    pub(crate) phases: ConnectPhases,
    pub(crate) tracer: Option<Box<dyn Tracer>>,
}

impl<D: Driver, S> Connection<D, S> {
    pub(crate) fn new(
        generation: u32,
        role: Role,
        driver: D,
        tracer: Option<Box<dyn Tracer>>,
        now: Time,
    ) -> Connection<D, S> {
        Connection {
            generation,
            state: State::Resolving,
            role,
            place: NOWHERE,
            socket: None,
            driver,
            tls: None,
            out: Vec::new(),
            written: 0,
            traced: 0,
            in_flight: 0,
            calls_left: u64::MAX,
            until: Time::NEVER,
            has_carried: false,
            attempt_started: false,
            queued: false,
            dirty: false,
            write_failed: false,
            was_reset: false,
            choked: false,
            owed: 0,
            early: Early::No,
            timer: Time::NEVER,
            low_water: 1,
            watched: false,
            fresh: false,
            unmarked_until: Time::ZERO,
            phase_began: now,
            phases: ConnectPhases::default(),
            tracer,
        }
    }

    /// Nanoseconds since the last phase ended, and the next one begins.
    fn lap(&mut self, now: Time) -> u64 {
        let nanos = now.since(self.phase_began);
        self.phase_began = now;
        nanos
    }

    pub(crate) fn resolved(&mut self, now: Time) {
        self.phases.resolve_ns = self.lap(now);
        self.state = State::Connecting;
    }

    /// TCP is up. Over TLS the handshake begins, otherwise the protocol's greeting.
    pub(crate) fn connected(&mut self, tls: Option<TlsSession>, now: Time) {
        self.phases.connect_ns = self.lap(now);
        match tls {
            Some(session) => {
                self.tls = Some(Box::new(session));
                self.state = State::Handshaking;
            }
            None => self.greet(now),
        }
    }

    fn greet(&mut self, now: Time) {
        self.state = State::Greeting;
        if self.early == Early::No {
            self.driver.open(now, &mut self.out);
        }
    }

    /// Whether a call may start now and travel with the first bytes of TLS. The driver is
    /// then open before the handshake is over.
    pub(crate) fn begin_early(&mut self, now: Time) -> bool {
        let room = self.tls.as_mut().map_or(0, |session| session.early_room());
        if room == 0 {
            return false;
        }
        self.early = Early::Sent(0);
        self.driver.open(now, &mut self.out);
        self.driver.is_ready() && self.driver.capacity() > 0
    }

    fn handshaken(
        &mut self,
        session: &TlsSession,
        alpn: Option<&[u8]>,
        now: Time,
    ) -> Result<(), Loss> {
        if alpn.is_some() && session.alpn() != alpn {
            return Err(Loss {
                outcome: Outcome::TlsAlpn,
                detail: format!(
                    "tls: the server did not agree to protocol {:?} by ALPN",
                    String::from_utf8_lossy(alpn.unwrap_or_default())
                ),
            });
        }
        self.driver.agreed(session.alpn());
        let agreement = session.agreement();
        (self.phases.resumed, self.phases.retried) = (agreement.resumed, agreement.retried);
        self.phases.replaced = session.took_replacement();
        let handshake_ns = self.lap(now);
        match self.early {
            Early::Sent(sealed) => {
                // The call has been under way all the while: no phase of its own.
                if session.early_accepted() {
                    self.out.drain(..sealed);
                    self.early = Early::Accepted;
                } else {
                    self.early = Early::Rejected;
                }
            }
            _ => self.phases.handshake_ns = handshake_ns,
        }
        self.greet(now);
        Ok(())
    }

    /// The greeting may have been answered: true once, when calls may start.
    pub(crate) fn became_open(&mut self, now: Time) -> bool {
        if self.state != State::Greeting || !self.driver.is_ready() {
            return false;
        }
        self.phases.ready_ns = self.lap(now);
        self.state = State::Open;
        true
    }

    /// How long it has been open.
    pub(crate) fn age(&self, now: Time) -> Duration {
        Duration::from_nanos(now.since(self.phase_began))
    }

    /// An outbox for what is about to be written: one that has grown already, if there is one.
    #[inline]
    pub(crate) fn borrow_outbox(&mut self, spare: &mut Vec<Vec<u8>>) {
        if self.out.capacity() == 0
            && let Some(outbox) = spare.pop()
        {
            self.out = outbox;
        }
    }

    /// Calls that may start now; none while much is waiting to be written.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        if self.state != State::Open || self.out.len() > MAX_UNSENT || self.write_failed {
            return 0;
        }
        self.driver
            .capacity()
            .min(usize::try_from(self.calls_left).unwrap_or(usize::MAX))
    }

    /// It has lived as long as the plan lets it.
    pub(crate) fn is_spent(&self, now: Time) -> bool {
        self.calls_left == 0 || now >= self.until
    }

    /// Bytes that wait for the socket. What the TLS library holds is not counted: it takes
    /// no more while it holds any.
    fn unsent(&self) -> usize {
        let sealed = self.tls.as_ref().map_or(0, |session| session.outgoing());
        self.out.len() - self.written + sealed
    }

    /// What was owed has gone, or most of it: there may be something to read that nobody
    /// reports again. True once.
    pub(crate) fn is_relieved(&mut self) -> bool {
        self.choked && self.owed <= MAX_OWED / 2 && std::mem::take(&mut self.choked)
    }

    /// Read what the socket has, up to a bound for fairness, and hand it to the driver.
    /// Returns the time after it, too.
    #[inline]
    pub(crate) fn receive<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        buffer: &mut [u8],
        alpn: Option<&[u8]>,
        to_the_end: bool,
        events: &mut Vec<Event>,
    ) -> (Result<Received, Loss>, Time) {
        /// A driver that receives cheaply takes in so many bytes before the clock would show it.
        const LITTLE: usize = 8 * 1024;
        let was_open = self.state == State::Open;
        let mut read = Reads::default();
        let received = self.receive_all(network, buffer, alpn, to_the_end, events, &mut read);
        let light = was_open && self.driver.receives_lightly();
        match read.bytes {
            1..=LITTLE if light => (received, read.at),
            _ => (received, network.now()),
        }
    }

    #[inline(always)]
    fn receive_all<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        buffer: &mut [u8],
        alpn: Option<&[u8]>,
        to_the_end: bool,
        events: &mut Vec<Event>,
        read: &mut Reads,
    ) -> Result<Received, Loss> {
        const MAX_READS: usize = 8;
        for _ in 0..MAX_READS {
            if self.owed > MAX_OWED {
                self.choked = true;
                return Ok(Received::Drained);
            }
            let Some(socket) = &mut self.socket else {
                return Ok(Received::Drained);
            };
            let got = match network.read(socket, buffer) {
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.adjust_low_water(network, buffer.len(), read.at);
                    return Ok(Received::Drained);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    let loss = self.read_failed(&e);
                    return Err(self
                        .tls
                        .as_deref()
                        .and_then(|s| self.uninvited(s))
                        .unwrap_or(loss));
                }
            };
            let now = network.now();
            read.bytes += got;
            read.at = now;
            if got == 0 {
                let cut_off = self.tls.is_some() && self.in_flight > 0;
                let loss = if self.was_reset {
                    self.read_failed(&Errno::CONNRESET.into())
                } else if cut_off {
                    truncated()
                } else {
                    self.ended(now, events)
                };
                return Err(self
                    .tls
                    .as_deref()
                    .and_then(|s| self.uninvited(s))
                    .unwrap_or(loss));
            }
            let before = (self.unsent(), self.driver.carried());
            self.take(&mut buffer[..got], alpn, now, events)?;
            let carried = (self.driver.carried() - before.1) as usize;
            let answers = self.unsent().saturating_sub(before.0 + carried);
            self.owed = self.owed.saturating_add(answers as u32);
            // A short read has emptied the socket; the next bytes make a new event.
            if got < buffer.len() && !to_the_end {
                self.adjust_low_water(network, buffer.len(), read.at);
                return Ok(Received::Drained);
            }
        }
        Ok(Received::More)
    }

    /// In the middle of a long answer, be woken only when much has come: a buffer full, or
    /// what is left. The kernel reports the end of a connection all the same; what TLS says
    /// with fewer bytes, an alert, is found by [`Connection::mark_missed`].
    fn adjust_low_water<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        most: usize,
        now: Time,
    ) {
        /// Less is not worth two system calls.
        const FEWEST: u64 = 32 * 1024;
        let promised = self.driver.still_to_come();
        if promised < FEWEST && self.low_water == 1 {
            return;
        }
        let sure = match &self.tls {
            Some(session) => session.fewest_to_come(promised),
            None => promised,
        };
        let wanted = if sure < FEWEST || now < self.unmarked_until {
            1
        } else {
            sure.min(most as u64)
        };
        self.fresh = true;
        if let Some(socket) = &mut self.socket
            && wanted != self.low_water
        {
            network.low_water(socket, wanted as usize);
            self.low_water = wanted;
        }
    }

    /// Something other than what was promised may come, in fewer bytes than the socket waits
    /// for. Without TLS only the end can, and that is reported.
    #[inline]
    pub(crate) fn needs_watch(&self) -> bool {
        self.low_water > 1 && self.tls.is_some()
    }

    /// Whether the mark was not reached since the last call. If so there is none for a while:
    /// bytes come slowly, and to look at them as they come costs little.
    pub(crate) fn mark_missed(&mut self, now: Time) -> bool {
        /// Marks are tried again after so long.
        const PAUSE: Duration = Duration::from_millis(200);
        if self.low_water == 1 || std::mem::take(&mut self.fresh) {
            return false;
        }
        self.unmarked_until = now + PAUSE;
        true
    }

    #[inline]
    fn take(
        &mut self,
        bytes: &mut [u8],
        alpn: Option<&[u8]>,
        now: Time,
        events: &mut Vec<Event>,
    ) -> Result<(), Loss> {
        if self.tls.is_none() {
            self.trace_received(bytes);
            self.driver.receive(bytes, now, &mut self.out, events)?;
            return Ok(());
        }
        self.take_records(bytes, alpn, now, events)
    }

    fn take_records(
        &mut self,
        bytes: &mut [u8],
        alpn: Option<&[u8]>,
        now: Time,
        events: &mut Vec<Event>,
    ) -> Result<(), Loss> {
        let Some(mut session) = self.tls.take() else {
            return Ok(());
        };
        let taken = match self.take_own(&mut session, bytes, alpn, now, events) {
            Ok(true) => Ok(()),
            Ok(false) => self.take_session(&mut session, bytes, alpn, now, events),
            Err(loss) => Err(loss),
        };
        self.tls = Some(session);
        taken
    }

    /// Where the records are our own, open them where they lie; `false`: they are not.
    fn take_own(
        &mut self,
        session: &mut TlsSession,
        mut bytes: &mut [u8],
        alpn: Option<&[u8]>,
        now: Time,
        events: &mut Vec<Event>,
    ) -> Result<bool, Loss> {
        if self.state == State::Handshaking {
            if !session.handshake(bytes)? {
                return Ok(false);
            }
            if session.is_handshaking() {
                return Ok(true);
            }
            self.handshaken(session, alpn, now)?;
            // What came behind the handshake's end is with the session.
            bytes = &mut [];
        }
        let closed = session.open(bytes, &mut |plain| {
            self.trace_received(plain);
            self.driver
                .receive(plain, now, &mut self.out, events)
                .map_err(Loss::from)
        })?;
        match closed {
            None => Ok(false),
            Some(false) => Ok(true),
            Some(true) => {
                let loss = self.ended(now, events);
                Err(self.uninvited(session).unwrap_or(loss))
            }
        }
    }

    fn take_session(
        &mut self,
        session: &mut TlsSession,
        mut bytes: &[u8],
        alpn: Option<&[u8]>,
        now: Time,
        events: &mut Vec<Event>,
    ) -> Result<(), Loss> {
        while !bytes.is_empty() {
            let read = session.read(&mut bytes);
            if self.state == State::Handshaking && !session.is_handshaking() && read.is_ok() {
                self.handshaken(session, alpn, now)?;
            }
            while let Some(plain) = session.plaintext() {
                let length = plain.len();
                self.trace_received(plain);
                self.driver.receive(plain, now, &mut self.out, events)?;
                session.consume(length);
            }
            match read {
                Ok(false) => {}
                Ok(true) => {
                    let loss = self.ended(now, events);
                    return Err(self.uninvited(session).unwrap_or(loss));
                }
                Err((outcome, detail)) => return Err(Loss { outcome, detail }),
            }
        }
        Ok(())
    }

    /// The peer closed its side in good order.
    fn ended(&mut self, now: Time, events: &mut Vec<Event>) -> Loss {
        match self.state {
            State::Resolving | State::Connecting | State::Handshaking => Loss {
                outcome: Outcome::TlsFailed,
                detail: CLOSED_IN_HANDSHAKE.to_owned(),
            },
            State::Greeting | State::Open | State::Draining => {
                match self.driver.receive_end(now, events) {
                    Err(e) => e.into(),
                    Ok(()) => Loss {
                        outcome: Outcome::ConnectionClosed,
                        detail: "the server closed the connection".to_owned(),
                    },
                }
            }
        }
    }

    /// A server that wants a client certificate and gets none may close without the alert
    /// that says so (RFC 8446, 4.4.2.4); gRPC's C core does.
    fn uninvited(&self, session: &TlsSession) -> Option<Loss> {
        (self.state == State::Greeting && session.lacks_certificate()).then(|| Loss {
            outcome: Outcome::TlsClientCertificateRequired,
            detail: UNINVITED.to_owned(),
        })
    }

    fn read_failed(&self, e: &io::Error) -> Loss {
        let during = match self.state {
            State::Handshaking => " during the TLS handshake",
            State::Greeting => " before the protocol's greeting",
            _ => "",
        };
        let outcome = match e.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Outcome::Reset,
            io::ErrorKind::TimedOut => Outcome::ConnectTimeout,
            _ => Outcome::ConnectionClosed,
        };
        Loss {
            outcome,
            detail: format!("the connection was lost{during}: {e}"),
        }
    }

    /// Write what is waiting: everything in one system call where the socket takes it.
    #[inline]
    pub(crate) fn flush<N: Network<Socket = S>>(&mut self, network: &mut N) {
        self.write(network);
        if self.write_failed {
            // What cannot be sent is no longer owed, and what can be read may show why.
            self.owed = 0;
        } else if self.owed > 0 {
            self.owed = self
                .owed
                .min(u32::try_from(self.unsent()).unwrap_or(u32::MAX));
        }
    }

    #[inline]
    fn write<N: Network<Socket = S>>(&mut self, network: &mut N) {
        if self.write_failed {
            return;
        }
        if self.tracer.is_some() {
            self.trace_sent();
        }
        let Some(socket) = &mut self.socket else {
            return;
        };
        let flushed = match &mut self.tls {
            None => {
                while self.written < self.out.len() {
                    match network.write(socket, &[IoSlice::new(&self.out[self.written..])]) {
                        Ok(n) => self.written += n,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                            return self.forget_written();
                        }
                        Err(e) => return self.write_failed(&e),
                    }
                }
                Ok(())
            }
            Some(session) => {
                // It stays in the outbox until the server has taken it.
                if let (State::Handshaking, Early::Sent(sealed)) = (self.state, self.early) {
                    let more = session.seal_early(&self.out[sealed..]);
                    self.early = Early::Sent(sealed + more);
                }
                // Sealing more while the socket is full would only move the backlog.
                let ready = self.state != State::Handshaking && session.has_room();
                if ready && !self.out.is_empty() {
                    session.seal(&self.out);
                    self.out.clear();
                    self.traced = 0;
                }
                let mut writer = SocketWriter { network, socket };
                let mut flushed = session.flush(&mut writer);
                if flushed.is_ok() && self.state != State::Handshaking && !self.out.is_empty() {
                    session.seal(&self.out);
                    self.out.clear();
                    self.traced = 0;
                    flushed = session.flush(&mut writer);
                }
                flushed
            }
        };
        match flushed {
            Ok(()) => {
                // During a TLS handshake the outbox waits for the keys.
                if self.state != State::Handshaking {
                    self.out.clear();
                    self.written = 0;
                    self.traced = 0;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => self.write_failed(&e),
        }
    }

    #[cold]
    fn write_failed(&mut self, e: &io::Error) {
        self.write_failed = true;
        self.was_reset = e.kind() == io::ErrorKind::ConnectionReset;
    }

    /// An outbox that is never quite empty must not keep all that went through it. Rare
    /// enough that each byte is moved once at most.
    fn forget_written(&mut self) {
        if self.written > self.out.len() / 2 {
            self.out.drain(..self.written);
            self.traced = self.traced.saturating_sub(self.written);
            self.written = 0;
        }
    }

    /// With nothing in flight, keep no more than it takes to go on.
    pub(crate) fn rest(&mut self) {
        if self.state == State::Open
            && self.in_flight == 0
            && self.out.is_empty()
            && let Some(session) = &mut self.tls
        {
            session.rest();
        }
    }

    /// Sends the farewell as far as the socket takes it without waiting.
    pub(crate) fn farewell<N: Network<Socket = S>>(&mut self, network: &mut N) {
        if matches!(self.state, State::Greeting | State::Open | State::Draining) {
            self.driver.finish(&mut self.out);
            self.flush(network);
            if let Some(session) = &mut self.tls {
                session.close_notify();
            }
        }
        self.flush(network);
    }

    /// Explain what the driver has put into the outbox since the last call.
    fn trace_sent(&mut self) {
        let Some(tracer) = &mut self.tracer else {
            return;
        };
        let mut lines = Vec::new();
        tracer.bytes(Direction::Sent, &self.out[self.traced..], &mut lines);
        self.traced = self.out.len();
        for line in lines {
            tracing::trace!(target: "plimsoll::wire", connection = self.generation, "> {line}");
        }
    }

    fn trace_received(&mut self, bytes: &[u8]) {
        let Some(tracer) = &mut self.tracer else {
            return;
        };
        let mut lines = Vec::new();
        tracer.bytes(Direction::Received, bytes, &mut lines);
        for line in lines {
            tracing::trace!(target: "plimsoll::wire", connection = self.generation, "< {line}");
        }
    }
}

/// TLS closes before TCP does (RFC 8446 §6.1): without close_notify the peer can't know whether what
/// came is all that was sent.
fn truncated() -> Loss {
    Loss {
        outcome: Outcome::Truncated,
        detail: "tls: the server closed the connection without close_notify".to_owned(),
    }
}

/// A socket as the TLS library wants to see it.
pub(crate) struct SocketWriter<'a, N: Network> {
    pub(crate) network: &'a mut N,
    pub(crate) socket: &'a mut N::Socket,
}

impl<N: Network> io::Write for SocketWriter<'_, N> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.network.write(self.socket, &[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.network.write(self.socket, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a failure to get a connection is counted as.
pub fn classify_connect(e: &io::Error) -> Outcome {
    match e.kind() {
        io::ErrorKind::ConnectionRefused => Outcome::ConnectRefused,
        io::ErrorKind::ConnectionReset => Outcome::Reset,
        io::ErrorKind::TimedOut => Outcome::ConnectTimeout,
        io::ErrorKind::AddrNotAvailable => Outcome::NoPorts,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Outcome::ConnectUnreachable
        }
        _ => match e.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE | Errno::NFILE) => Outcome::NoDescriptors,
            _ => Outcome::ConnectFailed,
        },
    }
}
