//! `serve files`: a folder, and generated bodies of any size, over HTTP/1.1.
//!
//! `/bytes/SIZE` is answered with exactly SIZE bytes (`/bytes/1000`, `/bytes/64KiB`), which are not held in
//! memory. Over TLS, tickets need no state on the server, so any number of clients can resume; early data needs a
//! session store, and is off by default. Full and resumed handshakes are counted.

mod connection;
mod content;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use rustls::{HandshakeKind, ServerConnection};
use tokio::sync::watch;

use plimsoll_serving::ServeError;
use plimsoll_serving::accepting::{self, ConnectionHandler};
use plimsoll_serving::reference::{
    ReferenceServer, ServeContext, ServerCounts, ServerFuture, ServerIdentity,
};
use plimsoll_serving::tls_server::early_data::ServerStream;

use content::ServedFolder;

/// Files of a folder and bodies of any size, over HTTP/1.1.
#[derive(Args, Clone, Debug)]
#[command(
    before_help = "Example: TLS 1.3 with session tickets; then fetch /bytes/1KiB, /bytes/512MiB, /index.html\n  \
    plimsoll serve files site --listen 127.0.0.1:4433 --tls-cert certs/server.crt --tls-key certs/server.key"
)]
pub struct FilesOptions {
    /// The folder to serve; /bytes/SIZE is answered with SIZE bytes in any case.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,

    #[command(flatten)]
    identity: ServerIdentity,

    // Only GET requests are answered in early data.
    /// Let resumed connections send this many bytes of a GET before the handshake is over (0-RTT).
    /// Such requests can be replayed by whoever records them (RFC 8446 §8) [default: none].
    #[arg(long, value_name = "BYTES", help_heading = "TLS")]
    max_early_data: Option<u32>,
}

impl ReferenceServer for FilesOptions {
    const COMMAND_NAME: &str = "files";

    fn start(self, place: ServeContext) -> Result<ServerFuture, ServeError> {
        let content = ServedFolder::new(self.dir.as_deref())?;
        let protocols: &[&[u8]] = &[b"http/1.1"];
        let bound =
            (place.bound).with_resumption(protocols, &self.identity, self.max_early_data)?;
        let server = FileServer {
            content: Arc::new(content),
            counters: Arc::default(),
        };
        Ok(Box::pin(async move {
            let counters = Arc::clone(&server.counters);
            let connections = accepting::accept_and_serve(bound, server, place.stopped).await?;
            let counted = [
                ("served", &counters.served),
                ("refused", &counters.refused),
                ("bytes", &counters.bytes),
                ("full handshakes", &counters.full_handshakes),
                ("resumed handshakes", &counters.resumed_handshakes),
                ("early requests", &counters.early_requests),
            ];
            Ok(ServerCounts::from_counters(connections, counted))
        }))
    }
}

#[derive(Debug, Default)]
struct FileCounters {
    /// Requests answered with 200.
    served: AtomicU64,
    /// Requests answered with another status, such as 404.
    refused: AtomicU64,
    /// Body bytes sent.
    bytes: AtomicU64,
    full_handshakes: AtomicU64,
    resumed_handshakes: AtomicU64,
    /// Requests received as early data.
    early_requests: AtomicU64,
}

#[derive(Clone)]
struct FileServer {
    content: Arc<ServedFolder>,
    counters: Arc<FileCounters>,
}

impl ConnectionHandler for FileServer {
    async fn serve<S: ServerStream>(
        self,
        stream: S,
        stopped: watch::Receiver<()>,
    ) -> io::Result<()> {
        connection::serve(stream, &self.content, &self.counters, stopped).await
    }

    fn on_handshake_done(&self, session: &ServerConnection) {
        let count = match session.handshake_kind() {
            Some(HandshakeKind::Resumed) => &self.counters.resumed_handshakes,
            _ => &self.counters.full_handshakes,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
