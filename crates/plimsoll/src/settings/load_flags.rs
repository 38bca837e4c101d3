//! Flags of every command that generates load. Applied to a plan, they override its keys.
//!
//! Most flags are plan keys, and are defined there. This module has the flags that set several keys, and decides how
//! one key affects others.

use std::cmp::Ordering;

use clap::Args;
use plimsoll_model::formats::labels;
use plimsoll_model::formats::units::Rate;
use plimsoll_model::spec::{
    LoadSpec, RateSpec, Spec, TlsSpec, WatchSpec, apply_flags, apply_flags_to_optional,
};
use plimsoll_protocols::interface::flags::TlsFlags;

use crate::failure::Failure;
use crate::settings::environment::STEADY_RUN_ALIASES;
use crate::settings::origins::FlagOrigins;
use crate::settings::problems;

/// Flags of every command that generates load. Their display orders put `--cold` and `--fleet` after `--connections`,
/// and `--objective` after `--drain`. The help of a flag that is a plan key is the first paragraph of the key's
/// description.
#[derive(Debug, Default, Args)]
#[command(mut_args(|arg| arg.long_help(None::<&str>)))]
pub(crate) struct LoadFlags {
    /// Open a new connection for every call; without --rate, one call per second.
    #[arg(
        long,
        conflicts_with_all = ["connection_lifetime", "calls_per_connection"],
        display_order = 2005,
        help_heading = "Load"
    )]
    cold: bool,

    /// N clients, each with its own connection: short for --clients N --connections N.
    #[arg(
        long,
        alias = "no-of-clients",
        value_name = "N",
        conflicts_with_all = ["cold", "clients"],
        display_order = 2005,
        help_heading = "Load"
    )]
    pub(crate) fleet: Option<u32>,

    /// An objective, such as "p99 < 10ms", "errors < 0.1%", "ttft.p99 < 1s", "resumed >= 100%"
    /// or, of one stage, "p99 at step 2 < 20ms"; repeatable.
    #[arg(
        long,
        value_name = "OBJECTIVE",
        display_order = 2018,
        help_heading = "Load"
    )]
    objective: Vec<String>,

    #[command(flatten)]
    identity: TlsFlags,

    #[command(flatten)]
    tls: TlsSpec,

    /// The run's name.
    #[arg(long, help_heading = "Run")]
    name: Option<String>,

    /// A label of the run, such as commit=1a2b3c4; repeatable.
    #[arg(long = "label", value_name = "NAME=VALUE", help_heading = "Run")]
    labels: Vec<String>,

    /// The seed of random choices [default: 1].
    #[arg(long, value_name = "N", help_heading = "Run")]
    seed: Option<u64>,

    /// Log every call in the run directory.
    #[arg(long, help_heading = "Run")]
    requests: bool,

    /// Send a unique traceparent with each request (W3C Trace Context, sampled), and list the slowest calls with their
    /// trace ids.
    #[arg(long, help_heading = "Run")]
    traceparent: bool,

    /// Keep a random sample of this many calls, at most 1000, for --spans, in addition to the slowest calls. Needs
    /// --traceparent.
    #[arg(long, value_name = "N", help_heading = "Run")]
    span_sample: Option<u32>,

    /// Watch CPU and memory of the process PID and of its children [default: the process that listens on the target's
    /// port].
    #[arg(long, value_name = "PID", help_heading = "Run")]
    pid: Option<u32>,

    /// Watch the process that listens on this port of this machine, or the control group of a unit or container
    /// (cgroup:nginx); "off": watch nothing.
    #[arg(
        long,
        value_name = "PORT",
        conflicts_with = "pid",
        help_heading = "Run"
    )]
    watch: Option<String>,

    #[command(flatten)]
    watched: WatchSpec,

    #[command(flatten)]
    pub(crate) keys: LoadSpec,
}

impl LoadFlags {
    /// Applies the flags to `spec`.
    ///
    /// # Errors
    /// When a flag's value is invalid.
    pub(crate) fn apply(&self, spec: &mut Spec, origins: &FlagOrigins) -> Result<(), Failure> {
        self.apply_load(spec, origins)?;
        self.apply_tls(spec, origins)?;
        spec.name = self.name.clone().or(spec.name.take());
        for typed in &self.labels {
            let (name, value) = labels::parse_label(typed).ok_or_else(|| {
                Failure::usage(
                    format_args!("--label: `{typed}` has no `=`"),
                    "write NAME=VALUE, for example --label commit=1a2b3c4",
                )
            })?;
            spec.labels.insert(name, value);
        }
        spec.seed = self.seed.or(spec.seed);
        spec.requests = self.requests.then_some(true).or(spec.requests);
        spec.traceparent = self.traceparent.then_some(true).or(spec.traceparent);
        spec.span_sample = self.span_sample.or(spec.span_sample);
        for typed in &self.objective {
            let (metric, limit) = typed
                .find(['<', '>'])
                .map(|at| typed.split_at(at))
                .ok_or_else(|| {
                    Failure::usage(
                        format_args!("--objective: `{typed}` has no < or >"),
                        "write, for example, --objective 'p99 < 10ms'",
                    )
                })?;
            spec.objective.insert(metric.trim().into(), limit.into());
        }
        let mut watch = WatchSpec {
            pid: self.pid.filter(|_| self.watch.is_none()),
            ..self.watched.clone()
        };
        match self.watch.as_deref() {
            None => {}
            Some("off") => watch.off = Some(true),
            Some(group) if group.starts_with("cgroup:") => {
                watch.cgroup = group.strip_prefix("cgroup:").map(str::to_owned);
            }
            Some(port) => {
                watch.port = Some(port.parse().map_err(|_| {
                    Failure::usage(
                        format_args!("--watch: `{port}` is not a port"),
                        "give the port that the server listens on, cgroup:NAME or off; --pid takes a process id",
                    )
                })?);
            }
        }
        if watch.selects_process()
            && let Some(planned) = &mut spec.watch
        {
            (planned.pid, planned.port) = (None, None);
            (planned.cgroup, planned.off) = (None, None);
        }
        apply_flags_to_optional("watch", &watch, &mut spec.watch).map_err(problems::flag_failure)
    }

    fn apply_load(&self, spec: &mut Spec, origins: &FlagOrigins) -> Result<(), Failure> {
        let mut typed = self.keys.clone();
        typed.clients = self.fleet.or(typed.clients);
        if !self.is_steady(&typed, &spec.load) {
            let of_steady_runs = |id| {
                let variable = origins.variable(id);
                variable.is_some_and(|variable| STEADY_RUN_ALIASES.contains(&variable))
            };
            typed.rate = typed.rate.filter(|_| !of_steady_runs("rate"));
            typed.warmup = typed.warmup.filter(|_| !of_steady_runs("warmup"));
        }
        // If both an open and a closed loop are requested, the value from the origin with higher precedence wins.
        if typed.rate.is_some() && typed.clients.is_some() {
            let strength = |id| origins.precedence(id);
            let closed = strength("fleet").max(strength("clients"));
            match strength("rate").cmp(&closed) {
                Ordering::Less => typed.rate = None,
                Ordering::Greater => typed.clients = None,
                Ordering::Equal => {}
            }
        }
        if self.fleet.is_some() {
            typed.connections = typed.connections.or(typed.clients);
        }
        let load = &mut spec.load;
        if typed.recording_key().is_some() {
            (load.rate, load.steps, load.clients, load.think) = (None, None, None, None);
        } else if typed.rate.is_some() || typed.clients.is_some() || typed.steps.is_some() {
            remove_replay(load);
        }
        if typed.rate.is_some() {
            (load.steps, load.clients, load.think) = (None, None, None);
        } else if typed.steps.is_some() {
            (load.rate, load.clients, load.think) = (None, None, None);
            load.duration = None;
        } else if typed.clients.is_some() {
            (load.steps, load.rate, load.arrivals) = (None, None, None);
        }
        // A duration or number of calls set by flag replaces both keys of the plan.
        if typed.duration.is_some() != typed.calls.is_some() {
            (load.duration, load.calls) = (None, None);
        }
        if typed.deadline.is_some() {
            spec.call.remove_deadline();
        }
        // Steps are a list of tables, which can't be merged key by key, so handle them separately.
        let steps = typed.steps.take();
        apply_flags("load", &typed, load).map_err(problems::flag_failure)?;
        load.steps = steps.or(load.steps.take());
        if self.cold {
            load.reuse = Some("never".into());
            load.connections = self.keys.connections;
            // A number of calls without a rate is made by clients, as without this flag.
            let is_counted = load.calls.is_some() && load.connections.is_none();
            let is_shaped = load.steps.is_some() || load.clients.is_some() || is_counted;
            if load.rate.is_none() && !is_shaped {
                load.rate = Some(RateSpec::Steady(Rate(1.0)));
            }
        }
        Ok(())
    }

    /// Returns whether the load has a single fixed rate and persistent connections.
    fn is_steady(&self, typed: &LoadSpec, plan: &LoadSpec) -> bool {
        let varies = |load: &LoadSpec| {
            load.clients.is_some()
                || load.steps.is_some()
                || load.recording_key().is_some()
                || load.reuse.as_deref() == Some("never")
                || matches!(load.rate, Some(RateSpec::Ramp(_)))
        };
        !self.cold && !varies(typed) && !varies(plan)
    }

    fn apply_tls(&self, spec: &mut Spec, origins: &FlagOrigins) -> Result<(), Failure> {
        let mut typed = self.tls.clone();
        apply_flags("tls", &self.identity, &mut typed).map_err(problems::flag_failure)?;
        // CA, pin and `--insecure` exclude each other: the value from the origin with the highest precedence wins.
        let given = [
            ("ca", typed.ca.is_some()),
            ("pin", typed.pin.is_some()),
            ("insecure", typed.insecure.is_some()),
        ];
        let given = given.iter().filter(|(_, given)| *given);
        if let Some(strongest) = given.map(|(id, _)| origins.precedence(id)).max() {
            let wins = |id| origins.precedence(id) == strongest;
            typed.ca = typed.ca.filter(|_| wins("ca"));
            typed.pin = typed.pin.filter(|_| wins("pin"));
            typed.insecure = typed.insecure.filter(|_| wins("insecure"));
            if let Some(tls) = &mut spec.tls {
                (tls.ca, tls.pin, tls.insecure) = (None, None, None);
            }
        }
        apply_flags_to_optional("tls", &typed, &mut spec.tls).map_err(problems::flag_failure)
    }
}

/// Removes the replay of a recording from the plan, because a rate or number of clients set by flag replaces it.
fn remove_replay(load: &mut LoadSpec) {
    if load.recording_key() == Some("load.arrivals") {
        load.arrivals = None;
    }
    (load.replay, load.replay_format, load.time_column) = (None, None, None);
    (load.speed, load.window, load.filter) = (None, None, None);
    (load.sample, load.repeat, load.checksum) = (None, None, None);
}
