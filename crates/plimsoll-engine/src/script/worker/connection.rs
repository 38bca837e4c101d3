//! One link of a script: its socket, its TLS session, and what could not be written yet.
//! While that is more than [`MAX_OWED`] bytes the socket is not read: what a script sends
//! unasked is little, so it answers what the peer sent.

use std::io::{self, IoSlice};

use plimsoll_model::{Outcome, Time};

use crate::addresses::NOWHERE;
use crate::network::Network;
use crate::tls::TlsSession;
use crate::worker::{MAX_OWED, SocketWriter};

/// How far a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There is no socket, or TCP is not up.
    Connecting,
    Handshaking,
    Up,
}

pub(super) struct Connection<S> {
    pub(super) socket: Option<S>,
    pub(super) state: State,
    /// `None` over plain TCP.
    pub(super) tls: Option<Box<TlsSession>>,
    /// Of its address, or of the one it had last; [`NOWHERE`] before it has one.
    pub(super) place: u32,
    /// When it was asked for.
    pub(super) began: Time,
    /// Attempts at several addresses race to become its socket.
    pub(super) is_racing: bool,
    /// Distinguishes this connection from those that its link had before.
    pub(super) generation: u8,
    /// What the socket did not take.
    out: Vec<u8>,
    /// Over TLS: bytes that were sealed since nothing waited.
    sealed: usize,
    /// Not read for the time being.
    choked: bool,
    /// A write found it reset. The kernel reports that once, and an end to whoever reads
    /// after it.
    pub(super) was_reset: bool,
}

impl<S> Default for Connection<S> {
    fn default() -> Connection<S> {
        Connection {
            socket: None,
            state: State::Connecting,
            tls: None,
            place: NOWHERE,
            began: Time::ZERO,
            is_racing: false,
            generation: 0,
            out: Vec::new(),
            sealed: 0,
            choked: false,
            was_reset: false,
        }
    }
}

impl<S> Connection<S> {
    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up && self.socket.is_some()
    }

    /// Back to nothing; what is still around of the old connection names it no more.
    pub(super) fn reset(&mut self) -> (Option<S>, State) {
        let old = (self.socket.take(), self.state);
        *self = Connection {
            generation: self.generation.wrapping_add(1),
            place: self.place,
            ..Connection::default()
        };
        old
    }

    /// Writes `bytes`, which it empties, behind what waits already; keeps what the socket
    /// does not take. A connection that fails shows when it is read.
    pub(super) fn send<N: Network<Socket = S>>(&mut self, network: &mut N, bytes: &mut Vec<u8>) {
        if !self.is_up() {
            return bytes.clear();
        }
        if let Some(session) = &mut self.tls {
            session.seal(bytes);
            self.sealed += bytes.len();
            bytes.clear();
            return self.flush(network);
        }
        let mut written = Ok(0);
        if self.out.is_empty()
            && let Some(socket) = &mut self.socket
        {
            written = write(network, socket, bytes);
        }
        match written {
            Ok(written) => self.out.extend_from_slice(&bytes[written..]),
            Err(e) => self.write_failed(&e),
        }
        bytes.clear();
    }

    /// Whether too much waits to be written for more to be read.
    pub(super) fn is_choked(&mut self) -> bool {
        self.choked = self.out.len() + self.sealed > MAX_OWED as usize;
        self.choked
    }

    /// It was, and is no more: there may be something to read that is not reported again.
    pub(super) fn is_relieved(&mut self) -> bool {
        self.choked && !self.is_choked()
    }

    /// Writes what waits, as far as the socket takes it.
    pub(super) fn flush<N: Network<Socket = S>>(&mut self, network: &mut N) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        if let Some(session) = &mut self.tls {
            // What is not taken waits in the session.
            let flushed = session.flush(&mut SocketWriter { network, socket });
            match flushed {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Ok(()) => self.sealed = 0,
                Err(e) => self.write_failed(&e),
            }
            return;
        }
        if self.out.is_empty() {
            return;
        }
        match write(network, socket, &self.out) {
            Ok(written) if written < self.out.len() => drop(self.out.drain(..written)),
            Ok(_) => self.out = Vec::new(),
            Err(e) => self.write_failed(&e),
        }
    }

    /// A failure shows when it is read, so nothing must keep it from that.
    #[cold]
    fn write_failed(&mut self, e: &io::Error) {
        self.was_reset = e.kind() == io::ErrorKind::ConnectionReset;
        self.out = Vec::new();
        self.sealed = 0;
    }

    /// A last word over TLS before the socket is closed (RFC 8446 §6.1).
    pub(super) fn farewell<N: Network<Socket = S>>(&mut self, network: &mut N) {
        if self.state == State::Up
            && let Some(session) = &mut self.tls
        {
            session.close_notify();
            self.flush(network);
        }
    }

    /// Takes bytes off the socket, over TLS: what they hold is put into `plain`.
    /// `Ok(true)`: the peer has closed its side.
    ///
    /// # Errors
    /// What is wrong with the handshake or the records, as an outcome and as a sentence.
    pub(super) fn open(
        &mut self,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
    ) -> Result<bool, (Outcome, String)> {
        let Some(session) = &mut self.tls else {
            return Ok(false);
        };
        let mut take = |piece: &[u8]| -> Result<(), (Outcome, String)> {
            plain.extend_from_slice(piece);
            Ok(())
        };
        let mut rest = bytes;
        if session.is_handshaking() && session.handshake(rest)? {
            if session.is_handshaking() {
                return Ok(false);
            }
            // What came behind the handshake's end is with the session.
            rest = &mut [];
        }
        if let Some(closed) = session.open(rest, &mut take)? {
            return Ok(closed);
        }
        let mut rest: &[u8] = rest;
        while !rest.is_empty() {
            let read = session.read(&mut rest);
            while let Some(piece) = session.plaintext() {
                let length = piece.len();
                take(piece)?;
                session.consume(length);
            }
            if read? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// How many bytes the socket took.
///
/// # Errors
/// When it takes none any more.
fn write<N: Network>(network: &mut N, socket: &mut N::Socket, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match network.write(socket, &[IoSlice::new(&bytes[written..])]) {
            Ok(n) => written += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok(written)
}
