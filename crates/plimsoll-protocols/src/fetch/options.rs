//! The `[call.fetch]` section and the flags of `plimsoll fetch`: a file over HTTP/1.1, and the mode of its connections.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use plimsoll_model::formats::units::{ByteSize, Period};
use plimsoll_model::rows::template::MetadataField;
use plimsoll_model::spec::{
    CallSection, LadderSpec, LoadSpec, OptionalPeriod, Problems, ProxiedCalls, ResolveContext,
    Spec, UrlSchemes, WireFormat, generated_file_size, split_scheme,
};
use serde::{Deserialize, Serialize};

use crate::http::{self, CallPurpose, HttpCall, HttpSpec, VaryingRequest};
use crate::interface::protocol_module::{
    EnvLookup, PrepareError, PrepareRequest, PreparedLoad, ProtocolCommand, ProtocolModule,
    UsageError,
};

/// The maximum size of a body, in bytes: the bytes of a call are counted in 32 bits.
const MAX_BODY_BYTES: u32 = u32::MAX;
/// The size of the read buffer for bulk transfers: larger reads mean fewer wake-ups.
const READ_BUFFER_SIZE: ByteSize = ByteSize(256 << 10);
/// The number of clients of a closed loop, if the plan sets no rate: enough to keep a core of the server busy.
const DEFAULT_CLIENTS: u32 = 16;
/// The warm-up of a run that resumes TLS sessions, because its first connections have no tickets yet.
const RESUMED_WARMUP_DURATION: Period = Period(Duration::from_secs(1));
/// The duration of one slice when the two modes alternate.
const SLICE_DURATION: Duration = Duration::from_secs(2);

/// The settings of calls that fetch one file again and again.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[command(next_help_heading = "Call")]
#[serde(deny_unknown_fields, default)]
pub struct FetchOptions {
    /// Path and query. Default: the target URL's, or `/`.
    #[arg(skip)]
    pub path: Option<String>,

    /// The body's exact size; any other size fails with BODY_LENGTH [default: SIZE of /bytes/SIZE].
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,

    /// The Host to send [default: host:port of the target].
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,

    /// Make new connections and fetch nothing: a call is a handshake, after which the connection is closed.
    #[arg(long, action = ArgAction::SetTrue)]
    pub handshake_only: Option<bool>,

    /// Files that one connection fetches before it is replaced [default: no limit].
    #[arg(long, value_name = "N")]
    pub per_connection: Option<u32>,

    /// The call's deadline, or "none". Default 10s.
    #[arg(skip)]
    pub deadline: Option<OptionalPeriod>,
}

/// Fetch a file again and again over HTTP/1.1, to measure handshakes, resumption and bulk transfer over TLS.
#[derive(Args, Debug)]
#[command(before_help = "\
Example: as many full handshakes as possible, then resumed ones, with 16 in flight
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode new --duration 10s
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode resumed --duration 10s
Example: both in turn, in short slices, so that changes of the machine affect both
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode both --duration 10s
Example: bulk over four kept connections; 200 new connections a second
  plimsoll fetch https://localhost:4433/bytes/64MiB --ca certs/ca.crt --mode reused --fleet 4 --duration 10s
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode new --rate 200/s --duration 10s")]
pub struct FetchFlags {
    /// How connections are made: new (a full handshake for every file), resumed (from a
    /// ticket), both (new and resumed in turn, in slices of 2s), or reused (kept open)
    /// [default: reused].
    #[arg(long, value_name = "MODE", help_heading = "Call")]
    mode: Option<FetchMode>,

    #[command(flatten)]
    options: FetchOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FetchMode {
    New,
    Resumed,
    Both,
    Reused,
}

impl CallSection for FetchOptions {
    const SCHEMES: UrlSchemes = UrlSchemes {
        section: "fetch",
        plain: "http",
        secured: Some("https"),
        aliases: None,
        purpose: "for HTTP",
        foreign_schemes: &[],
        ports: Some((80, 443)),
        with_path: true,
    };
    const FETCHES_FILES: bool = true;
    const SUPPORTS_TRACEPARENT: bool = true;
    type Call = HttpCall;

    fn proxied_calls(&self, _: &Spec) -> ProxiedCalls {
        WireFormat::Http1.into()
    }

    fn apply_defaults(&self, load: &mut LoadSpec) {
        load.read_buffer.get_or_insert(READ_BUFFER_SIZE);
        if self.handshake_only == Some(true) {
            load.reuse.get_or_insert("never".into());
        }
        if load.reuse.as_deref() != Some("never") {
            // Skips 0, which is already reported as a mistake in this section.
            let files = self.per_connection.filter(|files| *files > 0);
            load.calls_per_connection = load.calls_per_connection.or(files);
            // HTTP/1.1 carries one file at a time, so clients that share a connection would only queue.
            load.connections = load.connections.or(load.clients);
        }
    }

    fn resolve(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn ResolveContext,
    ) -> Option<HttpCall> {
        let before = problems.0.len();
        let section = Self::SCHEMES.section;
        let path = self.path.as_deref();
        let path = http::resolve_call_path(problems, section, spec, path, surroundings)?;
        if !path.starts_with('/') || !http::is_valid_in_path(&path) {
            problems.add("call.fetch.path", http::invalid_path_message(&path));
        }
        problems.reject_template_fields("call.fetch.path", Some(&path));
        http::check_host(problems, section, self.host.as_deref());
        if self.per_connection == Some(0) {
            problems.add(
                "call.fetch.per_connection",
                "a connection must fetch at least 1 file: use 1 or more, or leave it out",
            );
        }
        if self.handshake_only == Some(true) {
            self.check_handshake_only(spec, &path, problems);
        }
        let asked = self.per_connection.zip(spec.load.calls_per_connection);
        if let Some((files, calls)) = asked.filter(|(files, calls)| files != calls) {
            problems.add(
                "load.calls_per_connection",
                format!("{calls}, and call.fetch.per_connection is {files}: leave one of them out"),
            );
        }
        let expect_size = self
            .size
            .map(|size| size.0)
            .or_else(|| generated_file_size(&path));
        if expect_size.is_some_and(|size| size > MAX_BODY_BYTES.into()) {
            problems.add("call.fetch.size", "too large: at most 4294967295B");
        }
        let traced = spec.traceparent == Some(true);
        let varying = traced.then(|| VaryingRequest {
            variation: problems.resolve_variation(spec, None),
            path: None,
            headers: vec![MetadataField::new_traceparent()],
            body: None,
            expectations: None,
        });
        (problems.0.len() == before).then(|| HttpCall {
            varying,
            method: "GET".to_owned(),
            path,
            host: self.host.clone(),
            expect: vec![(200, 200)],
            expect_size,
            purpose: if self.handshake_only == Some(true) {
                CallPurpose::Handshake
            } else {
                CallPurpose::File
            },
            max_body: MAX_BODY_BYTES,
            ..HttpCall::default()
        })
    }

    fn with_defaults(self, call: &HttpCall) -> FetchOptions {
        FetchOptions {
            path: Some(call.path.clone()),
            size: call.expect_size.map(ByteSize),
            // `apply_defaults` has moved this value to `load.calls_per_connection`.
            per_connection: None,
            deadline: None,
            ..self
        }
    }
}

impl ProtocolCommand for FetchFlags {
    const TARGET_HELP: &str =
        "http://HOST:PORT/PATH (plaintext), https://HOST:PORT/PATH (TLS), or unix:/SOCKET:/PATH";
    type Section = FetchOptions;

    fn into_section(self, spec: &mut Spec, _: EnvLookup<'_>) -> Result<FetchOptions, UsageError> {
        if self.mode == Some(FetchMode::Reused) && self.options.handshake_only == Some(true) {
            return Err(UsageError::new(
                "--mode reused keeps connections, and --handshake-only makes a new one for every call",
                "leave --mode out, or write --mode new",
            ));
        }
        if let Some(mode) = self.mode.filter(|mode| *mode != FetchMode::Reused) {
            check_mode(mode, &self.options, spec)?;
        }
        apply_mode(self.mode, spec);
        if self.mode == Some(FetchMode::Both) {
            spec.ladder = Some(new_and_resumed_ladder(spec)?);
        }
        Ok(self.options)
    }
}

impl ProtocolModule for FetchOptions {
    fn load<'a>(
        asked: PrepareRequest<'a>,
        call: &HttpCall,
    ) -> Result<PreparedLoad<'a>, PrepareError> {
        HttpSpec::load(asked, call)
    }
}

impl FetchOptions {
    /// Reports settings that conflict with `handshake_only`, which sends no request.
    fn check_handshake_only(&self, spec: &Spec, path: &str, problems: &mut Problems) {
        const HANDSHAKE_ONLY_KEY: &str = "call.fetch.handshake_only";
        let nothing_sent = "a handshake sends no request: remove one of the two";
        let given = [
            ("path", path != "/"),
            ("size", self.size.is_some()),
            ("host", self.host.is_some()),
            ("per_connection", self.per_connection.is_some()),
        ];
        for (key, _) in given.into_iter().filter(|(_, given)| *given) {
            problems.add(format!("call.fetch.{key}"), nothing_sent);
        }
        if spec.traceparent == Some(true) {
            problems.add("traceparent", nothing_sent);
        }
        if spec.load.reuse.as_deref() != Some("never") {
            problems.add(
                "load.reuse",
                "each handshake needs a new connection: write \"never\", or leave it out",
            );
        }
        let Some(tls) = &spec.tls else { return };
        if tls.early_data == Some(true) {
            problems.add("tls.early_data", nothing_sent);
        }
        let only_1_2 = tls.versions.as_deref() == Some(&["1.2".to_owned()]);
        if tls.resume == Some(true) && !only_1_2 {
            problems.add(
                HANDSHAKE_ONLY_KEY,
                "TLS 1.3 servers send session tickets after the handshake, when these connections \
                 are already closed: fetch a small file, or offer only TLS 1.2",
            );
        }
    }
}

/// Returns an error for settings that conflict with a mode that makes new connections.
fn check_mode(mode: FetchMode, options: &FetchOptions, spec: &Spec) -> Result<(), UsageError> {
    let name = mode.to_possible_value().map(|v| v.get_name().to_owned());
    let name = name.unwrap_or_default();
    if options.per_connection.is_some() {
        return Err(UsageError {
            message: format!(
                "--per-connection needs connections that are kept, but --mode {name} makes one for every file"
            ),
            help: "remove one of the two: --mode reused --per-connection N fetches N files on each"
                .to_owned(),
        });
    }
    let scheme = spec.target.as_deref().and_then(split_scheme);
    let is_plaintext = scheme.is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("http"));
    if is_plaintext && mode != FetchMode::New {
        return Err(UsageError {
            message: format!("--mode {name} resumes TLS sessions, but an http:// target has none"),
            help: "use https://HOST:PORT/PATH, or --mode new or reused".to_owned(),
        });
    }
    Ok(())
}

fn apply_mode(mode: Option<FetchMode>, spec: &mut Spec) {
    let load = &mut spec.load;
    if let Some(FetchMode::New | FetchMode::Resumed | FetchMode::Both) = mode {
        load.reuse = Some("never".into());
    }
    if load.rate.is_none() && load.steps.is_none() && load.clients.is_none() {
        load.clients = Some(DEFAULT_CLIENTS);
    }
    if mode == Some(FetchMode::Resumed) {
        load.warmup = load.warmup.or(Some(RESUMED_WARMUP_DURATION));
        spec.tls.get_or_insert_default().resume = Some(true);
    }
}

/// Builds a ladder (a comparison of variants) of new and resumed connections, with one axis and exactly as many slices
/// as fit in the duration.
fn new_and_resumed_ladder(spec: &Spec) -> Result<LadderSpec, UsageError> {
    let Some(duration) = spec.load.duration.filter(|_| spec.load.clients.is_some()) else {
        return Err(UsageError {
            message: "--mode both alternates between two kinds of connections, as many as \
                possible for a set time"
                .to_owned(),
            help: "set --duration, and neither --calls nor --rate".to_owned(),
        });
    };
    let rounds = duration.0.div_duration_f64(SLICE_DURATION).ceil().max(1.0) as u32;
    let modes = vec!["new".into(), "resumed".into()];
    Ok(LadderSpec {
        slice: Some(Period(duration.0 / rounds)),
        rounds: Some(rounds),
        axes: BTreeMap::from([("connection".to_owned(), modes)]),
        ..LadderSpec::default()
    })
}
