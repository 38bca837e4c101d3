//! A worker's network and clock: real sockets under epoll ([`os`]), or a seeded simulation with its own clock
//! ([`simulated`]).
//!
//! Sockets never block. The worker is generic over [`Network`], so the simulation tests run the same loop as
//! production.

use std::io::{self, IoSlice};
use std::sync::Arc;

use plimsoll_model::Time;

use crate::transport::address::Address;
pub use crate::transport::poller::{SocketReady, SocketToken};

mod low_water;
pub mod os;
mod receive_timestamps;
pub(crate) mod resolver;
pub mod simulated;
mod tcp_info;
mod tunnels;

impl SocketReady {
    /// Returns the event for a socket that still has unread bytes.
    pub(crate) fn with_unread_bytes(token: SocketToken) -> SocketReady {
        SocketReady {
            token,
            readable: true,
            writable: false,
            hangup: true,
        }
    }
}

/// The time at which a wait ends, and the required precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeTime {
    /// End of the wait if no socket becomes ready before.
    pub at: Time,
    /// How to wait until then.
    pub kind: WaitKind,
}

/// When bytes reached this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveTime {
    /// The earliest time at which they can have arrived.
    pub earliest: Time,
    /// How long they had been here when they were read, in nanoseconds: they arrived no later than that before any
    /// time that the clock shows after the read.
    pub age_ns: u64,
}

/// How the network waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// The network waits for sockets, with the precision of the operating system's timers.
    Rough,
    /// The network waits for sockets. A call is due at the end, so the wait must end within a microsecond, with a busy
    /// wait at the end.
    Precise,
    /// The network sleeps to the end and looks at the sockets only then.
    Asleep,
}

/// The addresses of a resolved name.
#[derive(Clone, Debug)]
pub struct ResolvedAddresses {
    /// The addresses in the order in which connections are spread over them; at least one.
    pub addresses: Arc<[Address]>,
    /// Whether another lookup may return other addresses.
    pub may_change: bool,
    /// Whether they belong to the proxy in front of the target.
    pub is_proxy: bool,
}

/// The result of a name lookup, or its error; shared by all requests that were pending when it arrived.
pub type ResolveResult = Result<ResolvedAddresses, Arc<io::Error>>;

/// The choice whether the result of a lookup is shared between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupScope {
    /// A lookup for a single request, such as the first request of a newly started client.
    Own,
    /// A lookup whose result serves all requests that are pending when it arrives.
    Shared,
}

/// The numbers of bytes that a connection has carried since it was established.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounts {
    /// Bytes that the peer has acknowledged.
    pub sent: u64,
    /// Bytes that the peer has sent.
    pub received: u64,
}

/// A worker's access to sockets, their readiness, and time.
pub trait Network {
    /// A socket, connected or connecting.
    type Socket;

    /// Returns the time on this network's clock.
    fn now(&mut self) -> Time;

    /// Starts a connection to the target with this number, through its proxy if it has one. The attempt has ended when
    /// the socket becomes writable; [`Network::take_connect_result`] then returns its result.
    fn connect(
        &mut self,
        target: usize,
        to: &Address,
        token: SocketToken,
    ) -> io::Result<Self::Socket>;

    /// Returns the result of a connection attempt whose socket has become writable.
    fn take_connect_result(&mut self, socket: &mut Self::Socket) -> io::Result<()>;

    /// Returns the proxy that has received the connect request for this socket but has not answered it yet, if any.
    fn pending_proxy(&self, _socket: &Self::Socket) -> Option<String> {
        None
    }

    /// Changes the token of a socket's events, including events that are already pending.
    fn change_token(&mut self, socket: &Self::Socket, token: SocketToken) -> io::Result<()>;

    /// Reads from the socket. `Ok(0)` means that the peer has closed its side; `WouldBlock` that nothing is available.
    fn read(&mut self, socket: &mut Self::Socket, buffer: &mut [u8]) -> io::Result<usize>;

    /// Returns whether [`Network::last_receive_time`] is available.
    fn has_receive_times(&self) -> bool {
        false
    }

    /// Returns when the last bytes of the previous [`Network::read`] reached this host; `None` if unknown.
    fn last_receive_time(&self) -> Option<ReceiveTime> {
        None
    }

    /// Sets the socket's low-water mark: the socket becomes readable only when this many bytes (1: any) have arrived,
    /// or at end of stream. This is a hint: a network may report readiness earlier.
    fn set_low_water(&mut self, _socket: &mut Self::Socket, _bytes: usize) {}

    /// Writes a prefix of the slices; returns `WouldBlock` if the socket accepts nothing now.
    fn write(&mut self, socket: &mut Self::Socket, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Returns the number of bytes that the connection has carried, including handshakes and framing; `None` if
    /// unknown.
    fn byte_counts(&mut self, _socket: &Self::Socket) -> Option<ByteCounts> {
        None
    }

    /// Closes a connection, or abandons a connection attempt.
    fn close(&mut self, socket: Self::Socket);

    /// Waits until a socket is ready or `wake` is reached (`None`: until a socket is ready or another thread
    /// wakes the poller). Replaces the contents of `ready`.
    fn wait(&mut self, wake: Option<WakeTime>, ready: &mut Vec<SocketReady>) -> io::Result<()>;

    /// Starts the lookup of the name of the target with this number. [`Network::next_lookup_result`] returns the
    /// result, at once or later.
    fn resolve(&mut self, target: usize, token: SocketToken, lookup: LookupScope);

    /// Returns the next result of [`Network::resolve`], if there is one.
    fn next_lookup_result(&mut self) -> Option<(SocketToken, ResolveResult)>;
}

/// An adapter that gives the TLS library access to a socket as [`io::Write`].
pub struct SocketWriter<'a, N: Network> {
    /// The network that the socket belongs to.
    pub network: &'a mut N,
    /// The socket to which the bytes are written.
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
