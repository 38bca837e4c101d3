//! One connection of a worker: its socket, its TLS session and its state. Both clients of the event loop use
//! [`Connection`].
//!
//! Buffers belong to the worker. A connection stores only unsent bytes, so it stores nothing when it is idle. Replies
//! to a peer that does not read are bounded: above [`MAX_REPLY_BYTES`], the socket is not read until they have been
//! sent.

use std::io::{self, IoSlice};
use std::time::Duration;

use plimsoll_model::{ConnectPhases, Outcome, Time};

use crate::driver::{Direction, Tracer};
use crate::tls::{SessionError, TlsClient, TlsSession};
use crate::transport::address::LocalResourceError;
use crate::transport::addresses::NO_ADDRESS;
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::{Network, SocketToken, SocketWriter};

/// Number of bytes of unsent replies (acknowledgements of PING and SETTINGS, answers to heartbeats) above which reading
/// is paused. The replies to one more read may exceed this number.
pub(crate) const MAX_REPLY_BYTES: u32 = 64 << 10;

/// The state of a connection. The variants are in the order in which a connection passes through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Resolving,
    Connecting,
    Handshaking,
    /// The transport is established; the protocol's greeting has not been answered.
    Greeting,
    Open,
    /// Accepts no new calls and is closed when its last call has ended.
    Draining,
}

impl ConnectionState {
    /// Describes, for error messages, why a call still waits for a connection in this state.
    pub(crate) fn wait_reason(self) -> &'static str {
        match self {
            ConnectionState::Resolving => "the host name to resolve",
            ConnectionState::Connecting => "the TCP connection",
            ConnectionState::Handshaking => "the TLS handshake",
            ConnectionState::Greeting => {
                "the server's greeting (it accepted the connection and sent nothing)"
            }
            ConnectionState::Open | ConnectionState::Draining => "the server to accept a call",
        }
    }
}

/// The use of TLS early data for a connection's first request (0-RTT, RFC 8446 §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlyDataState {
    Unused,
    /// Early data is used; contains the number of bytes of the outbox that have been sealed as early data.
    Sent(u32),
    Accepted,
    /// The server rejected the early data, so the request was sent again after the handshake.
    Rejected,
}

/// One connection. Fields that every call needs come first, in as few cache lines as possible: with thousands of
/// connections, none of them is cached when a connection is served. Fields used only while connecting come last.
#[repr(C)]
pub(crate) struct Connection<O, S> {
    pub(crate) generation: u32,
    /// Index of the connection's address among those of its target; [`NO_ADDRESS`] before one is chosen.
    pub(crate) address_index: u32,
    pub(crate) socket: Option<S>,
    /// Upper bound of the number of unsent bytes that reply to the peer's messages.
    reply_bytes: u32,
    /// `None` over plain TCP.
    pub(crate) tls: Option<Box<TlsSession>>,
    /// Bytes of the protocol that have not been written to the socket, or sealed by TLS, yet.
    pub(crate) out: Vec<u8>,
    written: usize,
    trace: Option<Box<ConnectionTrace>>,
    pub(crate) early_data: EarlyDataState,
    pub(crate) state: ConnectionState,
    /// The target's index among the targets of the [`Network`].
    pub(crate) target: u8,
    pub(crate) write_failed: bool,
    /// Whether reading is paused because too many reply bytes are unsent.
    read_paused: bool,
    /// The errno of the failed write; 0 if no write failed, or if the error had no errno. The kernel reports an error
    /// only once: later reads return end of stream.
    write_errno: u16,
    /// The client's state for this connection.
    pub(crate) data: O,
    phase_began: Time,
    pub(crate) phases: ConnectPhases,
}

/// State for tracing a connection's bytes.
struct ConnectionTrace {
    tracer: Box<dyn Tracer>,
    /// Number of bytes of the outbox that have been traced.
    sent: usize,
}

impl<O, S> Connection<O, S> {
    pub(crate) fn new(generation: u32, target: u8, own: O, now: Time) -> Connection<O, S> {
        Connection {
            data: own,
            generation,
            state: ConnectionState::Resolving,
            target,
            address_index: NO_ADDRESS,
            socket: None,
            tls: None,
            out: Vec::new(),
            written: 0,
            trace: None,
            write_failed: false,
            read_paused: false,
            write_errno: 0,
            reply_bytes: 0,
            early_data: EarlyDataState::Unused,
            phase_began: now,
            phases: ConnectPhases::default(),
        }
    }

    #[inline]
    pub(crate) fn token(&self, index: u32) -> SocketToken {
        SocketToken(u64::from(self.generation) << 32 | u64::from(index))
    }

    /// Ends the current phase, begins the next, and returns the length of the ended one in nanoseconds.
    pub(crate) fn end_phase(&mut self, now: Time) -> u64 {
        let nanos = now.since(self.phase_began);
        self.phase_began = now;
        nanos
    }

    pub(crate) fn on_resolved(&mut self, now: Time) {
        self.phases.resolve_ns = self.end_phase(now);
        self.state = ConnectionState::Connecting;
    }

    /// Records that the TCP connection is established and begins the TLS handshake, if there is one.
    pub(crate) fn on_connected(&mut self, tls: Option<TlsSession>, now: Time) {
        self.phases.connect_ns = self.end_phase(now);
        if let Some(session) = tls {
            self.tls = Some(Box::new(session));
            self.state = ConnectionState::Handshaking;
        }
    }

    /// Returns how long the connection has been open.
    pub(crate) fn age(&self, now: Time) -> Duration {
        Duration::from_nanos(now.since(self.phase_began))
    }

    /// Returns the number of unsent bytes, except for those inside the TLS library, which accepts no more while it has
    /// any.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let sealed = self
            .tls
            .as_ref()
            .map_or(0, |session| session.unsent_bytes());
        self.out.len() - self.written + sealed
    }

    /// Returns true once when reading may resume after a pause. There may be unread bytes that no further event will
    /// report.
    pub(crate) fn take_resumed_flag(&mut self) -> bool {
        self.read_paused
            && self.reply_bytes <= MAX_REPLY_BYTES / 2
            && std::mem::take(&mut self.read_paused)
    }

    /// Counts another `bytes` bytes of the outbox as replies.
    #[inline]
    pub(crate) fn add_reply_bytes(&mut self, bytes: usize) {
        self.reply_bytes = self.reply_bytes.saturating_add(bytes as u32);
    }

    /// Counts all unsent bytes as replies; after a write error, none.
    pub(crate) fn count_unsent_as_replies(&mut self) {
        self.reply_bytes = 0;
        if !self.write_failed {
            self.add_reply_bytes(self.unsent_bytes());
        }
    }

    /// Reads from the socket; `None` if it has none or reading is paused.
    #[inline]
    pub(crate) fn read<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        buffer: &mut [u8],
    ) -> Option<io::Result<usize>> {
        if self.reply_bytes > MAX_REPLY_BYTES {
            self.read_paused = true;
            return None;
        }
        let socket = self.socket.as_mut()?;
        Some(network.read(socket, buffer))
    }

    /// Writes the pending bytes, in one system call if the socket accepts them all.
    #[inline]
    pub(crate) fn flush<N: Network<Socket = S>>(&mut self, network: &mut N) {
        if self.trace.is_some() {
            self.trace_and_write(network)
        } else {
            self.write(network)
        }
        if self.write_failed {
            // Replies that cannot be sent must not pause reading: the peer's last bytes may explain the failure.
            self.reply_bytes = 0;
        } else if self.reply_bytes > 0 {
            self.reply_bytes = self
                .reply_bytes
                .min(u32::try_from(self.unsent_bytes()).unwrap_or(u32::MAX));
        }
    }

    #[inline]
    fn write<N: Network<Socket = S>>(&mut self, network: &mut N) {
        if self.write_failed {
            return;
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
                            return self.drop_written_bytes();
                        }
                        Err(e) => return self.record_write_error(&e),
                    }
                }
                Ok(())
            }
            Some(session) => {
                // Early data stays in the outbox until the server has accepted it.
                if let (ConnectionState::Handshaking, EarlyDataState::Sent(sealed)) =
                    (self.state, self.early_data)
                {
                    let more = session.seal_early_data(&self.out[sealed as usize..]);
                    // The cast is lossless: the length is bounded by the ticket's max_early_data_size, a u32 (RFC 8446
                    // §4.6.1).
                    self.early_data = EarlyDataState::Sent(sealed + more as u32);
                }
                // While the socket is full, sealing would only move the unsent bytes to another buffer.
                let ready = self.state != ConnectionState::Handshaking && session.has_room();
                if ready && !self.out.is_empty() {
                    session.seal(&self.out);
                    self.out.clear();
                }
                let mut writer = SocketWriter { network, socket };
                let mut flushed = session.flush(&mut writer);
                if flushed.is_ok()
                    && self.state != ConnectionState::Handshaking
                    && !self.out.is_empty()
                {
                    session.seal(&self.out);
                    self.out.clear();
                    flushed = session.flush(&mut writer);
                }
                flushed
            }
        };
        match flushed {
            Ok(()) => {
                // During a TLS handshake the outbox is kept until the keys are available.
                if self.state != ConnectionState::Handshaking {
                    self.out.clear();
                    self.written = 0;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => self.record_write_error(&e),
        }
    }

    #[cold]
    fn record_write_error(&mut self, e: &io::Error) {
        self.write_failed = true;
        let errno = e.raw_os_error().unwrap_or(0);
        self.write_errno = u16::try_from(errno).unwrap_or(0);
    }

    /// Returns the write error; `None` for EPIPE, since reading reveals its cause.
    pub(crate) fn write_error(&self) -> Option<io::Error> {
        let errno = i32::from(self.write_errno);
        (errno != 0 && errno != libc::EPIPE).then(|| io::Error::from_raw_os_error(errno))
    }

    /// Returns the loss of a connection after a write error. Only used if no received bytes explain the loss better.
    pub(crate) fn loss_from_write_error(&self) -> ConnectionLoss {
        let Some(error) = self.write_error() else {
            return ConnectionLoss::new(Outcome::Reset, "the connection was reset while writing");
        };
        match LocalResourceError::from_write_error(&error) {
            Some(shortage) => ConnectionLoss::new(
                shortage.outcome(),
                format!("the connection was lost while writing: {shortage}"),
            ),
            None => ConnectionLoss::from_io_error(" while writing", &error),
        }
    }

    /// Gives back the memory of the outbox if it is empty, such as that of a large request that had to wait for room.
    pub(crate) fn release_empty_outbox(&mut self) {
        if self.out.is_empty() {
            self.out = Vec::new();
        }
    }

    /// Drops the written prefix of an outbox that never becomes empty. This happens only when more than half is
    /// written, so that each byte is moved at most once on average.
    fn drop_written_bytes(&mut self) {
        if self.written > self.out.len() / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// Sends the pending bytes and, over TLS, close_notify (RFC 8446 §6.1), as far as the socket accepts them without
    /// blocking.
    pub(crate) fn close_gracefully<N: Network<Socket = S>>(&mut self, network: &mut N) {
        self.flush(network);
        if let (
            ConnectionState::Greeting | ConnectionState::Open | ConnectionState::Draining,
            Some(session),
        ) = (self.state, &mut self.tls)
        {
            session.queue_close_notify();
            self.flush(network);
        }
    }

    /// Removes `bytes` from the outbox that were accepted as early data.
    pub(crate) fn drop_accepted_early_data(&mut self, bytes: usize) {
        self.out.drain(..bytes);
        if let Some(traced) = &mut self.trace {
            traced.sent = traced.sent.saturating_sub(bytes);
        }
    }

    /// Traces all further bytes with `tracer`.
    pub(crate) fn start_tracing(&mut self, tracer: Box<dyn Tracer>) {
        self.trace = Some(Box::new(ConnectionTrace { tracer, sent: 0 }));
    }

    /// Traces the bytes that the driver has added to the outbox since the last call, and writes.
    #[cold]
    fn trace_and_write<N: Network<Socket = S>>(&mut self, network: &mut N) {
        if let (Some(traced), false) = (&mut self.trace, self.write_failed) {
            let new = self.out.get(traced.sent..).unwrap_or_default();
            traced.log_traffic(Direction::Sent, new, self.generation);
        }
        self.write(network);
        if let Some(traced) = &mut self.trace {
            traced.sent = self.out.len();
        }
    }

    #[inline]
    pub(crate) fn trace_received_bytes(&mut self, bytes: &[u8]) {
        if let Some(traced) = &mut self.trace {
            traced.log_traffic(Direction::Received, bytes, self.generation);
        }
    }
}

impl ConnectionTrace {
    #[cold]
    fn log_traffic(&mut self, direction: Direction, bytes: &[u8], connection: u32) {
        let mut lines = Vec::new();
        self.tracer.trace_bytes(direction, bytes, &mut lines);
        let arrow = match direction {
            Direction::Sent => '>',
            Direction::Received => '<',
        };
        for line in lines {
            tracing::trace!(target: "plimsoll::wire", connection, "{arrow} {line}");
        }
    }
}

/// Returns the failure of a connection whose TLS session failed with `fault`.
pub(crate) fn explain_session_error(
    tls: Option<&TlsClient>,
    fault: &SessionError,
) -> ConnectionLoss {
    let known = tls.map(|tls| tls.classify_session_error(fault).into());
    known.unwrap_or_else(|| ConnectionLoss::new(Outcome::TlsFailed, fault.to_string()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::clock::Clock;
    use crate::transport::network::os::{OsNetwork, SocketOptions};

    #[derive(Clone, Default)]
    struct RecordingTracer(Arc<Mutex<Vec<u8>>>);

    impl Tracer for RecordingTracer {
        fn trace_bytes(&mut self, _: Direction, bytes: &[u8], _: &mut Vec<String>) {
            self.0.lock().unwrap().extend_from_slice(bytes);
        }
    }

    #[test]
    fn early_tls_bytes_are_traced_once() {
        let options = SocketOptions::default();
        let mut network = OsNetwork::new(Clock::new(), &[], options, 0).unwrap();
        let explained = RecordingTracer::default();
        let mut connection = Connection::<(), TcpStream>::new(0, 0, (), Time::ZERO);
        connection.start_tracing(Box::new(explained.clone()));
        connection.out.extend_from_slice(b"early");
        // Nothing can be written without a socket.
        connection.flush(&mut network);
        connection.drop_accepted_early_data(3);
        connection.out.extend_from_slice(b" and late");
        connection.flush(&mut network);
        connection.flush(&mut network);
        assert_eq!(*explained.0.lock().unwrap(), b"early and late");
    }

    #[test]
    fn empty_outbox_has_no_memory() {
        let mut connection = Connection::<(), ()>::new(0, 0, (), Time::ZERO);
        connection.out = Vec::with_capacity(1 << 20);
        connection.out.push(1);
        connection.release_empty_outbox();
        assert!(connection.out.capacity() >= 1 << 20, "it waits for room");
        connection.out.clear();
        connection.release_empty_outbox();
        assert_eq!(connection.out.capacity(), 0);
    }
}
