//! The flags of commands that query a server, over the same kind of connection that a load would use.

use clap::Args;
use plimsoll_model::formats::units::{Period, parse_seconds};
use plimsoll_model::spec::{self, TlsSpec, apply_flags, is_bare_unix_socket, set_target_addresses};
use serde::Serialize;

use super::client::{GrpcConnection, ServerEndpoint};
use super::resolve::resolve_metadata;
use super::section::GrpcSpec;
use super::server_query::{self, connect_failure};
use crate::interface::flags::{TlsFlags, parse_fields};
use crate::interface::protocol_module::{PrepareError, UsageError};
use crate::interface::server_query::{QueryContext, QueryError};
use plimsoll_serving::build_runtime;

#[derive(Debug, Args)]
#[command(
    mut_arg("pin", |arg| arg.conflicts_with("ca")),
    mut_arg("insecure", |arg| arg.conflicts_with_all(["ca", "pin"]).help("Accept any server certificate")),
    mut_arg("cert", |arg| arg.requires("key")),
    mut_arg("key", |arg| arg.requires("cert")),
)]
pub(super) struct ConnectionFlags {
    /// grpc://HOST:PORT (plaintext), grpcs://HOST:PORT (TLS), or unix:/PATH.
    #[arg(value_name = "URL")]
    target: String,

    #[command(flatten)]
    tls: TlsFlags,

    #[command(flatten)]
    versions: TlsOfferFlags,

    /// The :authority to send [default: host:port of the target].
    #[arg(long)]
    authority: Option<String>,

    /// Metadata, 'name: value'; repeatable. 'name: $VARIABLE' takes the value from the environment.
    #[arg(long, value_name = "NAME: VALUE")]
    metadata: Vec<String>,

    /// Addresses of the target's name, NAME:PORT:ADDRESS,ADDRESS, instead of those that it resolves to.
    #[arg(long, value_name = "NAME:PORT:ADDRESSES")]
    resolve: Vec<String>,

    /// Reach the server through a proxy: http://HOST:PORT (CONNECT) or socks5://HOST:PORT, with $NAME@ before the host
    /// where that variable is USER:PASSWORD.
    #[arg(long, value_name = "URL")]
    proxy: Option<String>,

    /// How long TCP, TLS and the server's greeting may take together.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "10s")]
    connect_timeout: Period,
}

/// The TLS versions, suites and groups to offer. The fields are named like the keys of `TlsSpec`.
#[derive(Debug, Default, Args, Serialize)]
struct TlsOfferFlags {
    /// A version of TLS to offer, 1.3 or 1.2; repeatable [default: both].
    #[arg(
        id = "tls_version",
        long = "tls-version",
        value_name = "VERSION",
        help_heading = "TLS"
    )]
    versions: Option<Vec<String>>,

    /// A cipher suite to offer, such as TLS_AES_128_GCM_SHA256; repeatable.
    #[arg(
        id = "suite",
        long = "suite",
        value_name = "SUITE",
        help_heading = "TLS"
    )]
    suites: Option<Vec<String>>,

    /// A key-exchange group to offer, such as X25519; repeatable.
    #[arg(
        id = "group",
        long = "group",
        value_name = "GROUP",
        help_heading = "TLS"
    )]
    groups: Option<Vec<String>>,
}

impl ConnectionFlags {
    /// Returns the server that the flags describe.
    fn server_endpoint(&self, asking: QueryContext<'_>) -> Result<ServerEndpoint, QueryError> {
        let help = "write grpc://HOST:PORT, or grpcs://HOST:PORT for TLS";
        let typed = server_query::parse_grpc_target(&self.target);
        let (mut target, secured) = typed.map_err(|problem| UsageError::new(problem, help))?;
        set_target_addresses(&self.resolve, &mut [&mut target]).map_err(|(_, problem)| {
            UsageError::new(
                format_args!("--resolve: {problem}"),
                "give addresses of the target's own name and port",
            )
        })?;
        let mut tls = TlsSpec::default();
        apply_flags("tls", &self.tls, &mut tls).map_err(UsageError::from)?;
        apply_flags("tls", &self.versions, &mut tls).map_err(UsageError::from)?;
        reject_unknown_tls_names(
            "--tls-version",
            tls.versions.as_deref(),
            spec::find_tls_version,
        )?;
        reject_unknown_tls_names("--suite", tls.suites.as_deref(), spec::find_suite)?;
        reject_unknown_tls_names("--group", tls.groups.as_deref(), spec::find_group)?;
        if let Some(typed) = &self.proxy {
            let proxy = spec::parse_proxy(typed, asking.surroundings).map_err(|problem| {
                UsageError::new(format_args!("--proxy: {problem}"), "give a proxy's URL")
            })?;
            if target.socket.is_some() {
                return Err(QueryError::Usage(UsageError::new(
                    "--proxy: a Unix socket can't be reached through a proxy",
                    "leave it out",
                )));
            }
            target.proxy = Some(proxy);
        }
        let any = tls != TlsSpec::default();
        let secured = secured || any && is_bare_unix_socket(&self.target);
        if any && !secured {
            return Err(QueryError::Usage(UsageError::new(
                "TLS flags for a plaintext target",
                "write the target with grpcs://, or remove the TLS flags",
            )));
        }
        let call = GrpcSpec {
            metadata: parse_fields("--metadata", &self.metadata)?,
            ..GrpcSpec::default()
        };
        let metadata = resolve_metadata(&call, asking.surroundings).map_err(QueryError::Flags)?;
        let insecure = tls.insecure == Some(true);
        let tls = secured.then_some(tls);
        if let Some(Err(found)) = tls.as_ref().map(spec::resolve_trust) {
            return Err(QueryError::Flags(found));
        }
        if insecure {
            (asking.notice)("INSECURE: the server's certificate is not checked");
        }
        Ok(ServerEndpoint {
            metadata,
            connect_timeout: self.connect_timeout.0,
            ..server_query::server_endpoint(&target, tls, self.authority.clone())?
        })
    }

    /// Runs `work` on a connection to the server.
    ///
    /// # Errors
    /// Returns an error if the server can't be reached.
    pub(super) fn with_connection<T>(
        &self,
        asking: QueryContext<'_>,
        work: impl AsyncFnOnce(GrpcConnection) -> T,
    ) -> Result<T, QueryError> {
        let server = self.server_endpoint(asking)?;
        let runtime = build_runtime(Some(1)).map_err(|e| PrepareError::Call(e.to_string()))?;
        runtime.block_on(async {
            let opened = GrpcConnection::open(&server).await;
            Ok(work(opened.map_err(|e| connect_failure(&self.target, e))?).await)
        })
    }
}

/// Checks that all TLS versions, suites or groups that the user gave for `flag` are known.
///
/// # Errors
/// Returns an error that names the first unknown one.
fn reject_unknown_tls_names<T>(
    flag: &str,
    typed: Option<&[String]>,
    named: impl Fn(&str) -> Result<T, String>,
) -> Result<(), UsageError> {
    for name in typed.unwrap_or_default() {
        named(name).map_err(|problem| {
            let help = "give one of those, or leave the flag out";
            UsageError::new(
                format_args!("{flag}: `{name}` is not a valid value: {problem}"),
                help,
            )
        })?;
    }
    Ok(())
}
