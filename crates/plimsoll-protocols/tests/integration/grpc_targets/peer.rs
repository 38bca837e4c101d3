//! A server in the background, and a tonic client to call it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use plimsoll_protocols::grpc::target::generated::orders::order_service_client::OrderServiceClient;
use plimsoll_protocols::grpc::target::generated::score::score_service_client::ScoreServiceClient;
use plimsoll_serving::reference::{ReferenceServer, ServeContext, ServerCounts};
use plimsoll_serving::{ListenOptions, ServeError};
use plimsoll_stack::certificates::{CertificateOptions, CertificatePaths, make_certificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

/// The timeout of tests, for the busiest machine.
pub(crate) const LONGEST: Duration = Duration::from_secs(120);

/// A running server. Stopping it returns its counters.
pub(crate) struct RunningServer {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<ServerCounts, ServeError>>,
}

impl RunningServer {
    pub(crate) async fn stop(self) -> ServerCounts {
        tokio::time::timeout(Duration::from_secs(20), self.stop_later())
            .await
            .expect("the server stops in time")
            .unwrap()
            .unwrap()
    }

    /// Stops the server; the returned task waits for its end.
    pub(crate) fn stop_later(self) -> JoinHandle<Result<ServerCounts, ServeError>> {
        self.stop.send(()).unwrap();
        self.task
    }
}

pub(crate) fn listen() -> ListenOptions {
    ListenOptions {
        address: "127.0.0.1:0".parse().unwrap(),
        ..ListenOptions::default()
    }
}

pub(crate) fn serve(listen: &ListenOptions, options: impl ReferenceServer) -> RunningServer {
    serve_on(1, listen, options)
}

pub(crate) fn serve_on(
    workers: usize,
    listen: &ListenOptions,
    options: impl ReferenceServer,
) -> RunningServer {
    let bound = listen.bind().unwrap();
    let address = bound.address().tcp_address().unwrap();
    assert_ne!(address.port(), 0);
    let (stop, stopped) = oneshot::channel::<()>();
    let place = ServeContext {
        bound,
        workers: Some(workers),
        stopped: Box::pin(async {
            let _ = stopped.await;
        }),
    };
    RunningServer {
        address,
        stop,
        task: tokio::spawn(options.start(place).unwrap()),
    }
}

/// Returns the server's counter of this name.
pub(crate) fn count(counted: &ServerCounts, name: &str) -> u64 {
    let found = counted.counts.iter().find(|(known, _)| *known == name);
    found
        .unwrap_or_else(|| panic!("no count of {name}: {counted:?}"))
        .1
}

/// How a client secures its link.
#[derive(Clone, Default)]
pub(crate) struct ClientSecurity {
    pub(crate) config: Option<Arc<ClientConfig>>,
    pub(crate) name: Option<&'static str>,
}

pub(crate) fn plaintext() -> ClientSecurity {
    ClientSecurity::default()
}

/// Trusts `ca` and presents the client certificate of `identity`.
pub(crate) fn secure(ca: &Path, identity: Option<&CertificatePaths>) -> ClientSecurity {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(
        CertificateDer::pem_file_iter(ca)
            .unwrap()
            .map(Result::unwrap),
    );
    let builder = ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::aws_lc_rs::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS13])
    .unwrap()
    .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(set) => builder
            .with_client_auth_cert(
                CertificateDer::pem_file_iter(&set.client_cert)
                    .unwrap()
                    .map(Result::unwrap)
                    .collect(),
                PrivateKeyDer::from_pem_file(&set.client_key).unwrap(),
            )
            .unwrap(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    ClientSecurity {
        config: Some(Arc::new(config)),
        name: None,
    }
}

impl ClientSecurity {
    pub(crate) async fn connect_tls(
        &self,
        address: SocketAddr,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let config = self.config.clone().expect("a secure link");
        let name = ServerName::try_from(self.name.unwrap_or("localhost")).unwrap();
        let stream = TcpStream::connect(address).await?;
        tokio_rustls::TlsConnector::from(config)
            .connect(name, stream)
            .await
    }
}

/// Opens a connection, which fails now or with its first call.
pub(crate) async fn channel(
    address: SocketAddr,
    secure: ClientSecurity,
) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .tcp_nodelay(true)
        .connect_timeout(Duration::from_secs(10));
    if secure.config.is_none() {
        return endpoint.connect().await;
    }
    endpoint
        .connect_with_connector(tower::service_fn(move |_| {
            let secure = secure.clone();
            async move { secure.connect_tls(address).await.map(TokioIo::new) }
        }))
        .await
}

pub(crate) async fn scores(
    address: SocketAddr,
    secure: ClientSecurity,
) -> ScoreServiceClient<Channel> {
    ScoreServiceClient::new(channel(address, secure).await.unwrap())
}

pub(crate) async fn orders_client(
    address: SocketAddr,
    secure: ClientSecurity,
) -> OrderServiceClient<Channel> {
    OrderServiceClient::new(channel(address, secure).await.unwrap())
}

/// Creates a set of certificates, which exists as long as its directory.
pub(crate) fn certificates(options: &CertificateOptions) -> (tempfile::TempDir, CertificatePaths) {
    let dir = tempfile::tempdir().unwrap();
    let set = make_certificates(dir.path(), options).unwrap();
    (dir, set)
}
