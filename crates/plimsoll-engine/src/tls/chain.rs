//! A server's certificate chain, checked once for all connections that are shown it.
//!
//! A chain's verdict is a function of its bytes, the name and the time of day, and with
//! many handshakes a second it is a third of a client's work. The signature by which the
//! server proves that it holds the key is checked in every handshake all the same. Only
//! plans that ask for it (`tls.chain = "once"`) go without the check of each connection.

use std::sync::{Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

use super::trust::ServerCheck;
use super::validity::not_after;

/// How long a verdict holds at most, in seconds.
const HOLDS: u64 = 60;

/// What was found good, and when.
#[derive(Debug)]
struct Checked {
    chain: Vec<CertificateDer<'static>>,
    name: ServerName<'static>,
    at: u64,
    /// The verdict holds before this second: no certificate is taken that has expired.
    until: u64,
}

#[derive(Debug)]
pub(super) struct CheckedOnce {
    verifier: ServerCheck,
    last: Mutex<Option<Checked>>,
}

impl CheckedOnce {
    pub(super) fn new(verifier: ServerCheck) -> CheckedOnce {
        CheckedOnce {
            verifier,
            last: Mutex::new(None),
        }
    }
}

impl Checked {
    fn is(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: u64,
    ) -> bool {
        let chain = std::iter::once(end_entity).chain(intermediates);
        (self.at..self.until).contains(&now)
            && self.name == *name
            && self.chain.len() == 1 + intermediates.len()
            && self
                .chain
                .iter()
                .zip(chain)
                .all(|(a, b)| a.as_ref() == b.as_ref())
    }
}

impl ServerCertVerifier for CheckedOnce {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // What is kept is whole between any two statements.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = now.as_secs();
        if last
            .as_ref()
            .is_some_and(|known| known.is(end_entity, intermediates, server_name, seconds))
        {
            return Ok(ServerCertVerified::assertion());
        }
        let verdict = self.verifier.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        let chain = std::iter::once(end_entity).chain(intermediates);
        let ends = chain.clone().filter_map(|c| not_after(c)).min();
        let until = ends.map_or(seconds, |last| (last + 1).min(seconds + HOLDS));
        *last = Some(Checked {
            chain: chain.map(|c| c.clone().into_owned()).collect(),
            name: server_name.to_owned(),
            at: seconds,
            until,
        });
        Ok(verdict)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier
            .verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier
            .verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_holds_for_the_same_bytes_and_name_and_for_a_minute() {
        let der = |byte: u8| CertificateDer::from(vec![byte; 3]);
        let name = |text: &'static str| ServerName::try_from(text).unwrap();
        let known = Checked {
            chain: vec![der(1), der(2)],
            name: name("a.test"),
            at: 1000,
            until: 1060,
        };
        let is = |leaf, above: &[CertificateDer<'_>], host, now| known.is(&leaf, above, &host, now);
        assert!(is(der(1), &[der(2)], name("a.test"), 1000));
        assert!(is(der(1), &[der(2)], name("a.test"), 1059));
        assert!(!is(der(1), &[der(2)], name("a.test"), 1060));
        assert!(!is(der(1), &[der(2)], name("a.test"), 999));
        assert!(!is(der(1), &[der(2)], name("b.test"), 1000));
        assert!(!is(der(3), &[der(2)], name("a.test"), 1000));
        assert!(!is(der(1), &[der(3)], name("a.test"), 1000));
        assert!(!is(der(1), &[], name("a.test"), 1000));
        assert!(!is(der(1), &[der(2), der(2)], name("a.test"), 1000));
    }
}
