//! Verification of peers' certificates, and a record of exceptional acceptances.
//!
//! The TLS library verifies certificates by the rules for public ones: version 3, signed by a trusted CA, valid for one
//! of the subject alternative names. Test beds use other certificates, which are accepted if the operator has provided
//! something to check them against: a certificate that is itself in the CA file, byte for byte; one of version 1 that a
//! certificate in the CA file signed; one whose only name is the common name; one with a known fingerprint; on request,
//! any certificate. Expired ones are accepted only in the last case. These exceptions are recorded in
//! [`CertificateObservations`], for the report.
//!
//! This file is long because it contains all ways of accepting a certificate, so that no other file accepts one.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ::aws_lc_rs::digest::{SHA256, digest};
use plimsoll_model::Fingerprint;
use plimsoll_model::runs::run::CertificateAcceptance;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use x509_parser::prelude::X509Certificate;

use super::certificate_expiry::{not_after, unix_now};
use super::chain::ChainCache;
use super::files::{self, FileError, NamedFile};
use super::negotiation::store_signature_scheme;
use super::x509_version_1::{
    CertificateFields, check_validity_period, common_name, constrains_names, is_version_1, parse,
    verify_issuer_signature, verify_key_possession,
};

mod client_verifier;
mod explanations;

pub use client_verifier::ClientVerifier;

/// Reasons for rejecting a certificate for which the TLS library has no error.
#[derive(Debug, thiserror::Error)]
enum CertificateRejection {
    #[error(
        "it is an X.509 version 1 certificate, which is accepted only if a certificate in the CA file signed it directly"
    )]
    Version1,
    #[error(
        "it is a CA certificate instead of a server's or client's, and it is not in the CA file"
    )]
    Ca,
    #[error(
        "it is an X.509 version 1 certificate, whose revocation cannot be checked: use no revocation list, or a version 3 certificate"
    )]
    Version1Listed,
    #[error("its fingerprint is {0}, which is not pinned")]
    NotPinned(Fingerprint),
    #[error("{0}")]
    Unsupported(String),
}

impl From<CertificateRejection> for Error {
    fn from(why: CertificateRejection) -> Error {
        CertificateError::Other(OtherError(Arc::new(why))).into()
    }
}

/// Trusted CA certificates, from a file or from the system's trust store.
#[derive(Debug)]
pub struct TrustAnchors {
    roots: Arc<RootCertStore>,
    /// Certificates of the CA file. Empty for the system's trust store, whose certificates are not accepted as a peer's
    /// own certificate and cannot vouch for version 1 certificates.
    pub(super) ca_certificates: Vec<CertificateDer<'static>>,
    /// Revocation lists (RFC 5280 §5), one for each issuer in a chain. A chain is rejected if an issuer has no list, or
    /// an expired one, because the revocation status is then unknown.
    pub(super) lists: Vec<CertificateRevocationListDer<'static>>,
    /// The library's verifier of servers' chains and names.
    server_verifier: Arc<WebPkiServerVerifier>,
}

/// Creates the library's verifier of servers' certificates with `roots` and `lists`.
fn build_server_verifier(
    roots: &Arc<RootCertStore>,
    lists: &[CertificateRevocationListDer<'static>],
) -> Result<Arc<WebPkiServerVerifier>, VerifierBuilderError> {
    // Only the provider's signature algorithms matter here, not its suites and groups.
    let provider = Arc::new(aws_lc_rs::default_provider());
    WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider)
        .with_crls(lists.iter().cloned())
        .enforce_revocation_expiration()
        .build()
}

impl TrustAnchors {
    /// Reads the certificates of a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or contains no usable CA certificates.
    pub fn read(file: NamedFile<'_>) -> Result<TrustAnchors, FileError> {
        let given = files::read_certificates(file)?;
        let mut roots = RootCertStore::empty();
        for certificate in &given {
            roots
                .add(certificate.clone())
                .map_err(|e| file.error(format!("not a usable CA certificate: {e}")))?;
        }
        TrustAnchors::from_roots(roots, given).map_err(|e| file.error(e))
    }

    /// Creates trust anchors from `roots`, without revocation lists.
    fn from_roots(
        roots: RootCertStore,
        given: Vec<CertificateDer<'static>>,
    ) -> Result<TrustAnchors, VerifierBuilderError> {
        let roots = Arc::new(roots);
        Ok(TrustAnchors {
            server_verifier: build_server_verifier(&roots, &[])?,
            roots,
            ca_certificates: given,
            lists: Vec::new(),
        })
    }

    /// Adds the revocation lists of a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or contains no list.
    pub fn with_revocation_lists(self, file: NamedFile<'_>) -> Result<TrustAnchors, FileError> {
        let lists = files::read_revocation_lists(file)?;
        let servers = build_server_verifier(&self.roots, &lists)
            .map_err(|e| file.error(format!("not a usable list: {e}")))?;
        Ok(TrustAnchors {
            lists,
            server_verifier: servers,
            ..self
        })
    }

    /// Returns the system's trust store; `None` if it is empty.
    pub(super) fn from_system() -> Option<TrustAnchors> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        TrustAnchors::from_roots(roots, Vec::new()).ok()
    }

    /// Verifies a certificate that is accepted because of the CA file alone; returns `None` if the library must verify
    /// the certificate.
    fn check_direct_trust<'a>(
        &self,
        end_entity: &'a CertificateDer<'_>,
        now: UnixTime,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<Option<DirectTrust<'a>>, Error> {
        if self.contains(end_entity) {
            check_validity_period(&parse(end_entity)?, now)?;
            return Ok(Some(DirectTrust::InCaFile));
        }
        if !is_version_1(end_entity) {
            return Ok(None);
        }
        if self.ca_certificates.is_empty() {
            return Err(CertificateRejection::Version1.into());
        }
        if !self.lists.is_empty() {
            return Err(CertificateRejection::Version1Listed.into());
        }
        let certificate = parse(end_entity)?;
        verify_issuer_signature(&certificate, &self.ca_certificates, algorithms)?;
        check_validity_period(&certificate, now)?;
        Ok(Some(DirectTrust::Version1(Box::new(certificate))))
    }

    fn contains(&self, certificate: &CertificateDer<'_>) -> bool {
        self.ca_certificates
            .iter()
            .any(|given| given == certificate)
    }

    /// Checks the common name, which counts as the server's name only if there is no alternative name and no issuer
    /// constrains names, since name constraints apply only to alternative names.
    fn check_common_name(
        &self,
        certificate: &X509Certificate<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
    ) -> Result<(), Error> {
        let found = common_name(certificate).filter(|_| !self.ca_certificates.is_empty());
        let mut issuers = self.ca_certificates.iter().chain(intermediates);
        let free = |issuer: &CertificateDer<'_>| {
            parse(issuer).is_ok_and(|issuer| !constrains_names(&issuer))
        };
        match (found, name) {
            (Some(found), ServerName::DnsName(wanted))
                if name_matches(found, wanted.as_ref()) && issuers.all(free) =>
            {
                Ok(())
            }
            _ => Err(CertificateError::NotValidForNameContext {
                expected: name.to_owned(),
                presented: found
                    .map(|name| format!("common name {name:?}"))
                    .into_iter()
                    .collect(),
            }
            .into()),
        }
    }

    /// Returns the library's error or a more precise one, with an explanation if there is one.
    fn explain_rejection(
        &self,
        error: Error,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> (Error, Option<String>) {
        // The library checks the CA flag first, and reports nothing else about a CA certificate used as a peer's own.
        let flagged = match &error {
            Error::InvalidCertificate(CertificateError::Other(_)) => parse(end_entity).ok(),
            _ => None,
        };
        let error = match flagged.filter(|seen| seen.is_ca()) {
            Some(seen) if is_self_signed(&seen) => CertificateError::UnknownIssuer.into(),
            Some(_) => CertificateRejection::Ca.into(),
            None => {
                let above: Vec<_> = intermediates.iter().chain(&self.ca_certificates).collect();
                let sentence = explanations::describe_chain_problem(&error, end_entity, &above);
                sentence.map_or(error, |sentence| {
                    CertificateRejection::Unsupported(sentence).into()
                })
            }
        };
        let unknown = error == Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let why = unknown.then(|| self.explain_missing_issuer(end_entity, intermediates));
        (error, why.flatten())
    }

    /// Explains which certificate is missing between `end_entity` and a trusted one.
    fn explain_missing_issuer(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Option<String> {
        let sent: Vec<_> = intermediates.iter().filter_map(|c| parse(c).ok()).collect();
        let leaf = parse(end_entity).ok()?;
        let issued = |c: &X509Certificate<'_>| c.subject().as_raw() == leaf.issuer().as_raw();
        if is_version_1(end_entity) && sent.iter().any(issued) {
            return Some(format!("{}", CertificateRejection::Version1));
        }
        let trusted = self.roots.subjects();
        let mut last = &leaf;
        for _ in 0..=sent.len() {
            let issuer = last.issuer();
            let is_issuer = |name: &DistinguishedName| {
                let name: &[u8] = name.as_ref();
                name == issuer.as_raw()
            };
            if trusted.iter().any(is_issuer) {
                return Some(format!(
                    "a trusted certificate has the name of its issuer, \"{issuer}\", but did not sign it"
                ));
            }
            if is_self_signed(last) {
                return Some(if last == &leaf {
                    "it is self-signed: to trust it, give it as the CA file".to_owned()
                } else {
                    format!("the chain that was sent ends at \"{issuer}\", which is not trusted")
                });
            }
            match sent
                .iter()
                .find(|c| c.subject().as_raw() == issuer.as_raw())
            {
                Some(found) => last = found,
                None => {
                    return Some(format!(
                        "its issuer \"{issuer}\" is not trusted, and the certificate of that issuer was not sent: an intermediate certificate is missing, unless that is the CA to trust"
                    ));
                }
            }
        }
        None
    }
}

/// A certificate that is accepted because it is in the CA file, or was signed by a certificate in it.
enum DirectTrust<'a> {
    InCaFile,
    Version1(Box<X509Certificate<'a>>),
}

fn is_self_signed(certificate: &X509Certificate<'_>) -> bool {
    certificate.issuer().as_raw() == certificate.subject().as_raw()
}

/// Returns whether a certificate's name, whose first label may be `*`, matches `wanted` (RFC 6125 §6.4).
fn name_matches(presented: &str, wanted: &str) -> bool {
    let wanted = wanted.trim_end_matches('.');
    match presented.strip_prefix("*.") {
        None => presented.eq_ignore_ascii_case(wanted),
        Some(parent) => wanted.split_once('.').is_some_and(|(label, rest)| {
            !label.is_empty() && parent.contains('.') && rest.eq_ignore_ascii_case(parent)
        }),
    }
}

/// Observations about peers and their certificates during verification.
#[derive(Debug)]
pub struct CertificateObservations {
    /// Whether the server asked for a client certificate.
    was_requested: AtomicBool,
    /// Whether a server has answered a client without a certificate.
    was_client_accepted: AtomicBool,
    /// The exceptions that were made, one bit for each of [`CertificateAcceptance::ALL`].
    exceptions: AtomicU8,
    /// Explanation for the last certificate that had no trusted issuer.
    explanation: Mutex<Option<String>>,
    /// The last second (since 1970) in which all accepted certificates are valid.
    valid_until: AtomicU64,
    seen: Mutex<SeenCertificates>,
    /// Number of replaced certificates that no connection has counted yet.
    replaced: AtomicU64,
}

/// The server certificates seen so far, and the number of times that the client's certificate was reloaded.
#[derive(Debug, Default)]
struct SeenCertificates {
    last: Vec<u8>,
    known: Vec<Fingerprint>,
    reload_count: u64,
}

/// Maximum number of distinct server certificates; further ones are not counted as replacements.
const MAX_SEEN_CERTIFICATES: usize = 1024;

impl Default for CertificateObservations {
    fn default() -> CertificateObservations {
        CertificateObservations {
            was_requested: AtomicBool::new(false),
            was_client_accepted: AtomicBool::new(false),
            exceptions: AtomicU8::new(0),
            explanation: Mutex::new(None),
            valid_until: AtomicU64::new(u64::MAX),
            seen: Mutex::default(),
            replaced: AtomicU64::new(0),
        }
    }
}

impl CertificateObservations {
    pub(super) fn record_certificate_request(&self) {
        self.was_requested.store(true, Ordering::Relaxed);
    }

    pub(super) fn record_client_acceptance(&self) {
        if !self.was_client_accepted() {
            self.was_client_accepted.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn was_client_accepted(&self) -> bool {
        self.was_client_accepted.load(Ordering::Relaxed)
    }

    pub(super) fn was_certificate_requested(&self) -> bool {
        self.was_requested.load(Ordering::Relaxed)
    }

    /// Returns the exceptions that were made in accepting certificates.
    pub fn exceptions_made(&self) -> Vec<CertificateAcceptance> {
        let taken = self.exceptions.load(Ordering::Relaxed);
        let known = CertificateAcceptance::ALL.iter().enumerate();
        known
            .filter(|(bit, _)| taken & (1 << bit) != 0)
            .map(|(_, how)| *how)
            .collect()
    }

    fn record_exception(&self, how: CertificateAcceptance) {
        let bit = CertificateAcceptance::ALL
            .iter()
            .position(|known| *known == how);
        let bit = 1 << bit.unwrap_or(0);
        if self.exceptions.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            tracing::info!("a peer's certificate was accepted: {}", how.sentence());
        }
    }

    /// Records the end of the validity of an accepted chain.
    fn record_validity<'a>(&self, chain: impl Iterator<Item = &'a CertificateDer<'a>>) {
        let Some(until) = chain.filter_map(|c| not_after(c)).min() else {
            return;
        };
        self.record_resumption(until);
    }

    /// Records a resumed session whose certificates are valid until `until`, in seconds since 1970.
    pub fn record_resumption(&self, until: u64) {
        let known = self.valid_until.load(Ordering::Relaxed);
        let first = known == u64::MAX || known < unix_now();
        let until = if first { until } else { known.min(until) };
        self.valid_until.store(until, Ordering::Relaxed);
    }

    /// Returns the last second (since 1970) in which a session may be resumed: resumption verifies no certificates.
    pub fn resumable_until(&self) -> u64 {
        self.valid_until.load(Ordering::Relaxed)
    }

    /// Records an accepted server certificate.
    fn record_certificate(&self, certificate: &CertificateDer<'_>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.last == **certificate {
            return;
        }
        seen.last = certificate.to_vec();
        let found = fingerprint(certificate);
        if seen.known.contains(&found) || seen.known.len() == MAX_SEEN_CERTIFICATES {
            return;
        }
        seen.known.push(found);
        if seen.known.len() > 1 {
            self.replaced.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records the number of times that the client's certificate has been reloaded so far.
    pub(super) fn record_reload_count(&self, times: u64) {
        if times == 0 {
            return;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let more = times.saturating_sub(seen.reload_count);
        seen.reload_count = seen.reload_count.max(times);
        self.replaced.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns whether a certificate was replaced since the last call.
    pub(super) fn take_replaced_flag(&self) -> bool {
        self.replaced.load(Ordering::Relaxed) > 0 && self.replaced.swap(0, Ordering::Relaxed) > 0
    }

    /// Returns an explanation of `error`, if more is known than its message says.
    pub fn explanation_for(&self, error: &Error) -> Option<String> {
        let unknown = *error == Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let why = self
            .explanation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        why.clone().filter(|_| unknown)
    }

    /// Records the reason why a chain was rejected, or the end of the validity of an accepted one.
    fn record_verdict(
        &self,
        verdict: Result<(), Error>,
        anchors: &TrustAnchors,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        verdict.map_err(|e| {
            self.store_explanation(anchors.explain_rejection(e, end_entity, intermediates))
        })?;
        // The issuers of a certificate that is itself in the CA file are not verified.
        let above = if anchors.contains(end_entity) {
            &[]
        } else {
            intermediates
        };
        self.record_validity(std::iter::once(end_entity).chain(above));
        Ok(())
    }

    fn store_explanation(&self, (error, why): (Error, Option<String>)) -> Error {
        if let Some(why) = &why {
            tracing::debug!("a peer's certificate is refused: {why}");
        }
        *self
            .explanation
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = why;
        error
    }
}

/// The way in which servers' certificates are verified.
#[derive(Debug)]
pub enum TrustPolicy {
    /// A chain must lead to one of these trust anchors.
    Anchors(TrustAnchors),
    /// Only certificates with these fingerprints are accepted, regardless of their issuer.
    Pinned(Vec<Fingerprint>),
    /// Every certificate is accepted.
    Unchecked,
}

impl TrustPolicy {
    /// Adds revocation lists; only possible with trust anchors.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or contains no list, or if there are no trust anchors.
    pub(super) fn with_revocation_lists(
        self,
        file: NamedFile<'_>,
    ) -> Result<TrustPolicy, FileError> {
        match self {
            TrustPolicy::Anchors(anchors) => {
                Ok(TrustPolicy::Anchors(anchors.with_revocation_lists(file)?))
            }
            TrustPolicy::Pinned(_) | TrustPolicy::Unchecked => {
                Err(file.error("can't be checked without a CA"))
            }
        }
    }
}

/// A verifier of servers' certificates.
#[derive(Debug)]
pub struct ServerVerifier {
    trust: TrustPolicy,
    algorithms: WebPkiSupportedAlgorithms,
    observations: Arc<CertificateObservations>,
    /// The cache of verified chains; `None` if each chain is verified.
    cache: Option<ChainCache>,
}

impl ServerVerifier {
    /// Creates a verifier that records its observations in `observations`.
    pub fn new(
        trust: TrustPolicy,
        provider: &CryptoProvider,
        observations: Arc<CertificateObservations>,
    ) -> ServerVerifier {
        ServerVerifier {
            trust,
            algorithms: provider.signature_verification_algorithms,
            observations,
            cache: None,
        }
    }

    /// Enables the cache, so that a verified chain is not verified again for a while.
    #[must_use]
    pub(super) fn with_chain_cache(mut self) -> ServerVerifier {
        self.cache = Some(ChainCache::default());
        self
    }

    fn verify_with_anchors(
        &self,
        anchors: &TrustAnchors,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        match anchors.check_direct_trust(end_entity, now, &self.algorithms)? {
            Some(DirectTrust::InCaFile) => self
                .observations
                .record_exception(CertificateAcceptance::InCaFile),
            Some(DirectTrust::Version1(certificate)) => {
                anchors.check_common_name(&certificate, &[], name)?;
                self.observations
                    .record_exception(CertificateAcceptance::Version1);
                self.observations
                    .record_exception(CertificateAcceptance::CommonName);
            }
            None => {
                let servers = &anchors.server_verifier;
                match servers.verify_server_cert(end_entity, intermediates, name, &[], now) {
                    // The library checks the name last, so the chain is valid.
                    Err(
                        library @ Error::InvalidCertificate(
                            CertificateError::NotValidForName
                            | CertificateError::NotValidForNameContext { .. },
                        ),
                    ) => {
                        let seen = parse(end_entity)?;
                        if common_name(&seen).is_none() {
                            return Err(library);
                        }
                        anchors.check_common_name(&seen, intermediates, name)?;
                        self.observations
                            .record_exception(CertificateAcceptance::CommonName);
                    }
                    verdict => {
                        verdict?;
                    }
                }
            }
        }
        Ok(())
    }

    fn verify_by_policy(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        match &self.trust {
            TrustPolicy::Unchecked => self
                .observations
                .record_exception(CertificateAcceptance::Unchecked),
            TrustPolicy::Pinned(known) => {
                let found = fingerprint(end_entity);
                if !known.contains(&found) {
                    return Err(CertificateRejection::NotPinned(found).into());
                }
                check_validity_period(&parse(end_entity)?, now)?;
                self.observations
                    .record_exception(CertificateAcceptance::Pinned);
                self.observations
                    .record_validity(std::iter::once(end_entity));
            }
            TrustPolicy::Anchors(anchors) => {
                let verdict =
                    self.verify_with_anchors(anchors, end_entity, intermediates, name, now);
                (self.observations).record_verdict(verdict, anchors, end_entity, intermediates)?;
            }
        }
        self.observations.record_certificate(end_entity);
        Ok(())
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let check = || self.verify_by_policy(end_entity, intermediates, name, now);
        match &self.cache {
            Some(once) => once.check(end_entity, intermediates, name, now, check)?,
            None => check()?,
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        store_signature_scheme(signature.scheme);
        let verdict = verify_tls12_signature(message, certificate, signature, &self.algorithms);
        verdict.map_err(|error| explain_short_key(error, certificate))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let matters = match &self.trust {
            TrustPolicy::Anchors(anchors) => {
                CertificateFields::for_certificate(anchors.contains(certificate))
            }
            TrustPolicy::Pinned(_) | TrustPolicy::Unchecked => CertificateFields::Key,
        };
        store_signature_scheme(signature.scheme);
        let verdict =
            verify_key_possession(message, certificate, signature, &self.algorithms, matters);
        verdict.map_err(|error| explain_short_key(error, certificate))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Replaces the error of a handshake signature if the key is too short for any signature.
fn explain_short_key(error: Error, certificate: &CertificateDer<'_>) -> Error {
    match explanations::describe_short_key(certificate) {
        Some(sentence) => CertificateRejection::Unsupported(sentence).into(),
        None => error,
    }
}

/// Returns the SHA-256 fingerprint of the whole certificate, as printed by `openssl x509 -fingerprint -sha256`.
fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
    Fingerprint(bytes)
}

#[cfg(test)]
mod tests;
