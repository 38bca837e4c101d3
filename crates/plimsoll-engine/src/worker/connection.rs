//! A connection with its driver: turns received bytes into events, and says when calls may start.
//! [`super::lifecycle`] calls this.

use std::io;
use std::time::Duration;

use plimsoll_model::{Outcome, Time};

use crate::driver::{Driver, Event, MAX_UNSENT};
use crate::event_loop::connection::{self, Early, State, explained};
use crate::loss::Loss;
use crate::network::{Network, Ready};
use crate::tls::{CLIENT_CERT_MISSING, CLOSED_IN_HANDSHAKE, TlsClient, TlsSession};

pub(super) type Connection<D, S> = connection::Connection<Driven<D>, S>;

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// One of the plan's persistent connections, replaced when lost; the number of its lane.
    Lane(u32),
    /// Made for a single call, which is in `attempts` at the connection's index.
    Attempt,
}

/// A call that has a connection of its own, and when it was begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) number: u64,
    pub(super) arrival: Time,
    pub(super) begun: Time,
    pub(super) stage: u8,
    /// The call was sent before over another connection, and the server did not process it.
    pub(super) is_retry: bool,
}

/// Result of reading a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Everything available has been read.
    Drained,
    /// More may be available; it is read after the other connections were served.
    More,
}

/// Number of bytes read, and the time after the last read.
#[derive(Default)]
struct Reads {
    bytes: usize,
    at: Time,
}

/// A connection's driver with the worker's state of its calls. Fields that every call needs come first.
#[repr(C)]
pub struct Driven<D> {
    pub(super) role: Role,
    /// Calls that may still start; [`u64::MAX`] where the plan sets no limit.
    pub(super) calls_left: u64,
    /// When the connection is replaced because its lifetime has ended.
    pub(super) until: Time,
    pub(super) in_flight: u32,
    /// The socket's low-water mark: it becomes readable at this many bytes; at most the read buffer's size.
    low_water: u32,
    /// Whether an answer has begun to arrive, or a call has succeeded.
    pub(super) has_carried: bool,
    /// Whether the call that the connection was made for has been handed to the driver.
    pub(super) attempt_started: bool,
    /// Whether it is in the worker's queue of connections with capacity.
    pub(super) queued: bool,
    pub(super) dirty: bool,
    /// Whether a low-water check is scheduled for it.
    pub(super) watched: bool,
    /// Whether bytes have arrived since the last low-water check.
    fresh: bool,
    /// Whether it is among the connections that read a remainder.
    pub(super) reads_rest: bool,
    pub(super) driver: D,
    /// The time of the driver's timer in the worker's timer queue.
    pub(super) timer: Time,
    /// Until then no low-water mark is set, because the last one was not reached in time.
    unmarked_until: Time,
}

impl<D> Driven<D> {
    pub(super) fn new(role: Role, driver: D) -> Driven<D> {
        Driven {
            driver,
            role,
            in_flight: 0,
            calls_left: u64::MAX,
            until: Time::NEVER,
            has_carried: false,
            attempt_started: false,
            queued: false,
            dirty: false,
            timer: Time::NEVER,
            low_water: 1,
            watched: false,
            fresh: false,
            reads_rest: false,
            unmarked_until: Time::ZERO,
        }
    }
}

/// When to stop reading a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// At a read that does not fill the buffer, which means that the socket is empty.
    Short,
    /// At `WouldBlock` or end of stream: the peer may have closed behind the data.
    End,
}

impl Until {
    pub(super) fn of(ready: Ready) -> Until {
        if ready.hangup {
            Until::End
        } else {
            Until::Short
        }
    }
}

/// What receiving needs in addition to the connection.
pub(super) struct Reading<'a> {
    pub(super) buffer: &'a mut [u8],
    pub(super) alpn: Option<&'a [u8]>,
    pub(super) tls: Option<&'a TlsClient>,
    pub(super) until: Until,
    pub(super) events: &'a mut Vec<Event>,
}

impl<D: Driver, S> Connection<D, S> {
    /// Sends the protocol's greeting now that the transport is established.
    pub(super) fn greet(&mut self, now: Time) {
        self.state = State::Greeting;
        if self.early == Early::No {
            self.own.driver.open(now, &mut self.out);
        }
    }

    /// Returns whether a call may start now as TLS early data. The driver is then opened before the handshake
    /// is complete.
    pub(super) fn begin_early(&mut self, now: Time) -> bool {
        let room = self.tls.as_mut().map_or(0, |session| session.early_room());
        if room == 0 {
            return false;
        }
        self.early = Early::Sent(0);
        self.own.driver.open(now, &mut self.out);
        self.own.driver.is_ready() && self.own.driver.capacity() > 0
    }

    fn handshaken(
        &mut self,
        session: &TlsSession,
        alpn: Option<&[u8]>,
        tls: Option<&TlsClient>,
        now: Time,
    ) -> Result<(), Loss> {
        if alpn.is_some() && session.alpn() != alpn {
            let wanted = String::from_utf8_lossy(alpn.unwrap_or_default());
            let detail = format!("tls: the server did not agree to protocol {wanted:?} by ALPN");
            return Err(Loss::new(Outcome::TlsAlpn, detail));
        }
        self.own.driver.agreed(session.alpn());
        let agreement = session.agreement().unwrap_or_default();
        (self.phases.resumed, self.phases.retried) = (agreement.resumed, agreement.retried);
        self.phases.replaced = tls.is_some_and(TlsClient::took_replacement);
        let handshake_ns = self.lap(now);
        match self.early {
            Early::Sent(sealed) => {
                // The call was sent during the handshake, which is therefore no phase before it.
                if agreement.early_data {
                    self.forget_sealed(sealed as usize);
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

    /// Opens the connection if its greeting has been answered; returns true once, when calls may start.
    pub(super) fn became_open(&mut self, now: Time) -> bool {
        if self.state != State::Greeting || !self.own.driver.is_ready() {
            return false;
        }
        self.phases.ready_ns = self.lap(now);
        self.state = State::Open;
        true
    }

    /// Gives the connection a spare outbox with allocated memory before it writes, if there is one.
    #[inline]
    pub(super) fn borrow_outbox(&mut self, spare: &mut Vec<Vec<u8>>) {
        if self.out.capacity() == 0
            && let Some(outbox) = spare.pop()
        {
            self.out = outbox;
        }
    }

    /// Returns how many calls may start now; 0 while more than [`MAX_UNSENT`] bytes are unsent.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        if self.state != State::Open || self.out.len() > MAX_UNSENT || self.write_failed {
            return 0;
        }
        self.own
            .driver
            .capacity()
            .min(usize::try_from(self.own.calls_left).unwrap_or(usize::MAX))
    }

    /// Returns whether the connection has reached the plan's limit of calls or its lifetime.
    pub(super) fn is_spent(&self, now: Time) -> bool {
        self.own.calls_left == 0 || now >= self.own.until
    }

    /// Reads the available bytes, up to a limit for fairness, and hands them to the driver. Also returns the
    /// time afterwards.
    #[inline]
    pub(super) fn receive<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        reading: &mut Reading<'_>,
    ) -> (Result<Received, Loss>, Time) {
        /// A cheap driver processes this many bytes faster than the clock would show, so it is not read again.
        const CHEAP_READ_BYTES: usize = 8 * 1024;
        let was_open = self.state == State::Open;
        let mut read = Reads::default();
        let received = self.receive_all(network, reading, &mut read);
        let light = was_open && self.own.driver.receives_lightly();
        match read.bytes {
            1..=CHEAP_READ_BYTES if light => (received, read.at),
            _ => (received, network.now()),
        }
    }

    #[inline(always)]
    fn receive_all<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        reading: &mut Reading<'_>,
        read: &mut Reads,
    ) -> Result<Received, Loss> {
        const MAX_READS: usize = 8;
        for _ in 0..MAX_READS {
            let Some(got) = self.read(network, reading.buffer) else {
                return Ok(Received::Drained);
            };
            let got = match got {
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.adjust_low_water(network, reading.buffer.len(), read.at);
                    return Ok(Received::Drained);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    let loss = self.read_failed(&e);
                    return Err(self.unless_refused(reading.tls, loss));
                }
            };
            let now = network.now();
            read.bytes += got;
            read.at = now;
            if got == 0 {
                let cut_off = self.tls.is_some() && self.own.in_flight > 0;
                let loss = if let Some(error) = self.write_error() {
                    self.read_failed(&error)
                } else if cut_off {
                    truncated()
                } else {
                    self.ended(now, reading.events)
                };
                return Err(self.unless_refused(reading.tls, loss));
            }
            let before = (self.unsent(), self.own.driver.carried());
            self.take(got, reading, now)?;
            let carried = (self.own.driver.carried() - before.1) as usize;
            let answers = self.unsent().saturating_sub(before.0 + carried);
            self.owe(answers);
            // A short read has emptied the socket; the next bytes make a new event.
            if got < reading.buffer.len() && reading.until == Until::Short {
                self.adjust_low_water(network, reading.buffer.len(), read.at);
                return Ok(Received::Drained);
            }
        }
        Ok(Received::More)
    }

    /// Sets a low-water mark in the middle of a long answer, so that the worker is woken only for a full
    /// buffer or the answer's last bytes. The kernel reports end of stream regardless of the mark; a shorter
    /// TLS record, such as an alert, is found by [`Connection::mark_missed`].
    fn adjust_low_water<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        most: usize,
        now: Time,
    ) {
        /// Smaller marks do not repay the two system calls.
        const MIN_LOW_WATER: u64 = 32 * 1024;
        let promised = self.own.driver.still_to_come();
        if promised < MIN_LOW_WATER && self.own.low_water == 1 {
            return;
        }
        let sure = match &self.tls {
            Some(session) => session.fewest_to_come(promised),
            None => promised,
        };
        let wanted = if sure < MIN_LOW_WATER || now < self.own.unmarked_until {
            1
        } else {
            sure.min(most as u64) as u32
        };
        self.own.fresh = true;
        if let Some(socket) = &mut self.socket
            && wanted != self.own.low_water
        {
            network.low_water(socket, wanted as usize);
            self.own.low_water = wanted;
        }
    }

    /// Returns whether shorter data than the mark may arrive unnoticed. Without TLS that is only end of
    /// stream, which is always reported.
    #[inline]
    pub(super) fn needs_watch(&self) -> bool {
        self.own.low_water > 1 && self.tls.is_some()
    }

    /// Returns whether no bytes were read since the last check although a mark is set. Then no mark is set
    /// for a while: bytes arrive slowly, so reading each piece is cheap.
    pub(super) fn mark_missed(&mut self, now: Time) -> bool {
        /// How long no mark is set after a missed one.
        const LOW_WATER_PAUSE: Duration = Duration::from_millis(200);
        if self.own.low_water == 1 || std::mem::take(&mut self.own.fresh) {
            return false;
        }
        self.own.unmarked_until = now + LOW_WATER_PAUSE;
        true
    }

    #[inline]
    fn take(&mut self, got: usize, reading: &mut Reading<'_>, now: Time) -> Result<(), Loss> {
        if self.tls.is_some() {
            return self.take_records(got, reading, now);
        }
        let bytes = &reading.buffer[..got];
        self.trace_received(bytes);
        let driver = &mut self.own.driver;
        driver.receive(bytes, now, &mut self.out, reading.events)?;
        Ok(())
    }

    fn take_records(
        &mut self,
        got: usize,
        reading: &mut Reading<'_>,
        now: Time,
    ) -> Result<(), Loss> {
        let Some(mut session) = self.tls.take() else {
            return Ok(());
        };
        let opened = self.open_records(&mut session, got, reading, now);
        self.tls = Some(session);
        if opened? {
            let loss = self.ended(now, reading.events);
            return Err(self.unless_refused(reading.tls, loss));
        }
        Ok(())
    }

    /// Decrypts records and hands their content to the driver; returns `true` if the peer has closed its side.
    #[inline]
    fn open_records(
        &mut self,
        session: &mut TlsSession,
        got: usize,
        reading: &mut Reading<'_>,
        now: Time,
    ) -> Result<bool, Loss> {
        let tls = reading.tls;
        let mut bytes = &mut reading.buffer[..got];
        if self.state == State::Handshaking {
            bytes = (session.handshake(bytes)).map_err(|fault| explained(tls, &fault))?;
            if !session.is_handshaking() {
                self.handshaken(session, reading.alpn, tls, now)?;
            }
        }
        let mut take = |plain: &[u8]| {
            self.trace_received(plain);
            let driver = &mut self.own.driver;
            Ok(driver.receive(plain, now, &mut self.out, reading.events)?)
        };
        session.open(bytes, &mut take, |fault| explained(tls, &fault))
    }

    /// Returns the loss after an orderly end of stream.
    fn ended(&mut self, now: Time, events: &mut Vec<Event>) -> Loss {
        match self.state {
            State::Resolving | State::Connecting | State::Handshaking => {
                Loss::new(Outcome::TlsFailed, CLOSED_IN_HANDSHAKE)
            }
            State::Greeting | State::Open | State::Draining => {
                match self.own.driver.receive_end(now, events) {
                    Err(e) => e.into(),
                    Ok(()) => Loss::closed(),
                }
            }
        }
    }

    /// Replaces the loss where a client certificate is the likely cause. A server that requires one, or
    /// rejects ours, may close without the alert that says so (RFC 8446 §4.4.2.4); gRPC's C core does.
    fn unless_refused(&self, tls: Option<&TlsClient>, loss: Loss) -> Loss {
        let Some(tls) = tls.filter(|_| self.state == State::Greeting) else {
            return loss;
        };
        if tls.lacks_certificate() {
            return Loss::new(Outcome::TlsClientCertificateRequired, CLIENT_CERT_MISSING);
        }
        let without_a_word = [
            Outcome::ConnectionClosed,
            Outcome::Reset,
            Outcome::Truncated,
        ];
        match tls.refusal_suspected() {
            Some(suspected) if without_a_word.contains(&loss.outcome) => {
                Loss::new(Outcome::TlsClientCertificateRejected, suspected)
            }
            _ => loss,
        }
    }

    fn read_failed(&self, e: &io::Error) -> Loss {
        let during = match self.state {
            State::Handshaking => " during the TLS handshake",
            State::Greeting => " before the protocol's greeting",
            _ => "",
        };
        Loss::of_error(during, e)
    }

    /// Releases the TLS session's buffers and keys when nothing is in flight.
    pub(super) fn rest(&mut self) {
        if self.state == State::Open
            && self.own.in_flight == 0
            && self.out.is_empty()
            && let Some(session) = &mut self.tls
        {
            session.rest();
        }
    }

    /// Sends the protocol's closing message and TLS close_notify, as far as the socket accepts them without blocking.
    pub(super) fn say_goodbye<N: Network<Socket = S>>(&mut self, network: &mut N) {
        if matches!(self.state, State::Greeting | State::Open | State::Draining) {
            self.own.driver.finish(&mut self.out);
        }
        self.farewell(network);
    }
}

/// The loss for a missing close_notify (RFC 8446 §6.1): without it the client cannot tell whether the data is
/// complete.
fn truncated() -> Loss {
    let detail = "tls: the server closed the connection without close_notify";
    Loss::new(Outcome::Truncated, detail)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn connection_fits_size_and_layout_limits() {
        type Bare = Connection<(), TcpStream>;
        assert!(size_of::<Option<Bare>>() <= 184);
        assert!(std::mem::offset_of!(Bare, own) + std::mem::offset_of!(Driven<()>, driver) <= 120);
    }
}
