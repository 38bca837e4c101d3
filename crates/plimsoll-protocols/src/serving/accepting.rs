//! Taking connections until told to stop, over TLS or not, and letting those that are open
//! come to their end.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::{Bound, ConnectionStats, ServeError};

const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Pause when the process has no descriptor left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What is done with a connection. Cloned for each.
pub(crate) trait Serve: Clone + Send + 'static {
    /// Serves until the client closes, or `stopped` and nothing is in progress any more.
    fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
        self,
        stream: S,
        stopped: watch::Receiver<()>,
    ) -> impl Future<Output = io::Result<()>> + Send;
}

/// Serves until `shutdown` completes; what is in progress is finished for at most
/// [`super::Listen::drain`].
///
/// # Errors
/// When the socket fails.
pub(crate) async fn accept(
    bound: Bound,
    server: impl Serve,
    shutdown: impl Future<Output = ()>,
) -> Result<ConnectionStats, ServeError> {
    let listener = TcpListener::from_std(bound.listener).map_err(|source| ServeError::Io {
        doing: "handing the listening socket to the runtime",
        source,
    })?;
    let acceptor = bound.tls.map(TlsAcceptor::from);
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
                Ok((stream, _)) => {
                    stats.accepted += 1;
                    connections.spawn(connect(
                        stream, acceptor.clone(), server.clone(), stopped.clone(),
                    ));
                    stats.most_at_once = stats.most_at_once.max(connections.len() as u64);
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
    let drained = tokio::time::timeout(bound.drain, async {
        while let Some(ended) = connections.join_next().await {
            tally(&mut stats, ended);
        }
    });
    if drained.await.is_err() {
        stats.cut_off = connections.len() as u64;
        connections.shutdown().await;
    }
    Ok(stats)
}

enum Ended {
    Well,
    HandshakeFailed,
    Broken,
}

fn tally(stats: &mut ConnectionStats, ended: Result<Ended, JoinError>) {
    match ended {
        Ok(Ended::Well) => {}
        Ok(Ended::HandshakeFailed) => stats.handshakes_failed += 1,
        Ok(Ended::Broken) | Err(_) => stats.broken += 1,
    }
}

async fn connect(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    server: impl Serve,
    stopped: watch::Receiver<()>,
) -> Ended {
    let _ = stream.set_nodelay(true);
    let served = match acceptor {
        None => server.serve(stream, stopped).await,
        Some(acceptor) => {
            match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => Box::pin(server.serve(stream, stopped)).await,
                _ => return Ended::HandshakeFailed,
            }
        }
    };
    match served {
        Ok(()) => Ended::Well,
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ended::Well,
        Err(_) => Ended::Broken,
    }
}
