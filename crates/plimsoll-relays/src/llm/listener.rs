//! The API's port: plain TCP, or TLS 1.3 whose handshakes keep nobody else waiting.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_protocols::serving::{Listener, Peer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// From accept to the end of the TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Pause when the process has no descriptor left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Connections that are up and wait for the service to take them.
const MOST_WAITING: usize = 64;

/// Hands over connections that are ready for a request.
pub(super) enum Port {
    Plain(Listener),
    Tls {
        ready: mpsc::Receiver<(TlsStream<TcpStream>, Peer)>,
        accepting: tokio::task::AbortHandle,
    },
}

impl Port {
    /// Must be called inside the runtime.
    pub(super) fn new(listener: Listener, tls: Option<Arc<ServerConfig>>) -> Port {
        let Some(config) = tls else {
            return Port::Plain(listener);
        };
        let (tell, ready) = mpsc::channel(MOST_WAITING);
        let acceptor = TlsAcceptor::from(config);
        let accepting = tokio::spawn(async move {
            loop {
                let (tcp, peer) = next(&listener).await;
                let (acceptor, tell) = (acceptor.clone(), tell.clone());
                tokio::spawn(async move {
                    let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(tcp));
                    match handshake.await {
                        // The service may have ended meanwhile.
                        Ok(Ok(stream)) => drop(tell.send((stream, peer)).await),
                        Ok(Err(e)) => tracing::info!(%peer, "tls handshake: {e}"),
                        Err(_) => tracing::info!(%peer, "tls handshake: none in time"),
                    }
                });
            }
        });
        Port::Tls {
            ready,
            accepting: accepting.abort_handle(),
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Port::Tls { accepting, .. } = self {
            accepting.abort();
        }
    }
}

/// The next connection that is made.
async fn next(listener: &Listener) -> (TcpStream, Peer) {
    loop {
        match listener.accept().await {
            Ok((tcp, peer)) => {
                // A socket that can't be set so is about to fail anyway.
                let _ = tcp.set_nodelay(true);
                return (tcp, peer);
            }
            Err(e) => {
                tracing::warn!("accepting a connection: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl axum::serve::Listener for Port {
    type Io = Connection;
    type Addr = Peer;

    async fn accept(&mut self) -> (Connection, Peer) {
        match self {
            Port::Plain(listener) => {
                let (tcp, peer) = next(listener).await;
                (Connection::Plain(tcp), peer)
            }
            Port::Tls { ready, .. } => match ready.recv().await {
                Some((stream, peer)) => (Connection::Tls(Box::new(stream)), peer),
                // The task that accepts lives as long as this.
                None => std::future::pending().await,
            },
        }
    }

    /// Whoever bound the port knows it, and nobody asks here.
    fn local_addr(&self) -> io::Result<Peer> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

pub(super) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            Connection::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Connection::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Connection::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Connection::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
