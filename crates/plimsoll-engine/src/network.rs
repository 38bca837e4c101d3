//! The network and the clock as a worker sees them: real sockets under epoll
//! ([`os`]), or a seeded simulation with a clock of its own ([`simulated`]).
//!
//! Sockets never block. The worker is generic over [`Network`], so what is simulated is
//! the very loop that runs in production.

use std::io::{self, IoSlice};
use std::sync::Arc;

use plimsoll_model::Time;

use crate::address::Address;
pub use crate::poller::{Ready, Token};

mod low_water;
pub mod os;
pub(crate) mod resolver;
pub mod simulated;
mod stamps;
mod tcp_info;
mod tunnels;

impl Ready {
    /// What has not been read to its end.
    pub(crate) fn to_be_read(token: Token) -> Ready {
        Ready {
            token,
            readable: true,
            writable: false,
            hangup: true,
        }
    }
}

/// Until when to wait, and how exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The end of the wait, if no socket is ready before.
    pub at: Time,
    /// An arrival is due then: wake to the microsecond, spinning for the last stretch.
    pub precise: bool,
}

/// What a name was resolved to.
#[derive(Clone, Debug)]
pub struct Found {
    /// In the order in which connections are spread over them; at least one.
    pub addresses: Arc<[Address]>,
    /// Another lookup may find others.
    pub may_change: bool,
}

/// The answer to a question for a name, or why there is none: all who asked at the time have the same.
pub type Resolved = Result<Found, Arc<io::Error>>;

/// Who a name is looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The answer is for this question alone: a client that has just been started asks.
    Own,
    /// The answer is for all who ask at the time.
    Shared,
}

/// What a connection has carried since it came up. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes that the peer has acknowledged.
    pub sent: u64,
    /// Bytes that came from it.
    pub received: u64,
}

/// Sockets, readiness and time.
pub trait Network {
    /// A connection, or one that is being made.
    type Socket;

    /// The time on the clock of this network.
    fn now(&mut self) -> Time;

    /// Start a connection to the target with this number, through the proxy that leads to it, if one does. It is up, or has failed, when the socket is writable:
    /// [`Network::connected`] returns which.
    fn connect(&mut self, target: usize, to: &Address, token: Token) -> io::Result<Self::Socket>;

    /// The result of a connection attempt whose socket has become writable.
    fn connected(&mut self, socket: &mut Self::Socket) -> io::Result<()>;

    /// The proxy that is still to connect a socket, where it has been reached and asked.
    fn proxy_asked(&self, _socket: &Self::Socket) -> Option<String> {
        None
    }

    /// Signal the socket with another token from now on, also of what is there already.
    fn rename(&mut self, socket: &Self::Socket, token: Token) -> io::Result<()>;

    /// `Ok(0)`: the peer has closed its side. `WouldBlock`: nothing there now.
    fn read(&mut self, socket: &mut Self::Socket, buffer: &mut [u8]) -> io::Result<usize>;

    /// Whether [`Network::arrived`] is known of what is read.
    fn stamps(&self) -> bool {
        false
    }

    /// When the last of the bytes that the last [`Network::read`] gave reached this host; `None`: not known.
    fn arrived(&self) -> Option<Time> {
        None
    }

    /// Don't report readable bytes before so many have come (1: any); the end of the
    /// stream is always reported. A hint: a network may report earlier.
    fn low_water(&mut self, _socket: &mut Self::Socket, _bytes: usize) {}

    /// Writes a prefix of the slices; `WouldBlock` if the socket takes nothing now.
    fn write(&mut self, socket: &mut Self::Socket, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// What the connection has carried, handshakes and framing included; `None`: not known.
    fn carried(&mut self, _socket: &Self::Socket) -> Option<Carried> {
        None
    }

    /// Ends a connection, or the attempt to make it.
    fn close(&mut self, socket: Self::Socket);

    /// Wait until a socket is ready or `wake` has come (`None`: until a socket is ready
    /// or another thread wants attention). `ready` is filled anew.
    fn wait(&mut self, wake: Option<Wake>, ready: &mut Vec<Ready>) -> io::Result<()>;

    /// Turn the name of a target, by its number, into addresses. The answer may come at
    /// once, or later from [`Network::resolved`].
    fn resolve(&mut self, target: usize, token: Token, lookup: Lookup);

    /// An answer to [`Network::resolve`], if one has come.
    fn resolved(&mut self) -> Option<(Token, Resolved)>;
}

/// A socket that is written to like a file: what TLS takes.
pub struct SocketWriter<'a, N: Network> {
    /// The network that the socket belongs to.
    pub network: &'a mut N,
    /// The socket that the bytes go to.
    pub socket: &'a mut N::Socket,
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
