//! The listening sockets of the hostile server: one port for each behaviour, one thread for each connection.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll_engine::Address;
use rustls::ServerConfig;

use super::peer::{ScriptTransport, StartedRuns};
use super::{HostileBehaviour, HostileProtocol};
use plimsoll_serving::{ListenOptions, ServeError, ServerTlsOptions};

/// The maximum number of connections that are served at once; further connections are closed immediately.
pub const MAX_CONNECTIONS: usize = 512;

/// Counts of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostileStats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed immediately because of [`MAX_CONNECTIONS`].
    pub refused: u64,
}

/// A behaviour and its address.
#[derive(Clone, Copy, Debug)]
pub struct HostileEndpoint {
    /// The protocol spoken at the address.
    pub protocol: HostileProtocol,
    /// The behaviour of each connection.
    pub behaviour: &'static HostileBehaviour,
    /// The address, with the port that the system chose.
    pub address: SocketAddr,
}

impl HostileEndpoint {
    /// Returns the URL for a load. A URL for TLS has a host name, because certificates are issued for names.
    pub fn url(&self) -> String {
        let (scheme, address) = (self.protocol.scheme(), self.address);
        match self.protocol {
            HostileProtocol::Tls if address.ip().is_loopback() => {
                format!("{scheme}://localhost:{}/file", address.port())
            }
            HostileProtocol::Tls | HostileProtocol::Http1 => format!("{scheme}://{address}/file"),
            _ => format!("{scheme}://{address}"),
        }
    }
}

/// The chosen behaviours, whose ports are bound but not yet served.
pub struct HostileServer {
    listeners: Vec<(TcpListener, HostileProtocol, &'static HostileBehaviour)>,
    endpoints: Vec<HostileEndpoint>,
    shared: Arc<HostileServerState>,
}

struct HostileServerState {
    config: Option<Arc<ServerConfig>>,
    open: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
}

impl HostileServer {
    /// Binds a port for each of `behaviours`: consecutive ports that start at the port of `first`, or free ports if
    /// that is 0. `tls` is for behaviours that begin with a correct handshake.
    ///
    /// # Errors
    /// When the certificate can't be used, or a port can't be bound. The message names the port.
    pub fn bind(
        behaviours: &[(HostileProtocol, &'static HostileBehaviour)],
        first: SocketAddr,
        tls: Option<&ServerTlsOptions>,
    ) -> Result<HostileServer, ServeError> {
        let config = match tls {
            None => None,
            Some(tls) => {
                let config = tls.load(None)?.config;
                let mut config = ServerConfig::clone(&config);
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                // No script needs tickets, and a client that closes without having read them would send RST.
                config.send_tls13_tickets = 0;
                Some(Arc::new(config))
            }
        };
        let mut hostile = HostileServer {
            listeners: Vec::new(),
            endpoints: Vec::new(),
            shared: Arc::new(HostileServerState {
                config,
                open: AtomicUsize::new(0),
                accepted: AtomicU64::new(0),
                refused: AtomicU64::new(0),
            }),
        };
        for (i, (wire, behaviour)) in behaviours.iter().enumerate() {
            let mut address = first;
            if first.port() != 0 {
                let port = usize::from(first.port()) + i;
                let port = u16::try_from(port).map_err(|_| {
                    ServeError::invalid_option(
                        "listen",
                        format!(
                            "{} behaviours from port {} onwards need ports beyond 65535",
                            behaviours.len(),
                            first.port()
                        ),
                    )
                })?;
                address.set_port(port);
            }
            let bound = ListenOptions {
                address: Address::Tcp(address),
                ..ListenOptions::default()
            }
            .bind()?;
            let listener = bound.listener;
            listener
                .set_nonblocking(false)
                .map_err(ServeError::io("handing the listening socket to its thread"))?;
            hostile.endpoints.push(HostileEndpoint {
                protocol: *wire,
                behaviour,
                address: bound.address.tcp_address().unwrap_or(address),
            });
            hostile.listeners.push((listener, *wire, behaviour));
        }
        Ok(hostile)
    }

    /// Returns the endpoints, in the order in which they were given.
    pub fn endpoints(&self) -> &[HostileEndpoint] {
        &self.endpoints
    }

    /// Starts serving on threads that run until the process ends. The returned function reads the counts.
    ///
    /// # Errors
    /// When a thread can't be started.
    pub fn serve(self) -> Result<impl Fn() -> HostileStats, ServeError> {
        for (listener, wire, behaviour) in self.listeners {
            let shared = Arc::clone(&self.shared);
            thread::Builder::new()
                .spawn(move || accept_connections(&listener, wire, behaviour, &shared))
                .map_err(ServeError::io("starting a thread"))?;
        }
        let shared = self.shared;
        Ok(move || HostileStats {
            accepted: shared.accepted.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
        })
    }
}

fn accept_connections(
    listener: &TcpListener,
    wire: HostileProtocol,
    behaviour: &'static HostileBehaviour,
    shared: &Arc<HostileServerState>,
) {
    let runs = Arc::new(StartedRuns::default());
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // The process is out of descriptors: retries after a pause.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        if shared.open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            shared.open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (from_thread_error, runs) = (Arc::clone(shared), Arc::clone(&runs));
        let body = move || {
            let config = from_thread_error.config.clone();
            if let Ok(mut peer) = ScriptTransport::new(stream, wire.request_reader(), config, runs)
            {
                // Errors are ignored, because clients may close the connection within a script.
                let _ = behaviour.run(&mut peer);
                peer.close();
            }
            from_thread_error.open.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().spawn(body).is_err() {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            shared.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
