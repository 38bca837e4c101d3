//! A connection with its driver: converts received bytes to events, and determines when calls may start.
//! [`super::lifecycle`] calls this.
//!
//! This file is long because a connection is one state machine.

use std::io;
use std::time::Duration;

use plimsoll_model::{Outcome, Time};

use crate::driver::{Driver, Event, MAX_UNSENT_BYTES};
use crate::event_loop::connection::{self, ConnectionState, EarlyDataState, explain_session_error};
use crate::tls::{CLOSED_IN_HANDSHAKE_MESSAGE, TlsClient, TlsSession};
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::{Network, SocketReady};

pub(super) type DriverConnection<D, S> = connection::Connection<DriverState<D>, S>;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionRole {
    /// One of the plan's persistent connections, which are replaced when lost; contains the index of its slot.
    Slot(u32),
    /// A connection for a single call, which is in `pending_calls` at the connection's index.
    SingleCall,
}

/// A call with a separate connection that is being established or carries the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCall {
    pub(super) number: u64,
    pub(super) arrival: Time,
    pub(super) begun: Time,
    pub(super) stage: u8,
    /// Whether the call has been sent before over another connection, and the server did not process it.
    pub(super) is_retry: bool,
}

/// The result of reading a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadProgress {
    /// Everything available has been read.
    Drained,
    /// More bytes may be available; they are read after the other connections have been served.
    More,
}

/// Number of bytes read, and the time after the last read.
#[derive(Default)]
struct ReadStats {
    bytes: usize,
    at: Time,
}

/// A connection's driver, with the worker's state for its calls. Fields that every call needs come first.
#[repr(C)]
pub struct DriverState<D> {
    pub(super) role: ConnectionRole,
    /// Number of calls that may still start; [`u64::MAX`] if the plan sets no limit.
    pub(super) calls_left: u64,
    /// The time at which the connection is replaced because its lifetime has ended.
    pub(super) expires_at: Time,
    pub(super) in_flight: u32,
    /// The socket's low-water mark in bytes; at most the size of the read buffer.
    low_water: u32,
    /// Whether an answer has begun to arrive, or a call has succeeded.
    pub(super) was_used: bool,
    /// Whether the call for which the connection was established has been passed to the driver.
    pub(super) attempt_started: bool,
    /// Whether the connection is in the worker's queue of connections with capacity.
    pub(super) is_queued: bool,
    pub(super) is_dirty: bool,
    /// Whether a low-water check is scheduled for the connection.
    pub(super) is_watched: bool,
    /// Whether bytes have arrived since the last low-water check.
    has_new_bytes: bool,
    /// Whether the connection is in the worker's list of those that are reading a remainder.
    pub(super) reads_remainder: bool,
    pub(super) driver: D,
    /// The time of the driver's timer in the worker's timer queue.
    pub(super) timer: Time,
    /// The time before which no low-water mark is set, because the last one was not reached in time.
    no_low_water_until: Time,
    /// The time at which the last call ended; [`Time::ZERO`] before that.
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

/// The condition for ending a series of reads from a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadUntil {
    /// A read that does not fill the buffer, which means that the socket is empty.
    ShortRead,
    /// `WouldBlock` or end of stream, because the peer may have closed after sending data.
    End,
}

impl ReadUntil {
    pub(super) fn for_event(ready: SocketReady) -> ReadUntil {
        if ready.hangup {
            ReadUntil::End
        } else {
            ReadUntil::ShortRead
        }
    }
}

/// The buffers and settings that receiving needs, in addition to the connection.
pub(super) struct ReadContext<'a> {
    pub(super) buffer: &'a mut [u8],
    pub(super) alpn: Option<&'a [u8]>,
    pub(super) tls: Option<&'a TlsClient>,
    pub(super) until: ReadUntil,
    pub(super) events: &'a mut Vec<Event>,
}

impl<D: Driver, S> DriverConnection<D, S> {
    /// Sends the protocol's greeting now that the transport is established.
    pub(super) fn send_greeting(&mut self, now: Time) {
        self.state = ConnectionState::Greeting;
        if self.early_data == EarlyDataState::Unused {
            self.data.driver.open(now, &mut self.out);
        }
    }

    /// Opens the driver during the handshake if early data is possible; returns whether a call may start now.
    pub(super) fn try_early_data(&mut self, now: Time) -> bool {
        let room = self
            .tls
            .as_mut()
            .map_or(0, |session| session.early_data_capacity());
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
        let agreement = session.negotiated_parameters().unwrap_or_default();
        (self.phases.resumed, self.phases.retried) = (agreement.resumed, agreement.retried);
        self.phases.replaced = tls.is_some_and(TlsClient::take_certificate_replaced_flag);
        let handshake_ns = self.end_phase(now);
        match self.early_data {
            EarlyDataState::Sent(sealed) => {
                // The call was sent during the handshake, so the handshake is not counted as a phase that precedes it.
                if agreement.early_data {
                    self.drop_accepted_early_data(sealed as usize);
                    self.early_data = EarlyDataState::Accepted;
                } else {
                    self.early_data = EarlyDataState::Rejected;
                }
            }
            _ => self.phases.handshake_ns = handshake_ns,
        }
        self.send_greeting(now);
        Ok(())
    }

    /// Marks the connection as open if its greeting has been answered; returns true once, when calls may start.
    pub(super) fn mark_open_if_ready(&mut self, now: Time) -> bool {
        if self.state != ConnectionState::Greeting || !self.data.driver.is_ready() {
            return false;
        }
        self.phases.ready_ns = self.end_phase(now);
        self.state = ConnectionState::Open;
        true
    }

    /// Gives the connection a spare outbox with allocated memory, if there is one, before the connection writes.
    #[inline]
    pub(super) fn borrow_outbox(&mut self, spare: &mut Vec<Vec<u8>>) {
        if self.out.capacity() == 0
            && let Some(outbox) = spare.pop()
        {
            self.out = outbox;
        }
    }

    /// Returns how many calls may start now; 0 while more than [`MAX_UNSENT_BYTES`] bytes are unsent.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        if self.state != ConnectionState::Open
            || self.out.len() > MAX_UNSENT_BYTES
            || self.write_failed
        {
            return 0;
        }
        self.data
            .driver
            .capacity()
            .min(usize::try_from(self.data.calls_left).unwrap_or(usize::MAX))
    }

    /// Returns whether the connection has reached the plan's limit of calls or its lifetime.
    pub(super) fn is_used_up(&self, now: Time) -> bool {
        self.data.calls_left == 0 || now >= self.data.expires_at
    }

    /// Reads the available bytes, up to a limit for fairness, and passes them to the driver. Also returns the time
    /// after the last read.
    #[inline]
    pub(super) fn receive<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        reading: &mut ReadContext<'_>,
    ) -> (Result<ReadProgress, ConnectionLoss>, Time) {
        /// Number of bytes that a cheap driver processes so fast that the clock need not be read again.
        const MAX_UNTIMED_READ_BYTES: usize = 8 * 1024;
        let was_open = self.state == ConnectionState::Open;
        let mut read = ReadStats::default();
        let received = self.receive_all(network, reading, &mut read);
        let light = was_open && self.data.driver.has_negligible_receive_time();
        match read.bytes {
            1..=MAX_UNTIMED_READ_BYTES if light => (received, read.at),
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
        const MAX_READS_PER_EVENT: usize = 8;
        for _ in 0..MAX_READS_PER_EVENT {
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
                    let loss = self.loss_from_read_error(&e);
                    return Err(self.attribute_loss_to_client_cert(reading.tls, loss));
                }
            };
            let now = network.now();
            read.bytes += got;
            read.at = now;
            if got == 0 {
                let cut_off = self.tls.is_some() && self.data.in_flight > 0;
                let loss = if let Some(error) = self.write_error() {
                    self.loss_from_read_error(&error)
                } else if cut_off {
                    truncation_loss()
                } else {
                    self.loss_at_end_of_stream(now, reading.events)
                };
                return Err(self.attribute_loss_to_client_cert(reading.tls, loss));
            }
            let before = (
                self.unsent_bytes(),
                self.data.driver.appended_payload_bytes(),
            );
            self.process_bytes(got, reading, now)?;
            let carried = (self.data.driver.appended_payload_bytes() - before.1) as usize;
            let answers = self.unsent_bytes().saturating_sub(before.0 + carried);
            self.add_reply_bytes(answers);
            // A short read means that the socket is empty; further bytes cause a new event.
            if got < reading.buffer.len() && reading.until == ReadUntil::ShortRead {
                self.adjust_low_water(network, reading.buffer.len(), read.at);
                return Ok(ReadProgress::Drained);
            }
        }
        Ok(ReadProgress::More)
    }

    /// Sets a low-water mark in the middle of a long answer, so that the worker is woken only for a full buffer or the
    /// last bytes of the answer. The kernel reports end of stream regardless of the mark;
    /// [`DriverConnection::has_missed_low_water`] detects a shorter TLS record, such as an alert.
    fn adjust_low_water<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        most: usize,
        now: Time,
    ) {
        /// Minimum mark in bytes; smaller ones save less than the two system calls cost.
        const MIN_LOW_WATER_BYTES: u64 = 32 * 1024;
        let promised = self.data.driver.awaited_bytes();
        if promised < MIN_LOW_WATER_BYTES && self.data.low_water == 1 {
            return;
        }
        let sure = match &self.tls {
            Some(session) => session.min_incoming_bytes(promised),
            None => promised,
        };
        let wanted = if sure < MIN_LOW_WATER_BYTES || now < self.data.no_low_water_until {
            1
        } else {
            sure.min(most as u64) as u32
        };
        self.data.has_new_bytes = true;
        if let Some(socket) = &mut self.socket
            && wanted != self.data.low_water
        {
            network.set_low_water(socket, wanted as usize);
            self.data.low_water = wanted;
        }
    }

    /// Returns whether data shorter than the mark may arrive unnoticed. Without TLS, only end of stream can be shorter,
    /// and it is always reported.
    #[inline]
    pub(super) fn needs_low_water_check(&self) -> bool {
        self.data.low_water > 1 && self.tls.is_some()
    }

    /// Returns whether no bytes were read since the last check although a mark is set. No mark is then set for a while:
    /// bytes arrive slowly, so reading each segment is cheap.
    pub(super) fn has_missed_low_water(&mut self, now: Time) -> bool {
        /// Time for which no mark is set after a missed one.
        const LOW_WATER_PAUSE: Duration = Duration::from_millis(200);
        if self.data.low_water == 1 || std::mem::take(&mut self.data.has_new_bytes) {
            return false;
        }
        self.data.no_low_water_until = now + LOW_WATER_PAUSE;
        true
    }

    #[inline]
    fn process_bytes(
        &mut self,
        got: usize,
        reading: &mut ReadContext<'_>,
        now: Time,
    ) -> Result<(), ConnectionLoss> {
        if self.tls.is_some() {
            return self.process_records(got, reading, now);
        }
        let bytes = &reading.buffer[..got];
        self.trace_received_bytes(bytes);
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
        let opened = self.decrypt_records(&mut session, got, reading, now);
        self.tls = Some(session);
        if opened? {
            let loss = self.loss_at_end_of_stream(now, reading.events);
            return Err(self.attribute_loss_to_client_cert(reading.tls, loss));
        }
        Ok(())
    }

    /// Decrypts records and passes their content to the driver; returns `true` if the peer has closed its side.
    #[inline]
    fn decrypt_records(
        &mut self,
        session: &mut TlsSession,
        got: usize,
        reading: &mut ReadContext<'_>,
        now: Time,
    ) -> Result<bool, ConnectionLoss> {
        let tls = reading.tls;
        let mut bytes = &mut reading.buffer[..got];
        if self.state == ConnectionState::Handshaking {
            bytes =
                (session.handshake(bytes)).map_err(|fault| explain_session_error(tls, &fault))?;
            if !session.is_handshaking() {
                self.on_handshake_done(session, reading.alpn, tls, now)?;
            }
        }
        let mut take = |plain: &[u8]| {
            self.trace_received_bytes(plain);
            if let Some(tls) = tls {
                tls.record_client_acceptance();
            }
            let driver = &mut self.data.driver;
            Ok(driver.receive(plain, now, &mut self.out, reading.events)?)
        };
        session.open(bytes, &mut take, |fault| explain_session_error(tls, &fault))
    }

    /// Returns the failure of a connection after an orderly end of stream.
    fn loss_at_end_of_stream(&mut self, now: Time, events: &mut Vec<Event>) -> ConnectionLoss {
        match self.state {
            ConnectionState::Resolving
            | ConnectionState::Connecting
            | ConnectionState::Handshaking => {
                ConnectionLoss::new(Outcome::TlsFailed, CLOSED_IN_HANDSHAKE_MESSAGE)
            }
            ConnectionState::Greeting | ConnectionState::Open | ConnectionState::Draining => {
                match self.data.driver.receive_end(now, events) {
                    Err(e) => e.into(),
                    Ok(()) => ConnectionLoss::closed_by_peer(),
                }
            }
        }
    }

    fn loss_from_read_error(&self, e: &io::Error) -> ConnectionLoss {
        let during = match self.state {
            ConnectionState::Handshaking => " during the TLS handshake",
            ConnectionState::Greeting => " before the protocol's greeting",
            _ => "",
        };
        ConnectionLoss::from_io_error(during, e)
    }

    /// Releases the TLS session's buffers and keys when nothing is in flight.
    pub(super) fn release_idle_memory(&mut self) {
        if self.state == ConnectionState::Open
            && self.data.in_flight == 0
            && self.out.is_empty()
            && let Some(session) = &mut self.tls
        {
            session.start_resting();
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

/// Returns the failure for a missing close_notify (RFC 8446 §6.1), without which the client cannot tell whether the
/// data is complete.
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
