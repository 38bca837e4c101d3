//! Spec → plan: every default filled in, every contradiction told, all problems at once.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;

use super::objective;
use super::target::{parse_target, scheme_for, section_of};
use super::{
    BoltSpec, GrpcSpec, Limit, LoadSpec, MetadataSpec, PaceSpec, Problem, RateSpec, Spec, StepSpec,
    TlsSpec, suggest,
};
use crate::plan::{
    Arrivals, CallPlan, Group, GrpcCall, Identity, Load, MethodKind, Pace, Plan, RecordLayer,
    Reuse, Spacing, Stage, StreamPlan, Suite, TlsPlan, Watch,
};
use crate::units::{Period, Size};

pub(super) const DEADLINE: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DRAIN_MOST: Duration = Duration::from_secs(10);
const SPIN: Duration = Duration::from_micros(50);
/// What gRPC clients accept unless told otherwise.
const MAX_MESSAGE: Size = Size(4 << 20);
const SEED: u64 = 1;
/// More would only take each other's cores.
const MOST_PROCESSES: u16 = 256;
const MOST_SOURCE_ADDRESSES: u32 = 65_536;

/// What resolving needs of the world: kept behind a trait, so that it is pure itself.
pub trait Surroundings {
    /// An environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// A file's text.
    ///
    /// # Errors
    /// As the file system tells them.
    fn read(&self, path: &Path) -> std::io::Result<String>;
    /// Finds the method and encodes its message (JSON text).
    ///
    /// # Errors
    /// A problem that names its key below `call.grpc`.
    fn encode_grpc(
        &self,
        call: &GrpcSpec,
        method: &str,
        json: &str,
    ) -> Result<EncodedCall, Problem>;
    /// Encodes class, header map and content of a Bolt call.
    ///
    /// # Errors
    /// A problem that names its key below `call.bolt`.
    fn encode_bolt(&self, call: &BoltSpec) -> Result<EncodedBolt, Problem>;
}

/// A Bolt call's variable parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedBolt {
    /// `service/method`, or the class of a raw call.
    pub method: String,
    pub class: Vec<u8>,
    pub header: Vec<u8>,
    pub content: Vec<u8>,
}

/// A method that exists and a message that fits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedCall {
    /// `package.Service/Method`.
    pub method: String,
    pub kind: MethodKind,
    /// One; or several for a stream, where the JSON was a list.
    pub messages: Vec<Vec<u8>>,
}

pub(super) const SUITES: [(&str, Suite); 3] = [
    ("TLS_AES_128_GCM_SHA256", Suite::Aes128GcmSha256),
    ("TLS_AES_256_GCM_SHA384", Suite::Aes256GcmSha384),
    (
        "TLS_CHACHA20_POLY1305_SHA256",
        Suite::Chacha20Poly1305Sha256,
    ),
];

pub(super) const GROUPS: [(&str, Group); 4] = [
    ("X25519", Group::X25519),
    ("secp256r1", Group::Secp256r1),
    ("secp384r1", Group::Secp384r1),
    ("X25519MLKEM768", Group::X25519Mlkem768),
];

/// A cipher suite by its name, in any case.
///
/// # Errors
/// The names there are.
pub fn suite_named(name: &str) -> Result<Suite, String> {
    named(name, &SUITES)
}

/// A key-exchange group by its name, in any case.
///
/// # Errors
/// The names there are.
pub fn group_named(name: &str) -> Result<Group, String> {
    named(name, &GROUPS)
}

fn named<T: Copy>(name: &str, known: &[(&'static str, T)]) -> Result<T, String> {
    known
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| *value)
        .ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            match suggest(name, &names) {
                Some(nearest) => format!("did you mean `{nearest}`?"),
                None => format!("use {}", names.join(", ")),
            }
        })
}

/// The post-quantum group is not among them: it changes what a handshake costs, so it is
/// asked for by name.
const DEFAULT_GROUPS: [Group; 3] = [Group::X25519, Group::Secp256r1, Group::Secp384r1];

/// Makes the plan that `spec` means.
///
/// # Errors
/// Everything that is wrong with it, each with its key; see [`super::locate`] for places.
pub fn resolve(spec: &Spec, surroundings: &dyn Surroundings) -> Result<Plan, Vec<Problem>> {
    let mut problems = Problems(Vec::new());
    let with_defaults = super::session::with_defaults(spec);
    let spec = with_defaults.as_ref().unwrap_or(spec);
    let target = problems.target(spec);
    let tls = problems.tls(
        spec.tls.as_ref(),
        target.as_ref().map(|(_, secured)| *secured),
        spec.call.fetch.is_some(),
    );
    let call = problems.call(spec, surroundings);
    let load = problems.load(spec);
    let objectives = spec
        .objective
        .iter()
        .filter_map(|(metric, limit)| {
            let key = format!("objective.{metric}");
            problems.keep(&key, objective::parse(metric, limit))
        })
        .collect();
    let watch = problems.watch(spec);
    let seed = spec.seed.unwrap_or(SEED);
    if i64::try_from(seed).is_err() {
        problems.add("seed", format!("{seed} is too large: at most {}", i64::MAX));
    }
    match (target, call, load, problems.0.is_empty()) {
        (Some((target, _)), Some(call), Some(load), true) => Ok(Plan {
            name: spec.name.clone().unwrap_or_else(|| name_for(&call, &load)),
            target,
            tls,
            call,
            load,
            objectives,
            watch,
            seed,
            keep_requests: spec.requests.unwrap_or(false),
        }),
        _ => Err(problems.0),
    }
}

/// `GetScore, steady`
fn name_for(call: &CallPlan, load: &Load) -> String {
    let names = call.names();
    let method = match call {
        CallPlan::Session(_) => "sessions",
        CallPlan::Grpc(_) | CallPlan::Bolt(_) | CallPlan::Fetch(_) => names
            .1
            .rsplit('/')
            .find(|part| !part.is_empty())
            .unwrap_or(&names.1),
    };
    let kind = match (load.reuse, load.arrivals) {
        (Reuse::Never, _) => "cold",
        (_, Arrivals::Closed { .. }) => "fleet",
        _ if load.stages.iter().filter(|s| !s.warmup).count() > 1 => "steps",
        _ => "steady",
    };
    format!("{method}, {kind}")
}

pub(super) struct Problems(pub(super) Vec<Problem>);

impl Problems {
    pub(super) fn add(&mut self, key: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem::new(key, message));
    }

    pub(super) fn keep<T>(&mut self, key: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.add(key, message)).ok()
    }

    fn target(&mut self, spec: &Spec) -> Option<(crate::plan::Target, bool)> {
        match &spec.target {
            Some(url) => self.keep("target", parse_target(url)),
            None => {
                self.add(
                    "target",
                    "missing: write grpc://HOST:PORT, or grpcs://HOST:PORT for TLS; sofa:// or sofas:// for SOFARPC; https://HOST:PORT/PATH to fetch a file; session:// for sessions",
                );
                None
            }
        }
    }

    fn tls(
        &mut self,
        spec: Option<&TlsSpec>,
        secured: Option<bool>,
        fetches: bool,
    ) -> Option<TlsPlan> {
        let given = spec.is_some_and(|tls| *tls != TlsSpec::default());
        if secured == Some(false) && given {
            self.0.push(
                Problem::new("tls", "TLS settings for a plaintext target")
                    .help("write the target with a secured scheme (grpcs://, sofas://, https://), or take the TLS settings out"),
            );
        }
        let spec = spec.cloned().unwrap_or_default();
        let identity = match (spec.cert, spec.key) {
            (Some(cert), Some(key)) => Some(Identity { cert, key }),
            (Some(_), None) => {
                self.add(
                    "tls.key",
                    "missing: a client certificate (tls.cert) needs its private key",
                );
                None
            }
            (None, Some(_)) => {
                self.add(
                    "tls.cert",
                    "missing: a private key (tls.key) needs its certificate",
                );
                None
            }
            (None, None) => None,
        };
        let suites = self.named("tls.suites", spec.suites, &SUITES, "a TLS 1.3 cipher suite");
        let groups = self.named("tls.groups", spec.groups, &GROUPS, "a key-exchange group");
        let records = match spec.records.as_deref() {
            Some("own") => RecordLayer::Own,
            None if fetches => RecordLayer::Own,
            None | Some("library") => RecordLayer::Library,
            Some(other) => {
                self.add(
                    "tls.records",
                    format!("`{other}` is unknown: use \"own\" or \"library\""),
                );
                RecordLayer::Library
            }
        };
        if secured != Some(true) {
            return None;
        }
        Some(TlsPlan {
            ca: spec.ca,
            identity,
            server_name: spec.server_name,
            suites: suites.unwrap_or_else(|| SUITES.iter().map(|(_, suite)| *suite).collect()),
            groups: groups.unwrap_or_else(|| DEFAULT_GROUPS.to_vec()),
            resume: spec.resume.unwrap_or(false),
            records,
        })
    }

    /// Values by their names, whatever their case.
    fn named<T: Copy>(
        &mut self,
        key: &str,
        typed: Option<Vec<String>>,
        known: &[(&'static str, T)],
        what: &str,
    ) -> Option<Vec<T>> {
        let typed = typed?;
        if typed.is_empty() {
            self.add(key, "empty: name at least one, or leave it out");
        }
        let mut values = Vec::new();
        for (i, name) in typed.iter().enumerate() {
            match named(name, known) {
                Ok(value) => values.push(value),
                Err(help) => self.0.push(
                    Problem::new(format!("{key}.{i}"), format!("`{name}` is not {what}"))
                        .help(help),
                ),
            }
        }
        Some(values)
    }

    fn call(&mut self, spec: &Spec, surroundings: &dyn Surroundings) -> Option<CallPlan> {
        let given: Vec<&str> = [
            ("grpc", spec.call.grpc.is_some()),
            ("bolt", spec.call.bolt.is_some()),
            ("fetch", spec.call.fetch.is_some()),
            ("session", spec.call.session.is_some()),
        ]
        .into_iter()
        .filter_map(|(section, given)| given.then_some(section))
        .collect();
        let wanted = spec.target.as_deref().and_then(section_of);
        match given.as_slice() {
            [] => {
                let section = wanted.unwrap_or("grpc");
                self.add(
                    "call",
                    format!("missing: a [call.{section}] section says what to call"),
                );
                return None;
            }
            [_, second, ..] => {
                self.add(
                    format!("call.{second}"),
                    format!("given beside call.{}: a plan calls one thing", given[0]),
                );
                return None;
            }
            [section] => {
                if let (Some(wanted), Some(url)) = (wanted, &spec.target)
                    && wanted != *section
                    && let Some((scheme, rest)) = url.split_once("://")
                {
                    let secured = scheme.ends_with(['s', 'S']);
                    self.add(
                        "target",
                        format!(
                            "scheme `{scheme}` goes with [call.{wanted}], and [call.{section}] is given: write {}://{rest}",
                            scheme_for(section, secured)
                        ),
                    );
                }
            }
        }
        if let Some(call) = &spec.call.bolt {
            return self.bolt_call(spec, call, surroundings);
        }
        if let Some(call) = &spec.call.fetch {
            return self.fetch_call(spec, call);
        }
        if let Some(call) = &spec.call.session {
            return self.session(spec, call);
        }
        self.grpc_call(spec.call.grpc.as_ref()?, surroundings)
    }

    fn grpc_call(&mut self, call: &GrpcSpec, surroundings: &dyn Surroundings) -> Option<CallPlan> {
        if call.descriptor_set.is_some() && call.proto.is_some() {
            self.add(
                "call.grpc.descriptor_set",
                "given beside call.grpc.proto: use one of the two",
            );
        }
        if call.reflection == Some(true) && (call.proto.is_some() || call.descriptor_set.is_some())
        {
            self.add(
                "call.grpc.reflection",
                "given beside call.grpc.proto or call.grpc.descriptor_set: use one of them",
            );
        }
        if call.import_path.is_some() && call.proto.is_none() {
            self.add("call.grpc.import_path", "used only with call.grpc.proto");
        }
        let metadata = self.metadata(call, surroundings);
        let max_message = call.max_message.unwrap_or(MAX_MESSAGE).0;
        let max_message = if (1..=1 << 31).contains(&max_message) {
            max_message as usize
        } else {
            self.add("call.grpc.max_message", "out of range: use 1B to 2GiB");
            0
        };
        if let Some(authority) = &call.authority
            && !is_visible(authority)
        {
            self.add(
                "call.grpc.authority",
                format!("`{authority}` is not a host or host:port"),
            );
        }
        let Some(method) = &call.method else {
            self.add("call.grpc.method", "missing: write package.Service/Method");
            return None;
        };
        let json = self.message(call, surroundings)?;
        let encoded = match surroundings.encode_grpc(call, method, json.as_deref().unwrap_or("{}"))
        {
            Ok(encoded) => encoded,
            Err(problem) => {
                self.0.push(problem);
                return None;
            }
        };
        let stream = self.stream(call, &encoded);
        Some(CallPlan::Grpc(GrpcCall {
            method: encoded.method,
            message: match encoded.kind {
                MethodKind::Unary => encoded.messages.into_iter().next().unwrap_or_default(),
                _ => Vec::new(),
            },
            stream,
            message_json: json,
            metadata,
            authority: call.authority.clone(),
            max_message,
        }))
    }

    /// What a call that carries several messages does.
    fn stream(&mut self, call: &GrpcSpec, encoded: &EncodedCall) -> Option<StreamPlan> {
        let kind = encoded.kind;
        let given = [
            (
                "messages",
                call.messages.is_some(),
                kind.client_streams(),
                "streams of requests",
            ),
            (
                "pace",
                call.pace.is_some(),
                kind.client_streams(),
                "streams of requests",
            ),
            (
                "expect",
                call.expect.is_some(),
                kind.server_streams(),
                "streams of answers",
            ),
            (
                "cancel_after",
                call.cancel_after.is_some(),
                kind != MethodKind::Unary,
                "streams",
            ),
        ];
        for (key, given, fits, what) in given {
            if given && !fits {
                self.add(
                    format!("call.grpc.{key}"),
                    format!("for {what}, and {} is {kind}", encoded.method),
                );
            }
        }
        if kind == MethodKind::Unary {
            return None;
        }
        let pace = match call.pace {
            None | Some(PaceSpec::None) => Pace::None,
            Some(PaceSpec::Answers) if kind == MethodKind::Bidirectional => Pace::Answers,
            Some(PaceSpec::Answers) => {
                self.add(
                    "call.grpc.pace",
                    format!(
                        "\"answers\" needs answers while it sends, and {} is {kind}",
                        encoded.method
                    ),
                );
                Pace::None
            }
            Some(PaceSpec::Every(period)) if period.0.is_zero() => Pace::None,
            Some(PaceSpec::Every(period)) => Pace::Every(period.0),
        };
        let count = match kind.client_streams() {
            true => call.messages.unwrap_or(encoded.messages.len() as u32),
            false => 1,
        };
        if count > 0 && encoded.messages.is_empty() {
            self.add(
                "call.grpc.messages",
                format!("{count} messages to send, and the list of messages is empty"),
            );
        }
        Some(StreamPlan {
            kind,
            messages: encoded.messages.clone(),
            count,
            pace,
            expect: call.expect,
            cancel_after: call.cancel_after,
        })
    }

    /// The message's JSON; `Some(None)`: the empty message.
    fn message(
        &mut self,
        call: &GrpcSpec,
        surroundings: &dyn Surroundings,
    ) -> Option<Option<String>> {
        let (key, json) = match (&call.message, &call.message_file) {
            (Some(_), Some(_)) => {
                self.add(
                    "call.grpc.message_file",
                    "given beside call.grpc.message: use one of the two",
                );
                return None;
            }
            (Some(message), None) => ("call.grpc.message", message.0.clone()),
            (None, Some(path)) => {
                let key = "call.grpc.message_file";
                let text = surroundings
                    .read(path)
                    .map_err(|e| format!("can't read {}: {e}", path.display()));
                (key, self.keep(key, text)?)
            }
            (None, None) => return Some(None),
        };
        // Sending the braces as they are would look like success.
        if json.contains("{{")
            && ["seq", "uuid", "random"].iter().any(|name| {
                json.split("{{")
                    .skip(1)
                    .any(|after| after.trim_start().starts_with(name))
            })
        {
            self.add(
                key,
                "templates such as {{seq}} are not supported: every call sends the same message",
            );
            return None;
        }
        Some(Some(json))
    }

    fn metadata(
        &mut self,
        call: &GrpcSpec,
        surroundings: &dyn Surroundings,
    ) -> Vec<(String, String)> {
        let mut metadata = Vec::new();
        for (name, value) in &call.metadata {
            let key = format!("call.grpc.metadata.{name}");
            let lower = name.to_ascii_lowercase();
            if lower.is_empty()
                || !lower
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.".contains(&b))
            {
                self.add(&*key, "not a metadata name: use a-z, 0-9, `_`, `-` and `.`");
                continue;
            }
            if lower.starts_with("grpc-")
                || [
                    "te",
                    "content-type",
                    "user-agent",
                    "host",
                    "connection",
                    "content-length",
                    "transfer-encoding",
                ]
                .contains(&lower.as_str())
            {
                self.add(&*key, "set by gRPC itself: take it out");
                continue;
            }
            let value = match value {
                MetadataSpec::Text(text) => Ok(text.clone()),
                MetadataSpec::Env(variable) => surroundings
                    .variable(variable)
                    .ok_or_else(|| format!("the environment variable {variable} is not set")),
                MetadataSpec::File(path) => surroundings
                    .read(path)
                    .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
                    .map_err(|e| format!("can't read {}: {e}", path.display())),
            };
            let Some(value) = self.keep(&key, value) else {
                continue;
            };
            if lower.ends_with("-bin") {
                let standard = base64::engine::GeneralPurpose::new(
                    &base64::alphabet::STANDARD,
                    base64::engine::GeneralPurposeConfig::new()
                        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
                );
                if standard.decode(&value).is_err() {
                    self.add(&*key, "not base64: the value of a name that ends in -bin is binary, typed in base64");
                    continue;
                }
            } else if !value.bytes().all(|b| (0x20..=0x7e).contains(&b)) || value.trim() != value {
                // The value may be secret: it is not shown.
                self.add(
                    &*key,
                    "not a metadata value: use printable ASCII without blanks at its ends",
                );
                continue;
            }
            metadata.push((lower, value));
        }
        metadata
    }

    fn load(&mut self, spec: &Spec) -> Option<Load> {
        let load = &spec.load;
        let before = self.0.len();
        let (arrivals, stages) = self.arrivals(load);
        let reuse = match load.reuse.as_deref() {
            None | Some("always") => Reuse::Always,
            Some("never") => Reuse::Never,
            Some(other) => {
                self.add(
                    "load.reuse",
                    format!("`{other}` is unknown: use \"always\" or \"never\""),
                );
                Reuse::Always
            }
        };
        if reuse == Reuse::Never && load.connections.is_some() {
            self.add(
                "load.connections",
                "not used with reuse = \"never\", where every call makes its own: take one out",
            );
        }
        if load.connections == Some(0) {
            self.add(
                "load.connections",
                "0 connections carry nothing: use 1 or more",
            );
        }
        if load.calls == Some(0) {
            self.add("load.calls", "0 calls measure nothing: use 1 or more");
        }
        if load.processes.is_some_and(|n| n == 0 || n > MOST_PROCESSES) {
            self.add(
                "load.processes",
                format!("a load is spread over 1 to {MOST_PROCESSES} processes"),
            );
        }
        if load.workers == Some(0) {
            self.add(
                "load.workers",
                "0 workers do nothing: use 1 or more, or leave it out",
            );
        }
        let call = &spec.call;
        let (section, call_deadline) = match (&call.grpc, &call.bolt, &call.fetch) {
            (_, Some(call), _) => ("bolt", call.deadline),
            (_, None, Some(call)) => ("fetch", call.deadline),
            (Some(call), None, None) => ("grpc", call.deadline),
            (None, None, None) => ("grpc", None),
        };
        let call_key = format!("call.{section}.deadline");
        if call_deadline.is_some() && load.deadline.is_some() {
            self.add(
                "load.deadline",
                format!("given beside {call_key}: use one of the two"),
            );
        }
        let deadline = match load.deadline.or(call_deadline) {
            None => Some(DEADLINE),
            Some(Limit::None) => None,
            Some(Limit::After(period)) => {
                let key = if load.deadline.is_some() {
                    "load.deadline"
                } else {
                    call_key.as_str()
                };
                if period.0.is_zero() {
                    self.add(
                        key,
                        "a deadline of 0 fails every call: use a duration, or \"none\"",
                    );
                }
                Some(period.0)
            }
        };
        let connect_timeout = load.connect_timeout.map_or(CONNECT_TIMEOUT, |p| p.0);
        if connect_timeout.is_zero() {
            self.add(
                "load.connect_timeout",
                "0 fails every connection: use a duration such as \"10s\"",
            );
        }
        if load.connect_rate.is_some_and(|rate| rate.0 <= 0.0) {
            self.add(
                "load.connect_rate",
                "a rate of 0 never connects: use \"1000/s\", or leave it out",
            );
        }
        let spin = load.spin.map_or(SPIN, |p| p.0);
        if spin > Duration::from_millis(100) {
            self.add(
                "load.spin",
                "longer than 100ms: a spin only covers the inaccuracy of the timer, about \"50us\"",
            );
        }
        let source_addresses =
            self.source_addresses(load.source_addresses.as_deref().unwrap_or(&[]));
        if self.0.len() > before {
            return None;
        }
        Some(Load {
            arrivals: arrivals?,
            stages,
            connections: load.connections.unwrap_or(1),
            reuse,
            calls: load.calls,
            deadline,
            connect_timeout,
            connect_rate: load.connect_rate.map(|rate| rate.0),
            drain: load
                .drain
                .map_or(deadline.map_or(DRAIN_MOST, |d| d.min(DRAIN_MOST)), |p| p.0),
            processes: load.processes,
            workers: load.workers,
            spin,
            source_addresses,
        })
    }

    /// Who starts calls, and the stages: the warm-up first.
    fn arrivals(&mut self, load: &LoadSpec) -> (Option<Arrivals>, Vec<Stage>) {
        let spacing = match load.arrivals.as_deref() {
            None | Some("constant") => Spacing::Constant,
            Some("poisson") => Spacing::Poisson,
            Some(other) => {
                self.add(
                    "load.arrivals",
                    format!("`{other}` is unknown: use \"constant\" or \"poisson\""),
                );
                Spacing::Constant
            }
        };
        let positive = |period: &Option<Period>| period.map(|p| p.0).filter(|d| !d.is_zero());
        if load.duration.is_some_and(|p| p.0.is_zero()) {
            self.add(
                "load.duration",
                "0 measures nothing: use a duration such as \"30s\"",
            );
        }
        let duration = positive(&load.duration);
        let warmup = positive(&load.warmup);
        let given: Vec<&str> = [
            ("rate", load.rate.is_some()),
            ("steps", load.steps.is_some()),
            ("clients", load.clients.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, given)| given.then_some(key))
        .collect();
        if let [first, second, ..] = given.as_slice() {
            self.0.push(
                Problem::new(format!("load.{second}"), format!("given beside load.{first}: use one of the two"))
                    .help("`rate` and `steps` are an open loop (calls are due whatever the target does), `clients` a closed one (a client waits for its answer)"),
            );
            return (None, Vec::new());
        }
        if load.clients.is_none() && load.think.is_some() {
            self.add(
                "load.think",
                "a pause between a client's calls, so it needs load.clients",
            );
        }
        let mut stages = Vec::new();
        if let Some(clients) = load.clients {
            if clients == 0 {
                self.add("load.clients", "0 clients send nothing: use 1 or more");
            }
            if load.arrivals.is_some() {
                self.add("load.arrivals", "arrivals belong to an open loop (load.rate); with load.clients each client decides");
            }
            if duration.is_none() && load.calls.is_none() && load.duration.is_none() {
                self.missing_end();
            }
            stages.extend(warmup.map(|length| stage("warmup", true, Some(length), 0.0, 0.0)));
            stages.push(stage("clients", false, duration, 0.0, 0.0));
            let think = load.think.map_or(Duration::ZERO, |p| p.0);
            return (Some(Arrivals::Closed { clients, think }), stages);
        }
        match (&load.rate, &load.steps) {
            (Some(RateSpec::Steady(rate)), _) => {
                if rate.0 <= 0.0 {
                    self.add(
                        "load.rate",
                        "a rate of 0 sends nothing: use \"1000/s\" or the like",
                    );
                    return (None, stages);
                }
                let length = match (duration, load.calls) {
                    (Some(length), _) => length,
                    (None, Some(calls)) => length_of(calls, rate.0, spacing),
                    (None, None) => {
                        if load.duration.is_none() {
                            self.missing_end();
                        }
                        return (None, stages);
                    }
                };
                stages.push(stage("steady", false, Some(length), rate.0, rate.0));
            }
            (Some(RateSpec::Ramp(ramp)), _) => {
                let over = ramp.over.0;
                if over.is_zero() {
                    self.add(
                        "load.rate.over",
                        "a ramp needs time: use a duration such as \"30s\"",
                    );
                }
                if ramp.from.0 <= 0.0 && ramp.to.0 <= 0.0 {
                    self.add(
                        "load.rate",
                        "a ramp from 0 to 0 sends nothing: use \"1000/s\" or the like",
                    );
                }
                stages.push(stage("ramp", false, Some(over), ramp.from.0, ramp.to.0));
                match duration {
                    Some(length) if length < over => self.add(
                        "load.duration",
                        format!(
                            "{} is shorter than the ramp ({})",
                            Period(length),
                            ramp.over
                        ),
                    ),
                    Some(length) if length > over => {
                        stages.push(stage(
                            "hold",
                            false,
                            Some(length - over),
                            ramp.to.0,
                            ramp.to.0,
                        ));
                    }
                    _ => {}
                }
            }
            (None, Some(steps)) => self.steps(load, steps, &mut stages),
            (None, None) => {
                self.add("load", "neither a rate nor clients: write rate = \"1000/s\" (open loop) or clients = 100 (closed loop)");
                return (None, stages);
            }
        }
        if let Some(length) = warmup {
            // A warm-up at rate 0 would warm nothing up.
            let rate = stages
                .iter()
                .flat_map(|s| [s.rate_from, s.rate_to])
                .find(|rate| *rate > 0.0)
                .unwrap_or(0.0);
            stages.insert(0, stage("warmup", true, Some(length), rate, rate));
        }
        (Some(Arrivals::Open(spacing)), stages)
    }

    fn missing_end(&mut self) {
        self.add(
            "load.duration",
            "missing: write duration = \"30s\", or calls = 100000",
        );
    }

    fn steps(&mut self, load: &LoadSpec, steps: &[StepSpec], stages: &mut Vec<Stage>) {
        if load.duration.is_some() {
            self.add(
                "load.duration",
                "not used with load.steps, where each step says `for` how long",
            );
        }
        if steps.is_empty() {
            self.add(
                "load.steps",
                "no step: write steps = [{ rate = \"500/s\", for = \"10s\" }]",
            );
        }
        if steps.len() > 250 {
            self.add(
                "load.steps",
                format!("{} steps are too many: at most 250", steps.len()),
            );
        }
        let mut highest = 0.0f64;
        for (i, step) in steps.iter().enumerate() {
            let key = format!("load.steps.{i}");
            let (from, to) = match (step.rate, step.from, step.to) {
                (Some(rate), None, None) => (rate.0, rate.0),
                (None, Some(from), Some(to)) => (from.0, to.0),
                _ => {
                    self.add(&*key, "a step has either a `rate`, or both `from` and `to`");
                    continue;
                }
            };
            let Some(length) = step.length.filter(|p| !p.0.is_zero()) else {
                self.add(&*key, "a step says `for` how long: for = \"10s\"");
                continue;
            };
            highest = highest.max(from).max(to);
            stages.push(stage(
                &format!("step {}", i + 1),
                false,
                Some(length.0),
                from,
                to,
            ));
        }
        if !steps.is_empty() && stages.len() == steps.len() && highest <= 0.0 {
            self.add(
                "load.steps",
                "a rate of 0 in every step sends nothing: use \"1000/s\" or the like",
            );
        }
    }

    fn source_addresses(&mut self, typed: &[String]) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for (i, text) in typed.iter().enumerate() {
            let key = format!("load.source_addresses.{i}");
            match text.split_once('-') {
                None => match text.trim().parse() {
                    Ok(address) => addresses.push(address),
                    Err(_) => self.add(key, format!("`{text}` is not an IP address, nor a range such as \"127.0.0.2-127.0.0.9\"")),
                },
                Some((first, last)) => {
                    let (Ok(first), Ok(last)) = (first.trim().parse::<Ipv4Addr>(), last.trim().parse::<Ipv4Addr>()) else {
                        self.add(key, format!("`{text}` is not a range of IPv4 addresses, such as \"127.0.0.2-127.0.0.9\""));
                        continue;
                    };
                    let (first, last) = (u32::from(first), u32::from(last));
                    if first > last {
                        self.add(key, format!("`{text}` ends before it begins"));
                    } else if last - first >= MOST_SOURCE_ADDRESSES {
                        self.add(key, format!("`{text}` is too long: at most {MOST_SOURCE_ADDRESSES} addresses"));
                    } else {
                        addresses.extend((first..=last).map(|n| IpAddr::V4(Ipv4Addr::from(n))));
                    }
                }
            }
        }
        addresses
    }

    fn watch(&mut self, spec: &Spec) -> Watch {
        let Some(watch) = &spec.watch else {
            return Watch::default();
        };
        match (watch.pid, watch.port, watch.off.unwrap_or(false)) {
            (None, None, false) => Watch::default(),
            (Some(0), None, false) => {
                self.add("watch.pid", "0 is not a process: use its id, or off = true");
                Watch::Nothing
            }
            (Some(pid), None, false) => Watch::Pid(pid),
            (None, Some(port), false) => Watch::Port(port),
            (None, None, true) => Watch::Nothing,
            _ => {
                self.add("watch", "more than one of `pid`, `port` and `off`: use one");
                Watch::Nothing
            }
        }
    }
}

fn stage(name: &str, warmup: bool, duration: Option<Duration>, from: f64, to: f64) -> Stage {
    Stage {
        name: name.into(),
        warmup,
        duration,
        rate_from: from,
        rate_to: to,
    }
}

/// How long an open loop takes to issue `calls` arrivals.
fn length_of(calls: u64, rate: f64, spacing: Spacing) -> Duration {
    let arrivals = match spacing {
        Spacing::Constant => calls as f64,
        // Long enough that the count is reached but once in a thousand million runs; it ends there.
        Spacing::Poisson => calls as f64 + 6.0 * (calls as f64).sqrt() + 20.0,
    };
    Duration::from_nanos((arrivals / rate * 1e9).ceil() as u64)
}

fn is_visible(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| (0x21..=0x7e).contains(&b))
}

mod bolt;
pub(super) use bolt::VERSIONS;
mod fetch;
#[cfg(test)]
mod tests;
