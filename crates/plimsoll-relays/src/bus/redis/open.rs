//! Opens connections to Redis servers for the `redis` crate (the library). [`BoundedStream`] limits the size of
//! replies.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::Connect;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    Pipeline, RedisError, RedisFuture, RedisResult, TlsCertificates, Value,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::reply_limits::BoundedStream;

/// How long connecting to a server may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to one server within `limit`, handshakes included.
pub(super) async fn open_connection(
    info: &ConnectionInfo,
    certificates: Option<&TlsCertificates>,
    config: AsyncConnectionConfig,
    limit: Duration,
) -> RedisResult<MultiplexedConnection> {
    let opening = async {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(host, *port).await?;
                start_connection(info, stream, config).await
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                let tls = TlsConnector::from(Arc::new(tls_config(certificates)?));
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = tls.connect(name, connect_tcp(host, *port).await?).await?;
                start_connection(info, stream, config).await
            }
            ConnectionAddr::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                start_connection(info, stream, config).await
            }
            _ => Err((ErrorKind::InvalidClientConfig, "an unknown kind of address").into()),
        }
    };
    let opened = timeout(limit, opening).await;
    opened.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Connects to all addresses of `host` at once and returns the first connection that succeeds.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut connecting = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        connecting.spawn(TcpStream::connect(address));
    }
    let mut failed = io::Error::other(format!("{host} has no address"));
    while let Some(connected) = connecting.join_next().await {
        match connected.map_err(io::Error::other).flatten() {
            Ok(stream) => return Ok(stream),
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

async fn start_connection(
    info: &ConnectionInfo,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    config: AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    let stream = BoundedStream::new(stream);
    let settings = info.redis_settings();
    let (connection, driver) =
        MultiplexedConnection::new_with_config(settings, stream, config).await?;
    // The task ends with the connection.
    tokio::spawn(driver);
    Ok(connection)
}

fn tls_config(certificates: Option<&TlsCertificates>) -> RedisResult<ClientConfig> {
    let bad = |e: String| RedisError::from((ErrorKind::InvalidClientConfig, "TLS", e));
    let mut roots = RootCertStore::empty();
    match certificates.and_then(|given| given.root_cert.as_deref()) {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|e| bad(e.to_string()))?;
                roots.add(certificate).map_err(|e| bad(e.to_string()))?;
            }
        }
        None => {
            let system = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system.certs);
        }
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    match certificates.and_then(|given| given.client_tls.as_ref()) {
        Some(client) => {
            let chain = CertificateDer::pem_slice_iter(&client.client_cert);
            let chain = chain.collect::<Result<Vec<_>, _>>();
            let chain = chain.map_err(|e| bad(e.to_string()))?;
            // The error is replaced, because it may quote the private key.
            let key = PrivateKeyDer::from_pem_slice(&client.client_key)
                .map_err(|_| bad("the client's key is not PEM".to_owned()))?;
            (config.with_client_auth_cert(chain, key)).map_err(|e| bad(e.to_string()))
        }
        None => Ok(config.with_no_client_auth()),
    }
}

/// Certificates of each connected cluster, by the cluster's [`NodeCertificates::cluster_number`].
static CLUSTER_CERTIFICATES: LazyLock<Mutex<HashMap<i64, Option<TlsCertificates>>>> =
    LazyLock::new(Mutex::default);

/// Certificates for the nodes of a cluster, kept until this is dropped.
///
/// The library connects to nodes with a stateless function and offers no access to the certificates
/// that it was given. The only setting that it passes on unchanged is the database number; a
/// cluster has no database but 0, so that number identifies the cluster here.
pub(super) struct NodeCertificates(i64);

impl NodeCertificates {
    pub(super) fn register(certificates: Option<TlsCertificates>) -> NodeCertificates {
        static LAST_CLUSTER_NUMBER: AtomicI64 = AtomicI64::new(0);
        let number = LAST_CLUSTER_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let mut kept = CLUSTER_CERTIFICATES
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        kept.insert(number, certificates);
        NodeCertificates(number)
    }

    /// Returns the number to pass to the library as the database.
    pub(super) fn cluster_number(&self) -> i64 {
        self.0
    }
}

impl Drop for NodeCertificates {
    fn drop(&mut self) {
        let mut kept = CLUSTER_CERTIFICATES
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        kept.remove(&self.0);
    }
}

/// A connection to a node of a cluster.
#[derive(Clone)]
pub(super) struct ClusterNode(MultiplexedConnection);

impl Connect for ClusterNode {
    fn connect_with_config<'a, T>(
        info: T,
        config: AsyncConnectionConfig,
    ) -> RedisFuture<'a, ClusterNode>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        Box::pin(async move {
            let info = info.into_connection_info()?;
            let settings = info.redis_settings().clone();
            let kept = {
                let kept = CLUSTER_CERTIFICATES
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                kept.get(&settings.db()).cloned()
            };
            let Some(certificates) = kept else {
                return Err(io::Error::other("the cluster's connection is closed").into());
            };
            let info = info.set_redis_settings(settings.set_db(0));
            let opened = open_connection(&info, certificates.as_ref(), config, CONNECT_TIMEOUT);
            opened.await.map(ClusterNode)
        })
    }
}

impl ConnectionLike for ClusterNode {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(commands, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}
