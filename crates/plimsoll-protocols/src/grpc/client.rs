//! A gRPC connection for queries, not for load: it reads a server's reflection and checks an echo service.
//!
//! The connection is tonic's client over hyper with the engine's TLS settings, so a query connects to the server in the
//! same way as the load. The commands in `query_commands` and the resolution of plans use it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll_engine::tls::TlsClient;
use plimsoll_engine::transport::tunnel::Tunnel;
use plimsoll_engine::worker::classify_connect_error;
use plimsoll_engine::{Address, ConnectFailure, ProtocolError};
use plimsoll_model::Outcome;
use plimsoll_wire::http2::{FrameHeader, kind as frame_kind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, join, split};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use tonic::{Code, Status};

use crate::http2::{connection_closed_error, other_protocol_error};
use crate::shared::dial::connect_to_target;

/// Why a server can't be queried.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The server can't be reached.
    #[error("{} [{}]", .0.detail, .0.outcome.code())]
    Link(ConnectFailure),
    /// The text is not a valid `:authority`.
    #[error("authority {0:?} is not a host or host:port")]
    Authority(String),
    /// The metadata entry with this name can't be sent.
    #[error("metadata {0:?}: not a name and a value that HTTP/2 can carry")]
    Metadata(String),
}

impl From<ProtocolError> for ConnectError {
    fn from(error: ProtocolError) -> ConnectError {
        ConnectError::link(error.outcome, error.detail)
    }
}

impl ConnectError {
    /// Returns the error for a failure before TLS is established.
    fn link(outcome: Outcome, detail: String) -> ConnectError {
        ConnectError::Link(ConnectFailure::new(outcome, detail))
    }

    /// Sets whether the proxy is at fault for the failure.
    fn at_proxy(mut self, is_at_proxy: bool) -> ConnectError {
        if let ConnectError::Link(failure) = &mut self {
            failure.is_at_proxy = is_at_proxy;
        }
        self
    }

    /// Marks a failure as one that followed the TLS handshake.
    fn after_tls(mut self) -> ConnectError {
        if let ConnectError::Link(failure) = &mut self {
            failure.is_after_tls = true;
        }
        self
    }
}

/// The address of a server, and the settings of connections to it.
#[derive(Clone, Debug)]
pub struct ServerEndpoint {
    /// The addresses of the server, or of the proxy in front of it, in the order in which they are tried.
    pub addresses: Arc<[Address]>,
    /// The tunnel through a proxy; `None`: a direct connection.
    pub tunnel: Option<Arc<Tunnel>>,
    /// The TLS client, with ALPN `h2`; `None`: plaintext.
    pub tls: Option<TlsClient>,
    /// The value of `:authority`.
    pub authority: String,
    /// The metadata of every call; `-bin` values in base64.
    pub metadata: Vec<(String, String)>,
    /// The timeout of TCP connection, TLS handshake and server preface together.
    pub connect_timeout: Duration,
}

/// An open connection for calls.
#[derive(Clone, Debug)]
pub struct GrpcConnection {
    sender: SendRequest<Body>,
    origin: Uri,
    metadata: HeaderMap,
}

impl GrpcConnection {
    /// Connects. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns the reason if the connection can't be established.
    pub async fn open(server: &ServerEndpoint) -> Result<GrpcConnection, ConnectError> {
        let until = Instant::now() + server.connect_timeout;
        let origin = parse_origin(server)?;
        let metadata = parse_metadata(server)?;
        let (what, is_at_proxy) = match server.tunnel {
            Some(_) => ("the proxy (load.proxy)", true),
            None => ("the TCP connection", false),
        };
        let tcp = connect_to_target(&server.addresses, server.tunnel.as_ref());
        let tcp = with_timeout(server, until, what, tcp).await;
        let tcp = tcp.map_err(|timeout| timeout.at_proxy(is_at_proxy))?;
        let tcp = tcp.map_err(ConnectError::Link)?;
        let sender = match &server.tls {
            None => {
                let greeted = start_http2(tcp, None);
                with_timeout(server, until, "the server's greeting", greeted).await??
            }
            Some(tls) => {
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls.config()));
                let handshake = connector.connect(tls.server_name().clone(), tcp);
                let secured = with_timeout(server, until, "the TLS handshake", handshake).await?;
                let secured = secured.map_err(|e| tls_error(tls, &e))?;
                if secured.get_ref().1.alpn_protocol() != Some(b"h2") {
                    return Err(ConnectError::link(
                        Outcome::TlsAlpn,
                        "tls: the server did not agree to protocol \"h2\" by ALPN".to_owned(),
                    ));
                }
                let greeted = start_http2(secured, Some(tls));
                with_timeout(server, until, "the server's greeting", greeted)
                    .await
                    .flatten()
                    .map_err(ConnectError::after_tls)?
            }
        };
        Ok(GrpcConnection {
            sender,
            origin,
            metadata,
        })
    }

    /// Returns a client for calls of any service. It accepts compressed answers, because some servers compress
    /// every answer, whatever a client offers.
    pub fn grpc_client(&self) -> Grpc<GrpcConnection> {
        Grpc::with_origin(self.clone(), self.origin.clone())
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate)
    }
}

/// Returns the outcome that a run would record for a status.
pub(super) fn outcome_from_code(code: Code) -> Outcome {
    Outcome::from_grpc_status(code as u32)
}

fn parse_origin(server: &ServerEndpoint) -> Result<Uri, ConnectError> {
    let secured = server.tls.is_some();
    let origin = Uri::builder()
        .scheme(if secured { "https" } else { "http" })
        .authority(server.authority.as_str())
        .path_and_query("/");
    origin
        .build()
        .map_err(|_| ConnectError::Authority(server.authority.clone()))
}

fn parse_metadata(server: &ServerEndpoint) -> Result<HeaderMap, ConnectError> {
    let mut fields = HeaderMap::new();
    for (name, value) in &server.metadata {
        let field = HeaderName::try_from(name)
            .ok()
            .zip(HeaderValue::try_from(value).ok());
        let (key, value) = field.ok_or_else(|| ConnectError::Metadata(name.clone()))?;
        fields.append(key, value);
    }
    Ok(fields)
}

/// Waits for `work`, at most for the connect timeout; `what` names the work in the error.
async fn with_timeout<T>(
    server: &ServerEndpoint,
    until: Instant,
    what: &str,
    work: impl Future<Output = T>,
) -> Result<T, ConnectError> {
    timeout_at(until, work).await.map_err(|_| {
        let limit = server.connect_timeout;
        let detail = format!("waited {limit:?} (load.connect_timeout) for {what}");
        ConnectError::link(Outcome::ConnectTimeout, detail)
    })
}

fn tls_error(tls: &TlsClient, error: &io::Error) -> ConnectError {
    let (outcome, detail) = tls.classify_connection_error(error);
    ConnectError::link(outcome, detail)
}

/// Starts HTTP/2 and waits for the server's first frame, which shows that the peer speaks HTTP/2. If it does not, the
/// error contains what the peer sent instead, which hyper's errors omit.
async fn start_http2<S>(
    stream: S,
    tls: Option<&TlsClient>,
) -> Result<SendRequest<Body>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, start) = oneshot::channel();
    let (reader, writer) = split(stream);
    let reader = FirstBytesReader {
        reader,
        start: Vec::new(),
        sender: Some(sender),
    };
    let stream = TokioIo::new(join(reader, writer));
    let begun = handshake(TokioExecutor::new(), stream).await;
    let sender = begun.ok().map(|(sender, connection)| {
        // Errors of the connection are reported by the calls on it.
        tokio::spawn(connection);
        sender
    });
    let gone = || Err(io::ErrorKind::ConnectionReset.into());
    match (start.await.unwrap_or_else(|_| gone()), sender) {
        (Ok(start), Some(sender)) if start.len() >= FrameHeader::LEN => {
            match other_protocol_error(&start).or_else(|| missing_settings_error(&start)) {
                Some(other) => Err(other.into()),
                None => Ok(sender),
            }
        }
        (Ok(start), _) => Err(match (other_protocol_error(&start), tls) {
            (None, Some(tls))
                if tls.lacks_client_certificate()
                    || tls.describe_suspected_rejection().is_some() =>
            {
                tls_error(tls, &io::ErrorKind::UnexpectedEof.into())
            }
            (other, _) => other
                .unwrap_or_else(|| connection_closed_error("before the server's SETTINGS"))
                .into(),
        }),
        (Err(e), _) => Err(match tls {
            Some(tls) => tls_error(tls, &e),
            None => {
                let detail = format!("{e} before the server's SETTINGS");
                ConnectError::link(classify_connect_error(&e), detail)
            }
        }),
    }
}

/// Returns an error if a server's first frame, of which `start` is the header, is not SETTINGS (RFC 9113 §3.4).
fn missing_settings_error(start: &[u8]) -> Option<ProtocolError> {
    let head = FrameHeader::parse(start.first_chunk()?);
    let name = frame_kind::name(head.kind()).unwrap_or("a frame of unknown type");
    (head.kind() != frame_kind::SETTINGS).then(|| ProtocolError {
        outcome: Outcome::ProtocolError,
        detail: format!("the server sent {name} before its SETTINGS (RFC 9113, 3.4)"),
    })
}

/// A reader that also reports its first bytes, up to the length of a frame header, or an earlier end of the
/// stream.
struct FirstBytesReader<R> {
    reader: R,
    start: Vec<u8>,
    sender: Option<oneshot::Sender<io::Result<Vec<u8>>>>,
}

impl<R> Drop for FirstBytesReader<R> {
    /// Reports the bytes received so far if a write failed first: they may contain a TLS alert.
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take().filter(|_| !self.start.is_empty()) {
            let _ = sender.send(Ok(std::mem::take(&mut self.start)));
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for FirstBytesReader<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut this.reader).poll_read(context, buffer));
        let Some(sender) = this.sender.take() else {
            return Poll::Ready(read);
        };
        if let Err(e) = read {
            let kind = e.kind();
            let result = match this.start.is_empty() {
                true => Err(e),
                // The received bytes are more informative than the error.
                false => Ok(std::mem::take(&mut this.start)),
            };
            // Sending fails if connecting was abandoned meanwhile.
            let _ = sender.send(result);
            return Poll::Ready(Err(kind.into()));
        }
        let new = &buffer.filled()[before..];
        this.start.extend_from_slice(new);
        if new.is_empty() || this.start.len() >= FrameHeader::LEN {
            let _ = sender.send(Ok(std::mem::take(&mut this.start)));
        } else {
            this.sender = Some(sender);
        }
        Poll::Ready(Ok(()))
    }
}

impl Service<Request<Body>> for GrpcConnection {
    type Response = Response<Body>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        for (name, value) in &self.metadata {
            request.headers_mut().append(name, value.clone());
        }
        let answered = self.sender.send_request(request);
        Box::pin(async { answered.await.map(into_grpc_response) })
    }
}

/// Returns the response if it is a gRPC response. Returns a status that describes any other response, such as a proxy's
/// error page, because tonic would decode the page as a message.
fn into_grpc_response(answer: Response<Incoming>) -> Response<Body> {
    let kind = answer.headers().get("content-type");
    let kind = kind.map_or("", |kind| kind.to_str().unwrap_or("?"));
    let http = answer.status();
    let is_grpc = http.is_success() && kind.starts_with("application/grpc");
    if is_grpc || answer.headers().contains_key("grpc-status") {
        return answer.map(Body::new);
    }
    let text = match kind {
        "" => format!("HTTP status {}", http.as_u16()),
        kind => format!("HTTP status {}, content-type {kind}", http.as_u16()),
    };
    Status::new(code_from_http_status(http.as_u16()), text).into_http()
}

/// Maps an HTTP status to a gRPC code (gRPC, "HTTP to gRPC Status Code Mapping").
fn code_from_http_status(http: u16) -> Code {
    match http {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}
