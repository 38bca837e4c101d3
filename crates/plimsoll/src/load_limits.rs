//! Limits on loads that someone other than this machine's user asks for: which targets, how fast, how long, over how
//! many connections, and whether a plan's code may run.
//!
//! `plimsoll mcp` passes the limits to the processes that it starts, in the variable [`LIMITS_VARIABLE`]. Every plan is
//! checked where it is resolved (`planning::plan`), so flags, variables, lanes, rungs and trials can't avoid the check.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use plimsoll_model::Plan;
use plimsoll_model::plan::{ArrivalModel, ConnectionReuse, Target};
use plimsoll_model::redaction::masked;
use plimsoll_model::search::SearchGoal;
use plimsoll_model::spec::FindSpec;
use plimsoll_model::units::{Period, Rate};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The variable that holds the limits, as JSON.
pub(crate) const LIMITS_VARIABLE: &str = "PLIMSOLL_LOAD_LIMITS";

/// A target that may be called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AllowedTarget {
    /// A host name or an address, with one port or with any.
    Host { host: String, port: Option<u16> },
    /// A Unix socket, as plans write it: `unix:/PATH`.
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
        let host = normalise(host);
        Ok(AllowedTarget::Host { host, port })
    }
}

/// Returns the host as it is compared: in lower case, without the dot that ends an absolute name.
fn normalise(host: &str) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => host.to_ascii_lowercase(),
    }
}

/// Returns whether the host can only be this machine.
fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host == "localhost",
    }
}

/// What a load may do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadLimits {
    /// Targets that may be called; empty: any loopback address.
    pub(crate) allowed: Vec<AllowedTarget>,
    /// The highest rate, calls per second.
    pub(crate) max_rate_per_s: f64,
    /// The longest load, warm-up included.
    pub(crate) max_duration: Duration,
    /// The most connections at once.
    pub(crate) max_connections: u32,
    /// Whether plans may run commands, load plugins and start servers.
    pub(crate) allows_plan_code: bool,
    /// Environment variables that plans may send.
    pub(crate) variables: Vec<String>,
    /// Folders with files that plans may read, as absolute paths without symbolic links.
    pub(crate) folders: Vec<PathBuf>,
    /// Whether nothing may be sent at all.
    pub(crate) is_read_only: bool,
}

impl LoadLimits {
    /// Returns the limits of this process; `None`: its user set none.
    ///
    /// # Errors
    /// When the variable can't be read: a load without its limits must not run.
    pub(crate) fn of_process() -> Result<Option<LoadLimits>, Failure> {
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

    /// # Errors
    /// When nothing may be sent.
    pub(crate) fn check_traffic(&self) -> Result<(), Failure> {
        if self.is_read_only {
            return Err(Failure::usage(
                "this server is read-only: it makes no load",
                "ask the person who runs it to start it without --read-only",
            ));
        }
        Ok(())
    }

    /// # Errors
    /// When the plan exceeds a limit; the error names the plan's key and the server's flag.
    pub(crate) fn check(&self, plan: &Plan) -> Result<(), Failure> {
        self.check_target(&plan.target)?;
        if let Some((second, _)) = plan.call.second_target() {
            self.check_target(second)?;
        }
        if plan.tls.as_ref().is_some_and(|tls| tls.key_log.is_some()) {
            self.check_code("tls.key_log writes the secrets of connections to a file")?;
        }
        if plan.profile.is_some() {
            self.check_code("watch.profile samples processes of this machine with perf")?;
        }
        self.check_rate(plan)?;
        self.check_duration(plan)?;
        self.check_connections(&[plan])
    }

    /// # Errors
    /// When the target, one of its given addresses, or the proxy in front of it is not allowed.
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
        let host = normalise(host);
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
            format_args!("{key}: {} is not allowed: {allowed}", masked(shown)),
            &format!(
                "use an allowed target, or ask the person who runs this server to start it with --allow {flag}"
            ),
        )
    }

    /// # Errors
    /// When code of plans may not run; `what` is what the plan would do.
    pub(crate) fn check_code(&self, what: &str) -> Result<(), Failure> {
        if self.allows_plan_code {
            return Ok(());
        }
        Err(Failure::usage(
            format_args!("{what}, which this server does not allow"),
            "leave it out, or ask the person who runs this server to start it with --allow-plan-code",
        ))
    }

    /// # Errors
    /// When plans may not use the environment variable: its value could be sent to a target.
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

    /// # Errors
    /// When the file, or what it links to, is outside of the folders that plans may read.
    pub(crate) fn check_file(&self, key: &str, path: &Path) -> Result<(), Failure> {
        let shown = path.display();
        let found = match path.canonicalize() {
            _ if path == Path::new("-") => None,
            Ok(found) => Some(found),
            // Whoever reads it reports that it is missing.
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

    fn check_duration(&self, plan: &Plan) -> Result<(), Failure> {
        let stages = plan.load.stages.iter();
        let length: Duration = stages.filter_map(|stage| stage.duration).sum();
        self.check_length("load.duration (with load.warmup)", length)
    }

    /// # Errors
    /// When `length` exceeds the longest load; `key` is what sets it.
    pub(crate) fn check_length(&self, key: &str, length: Duration) -> Result<(), Failure> {
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

    /// Checks the connections of loads that run at the same time.
    ///
    /// # Errors
    /// When they are too many together.
    pub(crate) fn check_connections(&self, plans: &[&Plan]) -> Result<(), Failure> {
        let max = self.max_connections;
        let all: f64 = plans.iter().map(|plan| most_connections(plan)).sum();
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

    /// Sets what a search leaves open to what is allowed.
    pub(crate) fn fill_in_search(&self, find: &mut FindSpec) {
        find.most.get_or_insert(Rate(self.max_rate_per_s));
        find.budget.get_or_insert(Period(self.max_duration));
    }

    /// # Errors
    /// When the search may try a higher rate, or take longer, than is allowed.
    pub(crate) fn check_search(&self, goal: &SearchGoal) -> Result<(), Failure> {
        let max = Rate(self.max_rate_per_s);
        if goal.most_per_s > self.max_rate_per_s {
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
        self.check_length("find.budget", Duration::from_secs_f64(goal.budget_s))
    }
}

/// Returns how many calls a user makes at most; 1 where calls arrive independently of each other.
fn most_calls_of_user(plan: &Plan) -> f64 {
    let journey = plan.call.most_calls_of_journey();
    let calls = journey.or(plan.call.calls_in_a_row());
    f64::from(calls.unwrap_or(1).max(1))
}

/// Returns the highest rate of the plan's calls per second; `None`: nothing bounds it.
fn peak_rate(plan: &Plan) -> Option<f64> {
    let load = &plan.load;
    let calls_each = most_calls_of_user(plan);
    match load.arrivals {
        ArrivalModel::Open(_) => {
            let rates = load.stages.iter().map(|s| s.rate_from.max(s.rate_to));
            let stages = rates.fold(0.0, f64::max);
            let recorded = load.recording.as_ref().map_or(0.0, |recording| {
                recording.most_per_second(load.repeats) as f64
            });
            Some(stages.max(recorded) * calls_each)
        }
        ArrivalModel::Closed { clients, think } if !think.is_zero() => {
            Some(f64::from(clients) / think.as_secs_f64() * calls_each)
        }
        // All calls of the load within one second stay below the limit, if they are that few.
        ArrivalModel::Closed { .. } => load.calls.map(|calls| calls as f64 * calls_each),
    }
}

/// Returns how many connections the plan can have open at once, threads and processes included, which have at least
/// one each.
fn most_connections(plan: &Plan) -> f64 {
    let load = &plan.load;
    let is_own = load.reuse == ConnectionReuse::Never || plan.call.calls_in_a_row().is_some();
    let links = if plan.call.second_target().is_some() {
        2.0
    } else {
        1.0
    };
    let kept = f64::from(load.connections);
    let own = match load.arrivals {
        _ if !is_own => 0.0,
        ArrivalModel::Closed { clients, .. } => f64::from(clients),
        ArrivalModel::Open(_) => {
            let rates = load.stages.iter().map(|s| s.rate_from.max(s.rate_to));
            let rate = rates.fold(0.0, f64::max);
            let call = load.deadline.map_or(f64::INFINITY, |d| d.as_secs_f64());
            let life = load.connect_timeout.as_secs_f64() + call * most_calls_of_user(plan);
            let fullest = load.recording.as_ref().map_or(0.0, |recording| {
                recording.most_per_second(load.repeats) as f64 * life.ceil()
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
