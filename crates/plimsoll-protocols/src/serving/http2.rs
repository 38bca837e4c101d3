//! Serves HTTP/2 on a bound port until told to stop.
//!
//! Built on hyper's connections instead of tonic's server so that handshakes are bounded
//! in time, every connection is counted, and stopping is bounded: after the drain time
//! what is left is cut off. There is no router on the way to a call: a target is one
//! service, and knows its paths.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

use super::{Bound, ConnectionStats, ServeError};

/// From accept to the end of the TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long a refused client may take to read why.
const LINGER: Duration = Duration::from_secs(1);
/// What clients may send on all streams of a connection before it is read. Bytes.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Pause when the process has no descriptor left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// How one connection ended.
enum Ended {
    Well,
    HandshakeFailed,
    Broken,
}

/// Serves `service` (a tonic server type) on every connection until `shutdown`
/// completes, then lets calls in flight finish for at most [`super::Listen::drain`].
///
/// # Errors
/// When the listening socket itself fails.
pub(crate) async fn serve<S>(
    bound: Bound,
    service: S,
    shutdown: impl Future<Output = ()>,
) -> Result<ConnectionStats, ServeError>
where
    S: Service<Request<Incoming>, Response = Response<tonic::body::Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    let listener = TcpListener::from_std(bound.listener).map_err(|source| ServeError::Io {
        doing: "handing the listening socket to the runtime",
        source,
    })?;
    let acceptor = bound.tls.map(TlsAcceptor::from);
    let service = Calls(service);
    let mut http = Builder::new(AtOnce);
    http.max_concurrent_streams(bound.max_concurrent_streams)
        // Small frames that wait to be read may cost half as much as this window holds;
        // with the usual one, clients that send a message a frame are cut off as a flood.
        .initial_connection_window_size(CONNECTION_WINDOW)
        // gRPC knows no date header, and one that changes each second costs both ends.
        .auto_date_header(false)
        // A flood of cancelled calls is load here, not an attack.
        .max_pending_accept_reset_streams(Some(1 << 16))
        .max_local_error_reset_streams(None);

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
                    connections.spawn(connection(
                        stream, peer, acceptor.clone(), http.clone(), service.clone(), stopped.clone(),
                    ));
                    stats.most_at_once = stats.most_at_once.max(connections.len() as u64);
                }
                Err(e) if is_fatal(&e) => {
                    return Err(ServeError::Io { doing: "accepting connections", source: e });
                }
                Err(e) => {
                    tracing::warn!("accepting a connection: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // New connections are refused from here on.
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

/// What can't get better by waiting. Running out of descriptors or memory can, and a
/// connection that died in the queue says nothing about the next.
fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected
    )
}

fn tally(stats: &mut ConnectionStats, ended: Result<Ended, tokio::task::JoinError>) {
    match ended {
        Ok(Ended::Well) => {}
        Ok(Ended::HandshakeFailed) => stats.handshakes_failed += 1,
        Ok(Ended::Broken) | Err(_) => stats.broken += 1,
    }
}

async fn connection<S>(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: Option<TlsAcceptor>,
    http: Builder<AtOnce>,
    service: Calls<S>,
    mut stop: watch::Receiver<()>,
) -> Ended
where
    Calls<S>: hyper::service::Service<
            Request<Incoming>,
            Response = Response<tonic::body::Body>,
            Error = Infallible,
            Future: Send,
        > + 'static,
{
    // Answers are small and must not wait for the peer's acknowledgement.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else {
        return calls(stream, peer, &http, service, stop).await;
    };
    let handshake = tokio::select! {
        result = tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream).into_fallible()) => result,
        _ = stop.changed() => return Ended::Well,
    };
    match handshake {
        // Boxed, so that a plaintext connection does not carry the room for this one.
        Ok(Ok(stream)) => Box::pin(calls(stream, peer, &http, service, stop)).await,
        Ok(Err((e, stream))) => {
            tracing::debug!("{peer}: tls handshake failed: {e}");
            let _ = tokio::time::timeout(LINGER, linger(stream)).await;
            Ended::HandshakeFailed
        }
        Err(_) => {
            tracing::debug!("{peer}: no tls handshake within {HANDSHAKE_LIMIT:?}");
            Ended::HandshakeFailed
        }
    }
}

/// Reads until the peer closes. Closing with bytes unread would reset the connection, and
/// the alert that says what was wrong could be lost on its way.
async fn linger(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let mut rest = [0; 512];
    while let Ok(1..) = stream.read(&mut rest).await {}
}

async fn calls<I, S>(
    io: I,
    peer: SocketAddr,
    http: &Builder<AtOnce>,
    service: Calls<S>,
    mut stop: watch::Receiver<()>,
) -> Ended
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
    Calls<S>: hyper::service::Service<
            Request<Incoming>,
            Response = Response<tonic::body::Body>,
            Error = Infallible,
            Future: Send,
        > + 'static,
{
    let mut connection = pin!(http.serve_connection(TokioIo::new(io), service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    match result {
        Ok(()) => Ended::Well,
        Err(e) => {
            tracing::debug!("{peer}: connection broken: {e}");
            Ended::Broken
        }
    }
}

/// A tower service as hyper calls it. The services here are always ready.
#[derive(Clone)]
pub(crate) struct Calls<S>(S);

impl<S> hyper::service::Service<Request<Incoming>> for Calls<S>
where
    S: Service<Request<Incoming>> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.0.clone().call(request)
    }
}

/// Runs a call where its request was read, and makes a task of it only if it has to wait:
/// most calls of a fast target don't, and a task costs about as much as answering.
#[derive(Clone, Copy)]
struct AtOnce;

impl<F> hyper::rt::Executor<F> for AtOnce
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, call: F) {
        let mut call = Box::pin(call);
        let mut nobody = Context::from_waker(Waker::noop());
        // The task polls it again before anything else, with a waker of its own.
        if call.as_mut().poll(&mut nobody).is_pending() {
            tokio::spawn(call);
        }
    }
}
