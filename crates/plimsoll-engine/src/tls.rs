//! TLS on the client side: plaintext in, records out, and the reverse.
//!
//! The rest of the engine sees [`TlsClient`] (one a run, shared) and [`TlsSession`] (one
//! a connection) and no other part of the TLS library.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use plimsoll_model::Outcome;
use plimsoll_model::plan::{
    self, ChainCheck, Group, Identity, RecordLayer, Suite, Target, TlsPlan, TlsVersion,
};
use plimsoll_model::run::CertificateTaken;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ResolvesClientCert, Resumption, UnbufferedClientConnection};
use rustls::crypto::aws_lc_rs::{cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, InvalidMessage,
    PeerIncompatible, PeerMisbehaved, SignatureScheme, SupportedProtocolVersion,
};

mod agreed;
mod bare;
mod chain;
mod der;
pub mod files;
mod handshake;
mod hybrid;
mod key_log;
mod lean;
pub mod limits;
pub mod record;
pub mod rotation;
mod secrets;
#[cfg(any(test, fuzzing))]
pub mod shapes;
pub mod trust;
pub mod validity;
mod version_1;
mod whole;

use agreed::noted_signature;
use bare::{BareError, BareSession};
use chain::CheckedOnce;
use files::{FileError, Named};
use handshake::Agreed;
use key_log::KeyLogFile;
use lean::LeanSession;
use record::RecordError;
use rotation::Rotating;
use secrets::Heard;
use trust::{Anchors, Learned, ServerCheck, Trust};

pub use agreed::{Agreement, Chain, KeyKind, SharedTally, Tally};
pub use lean::{ServerSession, ServerSessions, SessionError};

use crate::addresses::classify_connect;
use crate::tickets::{KeepOnly, Tickets};

/// A server that wants a client certificate and gets none may close without a word.
pub(crate) const UNINVITED: &str =
    "tls: the server asked for a client certificate, got none and closed the connection";
pub(crate) const CLOSED_IN_HANDSHAKE: &str =
    "tls: the server closed the connection during the handshake (is it a plaintext port?)";

/// Why a TLS client can't be made from a plan.
#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("no trusted certificates: the system's trust store is empty; give tls.ca (--ca)")]
    NoSystemRoots,
    #[error(
        "a Unix socket has no name for the server's certificate to be checked against; give the one that it is for with --server-name (tls.server_name)"
    )]
    NoServerName,
    #[error(
        "server name {name:?} is neither a DNS name nor an IP address; set tls.server_name (--server-name)"
    )]
    ServerName { name: String },
    #[error("tls: {0}")]
    Library(#[from] rustls::Error),
}

/// The parsed certificates and settings that all connections of a run share.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
    has_identity: bool,
    /// The client's certificate.
    identity: Option<Arc<Rotating>>,
    resume: bool,
    /// The part of the connections that makes a full handshake although sessions are resumed.
    full: Option<f64>,
    /// For those.
    unresumed: Option<Arc<ClientConfig>>,
    /// This worker's, where the plan resumes sessions.
    tickets: Option<Arc<Tickets>>,
    own_records: bool,
    /// Secrets go to a file, so that they are not ours alone.
    logs_keys: bool,
    /// The key log of sessions that rest.
    heard: Option<Arc<Heard>>,
    learned: Arc<Learned>,
}

/// Has no client certificate, and remembers whether the server asked for one.
#[derive(Debug)]
struct Asked(Arc<Learned>);

impl ResolvesClientCert for Asked {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.was_asked();
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

impl TlsClient {
    /// Reads the files that the plan names, offers `alpn`, the most wanted first, and warms the TLS library up: its first use
    /// of the random source takes tens of milliseconds, which belong to no call.
    ///
    /// # Errors
    /// When a file can't be read or does not hold what it should.
    pub fn new(
        plan: &TlsPlan,
        target: &Target,
        alpn: &[&[u8]],
    ) -> Result<TlsClient, TlsSetupError> {
        let provider = provider(&plan.suites, &plan.groups);
        let mut warmth = [0u8; 32];
        let _ = provider.secure_random.fill(&mut warmth);

        let learned = Arc::new(Learned::default());
        let mut trust = trust(&plan.trust)?;
        if let Some(path) = &plan.crl {
            trust = trust.with_lists(Named("list of revoked certificates", path), &provider)?;
        }
        let check = ServerCheck::new(trust, &provider, Arc::clone(&learned));
        let check: Arc<dyn ServerCertVerifier> = match plan.chain {
            ChainCheck::Each => Arc::new(check),
            ChainCheck::Once => Arc::new(CheckedOnce::new(check)),
        };
        let provider = Arc::new(provider);
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions(&plan.versions))?
            .dangerous()
            .with_custom_certificate_verifier(check);
        let mut identity = None;
        let mut config = match &plan.identity {
            None => builder.with_client_cert_resolver(Arc::new(Asked(Arc::clone(&learned)))),
            Some(Identity { cert, key }) => {
                let cert = Named("client certificate", cert);
                let key = Named("client key", key);
                let shown = Arc::new(Rotating::read(cert, key, provider)?);
                identity = Some(Arc::clone(&shown));
                builder.with_client_cert_resolver(shown)
            }
        };
        config.alpn_protocols = alpn.iter().map(|id| id.to_vec()).collect();
        config.resumption = Resumption::disabled();
        // What a chain costs is to be seen: it is compressed (RFC 8879) only where that is asked for.
        if !plan.compressed {
            config.cert_compressors = Vec::new();
            config.cert_decompressors = Vec::new();
        }
        if let Some(path) = &plan.key_log {
            config.key_log = Arc::new(KeyLogFile::open(Named("key log", path))?);
        }
        config.enable_early_data = plan.early_data;
        config.enable_secret_extraction = plan.records == RecordLayer::Own;
        if plan.lacks_name(target) {
            return Err(TlsSetupError::NoServerName);
        }
        let name = plan.server_name.as_deref().unwrap_or(&target.host);
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let server_name =
            ServerName::try_from(bare.to_owned()).map_err(|_| TlsSetupError::ServerName {
                name: name.to_owned(),
            })?;
        Ok(TlsClient {
            config: Arc::new(config),
            server_name,
            has_identity: plan.identity.is_some(),
            identity,
            resume: plan.resume,
            full: plan.full,
            unresumed: None,
            tickets: None,
            own_records: plan.records == RecordLayer::Own,
            logs_keys: plan.key_log.is_some(),
            heard: None,
            learned,
        })
    }

    /// The same client for connections that rest most of the time: what can be made again
    /// is given up meanwhile, where the records are our own. A plan that resumes sessions
    /// keeps what tickets need.
    #[must_use]
    pub fn resting(mut self) -> TlsClient {
        if self.own_records && !self.resume && !self.logs_keys {
            self.heard = Some(Arc::default());
        }
        self
    }

    /// The TLS library's own form, for connections that the engine does not make.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// What a connection on [`TlsClient::config`] that failed with `error` before its peer sent
    /// anything is counted as, and the message about it.
    pub fn failure(&self, error: &io::Error) -> (Outcome, String) {
        let library = error.get_ref().and_then(|e| e.downcast_ref());
        match (library, error.kind()) {
            (Some(error), _) => explained(error, self.has_identity, &self.learned),
            _ if self.lacks_certificate() => {
                (Outcome::TlsClientCertificateRequired, UNINVITED.to_owned())
            }
            (None, io::ErrorKind::UnexpectedEof) => {
                (Outcome::TlsFailed, CLOSED_IN_HANDSHAKE.to_owned())
            }
            (None, _) => (classify_connect(error), format!("tls: {error}")),
        }
    }

    /// What was out of the ordinary about servers' certificates that were taken.
    pub(crate) fn certificates_taken(&self) -> Vec<CertificateTaken> {
        self.learned.taken()
    }

    /// How often the client's certificate was read again, since it was replaced.
    pub(crate) fn renewed(&self) -> u64 {
        self.identity.as_ref().map_or(0, |shown| shown.renewed())
    }

    /// A server asked for a client certificate, and there was none to show.
    pub fn lacks_certificate(&self) -> bool {
        !self.has_identity && self.learned.asked()
    }

    /// The name that the server's certificate has to be for.
    pub fn server_name(&self) -> &ServerName<'static> {
        &self.server_name
    }

    /// The same client with session tickets of its own, where the plan resumes sessions, and
    /// the key log of its own sessions: workers share nothing that changes.
    #[must_use]
    pub fn for_worker(&self) -> TlsClient {
        let mut client = self.clone();
        if self.resume {
            let tickets = Arc::new(Tickets::new(Arc::clone(&self.learned)));
            let mut config = ClientConfig::clone(&self.config);
            config.resumption = Resumption::store(Arc::clone(&tickets) as _);
            if self.full.is_some() {
                let mut config = config.clone();
                config.resumption = Resumption::store(Arc::new(KeepOnly(Arc::clone(&tickets))));
                client.unresumed = Some(Arc::new(config));
            }
            client.config = Arc::new(config);
            client.tickets = Some(tickets);
        }
        if self.heard.is_some() {
            let heard = Arc::new(Heard::default());
            let mut config = ClientConfig::clone(&self.config);
            config.key_log = Arc::clone(&heard) as _;
            client.config = Arc::new(config);
            client.heard = Some(heard);
        }
        client
    }

    /// The plan resumes sessions.
    pub(crate) fn resumes(&self) -> bool {
        self.resume
    }

    pub(crate) fn session(&self) -> Result<TlsSession, rustls::Error> {
        self.learned.was_renewed(self.renewed());
        let is_full = match (&self.tickets, self.full) {
            (Some(tickets), Some(share)) => tickets.next_is_full(share),
            _ => false,
        };
        let config = self.unresumed.as_ref().filter(|_| is_full);
        let config = Arc::clone(config.unwrap_or(&self.config));
        let name = self.server_name.clone();
        let layer = if let Some(heard) = &self.heard {
            Layer::Lean(LeanSession::client(config, name, heard)?)
        } else if self.own_records {
            Layer::Own(Box::new(BareSession::new(
                config,
                name,
                self.tickets.clone(),
            )?))
        } else {
            let mut connection = ClientConnection::new(config, name)?;
            // What the driver gives is sealed at once, so that a batch of frames is one record.
            connection.set_buffer_limit(None);
            Layer::Library(Box::new(connection))
        };
        Ok(TlsSession {
            layer,
            retried: false,
            signature: None,
            has_identity: self.has_identity,
            learned: Arc::clone(&self.learned),
        })
    }
}

/// The TLS library's provider with the suites and groups of a plan, in its order; where the plan
/// names none, the library's suites, and [`Group::DEFAULT`].
pub fn provider(suites: &[Suite], groups: &[Group]) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    if !suites.is_empty() {
        provider.cipher_suites = suites
            .iter()
            .map(|suite| match suite {
                Suite::Aes128GcmSha256 => cipher_suite::TLS13_AES_128_GCM_SHA256,
                Suite::Aes256GcmSha384 => cipher_suite::TLS13_AES_256_GCM_SHA384,
                Suite::Chacha20Poly1305Sha256 => cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
                Suite::EcdheEcdsaAes128GcmSha256 => {
                    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                }
                Suite::EcdheEcdsaAes256GcmSha384 => {
                    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
                }
                Suite::EcdheEcdsaChacha20Poly1305Sha256 => {
                    cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
                }
                Suite::EcdheRsaAes128GcmSha256 => {
                    cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
                }
                Suite::EcdheRsaAes256GcmSha384 => {
                    cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
                }
                Suite::EcdheRsaChacha20Poly1305Sha256 => {
                    cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
                }
            })
            .collect();
    }
    let groups = match groups {
        [] => &Group::DEFAULT,
        asked => asked,
    };
    provider.kx_groups = groups
        .iter()
        .map(|group| match group {
            Group::X25519Mlkem768 => kx_group::X25519MLKEM768,
            Group::Secp256r1Mlkem768 => kx_group::SECP256R1MLKEM768,
            Group::Secp384r1Mlkem1024 => hybrid::SECP384R1MLKEM1024,
            Group::Mlkem768 => kx_group::MLKEM768,
            Group::Mlkem1024 => kx_group::MLKEM1024,
            Group::X25519 => kx_group::X25519,
            Group::Secp256r1 => kx_group::SECP256R1,
            Group::Secp384r1 => kx_group::SECP384R1,
        })
        .collect();
    provider
}

/// The library's form of them.
pub fn versions(versions: &[TlsVersion]) -> Vec<&'static SupportedProtocolVersion> {
    let library = |version: &TlsVersion| match version {
        TlsVersion::V1_3 => &rustls::version::TLS13,
        TlsVersion::V1_2 => &rustls::version::TLS12,
    };
    versions.iter().map(library).collect()
}

/// What a plan holds the server's certificate to, its files read.
///
/// # Errors
/// When a file can't be used, or the system trusts nothing.
pub fn trust(plan: &plan::Trust) -> Result<Trust, TlsSetupError> {
    Ok(match plan {
        plan::Trust::System => {
            Trust::Anchors(Anchors::of_system().ok_or(TlsSetupError::NoSystemRoots)?)
        }
        plan::Trust::Ca(path) => Trust::Anchors(Anchors::read(Named("CA file", path))?),
        plan::Trust::Pinned(known) => Trust::Pinned(known.clone()),
        plan::Trust::Unchecked => Trust::Unchecked,
    })
}

/// The client's end of one TLS connection. Owns no socket.
pub(crate) struct TlsSession {
    layer: Layer,
    /// There was a HelloRetryRequest, where it is the library that knows.
    retried: bool,
    /// By which the server proved its identity, likewise.
    signature: Option<SignatureScheme>,
    has_identity: bool,
    learned: Arc<Learned>,
}

/// The record layer ([`RecordLayer`]): whose it is.
enum Layer {
    Library(Box<ClientConnection>),
    Own(Box<BareSession>),
    /// Our own, and next to nothing at rest.
    Lean(LeanSession<UnbufferedClientConnection>),
}

impl Layer {
    /// What the handshake agreed on, where it is not the library that keeps it.
    fn agreed(&self) -> Option<&Agreed> {
        match self {
            Layer::Library(_) => None,
            Layer::Own(session) => session.agreed(),
            Layer::Lean(session) => session.agreed(),
        }
    }
}

impl TlsSession {
    pub(crate) fn is_handshaking(&self) -> bool {
        match &self.layer {
            Layer::Library(connection) => connection.is_handshaking(),
            Layer::Own(session) => session.agreed().is_none(),
            Layer::Lean(session) => session.is_handshaking(),
        }
    }

    /// What the handshake agreed on; meaningful once it is over.
    pub(crate) fn agreement(&self) -> Agreement {
        match &self.layer {
            Layer::Library(connection) => Agreement {
                retried: self.retried,
                signature: self.signature,
                early_data: connection.is_early_data_accepted(),
                ..Agreement::of(connection)
            },
            own => own.agreed().map(|agreed| agreed.on).unwrap_or_default(),
        }
    }

    /// Bytes that may go out with the `ClientHello` (0-RTT, RFC 8446 §2.3): what the plan wants
    /// and the ticket allows.
    pub(crate) fn early_room(&mut self) -> usize {
        match &mut self.layer {
            Layer::Library(connection) => connection.early_data().map_or(0, |e| e.bytes_left()),
            Layer::Own(_) | Layer::Lean(_) => 0,
        }
    }

    /// Seals plaintext for that, as far as there is room; returns how much.
    pub(crate) fn seal_early(&mut self, plaintext: &[u8]) -> usize {
        match &mut self.layer {
            Layer::Library(connection) => connection
                .early_data()
                .and_then(|mut early| early.write(plaintext).ok())
                .unwrap_or(0),
            Layer::Own(_) | Layer::Lean(_) => 0,
        }
    }

    /// Whether the server took it; meaningful once the handshake is over.
    pub(crate) fn early_accepted(&self) -> bool {
        match &self.layer {
            Layer::Library(connection) => connection.is_early_data_accepted(),
            Layer::Own(_) | Layer::Lean(_) => false,
        }
    }

    /// The server asked for a client certificate, and there was none to show.
    pub(crate) fn lacks_certificate(&self) -> bool {
        !self.has_identity && self.learned.asked()
    }

    /// Since this was asked last, of any connection, a certificate was met that no earlier one had.
    pub(crate) fn took_replacement(&self) -> bool {
        self.learned.took_replacement()
    }

    /// Whether the server took up the protocol asked for.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match &self.layer {
            Layer::Library(connection) => connection.alpn_protocol(),
            own => own.agreed()?.alpn.as_deref(),
        }
    }

    /// Go on with the handshake, where the records are our own. `false`: they are the
    /// library's, and [`TlsSession::read`] takes everything.
    ///
    /// # Errors
    /// The problem with it, as an outcome and as a sentence.
    pub(crate) fn handshake(&mut self, bytes: &[u8]) -> Result<bool, (Outcome, String)> {
        let done = match &mut self.layer {
            Layer::Library(_) => return Ok(false),
            Layer::Own(session) => session.handshake(bytes),
            Layer::Lean(session) => session.handshake(bytes),
        };
        match done {
            Ok(()) => Ok(true),
            Err(BareError::Handshake(e)) => Err(explained(&e, self.has_identity, &self.learned)),
            Err(BareError::Record(e)) => Err(classify_record(&e, self.has_identity)),
        }
    }

    /// Open records in place, where they are our own, and hand on what they hold; `None`:
    /// they are the library's. `Some(true)`: the peer has closed its side.
    ///
    /// # Errors
    /// That of `take`, or what is wrong with the records.
    pub(crate) fn open<E: From<(Outcome, String)>>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Option<bool>, E> {
        let received = match &mut self.layer {
            Layer::Library(_) => return Ok(None),
            Layer::Own(session) => session.receive(bytes, take),
            Layer::Lean(session) => session.receive(bytes, take),
        };
        match received {
            Ok(closed) => Ok(Some(closed)),
            Err(record::Failure::Taker(e)) => Err(e),
            Err(record::Failure::Record(e)) => Err(classify_record(&e, self.has_identity).into()),
        }
    }

    /// Take bytes from the socket, as many as the library has room for. What they hold
    /// is then in [`TlsSession::plaintext`], also where a later record is bad.
    ///
    /// `Ok(true)`: the peer has closed its side (close_notify, RFC 8446 §6.1).
    ///
    /// # Errors
    /// What is wrong with the records, as an outcome and as a sentence.
    pub(crate) fn read(&mut self, bytes: &mut &[u8]) -> Result<bool, (Outcome, String)> {
        let Layer::Library(connection) = &mut self.layer else {
            *bytes = &[];
            return Ok(false);
        };
        match connection.read_tls(bytes) {
            Ok(0) => *bytes = &[],
            Ok(_) => {}
            // All plaintext is taken after every call, so it is the other buffer that is full.
            Err(_) => {
                return Err((
                    Outcome::TlsFailed,
                    "tls: the server's handshake is longer than the 64 KiB that the TLS library \
                     buffers; tls.records = \"own\" buffers 256 KiB"
                        .to_owned(),
                ));
            }
        }
        let handshaking = connection.is_handshaking();
        let state = connection.process_new_packets();
        if handshaking {
            self.retried |= handshake::is_retried(connection.handshake_kind());
            self.signature = noted_signature().or(self.signature);
        }
        match state {
            Ok(state) => Ok(state.peer_has_closed()),
            Err(e) => Err(explained(&e, self.has_identity, &self.learned)),
        }
    }

    /// The next piece of plaintext; [`TlsSession::consume`] it before asking again.
    pub(crate) fn plaintext(&mut self) -> Option<&[u8]> {
        let Layer::Library(connection) = &mut self.layer else {
            return None;
        };
        match connection.reader().into_first_chunk() {
            Ok(chunk) if !chunk.is_empty() => Some(chunk),
            _ => None,
        }
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        if let Layer::Library(connection) = &mut self.layer {
            connection.reader().consume(bytes);
        }
    }

    /// Seal plaintext. Records wait in the session until [`TlsSession::flush`].
    pub(crate) fn seal(&mut self, plaintext: &[u8]) {
        match &mut self.layer {
            // Into memory, without a limit: can't fail.
            Layer::Library(connection) => {
                let _ = connection.writer().write_all(plaintext);
            }
            Layer::Own(session) => session.seal(plaintext),
            Layer::Lean(session) => session.seal(plaintext),
        }
    }

    /// The fewest bytes that the socket must still give before `plaintext` bytes have come.
    pub(crate) fn fewest_to_come(&self, plaintext: u64) -> u64 {
        match &self.layer {
            // The library doesn't report how much of a record it holds: at most all of one.
            Layer::Library(_) => plaintext.saturating_sub(record::MAX_RECORD as u64),
            Layer::Own(session) => session.fewest_to_come(plaintext),
            // It is held, not hurried: every byte wakes.
            Layer::Lean(_) => 0,
        }
    }

    /// Whether more may be sealed before what waits has been written. The end of a handshake
    /// and the first request then leave in one write.
    pub(crate) fn has_room(&self) -> bool {
        match &self.layer {
            Layer::Library(connection) => !connection.wants_write(),
            Layer::Own(session) => session.outgoing().len() < record::MAX_PLAINTEXT,
            Layer::Lean(session) => session.outgoing().is_empty(),
        }
    }

    pub(crate) fn wants_write(&self) -> bool {
        match &self.layer {
            Layer::Library(connection) => connection.wants_write(),
            Layer::Own(session) => !session.outgoing().is_empty(),
            Layer::Lean(session) => !session.outgoing().is_empty(),
        }
    }

    /// Bytes of sealed records that wait, where they are our own.
    pub(crate) fn outgoing(&self) -> usize {
        match &self.layer {
            Layer::Library(_) => 0,
            Layer::Own(session) => session.outgoing().len(),
            Layer::Lean(session) => session.outgoing().len(),
        }
    }

    /// Write waiting records to `socket` until it takes no more.
    pub(crate) fn flush(&mut self, socket: &mut impl io::Write) -> io::Result<()> {
        while self.wants_write() {
            let wrote = match &mut self.layer {
                Layer::Library(connection) => connection.write_tls(socket)?,
                Layer::Own(session) => {
                    let wrote = socket.write(session.outgoing())?;
                    session.sent(wrote);
                    wrote
                }
                Layer::Lean(session) => {
                    let wrote = socket.write(session.outgoing())?;
                    session.sent(wrote);
                    wrote
                }
            };
            if wrote == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    pub(crate) fn close_notify(&mut self) {
        match &mut self.layer {
            Layer::Library(connection) => connection.send_close_notify(),
            Layer::Own(session) => session.close_notify(),
            Layer::Lean(session) => session.close_notify(),
        }
    }

    /// Nothing is under way: give up what can be made again.
    pub(crate) fn rest(&mut self) {
        if let Layer::Lean(session) = &mut self.layer {
            session.rest();
        }
    }
}

/// What is wrong with a record, counted as the same failure is where the library sees it.
fn classify_record(error: &RecordError, has_identity: bool) -> (Outcome, String) {
    match error {
        RecordError::Alerted(alert) => classify(
            &rustls::Error::AlertReceived(AlertDescription::from(*alert)),
            has_identity,
        ),
        other => (Outcome::TlsFailed, format!("tls: {other}")),
    }
}

/// [`classify`], with what is known besides the error.
fn explained(error: &rustls::Error, has_identity: bool, learned: &Learned) -> (Outcome, String) {
    let (outcome, text) = classify(error, has_identity);
    match learned.why(error) {
        Some(why) => (outcome, format!("{text}: {why}")),
        None => (outcome, text),
    }
}

/// What a TLS failure is counted as, and the message about it.
///
/// A TLS 1.3 client is done before the server has judged its certificate (RFC 8446
/// §4.4.2), so the server's verdict can come as an alert on an open connection: what it
/// means depends on whether we showed a certificate.
fn classify(error: &rustls::Error, has_identity: bool) -> (Outcome, String) {
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
            // OpenSSL-based servers answer a missing certificate with handshake_failure.
            Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::UnsupportedCertificate
            | Alert::DecryptError
            | Alert::UnknownCA
            | Alert::AccessDenied
                if has_identity =>
            {
                Outcome::TlsClientCertificateRejected
            }
            Alert::BadCertificate | Alert::CertificateUnknown | Alert::UnknownCA => {
                Outcome::TlsClientCertificateRequired
            }
            Alert::ProtocolVersion => Outcome::TlsVersion,
            Alert::HandshakeFailure | Alert::InsufficientSecurity => Outcome::TlsNoCommonParameters,
            Alert::NoApplicationProtocol => Outcome::TlsAlpn,
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
        // The header of a record decides: a bad message in a good record is still TLS.
        rustls::Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => Outcome::TlsNotTls,
        _ => Outcome::TlsFailed,
    };
    (outcome, format!("tls: {}", validity::failure(error)))
}
