//! The flags of commands that ask a server something, over the link that a load would use.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use plimsoll_engine::EngineError;
use plimsoll_engine::tls::TlsClient;
use plimsoll_engine::tunnel::Tunnel;
use plimsoll_model::plan::{
    ChainCheck, Identity, Proxy, RecordLayer, Target, TlsPlan, TlsVersion, Trust,
};
use plimsoll_model::spec::tls_version_named;
use plimsoll_model::spec::{
    self, GrpcSpec, Spec, TlsSpec, give_addresses, is_bare_socket, parse_target, scheme_of,
    section_of,
};
use plimsoll_model::units::Period;
use plimsoll_protocols::grpc::client::{ConnectError, Connection, Server};
use plimsoll_protocols::grpc::encoding::Unreflected;
use plimsoll_protocols::grpc::reflection;
use plimsoll_protocols::grpc::schema::Schema;

use crate::advice::Versions;
use crate::console;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::planning;
use crate::problems::{self, Source};
use crate::protocols::could_not_begin;
use crate::quick;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct LinkFlags {
    /// grpc://HOST:PORT (plaintext), grpcs://HOST:PORT (TLS 1.3), or unix:/PATH.
    #[arg(value_name = "URL")]
    pub(crate) target: String,

    /// Trusted CA certificates (PEM or DER), or the server's own [default: the system's].
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    ca: Option<PathBuf>,

    /// Accept the server certificate with this fingerprint, sha256:…, whatever its name and issuer;
    /// may be given again. In place of --ca.
    #[arg(
        long,
        value_name = "FINGERPRINT",
        conflicts_with = "ca",
        help_heading = "TLS"
    )]
    pin: Vec<String>,

    /// Accept any server certificate.
    #[arg(
        long,
        conflicts_with_all = ["ca", "pin"],
        help_heading = "TLS"
    )]
    insecure: bool,

    /// Reject a server certificate that is on these lists of revoked ones (CRL, PEM or DER), one of
    /// every issuer in its chain.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    crl: Option<PathBuf>,

    /// Client certificate (PEM), for mutual TLS.
    #[arg(long, value_name = "FILE", requires = "key", help_heading = "TLS")]
    cert: Option<PathBuf>,

    /// Private key (PEM) of --cert.
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "TLS")]
    key: Option<PathBuf>,

    /// The name to check the certificate against [default: the target's host].
    #[arg(long, value_name = "NAME", help_heading = "TLS")]
    server_name: Option<String>,

    /// The :authority to send [default: host:port of the target].
    #[arg(long)]
    authority: Option<String>,

    /// Metadata, 'name: value'; may be given again. 'name: $VARIABLE' takes it from the environment.
    #[arg(long, value_name = "NAME: VALUE")]
    metadata: Vec<String>,

    /// Addresses of the target's name, NAME:PORT:ADDRESS,ADDRESS, in place of those that it resolves to.
    #[arg(long, value_name = "NAME:PORT:ADDRESSES")]
    resolve: Vec<String>,

    /// How long TCP, TLS and the server's greeting may take together.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    connect_timeout: Period,
}

impl LinkFlags {
    /// The server that the flags mean.
    ///
    /// # Errors
    /// When the URL is none, or a file of the TLS flags is not what it should be.
    fn server(&self, environment: &Environment) -> Result<Server, Failure> {
        let (mut target, secured) = grpc_target(&self.target).map_err(|problem| {
            Failure::usage(
                problem,
                "write grpc://HOST:PORT, or grpcs://HOST:PORT for TLS",
            )
        })?;
        give_addresses(&self.resolve, &mut [&mut target]).map_err(|(_, problem)| {
            Failure::usage(
                format_args!("--resolve: {problem}"),
                "give addresses of the target's own name and port",
            )
        })?;
        let any = self.ca.is_some()
            || !self.pin.is_empty()
            || self.insecure
            || self.crl.is_some()
            || self.cert.is_some()
            || self.server_name.is_some();
        let secured = secured || any && is_bare_socket(&self.target);
        if any && !secured {
            return Err(Failure::usage(
                "TLS flags for a plaintext target",
                "write the target with grpcs://, or take the TLS flags out",
            ));
        }
        let tls = secured.then(|| TlsSpec {
            ca: self.ca.clone(),
            pin: Some(self.pin.clone()).filter(|pins| !pins.is_empty()),
            insecure: self.insecure.then_some(true),
            crl: self.crl.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            server_name: self.server_name.clone(),
            ..TlsSpec::default()
        });
        let call = GrpcSpec {
            metadata: quick::fields("--metadata", &self.metadata)?,
            ..GrpcSpec::default()
        };
        let metadata = planning::metadata(&call, environment)?;
        if let Some(Err(found)) = tls.as_ref().map(spec::trust) {
            return Err(problems::failure(found, &Source::Flags));
        }
        if self.insecure {
            console::notice("INSECURE: the server's certificate is not checked");
        }
        let mut server = server(&target, tls, self.authority.clone()).map_err(not_begun)?;
        server.metadata = metadata;
        server.connect_timeout = self.connect_timeout.0;
        Ok(server)
    }

    /// Does `work` on a connection to the server.
    ///
    /// # Errors
    /// When there is no way to the server, and those of `work`.
    pub(crate) fn with_connection<T>(
        &self,
        environment: &Environment,
        work: impl AsyncFnOnce(Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let server = self.server(environment)?;
        let runtime = plimsoll_protocols::serving::runtime(Some(1)).map_err(Failure::error)?;
        runtime.block_on(async {
            let opened = Connection::open(&server).await;
            work(opened.map_err(|e| no_way(&self.target, e))?).await
        })
    }
}

/// A link that did not come up, as a load reports it.
fn no_way(url: &str, error: ConnectError) -> Failure {
    match error {
        ConnectError::Link { outcome, detail } => not_begun(EngineError::NoConnection {
            url: url.to_owned(),
            outcome,
            detail,
        }),
        other => Failure::error(other),
    }
}

/// All servers that are asked without a load speak gRPC.
fn not_begun(error: EngineError) -> Failure {
    could_not_begin(error, Versions::Two)
}

/// [`parse_target`] for the schemes of gRPC alone.
fn grpc_target(url: &str) -> Result<(Target, bool), String> {
    let (target, secured) = parse_target(url)?;
    match (section_of(url), scheme_of(url)) {
        (Some("grpc"), _) | (_, None) => Ok((target, secured)),
        (_, Some((scheme, rest))) => Err(format!(
            "scheme `{scheme}` is not one of a gRPC target: write {}{rest}",
            if secured { "grpcs" } else { "grpc" }
        )),
    }
}

/// A target with what a spec says of its link; `tls`: `None` for plaintext.
fn server(
    target: &Target,
    tls: Option<TlsSpec>,
    authority: Option<String>,
) -> Result<Server, EngineError> {
    let tls = match tls {
        None => None,
        Some(tls) => {
            // What is wrong with a plan is reported elsewhere.
            let trust = spec::trust(&tls).unwrap_or(Trust::System);
            let identity = tls.cert.zip(tls.key);
            let plan = TlsPlan {
                trust,
                crl: tls.crl,
                identity: identity.map(|(cert, key)| Identity { cert, key }),
                server_name: tls.server_name,
                suites: Vec::new(),
                groups: Vec::new(),
                resume: false,
                early_data: false,
                full: None,
                // To be asked, a server need not be spoken to as it is loaded.
                versions: tls_versions(tls.versions.as_deref()),
                compressed: false,
                key_log: None,
                records: RecordLayer::Own,
                chain: ChainCheck::Each,
            };
            Some(TlsClient::new(&plan, target, &[b"h2"])?)
        }
    };
    Ok(Server {
        authority: authority.unwrap_or_else(|| target.authority()),
        addresses: plimsoll_engine::resolve(target)?,
        tunnel: Tunnel::to(target),
        tls,
        metadata: Vec::new(),
        connect_timeout: CONNECT_TIMEOUT,
    })
}

/// What is wrong with a plan is reported elsewhere.
fn tls_versions(named: Option<&[String]>) -> Vec<TlsVersion> {
    let known = named.map(|all| {
        all.iter()
            .filter_map(|v| tls_version_named(v).ok())
            .collect()
    });
    known
        .filter(|known: &Vec<_>| !known.is_empty())
        .unwrap_or_else(|| vec![TlsVersion::V1_3])
}

/// What the server of `spec` says that `service` is, to someone with the call's `metadata`.
///
/// # Errors
/// When the spec names no server, there is no way to it, or it does not answer.
pub(crate) fn reflected(
    spec: &Spec,
    service: &str,
    metadata: &[(String, String)],
    proxy: Option<Proxy>,
) -> Result<Schema, Unreflected<Failure>> {
    let no_answer = |why: &dyn std::fmt::Display| Unreflected::NoAnswer(why.to_string());
    let url = spec.target.as_deref();
    let url = url.ok_or_else(|| no_answer(&"there is no target to ask"))?;
    let (mut target, secured) = grpc_target(url).map_err(|e| no_answer(&e))?;
    let given = spec.load.resolve.as_deref().unwrap_or_default();
    give_addresses(given, &mut [&mut target]).map_err(|(_, problem)| no_answer(&problem))?;
    target.proxy = proxy;
    let secured = secured || spec.tls.is_some() && is_bare_socket(url);
    let tls = secured.then(|| spec.tls.clone().unwrap_or_default());
    let call: Option<GrpcSpec> = spec.call.get();
    let authority = call.and_then(|call| call.authority);
    let server = server(&target, tls, authority);
    let mut server = server.map_err(|e| Unreflected::NoWay(not_begun(e)))?;
    server.metadata = metadata.to_vec();
    if let Some(limit) = spec.load.connect_timeout {
        server.connect_timeout = limit.0;
    }
    let runtime = plimsoll_protocols::serving::runtime(Some(1)).map_err(|e| no_answer(&e))?;
    runtime.block_on(async {
        let opened = Connection::open(&server).await;
        let connection = opened.map_err(|e| Unreflected::NoWay(no_way(url, e)))?;
        let asked = reflection::schema(&connection, Some(service)).await;
        asked.map_err(|e| match e.advice() {
            Some(advice) => no_answer(&format_args!("{e}; {advice}")),
            None => no_answer(&e),
        })
    })
}
