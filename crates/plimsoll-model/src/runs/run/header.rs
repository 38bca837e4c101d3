//! The facts that are known about a run before its first call: plan, tool and machine.
//!
//! The header is written when the run begins and is the first part of `run.json`.

use std::fs;
use std::num::NonZero;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::formats::labels::Labels;
use crate::plan::{ArrivalModel, ConnectionReuse, Plan, ServerTrust};

use super::SCHEMA_VERSION;
use super::negotiated_tls::NegotiatedTls;
use super::shards::ShardFigures;

/// The origin of a run's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOrigin {
    /// Measured by this tool.
    #[default]
    Measured,
    /// Read from a file that another tool or an export wrote.
    Imported,
}

/// The security of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionSecurity {
    /// No TLS.
    Plaintext,
    /// TLS with a server certificate.
    Tls,
    /// TLS with certificates of server and client.
    MutualTls,
}

/// The arrival model, as reports name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopKind {
    /// The schedule starts calls, whatever the target does.
    Open,
    /// Each client starts a call when its previous one ended.
    Closed,
}

/// The header of `run.json`. `None`: not known, or not applicable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunHeader {
    /// The version of the run format.
    pub schema_version: u32,
    /// The origin of the figures.
    pub source: RunOrigin,
    /// The plan's name.
    pub name: String,
    /// The URL as the user wrote it.
    pub target: Option<String>,
    /// The protocol, by the name of the plan's call section.
    pub protocol: Option<String>,
    /// The name of the call (gRPC: `package.Service/Method`).
    pub call: Option<String>,
    /// The protocol's version, where there are several; left out otherwise.
    #[serde(
        rename = "http_version",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub version: Option<String>,
    /// The planned security of connections to the target.
    pub security: Option<ConnectionSecurity>,
    /// The parameters that TLS handshakes negotiated.
    pub tls: Option<NegotiatedTls>,
    /// More facts about the security of connections.
    #[serde(flatten)]
    pub links: LinkFacts,
    /// The arrival model.
    #[serde(rename = "loop")]
    pub load_loop: Option<LoopKind>,
    /// `constant` or `poisson`; open loop only.
    pub arrivals: Option<String>,
    /// The share of the schedule's arrivals that belong to this load, where several loads share it (0–1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_share: Option<f64>,
    /// The number of clients; closed loop only.
    pub clients: Option<u32>,
    /// The planned connections; `None` for runs with a new connection for every call.
    pub connections: Option<u32>,
    /// Maximum number of concurrent calls on a connection; left out where the peer determines it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_at_once: Option<u32>,
    /// Whether every call uses a new connection.
    pub cold: bool,
    /// Planned number of calls after which a connection is replaced; left out where connections are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_per_connection: Option<u32>,
    /// Planned age at which a connection is replaced, µs; left out where connections are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_lifetime_us: Option<u64>,
    /// Interval of bundled sends, µs; left out where each call is sent when it is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_us: Option<u64>,
    /// Planned share of new connections with a full handshake, where the others resume sessions (0–1); left out where
    /// no mix is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_share: Option<f64>,
    /// Whether TLS sessions are resumed from tickets; left out where they are not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resume: bool,
    /// The planned number of calls, not counting the warm-up's; `None`: not limited.
    pub calls: Option<u64>,
    /// Number of calls in the sample for spans; left out where there is no sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span_sample: Option<u32>,
    /// The seed of everything random.
    pub seed: Option<u64>,
    /// The plan's [`plan_hash`].
    pub plan_hash: Option<String>,
    /// The version of Plimsoll that measured or imported the run.
    pub tool_version: String,
    /// Measured runs: the time at which the run began, before its first call. Imported runs: the time of the import.
    pub started_at: Timestamp,
    /// The machine that generated the load.
    pub machine: Option<MachineFacts>,
    /// Processes that shared the load; left out for a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// The shards of a load on several machines; left out where there were none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardFigures>,
    /// The user's labels of the run; left out where there are none.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Settings that were chosen automatically for this run, as sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Bytes of the client's heap per connection that was made before the load; left out for fewer than a hundred
    /// connections, or where several threads made them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap_bytes_per_connection: Option<f64>,
    /// CPU time of the live view, µs; left out where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_view_cpu_us: Option<u64>,
    /// Process ids of the watched server; left out where none was watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_pids: Vec<i32>,
    /// The planned stages in order, warm-up first.
    pub planned_stages: Vec<PlannedStage>,
}

/// Facts about the security of a run's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFacts {
    /// Whether every server certificate was accepted unverified; left out where certificates were verified.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// The targets of steps besides the plan's own; left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_targets: Vec<TargetSecurity>,
}

/// A target besides the plan's own, to which some of the calls go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetSecurity {
    /// The URL as the user wrote it.
    pub target: String,
    /// The planned security of connections to it.
    pub security: ConnectionSecurity,
}

/// A stage as planned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlannedStage {
    /// The stage's name, unique in the plan.
    pub name: String,
    /// Whether the stage is warm-up and left out of the totals.
    pub warmup: bool,
    /// The planned length; `None`: the stage lasts until the plan's calls are made.
    pub duration_us: Option<u64>,
    /// The rate at the stage's start; open loop only.
    pub rate_from_per_s: Option<f64>,
    /// The rate at the stage's end.
    pub rate_to_per_s: Option<f64>,
}

impl PlannedStage {
    /// Returns the planned length; `None`: the stage lasts until the plan's calls are made.
    pub fn duration(&self) -> Option<Duration> {
        self.duration_us.map(Duration::from_micros)
    }
}

/// Facts about the machine that generated the load. They do not include its host name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// The kernel's release, as uname(1) reports it.
    pub kernel: Option<String>,
    /// The CPU's name in /proc/cpuinfo.
    pub cpu_model: Option<String>,
    /// Cores that this process may use.
    pub cores: Option<u32>,
    /// The machine's total memory, bytes.
    pub memory_bytes: Option<u64>,
    /// The frequency governor of the first core.
    pub governor: Option<String>,
    /// The default congestion control of new TCP connections.
    pub tcp_congestion_control: Option<String>,
}

impl MachineFacts {
    /// Reads the facts about this machine; those that can't be read are `None`.
    pub fn read() -> MachineFacts {
        let line = |path: &str| {
            let text = fs::read_to_string(path).ok()?;
            Some(text.trim().to_owned()).filter(|t| !t.is_empty())
        };
        let value = |path: &str, key: &str| {
            let text = fs::read_to_string(path).ok()?;
            let line = text.lines().find(|l| l.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        MachineFacts {
            kernel: line("/proc/sys/kernel/osrelease"),
            cpu_model: value("/proc/cpuinfo", "model name"),
            cores: thread::available_parallelism()
                .ok()
                .map(NonZero::get)
                .and_then(|n| u32::try_from(n).ok()),
            memory_bytes: value("/proc/meminfo", "MemTotal")
                .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok())
                .map(|kib| kib * 1024),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            tcp_congestion_control: line("/proc/sys/net/ipv4/tcp_congestion_control"),
        }
    }
}

/// Conditions that all runs of a ladder or search have in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommonConditions {
    /// The arrival model; `None`: not all runs have the same one.
    #[serde(rename = "loop")]
    pub load_loop: Option<LoopKind>,
    /// `constant` or `poisson`; open loop only.
    pub arrivals: Option<String>,
    /// The number of clients; closed loop only.
    pub clients: Option<u32>,
    /// The user's labels of the measurement; left out where there are none.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The machine that generated the load.
    pub machine: MachineFacts,
}

impl CommonConditions {
    /// Returns the conditions of runs of these plans on this machine.
    pub fn from_plans(plans: &[Plan]) -> CommonConditions {
        let mut issuing = plans.iter().map(|plan| arrival_facts(plan.load.arrivals));
        let first = issuing.next();
        let (load_loop, arrivals, clients) = first
            .filter(|first| issuing.all(|other| other == *first))
            .map_or((None, None, None), |(kind, arrivals, clients)| {
                (Some(kind), arrivals, clients)
            });
        CommonConditions {
            load_loop,
            arrivals: arrivals.map(str::to_owned),
            clients,
            labels: plans
                .first()
                .map_or_else(Labels::new, |plan| plan.labels.clone()),
            machine: MachineFacts::read(),
        }
    }
}

/// Returns the arrival model, the spacing of an open loop, and the clients of a closed loop.
fn arrival_facts(arrivals: ArrivalModel) -> (LoopKind, Option<&'static str>, Option<u32>) {
    match arrivals {
        ArrivalModel::Open(spacing) => (LoopKind::Open, Some(spacing.name()), None),
        ArrivalModel::Closed { clients, .. } => (LoopKind::Closed, None, Some(clients)),
    }
}

impl RunHeader {
    /// Creates the header of a run about which nothing else is known.
    pub fn new(source: RunOrigin, name: &str, tool_version: &str, started_at: Timestamp) -> Self {
        RunHeader {
            schema_version: SCHEMA_VERSION,
            source,
            name: name.to_owned(),
            tool_version: tool_version.to_owned(),
            started_at,
            ..RunHeader::default()
        }
    }

    /// Creates the header of an imported run, without the facts that imported files don't contain.
    pub fn for_import(name: &str, tool_version: &str, started_at: Timestamp) -> Self {
        RunHeader {
            planned_stages: vec![PlannedStage {
                name: "imported".to_owned(),
                ..PlannedStage::default()
            }],
            ..RunHeader::new(RunOrigin::Imported, name, tool_version, started_at)
        }
    }

    /// Creates the header of a run of `plan`, whose text in the run directory is `plan_toml`.
    pub fn for_plan(
        plan: &Plan,
        plan_toml: &str,
        tool_version: &str,
        started_at: Timestamp,
    ) -> Self {
        let (protocol, call) = plan.call.protocol_and_call_name();
        let security = |is_secured: bool| match plan.tls.as_ref().filter(|_| is_secured) {
            None => ConnectionSecurity::Plaintext,
            Some(tls) if tls.identity.is_some() => ConnectionSecurity::MutualTls,
            Some(_) => ConnectionSecurity::Tls,
        };
        let others = plan.call.other_targets().into_iter();
        let other_targets = others.map(|(target, is_secured)| TargetSecurity {
            target: target.url.clone(),
            security: security(is_secured),
        });
        let (load_loop, arrivals, clients) = arrival_facts(plan.load.arrivals);
        // Where several loads share a schedule, only a part of its arrivals belongs to this load.
        let own = plan.load.batches.map_or(1.0, |turns| {
            f64::from(turns.share) / f64::from(turns.of.max(1))
        });
        let rate = |r: f64| (load_loop == LoopKind::Open).then_some(r * own);
        let cold = plan.load.reuse == ConnectionReuse::Never;
        let in_a_row = plan.call.calls_per_user();
        let arriving = load_loop == LoopKind::Open && in_a_row.is_some();
        RunHeader {
            target: Some(plan.target.url.clone()),
            protocol: Some(protocol.to_owned()),
            call: Some(call.into_owned()),
            version: plan
                .call
                .protocol_version(plan.tls.as_ref())
                .map(str::to_owned),
            security: Some(security(plan.call.is_target_secured())),
            links: LinkFacts {
                insecure: plan
                    .tls
                    .as_ref()
                    .is_some_and(|tls| tls.trust == ServerTrust::Unchecked),
                other_targets: other_targets.collect(),
            },
            load_loop: Some(load_loop),
            arrivals: arrivals.map(str::to_owned),
            schedule_share: (own < 1.0 && load_loop == LoopKind::Open).then_some(own),
            clients,
            // Arriving users each open a new connection, so no number of connections is planned.
            connections: (!cold && !arriving).then_some(plan.load.connections),
            calls_at_once: plan
                .call
                .max_concurrent_calls(plan.tls.as_ref())
                .filter(|_| !cold),
            cold,
            calls_per_connection: match plan.load.calls_per_connection {
                _ if cold => Some(1),
                None if plan.call.max_calls_per_journey().is_some() => None,
                None => plan.call.calls_per_user(),
                asked => asked,
            },
            connection_lifetime_us: plan.load.connection_lifetime.map(to_micros),
            tick_us: (!plan.load.tick.is_zero()).then(|| to_micros(plan.load.tick)),
            full_share: plan.tls.as_ref().and_then(|tls| tls.full_share),
            resume: plan.tls.as_ref().is_some_and(|tls| tls.resume),
            calls: plan.load.calls,
            span_sample: Some(plan.span_sample).filter(|&calls| calls > 0),
            seed: Some(plan.seed),
            labels: plan.labels.clone(),
            plan_hash: Some(plan_hash(plan_toml)),
            machine: Some(MachineFacts::read()),
            planned_stages: plan
                .load
                .stages
                .iter()
                .map(|s| PlannedStage {
                    name: s.name.clone(),
                    warmup: s.warmup,
                    duration_us: s.duration.map(to_micros),
                    rate_from_per_s: rate(s.rate_from),
                    rate_to_per_s: rate(s.rate_to),
                })
                .collect(),
            ..RunHeader::new(RunOrigin::Measured, &plan.name, tool_version, started_at)
        }
    }

    /// Returns the interval of bundled sends; zero: each call is sent when it is due.
    pub fn tick_length(&self) -> Duration {
        Duration::from_micros(self.tick_us.unwrap_or(0))
    }

    /// Returns the total length of the warm-up.
    pub fn warmup_length(&self) -> Duration {
        let stages = self.planned_stages.iter().filter(|stage| stage.warmup);
        stages.filter_map(PlannedStage::duration).sum()
    }

    /// Returns whether the load is an open loop.
    pub fn is_open_loop(&self) -> bool {
        self.load_loop == Some(LoopKind::Open)
    }

    /// Returns the times from the start of the run to the stage's start and, where planned, to its end.
    pub fn stage_span(&self, stage: u8) -> (Duration, Option<Duration>) {
        let mut begin = Duration::ZERO;
        for (i, planned) in self.planned_stages.iter().enumerate() {
            if i == usize::from(stage) {
                return (begin, planned.duration().map(|d| begin + d));
            }
            begin += planned.duration().unwrap_or_default();
        }
        (begin, None)
    }

    /// Returns the time from the start of the run to each stage's end; `None`: the stage lasts until the plan's calls
    /// are made.
    pub(super) fn stage_ends(&self) -> impl Iterator<Item = Option<Duration>> {
        let mut begin = Duration::ZERO;
        self.planned_stages.iter().map(move |planned| {
            let end = planned.duration().map(|duration| begin + duration);
            begin = end.unwrap_or(begin);
            end
        })
    }

    /// Returns whether the plan has no calls in the stage.
    pub fn has_no_calls(&self, stage: u8) -> bool {
        self.planned_stages
            .get(usize::from(stage))
            .is_some_and(|s| s.rate_from_per_s == Some(0.0) && s.rate_to_per_s == Some(0.0))
    }

    /// Returns whether the stage is left out of the totals.
    pub fn is_warmup(&self, stage: u8) -> bool {
        self.planned_stages
            .get(usize::from(stage))
            .is_some_and(|s| s.warmup)
    }
}

/// Returns the plan's identity: FNV-1a (64 bit) of its resolved text. It detects accidental differences and is not a
/// protection against tampering.
pub fn plan_hash(plan_toml: &str) -> String {
    let hash = plan_toml
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("fnv1a64:{hash:016x}")
}

/// Converts a duration to whole microseconds.
fn to_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_hash_matches_fnv_test_vectors() {
        // Test vectors of the FNV authors.
        assert_eq!(plan_hash(""), "fnv1a64:cbf29ce484222325");
        assert_eq!(plan_hash("foobar"), "fnv1a64:85944171f73967e8");
    }
}
