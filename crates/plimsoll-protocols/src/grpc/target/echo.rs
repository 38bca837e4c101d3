//! The reference server `echo`: `grpc.examples.echo.Echo`, with one method of each kind, and metadata in headers and
//! trailers.
//!
//! The headers of every response contain `location` and `timestamp` (when the call was read), and its trailers
//! `timestamp` (when the call ended), in the format of Go's `StampNano`, as in gRPC's own metadata example.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use clap::Args;
use hyper::body::Incoming;
use jiff::Timestamp;
use plimsoll_model::formats::units::Period;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::{Service, http};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::server::Grpc;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::generated::echo::{EchoRequest, EchoResponse};
use super::reflection_service::with_reflection;
use crate::grpc::MethodKind;
use plimsoll_serving::precise_timer::PreciseTimer;
use plimsoll_serving::reference::{ReferenceServer, ServeContext, ServerCounts, ServerFuture};
use plimsoll_serving::response_timing::MAX_DELAY;
use plimsoll_serving::{ServeError, http2};

/// The time before a paced response is due during which the server polls the clock instead of sleeping.
const POLL_LEAD_TIME: Duration = Duration::from_micros(50);

/// grpc.examples.echo.Echo: a method of each kind, timestamps in headers and trailers.
#[derive(Args, Clone, Debug)]
#[command(
    before_help = "Example: ten messages, 50 ms apart, for a call of ServerStreamingEcho\n  \
    plimsoll serve echo --listen 127.0.0.1:50054 --pace 50ms"
)]
pub struct EchoOptions {
    /// Number of answers to one message in server streaming.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub messages: u32,

    // Counted from when the previous response was due, even if it was sent late.
    /// Time between two answers.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub pace: Period,

    /// The value of `location` in the headers.
    #[arg(long, value_name = "TEXT", default_value = "local")]
    pub location: String,
}

impl ReferenceServer for EchoOptions {
    const COMMAND_NAME: &str = "echo";

    fn start(self, context: ServeContext) -> Result<ServerFuture, ServeError> {
        if MetadataValue::try_from(&self.location).is_err() {
            return Err(ServeError::invalid_option(
                "location",
                "not a metadata value: use printable ASCII",
            ));
        }
        if self.pace.0 > MAX_DELAY {
            return Err(ServeError::invalid_option(
                "pace",
                format!("{:?} is too long; at most {MAX_DELAY:?}", self.pace.0),
            ));
        }
        let alarms =
            PreciseTimer::new(POLL_LEAD_TIME).map_err(ServeError::io("creating a timer"))?;
        let echo = EchoService {
            options: Arc::new(self),
            alarms: Arc::new(alarms),
            counts: Arc::default(),
        };
        let counts = Arc::clone(&echo.counts);
        let echo = with_reflection(echo, "grpc.examples.echo.Echo")?;
        Ok(Box::pin(async move {
            let connections = http2::serve(context.bound, echo, context.stopped).await?;
            let counted = [
                ("calls", &counts.calls),
                ("messages received", &counts.received),
                ("messages sent", &counts.sent),
            ];
            Ok(ServerCounts::from_counters(connections, counted))
        }))
    }
}

#[derive(Debug, Default)]
struct EchoCounts {
    calls: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

/// The service. It serves every kind of call as a stream: on the wire a unary call is a stream of one message, and
/// tonic lets only streams set trailers.
#[derive(Clone)]
struct EchoService {
    options: Arc<EchoOptions>,
    alarms: Arc<PreciseTimer>,
    counts: Arc<EchoCounts>,
}

impl Service<http::Request<Incoming>> for EchoService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Incoming>) -> Self::Future {
        let path = request.uri().path();
        let kind = match path.strip_prefix("/grpc.examples.echo.Echo/") {
            Some("UnaryEcho") => MethodKind::Unary,
            Some("ServerStreamingEcho") => MethodKind::ServerStreaming,
            Some("ClientStreamingEcho") => MethodKind::ClientStreaming,
            Some("BidirectionalStreamingEcho") => MethodKind::Bidirectional,
            _ => {
                let unknown = Status::unimplemented(format!("no method {path}"));
                return Box::pin(async move { Ok(unknown.into_http()) });
            }
        };
        let handler = EchoHandler {
            kind,
            echo: self.clone(),
        };
        Box::pin(async move {
            let codec = ProstCodec::<EchoResponse, EchoRequest>::default();
            let mut grpc = Grpc::new(codec).accept_compressed(CompressionEncoding::Gzip);
            if request.headers().contains_key("grpc-encoding") {
                grpc = grpc.send_compressed(CompressionEncoding::Gzip);
            }
            Ok(grpc.streaming(handler, request).await)
        })
    }
}

struct EchoHandler {
    kind: MethodKind,
    echo: EchoService,
}

impl Service<Request<Streaming<EchoRequest>>> for EchoHandler {
    type Response = Response<EchoAnswers>;
    type Error = Status;
    type Future = Ready<Result<Response<EchoAnswers>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<EchoRequest>>) -> Self::Future {
        let EchoService {
            options,
            alarms,
            counts,
        } = &self.echo;
        counts.calls.fetch_add(1, Ordering::Relaxed);
        let mut answer = Response::new(EchoAnswers {
            kind: self.kind,
            requests: request.into_inner(),
            counts: Arc::clone(counts),
            repeats: options.messages,
            pace: options.pace.0,
            alarms: Arc::clone(alarms),
            due: None,
            pause: None,
            text: None,
            left: 0,
            stage: EchoStage::Reading,
        });
        add_timestamp(answer.metadata_mut());
        if let Ok(location) = MetadataValue::try_from(&options.location) {
            answer.metadata_mut().insert("location", location);
        }
        ready(Ok(answer))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EchoStage {
    Reading,
    /// All requests were read; the remaining responses are sent.
    Answering,
    Ended,
}

/// The responses of one call.
struct EchoAnswers {
    kind: MethodKind,
    requests: Streaming<EchoRequest>,
    counts: Arc<EchoCounts>,
    repeats: u32,
    pace: Duration,
    alarms: Arc<PreciseTimer>,
    /// When the last response was due.
    due: Option<Instant>,
    pause: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The text that the client sent last.
    text: Option<String>,
    /// The number of remaining responses to `text`.
    left: u32,
    stage: EchoStage,
}

impl EchoAnswers {
    fn on_request(&mut self, message: EchoRequest) {
        self.counts.received.fetch_add(1, Ordering::Relaxed);
        self.text = Some(message.message);
        (self.left, self.stage) = match self.kind {
            MethodKind::Unary => (1, EchoStage::Answering),
            MethodKind::ServerStreaming => (self.repeats, EchoStage::Answering),
            MethodKind::ClientStreaming => (0, EchoStage::Reading),
            MethodKind::Bidirectional => (1, EchoStage::Reading),
        };
    }

    fn next_answer(&mut self) -> EchoResponse {
        self.left -= 1;
        if self.left > 0 && !self.pace.is_zero() {
            let due = self.due.unwrap_or_else(Instant::now) + self.pace;
            let alarms = Arc::clone(&self.alarms);
            self.due = Some(due);
            self.pause = Some(Box::pin(async move { alarms.sleep_until(due).await }));
        }
        self.counts.sent.fetch_add(1, Ordering::Relaxed);
        EchoResponse {
            message: self.text.clone().unwrap_or_default(),
        }
    }

    /// Handles the end of the client's messages.
    fn on_half_close(&mut self) -> Option<Status> {
        self.stage = EchoStage::Answering;
        match (self.kind, &self.text) {
            (MethodKind::Unary | MethodKind::ServerStreaming, None) => {
                self.stage = EchoStage::Ended;
                Some(Status::invalid_argument("a call without a message"))
            }
            (MethodKind::ClientStreaming, _) => {
                self.left = 1;
                None
            }
            _ => None,
        }
    }
}

impl Stream for EchoAnswers {
    type Item = Result<EchoResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(context));
                this.pause = None;
            }
            if this.left > 0 {
                return Poll::Ready(Some(Ok(this.next_answer())));
            }
            match this.stage {
                EchoStage::Ended => return Poll::Ready(None),
                EchoStage::Answering => {
                    this.stage = EchoStage::Ended;
                    return Poll::Ready(Some(Err(final_status())));
                }
                EchoStage::Reading => {}
            }
            match ready!(Pin::new(&mut this.requests).poll_next(context)) {
                Some(Ok(message)) => this.on_request(message),
                Some(Err(status)) => {
                    this.stage = EchoStage::Ended;
                    return Poll::Ready(Some(Err(status)));
                }
                None => {
                    if let Some(status) = this.on_half_close() {
                        return Poll::Ready(Some(Err(status)));
                    }
                }
            }
        }
    }
}

/// Returns the time as `Nov 21 07:00:00.000000000`.
fn current_timestamp() -> String {
    Timestamp::now().strftime("%b %e %H:%M:%S.%9f").to_string()
}

fn add_timestamp(metadata: &mut MetadataMap) {
    if let Ok(value) = MetadataValue::try_from(current_timestamp()) {
        metadata.insert("timestamp", value);
    }
}

/// Returns the end of a stream: status OK with a trailer. (tonic takes the trailers from the status of a
/// streamed response.)
fn final_status() -> Status {
    let mut trailers = MetadataMap::new();
    add_timestamp(&mut trailers);
    Status::with_metadata(Code::Ok, "", trailers)
}
