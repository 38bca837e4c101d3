//! What a run will do, resolved: every default filled in, every unit applied.
//!
//! A [`Plan`] is made from a [`crate::spec::Spec`] (what a person typed) and never
//! changes afterwards. It holds paths to secrets, never their contents.
//!
//! Long because a plan is one value, with each of its fields explained.

mod arrivals;
mod call;
mod proxy;
mod tls;
mod tokens;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::measure::{Count, TimeMeasure};
use crate::named::named;
use crate::recording::Recording;
use crate::template::VaryingMetadata;

pub use arrivals::{Arrivals, InFlightLimit, Spacing, WhenFull};
pub use call::{Call, CallPlan, Same};
pub use proxy::{Credentials, Proxy, ProxyKind};
pub use tls::{ChainCheck, Group, Identity, RecordLayer, Suite, TlsPlan, TlsVersion, Trust};
pub use tokens::TokenCounter;

/// A resolved, immutable load test.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Given, or made of the call and the kind of load.
    pub name: String,
    /// The server that calls go to.
    pub target: Target,
    /// `None`: plaintext.
    pub tls: Option<TlsPlan>,
    /// What a call is.
    pub call: CallPlan,
    /// How calls arrive, and over which connections.
    pub load: Load,
    /// The objectives in the order of the plan's keys.
    pub objectives: Vec<Objective>,
    /// Which server process is watched.
    pub watch: Watch,
    /// The seed of everything random.
    pub seed: u64,
    /// Log every call in the run directory.
    pub keep_requests: bool,
}

/// The server that the load is for, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The URL as typed: the name of the target in reports.
    pub url: String,
    /// A name or an address, without brackets.
    pub host: String,
    /// Never 0, but for a Unix socket.
    pub port: u16,
    /// The host's addresses, where the plan gives them; empty: its name is looked up.
    pub addresses: Vec<IpAddr>,
    /// A socket of this machine: then host and port lead nowhere, and the host, `localhost`,
    /// is what requests name.
    pub socket: Option<UnixSocket>,
    /// Connections go through it.
    pub proxy: Option<Proxy>,
}

impl Target {
    /// One that is reached over TCP, and whose name is looked up.
    pub fn at(url: impl Into<String>, host: impl Into<String>, port: u16) -> Target {
        Target {
            url: url.into(),
            host: host.into(),
            port,
            addresses: Vec::new(),
            socket: None,
            proxy: None,
        }
    }

    /// What connections are made to: the target, or the proxy before it.
    pub fn reached(&self) -> Cow<'_, Target> {
        let Some(proxy) = &self.proxy else {
            return Cow::Borrowed(self);
        };
        Cow::Owned(Target::at(&*self.url, &*proxy.host, proxy.port))
    }
}

/// A Unix domain socket (unix(7)), as gRPC's name syntax has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UnixSocket {
    /// A file.
    Path(PathBuf),
    /// A name in the abstract namespace, which is in no file system.
    Abstract(String),
}

impl UnixSocket {
    /// Bytes of a path or a name (`sun_path` with its last 0).
    pub const MAX_LENGTH: usize = 107;

    /// Reads `unix:PATH`, `unix:///PATH` or `unix-abstract:NAME`; `None`: it is something else.
    ///
    /// # Errors
    /// The path or the name is not valid.
    pub fn parse(text: &str) -> Option<Result<UnixSocket, String>> {
        let (scheme, rest) = text.split_once(':')?;
        let is_abstract = match scheme {
            "unix" => false,
            "unix-abstract" => true,
            _ => return None,
        };
        let name = match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') && !is_abstract => path,
            Some(_) => {
                return Some(Err(format!(
                    "`{text}`: write unix:/PATH or unix:///PATH, or unix-abstract:NAME for a socket without a file"
                )));
            }
            None => rest,
        };
        Some(match name.len() {
            0 => Err(format!("`{text}` names no socket: write unix:/PATH")),
            n if n > UnixSocket::MAX_LENGTH => Err(format!(
                "`{text}`: a socket's path may have {} bytes, and this one has {n}: use a shorter one, or a relative one",
                UnixSocket::MAX_LENGTH
            )),
            _ if name.contains('\0') => Err(format!("{text:?} has a zero byte in it")),
            _ if is_abstract => Ok(UnixSocket::Abstract(name.to_owned())),
            _ => Ok(UnixSocket::Path(name.into())),
        })
    }
}

impl fmt::Display for UnixSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnixSocket::Path(path) => write!(f, "unix:{}", path.display()),
            UnixSocket::Abstract(name) => write!(f, "unix-abstract:{name}"),
        }
    }
}

/// Header fields of requests, names in lower case. Values may be secret: the run directory keeps only the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFields {
    /// The same in every request.
    pub constant: Vec<(String, String)>,
    /// `None`: there are no others.
    pub varying: Option<VaryingMetadata>,
}

impl RequestFields {
    /// Every field as `number` has it. `unix_ns`: now, nanoseconds since 1970.
    pub fn of(&self, number: u64, unix_ns: u64) -> Vec<(String, String)> {
        let mut all = self.constant.clone();
        if let Some(varying) = &self.varying {
            let moment = varying.variation.moment(number, 0, unix_ns);
            all.extend(varying.fields.iter().map(|field| {
                let mut value = Vec::new();
                field.write(&moment, &mut value);
                (field.name.clone(), String::from_utf8_lossy(&value).into())
            }));
        }
        all
    }
}

/// The bounds that a successful query must meet to count as good. Times are from
/// when the query was due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goodput {
    /// The time to its first token; `None`, as the next two: no bound.
    pub first_token: Option<Duration>,
    /// The mean time from one token to the next.
    pub time_per_token: Option<Duration>,
    /// The time to its `done`.
    pub query: Option<Duration>,
}

impl Goodput {
    /// No bound is exceeded.
    pub fn is_met(&self, first_token: Duration, time_per_token: Duration, query: Duration) -> bool {
        let within = |bound: Option<Duration>, time| bound.is_none_or(|bound| time <= bound);
        within(self.first_token, first_token)
            && within(self.time_per_token, time_per_token)
            && within(self.query, query)
    }
}

/// How the load arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Open or closed loop.
    pub arrivals: Arrivals,
    /// The arrivals of [`Spacing::Recorded`].
    pub recording: Option<Recording>,
    /// The recording begins anew when it ends.
    pub repeats: bool,
    /// The stages in order, warm-up stages first; at least one.
    pub stages: Vec<Stage>,
    /// Connections kept (`Reuse::Always`), over all workers.
    pub connections: u32,
    /// Whether calls share connections.
    pub reuse: Reuse,
    /// How many calls may be in flight at once; `None`: as many as are due. Open loop.
    pub in_flight_limit: Option<InFlightLimit>,
    /// Stop after this many calls, not counting the warm-up's.
    pub calls: Option<u64>,
    /// Closed loop: stop as soon as the half-width of the rate's 95 % confidence interval is
    /// this part of it (0–1).
    pub precision: Option<f64>,
    /// Time that one call may take from its actual send.
    pub deadline: Option<Duration>,
    /// Calls older than this fail when the worker has had no answer for as long. Stands for the deadline of a closed
    /// loop with a fixed number of calls; `None`: there is a deadline, or neither.
    pub stall_timeout: Option<Duration>,
    /// Time that TCP, TLS and the protocol's greeting may take together.
    pub connect_timeout: Duration,
    /// New connections a second while connecting; `None`: as fast as they come up.
    pub connect_rate: Option<f64>,
    /// A connection is replaced when it has been open for so long; `None`: it is kept.
    pub connection_lifetime: Option<Duration>,
    /// A connection is replaced after so many calls; `None`: it is kept.
    pub calls_per_connection: Option<u32>,
    /// How long the addresses of a name are used before it is looked up again.
    pub resolve_interval: Duration,
    /// Calls that the server did not take are sent once more.
    pub retry: bool,
    /// How long calls in flight may take after the last arrival; `None`: until all have ended.
    pub drain: Option<Duration>,
    /// Processes that share the load; `None`: as many as the descriptors need.
    pub processes: Option<u16>,
    /// Threads of a process; `None`: decided from cores, connections and where the target is.
    pub workers: Option<u16>,
    /// Busy-wait at most this long before an arrival, for precision; zero: never.
    pub spin: Duration,
    /// Open loop: calls leave at multiples of it, counted from the load's start; zero: each when it is due.
    pub tick: Duration,
    /// Bytes that a worker reads at a time.
    pub read_buffer: usize,
    /// Local addresses to connect from, in turn; empty: the system's choice.
    pub source_addresses: Vec<IpAddr>,
    /// Which of the arrivals are this load's, where several loads share one schedule; `None`: all.
    pub turns: Option<Turns>,
    /// Count what TCP carries for each connection, when it is closed.
    pub count_bytes: bool,
    /// Keep a load of one worker to the machine's last core, where its servers have the others.
    pub last_core: bool,
}

impl Load {
    /// How long it is warmed up for.
    pub fn warmup(&self) -> Duration {
        let stages = self.stages.iter().filter(|stage| stage.warmup);
        stages.filter_map(|stage| stage.duration).sum()
    }
}

/// What a plan comes to that asks for nothing.
impl Default for Load {
    fn default() -> Load {
        Load {
            arrivals: Arrivals::Open(Spacing::Constant),
            recording: None,
            repeats: false,
            stages: Vec::new(),
            connections: 1,
            reuse: Reuse::Always,
            in_flight_limit: None,
            calls: None,
            precision: None,
            deadline: None,
            stall_timeout: None,
            connect_timeout: Duration::from_secs(10),
            connect_rate: None,
            connection_lifetime: None,
            calls_per_connection: None,
            // The C library does not say how long an address is good for.
            resolve_interval: Duration::from_secs(30),
            retry: true,
            drain: Some(Duration::from_secs(10)),
            processes: None,
            workers: None,
            spin: Duration::from_micros(50),
            tick: Duration::ZERO,
            read_buffer: 128 << 10,
            source_addresses: Vec::new(),
            turns: None,
            count_bytes: false,
            last_core: false,
        }
    }
}

/// One load's part of a schedule that several loads share in turns: the arrivals of one turn all
/// go to one of them, and each has its turns in every round, in an order that is drawn anew for each.
///
/// What disturbs the machine for longer than a round then disturbs all of them alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Turns a round, of all loads that share the schedule. At least one.
    pub of: u32,
    /// This load's first one of them, from 0, as they are numbered before they are shuffled.
    pub index: u32,
    /// So many are this load's, from that one on. At least one.
    pub share: u32,
    /// Arrivals a turn. At least one.
    pub calls: u32,
    /// The seed of the orders, the same for all of them.
    pub seed: u64,
    /// The CPU clocks of both ends are read when a turn begins.
    pub read_cpu: bool,
    /// Time from the beginning of a closed loop's turn to that of the next one, whoever's that is.
    /// `None`: turns are of arrivals.
    pub slot: Option<Duration>,
}

/// How long calls begin in a turn of a closed loop; what is in flight then has the rest of its slot to end.
pub fn begins(slot: Duration) -> Duration {
    slot * 10 / 11
}

/// One process's part of a run that is spread over several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The shard's number, from 0.
    pub index: u32,
    /// How many shards there are.
    pub of: u32,
}

impl Shard {
    /// The only process of a run.
    pub const WHOLE_RUN: Shard = Shard { index: 0, of: 1 };

    /// This shard's part of `whole`; the first shards take what is left over.
    pub fn part(self, whole: u64) -> u64 {
        let of = u64::from(self.of.max(1));
        whole / of + u64::from(u64::from(self.index) < whole % of)
    }

    /// The `inner`th of the `of` parts that this shard is divided into, as a shard of the
    /// whole run. Every shard has to be divided into as many; together they have what
    /// the shard has.
    #[must_use]
    pub fn inner(self, inner: u32, of: u32) -> Shard {
        Shard {
            index: inner * self.of + self.index,
            of: self.of * of,
        }
    }
}

/// A stretch of the run with one rate, or a rate that changes evenly.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Unique in the plan.
    pub name: String,
    /// Run like the rest, left out of the totals.
    pub warmup: bool,
    /// `None`: until [`Load::calls`] is reached (closed loop only, last stage only).
    pub duration: Option<Duration>,
    /// Arrivals a second at the stage's start and end. Closed loop: not used.
    pub rate_from: f64,
    /// The same at its end; equal for a steady rate.
    pub rate_to: f64,
}

impl Stage {
    /// One that counts, with an even rate.
    pub fn measured(name: &str, duration: Duration, rate: f64) -> Stage {
        Stage {
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
    pub enum Reuse by name {
        /// Calls share the plan's connections.
        Always "always",
        /// A new connection for every call.
        Never "never",
    }
}

/// A promise the target is held to.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// What is limited.
    pub metric: Metric,
    /// The stage whose calls are meant; `None`: all that are not warm-up.
    pub stage: Option<String>,
    /// The limit is an upper one.
    pub below: bool,
    /// Nanoseconds for times, a share (0–1) for errors, calls a second for rates, bytes for
    /// memory.
    pub limit: f64,
    /// The objective as typed.
    pub text: String,
}

/// What an objective limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// A statistic of one kind of time.
    Time(Timed, Statistic),
    /// Share of calls that did not end ok.
    Errors,
    /// Achieved calls a second.
    Rate,
    /// The load's [fidelity](crate::run::DeliverySummary::fidelity).
    Fidelity,
    /// Share of TLS handshakes that were resumed from a ticket.
    Resumed,
    /// Resident bytes a connection.
    Memory(End),
    /// Share of answers that a model ended for one reason, of those that give one: one of [`Count::FINISH_REASONS`].
    Finish(Count),
}

/// Which of the times that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// Time from when a call was due to its end.
    Response,
    /// Time from a call's actual send to its end.
    Service,
    /// Time from a call's actual send to the first byte of its answer.
    FirstByte,
    /// Time from when a call was due to its actual send.
    Lag,
    /// Time to the first token or message of an answer: from when its call was due where its driver
    /// knows tokens, otherwise from its send.
    FirstToken,
    /// A time of connections or messages, or one that the protocol measures besides.
    Measure(TimeMeasure),
}

impl Timed {
    /// Calls that failed took longer than any limit: failing fast does not help.
    pub fn counts_failures(self) -> bool {
        matches!(
            self,
            Timed::Response | Timed::Service | Timed::FirstByte | Timed::FirstToken
        )
    }
}

/// Which figure of many times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Statistic {
    /// 0–100.
    Percentile(f64),
    /// The arithmetic mean.
    Mean,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that makes calls.
    Client,
    /// The end that answers them.
    Server,
}

/// The server process whose CPU, memory and descriptors are read every interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// The process that listens on the target's port, if it is on this machine.
    #[default]
    TargetPort,
    /// The process that listens on this port of this machine.
    Port(u16),
    /// The process with this id.
    Pid(u32),
    /// All processes that this one has started before the load.
    Started,
    /// No process.
    Nothing,
}

#[cfg(test)]
mod tests;
