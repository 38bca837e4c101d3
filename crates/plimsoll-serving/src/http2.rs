//! Serves a tonic service over HTTP/2 on a bound port until told to stop.
//!
//! Uses hyper's connections instead of tonic's server: connections are then accepted, counted and closed as in every
//! other reference server, and no router delays a call. A reference server is a single service, which matches paths
//! itself.

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
use super::{BoundServer, ConnectionStats, ServeError};
use crate::tls_server::early_data::ServerStream;

/// The flow-control window of a connection: how many bytes a client may send on all streams before the server has read
/// them.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Serves `service` (a tonic server type) on every connection until `shutdown` completes; calls in flight then have at
/// most [`super::ListenOptions::drain`] to finish.
///
/// # Errors
/// Returns an error if the listening socket itself fails.
pub async fn serve<S>(
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
        // h2 closes a connection when the overhead of small unread frames exceeds half of this window. The default
        // window is too small for clients that send each message in a separate frame.
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        // gRPC needs no date header, and a value that changes every second costs client and server time.
        .auto_date_header(false)
        // Many cancelled calls are legitimate load for this server, not an attack.
        .max_pending_accept_reset_streams(Some(1 << 16))
        .max_local_error_reset_streams(None);
    let server = Http2Handler {
        http,
        service: TowerAdapter(service),
    };
    accepting::accept_and_serve(bound, server, shutdown).await
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

/// An adapter of a tower service, which must always be ready, to hyper's service trait.
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

/// An executor that polls a call once on the task that read its request, and spawns a task only if the call is pending:
/// most calls of a fast target complete at once, and a task costs about as much as the response.
#[derive(Clone, Copy)]
struct InlineExecutor;

impl<F> hyper::rt::Executor<F> for InlineExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, call: F) {
        let mut call = Box::pin(call);
        let mut nobody = Context::from_waker(Waker::noop());
        // The no-op waker loses no wake-up: the spawned task first polls the call again, with its own waker.
        if call.as_mut().poll(&mut nobody).is_pending() {
            tokio::spawn(call);
        }
    }
}
