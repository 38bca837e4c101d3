//! One gRPC connection for questions, not for load: what a server's services are, and
//! whether an echo comes back as it should.
//!
//! Made of tonic's client over hyper, on the TLS settings of the engine, so that a
//! question is asked over the very link that the load will use. The binary calls this.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll_engine::tls::TlsClient;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response, Uri};

/// Why a server can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("connect to {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("connect to {address}: no answer within {limit:?}")]
    Slow { address: String, limit: Duration },
    #[error("TLS with {address}: {source}")]
    Tls { address: String, source: io::Error },
    #[error("HTTP/2 with {address}: {source}")]
    Http2 {
        address: String,
        source: hyper::Error,
    },
    #[error("authority {authority:?} is not a host or host:port")]
    Authority { authority: String },
}

/// Where the server is, and how the link is secured.
#[derive(Clone, Debug)]
pub struct Server {
    pub host: String,
    pub port: u16,
    /// Made with ALPN `h2`; `None`: plaintext.
    pub tls: Option<TlsClient>,
    /// `:authority`.
    pub authority: String,
    /// For TCP, TLS and HTTP/2 together.
    pub connect_timeout: Duration,
}

/// A connection that calls can be made on.
#[derive(Clone, Debug)]
pub struct Connection {
    sender: SendRequest<Body>,
    origin: Uri,
}

impl Connection {
    /// Connects; must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the link can't be made, with what was in its way.
    pub async fn open(server: &Server) -> Result<Connection, ConnectError> {
        let address = format!("{}:{}", server.host, server.port);
        let limit = server.connect_timeout;
        match timeout(limit, Connection::open_to(server, &address)).await {
            Ok(opened) => opened,
            Err(_) => Err(ConnectError::Slow { address, limit }),
        }
    }

    async fn open_to(server: &Server, address: &str) -> Result<Connection, ConnectError> {
        let scheme = if server.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let origin = Uri::builder()
            .scheme(scheme)
            .authority(server.authority.as_str())
            .path_and_query("/")
            .build()
            .map_err(|_| ConnectError::Authority {
                authority: server.authority.clone(),
            })?;
        let host = server.host.trim_start_matches('[').trim_end_matches(']');
        let tcp = TcpStream::connect((host, server.port))
            .await
            .map_err(|source| ConnectError::Connect {
                address: address.to_owned(),
                source,
            })?;
        let sender = match &server.tls {
            None => greet(tcp, address).await?,
            Some(tls) => {
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls.config()));
                let secured = connector.connect(tls.server_name().clone(), tcp).await;
                let secured = secured.map_err(|source| ConnectError::Tls {
                    address: address.to_owned(),
                    source,
                })?;
                greet(secured, address).await?
            }
        };
        Ok(Connection { sender, origin })
    }

    /// A client of any service.
    pub fn grpc(&self) -> Grpc<Connection> {
        Grpc::with_origin(self.clone(), self.origin.clone())
    }
}

async fn greet<S>(stream: S, address: &str) -> Result<SendRequest<Body>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(|source| ConnectError::Http2 {
            address: address.to_owned(),
            source,
        })?;
    // Its errors reach whoever has a call on it.
    tokio::spawn(connection);
    Ok(sender)
}

impl Service<Request<Body>> for Connection {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
