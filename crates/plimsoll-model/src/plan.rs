//! What a run will do, resolved: every default filled in, every unit applied.
//!
//! A [`Plan`] is made from a [`crate::spec::Spec`] (what a person typed) and never
//! changes afterwards. It holds paths to secrets, never their contents.

mod proxy;
mod tokens;

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::fingerprint::Fingerprint;
use crate::measure::TimeMeasure;
use crate::template::{LiveValue, MetadataField, Source, Variation, VaryingMetadata};

pub use proxy::{Credentials, Proxy, ProxyKind};
pub use tokens::TokenCounter;

/// A resolved, immutable load test.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub name: String,
    pub target: Target,
    /// `None`: plaintext.
    pub tls: Option<TlsPlan>,
    pub call: CallPlan,
    pub load: Load,
    pub objectives: Vec<Objective>,
    pub watch: Watch,
    pub seed: u64,
    /// Keep one record a call in the run directory.
    pub keep_requests: bool,
}

/// Where the load goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The URL as typed: the name of the target in reports.
    pub url: String,
    pub host: String,
    pub port: u16,
    /// The host's addresses, where the plan gives them; empty: its name is looked up.
    pub addresses: Vec<IpAddr>,
    /// A socket of this machine: then host and port lead nowhere, and the host, `localhost`,
    /// is what requests name.
    pub socket: Option<UnixSocket>,
    /// Connections go through it.
    pub proxy: Option<Proxy>,
}

impl Target {
    /// One that is reached over TCP, and whose name is looked up.
    pub fn at(url: impl Into<String>, host: impl Into<String>, port: u16) -> Target {
        Target {
            url: url.into(),
            host: host.into(),
            port,
            addresses: Vec::new(),
            socket: None,
            proxy: None,
        }
    }

    /// What connections are made to: the target, or the proxy before it.
    pub fn reached(&self) -> Cow<'_, Target> {
        let Some(proxy) = &self.proxy else {
            return Cow::Borrowed(self);
        };
        Cow::Owned(Target::at(&*self.url, &*proxy.host, proxy.port))
    }

    /// As `:authority` (RFC 9113 §8.3.1) and `Host` (RFC 9112 §3.2) have it.
    pub fn authority(&self) -> String {
        match (&self.socket, self.host.contains(':')) {
            (Some(_), _) => self.host.clone(),
            (None, true) => format!("[{}]:{}", self.host, self.port),
            (None, false) => format!("{}:{}", self.host, self.port),
        }
    }
}

/// A Unix domain socket (unix(7)), as gRPC's name syntax has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UnixSocket {
    Path(PathBuf),
    /// In no file system.
    Abstract(String),
}

impl UnixSocket {
    /// Bytes of a path or a name (`sun_path` with its last 0).
    pub const LONGEST: usize = 107;

    /// Reads `unix:PATH`, `unix:///PATH` or `unix-abstract:NAME`; `None`: it is something else.
    ///
    /// # Errors
    /// The path or the name is not valid.
    pub fn parse(text: &str) -> Option<Result<UnixSocket, String>> {
        let (scheme, rest) = text.split_once(':')?;
        let is_abstract = match scheme {
            "unix" => false,
            "unix-abstract" => true,
            _ => return None,
        };
        let name = match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') && !is_abstract => path,
            Some(_) => {
                return Some(Err(format!(
                    "`{text}`: write unix:/PATH or unix:///PATH, or unix-abstract:NAME for a socket without a file"
                )));
            }
            None => rest,
        };
        Some(match name.len() {
            0 => Err(format!("`{text}` names no socket: write unix:/PATH")),
            n if n > UnixSocket::LONGEST => Err(format!(
                "`{text}`: a socket's path may have {} bytes, and this one has {n}: use a shorter one, or a relative one",
                UnixSocket::LONGEST
            )),
            _ if name.contains('\0') => Err(format!("{text:?} has a zero byte in it")),
            _ if is_abstract => Ok(UnixSocket::Abstract(name.to_owned())),
            _ => Ok(UnixSocket::Path(name.into())),
        })
    }
}

impl fmt::Display for UnixSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnixSocket::Path(path) => write!(f, "unix:{}", path.display()),
            UnixSocket::Abstract(name) => write!(f, "unix-abstract:{name}"),
        }
    }
}

/// How the link is secured. Paths, not contents.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsPlan {
    pub trust: Trust,
    /// Lists of revoked certificates (CRL): one of every issuer in the server's chain.
    pub crl: Option<PathBuf>,
    /// Client certificate chain and key (PEM): present for mutual TLS.
    pub identity: Option<Identity>,
    /// The name to check the certificate against; `None`: the target's host, which a Unix
    /// socket does not have.
    pub server_name: Option<String>,
    /// One or both; the handshake takes the highest that the server has as well.
    pub versions: Vec<TlsVersion>,
    pub suites: Vec<Suite>,
    pub groups: Vec<Group>,
    /// Accept compressed certificates, and compress the client's (RFC 8879).
    pub compressed: bool,
    /// Where the secrets of all connections are written, for what reads captured packets.
    pub key_log: Option<PathBuf>,
    /// Resume sessions from tickets.
    pub resume: bool,
    /// Where sessions are resumed: this part of the new connections makes a full handshake all the
    /// same (0–1).
    pub full: Option<f64>,
    /// Send requests with the first bytes of a resumed session (0-RTT, RFC 8446 §2.3).
    pub early_data: bool,
    pub records: RecordLayer,
    pub chain: ChainCheck,
}

impl TlsPlan {
    /// Nothing says what name the certificate of this target has to be for: a Unix socket has
    /// none of its own.
    pub fn lacks_name(&self, target: &Target) -> bool {
        let is_checked = matches!(self.trust, Trust::System | Trust::Ca(_));
        is_checked && target.socket.is_some() && self.server_name.is_none()
    }
}

/// What a server's certificate is held to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The system's trust store.
    System,
    /// The certificates of a file: one of them signed it, or is it.
    Ca(PathBuf),
    /// It is one of these; neither its name nor who signed it matters.
    Pinned(Vec<Fingerprint>),
    /// Nothing: any will do.
    Unchecked,
}

/// How often a server's certificate chain is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainCheck {
    /// In every full handshake, as clients do.
    Each,
    /// Once a minute for connections that are shown the same chain.
    Once,
}

/// Who opens and seals TLS records once the handshake is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordLayer {
    /// The TLS library, in buffers of its own.
    Library,
    /// This program, in place.
    Own,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Versions of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// RFC 8446.
    V1_3,
    /// RFC 5246.
    V1_2,
}

impl TlsVersion {
    pub const ALL: [TlsVersion; 2] = [TlsVersion::V1_3, TlsVersion::V1_2];

    pub const fn name(self) -> &'static str {
        match self {
            TlsVersion::V1_3 => "1.3",
            TlsVersion::V1_2 => "1.2",
        }
    }
}

/// Cipher suites of TLS 1.3 (RFC 8446, B.4), and those of TLS 1.2 that keep past connections
/// secret and authenticate what they encrypt (RFC 5289, RFC 7905).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    Aes128GcmSha256,
    Aes256GcmSha384,
    Chacha20Poly1305Sha256,
    EcdheEcdsaAes128GcmSha256,
    EcdheEcdsaAes256GcmSha384,
    EcdheEcdsaChacha20Poly1305Sha256,
    EcdheRsaAes128GcmSha256,
    EcdheRsaAes256GcmSha384,
    EcdheRsaChacha20Poly1305Sha256,
}

impl Suite {
    pub const ALL: [Suite; 9] = [
        Suite::Aes128GcmSha256,
        Suite::Aes256GcmSha384,
        Suite::Chacha20Poly1305Sha256,
        Suite::EcdheEcdsaAes128GcmSha256,
        Suite::EcdheEcdsaAes256GcmSha384,
        Suite::EcdheEcdsaChacha20Poly1305Sha256,
        Suite::EcdheRsaAes128GcmSha256,
        Suite::EcdheRsaAes256GcmSha384,
        Suite::EcdheRsaChacha20Poly1305Sha256,
    ];

    /// As the IANA registry writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes128GcmSha256 => "TLS_AES_128_GCM_SHA256",
            Suite::Aes256GcmSha384 => "TLS_AES_256_GCM_SHA384",
            Suite::Chacha20Poly1305Sha256 => "TLS_CHACHA20_POLY1305_SHA256",
            Suite::EcdheEcdsaAes128GcmSha256 => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            Suite::EcdheEcdsaAes256GcmSha384 => "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            Suite::EcdheEcdsaChacha20Poly1305Sha256 => {
                "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
            }
            Suite::EcdheRsaAes128GcmSha256 => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            Suite::EcdheRsaAes256GcmSha384 => "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            Suite::EcdheRsaChacha20Poly1305Sha256 => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        }
    }

    pub const fn version(self) -> TlsVersion {
        match self {
            Suite::Aes128GcmSha256 | Suite::Aes256GcmSha384 | Suite::Chacha20Poly1305Sha256 => {
                TlsVersion::V1_3
            }
            _ => TlsVersion::V1_2,
        }
    }
}

/// Key-exchange groups (RFC 8446 §4.2.7; hybrids: draft-ietf-tls-ecdhe-mlkem; ML-KEM alone:
/// draft-ietf-tls-mlkem).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    X25519Mlkem768,
    Secp256r1Mlkem768,
    Secp384r1Mlkem1024,
    Mlkem768,
    Mlkem1024,
    X25519,
    Secp256r1,
    Secp384r1,
}

impl Group {
    pub const ALL: [Group; 8] = [
        Group::X25519Mlkem768,
        Group::Secp256r1Mlkem768,
        Group::Secp384r1Mlkem1024,
        Group::Mlkem768,
        Group::Mlkem1024,
        Group::X25519,
        Group::Secp256r1,
        Group::Secp384r1,
    ];

    /// What is offered where nothing is asked for, as browsers, OpenSSL 3.5 and Go 1.24 do: the
    /// hybrid first, whose classical part has a key share of its own.
    pub const DEFAULT: [Group; 4] = [
        Group::X25519Mlkem768,
        Group::X25519,
        Group::Secp256r1,
        Group::Secp384r1,
    ];

    /// As the IANA registry writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Group::X25519Mlkem768 => "X25519MLKEM768",
            Group::Secp256r1Mlkem768 => "SecP256r1MLKEM768",
            Group::Secp384r1Mlkem1024 => "SecP384r1MLKEM1024",
            Group::Mlkem768 => "MLKEM768",
            Group::Mlkem1024 => "MLKEM1024",
            Group::X25519 => "X25519",
            Group::Secp256r1 => "secp256r1",
            Group::Secp384r1 => "secp384r1",
        }
    }

    /// Its number in the IANA registry.
    pub const fn code(self) -> u16 {
        match self {
            Group::X25519Mlkem768 => 0x11ec,
            Group::Secp256r1Mlkem768 => 0x11eb,
            Group::Secp384r1Mlkem1024 => 0x11ed,
            Group::Mlkem768 => 0x0201,
            Group::Mlkem1024 => 0x0202,
            Group::X25519 => 0x001d,
            Group::Secp256r1 => 0x0017,
            Group::Secp384r1 => 0x0018,
        }
    }
}

/// One kind of call, of which only its protocol knows more than this.
pub trait Call: Same + fmt::Debug + Send + Sync {
    /// The protocol's name, and of what is called the part that a person looks for.
    fn names(&self) -> (&'static str, Cow<'_, str>);

    /// What runs of it are named after, where the plan gives no name.
    fn short_name(&self) -> Cow<'_, str> {
        match self.names().1 {
            Cow::Borrowed(name) => last_part(name).into(),
            Cow::Owned(name) => last_part(&name).to_owned().into(),
        }
    }

    /// The name of a run of it, where the plan gives none; `None`: its short name, and the load's kind.
    fn run_name(&self) -> Option<&'static str> {
        None
    }

    /// The protocol's version that is spoken over `tls`, where it has several.
    fn version(&self, tls: Option<&TlsPlan>) -> Option<&'static str> {
        let _ = tls;
        None
    }

    /// Users arrive and not calls, each with so many calls in a row over a connection of its own; `None`:
    /// calls are due by themselves.
    fn calls_in_a_row(&self) -> Option<u32> {
        None
    }

    /// What calls vary by; `None`: they are all the same.
    fn variation(&self) -> Option<&Variation> {
        None
    }

    /// Header fields or metadata: those that are the same for every call, and those that vary.
    fn fields(&self) -> (&[(String, String)], &[MetadataField]) {
        (&[], &[])
    }

    /// What counts the tokens of answers besides the service; `None`: nothing does.
    fn token_counter(&self) -> Option<&TokenCounter> {
        None
    }

    /// Where its calls go besides the plan's target, and whether over TLS.
    fn second_target(&self) -> Option<(&Target, bool)> {
        None
    }

    fn second_target_mut(&mut self) -> Option<&mut Target> {
        None
    }
}

/// `GetScore` of `score.ScoreService/GetScore`
fn last_part(name: &str) -> &str {
    let mut parts = name.rsplit('/');
    parts.find(|part| !part.is_empty()).unwrap_or(name)
}

/// Comparing without knowing the type.
pub trait Same: Any {
    fn is_same(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> Same for T {
    fn is_same(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// What one call is: a [`Call`] of whichever protocol.
#[derive(Clone, Debug)]
pub struct CallPlan(Arc<dyn Call>);

impl CallPlan {
    pub fn new(call: impl Call) -> CallPlan {
        CallPlan(Arc::new(call))
    }

    /// Values that a command makes anew while the run goes on.
    pub fn live_values(&self) -> Vec<Arc<LiveValue>> {
        let (_, varying) = self.fields();
        let sources = varying.iter();
        let sources = sources.filter_map(|field| Some(&field.template.alone()?.source));
        let live = sources.filter_map(|source| match source {
            Source::Live(value) => Some(Arc::clone(value)),
            _ => None,
        });
        live.collect()
    }

    /// While it is being resolved, and nobody shares it yet.
    pub(crate) fn second_target_mut(&mut self) -> Option<&mut Target> {
        Arc::get_mut(&mut self.0)?.second_target_mut()
    }

    /// The call, if it is one of this protocol.
    pub fn of_type<C: Call>(&self) -> Option<&C> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }
}

impl Deref for CallPlan {
    type Target = dyn Call;

    fn deref(&self) -> &dyn Call {
        &*self.0
    }
}

impl PartialEq for CallPlan {
    fn eq(&self, other: &CallPlan) -> bool {
        self.0.is_same(&*other.0)
    }
}

/// Header fields of requests, names in lower case. Values may be secret: the run directory keeps only the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFields {
    /// The same in every request.
    pub constant: Vec<(String, String)>,
    /// `None`: there are no others.
    pub varying: Option<VaryingMetadata>,
}

impl RequestFields {
    /// Every field as `number` has it. `unix_ns`: now, nanoseconds since 1970.
    pub fn of(&self, number: u64, unix_ns: u64) -> Vec<(String, String)> {
        let mut all = self.constant.clone();
        if let Some(varying) = &self.varying {
            let moment = varying.variation.moment(number, 0, unix_ns);
            all.extend(varying.fields.iter().map(|field| {
                let mut value = Vec::new();
                field.write(&moment, &mut value);
                (field.name.clone(), String::from_utf8_lossy(&value).into())
            }));
        }
        all
    }
}

/// What a query has to meet to be counted as good, besides succeeding. Times are from
/// when the query was due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goodput {
    pub first_token: Option<Duration>,
    /// The mean time from one token to the next.
    pub time_per_token: Option<Duration>,
    /// To its `done`.
    pub query: Option<Duration>,
}

impl Goodput {
    pub fn is_met(&self, first_token: Duration, time_per_token: Duration, query: Duration) -> bool {
        let within = |bound: Option<Duration>, time| bound.is_none_or(|bound| time <= bound);
        within(self.first_token, first_token)
            && within(self.time_per_token, time_per_token)
            && within(self.query, query)
    }
}

/// How the load arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub arrivals: Arrivals,
    /// In order; warm-up stages first. At least one.
    pub stages: Vec<Stage>,
    /// Connections kept (`Reuse::Always`), over all workers.
    pub connections: u32,
    pub reuse: Reuse,
    /// Stop after so many calls that are not warm-up.
    pub calls: Option<u64>,
    /// Closed loop: stop as soon as the half-width of the rate's 95 % confidence interval is
    /// this part of it (0–1).
    pub precision: Option<f64>,
    /// For one call, from its actual send.
    pub deadline: Option<Duration>,
    /// For TCP, TLS and the protocol's greeting together.
    pub connect_timeout: Duration,
    /// New connections a second while connecting; `None`: as fast as they come up.
    pub connect_rate: Option<f64>,
    /// A connection is replaced when it has been open for so long; `None`: it is kept.
    pub connection_lifetime: Option<Duration>,
    /// A connection is replaced after so many calls; `None`: it is kept.
    pub calls_per_connection: Option<u32>,
    /// How long the addresses of a name are used before it is looked up again.
    pub resolve_interval: Duration,
    /// How long calls in flight may take after the last arrival.
    pub drain: Duration,
    /// Processes that share the load; `None`: as many as the descriptors need.
    pub processes: Option<u16>,
    /// Threads of a process; `None`: decided from cores, connections and where the target is.
    pub workers: Option<u16>,
    /// Busy-wait at most this long before an arrival, for precision; zero: never.
    pub spin: Duration,
    /// Open loop: calls leave at multiples of it, counted from the load's start; zero: each when it is due.
    pub tick: Duration,
    /// Bytes that a worker reads at a time.
    pub read_buffer: usize,
    /// Local addresses to connect from, in turn; empty: the system's choice.
    pub source_addresses: Vec<IpAddr>,
    /// Which of the arrivals are this load's, where several loads share one schedule; `None`: all.
    pub turns: Option<Turns>,
    /// Count what TCP carries for each connection, when it is closed.
    pub count_bytes: bool,
    /// Keep a load of one worker to the machine's last core, where its servers have the others.
    pub last_core: bool,
}

impl Load {
    /// How long it is warmed up for.
    pub fn warmup(&self) -> Duration {
        let stages = self.stages.iter().filter(|stage| stage.warmup);
        stages.filter_map(|stage| stage.duration).sum()
    }
}

/// What a plan comes to that asks for nothing.
impl Default for Load {
    fn default() -> Load {
        Load {
            arrivals: Arrivals::Open(Spacing::Constant),
            stages: Vec::new(),
            connections: 1,
            reuse: Reuse::Always,
            calls: None,
            precision: None,
            deadline: None,
            connect_timeout: Duration::from_secs(10),
            connect_rate: None,
            connection_lifetime: None,
            calls_per_connection: None,
            // The C library does not say how long an address is good for.
            resolve_interval: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            processes: None,
            workers: None,
            spin: Duration::from_micros(50),
            tick: Duration::ZERO,
            read_buffer: 128 << 10,
            source_addresses: Vec::new(),
            turns: None,
            count_bytes: false,
            last_core: false,
        }
    }
}

/// One load's part of a schedule that several loads share in turns: the arrivals of one turn all
/// go to one of them, and each has its turns in every round, in an order that is drawn anew for each.
///
/// What disturbs the machine for longer than a round then disturbs all of them alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Turns a round, of all loads that share the schedule. At least one.
    pub of: u32,
    /// This load's first one of them, from 0, as they are numbered before they are shuffled.
    pub index: u32,
    /// So many are this load's, from that one on. At least one.
    pub share: u32,
    /// Arrivals a turn. At least one.
    pub calls: u32,
    /// Of the orders. The same for all of them.
    pub seed: u64,
    /// The CPU clocks of both ends are read when a turn begins.
    pub read_cpu: bool,
}

/// One process's part of a run that is spread over several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub index: u32,
    /// How many there are.
    pub of: u32,
}

impl Shard {
    /// The only process of a run.
    pub const WHOLE: Shard = Shard { index: 0, of: 1 };

    /// This shard's part of `whole`; the first shards take what is left over.
    pub fn part(self, whole: u64) -> u64 {
        let of = u64::from(self.of.max(1));
        whole / of + u64::from(u64::from(self.index) < whole % of)
    }

    /// The `inner`th of the `of` parts that this shard is divided into, as a shard of the
    /// whole run. Every shard has to be divided into as many; together they have what
    /// the shard has.
    #[must_use]
    pub fn inner(self, inner: u32, of: u32) -> Shard {
        Shard {
            index: inner * self.of + self.index,
            of: self.of * of,
        }
    }
}

/// Who decides when a call starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Open loop: the schedule decides, whatever the target does.
    Open(Spacing),
    /// Closed loop: each client starts a call when its last one ended and it has thought.
    Closed { clients: u32, think: Duration },
}

impl Arrivals {
    /// `None`: nobody waits for a call's end before the next one.
    pub const fn clients(self) -> Option<u32> {
        match self {
            Arrivals::Open(_) => None,
            Arrivals::Closed { clients, .. } => Some(clients),
        }
    }
}

/// How open-loop arrivals are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    Constant,
    /// Exponential gaps (a Poisson process), from the plan's seed.
    Poisson,
}

/// A stretch of the run with one rate, or a rate that changes evenly.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    pub name: String,
    /// Run like the rest, left out of the totals.
    pub warmup: bool,
    /// `None`: until [`Load::calls`] is reached (closed loop only, last stage only).
    pub duration: Option<Duration>,
    /// Arrivals a second at the stage's start and end. Closed loop: not used.
    pub rate_from: f64,
    pub rate_to: f64,
}

impl Stage {
    /// One that counts, with an even rate.
    pub fn measured(name: &str, duration: Duration, rate: f64) -> Stage {
        Stage {
            name: name.to_owned(),
            warmup: false,
            duration: Some(duration),
            rate_from: rate,
            rate_to: rate,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Calls share the plan's connections.
    Always,
    /// A new connection for every call.
    Never,
}

/// A promise the target is held to.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    pub metric: Metric,
    /// The stage whose calls are meant; `None`: all that are not warm-up.
    pub stage: Option<String>,
    pub below: bool,
    /// Nanoseconds for times, a share (0–1) for errors, calls a second for rates, bytes for
    /// memory.
    pub limit: f64,
    /// As typed.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    Time(Timed, Statistic),
    /// Share of calls that did not end ok.
    Errors,
    /// Achieved calls a second.
    Rate,
    /// Share of TLS handshakes that were resumed from a ticket.
    Resumed,
    /// Resident bytes a connection.
    Memory(End),
}

/// Which of the times that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    Response,
    Service,
    FirstByte,
    Lag,
    /// All phases of a connection together.
    Connection,
    /// To the first token or message of an answer: from when its call was due where its driver
    /// knows tokens, otherwise from its send.
    FirstToken,
    /// From one message of a stream to the next.
    MessageGap,
    /// What the protocol measures besides.
    Measure(TimeMeasure),
}

impl Timed {
    /// Calls that failed took longer than any limit: failing fast does not help.
    pub fn counts_failures(self) -> bool {
        matches!(
            self,
            Timed::Response | Timed::Service | Timed::FirstByte | Timed::FirstToken
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Statistic {
    /// 0–100.
    Percentile(f64),
    Mean,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client,
    Server,
}

/// The server process whose CPU, memory and descriptors are read every interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// The process that listens on the target's port, if it is on this machine.
    #[default]
    TargetPort,
    /// The process that listens on this port of this machine.
    Port(u16),
    Pid(u32),
    /// All processes that this one has started before the load.
    Started,
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        for (whole, of) in [(10u64, 3u32), (1, 4), (0, 2), (1_000_000, 7)] {
            let parts: Vec<u64> = (0..of)
                .map(|index| Shard { index, of }.part(whole))
                .collect();
            assert_eq!(parts.iter().sum::<u64>(), whole);
            assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn shards_divided_again_are_shards_of_the_whole() {
        for (whole, shards, workers) in [(6u64, 2u32, 2u32), (7, 3, 2), (1_000, 7, 3), (2, 3, 4)] {
            let mut places = Vec::new();
            for index in 0..shards {
                let shard = Shard { index, of: shards };
                let inner: Vec<Shard> = (0..workers).map(|w| shard.inner(w, workers)).collect();
                let parts: u64 = inner.iter().map(|i| i.part(whole)).sum();
                assert_eq!(parts, shard.part(whole));
                places.extend(inner.iter().map(|i| i.index));
            }
            places.sort_unstable();
            assert_eq!(places, (0..shards * workers).collect::<Vec<_>>());
        }
    }
}
