//! Files of TLS that may be replaced on disk while connections go on: a certificate with its key, and
//! the CA and the lists of revoked certificates that clients' certificates are held to.
//!
//! The files are looked at when a handshake asks for what they hold, once a second at most: there is
//! no thread for it, and connections that are open keep what they were opened with. Where the
//! files can't be used, or do not belong together because one of them has just been written, what
//! was read before stays in use. [`super::TlsClient`] and the servers have one of each that they need.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

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
use super::version_1::parse;

/// What changes when a file is replaced: its inode, its length, and when it was written.
type Stamp = Option<(u64, u64, i64, i64)>;

/// Two files, and what they held when they were last read.
#[derive(Debug)]
struct Kept<T> {
    /// What each is to a person, and where it is. The first is the one to name.
    files: [(&'static str, PathBuf); 2],
    /// The last second in which they were looked at.
    looked: AtomicU64,
    seen: Mutex<[Stamp; 2]>,
    held: RwLock<T>,
}

impl<T: Clone> Kept<T> {
    /// What they hold now: `read`.
    fn read(
        files: [Named<'_>; 2],
        read: impl FnOnce() -> Result<T, FileError>,
    ) -> Result<Kept<T>, FileError> {
        // Before the files are read: a change while reading shows as a change afterwards.
        let seen = files.map(stamp);
        Ok(Kept {
            looked: AtomicU64::new(now()),
            seen: Mutex::new(seen),
            files: files.map(|Named(what, path)| (what, path.to_owned())),
            held: RwLock::new(read()?),
        })
    }

    fn files(&self) -> [Named<'_>; 2] {
        self.files.each_ref().map(|(what, path)| Named(what, path))
    }

    fn replace(&self, read: T) {
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = read;
    }

    fn last(&self) -> T {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.clone()
    }

    /// What they hold, read again by `renew` where they have changed.
    fn current(&self, renew: impl FnOnce() -> Result<(), FileError>) -> T {
        let second = now();
        if self.looked.swap(second, Ordering::Relaxed) != second {
            self.look_closely(renew);
        }
        self.last()
    }

    #[cold]
    fn look_closely(&self, renew: impl FnOnce() -> Result<(), FileError>) {
        let stamps = self.files().map(stamp);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == stamps {
            return;
        }
        match renew() {
            Ok(()) => {
                *seen = stamps;
                let [(what, path), _] = &self.files;
                tracing::info!("{what} {}: read again", path.display());
            }
            // One file of two may still be on its way: it is tried again.
            Err(e) => tracing::warn!("{e}; the previous one stays in use"),
        }
    }
}

/// A certificate with its key, as its files hold it at the time.
#[derive(Debug)]
pub struct Rotating {
    provider: Arc<CryptoProvider>,
    /// The certificate and its key.
    shown: Kept<Arc<CertifiedKey>>,
    renewed: AtomicU64,
    /// A server asked a client for it.
    doubted: AtomicBool,
    /// A server has taken it.
    accepted: AtomicBool,
}

impl Rotating {
    /// # Errors
    /// When one of the files is of no use, or they do not belong together.
    pub fn read(
        cert: Named<'_>,
        key: Named<'_>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Rotating, FileError> {
        Ok(Rotating {
            shown: Kept::read([cert, key], || files::identity(cert, key, &provider))?,
            provider,
            renewed: AtomicU64::new(0),
            doubted: AtomicBool::new(false),
            accepted: AtomicBool::new(false),
        })
    }

    /// Reads the files again, whether or not they have changed.
    ///
    /// # Errors
    /// When they can't be used; what was shown before stays.
    pub fn renew(&self) -> Result<(), FileError> {
        let [cert, key] = self.shown.files();
        self.shown
            .replace(files::identity(cert, key, &self.provider)?);
        self.renewed.fetch_add(1, Ordering::Relaxed);
        // Nothing is known of the new one.
        self.accepted.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// How often the files were read again.
    pub fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::Relaxed)
    }

    /// The last second, since 1970, in which all that is shown is valid.
    pub fn ends(&self) -> Option<u64> {
        let shown = self.shown.last();
        shown.cert.iter().filter_map(|c| not_after(c)).min()
    }

    /// Whether a server has asked for it, and none has taken it yet.
    pub(super) fn may_be_refused(&self) -> bool {
        self.doubted.load(Ordering::Relaxed) && !self.accepted.load(Ordering::Relaxed)
    }

    /// Takes note that a server went on after it was shown.
    pub(super) fn was_accepted(&self) {
        // Connections of all workers pass here, and only the first has something to write.
        if !self.accepted.load(Ordering::Relaxed) {
            self.accepted.store(true, Ordering::Relaxed);
        }
    }

    /// Its file, and whom it names.
    pub(super) fn description(&self) -> String {
        let [Named(what, path), _] = self.shown.files();
        let shown = self.shown.last();
        let parsed = shown.cert.first().and_then(|first| parse(first).ok());
        match parsed {
            Some(parsed) => format!(
                "{what} {} (\"{}\", issued by \"{}\")",
                path.display(),
                parsed.subject(),
                parsed.issuer()
            ),
            None => format!("{what} {}", path.display()),
        }
    }

    fn current(&self) -> Arc<CertifiedKey> {
        self.shown.current(|| self.renew())
    }
}

fn stamp(file: Named<'_>) -> Stamp {
    let found = fs::metadata(file.1).ok()?;
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
        self.doubted.store(true, Ordering::Relaxed);
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
    provider: Arc<CryptoProvider>,
    learned: Arc<Learned>,
    /// Of the CA file and the lists; without lists of the CA file twice.
    held: Kept<Held>,
    has_lists: bool,
}

/// What the files held.
#[derive(Clone, Debug)]
struct Held {
    check: Arc<ClientCheck>,
    mark: Mark,
    /// Of the CAs. They are lent for as long as there is a check, which does not end before its server, and a CA is
    /// replaced once a year: none are dropped.
    names: &'static [DistinguishedName],
}

impl Held {
    /// `before`: the names that are lent already.
    fn read(
        (file, lists): (Named<'_>, Option<Named<'_>>),
        provider: &Arc<CryptoProvider>,
        learned: &Arc<Learned>,
        before: &'static [DistinguishedName],
    ) -> Result<Held, FileError> {
        let mut anchors = Anchors::read(file)?;
        if let Some(lists) = lists {
            anchors = anchors.with_lists(lists)?;
        }
        let mut digest = Context::new(&SHA256);
        for certificate in &anchors.given {
            digest.update(certificate);
        }
        for list in &anchors.lists {
            digest.update(list);
        }
        let mut mark = Mark::default();
        mark.copy_from_slice(&digest.finish().as_ref()[..size_of::<Mark>()]);
        let check = ClientCheck::new(anchors, provider, Arc::clone(learned));
        let check = check.map_err(|e| file.bad(e))?;
        let names = check.root_hint_subjects();
        let bytes = AsRef::<[u8]>::as_ref;
        let are_known = names.iter().map(bytes).eq(before.iter().map(bytes));
        Ok(Held {
            names: if are_known {
                before
            } else {
                names.to_vec().leak()
            },
            check: Arc::new(check),
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
        let files = [file, lists.unwrap_or(file)];
        let read = || Held::read((file, lists), &provider, &learned, &[]);
        Ok(RotatingCheck {
            held: Kept::read(files, read)?,
            has_lists: lists.is_some(),
            provider,
            learned,
        })
    }

    /// Reads the files again, whether or not they have changed.
    ///
    /// # Errors
    /// When one of them can't be used; what was there before stays in use.
    pub fn renew(&self) -> Result<(), FileError> {
        let [file, lists] = self.held.files();
        let lists = self.has_lists.then_some(lists);
        let before = self.held.last().names;
        let read = Held::read((file, lists), &self.provider, &self.learned, before)?;
        self.held.replace(read);
        Ok(())
    }

    /// Returns what was learned of the clients' certificates.
    pub fn learned(&self) -> &Arc<Learned> {
        &self.learned
    }

    /// Which certificates are taken now. A session that was made when there were others is not to be
    /// resumed: resuming checks no certificate.
    pub fn mark(&self) -> Mark {
        self.current().mark
    }

    fn current(&self) -> Held {
        self.held.current(|| self.renew())
    }
}

impl ClientCertVerifier for RotatingCheck {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.current().names
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
        let check = self.held.last().check;
        check.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let check = self.held.last().check;
        check.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.held.last().check.supported_verify_schemes()
    }
}
