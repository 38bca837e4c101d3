//! The flags of every command that serves over TLS.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::plan::{Group, Suite};
use plimsoll_model::spec::{group_named, suite_named};
use plimsoll_protocols::serving::Tls;

#[derive(Debug, Args)]
pub(super) struct ServerTlsFlags {
    /// The server's certificate chain (PEM): speak TLS 1.3.
    #[arg(
        long,
        env = "PLIMSOLL_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key",
        help_heading = "TLS"
    )]
    tls_cert: Option<PathBuf>,

    /// Its private key (PEM).
    #[arg(
        long,
        env = "PLIMSOLL_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "TLS"
    )]
    tls_key: Option<PathBuf>,

    /// Demand client certificates of this CA (PEM): mutual TLS.
    #[arg(
        long,
        env = "PLIMSOLL_TLS_CLIENT_CA",
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "TLS"
    )]
    tls_client_ca: Option<PathBuf>,

    /// A cipher suite to offer, such as TLS_AES_128_GCM_SHA256; may be given again.
    #[arg(long, env = "PLIMSOLL_SUITE", value_name = "SUITE", value_parser = suite_named, help_heading = "TLS")]
    suite: Vec<Suite>,

    /// A key-exchange group to offer, such as X25519; may be given again.
    #[arg(long, env = "PLIMSOLL_GROUP", value_name = "GROUP", value_parser = group_named, help_heading = "TLS")]
    group: Vec<Group>,
}

impl ServerTlsFlags {
    /// `None`: plaintext.
    pub(super) fn tls(&self) -> Option<Tls> {
        let (cert, key) = self.tls_cert.clone().zip(self.tls_key.clone())?;
        Some(Tls {
            cert,
            key,
            client_ca: self.tls_client_ca.clone(),
            suites: self.suite.clone(),
            groups: self.group.clone(),
        })
    }

    pub(super) fn is_given(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// How a link is secured, for a person.
    pub(super) fn link(&self) -> &'static str {
        match (&self.tls_cert, &self.tls_client_ca) {
            (None, _) => "plaintext",
            (Some(_), None) => "TLS 1.3",
            (Some(_), Some(_)) => "mutual TLS 1.3",
        }
    }
}
