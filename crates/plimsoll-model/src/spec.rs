//! The user's input: a plan file, or the equivalent flags.
//!
//! A [`Spec`] has exactly the keys of the TOML, without defaults. [`fn@read`] parses a text, and its errors contain the
//! position in the file. [`fn@resolve`] converts a spec to a [`crate::Plan`]; [`Spec::with_defaults`] adds the plan's
//! defaults to the spec, for the TOML file in the run directory. Paths in a spec are relative to the current directory.
//! Where a section also has flags, the types define both: the first paragraph above a key is the help of its flag, and
//! further paragraphs appear only in the documentation of plans.
//!
//! This file is long because the sections that every plan can have are defined together.

mod address_overrides;
mod arrivals;
mod call;
mod context;
mod field_value;
mod file_calls;
mod files;
mod find;
mod flag_overrides;
mod goodput;
mod ladder;
mod lane_table;
mod lanes;
mod load;
mod metadata;
mod objective;
mod optional_period;
mod problem;
mod protocol;
mod proxy;
mod read;
mod replay;
mod resolve;
mod rows;
mod saved_plan;
mod section_keys;
mod spacing;
mod steps;
mod target;
mod tls;
mod watch;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::formats::units::{self, ByteSize, Period, Rate};

pub use crate::formats::suggest::suggest;
pub use address_overrides::set_target_addresses;
pub use call::CallSpec;
pub use context::ResolveContext;
pub use field_value::MetadataSpec;
pub use file_calls::generated_file_size;
pub use find::{FindSpec, UserRange};
pub use flag_overrides::{apply_flags, apply_flags_to_optional};
pub use goodput::GoodputSpec;
pub use ladder::{
    CustomProxy, LadderSpec, RungNetwork, RungRoute, RungSecurity, RungSpec, RungTable, TlsLibrary,
    UpstreamTls, register_proxies, renamed_keys,
};
pub use lane_table::LaneTable;
pub use lanes::LaneSpec;
pub use metadata::{CallIndependentValue, CallMetadata, FieldNameRules, MetadataScope, PlanRows};
pub use optional_period::OptionalPeriod;
pub use problem::{Problem, Problems};
pub use protocol::{CallProtocol, CallSection, OwnArrivals, UrlSchemes, register, sections};
pub use proxy::parse_proxy;
pub use read::{read, set_spans};
pub use resolve::{
    DEFAULT_DEADLINE, is_valid_field_value, is_visible_ascii, resolve, resolve_target_url,
};
pub use saved_plan::plan_secrets;
pub use section_keys::struct_keys;
pub use spacing::{ArrivalsSpec, ArrivalsTable};
pub use steps::{URL_KEYS, step_name};
pub use target::{
    call_path, is_bare_unix_socket, is_unix_socket, parse_target, scheme_alias, schemes_for_url,
    section_for_url, split_scheme,
};
pub use tls::{TlsSpec, find_group, find_suite, find_tls_version, resolve_trust};
pub use watch::WatchSpec;
pub use wire::{ProxiedCalls, WireFormat};

/// A plan as the user wrote it, without defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// The run's name. Default: the method and the kind of load.
    pub name: Option<String>,
    /// `grpc://host:port` (plaintext) or `grpcs://host:port` (TLS); for SOFARPC
    /// `sofa://` or `sofas://`, for files `http://` or `https://`, for connections that are
    /// held `tcp://` or `tls://`.
    pub target: Option<String>,
    /// The seed of random choices. Default 1.
    pub seed: Option<u64>,
    /// Log every call in the run directory. Default false.
    pub requests: Option<bool>,
    /// Send each call's own `traceparent` with its request (W3C Trace Context, sampled), and list the slowest calls
    /// with their trace ids. Default false.
    pub traceparent: Option<bool>,
    /// Keep a random sample of this many calls, at most 1000, for [spans](traces.md#spans); the seed decides which.
    /// Needs `traceparent`. Default 0.
    pub span_sample: Option<u32>,
    /// Labels of the run, such as `commit = "1a2b3c4"`: they have no effect, and are shown with the run.
    #[serde(skip_serializing_if = "crate::formats::labels::Labels::is_empty")]
    pub labels: crate::formats::labels::Labels,
    /// How the link is secured.
    pub tls: Option<TlsSpec>,
    /// A file of rows, for data that varies from call to call.
    pub rows: Option<RowsSpec>,
    /// The call: one section, named after its protocol.
    pub call: CallSpec,
    /// The steps of a journey: requests that each user makes one after another. When the plan is read, they are moved
    /// to the section of `call`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<toml::Table>,
    /// How the load arrives.
    pub load: LoadSpec,
    /// The limits that the target must meet: `"p99" = "< 10ms"`, `"errors" = "< 0.1%"`, for one stage
    /// `"p99 at step 2" = "< 20ms"`. Objectives for one step of a journey are in its `[steps.objective]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub objective: BTreeMap<String, String>,
    /// The server process to watch.
    pub watch: Option<WatchSpec>,
    /// How `plimsoll find` searches for the load line. Other commands ignore it.
    pub find: Option<FindSpec>,
    /// The variants that `plimsoll ladder` measures. Other commands ignore it.
    pub ladder: Option<LadderSpec>,
    /// Several kinds of calls in one run, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lanes: BTreeMap<String, LaneTable>,
}

impl Spec {
    /// Returns the objectives that can be parsed.
    pub fn objectives(&self) -> Vec<crate::plan::Objective> {
        objective::written_objectives(self)
            .filter_map(|written| written.parse().ok())
            .collect()
    }

    /// Returns the time after which a call fails; `None`: calls may take any time.
    pub fn deadline(&self) -> Option<Duration> {
        match self.explicit_deadline() {
            Some(given) => given.limit(),
            None if self.has_fixed_call_count() => None,
            None => Some(resolve::DEFAULT_DEADLINE),
        }
    }

    /// Returns how long clients with a fixed number of calls and no deadline wait until any answer arrives.
    ///
    /// Without a deadline, calls may queue in the target for any time, but a target that stops answering is noticed.
    pub fn stall_timeout(&self) -> Option<Duration> {
        let applies = self.explicit_deadline().is_none() && self.has_fixed_call_count();
        applies.then_some(resolve::DEFAULT_DEADLINE)
    }

    fn explicit_deadline(&self) -> Option<OptionalPeriod> {
        let (_, of_call) = self.call.deadline();
        let mut load = self.load.clone();
        for (protocol, section) in self.call.present_sections() {
            (protocol.apply_defaults)(section, &mut load);
        }
        load.deadline.or(of_call)
    }

    /// Returns whether this is a closed loop that ends after a number of calls rather than after a time.
    fn has_fixed_call_count(&self) -> bool {
        let load = &self.load;
        load.clients.is_some() && load.calls.is_some() && load.duration.is_none()
    }

    /// Returns whether TLS sessions are to be resumed from tickets.
    pub fn resumes_tls(&self) -> bool {
        self.tls.as_ref().and_then(|tls| tls.resume) == Some(true)
    }
}

/// A file of rows: messages and other data refer to its columns as `{{row.NAME}}`.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RowsSpec {
    /// A file of rows for {{row.NAME}} in the message or query: CSV with a line of names, or one JSON object per line.
    #[arg(id = "rows", long, value_name = "FILE", help_heading = "Call")]
    pub file: Option<PathBuf>,
    /// Which row each call uses: round-robin, random, unique (none twice) or client [default: round-robin].
    #[arg(
        id = "rows_order",
        long = "rows-order",
        value_name = "ORDER",
        help_heading = "Call"
    )]
    pub order: Option<String>,
}

/// How the load arrives.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Load", next_display_order = 2000)]
pub struct LoadSpec {
    /// Calls per second, whatever the target does (open loop): "1000/s".
    ///
    /// In a plan also `{ from = "0/s", to = "1000/s", over = "30s" }`.
    #[arg(long, value_parser = units::parse_per_second::<RateSpec>)]
    pub rate: Option<RateSpec>,
    /// Open loop: one step after another.
    #[arg(
        help = "Open loop, in steps: TIME:RATE, such as 10s:100/s, or TIME:FROM..TO, whose rate changes evenly; repeatable, one step after another",
        id = "steps",
        long = "step",
        value_name = "TIME:RATE",
        display_order = 2000
    )]
    pub steps: Option<Vec<StepSpec>>,
    /// How arrivals are spaced: constant, poisson, gamma=SHAPE (less than 1: in bursts), or file=FILE (a file of
    /// times).
    ///
    /// Open loop only. In a plan also `{ gamma = 0.25 }` or `{ file = "times.txt" }`. Default constant.
    #[arg(long, value_name = "SPACING")]
    pub arrivals: Option<ArrivalsSpec>,
    /// Open loop: at most this many calls in flight at once; further calls wait, or are shed (--on-full).
    ///
    /// Default: no limit.
    #[arg(long, value_name = "N")]
    pub max_in_flight: Option<u32>,
    /// What happens to calls beyond --max-in-flight: wait, or shed (they fail with NOT_SENT).
    ///
    /// Default wait.
    #[arg(long, value_name = "wait|shed")]
    pub on_full: Option<String>,
    /// Replay the arrivals of a log, trace or recording: an access log, HAR, CSV or JSON lines with times, or one time
    /// per line.
    ///
    /// It replaces a rate. The values of a line are the row of its call: `{{row.path}}`.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// The format of the replayed file: times, csv, jsonl, access, w3c or har [default: detected].
    #[arg(long, value_name = "FORMAT")]
    pub replay_format: Option<String>,
    /// The column of the replayed file that holds times [default: one with a usual name].
    #[arg(long, value_name = "NAME")]
    pub time_column: Option<String>,
    /// Replay speed: "2x" is twice as fast, less than 1 is slower.
    ///
    /// Default 1x.
    #[arg(long, value_name = "FACTOR")]
    pub speed: Option<String>,
    /// Replay a part of the recorded time: "14:00..14:10", "10m..20m" from its beginning, or two dates.
    ///
    /// Default all.
    #[arg(long, value_name = "FROM..TO")]
    pub window: Option<String>,
    /// Replay lines with these values: `"method=GET"`, `"path=/api/*"`, `"status!=5*"`.
    #[arg(
        help = "Replay lines with this value, such as method=GET, path=/api/* or status!=5*; repeatable",
        long,
        value_name = "COLUMN=VALUE"
    )]
    pub filter: Option<Vec<String>>,
    /// Replay this share of the recorded clients, each with all of its lines: "10%".
    ///
    /// If no column is named client or user, it is the share of lines. Default all.
    #[arg(long, value_name = "PERCENT")]
    pub sample: Option<String>,
    /// Restart the replayed file when it ends, until the duration or the number of calls is reached.
    ///
    /// Default false.
    #[serde(rename = "loop")]
    #[arg(id = "loop", long = "loop", action = clap::ArgAction::SetTrue)]
    pub repeat: Option<bool>,
    /// The checksum of the replayed arrivals and rows, written by saved plans: the load is refused if the file has
    /// changed. Default: not checked.
    #[arg(skip)]
    pub checksum: Option<String>,
    /// The number of clients, each waiting for its answer before its next call (closed loop).
    #[arg(long, alias = "concurrency", value_name = "N")]
    pub clients: Option<u32>,
    /// A client's pause between its calls: "10ms".
    ///
    /// Default none.
    #[arg(long, value_name = "TIME", value_parser = units::parse_seconds)]
    pub think: Option<Period>,
    /// Connections kept open [default: 1; over HTTP/1.1 and WebSockets one for each of the clients].
    #[arg(short = 'c', long, value_name = "N")]
    pub connections: Option<u32>,
    /// `"always"` (the default), or `"never"`: a new connection for every call.
    #[arg(skip)]
    pub reuse: Option<String>,
    /// Warm up for this long first, excluded from the totals: "5s".
    ///
    /// Default none.
    // The flag is listed after --rate-precision.
    #[arg(long, value_name = "TIME", display_order = 2008, value_parser = units::parse_seconds)]
    pub warmup: Option<Period>,
    /// How long to measure: "30s".
    ///
    /// The warm-up's time is not part of it.
    #[arg(short = 'z', long, value_name = "TIME", value_parser = units::parse_seconds)]
    pub duration: Option<Period>,
    /// Stop after this many calls, not counting the warm-up's.
    #[arg(short = 'n', long, aliases = ["total", "count"], value_name = "N")]
    pub calls: Option<u64>,
    /// Closed loop: stop as soon as the rate is known this precisely (`"1%"`: half the width of its 95 % confidence
    /// interval), at the latest after `duration`. Default: never before.
    #[arg(
        help = "Closed loop: stop as soon as the rate is known this precisely, at the latest after --duration: \"1%\" (half the width of its 95 % confidence interval)",
        id = "rate_precision",
        long = "rate-precision",
        value_name = "PERCENT"
    )]
    pub precision: Option<String>,
    /// A call fails when its answer takes longer; "none" to wait for ever [default: 10s].
    ///
    /// With clients and a fixed number of calls there is no default deadline as long as answers arrive. When none has
    /// arrived for 10 s, the waiting calls fail.
    ///
    /// The section of the call may contain this key instead.
    #[arg(long, value_name = "TIME", value_parser = OptionalPeriod::parse_seconds)]
    pub deadline: Option<OptionalPeriod>,
    /// Time for TCP, TLS and the first frames together [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = units::parse_seconds)]
    pub connect_timeout: Option<Period>,
    /// New connections per second while connecting [default: as fast as they are established].
    #[arg(long, value_name = "RATE", value_parser = units::parse_per_second::<Rate>)]
    pub connect_rate: Option<Rate>,
    /// Replace a connection when it has been open for this long: "30s".
    ///
    /// Default: it is kept.
    #[arg(long, value_name = "TIME", value_parser = units::parse_seconds)]
    pub connection_lifetime: Option<Period>,
    /// Replace a connection after this many calls.
    ///
    /// Default: it is kept.
    #[arg(long, value_name = "N")]
    pub calls_per_connection: Option<u32>,
    /// Addresses of names, used instead of those that the names resolve to: `"NAME:PORT:ADDRESS,ADDRESS"`.
    #[arg(
        help = "Addresses of the target's name, NAME:PORT:ADDRESS,ADDRESS, in place of those that it resolves to; repeatable",
        long,
        value_name = "NAME:PORT:ADDRESSES"
    )]
    pub resolve: Option<Vec<String>>,
    /// Connect through a proxy: http://HOST:PORT (CONNECT) or socks5://HOST:PORT; with $NAME@ before the host the
    /// variable NAME holds USER:PASSWORD.
    ///
    /// The proxy looks up the target's name.
    #[arg(long, value_name = "URL")]
    pub proxy: Option<String>,
    /// How long a name's addresses are used before it is looked up again [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = units::parse_seconds)]
    pub resolve_interval: Option<Period>,
    /// Calls that the server did not process count as failed. Otherwise they are sent once more, on another connection:
    /// over HTTP/2 after GOAWAY and REFUSED_STREAM, over HTTP/1.1 if an idle connection was closed just when a request
    /// with an idempotent method was sent.
    ///
    /// Default false.
    #[arg(
        help = "Count calls that the server did not process (GOAWAY, REFUSED_STREAM, a closed idle connection) as failed \
                [default: they are sent once more]",
        long,
        action = clap::ArgAction::SetTrue
    )]
    pub no_retry: Option<bool>,
    /// How long calls in flight may take at the end [default: the deadline, at most 10s].
    ///
    /// With clients and a fixed number of calls, the load ends when all calls are answered.
    #[arg(long, value_name = "TIME", value_parser = units::parse_seconds)]
    pub drain: Option<Period>,
    /// Stop as soon as an objective can no longer be met, but not before this time: "5s".
    ///
    /// Default: never.
    #[arg(long, value_name = "TIME", value_parser = units::parse_seconds)]
    pub abort_after: Option<Period>,
    /// Processes that share the load [default: as many as the limit of descriptors requires].
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub processes: Option<u16>,
    /// Threads that generate load, in each process [default: as many as are useful].
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub workers: Option<u16>,
    /// Busy-wait this long before an arrival, for precision; "0s" saves CPU [default: 50us; with a tick 0s].
    #[arg(long, value_name = "TIME", help_heading = "Run")]
    pub spin: Option<Period>,
    /// Send calls that are due within TIME together, at its end: fewer wake-ups, and so less CPU per call. Response
    /// times still count from when each was due [default: each is sent when it is due].
    ///
    /// Open loop only.
    #[arg(long, value_name = "TIME", help_heading = "Run")]
    pub tick: Option<Period>,
    /// How much to read from a socket at a time [default: 128KiB; to fetch files 256KiB].
    #[arg(long, value_name = "SIZE", help_heading = "Run")]
    pub read_buffer: Option<ByteSize>,
    /// Local addresses to connect from, in turn: `"127.0.0.2"` or `"127.0.0.2-127.0.0.9"`.
    #[arg(
        help = "Local address to connect from, or a range 127.0.0.2-127.0.0.9; repeatable",
        id = "source",
        long,
        value_name = "ADDRESS",
        help_heading = "Run"
    )]
    pub source_addresses: Option<Vec<String>>,
}

/// A constant rate, or a linear change from one to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum RateSpec {
    /// A constant rate.
    Steady(Rate),
    /// A linear change.
    Ramp(RampSpec),
}

/// A rate that changes evenly. A steady rate is a value: `rate = "1000/s"` in `[load]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RampSpec {
    /// The rate at the start.
    pub from: Rate,
    /// The rate at the end of `over`.
    pub to: Rate,
    /// How long the change takes. Afterwards the rate stays at `to` for the rest of the duration.
    pub over: Period,
}

impl std::str::FromStr for RateSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<RateSpec, Self::Err> {
        text.parse().map(RateSpec::Steady)
    }
}

impl<'de> Deserialize<'de> for RateSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RateSpec, D::Error> {
        struct RateVisitor;
        impl<'de> Visitor<'de> for RateVisitor {
            type Value = RateSpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate, such as \"1000/s\", or { from = …, to = …, over = … }")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<RateSpec, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<RateSpec, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<RateSpec, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<RateSpec, M::Error> {
                RampSpec::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(RateSpec::Ramp)
            }
        }
        deserializer.deserialize_any(RateVisitor)
    }
}

/// One step: `{ rate = "500/s", for = "10s" }` or `{ from = …, to = …, for = … }`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StepSpec {
    /// The name in objectives and reports. Default: `step 1` and so on.
    pub name: Option<String>,
    /// The rate during the whole step.
    pub rate: Option<Rate>,
    /// In place of `rate`: the rate at the start of an even change.
    pub from: Option<Rate>,
    /// The rate at the step's end.
    pub to: Option<Rate>,
    /// How long the step lasts.
    #[serde(rename = "for")]
    pub length: Option<Period>,
}

impl std::str::FromStr for StepSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<StepSpec, Self::Err> {
        let (length, rate) = text
            .split_once(':')
            .ok_or("write TIME:RATE, such as 10s:100/s, or TIME:FROM..TO")?;
        let step = StepSpec {
            length: Some(units::parse_seconds(length)?),
            ..StepSpec::default()
        };
        Ok(match rate.split_once("..") {
            None => StepSpec {
                rate: Some(units::parse_per_second(rate)?),
                ..step
            },
            Some((from, to)) => StepSpec {
                from: Some(units::parse_per_second(from)?),
                to: Some(units::parse_per_second(to)?),
                ..step
            },
        })
    }
}
