//! Listening sockets of the reference servers: options, binding and accepting.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_engine::tls::SharedHandshakeTally;
use plimsoll_engine::tls::file_rotation::RotatingVerifier;
use plimsoll_engine::{Address, Clock};
use plimsoll_model::Time;
use plimsoll_model::plan::TlsVersion;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;

use super::peer::PeerAddress;
use super::startup_facts::StartupFacts;
use super::unix::{self, SocketFile};
use super::{CertificateRenewal, ServeError, ServerTlsOptions, TicketSeed, TrustedProxies};

/// How long a listener accepts connections while it is closing: those that are already in the backlog are available at
/// once.
const BACKLOG_DRAIN_TIME: Duration = Duration::from_millis(10);
/// The pause after a failed accept, for example because the process is out of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);
/// The interval at which failed accepts are reported.
const ACCEPT_FAILURE_REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The count of failed accepts, which is logged at most once per interval: when the process is out of descriptors,
/// accepts fail many times a second.
#[derive(Debug, Default)]
pub struct AcceptFailures {
    /// Failed attempts since the last report.
    unreported: u64,
    quiet_until: Time,
}

impl AcceptFailures {
    /// Counts a failed attempt, and logs the count when the interval is over.
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
        *self = AcceptFailures {
            unreported: 0,
            quiet_until: now + ACCEPT_FAILURE_REPORT_INTERVAL,
        };
    }
}

/// Returns whether retrying accept is pointless. A lack of descriptors or memory may be temporary, and the error of a
/// connection that was closed in the backlog does not affect the next connection.
fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected
    )
}

/// The settings with which a reference server listens.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Port 0 picks any free port; [`BoundServer::address`] returns it.
    pub address: Address,
    /// `SO_REUSEPORT`: several processes (or listeners) share the port, and the kernel distributes connections over
    /// them.
    pub reuse_port: bool,
    /// The length of the accept queue. The kernel caps it at `net.core.somaxconn`.
    pub backlog: u16,
    /// The TLS options; `None` means plaintext.
    pub tls: Option<ServerTlsOptions>,
    /// The seed from which processes that share the port derive their ticket keys, so that each accepts the tickets
    /// of the others. `None`: a server accepts its own tickets only.
    pub tickets: Option<TicketSeed>,
    /// The maximum number of open HTTP/2 streams of a connection (RFC 9113 §6.5.2); `None` means no limit.
    pub max_concurrent_streams: Option<u32>,
    /// The trusted proxies. Their connections begin with a PROXY header.
    pub proxies: TrustedProxies,
    /// How long calls in flight may take after the server was told to stop.
    pub drain: Duration,
    /// The maximum number of open connections whose peers have not proven themselves; at the limit a new connection
    /// evicts the oldest. `None` means no limit.
    pub max_unproven: Option<usize>,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions {
            address: (Ipv4Addr::LOCALHOST, 50051).into(),
            reuse_port: false,
            backlog: 16384,
            tls: None,
            tickets: None,
            max_concurrent_streams: Some(1000),
            proxies: TrustedProxies::default(),
            drain: Duration::from_secs(10),
            max_unproven: None,
        }
    }
}

impl ListenOptions {
    /// Reads the TLS files and opens the port.
    ///
    /// # Errors
    /// Returns an error if a file can't be used or the address can't be listened on.
    pub fn bind(&self) -> Result<BoundServer, ServeError> {
        let (tls, clients, renewal) = match &self.tls {
            None => (None, None, None),
            Some(tls) => {
                let made = tls.load(self.tickets.as_ref())?;
                (Some(made.config), made.clients, Some(made.renewal))
            }
        };
        if self.reuse_port && self.address.tcp_address().is_none() {
            return Err(port_sharing_error());
        }
        let (listener, address, file) = self.open_socket().map_err(|e| self.address_error(e))?;
        Ok(BoundServer {
            file,
            listener,
            address,
            tls,
            offers_tls_1_2: (self.tls.as_ref())
                .is_some_and(|tls| tls.versions.contains(&TlsVersion::V1_2)),
            clients,
            renewal,
            handshakes: SharedHandshakeTally::default(),
            startup_facts: StartupFacts::default(),
            max_concurrent_streams: self.max_concurrent_streams,
            proxies: self.proxies.clone(),
            drain: self.drain,
            max_unproven: self.max_unproven,
        })
    }

    /// Opens the port, and returns its address.
    ///
    /// # Errors
    /// Returns an error if the address can't be listened on.
    pub fn open_socket(&self) -> io::Result<(TcpListener, Address, Option<SocketFile>)> {
        match &self.address {
            Address::Tcp(address) => {
                let socket = bind_tcp_socket(*address, self.reuse_port)?;
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

    /// Reserves the address without listening on it, for processes that will share its port: no other process can bind
    /// it before they listen, and all connections go to those processes.
    ///
    /// # Errors
    /// Returns an error if the address can't be reserved.
    pub fn reserve_address(&self) -> Result<ReservedAddress, ServeError> {
        let Address::Tcp(wanted) = self.address else {
            return Err(port_sharing_error());
        };
        let reserved = bind_tcp_socket(wanted, true).and_then(|socket| {
            let address = socket.local_addr()?.as_socket();
            Ok(ReservedAddress {
                address: address.unwrap_or(wanted),
                _socket: socket,
            })
        });
        reserved.map_err(|e| self.address_error(e))
    }

    fn address_error(&self, source: io::Error) -> ServeError {
        ServeError::Address {
            address: self.address.clone(),
            problem: match &self.address {
                Address::Tcp(_) => explain_listen_error(&source),
                Address::Unix(socket) => unix::explain_listen_error(socket, &source),
            },
            source,
        }
    }
}

fn bind_tcp_socket(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    // A restarted server must not wait until the TIME_WAIT of its old connections is over.
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

fn port_sharing_error() -> ServeError {
    ServeError::invalid_option(
        "listen",
        "a Unix socket has no port that several processes could share; use one process, or listen on HOST:PORT",
    )
}

fn explain_listen_error(error: &io::Error) -> String {
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

/// An address reserved for processes that share its port. Dropping it ends the reservation.
#[derive(Debug)]
pub struct ReservedAddress {
    address: SocketAddr,
    _socket: Socket,
}

impl ReservedAddress {
    /// Returns the address, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// An open port, ready to be served.
#[derive(Debug)]
pub struct BoundServer {
    /// The file of a Unix socket. Dropped before the socket itself, so that it is removed first: once the socket is
    /// closed, another process may take the file over.
    pub file: Option<SocketFile>,
    /// The listening socket; not blocking.
    pub listener: TcpListener,
    /// The address it listens on.
    pub address: Address,
    /// The server side of TLS; `None` means plaintext.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Whether TLS 1.2 is offered, too. If so, rustls encrypts records instead of Plimsoll's own record layer.
    pub offers_tls_1_2: bool,
    /// The verifier of client certificates; `None` if none are requested.
    pub clients: Option<Arc<RotatingVerifier>>,
    /// The reloader of the server's certificate; `None` means plaintext.
    pub renewal: Option<CertificateRenewal>,
    /// Counts of the parameters that handshakes negotiated, updated while the server runs.
    pub handshakes: SharedHandshakeTally,
    /// Further facts that the server prints when it starts.
    pub startup_facts: StartupFacts,
    /// SETTINGS_MAX_CONCURRENT_STREAMS that HTTP/2 connections announce; `None` announces no limit.
    pub max_concurrent_streams: Option<u32>,
    /// Trusted proxies, whose connections begin with a PROXY header.
    pub proxies: TrustedProxies,
    /// How long work in flight may take after the server was told to stop.
    pub drain: Duration,
    /// The maximum number of unproven connections at a time; see [`ListenOptions::max_unproven`].
    pub max_unproven: Option<usize>,
}

impl BoundServer {
    /// Returns the address, with the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the TLS configuration with these application protocols (RFC 7301) in order of preference; a client that
    /// offers no protocol is served, too. `None` means plaintext.
    pub fn tls_with_alpn(&self, protocols: &[&[u8]]) -> Option<Arc<rustls::ServerConfig>> {
        let mut config = rustls::ServerConfig::clone(self.tls.as_ref()?);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Some(Arc::new(config))
    }

    /// Offers these application protocols over TLS, in order of preference.
    #[must_use]
    pub fn with_alpn(mut self, protocols: &[&[u8]]) -> BoundServer {
        self.tls = self.tls_with_alpn(protocols);
        self
    }

    /// Converts the server into a listener, for servers with their own accept loop. Must be called inside the tokio
    /// runtime.
    ///
    /// # Errors
    /// Returns an error if the runtime does not accept the socket.
    pub fn into_listener(self) -> Result<AsyncListener, ServeError> {
        #[expect(
            deprecated,
            reason = "its replacement is unsafe, for types whose descriptor may change; a listener's never does"
        )]
        let socket = AsyncFd::with_interest(self.listener, Interest::READABLE);
        Ok(AsyncListener {
            _file: self.file,
            socket: socket.map_err(ServeError::io(
                "handing the listening socket to the runtime",
            ))?,
            clock: Clock::new(),
            accept_failures: Mutex::default(),
        })
    }
}

/// A listening socket of any address family, registered with the runtime.
#[derive(Debug)]
pub struct AsyncListener {
    /// The socket's file. Declared first, so the file is removed before the socket is closed.
    _file: Option<SocketFile>,
    socket: AsyncFd<TcpListener>,
    clock: Clock,
    accept_failures: Mutex<AcceptFailures>,
}

impl AsyncListener {
    async fn accept(&self) -> io::Result<(TcpStream, PeerAddress)> {
        let accepted = self.socket.async_io(Interest::READABLE, unix::accept).await;
        let (stream, peer) = accepted?;
        Ok((TcpStream::from_std(stream)?, peer))
    }

    /// Waits for the next connection, and returns it with its peer. Failed accepts are logged and retried.
    ///
    /// # Errors
    /// Returns an error if the listening socket itself fails.
    pub async fn next(&self) -> Result<(TcpStream, PeerAddress), ServeError> {
        loop {
            match self.accept().await {
                Ok(accepted) => return Ok(accepted),
                Err(e) if is_fatal(&e) => return Err(ServeError::io("accepting connections")(e)),
                Err(e) => {
                    let not_accepted = self.accept_failures.lock();
                    let mut not_accepted = not_accepted.unwrap_or_else(PoisonError::into_inner);
                    not_accepted.report(&e, self.clock.now());
                }
            }
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
        }
    }

    /// Stops listening. Calls `take` with the connections in the backlog, which would otherwise be reset.
    pub async fn close(self, mut take: impl FnMut(TcpStream, PeerAddress)) {
        let end = tokio::time::Instant::now() + BACKLOG_DRAIN_TIME;
        while let Ok(Ok((stream, peer))) = tokio::time::timeout_at(end, self.accept()).await {
            take(stream, peer);
        }
    }
}
