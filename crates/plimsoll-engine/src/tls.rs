//! TLS on the client side: converts plaintext to records and back.
//!
//! Outside this module, the engine uses only [`TlsClient`] (one per run, shared) and [`TlsSession`] (one per
//! connection).

use std::io;
use std::sync::Arc;

use plimsoll_model::Outcome;
use plimsoll_model::plan::{
    self, ChainCheck, ClientIdentity, KeyExchangeGroup, RecordLayer, Target, TlsPlan, TlsSuite,
    TlsVersion,
};
use plimsoll_model::runs::run::CertificateAcceptance;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, ALL_KX_GROUPS};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, SignatureScheme, SupportedProtocolVersion};

mod buffered_session;
pub mod certificate_expiry;
mod chain;
pub mod crypto_speed;
mod der;
mod failures;
pub mod file_rotation;
pub mod files;
mod handshake;
#[cfg(any(test, fuzzing))]
pub mod handshake_fuzz;
mod hybrid_key_exchange;
mod key_kinds;
mod key_log;
mod negotiation;
mod own_session;
mod pem_errors;
pub mod record;
mod session;
mod tickets;
mod tls12;
mod traffic_secrets;
pub mod trust;
mod x509_version_1;

use buffered_session::BufferedSession;
use failures::{PresentedIdentity, classify_and_explain, classify_record_error};
use file_rotation::RotatingIdentity;
use files::{FileError, NamedFile};
use key_log::KeyLogFile;
use own_session::{ConfiguredKeySource, OwnSession};
use session::SessionLayer;
use tickets::TicketStore;
use traffic_secrets::{KeyLogSecrets, LocalEnd};
use trust::{CertificateObservations, ServerVerifier, TrustAnchors, TrustPolicy};

pub use buffered_session::SessionError;
pub use negotiation::{
    ChainSummary, HandshakeTally, KeyKind, NegotiatedParameters, SharedHandshakeTally,
};
pub(crate) use session::TlsSession;
pub use session::{ServerSession, ServerSessionFactory, TlsConnection};

use crate::transport::addresses::classify_connect_error;

/// Error message for the case that a server requires a client certificate and gets none. The server may then close
/// without an alert.
pub(crate) const CLIENT_CERT_MISSING_MESSAGE: &str =
    "tls: the server asked for a client certificate, got none and closed the connection";
pub(crate) const CLOSED_IN_HANDSHAKE_MESSAGE: &str =
    "tls: the server closed the connection during the handshake (is it a plaintext port?)";

/// The errors that can occur when a TLS client is created from a plan.
#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    /// A file named in the plan cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The plan trusts the system's certificates, and there are none.
    #[error("no trusted certificates: the system's trust store is empty; give tls.ca (--ca)")]
    NoSystemRoots,
    #[error(
        "a Unix socket has no host name to check the server's certificate against; give the certificate's name with --server-name (tls.server_name)"
    )]
    /// The target is a Unix socket, which has no server name.
    NoServerName,
    #[error(
        "server name {name:?} is neither a DNS name nor an IP address; set tls.server_name (--server-name)"
    )]
    /// The server name is not valid.
    ServerName {
        /// The name as given, or as taken from the URL.
        name: String,
    },
    /// The TLS library rejects the settings.
    #[error("tls: {0}")]
    Library(#[from] rustls::Error),
}

/// The parsed certificates and settings that all connections of a run share.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
    presented: PresentedIdentity,
    /// The client's certificate, if it has one.
    identity: Option<Arc<RotatingIdentity>>,
    resumes_sessions: bool,
    /// Share of connections that perform a full handshake although sessions are resumed.
    full_handshake_share: Option<f64>,
    /// This worker's tickets, if the plan resumes sessions.
    tickets: Option<Arc<TicketStore>>,
    own_records: bool,
    /// Whether secrets are logged to a file, so that the library's key log is already in use.
    logs_keys: bool,
    /// The secrets from the key log, for sessions that release memory while they are idle.
    key_log_secrets: Option<Arc<KeyLogSecrets>>,
    observations: Arc<CertificateObservations>,
}

/// A certificate resolver that presents no client certificate, and records whether the server asked for one.
#[derive(Debug)]
struct NoClientCertificate(Arc<CertificateObservations>);

impl ResolvesClientCert for NoClientCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.record_certificate_request();
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

impl TlsClient {
    /// Reads the plan's files, offers `alpn` in order of preference, and warms up the TLS library: the first use of its
    /// random number generator takes tens of milliseconds, which must not count towards a call.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or has the wrong contents.
    pub fn new(
        plan: &TlsPlan,
        target: &Target,
        alpn: &[&[u8]],
    ) -> Result<TlsClient, TlsSetupError> {
        let provider = crypto_provider(&plan.suites, &plan.groups);
        let mut warmth = [0u8; 32];
        let _ = provider.secure_random.fill(&mut warmth);

        let observations = Arc::new(CertificateObservations::default());
        let mut trust = read_trust_policy(&plan.trust)?;
        if let Some(path) = &plan.crl {
            trust = trust.with_revocation_lists(NamedFile("list of revoked certificates", path))?;
        }
        let check = ServerVerifier::new(trust, &provider, Arc::clone(&observations));
        let check = Arc::new(match plan.chain_check {
            ChainCheck::Each => check,
            ChainCheck::Once => check.with_chain_cache(),
        });
        let provider = Arc::new(provider);
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&to_rustls_versions(&plan.versions))?
            .dangerous()
            .with_custom_certificate_verifier(check);
        let mut identity = None;
        let mut config = match &plan.identity {
            None => builder.with_client_cert_resolver(Arc::new(NoClientCertificate(Arc::clone(
                &observations,
            )))),
            Some(ClientIdentity { cert, key }) => {
                let cert = NamedFile("client certificate", cert);
                let key = NamedFile("client key", key);
                let shown = Arc::new(RotatingIdentity::read(cert, key, provider)?);
                identity = Some(Arc::clone(&shown));
                builder.with_client_cert_resolver(shown)
            }
        };
        config.alpn_protocols = alpn.iter().map(|id| id.to_vec()).collect();
        config.resumption = Resumption::disabled();
        // Certificates are compressed (RFC 8879) only on request, so that the cost of a full-size chain is visible.
        if !plan.compress_certificates {
            config.cert_compressors = Vec::new();
            config.cert_decompressors = Vec::new();
        }
        if let Some(path) = &plan.key_log {
            config.key_log = Arc::new(KeyLogFile::open(NamedFile("key log", path))?);
        }
        config.enable_early_data = plan.early_data;
        config.enable_secret_extraction = plan.record_layer == RecordLayer::Own;
        if plan.lacks_server_name(target) {
            return Err(TlsSetupError::NoServerName);
        }
        let name = plan
            .server_name
            .as_deref()
            .unwrap_or(target.host_without_zone());
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let server_name =
            ServerName::try_from(bare.to_owned()).map_err(|_| TlsSetupError::ServerName {
                name: name.to_owned(),
            })?;
        Ok(TlsClient {
            config: Arc::new(config),
            server_name,
            presented: PresentedIdentity::new(plan.identity.is_some()),
            identity,
            resumes_sessions: plan.resume,
            full_handshake_share: plan.full_share,
            tickets: None,
            own_records: plan.record_layer == RecordLayer::Own,
            logs_keys: plan.key_log.is_some(),
            key_log_secrets: None,
            observations,
        })
    }

    /// Configures the client for mostly idle connections: with our own record layer, idle ones release state that can
    /// be rebuilt. If the plan resumes sessions, state that tickets need is kept.
    #[must_use]
    pub fn for_idle_connections(mut self) -> TlsClient {
        if self.own_records && !self.resumes_sessions && !self.logs_keys {
            self.key_log_secrets = Some(Arc::default());
        }
        self
    }

    /// Returns the TLS library's configuration, for connections that are not established by the engine.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// Returns the outcome and the message of a connection with [`TlsClient::config`] that failed with `error` before
    /// its peer sent anything.
    pub fn classify_connection_error(&self, error: &io::Error) -> (Outcome, String) {
        const DISCONNECT_ERROR_KINDS: [io::ErrorKind; 3] = [
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::BrokenPipe,
        ];
        let library = error.get_ref().and_then(|e| e.downcast_ref());
        let suspected = self.describe_suspected_rejection();
        match (library, error.kind()) {
            (Some(error), _) => classify_and_explain(error, self.presented, &self.observations),
            _ if self.lacks_client_certificate() => (
                Outcome::TlsClientCertificateRequired,
                CLIENT_CERT_MISSING_MESSAGE.to_owned(),
            ),
            (None, kind) if DISCONNECT_ERROR_KINDS.contains(&kind) && suspected.is_some() => (
                Outcome::TlsClientCertificateRejected,
                suspected.unwrap_or_default(),
            ),
            (None, io::ErrorKind::UnexpectedEof) => {
                (Outcome::TlsFailed, CLOSED_IN_HANDSHAKE_MESSAGE.to_owned())
            }
            (None, _) => (classify_connect_error(error), format!("tls: {error}")),
        }
    }

    /// Returns the exceptions that were made in accepting servers' certificates.
    pub(crate) fn certificate_exceptions(&self) -> Vec<CertificateAcceptance> {
        self.observations.exceptions_made()
    }

    /// Returns how often the client's certificate was reloaded.
    pub(crate) fn reload_count(&self) -> u64 {
        self.identity
            .as_ref()
            .map_or(0, |shown| shown.reload_count())
    }

    /// Returns whether a server asked for a client certificate and none was available.
    pub fn lacks_client_certificate(&self) -> bool {
        self.presented == PresentedIdentity::Nothing
            && self.observations.was_certificate_requested()
            && !self.observations.was_client_accepted()
    }

    /// Returns an error message if the server may have rejected the client certificate: it asked for the certificate
    /// and closed the connection without an alert.
    pub fn describe_suspected_rejection(&self) -> Option<String> {
        let shown = self
            .identity
            .as_ref()
            .filter(|shown| shown.may_be_rejected())?;
        Some(format!(
            "tls: the server asked for a client certificate and closed the connection without an alert, so it probably refuses the {}",
            shown.description()
        ))
    }

    /// Records that a server has answered on a connection, and has therefore accepted the client's certificate.
    pub(crate) fn record_client_acceptance(&self) {
        match &self.identity {
            Some(shown) => shown.record_acceptance(),
            None => self.observations.record_client_acceptance(),
        }
    }

    /// Returns the name for which the server's certificate must be valid.
    pub fn server_name(&self) -> &ServerName<'static> {
        &self.server_name
    }

    /// Returns a copy for one worker, with its own session tickets and key log if these are used, since workers share
    /// no mutable state.
    #[must_use]
    pub fn for_worker(&self) -> TlsClient {
        let mut client = self.clone();
        if self.resumes_sessions {
            let tickets = Arc::new(TicketStore::new(Arc::clone(&self.observations)));
            let mut config = ClientConfig::clone(&self.config);
            config.resumption = Resumption::store(Arc::clone(&tickets) as _);
            client.config = Arc::new(config);
            client.tickets = Some(tickets);
        }
        if self.key_log_secrets.is_some() {
            let secrets = Arc::new(KeyLogSecrets::default());
            let mut config = ClientConfig::clone(&self.config);
            config.key_log = Arc::clone(&secrets) as _;
            client.config = Arc::new(config);
            client.key_log_secrets = Some(secrets);
        }
        client
    }

    /// Returns whether the plan resumes sessions.
    pub(crate) fn resumes_sessions(&self) -> bool {
        self.resumes_sessions
    }

    pub(crate) fn new_session(&self) -> Result<TlsSession, rustls::Error> {
        self.observations.record_reload_count(self.reload_count());
        if let (Some(tickets), Some(share)) = (&self.tickets, self.full_handshake_share) {
            tickets.prepare_connection(share);
        }
        let (config, name) = (Arc::clone(&self.config), self.server_name.clone());
        let layer = if self.own_records {
            let source = match &self.key_log_secrets {
                Some(secrets) => ConfiguredKeySource::KeyLog(Arc::clone(secrets), LocalEnd::Client),
                None => ConfiguredKeySource::Library(self.tickets.clone()),
            };
            SessionLayer::Own(OwnSession::new_client(config, name, source)?)
        } else {
            let connection = ClientConnection::new(config, name)?;
            SessionLayer::Library(Box::new(BufferedSession::new(connection)))
        };
        Ok(TlsConnection(layer))
    }

    /// Returns the outcome and the message of a failed session.
    pub(crate) fn classify_session_error(&self, fault: &SessionError) -> (Outcome, String) {
        match fault {
            SessionError::Handshake(e) | SessionError::Library(e) => {
                classify_and_explain(e, self.presented, &self.observations)
            }
            SessionError::TooLong => (
                Outcome::TlsFailed,
                "tls: the server's handshake is longer than the 64 KiB that the TLS library \
                 buffers; tls.records = \"own\" buffers 256 KiB"
                    .to_owned(),
            ),
            SessionError::Record(e) => classify_record_error(e, self.presented),
        }
    }

    /// Returns whether a certificate was replaced since the last call, on any connection.
    pub(crate) fn take_certificate_replaced_flag(&self) -> bool {
        self.observations.take_replaced_flag()
    }
}

/// Returns the TLS library's provider with the suites and groups of a plan, in the plan's order. If they are empty, the
/// library's suites and [`KeyExchangeGroup::DEFAULT_GROUPS`] are used.
pub fn crypto_provider(suites: &[TlsSuite], groups: &[KeyExchangeGroup]) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    if !suites.is_empty() {
        let named = |suite: &TlsSuite| {
            let mut all = ALL_CIPHER_SUITES.iter();
            all.find(|known| negotiation::suite_name(known.suite()) == suite.name())
        };
        provider.cipher_suites = suites.iter().filter_map(named).copied().collect();
    }
    let groups = match groups {
        [] => &KeyExchangeGroup::DEFAULT_GROUPS,
        asked => asked,
    };
    let coded = |group: &KeyExchangeGroup| {
        let own = [hybrid_key_exchange::SECP384R1MLKEM1024];
        let mut all = ALL_KX_GROUPS.iter().copied().chain(own);
        all.find(|known| u16::from(known.name()) == group.iana_code())
    };
    provider.kx_groups = groups.iter().filter_map(coded).collect();
    provider
}

/// Converts TLS versions to the library's types.
pub fn to_rustls_versions(versions: &[TlsVersion]) -> Vec<&'static SupportedProtocolVersion> {
    let library = |version: &TlsVersion| match version {
        TlsVersion::V1_3 => &rustls::version::TLS13,
        TlsVersion::V1_2 => &rustls::version::TLS12,
    };
    versions.iter().map(library).collect()
}

/// Returns the trust settings for servers' certificates, with their files read.
///
/// # Errors
/// Returns an error if a file cannot be used, or the system's trust store is empty.
pub fn read_trust_policy(plan: &plan::ServerTrust) -> Result<TrustPolicy, TlsSetupError> {
    Ok(match plan {
        plan::ServerTrust::System => {
            TrustPolicy::Anchors(TrustAnchors::from_system().ok_or(TlsSetupError::NoSystemRoots)?)
        }
        plan::ServerTrust::Ca(path) => {
            TrustPolicy::Anchors(TrustAnchors::read(NamedFile("CA file", path))?)
        }
        plan::ServerTrust::Pinned(known) => TrustPolicy::Pinned(known.clone()),
        plan::ServerTrust::Unchecked => TrustPolicy::Unchecked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_keeps_suite_and_group_order() {
        let made = crypto_provider(&TlsSuite::ALL, &KeyExchangeGroup::ALL);
        let suites = made.cipher_suites.iter();
        let suites: Vec<String> = suites.map(|s| negotiation::suite_name(s.suite())).collect();
        assert_eq!(suites, TlsSuite::ALL.map(TlsSuite::name));
        let groups = made.kx_groups.iter();
        let groups: Vec<u16> = groups.map(|group| group.name().into()).collect();
        assert_eq!(
            groups,
            KeyExchangeGroup::ALL.map(KeyExchangeGroup::iana_code)
        );
    }
}
