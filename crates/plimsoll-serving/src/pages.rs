//! Serves small pages over HTTP/1.1 to browsers and scrapers: telemetry, `view`, and the sidecar's admin address
//! use it.
//!
//! Invariant: no peer can occupy resources for long. A connection carries one request, whose head is limited in size
//! and time and whose body is not read. The number of connections is limited, and shutdown waits no longer than
//! [`SHUTDOWN_GRACE`].

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
pub use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::time::timeout;

use super::accepting::{ConnectionHandler, accept_and_serve};
use super::admission::UnprovenGuard;
use super::{BoundServer, ConnectionStats, ListenOptions, ServeError, ServerStream};

/// The time limit from accept to the end of the request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit from accept to the end of the response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum length of a request's head, in bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// The maximum number of open connections; at the limit a new connection evicts the oldest.
const MAX_CONNECTIONS: usize = 128;
/// How long requests in flight may take after the server was told to stop.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Opens a port for pages.
///
/// # Errors
/// When the address can't be listened on.
pub fn bind(address: SocketAddr) -> io::Result<BoundServer> {
    let listen = ListenOptions {
        address: address.into(),
        drain: SHUTDOWN_GRACE,
        max_unproven: Some(MAX_CONNECTIONS),
        ..ListenOptions::default()
    };
    listen.bind().map_err(|e| match e {
        ServeError::Address { source, .. } => source,
        other => io::Error::other(other),
    })
}

/// Answers each request with the result of `answer`, until `shutdown` completes. `bound` comes from [`bind`].
///
/// # Errors
/// When the listening socket itself fails.
pub async fn serve<F, A>(
    bound: BoundServer,
    answer: A,
    shutdown: impl Future<Output = ()>,
) -> Result<ConnectionStats, ServeError>
where
    A: Fn(Request<()>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<String>> + Send + 'static,
{
    let mut http = Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(false);
    let pages = PageHandler {
        http,
        answer,
        guard: None,
    };
    accept_and_serve(bound, pages, shutdown).await
}

#[derive(Clone)]
struct PageHandler<A> {
    http: Builder,
    answer: A,
    /// The connection counts as unproven until it ends.
    guard: Option<Arc<UnprovenGuard>>,
}

impl<F, A> ConnectionHandler for PageHandler<A>
where
    A: Fn(Request<()>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<String>> + Send + 'static,
{
    fn with_unproven_guard(self, guard: UnprovenGuard) -> PageHandler<A> {
        PageHandler {
            guard: Some(Arc::new(guard)),
            ..self
        }
    }

    async fn serve<S: ServerStream>(self, stream: S, _: watch::Receiver<()>) -> io::Result<()> {
        let PageHandler {
            http,
            answer,
            guard: _place,
        } = self;
        let service = service_fn(move |request: Request<Incoming>| {
            let answered = answer(request.map(drop));
            async move { Ok::<_, Infallible>(answered.await) }
        });
        let served = http.serve_connection(TokioIo::new(stream), service);
        timeout(CONNECTION_TIMEOUT, served)
            .await?
            .map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc;
    use std::thread;

    use super::super::build_runtime;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(300);

    /// Serves a page until the sender is dropped. Returns the address, and a receiver that signals the end.
    fn served() -> (
        SocketAddr,
        tokio::sync::oneshot::Sender<()>,
        mpsc::Receiver<ConnectionStats>,
    ) {
        let bound = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = bound.address().tcp_address().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (over, ended) = mpsc::channel();
        thread::spawn(move || {
            let answer = async |request: Request<()>| Response::new(request.uri().to_string());
            let answer = move |request| Box::pin(answer(request)) as BoxedAnswer;
            let stats = build_runtime(Some(1))
                .unwrap()
                .block_on(serve(bound, answer, async {
                    let _ = stopped.await;
                }));
            over.send(stats.unwrap()).unwrap();
        });
        (address, stop, ended)
    }

    type BoxedAnswer = std::pin::Pin<Box<dyn Future<Output = Response<String>> + Send>>;

    fn get(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"GET /x HTTP/1.1\r\nhost: here\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn partial_requests_block_neither_others_nor_shutdown() {
        let (address, stop, ended) = served();
        let halves: Vec<TcpStream> = (0..MAX_CONNECTIONS + 50)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream
                    .write_all(b"GET /x HTTP/1.1\r\nhost: here\r\n")
                    .unwrap();
                stream
            })
            .collect();
        let answer = get(address);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n/x"), "{answer}");
        drop(stop);
        let stats = ended.recv_timeout(PATIENCE).expect("an end");
        assert_eq!(stats.accepted, halves.len() as u64 + 1);
        // Connections over the limit were closed early.
        let evicted = (halves.len() + 1 - MAX_CONNECTIONS) as u64;
        assert!(stats.broken >= evicted, "{stats:?}");
    }

    #[test]
    fn incomplete_request_head_times_out() {
        let (address, _stop, _ended) = served();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /x HT").unwrap();
        let mut rest = Vec::new();
        // The server closes the connection without a page, with RST if it has not read all bytes.
        let _ = stream.read_to_end(&mut rest);
        assert!(!rest.starts_with(b"HTTP/1.1 200"));
    }

    #[test]
    fn connection_carries_one_request() {
        let (address, _stop, _ended) = served();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = b"POST /y HTTP/1.1\r\nhost: here\r\ncontent-length: 9999999999\r\n\r\nabc";
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.ends_with(b"/y"), "{answer:?}");
    }
}
