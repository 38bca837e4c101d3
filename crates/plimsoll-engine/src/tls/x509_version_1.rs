//! Verification of X.509 version 1 certificates, which the TLS library rejects.
//!
//! `openssl x509 -req` without extensions creates them, and they are common in test beds. They cannot state their
//! purpose, so they are accepted only under narrow conditions: a certificate that the operator provided must have
//! signed them directly, with an algorithm that the library accepts in other certificates.
//! ([why](../../../../docs/decisions/0004-version-1-certificates.md))

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, DigitallySignedStruct, Error, InconsistentKeys};
use x509_parser::asn1_rs::{Oid, ToDer};
use x509_parser::oid_registry::{OID_X509_EXT_NAME_CONSTRAINTS, OID_X509_EXT_SUBJECT_ALT_NAME};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};
use x509_parser::x509::AlgorithmIdentifier;

use super::der::{SEQUENCE, VERSION_TAG, read_tagged};

/// Returns whether a certificate is of version 1; false if the bytes are not a certificate.
pub(super) fn is_version_1(certificate: &[u8]) -> bool {
    read_tagged(certificate, SEQUENCE)
        .and_then(|(certificate, _)| read_tagged(certificate, SEQUENCE))
        .is_some_and(|(body, _)| body.first().is_some_and(|tag| *tag != VERSION_TAG))
}

/// Parses a certificate.
///
/// # Errors
/// Returns an error if the bytes are not exactly one certificate.
pub(super) fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(CertificateError::BadEncoding.into()),
    }
}

/// Checks that one of `given` signed `certificate`, which is of version 1.
///
/// # Errors
/// Returns an error if none has the issuer's name, or the signature does not match its key.
pub(super) fn verify_issuer_signature(
    certificate: &X509Certificate<'_>,
    given: &[CertificateDer<'_>],
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<(), Error> {
    let body = &certificate.tbs_certificate;
    let signature = &certificate.signature_value;
    let is_sound = certificate.version() == X509Version::V1
        && certificate.extensions().is_empty()
        && signature.unused_bits == 0;
    let signed_with = encode_algorithm_identifier(&body.signature)?;
    if !is_sound || !has_valid_framing(certificate.as_raw(), &signed_with, &signature.data) {
        return Err(CertificateError::BadEncoding.into());
    }
    let mut why = CertificateError::UnknownIssuer;
    for issuer in given.iter().filter_map(|given| parse(given).ok()) {
        // Name constraints cannot be enforced on a v1 certificate, which has no extensions.
        if issuer.subject().as_raw() != certificate.issuer().as_raw() || constrains_names(&issuer) {
            continue;
        }
        let key = issuer.public_key();
        let key_of = encode_algorithm_identifier(&key.algorithm)?;
        let known = algorithms.all.iter().filter(|known| {
            known.signature_alg_id()[..] == signed_with[..]
                && known.public_key_alg_id()[..] == key_of[..]
        });
        why = CertificateError::BadSignature;
        for algorithm in known {
            let key = &key.subject_public_key.data;
            if algorithm
                .verify_signature(key, body.as_ref(), &signature.data)
                .is_ok()
            {
                return Ok(());
            }
        }
    }
    Err(why.into())
}

/// Returns whether the unsigned parts around a certificate's body have the required form (RFC 5280 §4.1.1),
/// which the parser checks only in part.
fn has_valid_framing(certificate: &[u8], algorithm: &[u8], signature: &[u8]) -> bool {
    const BIT_STRING: u8 = 0x03;
    let around = read_tagged(certificate, SEQUENCE)
        .and_then(|(whole, _)| read_tagged(whole, SEQUENCE))
        .and_then(|(_, after)| read_tagged(after, SEQUENCE));
    let signed = around.and_then(|(_, after)| read_tagged(after, BIT_STRING));
    around.is_some_and(|(found, _)| found == algorithm)
        && signed.is_some_and(|(found, after)| {
            found.split_first() == Some((&0, signature)) && after.is_empty()
        })
}

/// Checks that `certificate` is valid at `now`, and reports the same errors as the TLS library.
///
/// # Errors
/// Returns an error if the certificate has expired or is not valid yet.
pub(super) fn check_validity_period(
    certificate: &X509Certificate<'_>,
    now: UnixTime,
) -> Result<(), Error> {
    let at = |seconds: i64| {
        let seconds = u64::try_from(seconds).unwrap_or(0);
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
    };
    let validity = certificate.validity();
    let not_before = at(validity.not_before.timestamp());
    let not_after = at(validity.not_after.timestamp());
    let problem = if now < not_before {
        CertificateError::NotValidYetContext {
            time: now,
            not_before,
        }
    } else if now > not_after {
        CertificateError::ExpiredContext {
            time: now,
            not_after,
        }
    } else {
        return Ok(());
    };
    Err(problem.into())
}

/// The fields of a certificate that are relevant for verification.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificateFields {
    /// Only the key: the TLS library need not be able to parse the certificate.
    Key,
    All,
}

impl CertificateFields {
    /// Returns the relevant fields of a certificate: only the key if it is in the CA file (`is_given`), otherwise all.
    pub(super) fn for_certificate(is_given: bool) -> CertificateFields {
        if is_given {
            CertificateFields::Key
        } else {
            CertificateFields::All
        }
    }
}

/// Checks that the peer has the private key of `certificate`.
///
/// # Errors
/// Returns an error if the handshake signature was not made with that key.
pub(super) fn verify_key_possession(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
    matters: CertificateFields,
) -> Result<HandshakeSignatureValid, Error> {
    if matters == CertificateFields::All && !is_version_1(certificate) {
        return verify_tls13_signature(message, certificate, signature, algorithms);
    }
    let key = SubjectPublicKeyInfoDer::from(parse(certificate)?.tbs_certificate.subject_pki.raw);
    verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
}

/// Does the same as [`CertifiedKey::from_der`] for a chain that begins with a certificate of version 1.
///
/// # Errors
/// Returns an error if the key does not belong to that certificate.
pub(super) fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Error> {
    let key = provider.key_provider.load_private_key(key)?;
    let owner = chain.first().ok_or(Error::NoCertificatesPresented)?;
    let owned = parse(owner)?.tbs_certificate.subject_pki.raw;
    if key
        .public_key()
        .is_some_and(|public| public.as_ref() != owned)
    {
        return Err(InconsistentKeys::KeyMismatch.into());
    }
    Ok(CertifiedKey::new(chain, key))
}

/// Returns the only common name of a certificate's subject, if it has no subject alternative name.
pub(super) fn common_name<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a str> {
    let mut names = certificate.subject().iter_common_name();
    let name = names.next()?.as_str().ok()?;
    (names.next().is_none() && !has_extension(certificate, &OID_X509_EXT_SUBJECT_ALT_NAME))
        .then_some(name)
}

pub(super) fn constrains_names(certificate: &X509Certificate<'_>) -> bool {
    has_extension(certificate, &OID_X509_EXT_NAME_CONSTRAINTS)
}

fn has_extension(certificate: &X509Certificate<'_>, extension: &Oid<'_>) -> bool {
    let mut extensions = certificate.extensions().iter();
    extensions.any(|known| known.oid == *extension)
}

/// Encodes an algorithm identifier in the form that the TLS library uses: without the surrounding sequence.
fn encode_algorithm_identifier(algorithm: &AlgorithmIdentifier<'_>) -> Result<Vec<u8>, Error> {
    let mut bytes = algorithm.algorithm.to_der_vec();
    if let (Ok(bytes), Some(parameters)) = (&mut bytes, &algorithm.parameters) {
        match parameters.to_der_vec() {
            Ok(parameters) => bytes.extend(parameters),
            Err(_) => return Err(CertificateError::BadEncoding.into()),
        }
    }
    bytes.map_err(|_| CertificateError::BadEncoding.into())
}
