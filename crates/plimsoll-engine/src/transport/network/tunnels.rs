//! Connections through proxies whose proxy handshake is in progress; they are hidden from the worker until it is
//! complete.
//!
//! Invariant: a socket is reported as established only after the proxy has connected it to the target, and before any
//! byte from the target has been read.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use rustix::net::{self, RecvFlags};

use super::{SocketReady, SocketToken};
use crate::transport::tunnel::{MAX_ANSWER_BYTES, ProxyHandshake, Tunnel, proxy_error};

/// The pending tunnels of one worker.
#[derive(Default)]
pub(super) struct PendingTunnels(Vec<PendingTunnel>);

struct PendingTunnel {
    /// The descriptor that the worker uses.
    socket: RawFd,
    token: SocketToken,
    state: TunnelState,
}

enum TunnelState {
    /// The TCP connection to the proxy is being established; contains a duplicate descriptor of the socket.
    Connecting(TcpStream, Arc<Tunnel>),
    Handshaking(TcpStream, ProxyHandshake),
    Failed(io::Error),
}

impl PendingTunnels {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a socket that has begun to connect to a proxy.
    ///
    /// # Errors
    /// Returns an error if the process has no free descriptor.
    pub(super) fn add(
        &mut self,
        socket: &TcpStream,
        token: SocketToken,
        tunnel: &Arc<Tunnel>,
    ) -> io::Result<()> {
        self.0.push(PendingTunnel {
            socket: socket.as_raw_fd(),
            token,
            state: TunnelState::Connecting(socket.try_clone()?, Arc::clone(tunnel)),
        });
        Ok(())
    }

    /// Changes the token of a pending socket's events.
    pub(super) fn change_token(&mut self, socket: &TcpStream, token: SocketToken) {
        let socket = socket.as_raw_fd();
        let mut all = self.0.iter_mut();
        if let Some(found) = all.find(|pending| pending.socket == socket) {
            found.token = token;
        }
    }

    /// Removes a socket, and returns the error of its tunnel if it failed.
    pub(super) fn remove(&mut self, socket: &TcpStream) -> Option<io::Error> {
        let socket = socket.as_raw_fd();
        let place = self.0.iter().position(|pending| pending.socket == socket)?;
        match self.0.swap_remove(place).state {
            TunnelState::Failed(e) => Some(e),
            _ => None,
        }
    }

    /// Returns the proxy that has received the connect request for this socket but has not answered it yet, if any.
    pub(super) fn pending_proxy(&self, socket: &TcpStream) -> Option<String> {
        let socket = socket.as_raw_fd();
        let mut all = self.0.iter();
        match &all.find(|pending| pending.socket == socket)?.state {
            TunnelState::Handshaking(_, handshake) => Some(handshake.proxy_address()),
            TunnelState::Connecting(..) | TunnelState::Failed(_) => None,
        }
    }

    /// Processes an event and returns the one to report to the worker; `None` while the handshake continues.
    pub(super) fn process_event(&mut self, ready: SocketReady) -> Option<SocketReady> {
        let place = self
            .0
            .iter()
            .position(|pending| pending.token == ready.token);
        let Some(place) = place else {
            return Some(ready);
        };
        let up = SocketReady {
            readable: true,
            writable: true,
            ..ready
        };
        if matches!(self.0[place].state, TunnelState::Failed(_)) {
            return Some(up);
        }
        match self.0[place].state.advance(ready) {
            Ok(false) => None,
            Ok(true) => {
                self.0.swap_remove(place);
                Some(up)
            }
            Err(e) => {
                self.0[place].state = TunnelState::Failed(e);
                Some(up)
            }
        }
    }
}

impl TunnelState {
    /// Advances the handshake; returns whether the connection to the target is established.
    fn advance(&mut self, ready: SocketReady) -> io::Result<bool> {
        if let TunnelState::Connecting(socket, tunnel) = self {
            if !ready.writable {
                return Ok(false);
            }
            if let Some(e) = socket.take_error()? {
                return Err(e);
            }
            let mut asked = Vec::new();
            let handshake = ProxyHandshake::begin(Arc::clone(tunnel), &mut asked);
            // This does not block: the send buffer of a new socket has room for some kilobytes.
            socket.write_all(&asked)?;
            *self = TunnelState::Handshaking(socket.try_clone()?, handshake);
        }
        let TunnelState::Handshaking(socket, handshake) = self else {
            return Ok(true);
        };
        let mut seen = [0; MAX_ANSWER_BYTES];
        loop {
            let (_, length) = match net::recv(&*socket, &mut seen[..], RecvFlags::PEEK) {
                Ok(received) => received,
                Err(e) if e == rustix::io::Errno::AGAIN => return Ok(false),
                Err(e) => return Err(proxy_error(&e.into())),
            };
            if length == 0 {
                let e = io::Error::new(io::ErrorKind::ConnectionReset, "it closed the connection");
                return Err(proxy_error(&e));
            }
            let mut answer = Vec::new();
            let (taken, is_open) = handshake.advance(&seen[..length], &mut answer)?;
            if taken > 0 {
                // This does not block: these bytes were peeked at above.
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
