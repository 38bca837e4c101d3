//! `plimsoll hold`: connections that rest, and what they cost in memory.

use clap::Args;
use plimsoll_model::spec::{CallSpec, HoldSpec, Limit};
use plimsoll_model::units::{Period, Size};

use crate::arguments::Origins;
use crate::environment::Environment;
use crate::execution::{OutputFlags, Process};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::quick;

/// Open connections, hold them, and report what each costs both ends in memory.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: 18,000 TLS connections at rest, then with a byte a second on each
  plimsoll serve hold --listen 127.0.0.1:4434 --tls-cert certs/server.crt --tls-key certs/server.key &
  plimsoll hold tls://localhost:4434 --ca certs/ca.crt --connections 18000 --for 10s
  plimsoll hold tls://localhost:4434 --ca certs/ca.crt --connections 18000 --for 10s --keepalive 1s",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    /// tcp://HOST:PORT (plaintext), tls://HOST:PORT (TLS 1.3; mutual with --cert and --key), or unix:/PATH.
    #[arg(value_name = "URL", env = "PLIMSOLL_TARGET")]
    target: Option<String>,

    /// How long to hold the connections once all are up; the same as --duration.
    #[arg(
        id = "for",
        long,
        env = "PLIMSOLL_FOR",
        value_name = "TIME",
        conflicts_with = "duration",
        help_heading = "Call"
    )]
    held: Option<Period>,

    /// A message and its echo on every connection as often, or "none": on each once, when
    /// the time is over [default: none].
    #[arg(
        long,
        env = "PLIMSOLL_KEEPALIVE",
        value_name = "TIME",
        help_heading = "Call"
    )]
    keepalive: Option<Limit>,

    /// The size of that message [default: 1B].
    #[arg(
        long,
        env = "PLIMSOLL_MESSAGE",
        value_name = "SIZE",
        help_heading = "Call"
    )]
    message: Option<Size>,

    /// Bytes that are echoed before a connection counts as up [default: 16B].
    #[arg(
        long,
        env = "PLIMSOLL_GREETING",
        value_name = "SIZE",
        help_heading = "Call"
    )]
    greeting: Option<Size>,

    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    pub(crate) output: OutputFlags,
}

pub(crate) fn execute(
    arguments: &Arguments,
    origins: &Origins,
    environment: &Environment,
    process: &Process,
) -> Result<Exit, Failure> {
    let call = CallSpec {
        hold: Some(HoldSpec {
            keepalive: arguments.keepalive,
            greeting: arguments.greeting,
            message: arguments.message,
        }),
        ..CallSpec::default()
    };
    let mut spec = quick::spec(arguments.target.as_deref(), call, &arguments.load, origins)?;
    spec.load.duration = arguments.held.or(spec.load.duration);
    quick::run(&spec, &arguments.output, environment, process)
}
