//! `serve http`: responses with configured size, status, delay and events, over HTTP/1.1 and HTTP/2.
//!
//! hyper implements the connections. The path selects the response:
//!
//! - `/bytes/SIZE`: this many bytes; `/status/CODE`: this status, for 429 and 503 with `Retry-After`;
//! - `/echo`: the request's body with its content type;
//! - `/sse/N`: N server-sent events and `[DONE]`; `/ndjson/N`: N lines of JSON, the last with `"done":true`; the
//!   options set the time between events;
//! - any other path: the body that the options set.

mod body;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use plimsoll_model::formats::units::{ByteSize, Period};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::timeout;

use plimsoll_serving::ServeError;
use plimsoll_serving::accepting::{self, ConnectionHandler};
use plimsoll_serving::reference::{ReferenceServer, ServeContext, ServerCounts, ServerFuture};
use plimsoll_serving::response_timing::{ResponseDelay, ResponseScheduler, ResponseTiming};
use plimsoll_serving::tls_server::early_data::ServerStream;

use body::ResponseBody;

/// How long a connection accepted before the shutdown may take to send its first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum size of a body that is echoed, in bytes.
const MAX_ECHO_BYTES: usize = 16 << 20;
/// The maximum number of events in one response.
const MAX_EVENTS: u32 = 1_000_000;
/// The maximum number of redirects from one path.
const MAX_REDIRECTS: u32 = 100;

/// HTTP/1.1 and HTTP/2: bodies of any size, echo, statuses, delays, streams of events.
#[derive(Args, Clone, Debug)]
#[command(
    before_help = "Example: 1 KiB after 2 ms; and /bytes/64KiB, /echo, /status/503, /sse/20, /ndjson/20, /redirect/2\n  \
    plimsoll serve http --listen 127.0.0.1:8080 --delay 2ms --pace 10ms"
)]
pub struct HttpOptions {
    #[command(flatten)]
    answers: ResponseTiming,

    /// The size of a body, if the path does not set it.
    #[arg(long, value_name = "SIZE", default_value = "1KiB")]
    size: ByteSize,

    /// The status of an answer, if the path does not set it.
    #[arg(long, value_name = "STATUS", default_value_t = 200)]
    status: u16,

    /// How long an answer takes: "5ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(long, value_name = "TIME", default_value = "0s")]
    delay: ResponseDelay,

    /// Maximum number of requests in progress at once; others wait; 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pool: usize,

    /// Time between two events of a stream.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pace: Period,
}

impl ReferenceServer for HttpOptions {
    const COMMAND_NAME: &str = "http";

    fn start(self, place: ServeContext) -> Result<ServerFuture, ServeError> {
        let status = StatusCode::from_u16(self.status).ok();
        let status = status.filter(|status| (200..600).contains(&status.as_u16()));
        let status = status.ok_or_else(|| {
            ServeError::invalid_option(
                "status",
                format!(
                    "{} is not a valid status of an answer: use 200 to 599",
                    self.status
                ),
            )
        })?;
        let service = Arc::new(HttpService {
            size: self.size.0,
            status,
            pace: self.pace.0,
            scheduler: ResponseScheduler::new(self.delay, self.answers)?,
            pool: (self.pool > 0).then(|| Semaphore::new(self.pool)),
            counters: HttpCounters::default(),
        });
        let mut http = Builder::new(TokioExecutor::new());
        http.http1().pipeline_flush(true);
        http.http2()
            .max_concurrent_streams(place.bound.max_concurrent_streams)
            // Cancelled calls are part of a load test, not an attack, so the limit for them is high.
            .max_pending_accept_reset_streams(Some(1 << 16))
            .max_local_error_reset_streams(None);
        let server = HttpServer {
            http,
            service: Arc::clone(&service),
        };
        let bound = place.bound.with_alpn(&[b"h2", b"http/1.1"]);
        Ok(Box::pin(async move {
            let connections = accepting::accept_and_serve(bound, server, place.stopped).await?;
            let counted = [
                ("answered", &service.counters.answered),
                ("refused", &service.counters.refused),
                ("events", &service.counters.events),
            ];
            Ok(ServerCounts::from_counters(connections, counted))
        }))
    }
}

#[derive(Default)]
struct HttpCounters {
    /// The number of responses with a status below 400.
    answered: AtomicU64,
    /// The number of responses with a status of 400 or more.
    refused: AtomicU64,
    /// The number of events sent in streams.
    events: AtomicU64,
}

struct HttpService {
    size: u64,
    status: StatusCode,
    pace: Duration,
    scheduler: ResponseScheduler,
    pool: Option<Semaphore>,
    counters: HttpCounters,
}

#[derive(Clone)]
struct HttpServer {
    http: Builder<TokioExecutor>,
    service: Arc<HttpService>,
}

impl ConnectionHandler for HttpServer {
    async fn serve<S: ServerStream>(
        self,
        stream: S,
        mut stopped: watch::Receiver<()>,
    ) -> io::Result<()> {
        let HttpServer { http, service } = self;
        let (first_request, stopping) = (Arc::new(Notify::new()), stopped.clone());
        let asking = Arc::clone(&first_request);
        let calls = service_fn(move |request: Request<Incoming>| {
            asking.notify_one();
            // Over HTTP/2, hyper sends GOAWAY instead of `connection: close`.
            let closes =
                request.version() != Version::HTTP_2 && stopping.has_changed().unwrap_or(true);
            let service = Arc::clone(&service);
            async move {
                let mut response = service.answer_request(request).await;
                if closes {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(CONNECTION, close);
                }
                Ok::<_, Infallible>(response)
            }
        });
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), calls));
        let stopping = async {
            let _ = stopped.changed().await;
            // Waits for the first request, because hyper's shutdown drops a connection without one.
            let _ = timeout(FIRST_REQUEST_TIMEOUT, first_request.notified()).await;
        };
        let result = tokio::select! {
            biased;
            result = connection.as_mut() => result,
            () = stopping => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        // Clients may disconnect between two requests or during a stream, which is not an error.
        match result {
            Err(e) if is_client_close(&*e) => Ok(()),
            result => result.map_err(io::Error::other),
        }
    }
}

/// Returns whether the error only means that the client has closed the connection.
fn is_client_close(error: &(dyn std::error::Error + 'static)) -> bool {
    let hyper = error.downcast_ref::<hyper::Error>();
    hyper.is_some_and(|e| e.is_incomplete_message() || e.is_closed() || e.is_canceled())
}

impl HttpService {
    async fn answer_request(self: Arc<Self>, request: Request<Incoming>) -> Response<ResponseBody> {
        // The permit is held until the response's head is ready, so that at most `pool` requests are in progress.
        let _worker = match &self.pool {
            None => None,
            Some(pool) => pool.acquire().await.ok(),
        };
        self.scheduler.wait().await;
        let is_head = request.method() == Method::HEAD;
        let mut response = HttpService::route_request(&self, request).await;
        if is_head {
            // hyper removes the body of HEAD responses over HTTP/1.1 only.
            let size = response.body().size_hint().exact();
            if let Some(size) = size.filter(|size| *size > 0) {
                response.headers_mut().insert(CONTENT_LENGTH, size.into());
            }
            *response.body_mut() = ResponseBody::Filler(0);
        }
        let counter = match response.status().as_u16() {
            ..400 => &self.counters.answered,
            _ => &self.counters.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        response
    }

    async fn route_request(
        service: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let path = request.uri().path().to_owned();
        let mut parts = path.trim_start_matches('/').splitn(2, '/');
        match (parts.next().unwrap_or_default(), parts.next()) {
            ("echo", None) => return echo(request).await,
            ("bytes", Some(size)) => match parse_size(size) {
                Some(size) => {
                    return build_response(
                        StatusCode::OK,
                        OCTET_STREAM_TYPE,
                        ResponseBody::Filler(size),
                    );
                }
                None => return not_found("write /bytes/1000 or /bytes/1KiB"),
            },
            ("status", Some(code)) => {
                let code = code.parse().ok().filter(|code| (200..600).contains(code));
                return match code.and_then(|code| StatusCode::from_u16(code).ok()) {
                    Some(code) => status_response(code),
                    None => not_found("write /status/503: a status from 200 to 599"),
                };
            }
            (kind @ ("sse" | "ndjson"), Some(count)) => {
                return match count.parse().ok().filter(|count| *count <= MAX_EVENTS) {
                    Some(count) => HttpService::stream_events(service, kind == "sse", count),
                    None => not_found("write /sse/10: at most 1000000 events"),
                };
            }
            ("redirect", Some(hops)) => {
                return match hops.parse().ok().filter(|hops| *hops <= MAX_REDIRECTS) {
                    Some(hops) => redirect(hops),
                    None => not_found("write /redirect/2: at most 100 redirects to /"),
                };
            }
            _ => {}
        }
        let body = match service.status {
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => ResponseBody::Filler(0),
            _ => ResponseBody::Filler(service.size),
        };
        build_response(service.status, OCTET_STREAM_TYPE, body)
    }

    fn stream_events(service: &Arc<Self>, sse: bool, count: u32) -> Response<ResponseBody> {
        let (sender, receiver) = mpsc::channel(16);
        let service = Arc::clone(service);
        tokio::spawn(async move {
            for number in 0..count {
                if number > 0 && !service.pace.is_zero() {
                    service.scheduler.sleep(service.pace).await;
                }
                let text = if sse {
                    format!("data: {{\"n\":{number}}}\n\n")
                } else {
                    let done = number + 1 == count;
                    format!("{{\"n\":{number},\"done\":{done}}}\n")
                };
                // An error means that the client has disconnected.
                if sender.send(text.into()).await.is_err() {
                    return;
                }
                service.counters.events.fetch_add(1, Ordering::Relaxed);
            }
            if sse {
                let _ = sender.send(Bytes::from_static(b"data: [DONE]\n\n")).await;
            }
        });
        let kind = if sse {
            "text/event-stream"
        } else {
            "application/x-ndjson"
        };
        build_response(StatusCode::OK, kind, ResponseBody::Events(receiver))
    }
}

const OCTET_STREAM_TYPE: &str = "application/octet-stream";
const PLAIN_TEXT_TYPE: &str = "text/plain; charset=utf-8";

fn parse_size(text: &str) -> Option<u64> {
    let bytes = text.parse::<u64>().ok();
    bytes.or_else(|| text.parse::<ByteSize>().ok().map(|size| size.0))
}

fn build_response(
    status: StatusCode,
    kind: &'static str,
    body: ResponseBody,
) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn status_response(status: StatusCode) -> Response<ResponseBody> {
    let text = match status {
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => String::new(),
        _ => format!("{status}\n"),
    };
    let mut response = build_response(status, PLAIN_TEXT_TYPE, ResponseBody::Content(text.into()));
    if matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    ) {
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Returns the response for `/redirect/{hops}`, from which `/` is reached after `hops` redirects.
fn redirect(hops: u32) -> Response<ResponseBody> {
    let mut response = status_response(StatusCode::FOUND);
    let to = match hops {
        0 | 1 => "/".to_owned(),
        hops => format!("/redirect/{}", hops - 1),
    };
    if let Ok(to) = HeaderValue::try_from(to) {
        response.headers_mut().insert(LOCATION, to);
    }
    response
}

fn not_found(text: &str) -> Response<ResponseBody> {
    let text = Bytes::from(format!("{text}\n"));
    build_response(
        StatusCode::NOT_FOUND,
        PLAIN_TEXT_TYPE,
        ResponseBody::Content(text),
    )
}

async fn echo(request: Request<Incoming>) -> Response<ResponseBody> {
    let (head, mut body) = request.into_parts();
    let mut whole = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(frame) = frame else {
            return build_response(
                StatusCode::BAD_REQUEST,
                PLAIN_TEXT_TYPE,
                ResponseBody::Filler(0),
            );
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if whole.len() + data.len() > MAX_ECHO_BYTES {
            return build_response(
                StatusCode::PAYLOAD_TOO_LARGE,
                PLAIN_TEXT_TYPE,
                ResponseBody::Filler(0),
            );
        }
        whole.extend_from_slice(&data);
    }
    let mut response = build_response(
        StatusCode::OK,
        OCTET_STREAM_TYPE,
        ResponseBody::Content(whole.into()),
    );
    if let Some(kind) = head.headers.get(CONTENT_TYPE) {
        response.headers_mut().insert(CONTENT_TYPE, kind.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use plimsoll_serving::build_runtime;
    use plimsoll_serving::reference::default_flags;

    fn server() -> HttpServer {
        let service = HttpService {
            size: 7,
            status: StatusCode::OK,
            pace: Duration::ZERO,
            scheduler: ResponseScheduler::new(
                ResponseDelay::Constant(Duration::ZERO),
                default_flags(),
            )
            .unwrap(),
            pool: None,
            counters: HttpCounters::default(),
        };
        HttpServer {
            http: Builder::new(TokioExecutor::new()),
            service: Arc::new(service),
        }
    }

    /// Sends the first request on a connection that was made before the server was told to stop. Returns the
    /// response, read until `is_all` returns true, or until the connection ends.
    async fn answer(request: &[u8], is_all: fn(&[u8]) -> bool) -> Vec<u8> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (stop, stopped) = watch::channel(());
        stop.send(()).unwrap();
        let asking = async move {
            client.write_all(request).await.unwrap();
            let mut answer = Vec::new();
            while !is_all(&answer) && client.read_buf(&mut answer).await.unwrap_or(0) > 0 {}
            answer
        };
        tokio::join!(server().serve(stream, stopped), asking).1
    }

    /// Returns the types of the complete frames.
    fn kinds(mut frames: &[u8]) -> Vec<u8> {
        let mut kinds = Vec::new();
        while let Some((&[a, b, c, kind, ..], rest)) = frames.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some(rest) = rest.get(length..) else {
                break;
            };
            kinds.push(kind);
            frames = rest;
        }
        kinds
    }

    #[test]
    fn first_request_is_answered_during_shutdown() {
        const HEADERS: u8 = 1;
        const GOAWAY: u8 = 7;
        build_runtime(Some(1)).unwrap().block_on(async {
            let text = answer(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", |_| false).await;
            let text = String::from_utf8(text).unwrap();
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text:?}");
            assert!(text.contains("\r\nconnection: close\r\n"), "{text:?}");
            // An empty SETTINGS frame, then a request with :method, :path and :scheme of the static table, and
            // :authority.
            let request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
                \0\0\x06\x01\x05\0\0\0\x01\x82\x84\x86\x41\x01a";
            let is_all =
                |answer: &[u8]| [HEADERS, GOAWAY].iter().all(|k| kinds(answer).contains(k));
            let frames = answer(request, is_all).await;
            assert!(is_all(&frames), "{:?}", kinds(&frames));
        });
    }
}
