//! The expiry of certificates (RFC 5280 §4.1.2.5), and error messages about it.
//!
//! The input is a certificate that the TLS library has accepted, or a file of the operator. For other input the result
//! is `None`; nothing is read beyond the end of the input.

use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_model::runs::run::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{CertificateError, PeerIncompatible};
use x509_parser::certificate::Validity;
use x509_parser::prelude::FromDer;

use super::der::skip_fields;

/// Returns the last second (since 1970) in which `certificate` (DER) is valid; `None` if it is not a certificate.
pub fn not_after(certificate: &[u8]) -> Option<u64> {
    // Skips serial number, signature algorithm and issuer.
    let (_, validity) = Validity::from_der(skip_fields(certificate, 3)?).ok()?;
    u64::try_from(validity.not_after.timestamp()).ok()
}

/// Checks that no certificate of a chain (DER) has expired at the current time. Used for peers with a resumed session,
/// whose certificates are not verified again.
///
/// # Errors
/// Returns an error if a certificate has expired.
pub fn check_not_expired<'a>(
    certificates: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(), rustls::Error> {
    let now = unix_now();
    match certificates.into_iter().filter_map(not_after).min() {
        Some(last) if last < now => {
            let at = |s| UnixTime::since_unix_epoch(std::time::Duration::from_secs(s));
            Err(rustls::Error::InvalidCertificate(
                CertificateError::ExpiredContext {
                    time: at(now),
                    not_after: at(last),
                },
            ))
        }
        _ => Ok(()),
    }
}

/// Returns the current time in seconds since 1970.
pub fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Formats a time in seconds since 1970 as UTC.
pub fn format_utc(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .map_or_else(|| format!("{seconds} s after 1970"), |at| at.to_string())
}

/// Returns the message of a TLS error, with readable times.
pub fn describe_tls_error(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after, ..
        }) => format!("the certificate expired at {}", format_utc(not_after.as_secs())),
        rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before,
            ..
        }) => format!(
            "the certificate is not valid before {}",
            format_utc(not_before.as_secs())
        ),
        rustls::Error::InvalidCertificate(CertificateError::Revoked) => {
            "the certificate or one of its issuers is on the revocation list".to_owned()
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownRevocationStatus) => {
            "an issuer in the certificate's chain has no revocation list: give the lists of all issuers in one file".to_owned()
        }
        rustls::Error::InvalidCertificate(CertificateError::ExpiredRevocationListContext {
            next_update,
            ..
        }) => format!(
            "the list of revoked certificates expired at {}",
            format_utc(next_update.as_secs())
        ),
        rustls::Error::InvalidCertificate(CertificateError::Other(why)) => {
            format!("the certificate is rejected: {}", why.0)
        }
        rustls::Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
        ) => "the peer has no TLS version in common with those allowed here (versions, --tls-version)".to_owned(),
        rustls::Error::PeerIncompatible(PeerIncompatible::SignatureAlgorithmsExtensionRequired) => {
            "the peer offers no signature algorithms, as clients of TLS 1.1 and older".to_owned()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate_until(not_after: (i32, u8, u8)) -> Vec<u8> {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut wanted = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
        let (year, month, day) = not_after;
        wanted.not_after = rcgen::date_time_ymd(year, month, day);
        wanted.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn certificate_expiry_date_is_parsed() {
        for (date, seconds) in [
            ((1999, 12, 31), 946_598_400),
            ((2024, 2, 29), 1_709_164_800),
            ((2026, 3, 1), 1_772_323_200),
            ((2049, 12, 31), 2_524_521_600),
            // Years from 2050 on have four digits (GeneralizedTime).
            ((2050, 1, 1), 2_524_608_000),
            ((2100, 3, 1), 4_107_542_400),
            ((9999, 12, 31), 253_402_214_400),
        ] {
            assert_eq!(
                not_after(&certificate_until(date)),
                Some(seconds),
                "{date:?}"
            );
        }
        assert_eq!(format_utc(1_772_323_200), "2026-03-01T00:00:00Z");
    }

    #[test]
    fn truncated_certificate_has_no_expiry() {
        let whole = certificate_until((2026, 1, 1));
        for length in 0..whole.len() {
            assert_eq!(not_after(&whole[..length]), None, "{length}");
        }
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 0xff;
            let _ = not_after(&other);
        }
    }

    #[test]
    fn chain_expires_with_earliest_certificate() {
        let (past, future) = (
            certificate_until((2024, 1, 1)),
            certificate_until((2090, 1, 1)),
        );
        assert!(check_not_expired([&future[..], &future]).is_ok());
        assert!(check_not_expired([]).is_ok());
        let error = check_not_expired([&future[..], &past]).unwrap_err();
        assert_eq!(
            describe_tls_error(&error),
            "the certificate expired at 2024-01-01T00:00:00Z"
        );
    }
}
