//! `[load]` → plan: arrivals, stages, connections.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::Problems;
use crate::plan::{Arrivals, Load, Reuse, Spacing, Stage};
use crate::spec::objective;
use crate::spec::{Limit, LoadSpec, Problem, RateSpec, Spec, StepSpec};
use crate::units::Period;

/// A connection takes about a millisecond to be made.
const LEAST_LIFETIME: Duration = Duration::from_millis(10);
/// What one read may take, in bytes.
const READ_BUFFER_LEAST: u64 = 1 << 10;
const READ_BUFFER_MOST: u64 = 16 << 20;
/// A longer one would be another load.
const LONGEST_TICK: Duration = Duration::from_millis(100);
/// More would only take each other's cores.
const MAX_PROCESSES: u16 = 256;
const MAX_SOURCE_ADDRESSES: u32 = 65_536;

impl Problems {
    pub(super) fn load(&mut self, spec: &Spec) -> Option<Load> {
        let load = &spec.load;
        let unasked = Load::default();
        let before = self.0.len();
        let own = spec
            .call
            .protocols()
            .find(|(own, _)| own.schedules_itself());
        let (arrivals, stages) = match own {
            Some((protocol, section)) => protocol.arrivals(section, load, self),
            None => self.arrivals(load, spec.call.calls_in_a_row().is_some()),
        };
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
        let early = spec.tls.as_ref().and_then(|tls| tls.early_data);
        if reuse == Reuse::Always && early == Some(true) {
            self.add(
                "tls.early_data",
                "0-RTT is for connections made for one call: ask for new ones with load.reuse",
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
        if load.processes.is_some_and(|n| n == 0 || n > MAX_PROCESSES) {
            self.add(
                "load.processes",
                format!("a load is spread over 1 to {MAX_PROCESSES} processes"),
            );
        }
        if load.workers == Some(0) {
            self.add(
                "load.workers",
                "0 workers do nothing: use 1 or more, or leave it out",
            );
        }
        // A user has the connections it needs.
        let connections = load.connections.unwrap_or(unasked.connections);
        if let Some(workers) = load.workers
            && u32::from(workers) > connections
            && reuse == Reuse::Always
            && spec.call.calls_in_a_row().is_none()
        {
            self.add(
                "load.workers",
                format!(
                    "{workers} workers, and connections for {connections}: a worker without one can't send"
                ),
            );
        }
        let (section, call_deadline) = spec.call.deadline();
        let call_key = format!("call.{section}.deadline");
        if call_deadline.is_some() && load.deadline.is_some() {
            self.add(
                "load.deadline",
                format!("given beside {call_key}: use one of the two"),
            );
        }
        let deadline = match load.deadline.or(call_deadline) {
            None => spec.deadline(),
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
        let connect_timeout = load
            .connect_timeout
            .map_or(unasked.connect_timeout, |p| p.0);
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
        self.lives(spec, reuse);
        let resolve_interval = load
            .resolve_interval
            .map_or(unasked.resolve_interval, |p| p.0);
        if resolve_interval.is_zero() {
            self.add(
                "load.resolve_interval",
                "0 looks the name up without end: use a duration such as \"30s\"",
            );
        }
        let precision = self.precision(load);
        let spin = load.spin.map_or(unasked.spin, |p| p.0);
        if spin > Duration::from_millis(100) {
            self.add(
                "load.spin",
                "longer than 100ms: a spin only covers the inaccuracy of the timer, about \"50us\"",
            );
        }
        let tick = self.tick(spec);
        let read_buffer = load
            .read_buffer
            .map_or(unasked.read_buffer as u64, |size| size.0);
        if !(READ_BUFFER_LEAST..=READ_BUFFER_MOST).contains(&read_buffer) {
            self.add("load.read_buffer", "out of range: use 1KiB to 16MiB");
        }
        let source_addresses =
            self.source_addresses(load.source_addresses.as_deref().unwrap_or(&[]));
        if self.0.len() > before {
            return None;
        }
        Some(Load {
            arrivals: arrivals?,
            stages,
            connections,
            reuse,
            calls: load.calls,
            precision,
            deadline,
            connect_timeout,
            connect_rate: load.connect_rate.map(|rate| rate.0),
            connection_lifetime: load.connection_lifetime.map(|p| p.0),
            calls_per_connection: load.calls_per_connection,
            resolve_interval,
            // A call may take its deadline.
            drain: load
                .drain
                .map_or(deadline.unwrap_or(unasked.drain), |p| p.0),
            processes: load.processes,
            workers: load.workers,
            spin,
            tick,
            read_buffer: read_buffer as usize,
            source_addresses,
            // A ladder deals, once it knows how many rungs there are.
            ..unasked
        })
    }

    /// How long calls wait for each other.
    fn tick(&mut self, spec: &Spec) -> Duration {
        let Some(tick) = spec.load.tick else {
            return Duration::ZERO;
        };
        if spec.load.clients.is_some() || spec.call.schedules_itself() {
            self.add(
                "load.tick",
                "for calls of an open loop (load.rate): clients, sessions and held connections have no calls that could leave together",
            );
        } else if tick.0.is_zero() || tick.0 > LONGEST_TICK {
            self.add(
                "load.tick",
                "out of range: use a time up to \"100ms\", such as \"1ms\", or leave it out",
            );
        }
        tick.0
    }

    /// How long connections live.
    fn lives(&mut self, spec: &Spec, reuse: Reuse) {
        let load = &spec.load;
        let asked = [
            (
                "load.connection_lifetime",
                load.connection_lifetime.is_some(),
            ),
            (
                "load.calls_per_connection",
                load.calls_per_connection.is_some(),
            ),
        ];
        for (key, _) in asked.into_iter().filter(|(_, asked)| *asked) {
            if reuse == Reuse::Never {
                self.add(key, "each call has a connection of its own: leave load.reuse = \"never\" out, or this");
            } else if spec.call.calls_in_a_row().is_some() {
                self.add(key, "a user's connections are its own: leave it out");
            }
        }
        if load
            .connection_lifetime
            .is_some_and(|p| p.0 < LEAST_LIFETIME)
        {
            self.add(
                "load.connection_lifetime",
                "shorter than 10ms: use load.reuse = \"never\" for a connection a call",
            );
        }
        if load.calls_per_connection == Some(0) {
            self.add(
                "load.calls_per_connection",
                "0 calls are none: use 1 or more",
            );
        }
    }

    /// How well the rate has to be known.
    fn precision(&mut self, load: &LoadSpec) -> Option<f64> {
        let typed = load.precision.as_deref()?;
        let precision = objective::percent(typed.trim()).filter(|p| (0.0001..=0.5).contains(p));
        if precision.is_none() {
            self.add(
                "load.precision",
                format!(
                    "`{typed}` is not the precision of a rate: use 0.01% to 50%, such as \"1%\""
                ),
            );
        }
        if load.clients.is_none() {
            self.add(
                "load.precision",
                "for a closed loop (load.clients), whose rate is measured: an open loop's is given",
            );
        }
        if load.duration.is_none() {
            self.add(
                "load.precision",
                "needs load.duration, the time after which the run ends all the same",
            );
        }
        precision
    }

    /// Who starts calls, and the stages: the warm-up first.
    fn arrivals(&mut self, load: &LoadSpec, users: bool) -> (Option<Arrivals>, Vec<Stage>) {
        let spacing = self.spacing(load);
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
        // A user that arrives pauses between its calls.
        if load.clients.is_none() && load.think.is_some() && !users {
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
                stages.push(Stage::measured("steady", length, rate.0));
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
                        stages.push(Stage::measured("hold", length - over, ramp.to.0));
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

    /// How open-loop arrivals are spaced.
    /// How arrivals follow each other.
    pub fn spacing(&mut self, load: &LoadSpec) -> Spacing {
        match load.arrivals.as_deref() {
            None | Some("constant") => Spacing::Constant,
            Some("poisson") => Spacing::Poisson,
            Some(other) => {
                self.add(
                    "load.arrivals",
                    format!("`{other}` is unknown: use \"constant\" or \"poisson\""),
                );
                Spacing::Constant
            }
        }
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
            let name = step
                .name
                .clone()
                .unwrap_or_else(|| format!("step {}", i + 1));
            if name.trim().is_empty() || stages.iter().any(|s| s.name == name) {
                self.add(
                    format!("{key}.name"),
                    format!("`{name}` is empty or taken: give every step a name of its own"),
                );
            }
            stages.push(stage(&name, false, Some(length.0), from, to));
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
                    } else if last - first >= MAX_SOURCE_ADDRESSES {
                        self.add(key, format!("`{text}` is too long: at most {MAX_SOURCE_ADDRESSES} addresses"));
                    } else {
                        addresses.extend((first..=last).map(|n| IpAddr::V4(Ipv4Addr::from(n))));
                    }
                }
            }
        }
        addresses
    }
}

pub(super) fn stage(
    name: &str,
    warmup: bool,
    duration: Option<Duration>,
    from: f64,
    to: f64,
) -> Stage {
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
