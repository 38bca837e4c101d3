//! A rendezvous over TCP, where shards share no store: shard 0 serves a folder of its own
//! ([`super::host`]), and the others ask it what they would ask a store.
//!
//! A connection begins with the token and its answer; then each request has an answer before the
//! next one is made. A frame is the lengths of a head and a body, four bytes each, most
//! significant first, then both. A head is JSON; a body is what an object holds. Invariant: nobody
//! without the token can make the other side read more than a short head.

use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_engine::tls::files::{self, FileError, Named};
use plimsoll_engine::tls::trust::{Anchors, ClientCheck, ServerCheck, Trust};
use plimsoll_stack::certificates::CertificateSet;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ServerConfig};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use super::{Answer, Ask};

/// Changes when one side can't understand the other any more.
const VERSION: u32 = 1;

/// Bytes of a head: the names of 10,000 shards are a third of it.
const MAX_HEAD: u32 = 1 << 20;

/// Bytes of the first head.
const MAX_HELLO: u32 = 4 << 10;

/// Bytes of a body: of a part of a log, compressed.
const MAX_BODY: u32 = 256 << 20;

/// Bytes of head and body of a frame by somebody who has not shown the token yet.
pub(super) const FIRST_FRAME: (u32, u32) = (MAX_HELLO, 0);
/// The same of all others.
pub(super) const FRAME: (u32, u32) = (MAX_HEAD, MAX_BODY);

/// What is written to `tcp://` besides its address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) token: Option<String>,
    /// A folder of `plimsoll certs`.
    pub(crate) certs: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Head {
    Hello { version: u32, token: String },
    Put { name: String, create: bool },
    Get { name: String },
    List { folder: String },
    Done,
    Exists,
    Bytes { modified_unix_ns: u64 },
    Missing,
    Names { names: Vec<String> },
    Failed { problem: String, for_good: bool },
}

impl Head {
    pub(super) fn of_ask(ask: Ask) -> (Head, Vec<u8>) {
        match ask {
            Ask::Put {
                name,
                bytes,
                create,
            } => (Head::Put { name, create }, bytes),
            Ask::Get(name) => (Head::Get { name }, Vec::new()),
            Ask::List(folder) => (Head::List { folder }, Vec::new()),
        }
    }

    /// `None`: it is no request.
    pub(super) fn into_ask(self, bytes: Vec<u8>) -> Option<Ask> {
        match self {
            Head::Put { name, create } => Some(Ask::Put {
                name,
                bytes,
                create,
            }),
            Head::Get { name } => Some(Ask::Get(name)),
            Head::List { folder } => Some(Ask::List(folder)),
            _ => None,
        }
    }

    pub(super) fn of_answer(answer: Answer) -> (Head, Vec<u8>) {
        match answer {
            Answer::Done => (Head::Done, Vec::new()),
            Answer::Exists => (Head::Exists, Vec::new()),
            Answer::Bytes {
                bytes,
                modified_unix_ns,
            } => (Head::Bytes { modified_unix_ns }, bytes),
            Answer::Missing => (Head::Missing, Vec::new()),
            Answer::Names(names) => (Head::Names { names }, Vec::new()),
            Answer::Failed { problem, for_good } => {
                (Head::Failed { problem, for_good }, Vec::new())
            }
        }
    }

    fn into_answer(self, bytes: Vec<u8>) -> Answer {
        match self {
            Head::Done => Answer::Done,
            Head::Exists => Answer::Exists,
            Head::Bytes { modified_unix_ns } => Answer::Bytes {
                bytes,
                modified_unix_ns,
            },
            Head::Missing => Answer::Missing,
            Head::Names { names } => Answer::Names(names),
            Head::Failed { problem, for_good } => Answer::Failed { problem, for_good },
            Head::Hello { .. } | Head::Put { .. } | Head::Get { .. } | Head::List { .. } => {
                Answer::Failed {
                    problem: "the rendezvous answers with a request".to_owned(),
                    for_good: true,
                }
            }
        }
    }
}

/// A connection, secured or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// # Errors
/// When the connection fails.
pub(super) async fn write(
    stream: &mut (impl AsyncWrite + Unpin + ?Sized),
    head: &Head,
    body: &[u8],
) -> std::io::Result<()> {
    let head = super::super::objects::to_json(head);
    let mut bytes = Vec::with_capacity(8 + head.len() + body.len());
    for length in [head.len(), body.len()] {
        let length = u32::try_from(length).map_err(|_| invalid("more than 4 GB"))?;
        bytes.extend(length.to_be_bytes());
    }
    bytes.extend(&head);
    bytes.extend(body);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// The next frame; `None`: the other side has closed the connection between two. `limits`: [`FIRST_FRAME`] or
/// [`FRAME`].
///
/// # Errors
/// When the connection fails, or carries something else.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    (max_head, max_body): (u32, u32),
) -> std::io::Result<Option<(Head, Vec<u8>)>> {
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
        return Err(invalid("a frame longer than any"));
    }
    let mut head = vec![0; length(0) as usize];
    stream.read_exact(&mut head).await?;
    // What comes is believed as it comes: no memory is taken for a length alone.
    let mut body = Vec::new();
    let wanted = u64::from(length(4));
    let found = stream.take(wanted).read_to_end(&mut body).await?;
    if found as u64 != wanted {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let head = serde_json::from_slice(&head).map_err(|e| invalid(e.to_string()))?;
    Ok(Some((head, body)))
}

fn invalid(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, problem)
}

/// What the first frame says, and whether it is `token`'s; what is answered otherwise.
pub(super) fn admit(head: &Head, token: &str) -> Result<(), String> {
    let Head::Hello {
        version,
        token: shown,
    } = head
    else {
        return Err("a connection begins with the token".to_owned());
    };
    if *version != VERSION {
        return Err("another version of plimsoll leads the run".to_owned());
    }
    aws_lc_rs::constant_time::verify_slices_are_equal(shown.as_bytes(), token.as_bytes())
        .map_err(|_| "it has another token (--rendezvous-token)".to_owned())
}

/// The other shards' side.
pub(super) struct Link {
    /// HOST:PORT.
    address: String,
    token: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Taken while a request is under way, so that one that is given up ends the connection: its
    /// answer can't be taken for another's.
    connection: Mutex<Option<Box<dyn Stream>>>,
}

impl Link {
    /// # Errors
    /// Where the token is missing, or certificates can't be used.
    pub(super) fn new(address: &Address, access: &Access) -> Result<Link, String> {
        let tls = match &access.certs {
            None => None,
            Some(dir) => {
                let config = client(&CertificateSet::in_dir(dir)).map_err(|e| e.to_string())?;
                let bare = address.host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(bare.to_owned())
                    .map_err(|_| format!("{bare:?} is neither a DNS name nor an IP address"))?;
                Some((TlsConnector::from(config), name))
            }
        };
        Ok(Link {
            address: format!("{}:{}", address.host, address.port),
            token: access.token()?,
            tls,
            connection: Mutex::new(None),
        })
    }

    pub(super) async fn ask(&self, ask: Ask) -> Answer {
        let mut place = self.connection.lock().await;
        let mut connection = match place.take() {
            Some(connection) => connection,
            None => match self.connect().await {
                Ok(Ok(connection)) => connection,
                Ok(Err(refused)) => return refused,
                Err(e) => return failed(&e),
            },
        };
        match exchange(&mut *connection, Head::of_ask(ask)).await {
            Ok((head, body)) => {
                *place = Some(connection);
                head.into_answer(body)
            }
            Err(e) => failed(&e),
        }
    }

    /// A connection that was let in, or the answer of one that was not.
    async fn connect(&self) -> std::io::Result<Result<Box<dyn Stream>, Answer>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let mut stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(stream),
            Some((tls, name)) => Box::new(tls.connect(name.clone(), stream).await?),
        };
        let hello = Head::Hello {
            version: VERSION,
            token: self.token.clone(),
        };
        let (head, body) = exchange(&mut *stream, (hello, Vec::new())).await?;
        Ok(match head {
            Head::Done => Ok(stream),
            other => Err(other.into_answer(body)),
        })
    }
}

async fn exchange(
    stream: &mut dyn Stream,
    (head, body): (Head, Vec<u8>),
) -> std::io::Result<(Head, Vec<u8>)> {
    write(stream, &head, &body).await?;
    read(stream, FRAME).await?.ok_or_else(|| {
        std::io::Error::new(
            std::io::ErrorKind::ConnectionReset,
            "the connection was closed without an answer: give all shards the same --rendezvous-certs, or none of them",
        )
    })
}

/// A certificate that is refused once is refused again; all else may be better later.
fn failed(error: &std::io::Error) -> Answer {
    let for_good = error
        .get_ref()
        .is_some_and(|inner| inner.is::<rustls::Error>());
    Answer::Failed {
        problem: error.to_string(),
        for_good,
    }
}

/// What `tcp://` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// `HOST:PORT`.
    ///
    /// # Errors
    /// Where it is something else.
    pub(super) fn parse(text: &str) -> Result<Address, String> {
        let form = "write tcp://HOST:PORT, with a port that shard 0 can listen at";
        let (host, port) = text.rsplit_once(':').ok_or(form)?;
        let port: u16 = port.parse().map_err(|_| form.to_owned())?;
        match host.is_empty() || host.contains('/') || port == 0 {
            true => Err(form.to_owned()),
            false => Ok(Address {
                host: host.to_owned(),
                port,
            }),
        }
    }

    /// Where shard 0 listens: at the host's address where that is one of this machine's, and
    /// otherwise (the name is that of something before it) at all of them.
    ///
    /// # Errors
    /// When the port can't be had.
    pub(super) fn listen(&self) -> std::io::Result<std::net::TcpListener> {
        let named = (self.host.trim_matches(['[', ']']), self.port).to_socket_addrs();
        let mut taken = None;
        for address in named.into_iter().flatten() {
            match std::net::TcpListener::bind(address) {
                Ok(listener) => return Ok(listener),
                Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => {}
                Err(e) => taken = Some(e),
            }
        }
        match taken {
            Some(e) => Err(e),
            None => std::net::TcpListener::bind(("0.0.0.0", self.port)),
        }
    }
}

impl Access {
    /// # Errors
    /// Where there is none, or one that anybody guesses.
    pub(super) fn token(&self) -> Result<String, String> {
        match self.token.as_deref() {
            Some(token) if token.len() >= 16 => Ok(token.to_owned()),
            Some(_) => Err("the token is shorter than 16 characters: give all shards the same long one, such as `openssl rand -hex 16` prints".to_owned()),
            None => Err("tcp:// needs a token that all shards have: PLIMSOLL_RENDEZVOUS_TOKEN, or --rendezvous-token".to_owned()),
        }
    }
}

/// Mutual TLS 1.3 by the certificates of a set.
fn client(set: &CertificateSet) -> Result<Arc<ClientConfig>, FileError> {
    let provider = Arc::new(plimsoll_engine::tls::provider(&[], &[]));
    let anchors = Anchors::read(Named("CA of the rendezvous", &set.ca_cert))?;
    let check = ServerCheck::new(Trust::Anchors(anchors), &provider, Arc::default());
    let identity = files::identity(
        Named("client certificate of the rendezvous", &set.client_cert),
        Named("its key", &set.client_key),
        &provider,
    )?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Named("CA of the rendezvous", &set.ca_cert).bad(e.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(check))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    Ok(Arc::new(config))
}

/// Shard 0's side of the same.
pub(super) fn server(set: &CertificateSet) -> Result<Arc<ServerConfig>, FileError> {
    let provider = Arc::new(plimsoll_engine::tls::provider(&[], &[]));
    let ca = Named("CA of the rendezvous", &set.ca_cert);
    let check = ClientCheck::new(Anchors::read(ca)?, &provider, Arc::default())
        .map_err(|e| Named("CA of the rendezvous", &set.ca_cert).bad(e.to_string()))?;
    let identity = files::identity(
        Named("server certificate of the rendezvous", &set.server_cert),
        Named("its key", &set.server_key),
        &provider,
    )?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Named("CA of the rendezvous", &set.ca_cert).bad(e.to_string()))?
        .with_client_cert_verifier(Arc::new(check))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_a_runtime<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(future)
    }

    fn frame(head: &Head, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        on_a_runtime(write(&mut bytes, head, body)).unwrap();
        bytes
    }

    #[test]
    fn a_frame_is_read_as_it_was_written_and_not_in_part() {
        let head = Head::Put {
            name: "r1/logs/00003/00000001.zst".into(),
            create: true,
        };
        let bytes = frame(&head, b"body");
        let found = on_a_runtime(read(&mut &bytes[..], FRAME)).unwrap();
        assert_eq!(found, Some((head, b"body".to_vec())));
        assert_eq!(on_a_runtime(read(&mut &bytes[..0], FRAME)).unwrap(), None);
        for end in 1..bytes.len() {
            assert!(
                on_a_runtime(read(&mut &bytes[..end], FRAME)).is_err(),
                "cut at {end}"
            );
        }
        // Whoever has not shown the token sends no body, and a short head.
        assert!(on_a_runtime(read(&mut &bytes[..], FIRST_FRAME)).is_err());
        let long = Head::Hello {
            version: VERSION,
            token: "x".repeat(MAX_HELLO as usize),
        };
        let bytes = frame(&long, b"");
        assert!(on_a_runtime(read(&mut &bytes[..], FIRST_FRAME)).is_err());
        let lengths = [[0xff; 4], [0; 4]].concat();
        assert!(on_a_runtime(read(&mut &lengths[..], FRAME)).is_err());
    }

    #[test]
    fn who_has_not_the_token_is_not_let_in() {
        let hello = |version, token: &str| Head::Hello {
            version,
            token: token.into(),
        };
        let token = "0123456789abcdef";
        assert_eq!(admit(&hello(VERSION, token), token), Ok(()));
        for (head, words) in [
            (hello(VERSION, "0123456789abcdeF"), "another token"),
            (hello(VERSION, ""), "another token"),
            (hello(VERSION + 1, token), "another version"),
            (Head::Get { name: "x".into() }, "begins with the token"),
        ] {
            let refused = admit(&head, token).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
        let access = |token: Option<&str>| Access {
            token: token.map(str::to_owned),
            certs: None,
        };
        assert!(access(None).token().is_err());
        assert!(access(Some("short")).token().is_err());
        assert!(access(Some(token)).token().is_ok());
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let there = Address::parse("[::1]:7117").unwrap();
        assert_eq!((there.host.as_str(), there.port), ("[::1]", 7117));
        for text in ["host", "host:0", ":7", "host:x", "a/b:7", "host:70000"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }
}
