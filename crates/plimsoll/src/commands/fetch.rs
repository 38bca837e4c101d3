//! `plimsoll fetch`: files over HTTP/1.1, to measure TLS itself.

use clap::{Args, ValueEnum};
use plimsoll_model::spec::{CallSpec, FetchSpec, LadderSpec, Spec, TlsSpec, scheme_of};
use plimsoll_model::units::{Period, Size};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::arguments::Origins;
use crate::climbing::Asked;
use crate::commands::sweep;
use crate::environment::Environment;
use crate::execution::{OutputFlags, Process};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::problems::Source;
use crate::quick;

/// Closed loop, where nothing else is asked: enough to keep a server's core busy.
const CLIENTS: u32 = 16;
/// The first connections of a run that resumes have no ticket yet.
const RESUMED_WARMUP: Period = Period(Duration::from_secs(1));
/// Of the two modes in turn.
const SLICE: Duration = Duration::from_secs(2);

/// Fetch a file again and again over HTTP/1.1: handshakes, resumption and bulk of a TLS link.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: as many full handshakes as possible, then resumed ones, with 16 in flight
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode new --duration 10s
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode resumed --duration 10s
Example: both in turn, in short slices, so that a machine that changes changes both
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode both --duration 10s
Example: bulk over four kept connections; 200 new connections a second
  plimsoll fetch https://localhost:4433/bytes/64MiB --ca certs/ca.crt --mode reused --fleet 4 --duration 10s
  plimsoll fetch https://localhost:4433/bytes/1KiB --ca certs/ca.crt --mode new --rate 200/s --duration 10s",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    /// http://HOST:PORT/PATH (plaintext), https://HOST:PORT/PATH (TLS 1.3), or unix:/SOCKET:/PATH.
    #[arg(value_name = "URL", env = "PLIMSOLL_TARGET")]
    target: Option<String>,

    /// How connections are made: new (a full handshake for every file), resumed (from a
    /// ticket), both (new and resumed in turn, in slices of 2s), or reused (kept open)
    /// [default: reused].
    #[arg(long, value_name = "MODE", help_heading = "Call")]
    mode: Option<Mode>,

    /// The body's exact size; another one is a failure [default: that of /bytes/SIZE].
    #[arg(long, value_name = "SIZE", help_heading = "Call")]
    size: Option<Size>,

    /// The Host to send [default: host:port of the target].
    #[arg(long, value_name = "HOST", help_heading = "Call")]
    host: Option<String>,

    /// Files that one connection fetches before it is replaced [default: no limit].
    #[arg(long, value_name = "N", help_heading = "Call")]
    per_connection: Option<u32>,

    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    pub(crate) output: OutputFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    New,
    Resumed,
    Both,
    Reused,
}

pub(crate) fn execute(
    arguments: &Arguments,
    origins: &Origins,
    environment: &Environment,
    process: &Process,
) -> Result<Exit, Failure> {
    let call = CallSpec {
        fetch: Some(FetchSpec {
            size: arguments.size,
            host: arguments.host.clone(),
            per_connection: arguments.per_connection,
            ..FetchSpec::default()
        }),
        ..CallSpec::default()
    };
    let mut spec = quick::spec(arguments.target.as_deref(), call, &arguments.load, origins)?;
    arguments.check_mode(&spec)?;
    arguments.apply_mode(&mut spec);
    if arguments.mode == Some(Mode::Both) {
        return arguments.both(spec, environment, process);
    }
    quick::run(&spec, &arguments.output, environment, process)
}

impl Arguments {
    /// New and resumed in turn: a sweep with one axis.
    fn both(
        &self,
        mut spec: Spec,
        environment: &Environment,
        process: &Process,
    ) -> Result<Exit, Failure> {
        let Some(duration) = spec.load.duration.filter(|_| spec.load.clients.is_some()) else {
            return Err(Failure::usage(
                "--mode both measures two kinds of connections in turn, as many as possible for a time",
                "give --duration, and neither --calls nor --rate",
            ));
        };
        // As many slices as it takes, of a length that makes them last just so long.
        let rounds = duration.0.div_duration_f64(SLICE).ceil().max(1.0) as u32;
        let slice = duration.0 / rounds;
        spec.ladder = Some(LadderSpec {
            slice: Some(Period(slice)),
            rounds: Some(rounds),
            axes: BTreeMap::from([(
                "connection".to_owned(),
                vec!["new".into(), "resumed".into()],
            )]),
            ..LadderSpec::default()
        });
        if self.output.save_or_show(&spec)? {
            return Ok(Exit::Done);
        }
        let asked = Asked {
            kind: "both",
            rounds: None,
            default_rounds: |_| 1,
            round_line: sweep::round_line,
            slice: None,
            turn: None,
            parts: None,
            resolution: None,
            budget: None,
            gates: &[],
            out: self.output.out(),
            over_shards: false,
            team: None,
        };
        sweep::measure(
            &spec,
            &asked,
            environment,
            &Source::Flags,
            process,
            self.output.screen(),
        )
    }

    /// What is asked for must be what the mode can do.
    fn check_mode(&self, spec: &Spec) -> Result<(), Failure> {
        let Some(mode) = self.mode.filter(|mode| *mode != Mode::Reused) else {
            return Ok(());
        };
        let name = mode.to_possible_value().map(|v| v.get_name().to_owned());
        let name = name.unwrap_or_default();
        if self.per_connection.is_some() {
            return Err(Failure::usage(
                format!(
                    "--per-connection goes with connections that are kept, and --mode {name} makes one for every file"
                ),
                "leave one of the two out: --mode reused --per-connection N fetches N files on each",
            ));
        }
        let plaintext = spec
            .target
            .as_deref()
            .and_then(scheme_of)
            .is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("http"));
        if plaintext && mode != Mode::New {
            return Err(Failure::usage(
                format!("--mode {name} resumes TLS sessions, and an http:// target has none"),
                "use https://HOST:PORT/PATH, or --mode new or reused",
            ));
        }
        Ok(())
    }

    fn apply_mode(&self, spec: &mut Spec) {
        let load = &mut spec.load;
        if let Some(Mode::New | Mode::Resumed | Mode::Both) = self.mode {
            load.reuse = Some("never".into());
        }
        if load.rate.is_none() && load.steps.is_none() && load.clients.is_none() {
            load.clients = Some(CLIENTS);
        }
        // HTTP/1.1 carries one file at a time: clients that share a connection only queue.
        let kept = load
            .reuse
            .as_ref()
            .is_none_or(|reuse| reuse.as_str() != "never");
        if kept && load.connections.is_none() {
            load.connections = load.clients;
        }
        if self.mode == Some(Mode::Resumed) {
            load.warmup = load.warmup.or(Some(RESUMED_WARMUP));
            let tls = spec.tls.take().unwrap_or_default();
            spec.tls = Some(TlsSpec {
                resume: Some(true),
                ..tls
            });
        }
    }
}
