//! Error messages for certificates that the TLS library rejects, where its own messages only contain the identifiers of
//! algorithms and purposes.

use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, Error, ExtendedKeyPurpose};

use super::super::key_kinds::SUPPORTED_KEY_TYPES;
use super::super::negotiation::KeyKind;
use super::super::x509_version_1::parse;

/// Minimum length in bits of an RSA key whose signatures are accepted.
const MIN_RSA_BITS: u32 = 2048;

/// Describes the problem of a chain, if the library's `error` does not name it.
pub(super) fn describe_chain_problem(
    error: &Error,
    end_entity: &CertificateDer<'_>,
    above: &[&CertificateDer<'_>],
) -> Option<String> {
    let Error::InvalidCertificate(error) = error else {
        return None;
    };
    match error {
        CertificateError::InvalidPurposeContext { required, presented } => {
            Some(describe_purpose_problem(required, presented))
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            let mut chain = std::iter::once(end_entity).chain(above.iter().copied());
            chain.find_map(describe_unsupported_signature)
        }
        CertificateError::BadSignature => above.iter().find_map(|issuer| {
            let bits = short_rsa_bits(issuer)?;
            let name = parse(issuer).ok()?.subject().to_string();
            Some(format!(
                "its issuer \"{name}\" has an RSA key of {bits} bits, and the minimum is {MIN_RSA_BITS}"
            ))
        }),
        _ => None,
    }
}

/// Describes the problem of a certificate's key if it is too short, after its handshake signature was rejected.
pub(super) fn describe_short_key(certificate: &CertificateDer<'_>) -> Option<String> {
    let bits = short_rsa_bits(certificate)?;
    Some(format!(
        "its RSA key has {bits} bits, and the minimum is {MIN_RSA_BITS}, with or without a check of the certificate: make a longer one"
    ))
}

fn short_rsa_bits(certificate: &CertificateDer<'_>) -> Option<u32> {
    match KeyKind::from_certificate(certificate) {
        KeyKind::Rsa(bits) => Some(bits).filter(|bits| *bits < MIN_RSA_BITS),
        KeyKind::Named(_) => None,
    }
}

fn describe_unsupported_signature(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = parse(certificate).ok()?;
    let algorithm = match &*parsed.signature_algorithm.algorithm.to_id_string() {
        "1.2.840.113549.1.1.4" => "MD5",
        "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" | "1.2.840.10040.4.3" => "SHA-1",
        "1.2.840.113549.1.1.10" => "RSA-PSS with parameters that are not supported",
        "1.3.101.113" => "Ed448",
        _ => return None,
    };
    let name = parsed.subject();
    Some(match algorithm {
        "MD5" | "SHA-1" => format!(
            "\"{name}\" is signed with {algorithm}, which can be forged and is not accepted: sign it again with SHA-256"
        ),
        _ => {
            format!(
                "\"{name}\" is signed with {algorithm}, which is not supported: {SUPPORTED_KEY_TYPES}"
            )
        }
    })
}

fn describe_purpose_problem(
    required: &ExtendedKeyPurpose,
    presented: &[ExtendedKeyPurpose],
) -> String {
    let presented: Vec<String> = presented.iter().map(describe_purpose).collect();
    let found = match presented.as_slice() {
        [] => "none at all".to_owned(),
        all => all.join(", "),
    };
    format!(
        "its extended key usage is {found}, not {}: issue it with extendedKeyUsage={}, or without that extension",
        describe_purpose(required),
        match required {
            ExtendedKeyPurpose::ClientAuth => "clientAuth",
            _ => "serverAuth",
        }
    )
}

/// Returns the name and meaning of an extended key purpose (RFC 5280 §4.2.1.12).
fn describe_purpose(purpose: &ExtendedKeyPurpose) -> String {
    let numbers = match purpose {
        ExtendedKeyPurpose::ServerAuth => {
            return "TLS server authentication (serverAuth)".to_owned();
        }
        ExtendedKeyPurpose::ClientAuth => {
            return "TLS client authentication (clientAuth)".to_owned();
        }
        ExtendedKeyPurpose::Other(numbers) => numbers,
    };
    match numbers.as_slice() {
        [2, 5, 29, 37, 0] => "any purpose (anyExtendedKeyUsage)".to_owned(),
        [1, 3, 6, 1, 5, 5, 7, 3, 3] => "signing of code (codeSigning)".to_owned(),
        [1, 3, 6, 1, 5, 5, 7, 3, 4] => "protection of e-mail (emailProtection)".to_owned(),
        [1, 3, 6, 1, 5, 5, 7, 3, 8] => "time stamps (timeStamping)".to_owned(),
        [1, 3, 6, 1, 5, 5, 7, 3, 9] => "signing of OCSP answers (OCSPSigning)".to_owned(),
        numbers => {
            let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            numbers.join(".")
        }
    }
}
