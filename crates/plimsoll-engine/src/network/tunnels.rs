//! Connections that a proxy is still to make: what happens on them before the worker hears of them.
//!
//! Invariant: a socket is reported as up only once the proxy has connected it to its target, and then
//! with what the target may have sent already still unread.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use rustix::net::{self, RecvFlags};

use super::{Ready, Token};
use crate::tunnel::{MAX_ANSWER, Opening, Tunnel, named};

/// Those of one worker.
#[derive(Default)]
pub(super) struct Tunnels(Vec<Underway>);

struct Underway {
    /// The worker's own descriptor.
    socket: RawFd,
    token: Token,
    state: State,
}

enum State {
    /// TCP is being made; a descriptor of our own for the same socket.
    Connecting(TcpStream, Arc<Tunnel>),
    Asking(TcpStream, Opening),
    Failed(io::Error),
}

impl Tunnels {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A connection to a proxy has been begun.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub(super) fn begin(
        &mut self,
        socket: &TcpStream,
        token: Token,
        tunnel: &Arc<Tunnel>,
    ) -> io::Result<()> {
        self.0.push(Underway {
            socket: socket.as_raw_fd(),
            token,
            state: State::Connecting(socket.try_clone()?, Arc::clone(tunnel)),
        });
        Ok(())
    }

    /// The socket is signalled with another token.
    pub(super) fn rename(&mut self, socket: &TcpStream, token: Token) {
        let socket = socket.as_raw_fd();
        let mut all = self.0.iter_mut();
        if let Some(found) = all.find(|underway| underway.socket == socket) {
            found.token = token;
        }
    }

    /// The worker has given the socket up. How its tunnel failed, if it did.
    pub(super) fn end(&mut self, socket: &TcpStream) -> Option<io::Error> {
        let socket = socket.as_raw_fd();
        let place = self
            .0
            .iter()
            .position(|underway| underway.socket == socket)?;
        match self.0.swap_remove(place).state {
            State::Failed(e) => Some(e),
            _ => None,
        }
    }

    /// The proxy that has been asked to connect this socket, and has not answered.
    pub(super) fn proxy_asked(&self, socket: &TcpStream) -> Option<String> {
        let socket = socket.as_raw_fd();
        let mut all = self.0.iter();
        match &all.find(|underway| underway.socket == socket)?.state {
            State::Asking(_, opening) => Some(opening.proxy()),
            State::Connecting(..) | State::Failed(_) => None,
        }
    }

    /// What an event is to the worker; `None`: nothing yet.
    pub(super) fn ready(&mut self, ready: Ready) -> Option<Ready> {
        let place = self
            .0
            .iter()
            .position(|underway| underway.token == ready.token);
        let Some(place) = place else {
            return Some(ready);
        };
        let up = Ready {
            readable: true,
            writable: true,
            ..ready
        };
        if matches!(self.0[place].state, State::Failed(_)) {
            return Some(up);
        }
        match self.0[place].state.go_on(ready) {
            Ok(false) => None,
            Ok(true) => {
                self.0.swap_remove(place);
                Some(up)
            }
            Err(e) => {
                self.0[place].state = State::Failed(e);
                Some(up)
            }
        }
    }
}

impl State {
    /// Whether the connection is the target's by now.
    fn go_on(&mut self, ready: Ready) -> io::Result<bool> {
        if let State::Connecting(socket, tunnel) = self {
            if !ready.writable {
                return Ok(false);
            }
            if let Some(e) = socket.take_error()? {
                return Err(e);
            }
            let mut asked = Vec::new();
            let opening = Opening::begin(Arc::clone(tunnel), &mut asked);
            // Of what is new, a socket takes some kilobytes at once.
            socket.write_all(&asked)?;
            *self = State::Asking(socket.try_clone()?, opening);
        }
        let State::Asking(socket, opening) = self else {
            return Ok(true);
        };
        let mut seen = [0; MAX_ANSWER];
        loop {
            let (_, length) = match net::recv(&*socket, &mut seen[..], RecvFlags::PEEK) {
                Ok(received) => received,
                Err(e) if e == rustix::io::Errno::AGAIN => return Ok(false),
                Err(e) => return Err(named(&e.into())),
            };
            if length == 0 {
                let e = io::Error::new(io::ErrorKind::ConnectionReset, "it closed the connection");
                return Err(named(&e));
            }
            let mut answer = Vec::new();
            let (taken, is_open) = opening.look(&seen[..length], &mut answer)?;
            if taken > 0 {
                // It is there: it has been seen.
                net::recv(&*socket, &mut seen[..taken], RecvFlags::empty())?;
            }
            if !answer.is_empty() {
                socket.write_all(&answer)?;
            }
            if is_open || taken == 0 {
                return Ok(is_open);
            }
        }
    }
}
