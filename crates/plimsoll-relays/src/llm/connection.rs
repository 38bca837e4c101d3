//! Connections of the API: HTTP/1.1 and HTTP/2, with a time limit for requests to arrive.
//!
//! A service that is stopping adds `Connection: close` to its responses, and sends GOAWAY over
//! HTTP/2, so that clients and balancers hold no connection to it when it exits.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{HeaderValue, Request, Version, header};
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use plimsoll_serving::accepting::ConnectionHandler;
use plimsoll_serving::proxy_header::ProxyHeaderError;
use plimsoll_serving::{PeerAddress, ServerStream};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::{LlmService, RefusalReason, metrics};
use crate::client_address::ClientAddress;

/// Time from the end of one request to the end of the next one's head; over HTTP/2, from the last frame to a ping. It
/// is longer than load balancers keep idle connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a connection that was accepted just before shutdown may take to send its request.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest head of a request in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Everything needed to serve a connection.
#[derive(Clone)]
pub(super) struct ApiConnection {
    http: Builder<TokioExecutor>,
    router: axum::Router,
    llm: Arc<LlmService>,
    client: PeerAddress,
}

impl ApiConnection {
    pub(super) fn new(llm: &Arc<LlmService>, router: axum::Router) -> ApiConnection {
        let mut http = Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES);
        http.http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(IDLE_TIMEOUT)
            .max_header_list_size(MAX_HEAD_BYTES as u32)
            // Many cancelled requests are a legitimate load here, not an attack.
            .max_pending_accept_reset_streams(Some(1 << 16))
            .max_local_error_reset_streams(None);
        ApiConnection {
            http,
            router,
            llm: Arc::clone(llm),
            client: PeerAddress(None),
        }
    }
}

impl ConnectionHandler for ApiConnection {
    fn with_client_address(self, client: PeerAddress) -> ApiConnection {
        ApiConnection { client, ..self }
    }

    fn on_refused(&self, peer: PeerAddress, why: &ProxyHeaderError) {
        if let Some(reason) = why.reason() {
            self.llm.refusals.log_refusal(None, reason, peer);
        }
    }

    async fn serve<S: ServerStream>(
        self,
        stream: S,
        mut stopped: watch::Receiver<()>,
    ) -> io::Result<()> {
        let (asked, leaving) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let (noting, noticing) = (Arc::clone(&asked), Arc::clone(&leaving));
        let llm = Arc::clone(&self.llm);
        let (router, client) = (TowerToHyperService::new(self.router), self.client);
        let service = service_fn(move |request: Request<Incoming>| {
            noting.store(true, Ordering::Relaxed);
            let (kind, began) = (
                metrics::endpoint_label(request.uri().path()),
                Instant::now(),
            );
            let forwarded = request.headers().get_all("x-forwarded-for").iter();
            let forwarded = forwarded.filter_map(|value| value.to_str().ok());
            let asker = ClientAddress::resolve(client, forwarded, &llm.options.trusted_proxies);
            let version = request.version();
            let (answering, llm) = (router.call(request), Arc::clone(&llm));
            let leaving = Arc::clone(&noticing);
            async move {
                let mut answer = answering.await?;
                let status = answer.status().as_u16();
                llm.metrics.observe_response(kind, status, began.elapsed());
                let reason = match (answer.extensions().get(), status) {
                    (Some(RefusalReason(reason)), _) => Some(*reason),
                    (None, 404) => Some("path"),
                    (None, 405) => Some("method"),
                    _ => None,
                };
                if let Some(reason) = reason {
                    llm.refusals.log_refusal(Some(status), reason, asker);
                }
                match version {
                    _ if !llm.is_in_lame_duck() => {}
                    Version::HTTP_2 => leaving.notify_one(),
                    _ => {
                        let close = HeaderValue::from_static("close");
                        answer.headers_mut().insert(header::CONNECTION, close);
                    }
                }
                Ok::<_, std::convert::Infallible>(answer)
            }
        });
        let mut serving = pin!(self.http.serve_connection(TokioIo::new(stream), service));
        let mut late = pin!(sleep(self.llm.options.request_timeout));
        let (mut stopping, mut waiting) = (false, true);
        loop {
            tokio::select! {
                served = serving.as_mut() => return served.map_err(io::Error::other),
                () = leaving.notified() => serving.as_mut().graceful_shutdown(),
                _ = stopped.changed(), if !stopping => {
                    stopping = true;
                    // A graceful shutdown would drop a connection that has not sent a request yet. Such a connection
                    // stays open instead, until the response to its first request closes it.
                    if asked.load(Ordering::Relaxed) {
                        serving.as_mut().graceful_shutdown();
                    }
                    let last = Instant::now() + LAST_REQUEST_TIMEOUT;
                    let earlier = late.deadline().min(last);
                    late.as_mut().reset(earlier);
                }
                () = late.as_mut(), if waiting => {
                    if !asked.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    waiting = false;
                }
            }
        }
    }
}
