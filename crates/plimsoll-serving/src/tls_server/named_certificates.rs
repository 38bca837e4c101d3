//! Selects the certificate by the name that a client asks for (server name indication, RFC 6066 §3).
//!
//! Each file is parsed once, and again when it changes. Files that are added after the start are ignored.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use plimsoll_engine::tls::file_rotation::RotatingIdentity;
use plimsoll_engine::tls::files::NamedFile;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::ServeError;

/// The certificates of a folder, and the resolver for all other names.
#[derive(Debug)]
pub(crate) struct CertificatesByName {
    certificates: HashMap<String, RotatingIdentity>,
    others: Arc<dyn ResolvesServerCert>,
}

impl CertificatesByName {
    /// Reads every `NAME.crt` with its `NAME.key`.
    ///
    /// # Errors
    /// When a certificate or key can't be used: a server must not start without one of its certificates.
    pub(crate) fn read(
        folder: &Path,
        others: Arc<dyn ResolvesServerCert>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<CertificatesByName, ServeError> {
        let bad = |path: &Path, problem: String| {
            ServeError::File(NamedFile("certificate folder", path).error(problem))
        };
        let mut known = HashMap::new();
        let entries = fs::read_dir(folder).map_err(|e| bad(folder, e.to_string()))?;
        for entry in entries {
            let path = entry.map_err(|e| bad(folder, e.to_string()))?.path();
            if path.extension().is_none_or(|extension| extension != "crt") {
                continue;
            }
            let name = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .ok_or_else(|| bad(&path, "its name is not UTF-8".to_owned()))?
                .to_ascii_lowercase();
            let key = path.with_extension("key");
            let file = |path| NamedFile("certificate folder", path);
            let certified = RotatingIdentity::read(file(&path), file(&key), Arc::clone(provider))?;
            known.insert(name, certified);
        }
        if known.is_empty() {
            return Err(bad(
                folder,
                "holds no certificate: expected NAME.crt with NAME.key".to_owned(),
            ));
        }
        Ok(CertificatesByName {
            certificates: known,
            others,
        })
    }
}

impl ResolvesServerCert for CertificatesByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match hello
            .server_name()
            .and_then(|name| self.certificates.get(name))
        {
            Some(certified) => certified.resolve(hello),
            None => self.others.resolve(hello),
        }
    }
}
