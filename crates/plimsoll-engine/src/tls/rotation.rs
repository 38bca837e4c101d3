//! A certificate and its key that may be replaced on disk while connections go on.
//!
//! The files are looked at when a handshake asks for the certificate, once a second at most: there is
//! no thread for it, and connections that are open keep what they were opened with. Where the
//! files can't be used, or do not belong together because one of them has just been written, what
//! was read before stays in use. [`super::TlsClient`] and the servers have one each.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::files::{self, FileError, Named};
use super::validity::{not_after, now};

/// What changes when a file is replaced: its inode, its length, and when it was written.
type Stamp = Option<(u64, u64, i64, i64)>;

#[derive(Debug)]
pub struct Rotating {
    /// What a file is to a person, and where it is.
    cert: (&'static str, PathBuf),
    key: (&'static str, PathBuf),
    provider: Arc<CryptoProvider>,
    shown: RwLock<Arc<CertifiedKey>>,
    /// The last second in which the files were looked at.
    looked: AtomicU64,
    seen: Mutex<[Stamp; 2]>,
    renewed: AtomicU64,
}

impl Rotating {
    /// # Errors
    /// When one of the files is of no use, or they do not belong together.
    pub fn read(
        cert: Named<'_>,
        key: Named<'_>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Rotating, FileError> {
        let seen = [stamp(cert.1), stamp(key.1)];
        let shown = files::identity(cert, key, &provider)?;
        Ok(Rotating {
            cert: (cert.0, cert.1.to_owned()),
            key: (key.0, key.1.to_owned()),
            provider,
            shown: RwLock::new(shown),
            looked: AtomicU64::new(now()),
            seen: Mutex::new(seen),
            renewed: AtomicU64::new(0),
        })
    }

    /// Reads the files again, whether or not they have changed.
    ///
    /// # Errors
    /// When they can't be used; what was shown before stays.
    pub fn renew(&self) -> Result<(), FileError> {
        let (cert, key) = (
            Named(self.cert.0, &self.cert.1),
            Named(self.key.0, &self.key.1),
        );
        let read = files::identity(cert, key, &self.provider)?;
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = read;
        self.renewed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How often the files were read again.
    pub fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::Relaxed)
    }

    /// The last second, since 1970, in which all that is shown is valid.
    pub fn ends(&self) -> Option<u64> {
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
        shown.cert.iter().filter_map(|c| not_after(c)).min()
    }

    fn current(&self) -> Arc<CertifiedKey> {
        let second = now();
        if self.looked.swap(second, Ordering::Relaxed) != second {
            self.look();
        }
        Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner))
    }

    #[cold]
    fn look(&self) {
        let stamps = [stamp(&self.cert.1), stamp(&self.key.1)];
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == stamps {
            return;
        }
        match self.renew() {
            Ok(()) => {
                *seen = stamps;
                tracing::info!("{} {}: read again", self.cert.0, self.cert.1.display());
            }
            // One file of the two may still be on its way: it is tried again.
            Err(e) => tracing::warn!("{e}; the one from before stays in use"),
        }
    }
}

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

impl ResolvesServerCert for Rotating {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for Rotating {
    fn resolve(
        &self,
        _issuers: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
