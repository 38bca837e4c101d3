//! The flags of commands that ask a server something, over the link that a load would use.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use plimsoll_engine::tls::{TlsClient, TlsSetupError};
use plimsoll_model::plan::{ChainCheck, Identity, RecordLayer, Target, TlsPlan};
use plimsoll_model::spec::{Spec, TlsSpec, parse_target, section_of};
use plimsoll_protocols::grpc::client::{Connection, Server};
use plimsoll_protocols::grpc::reflection;
use plimsoll_protocols::grpc::schema::Schema;

use crate::failure::Failure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct LinkFlags {
    /// grpc://HOST:PORT (plaintext) or grpcs://HOST:PORT (TLS 1.3).
    #[arg(value_name = "URL")]
    pub(crate) target: String,

    /// Trusted CA bundle (PEM) [default: the system's trust store].
    #[arg(long, env = "PLIMSOLL_CA", value_name = "FILE", help_heading = "TLS")]
    ca: Option<PathBuf>,

    /// Client certificate (PEM), for mutual TLS.
    #[arg(
        long,
        env = "PLIMSOLL_CERT",
        value_name = "FILE",
        requires = "key",
        help_heading = "TLS"
    )]
    cert: Option<PathBuf>,

    /// Private key (PEM) of --cert.
    #[arg(
        long,
        env = "PLIMSOLL_KEY",
        value_name = "FILE",
        requires = "cert",
        help_heading = "TLS"
    )]
    key: Option<PathBuf>,

    /// The name to check the certificate against [default: the target's host].
    #[arg(
        long,
        env = "PLIMSOLL_SERVER_NAME",
        value_name = "NAME",
        help_heading = "TLS"
    )]
    server_name: Option<String>,

    /// The :authority to send [default: host:port of the target].
    #[arg(long, env = "PLIMSOLL_AUTHORITY")]
    authority: Option<String>,
}

impl LinkFlags {
    /// The server that the flags mean.
    ///
    /// # Errors
    /// When the URL is none, or a file of the TLS flags is not what it should be.
    fn server(&self) -> Result<Server, Failure> {
        let (target, secured) = grpc_target(&self.target).map_err(|problem| {
            Failure::usage(
                problem,
                "write grpc://HOST:PORT, or grpcs://HOST:PORT for TLS",
            )
        })?;
        let any = self.ca.is_some() || self.cert.is_some() || self.server_name.is_some();
        if any && !secured {
            return Err(Failure::usage(
                "TLS flags for a plaintext target",
                "write the target with grpcs://, or take the TLS flags out",
            ));
        }
        let tls = secured.then(|| TlsSpec {
            ca: self.ca.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            server_name: self.server_name.clone(),
            ..TlsSpec::default()
        });
        server(target, tls, self.authority.clone()).map_err(Failure::error)
    }

    /// Does `work` on a connection to the server.
    ///
    /// # Errors
    /// When there is no way to the server, and those of `work`.
    pub(crate) fn with_connection<T>(
        &self,
        work: impl AsyncFnOnce(Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let server = self.server()?;
        let runtime = plimsoll_protocols::serving::runtime(Some(1)).map_err(Failure::error)?;
        runtime.block_on(async {
            let connection = Connection::open(&server).await.map_err(Failure::error)?;
            work(connection).await
        })
    }
}

/// [`parse_target`] for the schemes of gRPC alone.
fn grpc_target(url: &str) -> Result<(Target, bool), String> {
    let (target, secured) = parse_target(url)?;
    match (section_of(url), url.split_once("://")) {
        (Some("grpc"), _) | (_, None) => Ok((target, secured)),
        (_, Some((scheme, rest))) => Err(format!(
            "scheme `{scheme}` is not one of a gRPC target: write {}://{rest}",
            if secured { "grpcs" } else { "grpc" }
        )),
    }
}

/// A target with what a spec says of its link; `tls`: `None` for plaintext.
fn server(
    target: Target,
    tls: Option<TlsSpec>,
    authority: Option<String>,
) -> Result<Server, TlsSetupError> {
    let tls = match tls {
        None => None,
        Some(tls) => {
            let identity = tls.cert.zip(tls.key);
            let plan = TlsPlan {
                ca: tls.ca,
                identity: identity.map(|(cert, key)| Identity { cert, key }),
                server_name: tls.server_name,
                suites: Vec::new(),
                groups: Vec::new(),
                resume: false,
                early_data: false,
                records: RecordLayer::Own,
                chain: ChainCheck::Each,
            };
            Some(TlsClient::new(&plan, &target, Some(b"h2"))?)
        }
    };
    let host = match target.host.contains(':') {
        true => format!("[{}]", target.host),
        false => target.host.clone(),
    };
    Ok(Server {
        authority: authority.unwrap_or_else(|| format!("{host}:{}", target.port)),
        host: target.host,
        port: target.port,
        tls,
        connect_timeout: CONNECT_TIMEOUT,
    })
}

/// What the server of `spec` says that `service` is.
///
/// # Errors
/// In words, when the spec names no server, there is no way to it, or it does not say.
pub(crate) fn reflected(spec: &Spec, service: &str) -> Result<Schema, String> {
    let url = spec.target.as_deref().ok_or("there is no target to ask")?;
    let (target, secured) = grpc_target(url)?;
    let tls = secured.then(|| spec.tls.clone().unwrap_or_default());
    let authority = spec
        .call
        .grpc
        .as_ref()
        .and_then(|call| call.authority.clone());
    let server = server(target, tls, authority).map_err(|e| e.to_string())?;
    let runtime = plimsoll_protocols::serving::runtime(Some(1)).map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let connection = Connection::open(&server).await.map_err(|e| e.to_string())?;
        let schema = reflection::schema(&connection, Some(service)).await;
        schema.map_err(|e| e.to_string())
    })
}
