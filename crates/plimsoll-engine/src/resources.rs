//! CPU time, memory and descriptors of processes: Plimsoll's own and, where it runs on this machine, the server's, or of
//! its control group.
//!
//! The conductor reads them from /proc and the group's files once per interval. Workers read only CPU clocks, and only if their load
//! alternates with others in batches.
//!
//! Long because each resource is read, compared and tested in one place.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeSpec, TimeValLike};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use plimsoll_model::plan::{BatchSchedule, UnixSocket, WatchedProcess};
use plimsoll_model::record::{BatchStart, BatchTotals};
use plimsoll_model::run::ResourceUsage;
use procfs::net::{TcpState, UnixState};
use procfs::process::Process;

use crate::address::Address;
use crate::cgroup::Cgroup;

/// CPU time that processes have used, and resources that they hold now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessResources {
    /// User and system time since the process began, in nanoseconds, from the scheduler's clock: exact even
    /// for short times.
    pub cpu_ns: u64,
    /// User time in ticks, mostly of 10 ms: only used for the ratio of user to system time.
    pub user_ticks: u64,
    /// System time in ticks.
    pub system_ticks: u64,
    /// Resident set size.
    pub rss_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads at this moment.
    pub threads: u64,
}

impl ProcessResources {
    fn plus(self, other: ProcessResources) -> ProcessResources {
        ProcessResources {
            cpu_ns: self.cpu_ns + other.cpu_ns,
            user_ticks: self.user_ticks + other.user_ticks,
            system_ticks: self.system_ticks + other.system_ticks,
            rss_bytes: self.rss_bytes + other.rss_bytes,
            descriptors: self.descriptors + other.descriptors,
            threads: self.threads + other.threads,
        }
    }
}

/// One or more processes that are measured together, such as the workers of a server that share a port.
#[derive(Clone, Debug)]
pub struct WatchedProcesses {
    pids: Vec<i32>,
    /// The group that has them, and whose usage counts in place of theirs.
    group: Option<Cgroup>,
}

impl WatchedProcesses {
    fn of(pids: Vec<i32>) -> WatchedProcesses {
        WatchedProcesses { pids, group: None }
    }

    /// Returns the processes of a control group, whose own CPU time and memory count, with those of processes that have
    /// ended or are yet to begin.
    pub fn in_group(group: Cgroup) -> WatchedProcesses {
        WatchedProcesses {
            pids: group.pids(),
            group: Some(group),
        }
    }

    /// Returns this process, without its descendants.
    pub fn own() -> WatchedProcesses {
        WatchedProcesses::of(vec![i32::try_from(std::process::id()).unwrap_or(0)])
    }

    /// Returns the process and its current descendants.
    pub fn pid(pid: u32) -> WatchedProcesses {
        let mut pids: Vec<i32> = i32::try_from(pid).into_iter().collect();
        let parents: Vec<(i32, i32)> = procfs::process::all_processes()
            .into_iter()
            .flatten()
            .filter_map(|process| process.ok()?.stat().ok())
            .map(|stat| (stat.pid, stat.ppid))
            .collect();
        let mut next = 0;
        while let Some(parent) = pids.get(next).copied() {
            let children = parents.iter().filter(|(_, of)| *of == parent);
            pids.extend(children.map(|(child, _)| *child));
            next += 1;
        }
        WatchedProcesses::of(pids)
    }

    /// Returns the current descendants of this process, without itself.
    pub fn started() -> WatchedProcesses {
        let mut watched = WatchedProcesses::pid(std::process::id());
        let own = WatchedProcesses::own();
        watched.pids.retain(|pid| !own.pids.contains(pid));
        watched
    }

    /// Returns the processes that listen on one of `addresses` on this machine; `None` if there are none that
    /// this user may inspect.
    pub fn listening_on(addresses: &[Address]) -> Option<WatchedProcesses> {
        let sockets = listening_sockets(addresses);
        if sockets.is_empty() {
            return None;
        }
        let mut pids = Vec::new();
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(pid) = pid
                && holds_any_socket(&entry.path().join("fd"), &sockets)
            {
                pids.push(pid);
            }
        }
        (!pids.is_empty()).then(|| WatchedProcesses::of(pids))
    }

    /// Returns the process ids, whether or not they still run.
    pub fn pids(&self) -> &[i32] {
        &self.pids
    }

    /// Returns the sum of their usage; `None` if none of them exists any more.
    pub fn usage(&self) -> Option<ProcessResources> {
        match &self.group {
            Some(group) => usage_of_group(group),
            None => sum_of(&self.pids),
        }
    }
}

fn sum_of(pids: &[i32]) -> Option<ProcessResources> {
    pids.iter()
        .filter_map(|pid| usage_of(*pid))
        .reduce(ProcessResources::plus)
}

/// Returns what a group has used. Descriptors and threads are those of its present processes, and so is memory where the
/// kernel does not account for it by group.
fn usage_of_group(group: &Cgroup) -> Option<ProcessResources> {
    let used = group.usage()?;
    let present = sum_of(&group.pids()).unwrap_or_default();
    Some(ProcessResources {
        cpu_ns: used.cpu_us * 1000,
        // Only their ratio is used.
        user_ticks: used.user_us,
        system_ticks: used.system_us,
        rss_bytes: used.memory_bytes.unwrap_or(present.rss_bytes),
        ..present
    })
}

/// Measures the resources of processes ([`WatchedProcesses`]) from one reading to the next.
#[derive(Clone, Debug)]
pub struct ResourceMeter {
    watched: WatchedProcesses,
    last: Option<ProcessResources>,
    /// Resident memory when the meter was made, in bytes; `None` once it was reported.
    rss_before: Option<u64>,
    /// Usage when the load began; zero once it was reported.
    at_load_start: ProcessResources,
}

impl ResourceMeter {
    /// Makes a meter; CPU time used before now does not count.
    pub fn new(watched: WatchedProcesses) -> ResourceMeter {
        let last = watched.usage();
        ResourceMeter {
            watched,
            last,
            rss_before: last.map(|usage| usage.rss_bytes),
            at_load_start: ProcessResources::default(),
        }
    }

    /// Restarts at the beginning of the load: earlier CPU time does not count, but the resources held now do,
    /// since a short load may have closed everything before the next reading.
    pub fn restart(&mut self) {
        self.last = self.watched.usage();
        self.at_load_start = self.last.unwrap_or_default();
    }

    /// Returns the process ids, as [`WatchedProcesses::pids`].
    pub fn pids(&self) -> &[i32] {
        self.watched.pids()
    }

    /// Returns the usage since the last reading; `None` when the processes are gone.
    pub fn read(&mut self) -> Option<ResourceUsage> {
        let now = self.watched.usage()?;
        let last = self.last.replace(now).unwrap_or(now);
        let began = std::mem::take(&mut self.at_load_start);
        let cpu_us = now.cpu_ns.saturating_sub(last.cpu_ns) / 1000;
        let system_us = (cpu_us as f64 * system_share(last, now)).round() as u64;
        Some(ResourceUsage {
            cpu_user_us: cpu_us - system_us,
            cpu_system_us: Some(system_us),
            rss_bytes: now.rss_bytes.max(began.rss_bytes),
            rss_bytes_before: self.rss_before.take(),
            descriptors: now.descriptors.max(began.descriptors),
            threads: now.threads.max(began.threads),
        })
    }
}

/// The CPU clocks of client and server for a load that alternates with others in batches; by default without
/// a server. Reading a clock takes less than a microsecond.
#[derive(Clone, Debug, Default)]
pub struct BatchMeter {
    calls: u64,
    server: Vec<ClockId>,
}

impl BatchMeter {
    pub(crate) fn new(turns: BatchSchedule, server: Option<&ResourceMeter>) -> BatchMeter {
        let pids = server.map_or(&[][..], ResourceMeter::pids).iter();
        let clocks = pids.filter_map(|pid| clock_getcpuclockid(Pid::from_raw(*pid)).ok());
        BatchMeter {
            calls: u64::from(turns.calls.max(1)),
            server: clocks.collect(),
        }
    }

    /// Returns the CPU time used so far if the load's arrival `number` begins a batch; otherwise `None`.
    #[inline]
    pub(crate) fn began(&self, number: u64) -> Option<BatchStart> {
        number
            .is_multiple_of(self.calls)
            .then(|| self.read(number / self.calls, None))
    }

    /// Returns the CPU time used at the beginning of a batch, or at the end of the last. `done` holds the
    /// calls so far, where batches are of fixed time.
    pub(crate) fn read(&self, turn: u64, done: Option<BatchTotals>) -> BatchStart {
        let used = |clock: &ClockId| Some(Duration::from(clock.now().ok()?).as_nanos() as u64);
        BatchStart {
            batch: turn,
            client_ns: thread_cpu().as_nanos() as u64,
            server_ns: if self.server.is_empty() {
                None
            } else {
                self.server.iter().map(used).sum()
            },
            done,
        }
    }
}

/// Returns the share of system time between two readings, 0 to 1; over the whole lifetime if too few ticks
/// lie between them.
fn system_share(last: ProcessResources, now: ProcessResources) -> f64 {
    const MIN_TICKS: u64 = 20;
    let user = now.user_ticks.saturating_sub(last.user_ticks);
    let system = now.system_ticks.saturating_sub(last.system_ticks);
    let (user, system) = if user + system >= MIN_TICKS {
        (user, system)
    } else {
        (now.user_ticks, now.system_ticks)
    };
    system as f64 / (user + system).max(1) as f64
}

/// Returns the server processes that the plan asks to measure, if they can be found.
pub fn server_of(watch: &WatchedProcess, target: &[Address]) -> Option<WatchedProcesses> {
    match *watch {
        WatchedProcess::TargetPort => WatchedProcesses::listening_on(target),
        WatchedProcess::Port(port) => {
            let hosts = target.iter().map(Address::ip);
            let hosts = hosts.map(|ip| ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)));
            let at_port = hosts.map(|ip| Address::Tcp(SocketAddr::new(ip, port)));
            WatchedProcesses::listening_on(&at_port.collect::<Vec<_>>())
        }
        WatchedProcess::Pid(pid) => Some(WatchedProcesses::pid(pid)),
        WatchedProcess::Group(ref name) => {
            let group = Cgroup::find(name).ok()?;
            Some(WatchedProcesses::in_group(group))
        }
        WatchedProcess::Started => Some(WatchedProcesses::started()),
        WatchedProcess::Nothing => None,
    }
}

fn listening_sockets(addresses: &[Address]) -> HashSet<u64> {
    let takes = |local: SocketAddr, address: &SocketAddr| {
        local.port() == address.port()
            && (local.ip().is_unspecified() || same_host(local.ip(), address.ip()))
    };
    let (mut tcp, mut unix) = (Vec::new(), Vec::new());
    for address in addresses {
        match address {
            Address::Tcp(address) => tcp.push(*address),
            Address::Unix(socket) => unix.extend(possible_names(socket)),
        }
    }
    let entries = [procfs::net::tcp(), procfs::net::tcp6()];
    let networked = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            entry.state == TcpState::Listen
                && tcp
                    .iter()
                    .any(|address| takes(entry.local_address, address))
        })
        .map(|entry| entry.inode);
    let local = procfs::net::unix()
        .into_iter()
        .flatten()
        // Accepted sockets have their listener's name too, but are connected.
        .filter(|entry| matches!(entry.state, UnixState::UNCONNECTED))
        .filter(|entry| entry.path.as_ref().is_some_and(|path| unix.contains(path)))
        .map(|entry| entry.inode);
    networked.chain(local).collect()
}

/// Returns the names under which the kernel may list a socket: it keeps the path that the server used, which
/// may differ from ours.
fn possible_names(socket: &UnixSocket) -> Vec<PathBuf> {
    match socket {
        UnixSocket::Abstract(name) => vec![format!("@{name}").into()],
        UnixSocket::Path(path) => {
            let whole = std::path::absolute(path).ok();
            let real = path.canonicalize().ok();
            [Some(path.clone()), whole, real]
                .into_iter()
                .flatten()
                .collect()
        }
    }
}

/// Returns whether a process's descriptors include one of the sockets. Processes of other users cannot be read and
/// are skipped. Each descriptor takes only one `readlink`, since a busy machine has tens of thousands.
fn holds_any_socket(descriptors: &Path, sockets: &HashSet<u64>) -> bool {
    let Ok(entries) = fs::read_dir(descriptors) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let Ok(target) = fs::read_link(entry.path()) else {
            return false;
        };
        target
            .to_str()
            .and_then(|name| {
                name.strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .parse()
                    .ok()
            })
            .is_some_and(|inode| sockets.contains(&inode))
    })
}

fn same_host(a: IpAddr, b: IpAddr) -> bool {
    a.to_canonical() == b.to_canonical()
}

/// Returns the CPU time that the calling thread has used, which never decreases. If a sandbox refuses the
/// thread's clock, the kernel's accounting gives it in microseconds. If that is refused as well, the last
/// reading is returned and a warning is logged once.
pub fn thread_cpu() -> Duration {
    thread_local! {
        static LAST_READING: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }
    let used = read_thread_cpu(
        || ClockId::CLOCK_THREAD_CPUTIME_ID.now(),
        || getrusage(UsageWho::RUSAGE_THREAD),
    );
    let used = used.unwrap_or_else(|e| {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            tracing::warn!(
                "the CPU time of threads can't be read: {e}: reported CPU times are too low"
            );
        });
        Duration::ZERO
    });
    let used = used.max(LAST_READING.get());
    LAST_READING.set(used);
    used
}

fn read_thread_cpu(
    clock: impl FnOnce() -> nix::Result<TimeSpec>,
    accounting: impl FnOnce() -> nix::Result<nix::sys::resource::Usage>,
) -> nix::Result<Duration> {
    match clock() {
        Ok(used) => Ok(used.into()),
        Err(_) => {
            let used = accounting()?;
            let both = used.user_time() + used.system_time();
            let micros = u64::try_from(both.num_microseconds()).unwrap_or(0);
            Ok(Duration::from_micros(micros))
        }
    }
}

fn usage_of(pid: i32) -> Option<ProcessResources> {
    let process = Process::new(pid).ok()?;
    let stat = process.stat().ok()?;
    let clock = clock_getcpuclockid(Pid::from_raw(pid)).ok()?;
    let used = clock.now().ok()?;
    Some(ProcessResources {
        cpu_ns: u64::try_from(Duration::from(used).as_nanos()).ok()?,
        user_ticks: stat.utime,
        system_ticks: stat.stime,
        rss_bytes: stat.rss * procfs::page_size(),
        descriptors: process.fd_count().unwrap_or(0) as u64,
        threads: u64::try_from(stat.num_threads).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn process_is_found_by_listening_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let watched = WatchedProcesses::listening_on(&[address.into()]).unwrap();
        assert_eq!(watched.pids(), WatchedProcesses::own().pids());
        let usage = watched.usage().unwrap();
        assert!(usage.rss_bytes > 100_000 && usage.descriptors > 3 && usage.threads >= 1);
        drop(listener);
        assert!(WatchedProcesses::listening_on(&[address.into()]).is_none());
    }

    #[test]
    fn process_is_found_by_unix_socket() {
        let path = std::env::temp_dir().join(format!("plimsoll-{}.sock", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let address = [Address::Unix(UnixSocket::Path(path.clone()))];
        let found = WatchedProcesses::listening_on(&address);
        fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap().pids(), WatchedProcesses::own().pids());
        drop(listener);
        assert!(WatchedProcesses::listening_on(&address).is_none());
    }

    #[test]
    fn meter_counts_initial_usage_and_microseconds() {
        let mut meter = ResourceMeter::new(WatchedProcesses::own());
        // Far more than other tests of this process open and close in the meantime.
        let files: Vec<_> = (0..400).map(|_| fs::File::open("/dev/null")).collect();
        meter.restart();
        drop(files);
        let end = thread_cpu() + Duration::from_millis(3);
        let mut turns = 0u64;
        while thread_cpu() < end {
            turns = std::hint::black_box(turns + 1);
        }
        let used = meter.read().unwrap();
        // Far less than a tick, and still measured.
        assert!(used.cpu_us().unwrap() >= 3_000, "{used:?}");
        assert!(used.descriptors >= 400, "{used:?}");
        assert!(used.rss_bytes_before.is_some_and(|bytes| bytes > 100_000));
        let later = meter.read().unwrap();
        assert!(later.descriptors < used.descriptors && later.rss_bytes_before.is_none());
    }

    #[test]
    fn thread_cpu_falls_back_to_getrusage() {
        let accounting = || getrusage(UsageWho::RUSAGE_THREAD);
        let refused = || Err(nix::Error::EPERM);
        let before = thread_cpu();
        let accounted = read_thread_cpu(refused, accounting).unwrap();
        let after = thread_cpu();
        // The accounting counts in whole microseconds, of user and of system time.
        let rounding = Duration::from_micros(2);
        assert!(
            before <= accounted + rounding && accounted <= after,
            "{before:?} {accounted:?} {after:?}"
        );
        let neither = read_thread_cpu(refused, || Err(nix::Error::EINVAL));
        assert_eq!(neither, Err(nix::Error::EINVAL));
    }

    #[test]
    fn watched_process_includes_children() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let watched = WatchedProcesses::pid(std::process::id());
        let started = WatchedProcesses::started();
        assert!(!started.pids().contains(&WatchedProcesses::own().pids()[0]));
        assert!(started.pids().contains(&(child.id() as i32)));
        child.kill().unwrap();
        let pid = i32::try_from(child.wait().map(|_| child.id()).unwrap()).unwrap();
        assert_eq!(
            watched.pids().first(),
            WatchedProcesses::own().pids().first()
        );
        assert!(watched.pids().contains(&pid), "{watched:?}");
    }

    #[test]
    fn exited_process_has_no_usage() {
        assert!(WatchedProcesses::pid(i32::MAX as u32).usage().is_none());
    }

    #[test]
    fn batch_start_reads_cpu_clocks() {
        let turns = BatchSchedule {
            of: 2,
            index: 0,
            share: 1,
            calls: 20,
            seed: 1,
            read_cpu: true,
            slot: None,
        };
        let meter = BatchMeter::new(turns, Some(&ResourceMeter::new(WatchedProcesses::own())));
        let (first, second) = (meter.began(0).unwrap(), meter.began(20).unwrap());
        assert_eq!((first.batch, second.batch), (0, 1));
        assert!(meter.began(1).is_none() && meter.began(39).is_none());
        assert!(first.client_ns > 0 && second.client_ns > first.client_ns);
        assert!(first.server_ns < second.server_ns, "{first:?} {second:?}");
        let unwatched = BatchMeter::new(turns, None);
        assert_eq!(unwatched.began(40).unwrap().server_ns, None);
    }
}
