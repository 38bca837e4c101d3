//! `serve files`: a folder, and bodies of any size made on the fly, over HTTP/1.1.
//!
//! `/bytes/SIZE` answers with exactly SIZE bytes (`/bytes/1000`, `/bytes/64KiB`) without
//! holding them in memory. Over TLS, tickets are sent without keeping anything for them,
//! so that any number of clients can resume, unless early data is allowed: that takes a store.
//! Full and resumed handshakes are counted.

mod connection;
mod content;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::{HandshakeKind, ServerConfig, ServerConnection};
use tokio::sync::watch;

use crate::serving::accepting::{self, Serve};
use crate::serving::early::Link;
use crate::serving::{Bound, ConnectionStats, Resumption, ServeError};

use content::Content;

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
    /// Bytes that a resumed connection may send before its handshake is over (0-RTT, RFC 8446
    /// §2.3); 0: none. Only GET is answered from them: they can be replayed (§8).
    pub early_data: u32,
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
    /// Requests that came before the handshake was over.
    pub early: u64,
    pub connections: ConnectionStats,
}

#[derive(Debug, Default)]
struct Counters {
    served: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
    full: AtomicU64,
    resumed: AtomicU64,
    early: AtomicU64,
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
        let tls = bound
            .presenting(
                b"http/1.1",
                options.certificates.as_deref(),
                Resumption::of(options.no_tickets, options.early_data)?,
            )?
            .map(Arc::new);
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
        let server = Server {
            content: Arc::new(self.content),
            counters: Arc::default(),
        };
        let bound = Bound {
            tls: self.tls,
            ..self.bound
        };
        let counters = Arc::clone(&server.counters);
        let connections = accepting::accept(bound, server, shutdown).await?;
        Ok(FilesStats {
            served: counters.served.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            full_handshakes: counters.full.load(Ordering::Relaxed),
            resumed_handshakes: counters.resumed.load(Ordering::Relaxed),
            early: counters.early.load(Ordering::Relaxed),
            connections,
        })
    }
}

#[derive(Clone)]
struct Server {
    content: Arc<Content>,
    counters: Arc<Counters>,
}

impl Serve for Server {
    async fn serve<S: Link>(self, stream: S, stopped: watch::Receiver<()>) -> io::Result<()> {
        connection::serve(stream, &self.content, &self.counters, stopped).await
    }

    fn secured(&self, session: &ServerConnection) {
        let count = match session.handshake_kind() {
            Some(HandshakeKind::Resumed) => &self.counters.resumed,
            _ => &self.counters.full,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
