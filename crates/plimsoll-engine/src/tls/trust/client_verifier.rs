//! Verification of clients' certificates, used by servers.

use std::sync::Arc;

use plimsoll_model::runs::run::CertificateAcceptance;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::super::negotiation::store_signature_scheme;
use super::super::x509_version_1::{CertificateFields, verify_key_possession};
use super::{CertificateObservations, DirectTrust, TrustAnchors};

/// A verifier of clients' certificates.
#[derive(Debug)]
pub struct ClientVerifier {
    anchors: TrustAnchors,
    library: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
    observations: Arc<CertificateObservations>,
}

impl ClientVerifier {
    /// Creates a verifier with `anchors` that records its observations in `observations`.
    ///
    /// # Errors
    /// Returns an error if the library rejects the certificates.
    pub fn new(
        anchors: TrustAnchors,
        provider: &Arc<CryptoProvider>,
        observations: Arc<CertificateObservations>,
    ) -> Result<ClientVerifier, VerifierBuilderError> {
        let roots = Arc::clone(&anchors.roots);
        let library = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider))
            .with_crls(anchors.lists.iter().cloned())
            .enforce_revocation_expiration();
        Ok(ClientVerifier {
            library: library.build()?,
            algorithms: provider.signature_verification_algorithms,
            anchors,
            observations,
        })
    }

    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        match self
            .anchors
            .check_direct_trust(end_entity, now, &self.algorithms)?
        {
            Some(DirectTrust::InCaFile) => self
                .observations
                .record_exception(CertificateAcceptance::InCaFile),
            Some(DirectTrust::Version1(_)) => self
                .observations
                .record_exception(CertificateAcceptance::Version1),
            None => {
                self.library
                    .verify_client_cert(end_entity, intermediates, now)?;
            }
        }
        Ok(())
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.library.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verdict = self.verify(end_entity, intermediates, now);
        (self.observations).record_verdict(verdict, &self.anchors, end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        store_signature_scheme(signature.scheme);
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let matters = CertificateFields::for_certificate(self.anchors.contains(certificate));
        store_signature_scheme(signature.scheme);
        verify_key_possession(message, certificate, signature, &self.algorithms, matters)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
