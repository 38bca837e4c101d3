//! The accept loop that every tokio-based reference server uses, with or without TLS, and its graceful shutdown.
//!
//! Handshakes have a time limit, every connection is counted, and shutdown is bounded: connections accepted before it
//! are served until the drain time is over, and are cut off then. A panic ends only the connection in which it
//! happened, and that connection is counted as broken.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::fault;
use plimsoll_engine::tls::{NegotiatedParameters, SharedHandshakeTally};
use rustls::ServerConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::admission::{UnprovenConnections, UnprovenGuard};
use super::proxy_header::ProxyHeaderError;
use super::{BoundServer, ConnectionStats, PeerAddress, ServeError, TrustedProxies};
use crate::tls_server::early_data::{EarlyDataStream, ServerStream};

/// The time limit from accept to the end of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a refused client may take to read the reason before the socket is closed.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// A handler of connections, which is cloned for each connection.
pub trait ConnectionHandler: Clone + Send + 'static {
    /// Serves the connection until the client closes it, or until `stopped` fires and no call is in flight.
    fn serve<S: ServerStream>(
        self,
        stream: S,
        stopped: watch::Receiver<()>,
    ) -> impl Future<Output = io::Result<()>> + Send;

    /// Sets the address of the client whose connection is served next.
    #[must_use]
    fn with_client_address(self, _client: PeerAddress) -> Self {
        self
    }

    /// Called when a connection is refused because its PROXY header is missing, malformed or not trusted. Logs it by
    /// default.
    fn on_refused(&self, peer: PeerAddress, why: &ProxyHeaderError) {
        tracing::warn!("{peer}: {why}");
    }

    /// Sets the guard that marks the connection as unproven: its peer has not shown yet that it is a real client.
    /// Called if [`super::ListenOptions::max_unproven`] limits such connections. The handler must keep the guard until
    /// the peer has proven itself, such as by a complete request, and then drop it.
    #[must_use]
    fn with_unproven_guard(self, _mark: UnprovenGuard) -> Self {
        self
    }

    /// Called when a TLS handshake is complete, or when the client has sent early data.
    fn on_handshake_done(&self, _session: &ServerConnection) {}
}

/// Accepts and serves connections until `shutdown` completes; calls in flight then have at most
/// [`super::ListenOptions::drain`] to finish.
///
/// # Errors
/// When the listening socket itself fails.
pub async fn accept_and_serve(
    bound: BoundServer,
    server: impl ConnectionHandler,
    shutdown: impl Future<Output = ()>,
) -> Result<ConnectionStats, ServeError> {
    let (stop, stopped) = watch::channel(());
    let context = AcceptContext {
        proxies: bound.proxies.clone(),
        acceptor: bound.tls.clone().map(TlsAcceptor::from),
        handshakes: bound.handshakes.clone(),
        admission: bound.max_unproven.map(UnprovenConnections::new),
        server,
        stopped,
    };
    let drain = bound.drain;
    let listener = bound.into_listener()?;
    let mut stats = ConnectionStats::default();
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => count_ended_connection(&mut stats, ended),
            accepted = listener.next() => {
                let (stream, peer) = accepted?;
                stats.accepted += 1;
                connections.spawn(context.clone().serve_admitted(stream, peer));
                stats.peak_open = stats.peak_open.max(connections.len() as u64);
            }
        }
    }
    // New connections are refused from here on.
    let take = |stream, peer| {
        stats.accepted += 1;
        connections.spawn(context.clone().serve_admitted(stream, peer));
    };
    listener.close(take).await;
    drop(context);
    let _ = stop.send(());
    let drained = tokio::time::timeout(drain, async {
        while let Some(ended) = connections.join_next().await {
            count_ended_connection(&mut stats, ended);
        }
    });
    if drained.await.is_err() {
        stats.cut_off = connections.len() as u64;
        connections.shutdown().await;
    }
    Ok(stats)
}

/// How one connection ended.
enum ConnectionEnd {
    Completed,
    HandshakeFailed,
    Broken,
}

fn count_ended_connection(stats: &mut ConnectionStats, ended: Result<ConnectionEnd, JoinError>) {
    match ended {
        Ok(ConnectionEnd::Completed) => {}
        Ok(ConnectionEnd::HandshakeFailed) => stats.handshakes_failed += 1,
        Ok(ConnectionEnd::Broken) | Err(_) => stats.broken += 1,
    }
}

/// The state that is copied for every accepted connection.
#[derive(Clone)]
struct AcceptContext<S> {
    proxies: TrustedProxies,
    /// The TLS acceptor; `None` means plaintext.
    acceptor: Option<TlsAcceptor>,
    handshakes: SharedHandshakeTally,
    /// The limit of unproven connections; `None` means no limit.
    admission: Option<Arc<UnprovenConnections>>,
    server: S,
    stopped: watch::Receiver<()>,
}

impl<S: ConnectionHandler> AcceptContext<S> {
    async fn serve_admitted(mut self, stream: TcpStream, peer: PeerAddress) -> ConnectionEnd {
        let Some(admission) = self.admission.take() else {
            return self.identify_and_serve(stream, peer).await;
        };
        let (mark, evicted) = admission.register();
        self.server = self.server.with_unproven_guard(mark);
        let evicted = async {
            // An error means that the guard was dropped because the peer has proven itself, so the connection is not
            // evicted.
            if evicted.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            ended = Box::pin(self.identify_and_serve(stream, peer)) => ended,
            () = evicted => {
                tracing::debug!("{peer}: closed to make room for newer connections");
                ConnectionEnd::Broken
            }
        }
    }

    /// Reads the PROXY header if any proxy is trusted, then continues with [`AcceptContext::secure_and_serve`].
    async fn identify_and_serve(mut self, stream: TcpStream, peer: PeerAddress) -> ConnectionEnd {
        if self.proxies == TrustedProxies::default() {
            return self.secure_and_serve(stream, peer).await;
        }
        let opening = Box::pin(self.proxies.read_client(&stream, peer));
        let known = tokio::select! {
            biased;
            known = opening => known,
            _ = self.stopped.changed() => return ConnectionEnd::Completed,
        };
        match known {
            Ok(client) => self.secure_and_serve(stream, client).await,
            Err(ProxyHeaderError::Socket(_)) => ConnectionEnd::Completed,
            Err(why) => {
                self.server.on_refused(peer, &why);
                let _ = tokio::time::timeout(LINGER_TIMEOUT, linger(stream)).await;
                ConnectionEnd::HandshakeFailed
            }
        }
    }

    async fn secure_and_serve(mut self, stream: TcpStream, peer: PeerAddress) -> ConnectionEnd {
        self.server = self.server.with_client_address(peer);
        // Nagle's algorithm would delay small responses until the peer acknowledges earlier data.
        let _ = stream.set_nodelay(true);
        fault::point("connection");
        let Some(acceptor) = self.acceptor.take() else {
            return classify_end(peer, self.server.serve(stream, self.stopped).await);
        };
        if acceptor.config().max_early_data_size > 0 {
            return Box::pin(self.serve_with_early_data(stream, peer, &acceptor)).await;
        }
        let handshake = acceptor.accept(stream).into_fallible();
        let handshake = tokio::select! {
            result = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => result,
            _ = self.stopped.changed() => return ConnectionEnd::Completed,
        };
        match handshake {
            Ok(Ok(stream)) => {
                self.on_handshake_done(stream.get_ref().1);
                // Boxed, so that the future of a plaintext connection does not reserve space for the TLS branch.
                classify_end(
                    peer,
                    Box::pin(self.server.serve(stream, self.stopped)).await,
                )
            }
            Ok(Err((e, stream))) => {
                tracing::debug!("{peer}: tls handshake failed: {e}");
                let _ = tokio::time::timeout(LINGER_TIMEOUT, linger(stream)).await;
                ConnectionEnd::HandshakeFailed
            }
            Err(_) => {
                tracing::debug!("{peer}: no tls handshake within {HANDSHAKE_TIMEOUT:?}");
                ConnectionEnd::HandshakeFailed
            }
        }
    }

    /// Serves a connection whose client may send early data (0-RTT), before its handshake is complete.
    async fn serve_with_early_data(
        mut self,
        stream: TcpStream,
        peer: PeerAddress,
        acceptor: &TlsAcceptor,
    ) -> ConnectionEnd {
        let Ok(mut stream) =
            EarlyDataStream::new(stream, acceptor.config().clone(), HANDSHAKE_TIMEOUT)
        else {
            return ConnectionEnd::HandshakeFailed;
        };
        let ready = tokio::select! {
            ready = stream.wait_until_ready() => ready,
            _ = self.stopped.changed() => return ConnectionEnd::Completed,
        };
        if let Err(e) = ready {
            tracing::debug!("{peer}: tls handshake failed: {e}");
            let _ = tokio::time::timeout(LINGER_TIMEOUT, linger(stream.into_tcp())).await;
            return ConnectionEnd::HandshakeFailed;
        }
        self.on_handshake_done(stream.session());
        classify_end(peer, self.server.serve(stream, self.stopped).await)
    }

    fn on_handshake_done(&self, session: &ServerConnection) {
        self.handshakes
            .add(NegotiatedParameters::from_connection(session));
        self.server.on_handshake_done(session);
    }
}

fn classify_end(peer: PeerAddress, served: io::Result<()>) -> ConnectionEnd {
    match served {
        Ok(()) => ConnectionEnd::Completed,
        // The client closed without close_notify while nothing was in flight.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => ConnectionEnd::Completed,
        Err(e) => {
            tracing::debug!("{peer}: connection broken: {e}");
            ConnectionEnd::Broken
        }
    }
}

/// Reads until the peer closes. Closing with unread bytes would send RST, and the peer could lose the alert that
/// explains the refusal.
async fn linger(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let mut rest = [0; 512];
    while let Ok(1..) = stream.read(&mut rest).await {}
}
