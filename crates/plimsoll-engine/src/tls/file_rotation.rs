//! TLS files that may be replaced while connections are open: a certificate with its key, and the CA file and
//! revocation lists for verifying clients' certificates.
//!
//! The files are checked when a handshake needs them, at most once a second, without a separate thread. Open
//! connections are not affected. If the new files cannot be used, or do not match because only one has been written
//! yet, the previous contents remain in use. [`super::TlsClient`] and the servers use this.

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

use super::certificate_expiry::{not_after, unix_now};
use super::files::{self, FileError, NamedFile};
use super::trust::{CertificateObservations, ClientVerifier, TrustAnchors};
use super::x509_version_1::parse;

/// The identity of a version of a file: inode, length and modification time.
type FileStamp = Option<(u64, u64, i64, i64)>;

/// Two files, and the content that was last loaded from them.
#[derive(Debug)]
struct WatchedFiles<T> {
    /// Description and path of each file. Error messages name the first.
    files: [(&'static str, PathBuf); 2],
    /// Unix time of the last check in seconds.
    checked_at: AtomicU64,
    stamps: Mutex<[FileStamp; 2]>,
    content: RwLock<T>,
}

impl<T: Clone> WatchedFiles<T> {
    /// Loads the files' contents with `read`.
    fn read(
        files: [NamedFile<'_>; 2],
        read: impl FnOnce() -> Result<T, FileError>,
    ) -> Result<WatchedFiles<T>, FileError> {
        // The stamps are taken before reading, so that a change during reading is noticed at the next check.
        let seen = files.map(file_stamp);
        Ok(WatchedFiles {
            checked_at: AtomicU64::new(unix_now()),
            stamps: Mutex::new(seen),
            files: files.map(|NamedFile(what, path)| (what, path.to_owned())),
            content: RwLock::new(read()?),
        })
    }

    fn files(&self) -> [NamedFile<'_>; 2] {
        self.files
            .each_ref()
            .map(|(what, path)| NamedFile(what, path))
    }

    fn set_content(&self, read: T) {
        *self.content.write().unwrap_or_else(PoisonError::into_inner) = read;
    }

    fn loaded_content(&self) -> T {
        let held = self.content.read().unwrap_or_else(PoisonError::into_inner);
        held.clone()
    }

    /// Returns the contents, reloaded with `renew` if the files have changed.
    fn current_content(&self, renew: impl FnOnce() -> Result<(), FileError>) -> T {
        let second = unix_now();
        if self.checked_at.swap(second, Ordering::Relaxed) != second {
            self.reload_if_changed(renew);
        }
        self.loaded_content()
    }

    #[cold]
    fn reload_if_changed(&self, renew: impl FnOnce() -> Result<(), FileError>) {
        let stamps = self.files().map(file_stamp);
        let mut seen = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == stamps {
            return;
        }
        match renew() {
            Ok(()) => {
                *seen = stamps;
                let [(what, path), _] = &self.files;
                tracing::info!("{what} {}: reloaded", path.display());
            }
            // The other file may not have been written yet; the next check tries again.
            Err(e) => tracing::warn!("{e}; the previous file stays in use"),
        }
    }
}

/// A certificate with its key, reloaded when its files change.
#[derive(Debug)]
pub struct RotatingIdentity {
    provider: Arc<CryptoProvider>,
    /// The loaded certificate and key.
    identity: WatchedFiles<Arc<CertifiedKey>>,
    reload_count: AtomicU64,
    /// Whether a server has asked a client for the certificate.
    was_requested: AtomicBool,
    /// Whether a server has accepted the certificate.
    was_accepted: AtomicBool,
}

impl RotatingIdentity {
    /// Loads a certificate and its key.
    ///
    /// # Errors
    /// Returns an error if one of the files cannot be used, or the key does not belong to the certificate.
    pub fn read(
        cert: NamedFile<'_>,
        key: NamedFile<'_>,
        provider: Arc<CryptoProvider>,
    ) -> Result<RotatingIdentity, FileError> {
        Ok(RotatingIdentity {
            identity: WatchedFiles::read([cert, key], || {
                files::read_identity(cert, key, &provider)
            })?,
            provider,
            reload_count: AtomicU64::new(0),
            was_requested: AtomicBool::new(false),
            was_accepted: AtomicBool::new(false),
        })
    }

    /// Reloads the files even if they have not changed.
    ///
    /// # Errors
    /// Returns an error if the files cannot be used; the previous certificate then remains in use.
    pub fn reload(&self) -> Result<(), FileError> {
        let [cert, key] = self.identity.files();
        self.identity
            .set_content(files::read_identity(cert, key, &self.provider)?);
        self.reload_count.fetch_add(1, Ordering::Relaxed);
        // No server has accepted the new certificate yet.
        self.was_accepted.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Returns how often the files were reloaded.
    pub fn reload_count(&self) -> u64 {
        self.reload_count.load(Ordering::Relaxed)
    }

    /// Returns the Unix time, in seconds, at which the chain expires: the earliest end of its certificates'
    /// validity. `None` if it is not known.
    pub fn chain_expiry(&self) -> Option<u64> {
        let shown = self.identity.loaded_content();
        shown.cert.iter().filter_map(|c| not_after(c)).min()
    }

    /// Returns whether a server has asked for the certificate, and none has accepted it yet.
    pub(super) fn may_be_rejected(&self) -> bool {
        self.was_requested.load(Ordering::Relaxed) && !self.was_accepted.load(Ordering::Relaxed)
    }

    /// Records that a server has accepted the certificate.
    pub(super) fn record_acceptance(&self) {
        // The flag is read first because all workers' connections call this, and unneeded writes would cause
        // contention.
        if !self.was_accepted.load(Ordering::Relaxed) {
            self.was_accepted.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the certificate's file, subject and issuer, for error messages.
    pub(super) fn description(&self) -> String {
        let [NamedFile(what, path), _] = self.identity.files();
        let shown = self.identity.loaded_content();
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

    fn current_key(&self) -> Arc<CertifiedKey> {
        self.identity.current_content(|| self.reload())
    }
}

fn file_stamp(file: NamedFile<'_>) -> FileStamp {
    let found = fs::metadata(file.1).ok()?;
    Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

impl ResolvesServerCert for RotatingIdentity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current_key())
    }
}

impl ResolvesClientCert for RotatingIdentity {
    fn resolve(
        &self,
        _issuers: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.was_requested.store(true, Ordering::Relaxed);
        Some(self.current_key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A digest of a CA file's certificates and of revocation lists.
pub type TrustDigest = [u8; 8];

/// A verifier of clients' certificates with a CA file and revocation lists that may be replaced.
#[derive(Debug)]
pub struct RotatingVerifier {
    provider: Arc<CryptoProvider>,
    observations: Arc<CertificateObservations>,
    /// The contents of the CA file and the lists; without lists, the second file is the CA file again.
    loaded: WatchedFiles<LoadedClientVerifier>,
    has_lists: bool,
}

/// The contents of the files.
#[derive(Clone, Debug)]
struct LoadedClientVerifier {
    check: Arc<ClientVerifier>,
    digest: TrustDigest,
    /// Names of the CAs. They are leaked on purpose: the verifier must lend them for as long as the server runs, and CA
    /// files rarely change.
    names: &'static [DistinguishedName],
}

impl LoadedClientVerifier {
    /// Loads the files; `before` contains the names that have already been leaked, which are reused if equal.
    fn read(
        (file, lists): (NamedFile<'_>, Option<NamedFile<'_>>),
        provider: &Arc<CryptoProvider>,
        observations: &Arc<CertificateObservations>,
        before: &'static [DistinguishedName],
    ) -> Result<LoadedClientVerifier, FileError> {
        let mut anchors = TrustAnchors::read(file)?;
        if let Some(lists) = lists {
            anchors = anchors.with_revocation_lists(lists)?;
        }
        let mut digest = Context::new(&SHA256);
        for certificate in &anchors.ca_certificates {
            digest.update(certificate);
        }
        for list in &anchors.lists {
            digest.update(list);
        }
        let mut mark = TrustDigest::default();
        mark.copy_from_slice(&digest.finish().as_ref()[..size_of::<TrustDigest>()]);
        let check = ClientVerifier::new(anchors, provider, Arc::clone(observations));
        let check = check.map_err(|e| file.error(e))?;
        let names = check.root_hint_subjects();
        let bytes = AsRef::<[u8]>::as_ref;
        let are_known = names.iter().map(bytes).eq(before.iter().map(bytes));
        Ok(LoadedClientVerifier {
            names: if are_known {
                before
            } else {
                names.to_vec().leak()
            },
            check: Arc::new(check),
            digest: mark,
        })
    }
}

impl RotatingVerifier {
    /// Loads the CA file and the revocation lists, if there are any.
    ///
    /// # Errors
    /// Returns an error if one of the files cannot be used.
    pub fn read(
        file: NamedFile<'_>,
        lists: Option<NamedFile<'_>>,
        provider: Arc<CryptoProvider>,
        observations: Arc<CertificateObservations>,
    ) -> Result<RotatingVerifier, FileError> {
        let files = [file, lists.unwrap_or(file)];
        let read = || LoadedClientVerifier::read((file, lists), &provider, &observations, &[]);
        Ok(RotatingVerifier {
            loaded: WatchedFiles::read(files, read)?,
            has_lists: lists.is_some(),
            provider,
            observations,
        })
    }

    /// Reloads the files even if they have not changed.
    ///
    /// # Errors
    /// Returns an error if one of the files cannot be used; the previous contents then remain in use.
    pub fn reload(&self) -> Result<(), FileError> {
        let [file, lists] = self.loaded.files();
        let lists = self.has_lists.then_some(lists);
        let before = self.loaded.loaded_content().names;
        let read =
            LoadedClientVerifier::read((file, lists), &self.provider, &self.observations, before)?;
        self.loaded.set_content(read);
        Ok(())
    }

    /// Returns the observations about clients' certificates.
    pub fn observations(&self) -> &Arc<CertificateObservations> {
        &self.observations
    }

    /// Returns the digest of the current files. A session established under another digest must not be resumed, since
    /// resumption does not verify certificates.
    pub fn trust_digest(&self) -> TrustDigest {
        self.current().digest
    }

    fn current(&self) -> LoadedClientVerifier {
        self.loaded.current_content(|| self.reload())
    }
}

impl ClientCertVerifier for RotatingVerifier {
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
        let check = self.loaded.loaded_content().check;
        check.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let check = self.loaded.loaded_content().check;
        check.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.loaded
            .loaded_content()
            .check
            .supported_verify_schemes()
    }
}
