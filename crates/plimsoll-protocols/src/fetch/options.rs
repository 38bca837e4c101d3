//! The `[call.fetch]` section and the flags of `plimsoll fetch`: a file over HTTP/1.1, and how the
//! connections for it are made.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, ValueEnum};
use plimsoll_model::plan::{Call, Reuse};
use plimsoll_model::spec::{
    LadderSpec, Limit, LoadSpec, Problems, Schemes, Section, Spec, Surroundings, is_visible,
    made_by_server, path_of, scheme_of,
};
use plimsoll_model::units::{Period, Size};
use serde::{Deserialize, Serialize};

use super::{FetchProtocol, FetchRequest};
use crate::owned::{Asked, Load, Owned, Quick, Unmade, Usage, Variables, driven};

/// Bodies are counted in 32 bits a call.
const MAX_BYTES: u64 = u32::MAX as u64;
/// Bulk is read in larger pieces than else: fewer wake-ups.
const READ_BUFFER: Size = Size(256 << 10);
/// Closed loop, where nothing else is asked: enough to keep a server's core busy.
const CLIENTS: u32 = 16;
/// The first connections of a run that resumes have no ticket yet.
const RESUMED_WARMUP: Period = Period(Duration::from_secs(1));
/// Of the two modes in turn.
const SLICE: Duration = Duration::from_secs(2);

/// One file, fetched again and again.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[command(next_help_heading = "Call")]
#[serde(deny_unknown_fields, default)]
pub struct FetchOptions {
    /// Path and query. Default: the target URL's, or `/`.
    #[arg(skip)]
    pub path: Option<String>,

    /// The body's exact size; another one fails with BODY_LENGTH [default: that of /bytes/SIZE].
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,

    /// The Host to send [default: host:port of the target].
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,

    /// Files that one connection fetches before it is replaced [default: no limit].
    #[arg(long, value_name = "N")]
    pub per_connection: Option<u32>,

    /// The call's deadline, or "none". Default 10s.
    #[arg(skip)]
    pub deadline: Option<Limit>,
}

/// Fetch a file again and again over HTTP/1.1: handshakes, resumption and bulk of a TLS link.
#[derive(Args, Debug)]
#[command(before_help = "\
Example: as many full handshakes as possible, then resumed ones, with 16 in flight
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode new --duration 10s
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode resumed --duration 10s
Example: both in turn, in short slices, so that a machine that changes changes both
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode both --duration 10s
Example: bulk over four kept connections; 200 new connections a second
  plimsoll fetch https://localhost:4433/bytes/64MiB --ca certs/ca.crt --mode reused --fleet 4 --duration 10s
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode new --rate 200/s --duration 10s")]
pub struct FetchFlags {
    /// How connections are made: new (a full handshake for every file), resumed (from a
    /// ticket), both (new and resumed in turn, in slices of 2s), or reused (kept open)
    /// [default: reused].
    #[arg(long, value_name = "MODE", help_heading = "Call")]
    mode: Option<Mode>,

    #[command(flatten)]
    options: FetchOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    New,
    Resumed,
    Both,
    Reused,
}

/// One file fetched over HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchCall {
    /// Path and query (RFC 9112 §3.2.1), with the leading slash.
    pub path: String,
    /// `Host`; `None`: host:port of the target.
    pub host: Option<String>,
    /// Bodies of another size fail with `BODY_LENGTH`. Bytes.
    pub size: Option<u64>,
    /// Files that one connection fetches before it is replaced; `None`: no limit.
    pub per_connection: Option<u32>,
}

impl Call for FetchCall {
    fn names(&self) -> (&'static str, Cow<'_, str>) {
        ("fetch", self.path.as_str().into())
    }

    fn calls_per_connection(&self) -> Option<u32> {
        self.per_connection
    }
}

impl Section for FetchOptions {
    const SCHEMES: Schemes = Schemes {
        section: "fetch",
        plain: "http",
        secured: Some("https"),
        purpose: "to fetch files",
        elsewhere: &[],
        ports: Some((80, 443)),
        with_path: true,
    };
    type Call = FetchCall;

    fn apply_defaults(&self, load: &mut LoadSpec) {
        load.read_buffer.get_or_insert(READ_BUFFER);
    }

    fn resolve(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        _: &dyn Surroundings,
    ) -> Option<FetchCall> {
        let before = problems.0.len();
        let in_url = spec.target.as_deref().and_then(path_of);
        let path = match (self.path.as_deref(), in_url) {
            (Some(path), Some(other)) if path != other && other != "/" => {
                problems.add(
                    "call.fetch.path",
                    format!(
                        "`{path}` is another path than the target's `{other}`: use one of the two"
                    ),
                );
                return None;
            }
            (Some(path), _) | (None, Some(path)) => path,
            (None, None) => "/",
        };
        if !path.starts_with('/') || !is_visible(path) || path.contains('#') {
            problems.add(
                "call.fetch.path",
                format!("`{path}` is not a path: begin with `/`, and write blanks and `#` as %20 and %23"),
            );
        }
        if let Some(host) = self.host.as_ref().filter(|host| !is_visible(host)) {
            problems.add(
                "call.fetch.host",
                format!("`{host}` is not a host or host:port"),
            );
        }
        if self.per_connection == Some(0) {
            problems.add(
                "call.fetch.per_connection",
                "0 files a connection fetch nothing: use 1 or more, or leave it out",
            );
        }
        if self.per_connection.is_some() && spec.load.calls_per_connection.is_some() {
            problems.add(
                "load.calls_per_connection",
                "call.fetch.per_connection says the same: leave one of them out",
            );
        }
        let size = self
            .size
            .map(|size| size.0)
            .or_else(|| made_by_server(path));
        if size.is_some_and(|size| size > MAX_BYTES) {
            problems.add("call.fetch.size", "too large: at most 4294967295B");
        }
        (problems.0.len() == before).then(|| FetchCall {
            path: path.to_owned(),
            host: self.host.clone(),
            size,
            per_connection: self.per_connection,
        })
    }

    fn filled_in(self, call: &FetchCall) -> FetchOptions {
        FetchOptions {
            path: Some(call.path.clone()),
            size: call.size.map(Size),
            deadline: None,
            ..self
        }
    }
}

impl Quick for FetchFlags {
    const TARGET: &str = "http://HOST:PORT/PATH (plaintext), https://HOST:PORT/PATH (TLS 1.3), or unix:/SOCKET:/PATH";
    type Section = FetchOptions;

    fn section(self, spec: &mut Spec, _: Variables<'_>) -> Result<FetchOptions, Usage> {
        if let Some(mode) = self.mode.filter(|mode| *mode != Mode::Reused) {
            check_mode(mode, &self.options, spec)?;
        }
        apply_mode(self.mode, spec);
        if self.mode == Some(Mode::Both) {
            spec.ladder = Some(both(spec)?);
        }
        Ok(self.options)
    }
}

impl Owned for FetchOptions {
    fn load<'a>(asked: Asked<'a>, call: &FetchCall) -> Result<Load<'a>, Unmade> {
        let authority = asked.plan.target.authority();
        let protocol = FetchProtocol::new(&FetchRequest {
            path: &call.path,
            host: call.host.as_deref().unwrap_or(&authority),
            size: call.size,
            per_connection: match asked.plan.load.reuse {
                Reuse::Never => Some(1),
                Reuse::Always => call.per_connection,
            },
        });
        Ok(driven(asked, protocol))
    }
}

/// What is asked for must be what a mode that makes new connections can do.
fn check_mode(mode: Mode, options: &FetchOptions, spec: &Spec) -> Result<(), Usage> {
    let name = mode.to_possible_value().map(|v| v.get_name().to_owned());
    let name = name.unwrap_or_default();
    if options.per_connection.is_some() {
        return Err(Usage {
            message: format!(
                "--per-connection goes with connections that are kept, and --mode {name} makes one for every file"
            ),
            help:
                "leave one of the two out: --mode reused --per-connection N fetches N files on each"
                    .to_owned(),
        });
    }
    let scheme = spec.target.as_deref().and_then(scheme_of);
    let is_plaintext = scheme.is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("http"));
    if is_plaintext && mode != Mode::New {
        return Err(Usage {
            message: format!("--mode {name} resumes TLS sessions, and an http:// target has none"),
            help: "use https://HOST:PORT/PATH, or --mode new or reused".to_owned(),
        });
    }
    Ok(())
}

fn apply_mode(mode: Option<Mode>, spec: &mut Spec) {
    let load = &mut spec.load;
    if let Some(Mode::New | Mode::Resumed | Mode::Both) = mode {
        load.reuse = Some("never".into());
    }
    if load.rate.is_none() && load.steps.is_none() && load.clients.is_none() {
        load.clients = Some(CLIENTS);
    }
    // HTTP/1.1 carries one file at a time: clients that share a connection only queue.
    if load.reuse.as_deref() != Some("never") && load.connections.is_none() {
        load.connections = load.clients;
    }
    if mode == Some(Mode::Resumed) {
        load.warmup = load.warmup.or(Some(RESUMED_WARMUP));
        spec.tls.get_or_insert_default().resume = Some(true);
    }
}

/// New and resumed in turn: a ladder with one axis, of as many slices as it takes, which last just so long.
fn both(spec: &Spec) -> Result<LadderSpec, Usage> {
    let Some(duration) = spec.load.duration.filter(|_| spec.load.clients.is_some()) else {
        return Err(Usage {
            message: "--mode both measures two kinds of connections in turn, as many as possible for a time".to_owned(),
            help: "give --duration, and neither --calls nor --rate".to_owned(),
        });
    };
    let rounds = duration.0.div_duration_f64(SLICE).ceil().max(1.0) as u32;
    let modes = vec!["new".into(), "resumed".into()];
    Ok(LadderSpec {
        slice: Some(Period(duration.0 / rounds)),
        rounds: Some(rounds),
        axes: BTreeMap::from([("connection".to_owned(), modes)]),
        ..LadderSpec::default()
    })
}
