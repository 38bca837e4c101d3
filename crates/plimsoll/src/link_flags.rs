//! The flags of commands that ask a server something, over the link that a load would use.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::spec::{self, TlsSpec, give_addresses, is_bare_socket};
use plimsoll_model::units::Period;
use plimsoll_protocols::grpc::{
    self,
    asking::{self, Connection, Server},
};

use crate::console;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::planning;
use crate::problems::{self, Source};
use crate::protocols::asked_in_vain;

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
        let (mut target, secured) = asking::typed_target(&self.target)?;
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
            return Err(asking::not_secured().into());
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
        let call = asking::typed_call(&self.metadata)?;
        let metadata = planning::of_flags(environment, |world| grpc::metadata(&call, world))?;
        if let Some(Err(found)) = tls.as_ref().map(spec::trust) {
            return Err(problems::failure(found, &Source::Flags));
        }
        if self.insecure {
            console::notice("INSECURE: the server's certificate is not checked");
        }
        let server = asking::server(&target, tls, self.authority.clone());
        let mut server = server.map_err(asked_in_vain)?;
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
            let lost = |e| asked_in_vain(asking::no_way(&self.target, e));
            work(opened.map_err(lost)?).await
        })
    }
}
