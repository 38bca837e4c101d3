//! The listening socket.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_engine::tls::SharedTally;
use plimsoll_engine::tls::rotation::RotatingCheck;
use plimsoll_engine::{Address, Clock};
use plimsoll_model::Time;
use plimsoll_model::plan::TlsVersion;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;

use super::announced::Announced;
use super::peer::Peer;
use super::unix::{self, SocketFile};
use super::{Proxies, Renewal, ServeError, TicketSeed, Tls};

/// What the system has taken for a listener by the time that it closes is there at once; who comes
/// after that goes elsewhere.
const BACKLOG_DRAIN: Duration = Duration::from_millis(10);
/// Pause when the process has no descriptor left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How often connections that could not be accepted are reported.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Connections that could not be accepted, reported once in a while: a process out of descriptors
/// fails many times a second.
#[derive(Debug, Default)]
pub struct NotAccepted {
    /// Attempts since the last report.
    unreported: u64,
    quiet_until: Time,
}

impl NotAccepted {
    /// Counts an attempt that failed, and logs how many there were.
    pub fn report(&mut self, error: &io::Error, now: Time) {
        self.unreported += 1;
        if now < self.quiet_until {
            return;
        }
        let advice = match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE) => {
                ": raise `ulimit -n`, or let fewer clients connect"
            }
            _ => "",
        };
        tracing::warn!(
            "accepting a connection: {error} (failed attempts: {}){advice}",
            self.unreported
        );
        *self = NotAccepted {
            unreported: 0,
            quiet_until: now + REPORT_EVERY,
        };
    }
}

/// What can't get better by waiting. Running out of descriptors or memory can, and a
/// connection that died in the queue says nothing about the next.
fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected
    )
}

/// The settings with which a reference server listens.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Port 0: any free one; [`Bound::address`] returns which.
    pub address: Address,
    /// `SO_REUSEPORT`: several processes (or listeners) share the port, the kernel
    /// spreads connections over them.
    pub reuse_port: bool,
    /// Connections that may wait to be accepted. The kernel caps it at
    /// `net.core.somaxconn`.
    pub backlog: u16,
    /// `None`: plaintext.
    pub tls: Option<Tls>,
    /// What processes that share the port share to take each other's session tickets; `None`:
    /// each server takes its own only.
    pub tickets: Option<TicketSeed>,
    /// HTTP/2 streams a connection may have open (RFC 9113 §6.5.2); `None`: no limit.
    pub max_concurrent_streams: Option<u32>,
    /// Those whose connections begin with whom they carry.
    pub proxies: Proxies,
    /// How long calls in flight may take once the server was told to stop.
    pub drain: Duration,
    /// Connections at once whose peers have not proven themselves; the oldest is closed for the next one. `None`: no
    /// limit.
    pub max_unproven: Option<usize>,
}

impl Default for Listen {
    fn default() -> Listen {
        Listen {
            address: (Ipv4Addr::LOCALHOST, 50051).into(),
            reuse_port: false,
            backlog: 16384,
            tls: None,
            tickets: None,
            max_concurrent_streams: Some(1000),
            proxies: Proxies::default(),
            drain: Duration::from_secs(10),
            max_unproven: None,
        }
    }
}

impl Listen {
    /// Reads the TLS files and opens the port.
    ///
    /// # Errors
    /// When a file can't be used or the address can't be listened on.
    pub fn bind(&self) -> Result<Bound, ServeError> {
        let (tls, clients, renewal) = match &self.tls {
            None => (None, None, None),
            Some(tls) => {
                let made = tls.server_config(self.tickets.as_ref())?;
                (Some(made.config), made.clients, Some(made.renewal))
            }
        };
        if self.reuse_port && self.address.tcp().is_none() {
            return Err(unshared());
        }
        let (listener, address, file) = self.open().map_err(|e| self.unusable(e))?;
        Ok(Bound {
            file,
            listener,
            address,
            tls,
            offers_1_2: (self.tls.as_ref())
                .is_some_and(|tls| tls.versions.contains(&TlsVersion::V1_2)),
            clients,
            renewal,
            handshakes: SharedTally::default(),
            announced: Announced::default(),
            max_concurrent_streams: self.max_concurrent_streams,
            proxies: self.proxies.clone(),
            drain: self.drain,
            max_unproven: self.max_unproven,
        })
    }

    /// Opens the port, and returns where it is.
    ///
    /// # Errors
    /// When the address can't be listened on.
    pub fn open(&self) -> io::Result<(TcpListener, Address, Option<SocketFile>)> {
        match &self.address {
            Address::Tcp(address) => {
                let socket = open(*address, self.reuse_port)?;
                socket.listen(self.backlog.into())?;
                let listener = TcpListener::from(socket);
                let address = listener.local_addr()?;
                Ok((listener, Address::Tcp(address), None))
            }
            Address::Unix(socket) => {
                let (listener, file) = unix::listen(socket, self.backlog)?;
                Ok((listener, self.address.clone(), file))
            }
        }
    }

    /// Takes the address without listening on it, for processes that will share its port:
    /// until they listen nobody else gets it, and connections go to them alone.
    ///
    /// # Errors
    /// When the address can't be had.
    pub fn reserve(&self) -> Result<Reserved, ServeError> {
        let Address::Tcp(wanted) = self.address else {
            return Err(unshared());
        };
        let reserved = open(wanted, true).and_then(|socket| {
            let address = socket.local_addr()?.as_socket();
            Ok(Reserved {
                address: address.unwrap_or(wanted),
                _socket: socket,
            })
        });
        reserved.map_err(|e| self.unusable(e))
    }

    fn unusable(&self, source: io::Error) -> ServeError {
        ServeError::Address {
            address: self.address.clone(),
            problem: match &self.address {
                Address::Tcp(_) => explain(&source),
                Address::Unix(socket) => unix::explain(socket, &source),
            },
            source,
        }
    }
}

fn open(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    // A server that is started again must not wait for its old connections' TIME_WAIT.
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

fn unshared() -> ServeError {
    ServeError::option(
        "listen",
        "a Unix socket has no port that several processes could share; use one process, or listen on HOST:PORT",
    )
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "already in use by another process; choose another port, or 0 for a free one".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "not an address of this machine; choose one that is, or 0.0.0.0 or [::] for all"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "not permitted; ports below 1024 need privileges, choose a higher one".to_owned()
        }
        _ => format!("can't listen: {error}"),
    }
}

/// An address kept for processes that share its port, as long as this is there.
#[derive(Debug)]
pub struct Reserved {
    address: SocketAddr,
    _socket: Socket,
}

impl Reserved {
    /// The address with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// An open port, ready to be served.
#[derive(Debug)]
pub struct Bound {
    /// Of a Unix socket. Before the socket itself, so that it is removed first: a file whose
    /// socket is closed is anybody's to take over.
    pub(crate) file: Option<SocketFile>,
    pub(crate) listener: TcpListener,
    pub(crate) address: Address,
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    /// TLS 1.2 is offered, too: its records are the library's, and not our own.
    pub(crate) offers_1_2: bool,
    /// What judges the clients' certificates; `None`: they show none.
    pub(crate) clients: Option<Arc<RotatingCheck>>,
    /// What reads the server's certificate again; `None`: plaintext.
    pub renewal: Option<Renewal>,
    /// What handshakes agree on, counted while it serves.
    pub handshakes: SharedTally,
    /// What the server says besides when it begins.
    pub announced: Announced,
    pub(crate) max_concurrent_streams: Option<u32>,
    /// Those whose connections begin with whom they carry.
    pub proxies: Proxies,
    /// How long work in flight may take once the server was told to stop.
    pub drain: Duration,
    pub(crate) max_unproven: Option<usize>,
}

impl Bound {
    /// Returns the address, with the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What TLS is to be spoken, with application protocols (RFC 7301) to agree to, the first before the
    /// others; clients that name none are served, too. `None`: plaintext.
    pub fn tls_for(&self, protocols: &[&[u8]]) -> Option<Arc<rustls::ServerConfig>> {
        let mut config = rustls::ServerConfig::clone(self.tls.as_ref()?);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Some(Arc::new(config))
    }

    /// The same port, speaking over TLS what the client wishes of several, the first before the others.
    #[must_use]
    pub fn speaking_one_of(mut self, protocols: &[&[u8]]) -> Bound {
        self.tls = self.tls_for(protocols);
        self
    }

    /// The open port itself, for servers of their own making. Must be called inside the
    /// runtime.
    ///
    /// # Errors
    /// When the runtime does not take the socket.
    pub fn into_listener(self) -> Result<Listener, ServeError> {
        #[expect(
            deprecated,
            reason = "its replacement is unsafe, for types whose descriptor may change; a listener's never does"
        )]
        let socket = AsyncFd::with_interest(self.listener, Interest::READABLE);
        Ok(Listener {
            _file: self.file,
            socket: socket.map_err(ServeError::io(
                "handing the listening socket to the runtime",
            ))?,
            clock: Clock::new(),
            not_accepted: Mutex::default(),
        })
    }
}

/// A listening socket of any family, on the runtime.
#[derive(Debug)]
pub struct Listener {
    /// Removed before the socket is closed.
    _file: Option<SocketFile>,
    socket: AsyncFd<TcpListener>,
    clock: Clock,
    not_accepted: Mutex<NotAccepted>,
}

impl Listener {
    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        let accepted = self.socket.async_io(Interest::READABLE, unix::accept).await;
        let (stream, peer) = accepted?;
        Ok((TcpStream::from_std(stream)?, peer))
    }

    /// The next connection, and who made it. One that can't be accepted is waited for.
    ///
    /// # Errors
    /// When the listening socket itself fails.
    pub async fn next(&self) -> Result<(TcpStream, Peer), ServeError> {
        loop {
            match self.accept().await {
                Ok(accepted) => return Ok(accepted),
                Err(e) if is_fatal(&e) => return Err(ServeError::io("accepting connections")(e)),
                Err(e) => {
                    let not_accepted = self.not_accepted.lock();
                    let mut not_accepted = not_accepted.unwrap_or_else(PoisonError::into_inner);
                    not_accepted.report(&e, self.clock.now());
                }
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }

    /// Listens no longer. `take` gets connections that were made before, which would be reset if
    /// nobody took them.
    pub async fn close(self, mut take: impl FnMut(TcpStream, Peer)) {
        let end = tokio::time::Instant::now() + BACKLOG_DRAIN;
        while let Ok(Ok((stream, peer))) = tokio::time::timeout_at(end, self.accept()).await {
            take(stream, peer);
        }
    }
}
