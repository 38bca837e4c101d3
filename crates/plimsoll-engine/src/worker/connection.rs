//! A connection with its driver: turns received bytes into events, and says when calls may start.
//! [`super::lifecycle`] calls this.
//!
//! Long because a connection is one state machine.

use std::io;
use std::time::Duration;

use plimsoll_model::{Outcome, Time};

use crate::driver::{Driver, Event, MAX_UNSENT};
use crate::event_loop::connection::{self, ConnectionState, EarlyDataState, explained};
use crate::loss::ConnectionLoss;
use crate::network::{Network, SocketReady};
use crate::tls::{CLIENT_CERT_MISSING, CLOSED_IN_HANDSHAKE, TlsClient, TlsSession};

pub(super) type DriverConnection<D, S> = connection::Connection<DriverState<D>, S>;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionRole {
    /// One of the plan's persistent connections, which are replaced when lost. Holds the index of its slot.
    Slot(u32),
    /// Made for a single call, which is in `pending_calls` at the connection's index.
    SingleCall,
}

/// A call that waits for a connection of its own, or uses it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCall {
    pub(super) number: u64,
    pub(super) arrival: Time,
    pub(super) begun: Time,
    pub(super) stage: u8,
    /// The call was sent before over another connection, and the server did not process it.
    pub(super) is_retry: bool,
}

/// Result of reading a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadProgress {
    /// Everything available has been read.
    Drained,
    /// More may be available; it is read after the other connections were served.
    More,
}

/// Number of bytes read, and the time after the last read.
#[derive(Default)]
struct ReadStats {
    bytes: usize,
    at: Time,
}

/// A connection's driver with the worker's state of its calls. Fields that every call needs come first.
#[repr(C)]
pub struct DriverState<D> {
    pub(super) role: ConnectionRole,
    /// Calls that may still start; [`u64::MAX`] where the plan sets no limit.
    pub(super) calls_left: u64,
    /// When the connection is replaced because its lifetime has ended.
    pub(super) expires_at: Time,
    pub(super) in_flight: u32,
    /// The socket's low-water mark: it becomes readable at this many bytes; at most the read buffer's size.
    low_water: u32,
    /// Whether an answer has begun to arrive, or a call has succeeded.
    pub(super) was_used: bool,
    /// Whether the call that the connection was made for has been handed to the driver.
    pub(super) attempt_started: bool,
    /// Whether it is in the worker's queue of connections with capacity.
    pub(super) is_queued: bool,
    pub(super) is_dirty: bool,
    /// Whether a low-water check is scheduled for it.
    pub(super) is_watched: bool,
    /// Whether bytes have arrived since the last low-water check.
    has_new_bytes: bool,
    /// Whether it is among the connections that read a remainder.
    pub(super) reads_remainder: bool,
    pub(super) driver: D,
    /// The time of the driver's timer in the worker's timer queue.
    pub(super) timer: Time,
    /// No low-water mark is set before this time, because the last one was not reached in time.
    no_low_water_until: Time,
    /// When the last call ended; [`Time::ZERO`] before that.
    pub(super) last_end: Time,
}

impl<D> DriverState<D> {
    pub(super) fn new(role: ConnectionRole, driver: D) -> DriverState<D> {
        DriverState {
            driver,
            role,
            in_flight: 0,
            calls_left: u64::MAX,
            expires_at: Time::NEVER,
            last_end: Time::ZERO,
            was_used: false,
            attempt_started: false,
            is_queued: false,
            is_dirty: false,
            timer: Time::NEVER,
            low_water: 1,
            is_watched: false,
            has_new_bytes: false,
            reads_remainder: false,
            no_low_water_until: Time::ZERO,
        }
    }
}

/// When to stop reading a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadUntil {
    /// At a read that does not fill the buffer, which means that the socket is empty.
    ShortRead,
    /// At `WouldBlock` or end of stream: the peer may have closed after the data.
    End,
}

impl ReadUntil {
    pub(super) fn of(ready: SocketReady) -> ReadUntil {
        if ready.hangup {
            ReadUntil::End
        } else {
            ReadUntil::ShortRead
        }
    }
}

/// The buffers and settings that receiving needs in addition to the connection.
pub(super) struct ReadContext<'a> {
    pub(super) buffer: &'a mut [u8],
    pub(super) alpn: Option<&'a [u8]>,
    pub(super) tls: Option<&'a TlsClient>,
    pub(super) until: ReadUntil,
    pub(super) events: &'a mut Vec<Event>,
}

impl<D: Driver, S> DriverConnection<D, S> {
    /// Sends the protocol's greeting now that the transport is established.
    pub(super) fn greet(&mut self, now: Time) {
        self.state = ConnectionState::Greeting;
        if self.early_data == EarlyDataState::Unused {
            self.data.driver.open(now, &mut self.out);
        }
    }

    /// Returns whether a call may start now as TLS early data. The driver is then opened before the handshake
    /// is complete.
    pub(super) fn begin_early(&mut self, now: Time) -> bool {
        let room = self
            .tls
            .as_mut()
            .map_or(0, |session| session.early_capacity());
        if room == 0 {
            return false;
        }
        self.early_data = EarlyDataState::Sent(0);
        self.data.driver.open(now, &mut self.out);
        self.data.driver.is_ready() && self.data.driver.capacity() > 0
    }

    fn on_handshake_done(
        &mut self,
        session: &TlsSession,
        alpn: Option<&[u8]>,
        tls: Option<&TlsClient>,
        now: Time,
    ) -> Result<(), ConnectionLoss> {
        if alpn.is_some() && session.alpn() != alpn {
            let wanted = String::from_utf8_lossy(alpn.unwrap_or_default());
            let detail = format!("tls: the server did not agree to protocol {wanted:?} by ALPN");
            return Err(ConnectionLoss::new(Outcome::TlsAlpn, detail));
        }
        self.data.driver.on_alpn(session.alpn());
        let agreement = session.agreement().unwrap_or_default();
        (self.phases.resumed, self.phases.retried) = (agreement.resumed, agreement.retried);
        self.phases.replaced = tls.is_some_and(TlsClient::took_replacement);
        let handshake_ns = self.lap(now);
        match self.early_data {
            EarlyDataState::Sent(sealed) => {
                // The call was sent during the handshake, which is therefore no phase before it.
                if agreement.early_data {
                    self.forget_sealed(sealed as usize);
                    self.early_data = EarlyDataState::Accepted;
                } else {
                    self.early_data = EarlyDataState::Rejected;
                }
            }
            _ => self.phases.handshake_ns = handshake_ns,
        }
        self.greet(now);
        Ok(())
    }

    /// Opens the connection if its greeting has been answered; returns true once, when calls may start.
    pub(super) fn try_open(&mut self, now: Time) -> bool {
        if self.state != ConnectionState::Greeting || !self.data.driver.is_ready() {
            return false;
        }
        self.phases.ready_ns = self.lap(now);
        self.state = ConnectionState::Open;
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
        if self.state != ConnectionState::Open || self.out.len() > MAX_UNSENT || self.write_failed {
            return 0;
        }
        self.data
            .driver
            .capacity()
            .min(usize::try_from(self.data.calls_left).unwrap_or(usize::MAX))
    }

    /// Returns whether the connection has reached the plan's limit of calls or its lifetime.
    pub(super) fn is_spent(&self, now: Time) -> bool {
        self.data.calls_left == 0 || now >= self.data.expires_at
    }

    /// Reads the available bytes, up to a limit for fairness, and hands them to the driver. Also returns the
    /// time afterwards.
    #[inline]
    pub(super) fn receive<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        reading: &mut ReadContext<'_>,
    ) -> (Result<ReadProgress, ConnectionLoss>, Time) {
        /// A cheap driver processes this many bytes so fast that the clock is not read again.
        const CHEAP_READ_BYTES: usize = 8 * 1024;
        let was_open = self.state == ConnectionState::Open;
        let mut read = ReadStats::default();
        let received = self.receive_all(network, reading, &mut read);
        let light = was_open && self.data.driver.is_cheap_to_receive();
        match read.bytes {
            1..=CHEAP_READ_BYTES if light => (received, read.at),
            _ => (received, network.now()),
        }
    }

    #[inline(always)]
    fn receive_all<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        reading: &mut ReadContext<'_>,
        read: &mut ReadStats,
    ) -> Result<ReadProgress, ConnectionLoss> {
        const MAX_READS: usize = 8;
        for _ in 0..MAX_READS {
            let Some(got) = self.read(network, reading.buffer) else {
                return Ok(ReadProgress::Drained);
            };
            let got = match got {
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.adjust_low_water(network, reading.buffer.len(), read.at);
                    return Ok(ReadProgress::Drained);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    let loss = self.read_loss(&e);
                    return Err(self.map_client_cert_loss(reading.tls, loss));
                }
            };
            let now = network.now();
            read.bytes += got;
            read.at = now;
            if got == 0 {
                let cut_off = self.tls.is_some() && self.data.in_flight > 0;
                let loss = if let Some(error) = self.write_error() {
                    self.read_loss(&error)
                } else if cut_off {
                    truncation_loss()
                } else {
                    self.end_loss(now, reading.events)
                };
                return Err(self.map_client_cert_loss(reading.tls, loss));
            }
            let before = (self.unsent(), self.data.driver.payload_bytes());
            self.take(got, reading, now)?;
            let carried = (self.data.driver.payload_bytes() - before.1) as usize;
            let answers = self.unsent().saturating_sub(before.0 + carried);
            self.add_reply_bytes(answers);
            // A short read has emptied the socket; the next bytes make a new event.
            if got < reading.buffer.len() && reading.until == ReadUntil::ShortRead {
                self.adjust_low_water(network, reading.buffer.len(), read.at);
                return Ok(ReadProgress::Drained);
            }
        }
        Ok(ReadProgress::More)
    }

    /// Sets a low-water mark in the middle of a long answer, so that the worker is woken only for a full
    /// buffer or the answer's last bytes. The kernel reports end of stream regardless of the mark; a shorter
    /// TLS record, such as an alert, is found by [`DriverConnection::low_water_missed`].
    fn adjust_low_water<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        most: usize,
        now: Time,
    ) {
        /// Smaller marks save less than the two system calls cost.
        const MIN_LOW_WATER: u64 = 32 * 1024;
        let promised = self.data.driver.still_to_come();
        if promised < MIN_LOW_WATER && self.data.low_water == 1 {
            return;
        }
        let sure = match &self.tls {
            Some(session) => session.fewest_to_come(promised),
            None => promised,
        };
        let wanted = if sure < MIN_LOW_WATER || now < self.data.no_low_water_until {
            1
        } else {
            sure.min(most as u64) as u32
        };
        self.data.has_new_bytes = true;
        if let Some(socket) = &mut self.socket
            && wanted != self.data.low_water
        {
            network.low_water(socket, wanted as usize);
            self.data.low_water = wanted;
        }
    }

    /// Returns whether shorter data than the mark may arrive unnoticed. Without TLS that is only end of
    /// stream, which is always reported.
    #[inline]
    pub(super) fn needs_watch(&self) -> bool {
        self.data.low_water > 1 && self.tls.is_some()
    }

    /// Returns whether no bytes were read since the last check although a mark is set. Then no mark is set
    /// for a while: bytes arrive slowly, so reading each piece is cheap.
    pub(super) fn low_water_missed(&mut self, now: Time) -> bool {
        /// How long no mark is set after a missed one.
        const LOW_WATER_PAUSE: Duration = Duration::from_millis(200);
        if self.data.low_water == 1 || std::mem::take(&mut self.data.has_new_bytes) {
            return false;
        }
        self.data.no_low_water_until = now + LOW_WATER_PAUSE;
        true
    }

    #[inline]
    fn take(
        &mut self,
        got: usize,
        reading: &mut ReadContext<'_>,
        now: Time,
    ) -> Result<(), ConnectionLoss> {
        if self.tls.is_some() {
            return self.process_records(got, reading, now);
        }
        let bytes = &reading.buffer[..got];
        self.trace_received(bytes);
        let driver = &mut self.data.driver;
        driver.receive(bytes, now, &mut self.out, reading.events)?;
        Ok(())
    }

    fn process_records(
        &mut self,
        got: usize,
        reading: &mut ReadContext<'_>,
        now: Time,
    ) -> Result<(), ConnectionLoss> {
        let Some(mut session) = self.tls.take() else {
            return Ok(());
        };
        let opened = self.open_records(&mut session, got, reading, now);
        self.tls = Some(session);
        if opened? {
            let loss = self.end_loss(now, reading.events);
            return Err(self.map_client_cert_loss(reading.tls, loss));
        }
        Ok(())
    }

    /// Decrypts records and hands their content to the driver; returns `true` if the peer has closed its side.
    #[inline]
    fn open_records(
        &mut self,
        session: &mut TlsSession,
        got: usize,
        reading: &mut ReadContext<'_>,
        now: Time,
    ) -> Result<bool, ConnectionLoss> {
        let tls = reading.tls;
        let mut bytes = &mut reading.buffer[..got];
        if self.state == ConnectionState::Handshaking {
            bytes = (session.handshake(bytes)).map_err(|fault| explained(tls, &fault))?;
            if !session.is_handshaking() {
                self.on_handshake_done(session, reading.alpn, tls, now)?;
            }
        }
        let mut take = |plain: &[u8]| {
            self.trace_received(plain);
            let driver = &mut self.data.driver;
            Ok(driver.receive(plain, now, &mut self.out, reading.events)?)
        };
        session.open(bytes, &mut take, |fault| explained(tls, &fault))
    }

    /// Returns the loss after an orderly end of stream.
    fn end_loss(&mut self, now: Time, events: &mut Vec<Event>) -> ConnectionLoss {
        match self.state {
            ConnectionState::Resolving
            | ConnectionState::Connecting
            | ConnectionState::Handshaking => {
                ConnectionLoss::new(Outcome::TlsFailed, CLOSED_IN_HANDSHAKE)
            }
            ConnectionState::Greeting | ConnectionState::Open | ConnectionState::Draining => {
                match self.data.driver.receive_end(now, events) {
                    Err(e) => e.into(),
                    Ok(()) => ConnectionLoss::closed(),
                }
            }
        }
    }

    /// Replaces the loss where a client certificate is the likely cause. A server that requires one, or
    /// rejects ours, may close without the alert that says so (RFC 8446 §4.4.2.4); gRPC's C core does.
    fn map_client_cert_loss(
        &self,
        tls: Option<&TlsClient>,
        loss: ConnectionLoss,
    ) -> ConnectionLoss {
        let Some(tls) = tls.filter(|_| self.state == ConnectionState::Greeting) else {
            return loss;
        };
        if tls.lacks_certificate() {
            return ConnectionLoss::new(Outcome::TlsClientCertificateRequired, CLIENT_CERT_MISSING);
        }
        let without_a_word = [
            Outcome::ConnectionClosed,
            Outcome::Reset,
            Outcome::Truncated,
        ];
        match tls.suspected_refusal() {
            Some(suspected) if without_a_word.contains(&loss.outcome) => {
                ConnectionLoss::new(Outcome::TlsClientCertificateRejected, suspected)
            }
            _ => loss,
        }
    }

    fn read_loss(&self, e: &io::Error) -> ConnectionLoss {
        let during = match self.state {
            ConnectionState::Handshaking => " during the TLS handshake",
            ConnectionState::Greeting => " before the protocol's greeting",
            _ => "",
        };
        ConnectionLoss::of_error(during, e)
    }

    /// Releases the TLS session's buffers and keys when nothing is in flight.
    pub(super) fn rest(&mut self) {
        if self.state == ConnectionState::Open
            && self.data.in_flight == 0
            && self.out.is_empty()
            && let Some(session) = &mut self.tls
        {
            session.rest();
        }
    }

    /// Sends the protocol's closing message and TLS close_notify, as far as the socket accepts them without blocking.
    pub(super) fn finish_and_close<N: Network<Socket = S>>(&mut self, network: &mut N) {
        if matches!(
            self.state,
            ConnectionState::Greeting | ConnectionState::Open | ConnectionState::Draining
        ) {
            self.data.driver.finish(&mut self.out);
        }
        self.close_gracefully(network);
    }
}

/// Returns the loss for a missing close_notify (RFC 8446 §6.1): without it the client cannot tell whether the data is
/// complete.
fn truncation_loss() -> ConnectionLoss {
    let detail = "tls: the server closed the connection without close_notify";
    ConnectionLoss::new(Outcome::Truncated, detail)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn connection_fits_size_and_layout_limits() {
        type Bare = DriverConnection<(), TcpStream>;
        assert!(size_of::<Option<Bare>>() <= 192);
        assert!(
            std::mem::offset_of!(Bare, data) + std::mem::offset_of!(DriverState<()>, driver) <= 120
        );
    }
}
