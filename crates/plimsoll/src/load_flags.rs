//! The flags that mean the same as keys of a plan. Applied to a spec they override it.
//!
//! Long because it is one list of flags, and one table of the keys that they mean.

use std::cmp::Ordering;
use std::path::PathBuf;

use clap::Args;
use plimsoll_model::spec::{CallSpec, Limit, RateSpec, Spec, TlsSpec, WatchSpec};
use plimsoll_model::units::{Period, Rate, Size};
use plimsoll_protocols::flags::TlsFlags;

use crate::failure::Failure;
use crate::origins::Origins;

/// Flags of every command that puts load on a target.
#[derive(Debug, Default, Args)]
pub(crate) struct LoadFlags {
    /// Calls a second, whatever the target does (open loop): "1000/s".
    #[arg(long, help_heading = "Load")]
    pub(crate) rate: Option<Rate>,

    /// How arrivals are spaced: constant or poisson.
    #[arg(long, value_name = "SPACING", help_heading = "Load")]
    pub(crate) arrivals: Option<String>,

    /// The number of clients, each waiting for its answer before its next call (closed loop).
    #[arg(long, alias = "concurrency", value_name = "N", help_heading = "Load")]
    pub(crate) clients: Option<u32>,

    /// A client's pause between its calls: "10ms".
    #[arg(long, value_name = "TIME", help_heading = "Load")]
    pub(crate) think: Option<Period>,

    /// Connections kept open [default: 1].
    #[arg(short = 'c', long, value_name = "N", help_heading = "Load")]
    pub(crate) connections: Option<u32>,

    /// A new connection for every call; without --rate, one a second.
    #[arg(long, help_heading = "Load")]
    pub(crate) cold: bool,

    /// This many clients, each with a connection of its own: --clients N --connections N.
    #[arg(long, alias = "no-of-clients", value_name = "N", conflicts_with_all = ["cold", "clients"], help_heading = "Load")]
    pub(crate) fleet: Option<u32>,

    /// How long to measure: "30s".
    #[arg(short = 'z', long, value_name = "TIME", help_heading = "Load")]
    pub(crate) duration: Option<Period>,

    /// Stop after this many calls, not counting the warm-up's.
    #[arg(
        short = 'n',
        long,
        aliases = ["total", "count"],
        value_name = "N",
        help_heading = "Load"
    )]
    pub(crate) calls: Option<u64>,

    /// Closed loop: stop as soon as the rate is known this precisely, at the latest after --duration:
    /// "1%" (half the width of its 95 % confidence interval).
    #[arg(long, value_name = "PERCENT", help_heading = "Load")]
    pub(crate) rate_precision: Option<String>,

    /// Warm up for this long first, left out of the totals: "5s".
    #[arg(long, value_name = "TIME", help_heading = "Load")]
    pub(crate) warmup: Option<Period>,

    /// A call fails when its answer takes longer; "none" to wait for ever [default: 10s].
    #[arg(long, value_name = "TIME", help_heading = "Load")]
    pub(crate) deadline: Option<Limit>,

    /// For TCP, TLS and the first frames together [default: 10s].
    #[arg(long, value_name = "TIME", help_heading = "Load")]
    pub(crate) connect_timeout: Option<Period>,

    /// New connections a second while connecting [default: as fast as they come up].
    #[arg(long, value_name = "RATE", help_heading = "Load")]
    pub(crate) connect_rate: Option<Rate>,

    /// Replace a connection when it has been open for this long: "30s".
    #[arg(
        long,
        value_name = "TIME",
        conflicts_with = "cold",
        help_heading = "Load"
    )]
    pub(crate) connection_lifetime: Option<Period>,

    /// Replace a connection after this many calls.
    #[arg(long, value_name = "N", conflicts_with = "cold", help_heading = "Load")]
    pub(crate) calls_per_connection: Option<u32>,

    /// Addresses of the target's name, NAME:PORT:ADDRESS,ADDRESS, in place of those that it
    /// resolves to; may be given again.
    #[arg(long, value_name = "NAME:PORT:ADDRESSES", help_heading = "Load")]
    pub(crate) resolve: Vec<String>,

    /// Connect through a proxy: http://HOST:PORT (CONNECT) or socks5://HOST:PORT; with $NAME@ before the host the
    /// variable NAME holds USER:PASSWORD.
    #[arg(long, value_name = "URL", help_heading = "Load")]
    pub(crate) proxy: Option<String>,

    /// How long a name's addresses are used before it is looked up again [default: 30s].
    #[arg(long, value_name = "TIME", help_heading = "Load")]
    pub(crate) resolve_interval: Option<Period>,

    /// How long calls in flight may take at the end [default: the deadline, at most 10s].
    #[arg(long, value_name = "TIME", help_heading = "Load")]
    pub(crate) drain: Option<Period>,

    /// An objective, such as "p99 < 10ms", "errors < 0.1%", "ttft.p99 < 1s", "resumed >= 100%"
    /// or, of one stage, "p99 at step 2 < 20ms"; may be given again.
    #[arg(long, value_name = "OBJECTIVE", help_heading = "Load")]
    pub(crate) objective: Vec<String>,

    /// Stop as soon as an objective can no longer be met, but not before this time: "5s".
    #[arg(long, value_name = "TIME", help_heading = "Load")]
    pub(crate) abort_after: Option<Period>,

    #[command(flatten)]
    pub(crate) tls: TlsFlags,

    /// A version of TLS to offer, 1.3 or 1.2; may be given again [default: 1.3].
    #[arg(long, value_name = "VERSION", help_heading = "TLS")]
    pub(crate) tls_version: Vec<String>,

    /// A cipher suite to offer, such as TLS_AES_128_GCM_SHA256; may be given again.
    #[arg(long, value_name = "SUITE", help_heading = "TLS")]
    pub(crate) suite: Vec<String>,

    /// A key-exchange group to offer, such as X25519; may be given again.
    #[arg(long, value_name = "GROUP", help_heading = "TLS")]
    pub(crate) group: Vec<String>,

    /// Resume TLS sessions from tickets.
    #[arg(long, help_heading = "TLS")]
    pub(crate) resume: bool,

    /// This part of new connections makes a full handshake, "10%", and the others resume
    /// sessions.
    #[arg(long, value_name = "PERCENT", help_heading = "TLS")]
    pub(crate) full: Option<String>,

    /// Send requests with the first bytes of a resumed session (0-RTT), where the server allows
    /// it; needs --resume. Such requests can be replayed.
    #[arg(long, help_heading = "TLS")]
    pub(crate) early_data: bool,

    /// Who opens and seals TLS records: own (in place) or library [default: own].
    #[arg(long, value_name = "WHOSE", help_heading = "TLS")]
    pub(crate) records: Option<String>,

    /// When to check the server's certificate chain: each full handshake, or once a minute
    /// for all connections that are shown the same [default: each].
    #[arg(long, value_name = "WHEN", help_heading = "TLS")]
    pub(crate) chain: Option<String>,

    /// Accept compressed certificates, and compress the client's (RFC 8879).
    #[arg(long, help_heading = "TLS")]
    pub(crate) compressed_certificates: bool,

    /// Append the secrets of all connections to this file, for Wireshark; SSLKEYLOGFILE is the
    /// same. Anyone who has the file can read the traffic.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(crate) key_log: Option<PathBuf>,

    /// The run's name.
    #[arg(long, help_heading = "Run")]
    pub(crate) name: Option<String>,

    /// The seed of random choices [default: 1].
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub(crate) seed: Option<u64>,

    /// Keep a record of every call in the run directory.
    #[arg(long, help_heading = "Run")]
    pub(crate) requests: bool,

    /// Send each call's own traceparent with its request (W3C Trace Context, sampled), and list the slowest calls with
    /// their trace ids.
    #[arg(long, help_heading = "Run")]
    pub(crate) traceparent: bool,

    /// Watch CPU and memory of this process and those it started [default: the one that listens on the target's
    /// port].
    #[arg(long, value_name = "PID", help_heading = "Run")]
    pub(crate) pid: Option<u32>,

    /// Watch the process that listens on this port of this machine, or "off".
    #[arg(
        long,
        value_name = "PORT",
        conflicts_with = "pid",
        help_heading = "Run"
    )]
    pub(crate) watch: Option<String>,

    /// Processes that share the load [default: as many as the limit of descriptors demands].
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub(crate) processes: Option<u16>,

    /// Threads that generate load, in each process [default: as many as help].
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub(crate) workers: Option<u16>,

    /// Busy-wait this long before an arrival, for precision; "0s" saves CPU [default: 50us].
    #[arg(long, value_name = "TIME", help_heading = "Run")]
    pub(crate) spin: Option<Period>,

    /// Let calls that are due within TIME leave together, at its end: fewer wake-ups, and so less CPU a call.
    /// Response times still count from when each was due [default: each leaves when it is due].
    #[arg(long, value_name = "TIME", help_heading = "Run")]
    pub(crate) tick: Option<Period>,

    /// How much to read from a socket at a time [default: 128KiB; to fetch files 256KiB].
    #[arg(long, value_name = "SIZE", help_heading = "Run")]
    pub(crate) read_buffer: Option<Size>,

    /// Local address to connect from, or a range 127.0.0.2-127.0.0.9; may be given again.
    #[arg(long, value_name = "ADDRESS", help_heading = "Run")]
    pub(crate) source: Vec<String>,
}

/// Lays the flags that were given over what they mean: keys of the same names.
macro_rules! lay {
    ($flags:ident over $spec:ident: $($key:ident),+) => {
        $( if $flags.$key.is_some() { $spec.$key.clone_from(&$flags.$key); } )+
    };
}
pub(crate) use lay;

/// A flag that may be given again, where it was.
pub(crate) fn listed<T: Clone>(typed: &[T]) -> Option<Vec<T>> {
    Some(typed.to_vec()).filter(|typed| !typed.is_empty())
}

impl LoadFlags {
    /// The plan that was typed: a call, with this load.
    ///
    /// # Errors
    /// As [`LoadFlags::apply`].
    pub(crate) fn spec(
        &self,
        target: Option<&str>,
        call: CallSpec,
        origins: &Origins,
    ) -> Result<Spec, Failure> {
        let mut spec = Spec {
            target: target.map(str::to_owned),
            call,
            ..Spec::default()
        };
        self.apply(&mut spec, origins)?;
        Ok(spec)
    }

    /// Lays the flags over `spec`.
    ///
    /// # Errors
    /// Where a flag's value is wrong by itself.
    pub(crate) fn apply(&self, spec: &mut Spec, origins: &Origins) -> Result<(), Failure> {
        self.apply_load(spec, origins);
        self.apply_tls(spec, origins);
        lay!(self over spec: name, seed);
        spec.requests = self.requests.then_some(true).or(spec.requests);
        spec.traceparent = self.traceparent.then_some(true).or(spec.traceparent);
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
            ..WatchSpec::default()
        };
        match self.watch.as_deref() {
            None => {}
            Some("off") => watch.off = Some(true),
            Some(port) => {
                watch.port = Some(port.parse().map_err(|_| {
                    Failure::usage(
                        format_args!("--watch: `{port}` is not a port"),
                        "give the port that the server listens on, or off; --pid takes a process id",
                    )
                })?);
            }
        }
        if watch != WatchSpec::default() {
            spec.watch = Some(watch);
        }
        Ok(())
    }

    fn apply_load(&self, spec: &mut Spec, origins: &Origins) {
        let load = &mut spec.load;
        // Of an open and a closed loop the one asked for more directly wins.
        let strength = |id| origins.strength(id);
        let (mut rate, mut clients) = (self.rate, self.fleet.or(self.clients));
        if rate.is_some() && clients.is_some() {
            let closed = strength("fleet").max(strength("clients"));
            match strength("rate").cmp(&closed) {
                Ordering::Less => rate = None,
                Ordering::Greater => clients = None,
                Ordering::Equal => {}
            }
        }
        if let Some(rate) = rate {
            (load.steps, load.clients, load.think) = (None, None, None);
            load.rate = Some(RateSpec::Steady(rate));
        }
        if let Some(clients) = clients {
            if rate.is_none() {
                (load.steps, load.rate, load.arrivals) = (None, None, None);
            }
            load.clients = Some(clients);
            if self.fleet.is_some() {
                load.connections = Some(clients);
            }
        }
        // How long: the file's own end makes way for the one typed.
        if self.duration.is_some() != self.calls.is_some() {
            (load.duration, load.calls) = (None, None);
        }
        lay!(self over load: arrivals, think, connections, duration, calls, warmup, connect_timeout, connect_rate);
        lay!(self over load: connection_lifetime, calls_per_connection, proxy, resolve_interval, drain, processes);
        lay!(self over load: abort_after, workers, spin, tick, read_buffer);
        load.precision = self.rate_precision.clone().or(load.precision.take());
        if self.deadline.is_some() {
            load.deadline = self.deadline;
            spec.call.forget_deadline();
        }
        load.resolve = listed(&self.resolve).or(load.resolve.take());
        load.source_addresses = listed(&self.source).or(load.source_addresses.take());
        if self.cold {
            load.reuse = Some("never".into());
            if self.connections.is_none() {
                load.connections = None;
            }
            if load.rate.is_none() && load.steps.is_none() && load.clients.is_none() {
                load.rate = Some(RateSpec::Steady(Rate(1.0)));
            }
        }
    }

    fn apply_tls(&self, spec: &mut Spec, origins: &Origins) {
        let mut tls = spec.tls.take().unwrap_or_default();
        let typed = self.tls.spec();
        // What a server is held to is one thing: the one asked for more directly wins.
        let given = [
            ("ca", typed.ca.is_some()),
            ("pin", typed.pin.is_some()),
            ("insecure", typed.insecure.is_some()),
        ];
        let given = given.iter().filter(|(_, given)| *given);
        if let Some(strongest) = given.map(|(id, _)| origins.strength(id)).max() {
            let wins = |id| origins.strength(id) == strongest;
            tls.ca = typed.ca.filter(|_| wins("ca"));
            tls.pin = typed.pin.filter(|_| wins("pin"));
            tls.insecure = typed.insecure.filter(|_| wins("insecure"));
        }
        lay!(typed over tls: crl, cert, key, server_name);
        lay!(self over tls: key_log, full, records, chain);
        tls.versions = listed(&self.tls_version).or(tls.versions);
        tls.suites = listed(&self.suite).or(tls.suites);
        tls.groups = listed(&self.group).or(tls.groups);
        tls.compressed = self
            .compressed_certificates
            .then_some(true)
            .or(tls.compressed);
        tls.resume = self.resume.then_some(true).or(tls.resume);
        tls.early_data = self.early_data.then_some(true).or(tls.early_data);
        spec.tls = Some(tls).filter(|tls| *tls != TlsSpec::default());
    }
}
