//! TLS flags of all commands that serve.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::plan::{KeyExchangeGroup, TlsSuite, TlsVersion};
use plimsoll_model::spec::{find_group, find_suite, find_tls_version};
use plimsoll_serving::ServerTlsOptions;

#[derive(Debug, Args)]
pub(super) struct ServerTlsFlags {
    /// The server's certificate chain (PEM); turns on TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_key: Option<PathBuf>,

    /// Require client certificates issued by this CA (PEM): mutual TLS.
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_client_ca: Option<PathBuf>,

    /// Reject client certificates on these revocation lists (CRL, PEM or DER); needs one list per issuer in their
    /// chains.
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_client_ca",
        help_heading = "TLS"
    )]
    tls_client_crl: Option<PathBuf>,

    /// A TLS version to accept, 1.3 or 1.2; repeatable [default: 1.3].
    #[arg(long, value_name = "VERSION", value_parser = find_tls_version, help_heading = "TLS")]
    tls_version: Vec<TlsVersion>,

    /// Compress certificates for clients that accept it (RFC 8879).
    #[arg(long, help_heading = "TLS")]
    compressed_certificates: bool,

    /// A cipher suite to offer, such as TLS_AES_128_GCM_SHA256; repeatable.
    #[arg(long, value_name = "SUITE", value_parser = find_suite, help_heading = "TLS")]
    suite: Vec<TlsSuite>,

    /// A key-exchange group to offer, such as X25519; repeatable.
    #[arg(long, value_name = "GROUP", value_parser = find_group, help_heading = "TLS")]
    group: Vec<KeyExchangeGroup>,
}

impl ServerTlsFlags {
    /// Returns the TLS settings; `None` for plaintext.
    pub(super) fn server_options(&self) -> Option<ServerTlsOptions> {
        let (cert, key) = self.tls_cert.clone().zip(self.tls_key.clone())?;
        Some(ServerTlsOptions {
            cert,
            key,
            client_ca: self.tls_client_ca.clone(),
            client_crl: self.tls_client_crl.clone(),
            versions: self.versions(),
            compressed: self.compressed_certificates,
            suites: self.suite.clone(),
            groups: self.group.clone(),
        })
    }

    fn versions(&self) -> Vec<TlsVersion> {
        if self.tls_version.is_empty() {
            vec![TlsVersion::V1_3]
        } else {
            self.tls_version.clone()
        }
    }

    pub(super) fn uses_tls(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// Describes the security of connections, for messages.
    pub(super) fn describe_security(&self) -> String {
        let versions: Vec<_> = self.versions().iter().map(|v| v.name()).collect();
        match (&self.tls_cert, &self.tls_client_ca) {
            (None, _) => "plaintext".to_owned(),
            (Some(_), None) => format!("TLS {}", versions.join(" or ")),
            (Some(_), Some(_)) => format!("mutual TLS {}", versions.join(" or ")),
        }
    }
}
