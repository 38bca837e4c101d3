//! The flags of commands that ask a server something, over the link that a load would use.

use clap::Args;
use plimsoll_model::spec::{self, TlsSpec, apply_typed, give_addresses, is_bare_socket};
use plimsoll_model::units::Period;

use super::asking::{self, no_way};
use super::client::{Connection, Server};
use super::resolve::metadata;
use super::section::GrpcSpec;
use crate::asked::{Asking, Unanswered};
use crate::flags::{TlsFlags, fields};
use crate::owned::{Unmade, Usage};
use crate::serving::runtime;

#[derive(Debug, Args)]
#[command(
    mut_arg("pin", |arg| arg.conflicts_with("ca")),
    mut_arg("insecure", |arg| arg.conflicts_with_all(["ca", "pin"]).help("Accept any server certificate")),
    mut_arg("cert", |arg| arg.requires("key")),
    mut_arg("key", |arg| arg.requires("cert")),
)]
pub(super) struct LinkFlags {
    /// grpc://HOST:PORT (plaintext), grpcs://HOST:PORT (TLS), or unix:/PATH.
    #[arg(value_name = "URL")]
    target: String,

    #[command(flatten)]
    tls: TlsFlags,

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
    fn server(&self, asking: Asking<'_>) -> Result<Server, Unanswered> {
        let help = "write grpc://HOST:PORT, or grpcs://HOST:PORT for TLS";
        let typed = asking::target(&self.target);
        let (mut target, secured) = typed.map_err(|problem| Usage::new(problem, help))?;
        give_addresses(&self.resolve, &mut [&mut target]).map_err(|(_, problem)| {
            Usage::new(
                format_args!("--resolve: {problem}"),
                "give addresses of the target's own name and port",
            )
        })?;
        let mut tls = TlsSpec::default();
        apply_typed("tls", &self.tls, &mut tls).map_err(Usage::from)?;
        let any = tls != TlsSpec::default();
        let secured = secured || any && is_bare_socket(&self.target);
        if any && !secured {
            return Err(Unanswered::Usage(Usage::new(
                "TLS flags for a plaintext target",
                "write the target with grpcs://, or take the TLS flags out",
            )));
        }
        let call = GrpcSpec {
            metadata: fields("--metadata", &self.metadata)?,
            ..GrpcSpec::default()
        };
        let metadata = metadata(&call, asking.surroundings).map_err(Unanswered::Flags)?;
        let insecure = tls.insecure == Some(true);
        let tls = secured.then_some(tls);
        if let Some(Err(found)) = tls.as_ref().map(spec::trust) {
            return Err(Unanswered::Flags(found));
        }
        if insecure {
            (asking.notice)("INSECURE: the server's certificate is not checked");
        }
        Ok(Server {
            metadata,
            connect_timeout: self.connect_timeout.0,
            ..asking::server(&target, tls, self.authority.clone())?
        })
    }

    /// Does `work` on a connection to the server.
    ///
    /// # Errors
    /// When there is no way to the server.
    pub(super) fn with_connection<T>(
        &self,
        asking: Asking<'_>,
        work: impl AsyncFnOnce(Connection) -> T,
    ) -> Result<T, Unanswered> {
        let server = self.server(asking)?;
        let runtime = runtime(Some(1)).map_err(|e| Unmade::Call(e.to_string()))?;
        runtime.block_on(async {
            let opened = Connection::open(&server).await;
            Ok(work(opened.map_err(|e| no_way(&self.target, e))?).await)
        })
    }
}
