//! Limits on loads that someone other than this machine's user requests: targets, rate, duration, number of
//! connections, and whether commands and plugins in plans may run.
//!
//! `plimsoll mcp` passes the limits to the processes that it starts, in the variable [`LIMITS_VARIABLE`]. Every plan is
//! checked when it is resolved ([`crate::load::planning::resolve_plan`]), so flags, variables, lanes, rungs and trials
//! can't exceed the limits.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use plimsoll_model::Plan;
use plimsoll_model::formats::redaction::mask_urls;
use plimsoll_model::formats::units::{Period, Rate};
use plimsoll_model::plan::{ArrivalModel, ConnectionReuse, Target};
use plimsoll_model::search::{SearchGoal, SearchVariable};
use plimsoll_model::spec::FindSpec;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::settings::metrics_url::metrics_url;

/// Environment variable with the limits, as JSON.
pub(crate) const LIMITS_VARIABLE: &str = "PLIMSOLL_LOAD_LIMITS";

/// A target that loads may call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AllowedTarget {
    /// A host name or an address; `port` is `None` if all ports are allowed.
    Host { host: String, port: Option<u16> },
    /// A Unix socket, written as in plans: `unix:/PATH`.
    Socket(String),
}

impl FromStr for AllowedTarget {
    type Err = String;

    fn from_str(typed: &str) -> Result<AllowedTarget, String> {
        let right = "write HOST, HOST:PORT, [IPV6]:PORT or unix:/PATH";
        let wrong = || format!("`{typed}` is not a target: {right}");
        if typed.starts_with("unix:") || typed.starts_with("unix-abstract:") {
            return Ok(AllowedTarget::Socket(typed.to_owned()));
        }
        if typed.contains("://") {
            return Err(format!("`{typed}` is a URL: {right}"));
        }
        let (host, port) = match typed.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
                let port = match rest {
                    "" => None,
                    rest => Some(rest.strip_prefix(':').ok_or_else(wrong)?),
                };
                (host, port)
            }
            None if typed.parse::<IpAddr>().is_ok() => (typed, None),
            None => match typed.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (typed, None),
            },
        };
        let port = port.map(str::parse).transpose().map_err(|_| wrong())?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        if host.is_empty() || port == Some(0) || !host.chars().all(is_name) {
            return Err(wrong());
        }
        let host = normalise_host(host);
        Ok(AllowedTarget::Host { host, port })
    }
}

/// Normalises a host for comparison: in lower case, without the trailing dot of a fully qualified name.
fn normalise_host(host: &str) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => host.to_ascii_lowercase(),
    }
}

/// Returns whether the host is `localhost` or a loopback address.
fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host == "localhost",
    }
}

/// Limits on a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadLimits {
    /// Targets that loads may call; if empty, only loopback addresses are allowed.
    pub(crate) allowed: Vec<AllowedTarget>,
    /// Maximum rate, calls per second.
    pub(crate) max_rate_per_s: f64,
    /// Maximum duration of a load, including its warm-up.
    pub(crate) max_duration: Duration,
    /// Maximum number of concurrent connections.
    pub(crate) max_connections: u32,
    /// Whether plans may run commands, load plugins and start servers.
    pub(crate) allows_plan_code: bool,
    /// Environment variables that plans may read, and so may send to a target.
    pub(crate) variables: Vec<String>,
    /// Folders whose files plans may read, as absolute paths without symbolic links.
    pub(crate) folders: Vec<PathBuf>,
    /// Whether sending load is forbidden.
    pub(crate) is_read_only: bool,
}

impl LoadLimits {
    /// Returns the limits of this process, from [`LIMITS_VARIABLE`]; `None` if there are none.
    ///
    /// # Errors
    /// When the variable can't be parsed: a load must not run without its limits.
    pub(crate) fn from_environment() -> Result<Option<LoadLimits>, Failure> {
        let Some(text) = std::env::var_os(LIMITS_VARIABLE) else {
            return Ok(None);
        };
        let read = text.to_str().map(serde_json::from_str);
        match read {
            Some(Ok(limits)) => Ok(Some(limits)),
            _ => Err(Failure::usage(
                format_args!("{LIMITS_VARIABLE}: not the limits that `plimsoll mcp` writes"),
                "remove the variable: it is meant for processes that this program starts",
            )),
        }
    }

    /// Checks whether load may be sent.
    ///
    /// # Errors
    /// When sending is forbidden.
    pub(crate) fn check_load_allowed(&self) -> Result<(), Failure> {
        if self.is_read_only {
            return Err(Failure::usage(
                "this server is read-only: it makes no load",
                "ask the person who runs it to start it without --read-only",
            ));
        }
        Ok(())
    }

    /// Checks a plan against all limits.
    ///
    /// # Errors
    /// When the plan exceeds a limit; the error names the plan's key, and the flag of `plimsoll mcp` with the limit.
    pub(crate) fn check(&self, plan: &Plan) -> Result<(), Failure> {
        self.check_target(&plan.target)?;
        for (other, _) in plan.call.other_targets() {
            self.check_target(other)?;
        }
        if plan.tls.as_ref().is_some_and(|tls| tls.key_log.is_some()) {
            self.check_plan_code("tls.key_log writes the secrets of connections to a file")?;
        }
        if plan.profile.is_some() {
            self.check_plan_code("watch.profile samples processes of this machine with perf")?;
        }
        if let Some(url) = metrics_url(plan)? {
            let host = url.host_str().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let port = url.port_or_known_default().unwrap_or_default();
            self.check_host("watch.server_metrics", url.as_str(), host, port)?;
        }
        self.check_rate(plan)?;
        self.check_plan_duration(plan)?;
        self.check_connections(&[plan])
    }

    /// Checks a target.
    ///
    /// # Errors
    /// When the target, an address given for it (`load.resolve`), or the proxy in front of it is not allowed.
    pub(crate) fn check_target(&self, target: &Target) -> Result<(), Failure> {
        if let Some(socket) = &target.socket {
            let name = socket.to_string();
            let is_listed =
                |allowed: &&AllowedTarget| **allowed == AllowedTarget::Socket(name.clone());
            return match self.allowed.iter().find(is_listed) {
                Some(_) => Ok(()),
                None => Err(self.target_failure("target", &target.url, &name)),
            };
        }
        self.check_host("target", &target.url, &target.host, target.port)?;
        for address in &target.addresses {
            let address = address.to_string();
            self.check_host("load.resolve", &address, &address, target.port)?;
        }
        match &target.proxy {
            None => Ok(()),
            Some(proxy) => self.check_host("load.proxy", &proxy.host, &proxy.host, proxy.port),
        }
    }

    fn check_host(&self, key: &str, shown: &str, host: &str, port: u16) -> Result<(), Failure> {
        let host = normalise_host(host);
        let is_allowed = if self.allowed.is_empty() {
            is_loopback(&host)
        } else {
            self.allowed.iter().any(|allowed| match allowed {
                AllowedTarget::Host {
                    host: own,
                    port: any,
                } => *own == host && any.is_none_or(|own| own == port),
                AllowedTarget::Socket(_) => false,
            })
        };
        if is_allowed {
            return Ok(());
        }
        let bracketed = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        Err(self.target_failure(key, shown, &format!("{bracketed}:{port}")))
    }

    fn target_failure(&self, key: &str, shown: &str, flag: &str) -> Failure {
        let allowed = if self.allowed.is_empty() {
            "only loopback addresses are"
        } else {
            "it is not among those that are"
        };
        Failure::usage(
            format_args!("{key}: {} is not allowed: {allowed}", mask_urls(shown)),
            &format!(
                "use an allowed target, or ask the person who runs this server to start it with --allow {flag}"
            ),
        )
    }

    /// Checks whether commands and plugins in plans may run. `what` describes what the plan would do, for the error.
    ///
    /// # Errors
    /// When plans may not run code.
    pub(crate) fn check_plan_code(&self, what: &str) -> Result<(), Failure> {
        if self.allows_plan_code {
            return Ok(());
        }
        Err(Failure::usage(
            format_args!("{what}, which this server does not allow"),
            "leave it out, or ask the person who runs this server to start it with --allow-plan-code",
        ))
    }

    /// Checks whether plans may read an environment variable, whose value could be sent to a target.
    ///
    /// # Errors
    /// When plans may not read the variable.
    pub(crate) fn check_variable(&self, name: &str) -> Result<(), Failure> {
        if self.variables.iter().any(|allowed| allowed == name) {
            return Ok(());
        }
        Err(Failure::usage(
            format_args!("the plan uses the variable {name}, which this server does not allow"),
            &format!(
                "leave it out, or ask the person who runs this server to start it with --allow-env {name}"
            ),
        ))
    }

    /// Checks whether plans may read the file at `path`, which the plan key `key` names.
    ///
    /// # Errors
    /// When the file, or the target of a symbolic link, is outside the folders that plans may read.
    pub(crate) fn check_file(&self, key: &str, path: &Path) -> Result<(), Failure> {
        let shown = path.display();
        let found = match path.canonicalize() {
            _ if path == Path::new("-") => None,
            Ok(found) => Some(found),
            // Accept a missing file: the code that later reads it reports the error.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(_) => None,
        };
        let is_inside = |found: &PathBuf| self.folders.iter().any(|own| found.starts_with(own));
        if found.is_some_and(|found| is_inside(&found)) {
            return Ok(());
        }
        Err(Failure::usage(
            format_args!("{key}: {shown} is not in the folder in which this server was started"),
            "plans read files from that folder alone: use one of them, or ask the person who runs this server to start it in a folder that has the file",
        ))
    }

    fn check_rate(&self, plan: &Plan) -> Result<(), Failure> {
        let max = Rate(self.max_rate_per_s);
        let peak = peak_rate(plan);
        if peak.is_some_and(|rate| rate <= self.max_rate_per_s) {
            return Ok(());
        }
        let is_unpaced = |think: Duration| think.is_zero();
        match (plan.load.arrivals, peak) {
            (ArrivalModel::Closed { think, .. }, _) if is_unpaced(think) => Err(Failure::usage(
                format_args!(
                    "load.clients: a closed loop is as fast as its target, and this server allows {max}"
                ),
                "use load.rate, or a load.think that keeps the clients below that rate, or fewer load.calls than that",
            )),
            (_, peak) => Err(Failure::usage(
                format_args!(
                    "load: up to {} is more than the {max} that this server allows",
                    Rate(peak.unwrap_or(f64::INFINITY))
                ),
                &format!(
                    "use a rate of {max} or less, or ask the person who runs this server to raise --max-rate"
                ),
            )),
        }
    }

    fn check_plan_duration(&self, plan: &Plan) -> Result<(), Failure> {
        let stages = plan.load.stages.iter();
        let length: Duration = stages.filter_map(|stage| stage.duration).sum();
        self.check_key_duration("load.duration (with load.warmup)", length)
    }

    /// Checks a duration that the plan key `key` sets.
    ///
    /// # Errors
    /// When `length` exceeds the maximum duration.
    pub(crate) fn check_key_duration(&self, key: &str, length: Duration) -> Result<(), Failure> {
        if length <= self.max_duration {
            return Ok(());
        }
        let max = Period(self.max_duration);
        Err(Failure::usage(
            format_args!(
                "{key}: {} is more than the {max} that this server allows",
                Period(length)
            ),
            &format!(
                "use {max} or less, or ask the person who runs this server to raise --max-duration"
            ),
        ))
    }

    /// Checks the total number of connections of loads that run at the same time.
    ///
    /// # Errors
    /// When the total exceeds the limit.
    pub(crate) fn check_connections(&self, plans: &[&Plan]) -> Result<(), Failure> {
        let max = self.max_connections;
        let all: f64 = plans.iter().map(|plan| max_connections(plan)).sum();
        if all <= f64::from(max) {
            return Ok(());
        }
        Err(Failure::usage(
            format_args!(
                "load.connections: up to {all:.0} at once are more than the {max} that this server allows"
            ),
            "use fewer connections or clients (where each call or user has its own: a lower load.max_in_flight, load.deadline or load.connect_timeout), or ask the person who runs this server to raise --max-connections",
        ))
    }

    /// Sets the maximum rate and the budget of a search to the limits if the plan does not set them.
    pub(crate) fn fill_in_search_limits(&self, find: &mut FindSpec) {
        if find.users.is_none() {
            find.most.get_or_insert(Rate(self.max_rate_per_s));
        }
        find.budget.get_or_insert(Period(self.max_duration));
    }

    /// Checks the maximum rate and the budget of a search.
    ///
    /// # Errors
    /// When the search may try a higher rate or take longer than is allowed.
    pub(crate) fn check_search(&self, goal: &SearchGoal) -> Result<(), Failure> {
        let max = Rate(self.max_rate_per_s);
        // The plan of each trial is checked, too, and with it the number of users.
        if goal.variable == SearchVariable::Rate && goal.most_per_s > self.max_rate_per_s {
            return Err(Failure::usage(
                format_args!(
                    "find.most: {} is more than the {max} that this server allows",
                    Rate(goal.most_per_s)
                ),
                &format!(
                    "use {max} or less, or ask the person who runs this server to raise --max-rate"
                ),
            ));
        }
        self.check_key_duration("find.budget", Duration::from_secs_f64(goal.budget_s))
    }
}

/// Returns the maximum number of calls that one arrival makes; 1 if each call has its own arrival.
fn max_calls_per_arrival(plan: &Plan) -> f64 {
    let journey = plan.call.max_calls_per_journey();
    let calls = journey.or(plan.call.calls_per_user());
    f64::from(calls.unwrap_or(1).max(1))
}

/// Returns the maximum rate of the plan, calls per second; `None` if the rate is unbounded.
fn peak_rate(plan: &Plan) -> Option<f64> {
    let load = &plan.load;
    let calls_each = max_calls_per_arrival(plan);
    match load.arrivals {
        ArrivalModel::Open(_) => {
            let rates = load.stages.iter().map(|s| s.rate_from.max(s.rate_to));
            let stages = rates.fold(0.0, f64::max);
            let recorded = load.recording.as_ref().map_or(0.0, |recording| {
                recording.max_arrivals_per_second(load.repeats) as f64
            });
            Some(stages.max(recorded) * calls_each)
        }
        ArrivalModel::Closed { clients, think } if !think.is_zero() => {
            Some(f64::from(clients) / think.as_secs_f64() * calls_each)
        }
        // The rate of a closed loop is unbounded, unless the load has a fixed number of calls: it can't make more than
        // these in one second.
        ArrivalModel::Closed { .. } => load.calls.map(|calls| calls as f64 * calls_each),
    }
}

/// Returns the maximum number of concurrent connections of the plan. It is at least the total number of worker threads
/// of all processes, because each of them has a connection.
fn max_connections(plan: &Plan) -> f64 {
    let load = &plan.load;
    let is_own = load.reuse == ConnectionReuse::Never || plan.call.calls_per_user().is_some();
    let links = 1.0 + plan.call.other_targets().len() as f64;
    let kept = f64::from(load.connections);
    let own = match load.arrivals {
        _ if !is_own => 0.0,
        ArrivalModel::Closed { clients, .. } => f64::from(clients),
        ArrivalModel::Open(_) => {
            let rates = load.stages.iter().map(|s| s.rate_from.max(s.rate_to));
            let rate = rates.fold(0.0, f64::max);
            let call = load.deadline.map_or(f64::INFINITY, |d| d.as_secs_f64());
            let life = load.connect_timeout.as_secs_f64() + call * max_calls_per_arrival(plan);
            let fullest = load.recording.as_ref().map_or(0.0, |recording| {
                recording.max_arrivals_per_second(load.repeats) as f64 * life.ceil()
            });
            let by_time = (rate * life).max(fullest);
            let limit = load.in_flight_limit.map(|limit| f64::from(limit.calls));
            limit.map_or(by_time, |limit| limit.min(by_time)).ceil()
        }
    };
    let processes = f64::from(load.processes.unwrap_or(1));
    let threads = processes * f64::from(load.workers.unwrap_or(1));
    (kept.max(own) * links).max(threads)
}

#[cfg(test)]
mod tests;
