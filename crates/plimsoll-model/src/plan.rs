//! The plan of a run: every default is filled in, and every unit is converted.
//!
//! A [`Plan`] is resolved from a [`crate::spec::Spec`] and never changes. It has paths of secret files, not contents.

mod arrivals;
mod call;
mod profile;
mod proxy;
mod tls;
mod tokens;
mod unix_socket;
mod watch;

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use crate::formats::labels::Labels;
use crate::formats::named_enum::named;
use crate::metrics::measure::{Count, TimeMeasure};
use crate::rows::recording::Recording;
use crate::rows::template::VaryingMetadata;

pub use arrivals::{ArrivalModel, ArrivalSpacing, InFlightLimit, WhenFull};
pub use call::{Call, CallPlan, DynEq};
pub use profile::{DEFAULT_SAMPLING_HZ, MAX_SAMPLING_HZ, ProfilePlan, ProfiledEnd, StackUnwinding};
pub use proxy::{ForwardProxy, ProxyCredentials, ProxyKind};
pub use tls::{
    ChainCheck, ClientIdentity, KeyExchangeGroup, RecordLayer, ServerTrust, TlsPlan, TlsSuite,
    TlsVersion,
};
pub use tokens::TokenCounter;
pub use unix_socket::UnixSocket;
pub use watch::{MetricsSource, WatchedProcess};

/// A resolved, immutable load test.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The name that the plan gives, or one composed of the call and the kind of load.
    pub name: String,
    /// The server that calls go to.
    pub target: Target,
    /// `None`: plaintext.
    pub tls: Option<TlsPlan>,
    /// The call that the load makes.
    pub call: CallPlan,
    /// How calls arrive, and over which connections.
    pub load: LoadPlan,
    /// The objectives in the order of the plan's keys.
    pub objectives: Vec<Objective>,
    /// The server process that is watched.
    pub watch: WatchedProcess,
    /// The settings of CPU profiling; `None`: nothing is sampled.
    pub profile: Option<ProfilePlan>,
    /// Where the server publishes its own metrics; `None`: they are not read.
    pub server_metrics: Option<MetricsSource>,
    /// The seed of everything random.
    pub seed: u64,
    /// The user's labels of the run.
    pub labels: Labels,
    /// Whether every call is logged in the run directory.
    pub keep_requests: bool,
    /// Number of calls in the random sample from which spans are made, at most
    /// [`MAX_SAMPLED_CALLS`](crate::records::record::MAX_SAMPLED_CALLS); 0: none.
    pub span_sample: u32,
}

/// The server under load, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The URL as the user wrote it, which reports show as the target's name.
    pub url: String,
    /// The host name or the address, without brackets.
    pub host: String,
    /// The port; 0 only for a Unix socket.
    pub port: u16,
    /// The host's addresses, if the plan contains them; empty: the name is looked up.
    pub addresses: Vec<IpAddr>,
    /// A Unix domain socket on this machine. Host and port are then unused for connecting; requests name the host
    /// `localhost`.
    pub socket: Option<UnixSocket>,
    /// The proxy that connections go through; `None`: they are direct.
    pub proxy: Option<ForwardProxy>,
}

impl Target {
    /// Returns a target that is reached over TCP and whose name is looked up.
    pub fn new_tcp(url: impl Into<String>, host: impl Into<String>, port: u16) -> Target {
        Target {
            url: url.into(),
            host: host.into(),
            port,
            addresses: Vec::new(),
            socket: None,
            proxy: None,
        }
    }

    /// Returns the address that sockets connect to: the target, or the proxy in front of it.
    pub fn next_hop(&self) -> Cow<'_, Target> {
        let Some(proxy) = &self.proxy else {
            return Cow::Borrowed(self);
        };
        Cow::Owned(Target::new_tcp(&*self.url, &*proxy.host, proxy.port))
    }
}

/// Header fields of requests, with names in lower case. Values may be secret, so only the names are saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFields {
    /// Fields that are the same in every request.
    pub constant: Vec<(String, String)>,
    /// Fields whose values differ from call to call; `None`: there are none.
    pub varying: Option<VaryingMetadata>,
}

impl RequestFields {
    /// Returns every field of call `number`. `unix_ns`: the current time, nanoseconds since 1970.
    pub fn for_call(&self, number: u64, unix_ns: u64) -> Vec<(String, String)> {
        let mut all = self.constant.clone();
        if let Some(varying) = &self.varying {
            let moment = varying.variation.render_context(number, 0, unix_ns);
            all.extend(varying.fields.iter().map(|field| {
                let mut value = Vec::new();
                field.write(&moment, &mut value);
                (field.name.clone(), String::from_utf8_lossy(&value).into())
            }));
        }
        all
    }
}

/// The bounds that a successful query must meet to count as good. Times count from when the query was due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoodputBounds {
    /// The time to the query's first token. `None`, here and in the next two fields: no bound.
    pub first_token: Option<Duration>,
    /// The mean time from one token to the next.
    pub time_per_token: Option<Duration>,
    /// The time to the query's `done` event.
    pub query: Option<Duration>,
}

impl GoodputBounds {
    /// Returns whether the query stays within every bound.
    pub fn is_met(&self, first_token: Duration, time_per_token: Duration, query: Duration) -> bool {
        let within = |bound: Option<Duration>, time| bound.is_none_or(|bound| time <= bound);
        within(self.first_token, first_token)
            && within(self.time_per_token, time_per_token)
            && within(self.query, query)
    }
}

/// When calls arrive, over which connections they go, and when the load ends.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPlan {
    /// Open or closed loop.
    pub arrivals: ArrivalModel,
    /// The arrivals of [`ArrivalSpacing::Recorded`].
    pub recording: Option<Recording>,
    /// Whether the recording starts again when it ends.
    pub repeats: bool,
    /// The stages in order, warm-up stages first; at least one.
    pub stages: Vec<LoadStage>,
    /// Connections that are kept open (`ConnectionReuse::Always`), over all workers.
    pub connections: u32,
    /// Whether calls share connections.
    pub reuse: ConnectionReuse,
    /// Open loop: maximum number of calls in flight at once; `None`: no limit.
    pub in_flight_limit: Option<InFlightLimit>,
    /// The load stops after this many calls, not counting the warm-up's.
    pub calls: Option<u64>,
    /// Closed loop: the load stops as soon as the half-width of the rate's 95 % confidence interval is at most this
    /// share of the rate (0–1).
    pub precision: Option<f64>,
    /// Time that one call may take, from when it was due.
    pub deadline: Option<Duration>,
    /// A call that is older than this fails if its worker has received no data for this long. This limit is used
    /// instead of a deadline in a closed loop with a fixed number of calls. `None`: there is a deadline, or no limit at
    /// all.
    pub stall_timeout: Option<Duration>,
    /// Time that TCP, TLS and the protocol's handshake may take together.
    pub connect_timeout: Duration,
    /// New connections per second while connecting; `None`: not limited.
    pub connect_rate: Option<f64>,
    /// Age at which a connection is replaced; `None`: connections are kept.
    pub connection_lifetime: Option<Duration>,
    /// Number of calls after which a connection is replaced; `None`: connections are kept.
    pub calls_per_connection: Option<u32>,
    /// How long the resolved addresses of a name are used before it is looked up again.
    pub resolve_interval: Duration,
    /// Whether calls that the server certainly did not process are sent once more.
    pub retry: bool,
    /// Time that calls in flight may take after the last arrival; `None`: the run waits for all of them.
    pub drain: Option<Duration>,
    /// Number of processes that share the load; `None`: as many as the limit of file descriptors requires.
    pub processes: Option<u16>,
    /// Threads of a process; `None`: derived from cores, connections and the target's location.
    pub workers: Option<u16>,
    /// The longest busy-wait before an arrival, for precision; zero: none.
    pub spin: Duration,
    /// Open loop: calls are sent at multiples of this, counted from the load's start; zero: each call when it is due.
    pub tick: Duration,
    /// Bytes that a worker reads at a time.
    pub read_buffer: usize,
    /// Local addresses to connect from, used in turn; empty: the system chooses.
    pub source_addresses: Vec<IpAddr>,
    /// This load's share of the arrivals, where several loads share one schedule; `None`: all arrivals belong to it.
    pub batches: Option<BatchSchedule>,
    /// Whether the byte counters of TCP are read for each connection when it is closed.
    pub count_bytes: bool,
    /// Whether a load of one worker is pinned to the machine's last core, because the servers under load use the other
    /// cores.
    pub pin_last_core: bool,
}

impl LoadPlan {
    /// Returns the total length of the warm-up stages.
    pub fn warmup(&self) -> Duration {
        let stages = self.stages.iter().filter(|stage| stage.warmup);
        stages.filter_map(|stage| stage.duration).sum()
    }
}

/// The load of a plan whose `load` section is empty.
impl Default for LoadPlan {
    fn default() -> LoadPlan {
        LoadPlan {
            arrivals: ArrivalModel::Open(ArrivalSpacing::Constant),
            recording: None,
            repeats: false,
            stages: Vec::new(),
            connections: 1,
            reuse: ConnectionReuse::Always,
            in_flight_limit: None,
            calls: None,
            precision: None,
            deadline: None,
            stall_timeout: None,
            connect_timeout: Duration::from_secs(10),
            connect_rate: None,
            connection_lifetime: None,
            calls_per_connection: None,
            // The C resolver does not report how long an address is valid.
            resolve_interval: Duration::from_secs(30),
            retry: true,
            drain: Some(Duration::from_secs(10)),
            processes: None,
            workers: None,
            spin: Duration::from_micros(50),
            tick: Duration::ZERO,
            read_buffer: 128 << 10,
            source_addresses: Vec::new(),
            batches: None,
            count_bytes: false,
            pin_last_core: false,
        }
    }
}

/// One load's share of a schedule that several loads divide into batches. All arrivals of a batch go to one load. Every
/// round has each load's batches, in an order that is shuffled for each round.
///
/// A disturbance of the machine that lasts longer than a round then affects all loads alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSchedule {
    /// Number of batches in a round, over all loads that share the schedule. At least one.
    pub of: u32,
    /// The number of this load's first batch before the batches are shuffled, from 0.
    pub index: u32,
    /// Consecutive batches of a round that belong to this load, from `index` on. At least one.
    pub share: u32,
    /// Arrivals in a batch. At least one.
    pub calls: u32,
    /// The seed of the shuffles, the same for all loads.
    pub seed: u64,
    /// Whether the CPU clocks of client and server are read when a batch begins.
    pub read_cpu: bool,
    /// Time from the start of a closed loop's batch to the start of the next batch of any load. `None`: batches are
    /// counted in arrivals.
    pub slot: Option<Duration>,
}

/// Returns the part of a closed loop's time slot in which new calls start; the rest is for calls in flight to end.
pub fn batch_start_window(slot: Duration) -> Duration {
    slot * 10 / 11
}

/// One process's share of a run that is spread over several processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The shard's number, from 0.
    pub index: u32,
    /// The number of shards.
    pub of: u32,
}

impl Shard {
    /// The only shard of a run that is not spread over processes.
    pub const WHOLE_RUN: Shard = Shard { index: 0, of: 1 };

    /// Returns this shard's share of `whole`; the first shards take the remainder.
    pub fn share(self, whole: u64) -> u64 {
        let of = u64::from(self.of.max(1));
        whole / of + u64::from(u64::from(self.index) < whole % of)
    }

    /// Divides this shard into `of` sub-shards and returns number `inner` of them, as a shard of the whole run. Every
    /// shard must be divided into the same number of sub-shards, which together have exactly the shard's calls.
    #[must_use]
    pub fn sub_shard(self, inner: u32, of: u32) -> Shard {
        Shard {
            index: inner * self.of + self.index,
            of: self.of * of,
        }
    }
}

/// A part of the load with a constant rate, or a rate that changes linearly.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadStage {
    /// The stage's name, unique in the plan.
    pub name: String,
    /// Whether the stage is warm-up: it runs like the others and is left out of the totals.
    pub warmup: bool,
    /// The stage's length; `None`: it lasts until [`LoadPlan::calls`] is reached (closed loop only, last stage only).
    pub duration: Option<Duration>,
    /// Arrivals per second at the stage's start. Unused in a closed loop.
    pub rate_from: f64,
    /// Arrivals per second at the stage's end; equal to `rate_from` for a constant rate.
    pub rate_to: f64,
}

impl LoadStage {
    /// Returns a stage with a constant rate that is not warm-up.
    pub fn constant_rate(name: &str, duration: Duration, rate: f64) -> LoadStage {
        LoadStage {
            name: name.to_owned(),
            warmup: false,
            duration: Some(duration),
            rate_from: rate,
            rate_to: rate,
        }
    }
}

named! {
    /// Whether calls share connections.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ConnectionReuse by name {
        /// Calls share the plan's connections.
        Always "always",
        /// A new connection for every call.
        Never "never",
    }
}

/// A limit that the target must meet.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// The metric that is limited.
    pub metric: Metric,
    /// The stage whose calls are judged; `None`: all calls that are not warm-up.
    pub stage: Option<String>,
    /// The step of a journey whose calls are judged; `None`: all calls.
    pub step: Option<String>,
    /// Whether the limit is an upper one.
    pub is_upper: bool,
    /// The limit: nanoseconds for times, a share (0–1) for errors and users, calls per second for rates, bytes for
    /// memory.
    pub limit: f64,
    /// The objective as the user wrote it.
    pub text: String,
}

/// The metric that an objective limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// A statistic of one kind of time.
    Time(TimeMetric, Statistic),
    /// Share of calls that did not end ok.
    Errors,
    /// Share of users who stopped after a failed call.
    FailedUsers,
    /// Achieved calls per second.
    Rate,
    /// The load's [fidelity](crate::runs::run::DeliverySummary::fidelity).
    Fidelity,
    /// Share of TLS handshakes that were resumed from a ticket.
    Resumed,
    /// Resident bytes per connection.
    Memory(ConnectionEnd),
    /// Share of a model's answers that ended for this reason, one of [`Count::FINISH_REASONS`], among those that state
    /// a reason.
    Finish(Count),
}

/// A kind of time that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeMetric {
    /// Time from when a call was due to its end.
    Response,
    /// Time from a call's actual send to its end.
    Service,
    /// Time from a call's actual send to the first byte of its answer.
    FirstByte,
    /// Time from when a call was due to its actual send.
    Lag,
    /// Time to the first token or message of an answer: from when the call was due if its driver counts tokens,
    /// otherwise from its send.
    FirstToken,
    /// A time of connections or messages, or one that only some protocols measure.
    Measure(TimeMeasure),
}

impl TimeMetric {
    /// Returns whether failed calls count as slower than any limit, so that failing fast does not improve a
    /// percentile.
    pub fn counts_failures_as_slowest(self) -> bool {
        matches!(
            self,
            TimeMetric::Response
                | TimeMetric::Service
                | TimeMetric::FirstByte
                | TimeMetric::FirstToken
        )
    }
}

/// A statistic of a set of times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Statistic {
    /// A percentile, 0–100.
    Percentile(f64),
    /// The arithmetic mean.
    Mean,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The end that makes calls.
    Client,
    /// The end that answers them.
    Server,
}

#[cfg(test)]
mod tests;
