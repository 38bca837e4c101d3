//! `serve files`: a folder, and bodies of any size made on the fly, over HTTP/1.1.
//!
//! `/bytes/SIZE` answers with exactly SIZE bytes (`/bytes/1000`, `/bytes/64KiB`) without
//! holding them in memory. Over TLS, tickets are sent without keeping anything for them,
//! so that any number of clients can resume; full and resumed handshakes are counted.

mod connection;
mod content;
mod names;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::NoServerSessionStorage;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::serving::{Bound, ConnectionStats, ServeError};

use connection::Ended;
use content::Content;

const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Pause when the process has no descriptor left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What the file server serves, and as whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesOptions {
    /// The folder whose files are served; `None`: only `/bytes/SIZE`.
    pub root: Option<PathBuf>,
    /// A folder of certificates `NAME.crt` with keys `NAME.key` (PEM): a client that asks
    /// for NAME (RFC 6066 §3) gets that one, any other client the listener's own.
    pub certificates: Option<PathBuf>,
    /// Send no session tickets, so that nothing can be resumed.
    pub no_tickets: bool,
}

/// What became of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesStats {
    /// Answered with 200.
    pub served: u64,
    /// Answered with another status: 404 and the like.
    pub refused: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    pub full_handshakes: u64,
    pub resumed_handshakes: u64,
    pub connections: ConnectionStats,
}

#[derive(Debug, Default)]
struct Counters {
    served: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
    full: AtomicU64,
    resumed: AtomicU64,
}

/// The server, all its files read and checked.
#[derive(Debug)]
pub struct Files {
    bound: Bound,
    content: Content,
    tls: Option<Arc<ServerConfig>>,
}

impl Files {
    /// # Errors
    /// When a folder or one of its certificates can't be used: the file is named.
    pub fn new(bound: Bound, options: &FilesOptions) -> Result<Files, ServeError> {
        let content = Content::new(options.root.as_deref())?;
        let tls = match &bound.tls {
            None => {
                if options.certificates.is_some() {
                    return Err(ServeError::Option {
                        option: "certificates",
                        problem: "needs TLS: give a certificate and key for all other names"
                            .to_owned(),
                    });
                }
                None
            }
            Some(config) => {
                let mut config = ServerConfig::clone(config);
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                // A ticket that holds the session itself: the server keeps nothing.
                config.session_storage = Arc::new(NoServerSessionStorage {});
                if options.no_tickets {
                    config.send_tls13_tickets = 0;
                } else {
                    config.ticketer =
                        Ticketer::new().map_err(|e| ServeError::Tls(e.to_string()))?;
                }
                if let Some(folder) = &options.certificates {
                    config.cert_resolver = Arc::new(names::ByName::read(
                        folder,
                        Arc::clone(&config.cert_resolver),
                        config.crypto_provider(),
                    )?);
                }
                Some(Arc::new(config))
            }
        };
        Ok(Files {
            bound,
            content,
            tls,
        })
    }

    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Serves until `shutdown` completes, then lets answers in progress finish for at most
    /// the listener's drain time.
    ///
    /// # Errors
    /// When the listening socket itself fails.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<FilesStats, ServeError> {
        let listener =
            TcpListener::from_std(self.bound.listener).map_err(|source| ServeError::Io {
                doing: "handing the listening socket to the runtime",
                source,
            })?;
        let acceptor = self.tls.map(TlsAcceptor::from);
        let content = Arc::new(self.content);
        let counters = Arc::new(Counters::default());
        let mut stats = ConnectionStats::default();
        let (stop, stopped) = watch::channel(());
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(ended) = connections.join_next() => tally(&mut stats, ended),
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        stats.accepted += 1;
                        connections.spawn(serve_one(
                            stream, peer, acceptor.clone(), Arc::clone(&content),
                            Arc::clone(&counters), stopped.clone(),
                        ));
                        stats.most_at_once = stats.most_at_once.max(connections.len() as u64);
                    }
                    Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                        return Err(ServeError::Io { doing: "accepting connections", source: e });
                    }
                    Err(e) => {
                        tracing::warn!("accepting a connection: {e}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        drop(stopped);
        let _ = stop.send(());
        let drained = tokio::time::timeout(self.bound.drain, async {
            while let Some(ended) = connections.join_next().await {
                tally(&mut stats, ended);
            }
        });
        if drained.await.is_err() {
            stats.cut_off = connections.len() as u64;
            connections.shutdown().await;
        }
        Ok(FilesStats {
            served: counters.served.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            full_handshakes: counters.full.load(Ordering::Relaxed),
            resumed_handshakes: counters.resumed.load(Ordering::Relaxed),
            connections: stats,
        })
    }
}

fn tally(stats: &mut ConnectionStats, ended: Result<Ended, tokio::task::JoinError>) {
    match ended {
        Ok(Ended::Well) => {}
        Ok(Ended::HandshakeFailed) => stats.handshakes_failed += 1,
        Ok(Ended::Broken) | Err(_) => stats.broken += 1,
    }
}

async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: Option<TlsAcceptor>,
    content: Arc<Content>,
    counters: Arc<Counters>,
    mut stop: watch::Receiver<()>,
) -> Ended {
    // The last, short packet of an answer must not wait for the peer's acknowledgement.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else {
        return connection::serve(stream, &content, &counters, stop).await;
    };
    let accepting = tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream));
    let accepted = tokio::select! {
        accepted = accepting => accepted,
        _ = stop.changed() => return Ended::Well,
    };
    match accepted {
        Ok(Ok(stream)) => {
            let resumed =
                stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
            let count = if resumed {
                &counters.resumed
            } else {
                &counters.full
            };
            count.fetch_add(1, Ordering::Relaxed);
            connection::serve(stream, &content, &counters, stop).await
        }
        Ok(Err(e)) => {
            tracing::debug!("{peer}: tls handshake failed: {e}");
            Ended::HandshakeFailed
        }
        Err(_) => {
            tracing::debug!("{peer}: no tls handshake within {HANDSHAKE_LIMIT:?}");
            Ended::HandshakeFailed
        }
    }
}
