//! Mutual TLS 1.3 from files, read again when they change.
//!
//! A change that can't be used (half of it written, a key of another certificate) leaves
//! what was there in use, and is tried again. Connections that are open keep what they
//! were opened with. A certificate of ours that expires in use is told of once.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use plimsoll_engine::tls::files::{self, FileError, Named};
use plimsoll_engine::tls::trust::{Anchors, ClientCheck, Learned, ServerCheck, Trust};
use plimsoll_engine::tls::validity;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

use super::SidecarError;
use super::config::TlsFiles;

/// The files' times and sizes: a change of either is a change.
type Stamp = [Option<(SystemTime, u64)>; 3];

fn stamp(files: &TlsFiles) -> Stamp {
    [&files.ca, &files.cert, &files.key].map(|path| {
        let found = fs::metadata(path).ok()?;
        Some((found.modified().ok()?, found.len()))
    })
}

struct Made {
    config: Config,
    /// The last second, since 1970, in which the whole chain that is shown is valid.
    not_after: Option<u64>,
    /// Of the other sides' certificates.
    learned: Arc<Learned>,
}

enum Config {
    Server(Arc<ServerConfig>),
    Client(Arc<ClientConfig>),
}

/// One side's certificates in use.
pub(super) struct Identity {
    route: String,
    alpn: Alpn,
    files: TlsFiles,
    stamp: Stamp,
    made: Made,
    expiry_told: bool,
}

impl Identity {
    /// Towards those who connect: they must show a certificate of the CA.
    pub(super) fn server(
        route: &str,
        files: &TlsFiles,
        alpn: Alpn,
    ) -> Result<Identity, SidecarError> {
        Identity::new(route, files, alpn, server)
    }

    /// Towards the upstream.
    pub(super) fn client(
        route: &str,
        files: &TlsFiles,
        alpn: Alpn,
    ) -> Result<Identity, SidecarError> {
        Identity::new(route, files, alpn, client)
    }

    fn new(
        route: &str,
        files: &TlsFiles,
        alpn: Alpn,
        make: Make,
    ) -> Result<Identity, SidecarError> {
        // Taken first: a change while reading shows as a change afterwards.
        let stamp = stamp(files);
        Ok(Identity {
            route: route.to_owned(),
            files: files.clone(),
            alpn,
            stamp,
            made: make(files, alpn).map_err(|bad| bad.told(route))?,
            expiry_told: false,
        })
    }

    /// Reads the files again where they have changed. `Some(false)`: they can't be used.
    pub(super) fn reload(&mut self) -> Option<bool> {
        let seen = stamp(&self.files);
        if seen == self.stamp {
            return None;
        }
        let make = match self.made.config {
            Config::Server(_) => server,
            Config::Client(_) => client,
        };
        match make(&self.files, self.alpn) {
            Ok(made) => {
                self.made = made;
                self.stamp = seen;
                self.expiry_told = false;
                tracing::info!(route = self.route, "certificates read again");
                Some(true)
            }
            Err(bad) => {
                tracing::warn!(
                    "{}; the certificates from before stay in use",
                    bad.told(&self.route)
                );
                Some(false)
            }
        }
    }

    /// Tells, once, that the certificate in use has expired: the other sides see it before
    /// whoever looks after this one does.
    pub(super) fn tell_expiry(&mut self) {
        if !self.expiry_told
            && let Some(last) = self.made.not_after
            && last < validity::now()
        {
            self.expiry_told = true;
            tracing::warn!(
                "route {}: the certificate {} expired at {}: new connections will be refused until the file is replaced",
                self.route,
                self.files.cert.display(),
                validity::told(last)
            );
        }
    }

    /// `error`, as people read it, with what is known besides.
    pub(super) fn failure(&self, error: &rustls::Error) -> String {
        let text = validity::failure(error);
        match self.made.learned.why(error) {
            Some(why) => format!("{text}: {why}"),
            None => text,
        }
    }

    /// The file of the certificate that is shown.
    pub(super) fn certificate(&self) -> &Path {
        &self.files.cert
    }

    /// `name` is what the upstream's certificate must be for, unless the file says another.
    pub(super) fn connection(&self, name: &str) -> Result<rustls::Connection, rustls::Error> {
        match &self.made.config {
            Config::Server(config) => ServerConnection::new(Arc::clone(config)).map(Into::into),
            Config::Client(config) => {
                let name = self.files.server_name.as_deref().unwrap_or(name);
                let name = ServerName::try_from(name.to_owned()).map_err(|_| {
                    rustls::Error::General(format!(
                        "server name {name:?} is neither a DNS name nor an IP address"
                    ))
                })?;
                ClientConnection::new(Arc::clone(config), name).map(Into::into)
            }
        }
    }
}

/// The protocol that TLS agrees on (RFC 7301), where it is asked for.
pub(super) type Alpn = Option<&'static [u8]>;

type Make = fn(&TlsFiles, Alpn) -> Result<Made, Bad>;

/// What of the files can't be used.
struct Bad {
    what: &'static str,
    path: std::path::PathBuf,
    problem: String,
}

impl Bad {
    fn new(what: &'static str, path: &Path, problem: impl ToString) -> Bad {
        Bad {
            what,
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }

    fn told(self, route: &str) -> SidecarError {
        SidecarError::Tls {
            route: route.to_owned(),
            what: self.what,
            path: self.path,
            problem: self.problem,
        }
    }
}

impl From<FileError> for Bad {
    fn from(error: FileError) -> Bad {
        match error {
            FileError::Read { what, path, source } => Bad::new(what, &path, source),
            FileError::Content {
                what,
                path,
                problem,
            } => Bad::new(what, &path, problem),
            FileError::Identity { key, problem, .. } => Bad::new("key", &key, problem),
        }
    }
}

/// The chain to show with its key, and when the first of it ends.
fn shown(
    files: &TlsFiles,
    provider: &CryptoProvider,
) -> Result<(Arc<SingleCertAndKey>, Option<u64>), Bad> {
    let cert = Named("certificate", &files.cert);
    let identity = files::identity(cert, Named("key", &files.key), provider)?;
    let chain = identity.cert.iter();
    let not_after = chain.filter_map(|c| validity::not_after(c)).min();
    Ok((Arc::new(SingleCertAndKey::from(identity)), not_after))
}

fn server(files: &TlsFiles, alpn: Alpn) -> Result<Made, Bad> {
    let provider = Arc::new(plimsoll_engine::tls::provider(&[], &[]));
    let learned = Arc::<Learned>::default();
    let anchors = Anchors::read(Named("CA", &files.ca))?;
    let check = ClientCheck::new(anchors, &provider, Arc::clone(&learned))
        .map_err(|e| Bad::new("CA", &files.ca, e))?;
    let (shown, not_after) = shown(files, &provider)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Bad::new("certificate", &files.cert, e))?
        .with_client_cert_verifier(Arc::new(check))
        .with_cert_resolver(shown);
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(Made {
        config: Config::Server(Arc::new(config)),
        not_after,
        learned,
    })
}

fn client(files: &TlsFiles, alpn: Alpn) -> Result<Made, Bad> {
    let provider = Arc::new(plimsoll_engine::tls::provider(&[], &[]));
    let (shown, not_after) = shown(files, &provider)?;
    let learned = Arc::<Learned>::default();
    let trust = Trust::Anchors(Anchors::read(Named("CA", &files.ca))?);
    let check = ServerCheck::new(trust, &provider, Arc::clone(&learned));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Bad::new("certificate", &files.cert, e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(check))
        .with_client_cert_resolver(shown);
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(Made {
        config: Config::Client(Arc::new(config)),
        not_after,
        learned,
    })
}
