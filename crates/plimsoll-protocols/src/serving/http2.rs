//! Serves a tonic service over HTTP/2 on a bound port until told to stop.
//!
//! Uses hyper's connections instead of tonic's server, so that connections are accepted, counted and closed like
//! those of every other reference server, and no router delays a call: a reference server is a single service, which
//! matches paths itself.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Waker};

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

use super::accepting::{self, ConnectionHandler};
use super::early::ServerStream;
use super::{BoundServer, ConnectionStats, ServeError};

/// The flow-control window of a connection: bytes that clients may send on all streams before they are read.
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Serves `service` (a tonic server type) on every connection until `shutdown`
/// completes, then lets calls in flight finish for at most [`super::ListenOptions::drain`].
///
/// # Errors
/// When the listening socket itself fails.
pub(crate) async fn serve<S>(
    bound: BoundServer,
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
    let mut http = Builder::new(InlineExecutor);
    http.max_concurrent_streams(bound.max_concurrent_streams)
        // The overhead of small frames that wait to be read may reach half of this window. With the default window,
        // clients that send one message a frame are cut off as a flood.
        .initial_connection_window_size(CONNECTION_WINDOW)
        // gRPC has no date header, and a value that changes every second costs both ends.
        .auto_date_header(false)
        // A flood of cancelled calls is load here, not an attack.
        .max_pending_accept_reset_streams(Some(1 << 16))
        .max_local_error_reset_streams(None);
    let server = Http2Handler {
        http,
        service: TowerAdapter(service),
    };
    accepting::accept(bound, server, shutdown).await
}

#[derive(Clone)]
struct Http2Handler<S> {
    http: Builder<InlineExecutor>,
    service: TowerAdapter<S>,
}

impl<S> ConnectionHandler for Http2Handler<S>
where
    S: Service<Request<Incoming>, Response = Response<tonic::body::Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    async fn serve<I: ServerStream>(
        self,
        stream: I,
        mut stopped: watch::Receiver<()>,
    ) -> io::Result<()> {
        let serving = self
            .http
            .serve_connection(TokioIo::new(stream), self.service);
        let mut connection = pin!(serving);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            _ = stopped.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        result.map_err(io::Error::other)
    }
}

/// Adapts a tower service to hyper's service trait. The services here are always ready.
#[derive(Clone)]
struct TowerAdapter<S>(S);

impl<S> hyper::service::Service<Request<Incoming>> for TowerAdapter<S>
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

/// Polls a call once where its request was read, and spawns a task only if it is pending: most calls of a fast target
/// complete at once, and a task costs about as much as the response.
#[derive(Clone, Copy)]
struct InlineExecutor;

impl<F> hyper::rt::Executor<F> for InlineExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, call: F) {
        let mut call = Box::pin(call);
        let mut nobody = Context::from_waker(Waker::noop());
        // The spawned task polls it again first, with a waker of its own.
        if call.as_mut().poll(&mut nobody).is_pending() {
            tokio::spawn(call);
        }
    }
}
