//! The `[call.hold]` section and the flags of `plimsoll hold`: idle connections, their defaults, and checks of their
//! values.

use std::borrow::Cow;
use std::time::Duration;

use clap::Args;
use plimsoll_model::formats::units::{ByteSize, Period, parse_seconds};
use plimsoll_model::plan::{ArrivalModel, Call, LoadStage};
use plimsoll_model::spec::{
    CallSection, LoadSpec, OptionalPeriod, OwnArrivals, Problems, ResolveContext, Spec, UrlSchemes,
};
use serde::{Deserialize, Serialize};

use super::HoldProtocol;
use crate::interface::protocol_module::{
    EnvLookup, PrepareError, PrepareRequest, PreparedLoad, ProtocolCommand, ProtocolModule,
    UsageError, load_with_driver,
};

/// The default number of connections. With fewer, the processes themselves take more memory than the connections.
const DEFAULT_CONNECTIONS: u32 = 1_000;
const DEFAULT_GREETING_SIZE: ByteSize = ByteSize(16);
/// The default size of a message. It is longer than an empty line, which servers that echo lines need not answer.
const DEFAULT_MESSAGE_SIZE: ByteSize = ByteSize(2);
/// Maximum size of a greeting or message, in bytes: the content of one TLS record (RFC 8446 §5.1), since idle
/// connections carry little.
const MAX_MESSAGE_BYTES: u64 = 1 << 14;
/// The rate of the calls that test all connections at the end of a run without keepalive; a light load for both sides.
const FINAL_CALLS_PER_S: u64 = 5_000;

/// Connections that are opened and held.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[command(next_help_heading = "Call")]
#[serde(deny_unknown_fields, default)]
pub struct HoldOptions {
    /// Send a message, and wait for its echo, this often on every connection; "none": once on each, when the time is
    /// over [default: none].
    #[arg(long, value_name = "TIME", value_parser = OptionalPeriod::parse_seconds)]
    pub keepalive: Option<OptionalPeriod>,

    /// The size of a keepalive message [default: 2B].
    #[arg(long, value_name = "SIZE")]
    pub message: Option<ByteSize>,

    /// Bytes that are echoed before a connection counts as up [default: 16B].
    #[arg(long, value_name = "SIZE")]
    pub greeting: Option<ByteSize>,
}

/// Open connections, hold them, and report the memory of each in client and server.
#[derive(Args, Debug)]
#[command(before_help = "\
Example: 18,000 idle TLS connections, then with two bytes a second on each
  plimsoll serve hold --listen 127.0.0.1:4434 --tls-cert certs/server.crt --tls-key certs/server.key &
  plimsoll hold tls://localhost:4434 --ca certs/ca.crt --connections 18000 --for 10s
  plimsoll hold tls://localhost:4434 --ca certs/ca.crt --connections 18000 --for 10s --keepalive 1s")]
pub struct HoldFlags {
    /// How long to hold the connections once all are up; the same as --duration.
    #[arg(
        id = "for",
        long,
        value_name = "TIME",
        value_parser = parse_seconds,
        conflicts_with = "duration",
        help_heading = "Call"
    )]
    held: Option<Period>,

    #[command(flatten)]
    options: HoldOptions,
}

/// A call on a held connection: a message and its echo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldCall {
    /// The interval between the messages of a connection; `None` sends one, at the end.
    pub keepalive: Option<Duration>,
    /// Bytes that are echoed when a connection has opened.
    pub greeting: usize,
    /// Length of a message, in bytes.
    pub message: usize,
}

impl Call for HoldCall {
    fn protocol_and_call_name(&self) -> (&'static str, Cow<'_, str>) {
        let when = self.keepalive.map_or_else(
            || "once at the end".to_owned(),
            |every| format!("every {}", Period(every)),
        );
        let message = ByteSize(self.message as u64);
        ("hold", format!("{message} {when}").into())
    }

    fn fixed_run_name(&self) -> Option<&'static str> {
        Some("held connections")
    }
}

impl CallSection for HoldOptions {
    const SCHEMES: UrlSchemes = UrlSchemes {
        section: "hold",
        plain: "tcp",
        secured: Some("tls"),
        aliases: None,
        purpose: "to hold connections",
        foreign_schemes: &[("mtls", "tls")],
        ports: None,
        with_path: false,
    };
    const SCHEDULES_OWN_ARRIVALS: bool = true;
    type Call = HoldCall;

    fn apply_defaults(&self, load: &mut LoadSpec) {
        load.connections.get_or_insert(DEFAULT_CONNECTIONS);
    }

    fn resolve(
        &self,
        _: &Spec,
        problems: &mut Problems,
        _: &dyn ResolveContext,
    ) -> Option<HoldCall> {
        let greeting = check_size(
            problems,
            "greeting",
            self.greeting.unwrap_or(DEFAULT_GREETING_SIZE),
        );
        let message = check_size(
            problems,
            "message",
            self.message.unwrap_or(DEFAULT_MESSAGE_SIZE),
        );
        Some(HoldCall {
            keepalive: self.keepalive.and_then(OptionalPeriod::limit),
            greeting: greeting?,
            message: message?,
        })
    }

    /// Schedules the calls of held connections: at the given interval, or once at the end.
    fn schedule_arrivals(&self, load: &LoadSpec, problems: &mut Problems) -> OwnArrivals {
        let before = problems.0.len();
        for (key, given) in [
            ("rate", load.rate.is_some()),
            ("steps", load.steps.is_some()),
            ("clients", load.clients.is_some()),
            ("think", load.think.is_some()),
            ("calls", load.calls.is_some()),
        ] {
            if given {
                problems.add(
                    format!("load.{key}"),
                    "not used with held connections: call.hold.keepalive sets how often each carries a message",
                );
            }
        }
        if load.reuse.as_deref() == Some("never") {
            problems.add(
                "load.reuse",
                "held connections are always kept: leave it out",
            );
        }
        if load.warmup.is_some_and(|warmup| !warmup.0.is_zero()) {
            problems.add(
                "load.warmup",
                "not used with held connections: nothing runs before they are up",
            );
        }
        let spacing = problems.resolve_spacing(load);
        let held = match load.duration {
            Some(period) if !period.0.is_zero() => period.0,
            Some(_) => {
                problems.add(
                    "load.duration",
                    "0 is too short to hold connections: use a duration such as \"10s\"",
                );
                return (None, Vec::new());
            }
            None => {
                problems.add(
                    "load.duration",
                    "missing: how long the connections are held, such as duration = \"10s\"",
                );
                return (None, Vec::new());
            }
        };
        let connections = u64::from(load.connections.unwrap_or(DEFAULT_CONNECTIONS));
        let stages = match self.keepalive {
            Some(OptionalPeriod::After(Period(every))) if every.is_zero() || every > held => {
                problems.add(
                    "call.hold.keepalive",
                    format!(
                        "{} is not between 0 and load.duration ({}): no connection would be used while it is held; use a shorter one, or \"none\"",
                        Period(every),
                        Period(held)
                    ),
                );
                Vec::new()
            }
            Some(OptionalPeriod::After(Period(every))) => {
                let rate = connections as f64 / every.as_secs_f64();
                vec![LoadStage::constant_rate("held", held, rate)]
            }
            None | Some(OptionalPeriod::None) => {
                let tries = Duration::from_nanos(connections * (1_000_000_000 / FINAL_CALLS_PER_S));
                let rate = FINAL_CALLS_PER_S as f64;
                vec![
                    LoadStage::constant_rate("held", held, 0.0),
                    LoadStage::constant_rate("final calls", tries, rate),
                ]
            }
        };
        let fine = problems.0.len() == before;
        (fine.then_some(ArrivalModel::Open(spacing)), stages)
    }

    fn with_defaults(self, call: &HoldCall) -> HoldOptions {
        HoldOptions {
            keepalive: Some(call.keepalive.into()),
            greeting: Some(ByteSize(call.greeting as u64)),
            message: Some(ByteSize(call.message as u64)),
        }
    }
}

fn check_size(problems: &mut Problems, key: &str, size: ByteSize) -> Option<usize> {
    if !(1..=MAX_MESSAGE_BYTES).contains(&size.0) {
        problems.add(
            format!("call.hold.{key}"),
            format!("{size} out of range: use 1B to 16KiB"),
        );
        return None;
    }
    usize::try_from(size.0).ok()
}

impl ProtocolCommand for HoldFlags {
    const TARGET_HELP: &str = "tcp://HOST:PORT (plaintext), tls://HOST:PORT (TLS; mutual with --cert and --key), or unix:/PATH";
    type Section = HoldOptions;

    fn into_section(self, spec: &mut Spec, _: EnvLookup<'_>) -> Result<HoldOptions, UsageError> {
        spec.load.duration = self.held.or(spec.load.duration);
        Ok(self.options)
    }
}

impl ProtocolModule for HoldOptions {
    fn load<'a>(
        asked: PrepareRequest<'a>,
        call: &HoldCall,
    ) -> Result<PreparedLoad<'a>, PrepareError> {
        let protocol = HoldProtocol::new(call.greeting, call.message);
        Ok(load_with_driver(asked, protocol))
    }
}
