//! The rendezvous over TCP, for shards without a shared folder or object store: shard 0 serves a folder
//! ([`super::host`]), and the other shards send it the requests that they would otherwise send to a store.
//!
//! The first request of a connection contains a secret token; then requests and answers alternate. A frame consists of
//! the lengths of head and body (four bytes each, in network byte order), the head and the body. The head is JSON, and
//! the body is an object's content. Invariant: a peer without the token can't make the other side read more than a
//! short head.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use plimsoll_engine::tls::files::{self, FileError, NamedFile};
use plimsoll_engine::tls::trust::{ServerVerifier, TrustAnchors, TrustPolicy};
use plimsoll_engine::transport::address::LocalResourceError;
use plimsoll_model::plan::TlsVersion;
use plimsoll_serving::{BoundServer, ListenOptions, ServeError, ServerTlsOptions};
use plimsoll_stack::certificates::CertificatePaths;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use super::{StoreRequest, StoreResponse};

/// Version of this protocol; incremented on incompatible changes.
const PROTOCOL_VERSION: u32 = 2;

/// Maximum size of a head, bytes: three times the size of a listing of 10,000 shards.
const MAX_HEAD_BYTES: u32 = 1 << 20;

/// Maximum size of the first head, bytes.
const MAX_HELLO_BYTES: u32 = 4 << 10;

/// Maximum size of a body, bytes; the largest are compressed log parts.
const MAX_BODY_BYTES: u32 = 256 << 20;

/// Maximum number of unauthenticated connections; if another one arrives, the oldest is closed.
const MAX_UNAUTHENTICATED_CONNECTIONS: usize = 256;

/// Limits of head and body, in bytes, before the peer has sent the token.
pub(super) const FIRST_FRAME_LIMITS: (u32, u32) = (MAX_HELLO_BYTES, 0);
/// Limits of head and body, in bytes, once the peer has sent the token.
pub(super) const FRAME_LIMITS: (u32, u32) = (MAX_HEAD_BYTES, MAX_BODY_BYTES);

/// Credentials for a tcp:// rendezvous.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct RendezvousAccess {
    /// The secret of a tcp:// rendezvous, at least 16 characters. Better set by its variable: other users can read the
    /// command line.
    #[arg(
        id = "rendezvous_token",
        long = "rendezvous-token",
        hide_env_values = true
    )]
    #[arg(value_name = "TOKEN", help_heading = "Shards")]
    token: Option<String>,

    /// Mutual TLS for a tcp:// rendezvous: a folder that `plimsoll certs` wrote for the server HOST.
    #[arg(id = "rendezvous_certs", long = "rendezvous-certs")]
    #[arg(value_name = "DIR", help_heading = "Shards")]
    pub(super) certs: Option<PathBuf>,
}

/// A request to shard 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RendezvousRequest {
    Hello {
        version: u32,
        token: String,
    },
    #[serde(untagged)]
    Ask(StoreRequest),
}

/// The head of a frame, which is sent as JSON. The frame's body is moved out of the head and sent after it.
pub(super) trait StoreFrameHead: Serialize + DeserializeOwned {
    fn body(&mut self) -> Option<&mut Vec<u8>>;
}

impl StoreFrameHead for RendezvousRequest {
    fn body(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            RendezvousRequest::Ask(StoreRequest::Put { bytes, .. }) => Some(bytes),
            _ => None,
        }
    }
}

impl StoreFrameHead for StoreResponse {
    fn body(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            StoreResponse::Bytes { bytes, .. } => Some(bytes),
            _ => None,
        }
    }
}

/// A connection with or without TLS.
trait RendezvousStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> RendezvousStream for T {}

/// Writes a frame.
///
/// # Errors
/// When the connection fails, or head or body is too large.
pub(super) async fn write_frame(
    stream: &mut (impl AsyncWrite + Unpin + ?Sized),
    mut head: impl StoreFrameHead,
) -> std::io::Result<()> {
    let body = head.body().map(std::mem::take).unwrap_or_default();
    let head = super::super::objects::to_json(&head);
    let mut bytes = Vec::with_capacity(8 + head.len() + body.len());
    for length in [head.len(), body.len()] {
        let length = u32::try_from(length).map_err(|_| invalid_data_error("more than 4 GB"))?;
        bytes.extend(length.to_be_bytes());
    }
    bytes.extend(&head);
    bytes.extend(&body);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Reads the next frame; `None` if the peer closed the connection between frames. `limits` are [`FIRST_FRAME_LIMITS`]
/// or [`FRAME_LIMITS`].
///
/// # Errors
/// When the connection fails, or the bytes received are not a valid frame.
pub(super) async fn read_frame<T: StoreFrameHead>(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    (max_head, max_body): (u32, u32),
) -> std::io::Result<Option<T>> {
    let mut lengths = [0; 8];
    let begun = stream.read(&mut lengths).await?;
    if begun == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut lengths[begun..]).await?;
    let length = |at: usize| {
        let bytes = [0, 1, 2, 3].map(|i| lengths[at + i]);
        u32::from_be_bytes(bytes)
    };
    if length(0) > max_head || length(4) > max_body {
        return Err(invalid_data_error("the frame exceeds the maximum length"));
    }
    let mut head = vec![0; length(0) as usize];
    stream.read_exact(&mut head).await?;
    // Let the buffer grow as data arrives, so that a peer can't cause an allocation by announcing a large length.
    let mut body = Vec::new();
    let wanted = u64::from(length(4));
    let found = stream.take(wanted).read_to_end(&mut body).await?;
    if found as u64 != wanted {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let mut head: T =
        serde_json::from_slice(&head).map_err(|e| invalid_data_error(e.to_string()))?;
    if let Some(place) = head.body() {
        *place = body;
    }
    Ok(Some(head))
}

fn invalid_data_error(
    problem: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, problem)
}

/// Checks version and token in the first frame.
///
/// # Errors
/// Returns the reason to send to the peer if the frame is rejected.
pub(super) fn check_hello(first: &RendezvousRequest, token: &str) -> Result<(), String> {
    let RendezvousRequest::Hello {
        version,
        token: shown,
    } = first
    else {
        return Err("a connection must begin with the token".to_owned());
    };
    if *version != PROTOCOL_VERSION {
        return Err("shard 0 runs another version of plimsoll".to_owned());
    }
    aws_lc_rs::constant_time::verify_slices_are_equal(shown.as_bytes(), token.as_bytes())
        .map_err(|_| "its token differs from shard 0's (--rendezvous-token)".to_owned())
}

/// The client of shard 0's store, in all other shards.
pub(super) struct StoreClient {
    /// The server as HOST:PORT.
    address: String,
    token: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// The connection; `None` while a request is in flight. A cancelled request drops the connection, so its answer
    /// can't be mistaken for the answer to a later request.
    connection: Mutex<Option<Box<dyn RendezvousStream>>>,
}

impl StoreClient {
    /// Creates a client; the connection is opened by the first request.
    ///
    /// # Errors
    /// When the token is missing, or certificates can't be used.
    pub(super) fn new(
        address: &RendezvousAddress,
        access: &RendezvousAccess,
    ) -> Result<StoreClient, String> {
        let tls = match &access.certs {
            None => None,
            Some(dir) => {
                let config =
                    client_config(&CertificatePaths::for_dir(dir)).map_err(|e| e.to_string())?;
                let bare = address.host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(bare.to_owned())
                    .map_err(|_| format!("{bare:?} is neither a DNS name nor an IP address"))?;
                Some((TlsConnector::from(config), name))
            }
        };
        Ok(StoreClient {
            address: format!("{}:{}", address.host, address.port),
            token: access.token()?,
            tls,
            connection: Mutex::new(None),
        })
    }

    pub(super) async fn send(&self, ask: StoreRequest) -> StoreResponse {
        let mut place = self.connection.lock().await;
        let mut connection = match place.take() {
            Some(connection) => connection,
            None => match self.connect().await {
                Ok(Ok(connection)) => connection,
                Ok(Err(refused)) => return refused,
                Err(e) => return failure_response(&e),
            },
        };
        match exchange(&mut *connection, RendezvousRequest::Ask(ask)).await {
            Ok(answer) => {
                *place = Some(connection);
                answer
            }
            Err(e) => failure_response(&e),
        }
    }

    /// Opens a connection. The inner error is the server's answer if it rejects the token.
    async fn connect(&self) -> std::io::Result<Result<Box<dyn RendezvousStream>, StoreResponse>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let mut stream: Box<dyn RendezvousStream> = match &self.tls {
            None => Box::new(stream),
            Some((tls, name)) => Box::new(tls.connect(name.clone(), stream).await?),
        };
        let hello = RendezvousRequest::Hello {
            version: PROTOCOL_VERSION,
            token: self.token.clone(),
        };
        Ok(match exchange(&mut *stream, hello).await? {
            StoreResponse::Done => Ok(stream),
            other => Err(other),
        })
    }
}

async fn exchange(
    stream: &mut dyn RendezvousStream,
    request: RendezvousRequest,
) -> std::io::Result<StoreResponse> {
    write_frame(stream, request).await?;
    read_frame(stream, FRAME_LIMITS).await?.ok_or_else(|| {
        std::io::Error::new(
            std::io::ErrorKind::ConnectionReset,
            "the connection was closed without an answer: give all shards the same --rendezvous-certs, or none of them",
        )
    })
}

/// Converts an error to an answer: TLS errors are permanent, all others can be retried.
fn failure_response(error: &std::io::Error) -> StoreResponse {
    let for_good = error
        .get_ref()
        .is_some_and(|inner| inner.is::<rustls::Error>());
    StoreResponse::Failed {
        problem: LocalResourceError::from_library_error(error)
            .map_or_else(|| error.to_string(), |lack| lack.to_string()),
        for_good,
    }
}

/// Host and port of a `tcp://` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RendezvousAddress {
    pub(super) host: String,
    pub(super) port: u16,
}

impl RendezvousAddress {
    /// Parses `HOST:PORT`.
    ///
    /// # Errors
    /// When `text` is not of this form, or the port is 0.
    pub(super) fn parse(text: &str) -> Result<RendezvousAddress, String> {
        let form = "write tcp://HOST:PORT, with a port that shard 0 can listen on";
        let (host, port) = text.rsplit_once(':').ok_or(form)?;
        let port: u16 = port.parse().map_err(|_| form.to_owned())?;
        if host.is_empty() || host.contains('/') || port == 0 {
            Err(form.to_owned())
        } else {
            Ok(RendezvousAddress {
                host: host.to_owned(),
                port,
            })
        }
    }

    /// Binds shard 0's port, on the host's address if this machine has it. Otherwise the host is a load balancer or
    /// NAT, and the port is bound on all addresses.
    ///
    /// # Errors
    /// When certificates can't be used, or the port is in use.
    pub(super) fn listen(&self, access: &RendezvousAccess) -> Result<BoundServer, ServeError> {
        let tls = access.certs.as_deref().map(CertificatePaths::for_dir);
        let tls = tls.map(|set| ServerTlsOptions {
            cert: set.server_cert,
            key: set.server_key,
            client_ca: Some(set.ca_cert),
            client_crl: None,
            versions: vec![TlsVersion::V1_3],
            compressed: false,
            suites: Vec::new(),
            groups: Vec::new(),
        });
        let bind = |address: SocketAddr| {
            let listen = ListenOptions {
                address: address.into(),
                tls: tls.clone(),
                max_unproven: Some(MAX_UNAUTHENTICATED_CONNECTIONS),
                ..ListenOptions::default()
            };
            listen.bind()
        };
        let named = (self.host.trim_matches(['[', ']']), self.port).to_socket_addrs();
        let is_elsewhere = |error: &ServeError| {
            let ServeError::Address { source, .. } = error else {
                return false;
            };
            source.kind() == std::io::ErrorKind::AddrNotAvailable
        };
        let mut taken = None;
        for address in named.into_iter().flatten() {
            match bind(address) {
                Ok(bound) => return Ok(bound),
                Err(e) if is_elsewhere(&e) => {}
                Err(e) => taken = Some(e),
            }
        }
        match taken {
            Some(e) => Err(e),
            None => bind((Ipv4Addr::UNSPECIFIED, self.port).into()),
        }
    }
}

impl RendezvousAccess {
    /// Returns the token.
    ///
    /// # Errors
    /// When no token is set, or the token is so short that it could be guessed.
    pub(super) fn token(&self) -> Result<String, String> {
        match self.token.as_deref() {
            Some(token) if token.len() >= 16 => Ok(token.to_owned()),
            Some(_) => Err("the token is shorter than 16 characters: give all shards the same long one, such as `openssl rand -hex 16` prints".to_owned()),
            None => Err("tcp:// needs a token that all shards have: PLIMSOLL_RENDEZVOUS_TOKEN, or --rendezvous-token".to_owned()),
        }
    }
}

/// Returns a client configuration for mutual TLS 1.3 with the certificates in `set`.
fn client_config(set: &CertificatePaths) -> Result<Arc<ClientConfig>, FileError> {
    let provider = Arc::new(plimsoll_engine::tls::crypto_provider(&[], &[]));
    let anchors = TrustAnchors::read(NamedFile("CA of the rendezvous", &set.ca_cert))?;
    let check = ServerVerifier::new(TrustPolicy::Anchors(anchors), &provider, Arc::default());
    let identity = files::read_identity(
        NamedFile("client certificate of the rendezvous", &set.client_cert),
        NamedFile("its key", &set.client_key),
        &provider,
    )?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| NamedFile("CA of the rendezvous", &set.ca_cert).error(e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(check))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(future)
    }

    fn frame(request: &RendezvousRequest) -> Vec<u8> {
        let mut bytes = Vec::new();
        block_on(write_frame(&mut bytes, request.clone())).unwrap();
        bytes
    }

    fn read(mut bytes: &[u8], limits: (u32, u32)) -> std::io::Result<Option<RendezvousRequest>> {
        block_on(super::read_frame(&mut bytes, limits))
    }

    #[test]
    fn frame_round_trips_and_rejects_truncation() {
        let put = RendezvousRequest::Ask(StoreRequest::Put {
            name: "r1/logs/00003/00000001.zst".into(),
            bytes: b"body".to_vec(),
            create: true,
        });
        let bytes = frame(&put);
        assert_eq!(read(&bytes, FRAME_LIMITS).unwrap(), Some(put));
        assert_eq!(read(&bytes[..0], FRAME_LIMITS).unwrap(), None);
        for end in 1..bytes.len() {
            assert!(read(&bytes[..end], FRAME_LIMITS).is_err(), "cut at {end}");
        }
        // A peer that has not sent the token may send a short head and no body.
        assert!(read(&bytes, FIRST_FRAME_LIMITS).is_err());
        let long = RendezvousRequest::Hello {
            version: PROTOCOL_VERSION,
            token: "x".repeat(MAX_HELLO_BYTES as usize),
        };
        assert!(read(&frame(&long), FIRST_FRAME_LIMITS).is_err());
        let lengths = [[0xff; 4], [0; 4]].concat();
        assert!(read(&lengths, FRAME_LIMITS).is_err());
        for ask in [
            StoreRequest::Get("a".into()),
            StoreRequest::List("b".into()),
        ] {
            let request = RendezvousRequest::Ask(ask);
            let found = read(&frame(&request), FRAME_LIMITS).unwrap();
            assert_eq!(found, Some(request));
        }
    }

    #[test]
    fn hello_without_valid_token_is_rejected() {
        let hello = |version, token: &str| RendezvousRequest::Hello {
            version,
            token: token.into(),
        };
        let token = "0123456789abcdef";
        assert_eq!(check_hello(&hello(PROTOCOL_VERSION, token), token), Ok(()));
        for (head, words) in [
            (
                hello(PROTOCOL_VERSION, "0123456789abcdeF"),
                "its token differs",
            ),
            (hello(PROTOCOL_VERSION, ""), "its token differs"),
            (hello(PROTOCOL_VERSION + 1, token), "another version"),
            (
                RendezvousRequest::Ask(StoreRequest::Get("x".into())),
                "must begin with the token",
            ),
        ] {
            let refused = check_hello(&head, token).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
        let access = |token: Option<&str>| RendezvousAccess {
            token: token.map(str::to_owned),
            certs: None,
        };
        assert!(access(None).token().is_err());
        assert!(access(Some("short")).token().is_err());
        assert!(access(Some(token)).token().is_ok());
    }

    #[test]
    fn address_requires_host_and_port() {
        let there = RendezvousAddress::parse("[::1]:7117").unwrap();
        assert_eq!((there.host.as_str(), there.port), ("[::1]", 7117));
        for text in ["host", "host:0", ":7", "host:x", "a/b:7", "host:70000"] {
            assert!(RendezvousAddress::parse(text).is_err(), "{text}");
        }
    }
}
