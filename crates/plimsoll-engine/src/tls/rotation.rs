//! Files of TLS that may be replaced on disk while connections go on: a certificate with its key, and
//! the CA and the lists of revoked certificates that clients' certificates are held to.
//!
//! The files are looked at when a handshake asks for what they hold, once a second at most: there is
//! no thread for it, and connections that are open keep what they were opened with. Where the
//! files can't be used, or do not belong together because one of them has just been written, what
//! was read before stays in use. [`super::TlsClient`] and the servers have one of each that they need.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use aws_lc_rs::digest::{Context, SHA256};
use rustls::client::ResolvesClientCert;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::files::{self, FileError, Named};
use super::trust::{Anchors, ClientCheck, Learned};
use super::validity::{not_after, now};

/// What changes when a file is replaced: its inode, its length, and when it was written.
type Stamp = Option<(u64, u64, i64, i64)>;

/// When files were looked at, and what they were when they were last read.
#[derive(Debug)]
struct Looks<const N: usize> {
    /// The last second in which they were looked at.
    looked: AtomicU64,
    seen: Mutex<[Stamp; N]>,
}

impl<const N: usize> Looks<N> {
    /// Made before the files are read: a change while reading shows as a change afterwards.
    fn new(paths: [&Path; N]) -> Looks<N> {
        Looks {
            looked: AtomicU64::new(now()),
            seen: Mutex::new(paths.map(stamp)),
        }
    }

    /// Reads the files again by `renew` where they have changed. The first is the one to name.
    fn look(&self, paths: [(&str, &Path); N], renew: impl FnOnce() -> Result<(), FileError>) {
        let second = now();
        if self.looked.swap(second, Ordering::Relaxed) != second {
            self.look_closely(paths, renew);
        }
    }

    #[cold]
    fn look_closely(
        &self,
        paths: [(&str, &Path); N],
        renew: impl FnOnce() -> Result<(), FileError>,
    ) {
        let stamps = paths.map(|(_, path)| stamp(path));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == stamps {
            return;
        }
        match renew() {
            Ok(()) => {
                *seen = stamps;
                if let Some((what, path)) = paths.first() {
                    tracing::info!("{what} {}: read again", path.display());
                }
            }
            // One file of two may still be on its way: it is tried again.
            Err(e) => tracing::warn!("{e}; the one from before stays in use"),
        }
    }
}

#[derive(Debug)]
pub struct Rotating {
    /// What a file is to a person, and where it is.
    cert: (&'static str, PathBuf),
    key: (&'static str, PathBuf),
    provider: Arc<CryptoProvider>,
    shown: RwLock<Arc<CertifiedKey>>,
    looks: Looks<2>,
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
        let looks = Looks::new([cert.1, key.1]);
        let shown = files::identity(cert, key, &provider)?;
        Ok(Rotating {
            cert: (cert.0, cert.1.to_owned()),
            key: (key.0, key.1.to_owned()),
            provider,
            shown: RwLock::new(shown),
            looks,
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
        let paths = [(self.cert.0, &*self.cert.1), (self.key.0, &*self.key.1)];
        self.looks.look(paths, || self.renew());
        Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner))
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

/// Which certificates a CA file held, and what was revoked, in short.
pub type Mark = [u8; 8];

/// Judges clients' certificates by a CA file, and by lists of revoked certificates, as they are.
#[derive(Debug)]
pub struct RotatingCheck {
    /// What the files are to a person, and where they are.
    file: (&'static str, PathBuf),
    lists: Option<(&'static str, PathBuf)>,
    provider: Arc<CryptoProvider>,
    learned: Arc<Learned>,
    held: RwLock<Held>,
    names: Names,
    looks: Looks<2>,
}

/// What the files held.
#[derive(Clone, Debug)]
struct Held {
    check: Arc<ClientCheck>,
    mark: Mark,
}

/// The names of the CAs, and what they were next. They are lent for as long as [`RotatingCheck`] is
/// there, so none are dropped: a CA is replaced once a year.
#[derive(Debug, Default)]
struct Names {
    now: Vec<DistinguishedName>,
    next: OnceLock<Box<Names>>,
}

impl Names {
    fn last(&self) -> &Names {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }

    fn become_those(&self, now: &[DistinguishedName]) {
        let last = self.last();
        let bytes = |names: &[DistinguishedName]| -> Vec<Vec<u8>> {
            names.iter().map(|name| name.as_ref().to_vec()).collect()
        };
        if bytes(&last.now) != bytes(now) {
            // Where another thread was first, both have read the same files.
            let _ = last.next.set(Box::new(Names {
                now: now.to_vec(),
                next: OnceLock::new(),
            }));
        }
    }
}

impl Held {
    fn read(
        file: Named<'_>,
        lists: Option<Named<'_>>,
        provider: &Arc<CryptoProvider>,
        learned: &Arc<Learned>,
    ) -> Result<Held, FileError> {
        let mut anchors = Anchors::read(file)?;
        if let Some(lists) = lists {
            anchors = anchors.with_lists(lists, provider)?;
        }
        let mut digest = Context::new(&SHA256);
        for certificate in anchors.given() {
            digest.update(certificate);
        }
        for list in anchors.lists() {
            digest.update(list);
        }
        let mut mark = Mark::default();
        mark.copy_from_slice(&digest.finish().as_ref()[..size_of::<Mark>()]);
        let check = ClientCheck::new(anchors, provider, Arc::clone(learned));
        Ok(Held {
            check: Arc::new(check.map_err(|e| file.bad(e.to_string()))?),
            mark,
        })
    }
}

impl RotatingCheck {
    /// # Errors
    /// When one of the files is of no use.
    pub fn read(
        file: Named<'_>,
        lists: Option<Named<'_>>,
        provider: Arc<CryptoProvider>,
        learned: Arc<Learned>,
    ) -> Result<RotatingCheck, FileError> {
        let looks = Looks::new([file.1, lists.map_or(file.1, |lists| lists.1)]);
        let held = Held::read(file, lists, &provider, &learned)?;
        let names = Names::default();
        names.become_those(held.check.root_hint_subjects());
        Ok(RotatingCheck {
            file: (file.0, file.1.to_owned()),
            lists: lists.map(|lists| (lists.0, lists.1.to_owned())),
            held: RwLock::new(held),
            names,
            provider,
            learned,
            looks,
        })
    }

    /// Reads the files again, whether or not they have changed.
    ///
    /// # Errors
    /// When one of them can't be used; what was there before stays in use.
    pub fn renew(&self) -> Result<(), FileError> {
        let file = Named(self.file.0, &self.file.1);
        let lists = self.lists.as_ref().map(|(what, path)| Named(what, path));
        let read = Held::read(file, lists, &self.provider, &self.learned)?;
        self.names.become_those(read.check.root_hint_subjects());
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Of the clients' certificates.
    pub fn learned(&self) -> &Arc<Learned> {
        &self.learned
    }

    /// Which certificates are taken now. A session that was made when there were others is not to be
    /// resumed: resuming checks no certificate.
    pub fn mark(&self) -> Mark {
        self.current().mark
    }

    fn last(&self) -> Held {
        self.held
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn current(&self) -> Held {
        let file = (self.file.0, &*self.file.1);
        let lists = self.lists.as_ref();
        let lists = lists.map_or(file, |(what, path)| (*what, &**path));
        self.looks.look([file, lists], || self.renew());
        self.last()
    }
}

impl ClientCertVerifier for RotatingCheck {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // What is read again is read by this.
        self.current();
        &self.names.last().now
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let check = self.current().check;
        check.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let check = self.last().check;
        check.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let check = self.last().check;
        check.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.last().check.supported_verify_schemes()
    }
}
