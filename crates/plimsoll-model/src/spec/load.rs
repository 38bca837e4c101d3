//! Resolves the keys of `[load]` that are not about arrivals: connections, deadlines and limits.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::{LoadSpec, OptionalPeriod, Problems, ResolveContext, Spec, objective};
use crate::formats::units::Period;
use crate::plan::{ArrivalModel, ConnectionReuse, InFlightLimit, LoadPlan, LoadStage, WhenFull};
use crate::rows::recording::Recording;

/// Minimum lifetime of a connection; making a connection takes about a millisecond.
const MIN_CONNECTION_LIFETIME: Duration = Duration::from_millis(10);
/// Minimum size of a worker's read buffer, bytes.
const MIN_READ_BUFFER_BYTES: u64 = 1 << 10;
const MAX_READ_BUFFER_BYTES: u64 = 16 << 20;
/// Maximum tick; a longer one would change the load.
const MAX_TICK: Duration = Duration::from_millis(100);
/// Maximum number of processes; more would only compete for cores.
const MAX_PROCESSES: u16 = 256;
const MAX_SOURCE_ADDRESSES: u32 = 65_536;

impl Problems {
    pub(super) fn resolve_load(
        &mut self,
        spec: &Spec,
        context: &dyn ResolveContext,
    ) -> Option<LoadPlan> {
        let load = &spec.load;
        let defaults = LoadPlan::default();
        let before = self.0.len();
        let recording = self.resolve_recording(spec, context);
        let (arrivals, stages) = self.resolve_arrival_model(spec, recording.as_ref());
        let reuse = self.resolve_choice(
            "load.reuse",
            load.reuse.as_deref(),
            &ConnectionReuse::ALL,
            ConnectionReuse::name,
        );
        // The number is not used for arriving users, each of whom opens the connections that are needed.
        let connections = load.connections.unwrap_or(defaults.connections);
        self.check_resource_counts(spec, reuse, connections);
        let deadline = self.resolve_deadline(spec);
        let stall_timeout = spec.stall_timeout();
        let typed_or = |typed: Option<Period>, default| typed.map_or(default, |p| p.0);
        let connect_timeout = typed_or(load.connect_timeout, defaults.connect_timeout);
        self.check_lifetimes(spec, reuse);
        let resolve_interval = typed_or(load.resolve_interval, defaults.resolve_interval);
        let precision = self.resolve_rate_precision(load);
        let tick = self.resolve_tick(spec);
        let spin = typed_or(load.spin, default_spin(tick));
        let read_buffer = load
            .read_buffer
            .map_or(defaults.read_buffer as u64, |size| size.0);
        self.report_failed_checks([
            (
                connect_timeout.is_zero(),
                "load.connect_timeout",
                "0 fails every connection: use a duration such as \"10s\"",
            ),
            (
                load.connect_rate.is_some_and(|rate| rate.0 <= 0.0),
                "load.connect_rate",
                "a rate of 0 never connects: use \"1000/s\", or leave it out",
            ),
            (
                resolve_interval.is_zero(),
                "load.resolve_interval",
                "0 would look the name up all the time: use a duration such as \"30s\"",
            ),
            (
                spin > Duration::from_millis(100),
                "load.spin",
                "longer than 100ms: a spin only covers the inaccuracy of the timer, about \"50us\"",
            ),
            (
                !(MIN_READ_BUFFER_BYTES..=MAX_READ_BUFFER_BYTES).contains(&read_buffer),
                "load.read_buffer",
                "out of range: use 1KiB to 16MiB",
            ),
        ]);
        let in_flight_limit = self.resolve_in_flight_limit(spec);
        let source_addresses =
            self.resolve_source_addresses(load.source_addresses.as_deref().unwrap_or(&[]));
        if self.0.len() > before {
            return None;
        }
        Some(LoadPlan {
            arrivals: arrivals?,
            recording,
            repeats: load.repeat == Some(true),
            stages,
            connections,
            reuse,
            in_flight_limit,
            calls: load.calls,
            precision,
            deadline,
            connect_timeout,
            connect_rate: load.connect_rate.map(|rate| rate.0),
            connection_lifetime: load.connection_lifetime.map(|p| p.0),
            calls_per_connection: load.calls_per_connection,
            resolve_interval,
            stall_timeout,
            retry: load.no_retry.map_or(defaults.retry, |no_retry| !no_retry),
            // The default drain lets a call take its full deadline.
            drain: match (load.drain, stall_timeout) {
                (Some(given), _) => Some(given.0),
                (None, Some(_)) => None,
                (None, None) => deadline.or(defaults.drain),
            },
            processes: load.processes,
            workers: load.workers,
            spin,
            tick,
            read_buffer: read_buffer as usize,
            source_addresses,
            // The remaining fields include `batches`, which the ladder sets once it knows the number of rungs.
            ..defaults
        })
    }

    /// Checks that connections, processes and workers are neither too few nor too many.
    fn check_resource_counts(&mut self, spec: &Spec, reuse: ConnectionReuse, connections: u32) {
        let load = &spec.load;
        let early = spec.tls.as_ref().and_then(|tls| tls.early_data);
        self.report_failed_checks([
            (
                reuse == ConnectionReuse::Never && load.connections.is_some(),
                "load.connections",
                "not used with reuse = \"never\", where every call makes its own: remove one of the two",
            ),
            (
                reuse == ConnectionReuse::Always && early == Some(true),
                "tls.early_data",
                "0-RTT is for connections made for one call: ask for new ones with load.reuse",
            ),
            (
                load.connections == Some(0),
                "load.connections",
                "0 connections carry nothing: use 1 or more",
            ),
            (
                load.calls == Some(0),
                "load.calls",
                "0 calls measure nothing: use 1 or more",
            ),
        ]);
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
        if let Some(workers) = load.workers
            && u32::from(workers) > connections
            && reuse == ConnectionReuse::Always
            && spec.call.calls_per_user().is_none()
        {
            self.add(
                "load.workers",
                format!(
                    "{workers} workers, but connections for only {connections}: a worker without a connection can't send"
                ),
            );
        }
    }

    /// Resolves the deadline of a call, which either the load or the call's section sets.
    fn resolve_deadline(&mut self, spec: &Spec) -> Option<Duration> {
        let load = &spec.load;
        let (section, call_deadline) = spec.call.deadline();
        let call_key = format!("call.{section}.deadline");
        if call_deadline.is_some() && load.deadline.is_some() {
            self.add(
                "load.deadline",
                format!("can't be combined with {call_key}: use one of the two"),
            );
        }
        if load
            .deadline
            .or(call_deadline)
            .is_some_and(OptionalPeriod::is_zero)
        {
            let of_load = load.deadline.map(|_| "load.deadline");
            self.add(
                of_load.unwrap_or(&call_key),
                "a deadline of 0 fails every call: use a duration, or \"none\"",
            );
        }
        spec.deadline()
    }

    /// Resolves the interval at which due calls are sent together.
    fn resolve_tick(&mut self, spec: &Spec) -> Duration {
        let Some(tick) = spec.load.tick else {
            return Duration::ZERO;
        };
        if spec.load.clients.is_some() || spec.call.schedules_own_arrivals() {
            self.add(
                "load.tick",
                "for calls of an open loop (load.rate): clients, sessions and held connections have no calls that could leave together",
            );
        } else if tick.0.is_zero() || tick.0 > MAX_TICK {
            self.add(
                "load.tick",
                "out of range: use a time up to \"100ms\", such as \"1ms\", or leave it out",
            );
        }
        tick.0
    }

    /// Resolves the arrival model and the stages: from the load, or from the protocol itself.
    fn resolve_arrival_model(
        &mut self,
        spec: &Spec,
        recording: Option<&Recording>,
    ) -> (Option<ArrivalModel>, Vec<LoadStage>) {
        let load = &spec.load;
        let own = spec
            .call
            .present_sections()
            .find(|(own, _)| own.schedules_own_arrivals);
        if let (Some(_), Some(key)) = (own, load.recording_key()) {
            self.add(
                key,
                "sessions and held connections decide themselves when they are used: leave it out",
            );
        }
        match own {
            Some((protocol, section)) => (protocol.arrivals)(section, load, self),
            None => self.resolve_arrivals(spec, recording),
        }
    }

    /// Resolves the limit of calls in flight.
    fn resolve_in_flight_limit(&mut self, spec: &Spec) -> Option<InFlightLimit> {
        let load = &spec.load;
        let Some(calls) = load.max_in_flight else {
            if load.on_full.is_some() {
                self.add(
                    "load.on_full",
                    "for calls beyond a limit: give load.max_in_flight, too",
                );
            }
            return None;
        };
        let workers = u32::from(load.workers.unwrap_or(1)) * u32::from(load.processes.unwrap_or(1));
        if load.clients.is_some() {
            self.add(
                "load.max_in_flight",
                "for an open loop (load.rate): with clients, one call of each client is in flight at most",
            );
        } else if spec.call.schedules_own_arrivals() || spec.call.calls_per_user().is_some() {
            self.add(
                "load.max_in_flight",
                "for single calls: users, sessions and held connections have connections of their own instead",
            );
        } else if calls == 0 {
            self.add(
                "load.max_in_flight",
                "0 calls in flight send nothing: use 1 or more",
            );
        } else if calls < workers {
            self.add(
                "load.max_in_flight",
                format!("{calls} calls in flight can't be divided among {workers} workers: each needs at least one"),
            );
        }
        let when_full = self.resolve_choice(
            "load.on_full",
            load.on_full.as_deref(),
            &WhenFull::ALL,
            WhenFull::name,
        );
        Some(InFlightLimit { calls, when_full })
    }

    /// Checks the limits of a connection's lifetime.
    fn check_lifetimes(&mut self, spec: &Spec, reuse: ConnectionReuse) {
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
            if reuse == ConnectionReuse::Never {
                self.add(key, "with load.reuse = \"never\" each call has a connection of its own: remove one of the two");
            } else if spec.call.calls_per_user().is_some() {
                self.add(key, "a user's connections are its own: leave it out");
            }
        }
        if load
            .connection_lifetime
            .is_some_and(|p| p.0 < MIN_CONNECTION_LIFETIME)
        {
            self.add(
                "load.connection_lifetime",
                "shorter than 10ms: use load.reuse = \"never\" for one connection per call",
            );
        }
        if load.calls_per_connection == Some(0) {
            self.add("load.calls_per_connection", "0 is too small: use 1 or more");
        }
    }

    /// Resolves the precision of the rate at which the load stops.
    fn resolve_rate_precision(&mut self, load: &LoadSpec) -> Option<f64> {
        let typed = load.precision.as_deref()?;
        let precision =
            objective::parse_percent(typed.trim()).filter(|p| (0.0001..=0.5).contains(p));
        if precision.is_none() {
            self.add(
                "load.precision",
                format!(
                    "`{typed}` is not a valid precision of a rate: use 0.01% to 50%, such as \"1%\""
                ),
            );
        }
        if load.clients.is_none() {
            self.add(
                "load.precision",
                "for a closed loop (load.clients), whose rate is measured: the rate of an open loop is set by the plan",
            );
        }
        if load.duration.is_none() {
            self.add(
                "load.precision",
                "needs load.duration, after which the run ends at the latest",
            );
        }
        precision
    }

    fn resolve_source_addresses(&mut self, typed: &[String]) -> Vec<IpAddr> {
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

/// Returns the busy wait of a load without one in its plan: calls that wait for a tick need no timer that is accurate to
/// a microsecond.
fn default_spin(tick: Duration) -> Duration {
    if tick.is_zero() {
        LoadPlan::default().spin
    } else {
        Duration::ZERO
    }
}
