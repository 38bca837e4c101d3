//! Lost connections whose cause may be the client's certificate.

use plimsoll_model::Outcome;

use super::connection::DriverConnection;
use crate::driver::Driver;
use crate::event_loop::connection::ConnectionState;
use crate::tls::{CLIENT_CERT_MISSING_MESSAGE, TlsClient};
use crate::transport::connection_loss::ConnectionLoss;

impl<D: Driver, S> DriverConnection<D, S> {
    /// Replaces `loss` if a client certificate is the likely cause. A server that requires one, or rejects ours, may
    /// close without sending the alert that says so (RFC 8446 §4.4.2.4); gRPC's C core does this.
    pub(super) fn attribute_loss_to_client_cert(
        &self,
        tls: Option<&TlsClient>,
        loss: ConnectionLoss,
    ) -> ConnectionLoss {
        // A server of TLS 1.2 checks the certificate during the handshake. Over TLS 1.3, a protocol without a greeting
        // is open before the server has checked it, so only the lack of an answer shows a rejection.
        let without_a_word = [
            Outcome::ConnectionClosed,
            Outcome::Reset,
            Outcome::TlsFailed,
            Outcome::Truncated,
        ]
        .contains(&loss.outcome);
        let may_be_unchecked = match self.state {
            ConnectionState::Greeting => true,
            ConnectionState::Handshaking => without_a_word,
            // A server may close connections on which it has nothing to refuse.
            ConnectionState::Open => without_a_word && self.data.in_flight > 0,
            _ => false,
        };
        let Some(tls) = tls.filter(|_| may_be_unchecked) else {
            return loss;
        };
        if tls.lacks_client_certificate() {
            return ConnectionLoss::new(
                Outcome::TlsClientCertificateRequired,
                CLIENT_CERT_MISSING_MESSAGE,
            );
        }
        match tls.describe_suspected_rejection() {
            Some(suspected) if without_a_word => {
                ConnectionLoss::new(Outcome::TlsClientCertificateRejected, suspected)
            }
            _ => loss,
        }
    }
}
