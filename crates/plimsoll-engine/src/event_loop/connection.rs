//! One connection of a worker: its socket, its TLS session, and how far it has come.
//!
//! Buffers belong to the worker; a connection keeps only what it could not write, and an
//! idle one keeps nothing. What it owes to a peer that does not read is bounded: beyond
//! [`MAX_OWED`] the socket is not read until that has gone.

use std::io::{self, IoSlice};
use std::time::Duration;

use plimsoll_model::{ConnectPhases, Outcome, Time};

use crate::address::Lack;
use crate::addresses::NO_ADDRESS;
use crate::driver::{Direction, Tracer};
use crate::loss::Loss;
use crate::network::{Network, SocketWriter, Token};
use crate::tls::{SessionError, TlsClient, TlsSession};

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

/// Whether a request goes out with the first bytes of TLS (0-RTT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Early {
    No,
    /// It may; so many bytes of the outbox have been sealed for it.
    Sent(u32),
    Accepted,
    /// It had to be sent again after the handshake.
    Rejected,
}

/// What each call needs comes first, in as few cache lines as it takes: with thousands of connections none of them is in
/// the cache when the turn of its connection comes. What only connecting needs comes last.
#[repr(C)]
pub(crate) struct Connection<O, S> {
    pub(crate) generation: u32,
    /// Of its address, among those of its target. [`NO_ADDRESS`] before it has one.
    pub(crate) place: u32,
    pub(crate) socket: Option<S>,
    /// Of the unsent bytes, at most so many answer what the peer sent.
    owed: u32,
    /// `None` over plain TCP.
    pub(crate) tls: Option<Box<TlsSession>>,
    /// Bytes of the protocol that have not been written (or sealed) yet.
    pub(crate) out: Vec<u8>,
    written: usize,
    traced: Option<Box<Traced>>,
    pub(crate) early: Early,
    pub(crate) state: State,
    /// By the number that the network has for it.
    pub(crate) target: u8,
    pub(crate) write_failed: bool,
    /// Not read for the time being: it owes the peer too much.
    choked: bool,
    /// The errno of the write that failed; 0: none did, or it had no number. The kernel reports it once, and an end to
    /// whoever reads after it.
    write_errno: u16,
    /// What the client keeps with it.
    pub(crate) own: O,
    phase_began: Time,
    pub(crate) phases: ConnectPhases,
}

/// A connection whose bytes are explained.
struct Traced {
    tracer: Box<dyn Tracer>,
    /// Bytes of the outbox that were.
    sent: usize,
}

impl<O, S> Connection<O, S> {
    pub(crate) fn new(generation: u32, target: u8, own: O, now: Time) -> Connection<O, S> {
        Connection {
            own,
            generation,
            state: State::Resolving,
            target,
            place: NO_ADDRESS,
            socket: None,
            tls: None,
            out: Vec::new(),
            written: 0,
            traced: None,
            write_failed: false,
            choked: false,
            write_errno: 0,
            owed: 0,
            early: Early::No,
            phase_began: now,
            phases: ConnectPhases::default(),
        }
    }

    #[inline]
    pub(crate) fn token(&self, index: u32) -> Token {
        Token(u64::from(self.generation) << 32 | u64::from(index))
    }

    /// Nanoseconds since the last phase ended, and the next one begins.
    pub(crate) fn lap(&mut self, now: Time) -> u64 {
        let nanos = now.since(self.phase_began);
        self.phase_began = now;
        nanos
    }

    pub(crate) fn resolved(&mut self, now: Time) {
        self.phases.resolve_ns = self.lap(now);
        self.state = State::Connecting;
    }

    /// TCP is up. Over TLS the handshake begins.
    pub(crate) fn connected(&mut self, tls: Option<TlsSession>, now: Time) {
        self.phases.connect_ns = self.lap(now);
        if let Some(session) = tls {
            self.tls = Some(Box::new(session));
            self.state = State::Handshaking;
        }
    }

    /// How long it has been open.
    pub(crate) fn age(&self, now: Time) -> Duration {
        Duration::from_nanos(now.since(self.phase_began))
    }

    /// Bytes that wait for the socket. What the TLS library holds is not counted: it takes
    /// no more while it holds any.
    pub(crate) fn unsent(&self) -> usize {
        let sealed = self.tls.as_ref().map_or(0, |session| session.unsent());
        self.out.len() - self.written + sealed
    }

    /// What was owed has gone, or most of it: there may be something to read that nobody
    /// reports again. True once.
    pub(crate) fn is_relieved(&mut self) -> bool {
        self.choked && self.owed <= MAX_OWED / 2 && std::mem::take(&mut self.choked)
    }

    /// The peer is owed so many bytes more.
    #[inline]
    pub(crate) fn owe(&mut self, bytes: usize) {
        self.owed = self.owed.saturating_add(bytes as u32);
    }

    /// The peer is owed all that waits. What cannot be sent is owed no longer.
    pub(crate) fn owe_all(&mut self) {
        self.owed = 0;
        if !self.write_failed {
            self.owe(self.unsent());
        }
    }

    /// Takes bytes off the socket; `None`: it has none, or is not read for the time being.
    #[inline]
    pub(crate) fn read<N: Network<Socket = S>>(
        &mut self,
        network: &mut N,
        buffer: &mut [u8],
    ) -> Option<io::Result<usize>> {
        if self.owed > MAX_OWED {
            self.choked = true;
            return None;
        }
        let socket = self.socket.as_mut()?;
        Some(network.read(socket, buffer))
    }

    /// Write what is waiting: everything in one system call where the socket takes it.
    #[inline]
    pub(crate) fn flush<N: Network<Socket = S>>(&mut self, network: &mut N) {
        if self.traced.is_some() {
            self.write_traced(network)
        } else {
            self.write(network)
        }
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
                    let more = session.seal_early(&self.out[sealed as usize..]);
                    // No more than a ticket allows, which is a `u32` (RFC 8446 §4.6.1).
                    self.early = Early::Sent(sealed + more as u32);
                }
                // Sealing more while the socket is full would only move the backlog.
                let ready = self.state != State::Handshaking && session.has_room();
                if ready && !self.out.is_empty() {
                    session.seal(&self.out);
                    self.out.clear();
                }
                let mut writer = SocketWriter { network, socket };
                let mut flushed = session.flush(&mut writer);
                if flushed.is_ok() && self.state != State::Handshaking && !self.out.is_empty() {
                    session.seal(&self.out);
                    self.out.clear();
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
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => self.write_failed(&e),
        }
    }

    #[cold]
    fn write_failed(&mut self, e: &io::Error) {
        self.write_failed = true;
        let errno = e.raw_os_error().unwrap_or(0);
        self.write_errno = u16::try_from(errno).unwrap_or(0);
    }

    /// Why writing failed, where the peer did not just close: of a broken pipe the reason is yet to be read.
    pub(crate) fn write_error(&self) -> Option<io::Error> {
        let errno = i32::from(self.write_errno);
        (errno != 0 && errno != libc::EPIPE).then(|| io::Error::from_raw_os_error(errno))
    }

    /// Returns why a connection is lost that could not be written to, and on which nothing came that says it.
    pub(crate) fn write_loss(&self) -> Loss {
        let Some(error) = self.write_error() else {
            return Loss::new(Outcome::Reset, "the connection was reset while writing");
        };
        match Lack::of_write(&error) {
            Some(lack) => Loss::new(
                lack.outcome(),
                format!("the connection was lost while writing: {lack}"),
            ),
            None => Loss::of_error(" while writing", &error),
        }
    }

    /// An outbox that is never quite empty must not keep all that went through it. Rare
    /// enough that each byte is moved once at most.
    fn forget_written(&mut self) {
        if self.written > self.out.len() / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// Sends what is left as far as the socket takes it without waiting, and a last word over TLS
    /// (RFC 8446 §6.1).
    pub(crate) fn farewell<N: Network<Socket = S>>(&mut self, network: &mut N) {
        self.flush(network);
        if let (State::Greeting | State::Open | State::Draining, Some(session)) =
            (self.state, &mut self.tls)
        {
            session.close_notify();
            self.flush(network);
        }
    }

    /// TLS has taken so many bytes of the outbox for good.
    pub(crate) fn forget_sealed(&mut self, bytes: usize) {
        self.out.drain(..bytes);
        if let Some(traced) = &mut self.traced {
            traced.sent = traced.sent.saturating_sub(bytes);
        }
    }

    /// Explains what goes over it from now on.
    pub(crate) fn trace(&mut self, tracer: Box<dyn Tracer>) {
        self.traced = Some(Box::new(Traced { tracer, sent: 0 }));
    }

    /// Explains what the driver has put into the outbox since the last call, and writes.
    #[cold]
    fn write_traced<N: Network<Socket = S>>(&mut self, network: &mut N) {
        if let (Some(traced), false) = (&mut self.traced, self.write_failed) {
            let new = self.out.get(traced.sent..).unwrap_or_default();
            traced.explain(Direction::Sent, new, self.generation);
        }
        self.write(network);
        if let Some(traced) = &mut self.traced {
            traced.sent = self.out.len();
        }
    }

    #[inline]
    pub(crate) fn trace_received(&mut self, bytes: &[u8]) {
        if let Some(traced) = &mut self.traced {
            traced.explain(Direction::Received, bytes, self.generation);
        }
    }
}

impl Traced {
    #[cold]
    fn explain(&mut self, direction: Direction, bytes: &[u8], connection: u32) {
        let mut lines = Vec::new();
        self.tracer.bytes(direction, bytes, &mut lines);
        let arrow = match direction {
            Direction::Sent => '>',
            Direction::Received => '<',
        };
        for line in lines {
            tracing::trace!(target: "plimsoll::wire", connection, "{arrow} {line}");
        }
    }
}

/// The loss of a connection whose session of `tls` failed.
pub(crate) fn explained(tls: Option<&TlsClient>, fault: &SessionError) -> Loss {
    let known = tls.map(|tls| tls.explained(fault).into());
    known.unwrap_or_else(|| Loss::new(Outcome::TlsFailed, fault.to_string()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::clock::Clock;
    use crate::network::os::{OsNetwork, SocketOptions};

    #[derive(Clone, Default)]
    struct Explained(Arc<Mutex<Vec<u8>>>);

    impl Tracer for Explained {
        fn bytes(&mut self, _: Direction, bytes: &[u8], _: &mut Vec<String>) {
            self.0.lock().unwrap().extend_from_slice(bytes);
        }
    }

    #[test]
    fn early_tls_bytes_are_traced_once() {
        let options = SocketOptions::default();
        let mut network = OsNetwork::new(Clock::new(), &[], options, 0).unwrap();
        let explained = Explained::default();
        let mut connection = Connection::<(), TcpStream>::new(0, 0, (), Time::ZERO);
        connection.trace(Box::new(explained.clone()));
        connection.out.extend_from_slice(b"early");
        // Without a socket all of it stays.
        connection.flush(&mut network);
        connection.forget_sealed(3);
        connection.out.extend_from_slice(b" and late");
        connection.flush(&mut network);
        connection.flush(&mut network);
        assert_eq!(*explained.0.lock().unwrap(), b"early and late");
    }
}
