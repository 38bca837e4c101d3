//! Maps TLS failures to outcomes and messages.

use plimsoll_model::Outcome;
use rustls::{
    AlertDescription, CertificateError, InvalidMessage, PeerIncompatible, PeerMisbehaved,
};

use super::CLIENT_CERT_MISSING_MESSAGE;
use super::certificate_expiry::describe_tls_error;
use super::record::RecordError;
use super::trust::CertificateObservations;

/// The client certificate, if any, that this end presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PresentedIdentity {
    Certificate,
    Nothing,
}

impl PresentedIdentity {
    pub(super) fn new(has_identity: bool) -> PresentedIdentity {
        if has_identity {
            PresentedIdentity::Certificate
        } else {
            PresentedIdentity::Nothing
        }
    }
}

/// Classifies an error of our record layer in the same way as the equivalent error of rustls.
pub(super) fn classify_record_error(
    error: &RecordError,
    shown: PresentedIdentity,
) -> (Outcome, String) {
    match error {
        RecordError::AlertReceived(alert) => classify(
            &rustls::Error::AlertReceived(AlertDescription::from(*alert)),
            shown,
        ),
        other => (Outcome::TlsFailed, format!("tls: {other}")),
    }
}

/// Classifies an error like [`classify`], and adds a further explanation if one is known.
pub(super) fn classify_and_explain(
    error: &rustls::Error,
    shown: PresentedIdentity,
    observations: &CertificateObservations,
) -> (Outcome, String) {
    // Servers with OpenSSL answer a missing certificate of a TLS 1.2 client with this alert.
    let is_failure_alert =
        *error == rustls::Error::AlertReceived(AlertDescription::HandshakeFailure);
    if is_failure_alert
        && shown == PresentedIdentity::Nothing
        && observations.was_certificate_requested()
    {
        return (
            Outcome::TlsClientCertificateRequired,
            CLIENT_CERT_MISSING_MESSAGE.to_owned(),
        );
    }
    let (outcome, text) = classify(error, shown);
    match observations.explanation_for(error) {
        Some(why) => (outcome, format!("{text}: {why}")),
        None => (outcome, text),
    }
}

/// Returns the outcome and the message of a TLS failure.
///
/// A TLS 1.3 client completes the handshake before the server has verified its certificate (RFC 8446 §4.4.2), so a
/// rejection can arrive as an alert on an open connection. The meaning of the alert depends on whether a certificate
/// was presented.
pub(super) fn classify(error: &rustls::Error, shown: PresentedIdentity) -> (Outcome, String) {
    use AlertDescription as Alert;
    let outcome = match error {
        rustls::Error::InvalidCertificate(problem) => match problem {
            CertificateError::UnknownIssuer => Outcome::TlsUnknownCa,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                Outcome::TlsCertificateExpired
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Outcome::TlsCertificateNotYetValid
            }
            CertificateError::Revoked => Outcome::TlsCertificateRevoked,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Outcome::TlsNameMismatch
            }
            _ => Outcome::TlsBadCertificate,
        },
        rustls::Error::AlertReceived(alert) => match alert {
            Alert::CertificateRequired => Outcome::TlsClientCertificateRequired,
            // The alerts below mean rejection only if a certificate was presented. OpenSSL-based servers answer a
            // missing certificate with handshake_failure.
            Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::UnsupportedCertificate
            | Alert::DecryptError
            | Alert::UnknownCA
            | Alert::AccessDenied
                if shown == PresentedIdentity::Certificate =>
            {
                Outcome::TlsClientCertificateRejected
            }
            Alert::BadCertificate | Alert::CertificateUnknown | Alert::UnknownCA => {
                Outcome::TlsClientCertificateRequired
            }
            Alert::ProtocolVersion => Outcome::TlsVersion,
            Alert::HandshakeFailure | Alert::InsufficientSecurity => Outcome::TlsNoCommonParameters,
            Alert::NoApplicationProtocol => Outcome::TlsAlpn,
            Alert::UnrecognisedName => Outcome::TlsNameMismatch,
            _ => Outcome::TlsAlert,
        },
        rustls::Error::PeerIncompatible(problem) => match problem {
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled => Outcome::TlsVersion,
            _ => Outcome::TlsNoCommonParameters,
        },
        rustls::Error::NoApplicationProtocol => Outcome::TlsAlpn,
        rustls::Error::PeerMisbehaved(PeerMisbehaved::SelectedUnofferedApplicationProtocol) => {
            Outcome::TlsAlpn
        }
        // Only an invalid record header proves that the peer does not speak TLS.
        rustls::Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => Outcome::TlsNotTls,
        _ => Outcome::TlsFailed,
    };
    let said = match error {
        rustls::Error::AlertReceived(Alert::UnrecognisedName) => {
            "the server has no certificate for the requested name (SNI; alert unrecognized_name)"
                .to_owned()
        }
        rustls::Error::AlertReceived(Alert::HandshakeFailure) => format!(
            "{}: no cipher suite, group or key type in common with the server (RSA-PSS, Ed448 and DSA keys are not supported)",
            describe_tls_error(error)
        ),
        other => describe_tls_error(other),
    };
    (outcome, format!("tls: {said}"))
}
