//! CPU time, memory and descriptors of processes: Plimsoll's own, and those of the server, or of the server's control
//! group, if it runs on this machine.
//!
//! The conductor reads them from /proc and the group's files once per interval. Workers read only CPU clocks, and only
//! if their load alternates with others in batches.

mod watched_processes;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, RwLock};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeSpec, TimeValLike};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use plimsoll_model::plan::BatchSchedule;
use plimsoll_model::records::record::{BatchStart, BatchTotals};
use plimsoll_model::runs::run::ResourceUsage;

pub use watched_processes::{WatchedProcesses, find_server_processes};

/// CPU time that processes have used, and the resources that they currently use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessResources {
    /// User and system time since the process began, in nanoseconds, from the scheduler's clock, which is exact even
    /// for short times.
    pub cpu_ns: u64,
    /// User time in ticks, usually of 10 ms; only used for the ratio of user to system time.
    pub user_ticks: u64,
    /// System time in ticks.
    pub system_ticks: u64,
    /// Resident set size in bytes.
    pub rss_bytes: u64,
    /// Number of open descriptors.
    pub descriptors: u64,
    /// Current number of threads.
    pub threads: u64,
}

impl ProcessResources {
    /// Returns a copy with the CPU time and ticks only.
    fn without_current_usage(self) -> ProcessResources {
        ProcessResources {
            cpu_ns: self.cpu_ns,
            user_ticks: self.user_ticks,
            system_ticks: self.system_ticks,
            ..ProcessResources::default()
        }
    }

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

/// A meter of the resources of processes ([`WatchedProcesses`]) from one reading to the next. Servers start and replace
/// worker processes, so the processes are determined again at each reading.
#[derive(Clone, Debug)]
pub struct ResourceMeter {
    watched: WatchedProcesses,
    /// The last usage of each process.
    usage_by_pid: Vec<(i32, ProcessResources)>,
    /// CPU time and ticks of processes that have ended, up to their last reading.
    ended: ProcessResources,
    /// CPU clocks of the processes, for workers to read.
    clocks: Option<Arc<ServerClocks>>,
    last: Option<ProcessResources>,
    /// Resident memory when the meter was created, in bytes; `None` after it has been reported.
    rss_before: Option<u64>,
    /// Usage when the load began; zero after it has been reported.
    at_load_start: ProcessResources,
}

impl ResourceMeter {
    /// Creates a meter; CPU time used before now does not count.
    pub fn new(watched: WatchedProcesses) -> ResourceMeter {
        let mut meter = ResourceMeter {
            watched,
            usage_by_pid: Vec::new(),
            ended: ProcessResources::default(),
            clocks: None,
            last: None,
            rss_before: None,
            at_load_start: ProcessResources::default(),
        };
        meter.last = meter.usage();
        meter.rss_before = meter.last.map(|usage| usage.rss_bytes);
        meter
    }

    /// Restarts the meter at the beginning of the load. Earlier CPU time does not count. Memory and descriptors that
    /// are in use now do count, since a short load may have closed everything before the next reading.
    pub fn restart(&mut self) {
        self.last = self.usage();
        self.at_load_start = self.last.unwrap_or_default();
    }

    /// Returns the same process ids as [`WatchedProcesses::pids`].
    pub fn pids(&self) -> &[i32] {
        self.watched.pids()
    }

    /// Returns the usage since the last reading; `None` if the processes no longer exist.
    pub fn read(&mut self) -> Option<ResourceUsage> {
        let now = self.usage()?;
        let last = self.last.replace(now).unwrap_or(now);
        let began = std::mem::take(&mut self.at_load_start);
        let cpu_us = now.cpu_ns.saturating_sub(last.cpu_ns) / 1000;
        let system_us = (cpu_us as f64 * system_time_share(last, now)).round() as u64;
        Some(ResourceUsage {
            cpu_user_us: cpu_us - system_us,
            cpu_system_us: Some(system_us),
            rss_bytes: now.rss_bytes.max(began.rss_bytes),
            rss_bytes_before: self.rss_before.take(),
            descriptors: now.descriptors.max(began.descriptors),
            threads: now.threads.max(began.threads),
        })
    }

    /// Returns the usage of the processes so far, including those that have ended since the meter was created; `None`
    /// if none exists any more.
    fn usage(&mut self) -> Option<ProcessResources> {
        let changed = self.watched.refresh();
        if let Some(clocks) = self.clocks.as_ref().filter(|_| changed) {
            clocks.update(self.watched.pids());
        }
        let now = self.watched.usage_by_pid();
        self.sum_usage(now)
    }

    /// Adds the latest readings to those of processes that have ended. For a process that is still watched but could
    /// not be read because no descriptor was free, the previous reading is used.
    fn sum_usage(&mut self, mut now: Vec<(i32, ProcessResources)>) -> Option<ProcessResources> {
        if now.is_empty() {
            return None;
        }
        for (pid, used) in std::mem::take(&mut self.usage_by_pid) {
            if now.iter().any(|(read, _)| *read == pid) {
                continue;
            }
            if self.watched.pids().contains(&pid) {
                now.push((pid, used));
            } else {
                self.ended = self.ended.plus(used.without_current_usage());
            }
        }
        let sum = now.iter().map(|(_, used)| *used);
        let sum = sum.reduce(ProcessResources::plus);
        self.usage_by_pid = now;
        Some(sum?.plus(self.ended))
    }

    fn server_clocks(&mut self) -> Arc<ServerClocks> {
        let clocks = self.clocks.get_or_insert_with(|| {
            let clocks = ServerClocks::default();
            clocks.update(self.watched.pids());
            Arc::new(clocks)
        });
        Arc::clone(clocks)
    }
}

/// The CPU clocks of a server's processes: workers read them, and the conductor adds and removes processes.
#[derive(Debug, Default)]
struct ServerClocks {
    clocks: RwLock<Vec<ServerClock>>,
    /// CPU time of processes that were removed.
    ended_ns: AtomicU64,
}

#[derive(Debug)]
struct ServerClock {
    pid: i32,
    id: ClockId,
    /// The latest reading, in nanoseconds.
    last_ns: AtomicU64,
}

impl ServerClocks {
    /// Returns the CPU time of all processes, in nanoseconds, which never decreases; `None` if none exists any more.
    fn read_ns(&self) -> Option<u64> {
        let clocks = self.clocks.read().ok()?;
        let mut sum = self.ended_ns.load(Ordering::Relaxed);
        let mut exists = false;
        for clock in clocks.iter() {
            if let Ok(used) = clock.id.now() {
                let now = Duration::from(used).as_nanos() as u64;
                clock.last_ns.fetch_max(now, Ordering::Relaxed);
                exists = true;
            }
            sum += clock.last_ns.load(Ordering::Relaxed);
        }
        exists.then_some(sum)
    }

    /// Removes the clocks of processes that are not among `pids`, and adds those that are new.
    fn update(&self, pids: &[i32]) {
        let Ok(mut clocks) = self.clocks.write() else {
            return;
        };
        clocks.retain(|clock| {
            let stays = pids.contains(&clock.pid);
            if !stays {
                let last_ns = clock.last_ns.load(Ordering::Relaxed);
                self.ended_ns.fetch_add(last_ns, Ordering::Relaxed);
            }
            stays
        });
        for pid in pids {
            if clocks.iter().all(|clock| clock.pid != *pid)
                && let Ok(id) = clock_getcpuclockid(Pid::from_raw(*pid))
            {
                clocks.push(ServerClock {
                    pid: *pid,
                    id,
                    last_ns: AtomicU64::new(0),
                });
            }
        }
    }
}

/// A meter of the CPU time of client and server for a load that alternates with others in batches. The default meter
/// measures only the client. Reading a clock takes less than a microsecond.
#[derive(Clone, Debug, Default)]
pub struct BatchMeter {
    calls: u64,
    server: Arc<ServerClocks>,
}

impl BatchMeter {
    pub(crate) fn new(turns: BatchSchedule, server: Option<&mut ResourceMeter>) -> BatchMeter {
        BatchMeter {
            calls: u64::from(turns.calls.max(1)),
            server: server.map(ResourceMeter::server_clocks).unwrap_or_default(),
        }
    }

    /// Returns the CPU time used so far if the load's arrival `number` begins a batch; otherwise `None`.
    #[inline]
    pub(crate) fn read_at_batch_start(&self, number: u64) -> Option<BatchStart> {
        number
            .is_multiple_of(self.calls)
            .then(|| self.read(number / self.calls, None))
    }

    /// Returns the CPU time used until a batch began or, after the final batch, until it ended. `done` contains the
    /// totals of calls so far; it is needed only if batches have a fixed duration.
    pub(crate) fn read(&self, turn: u64, done: Option<BatchTotals>) -> BatchStart {
        BatchStart {
            batch: turn,
            client_ns: thread_cpu().as_nanos() as u64,
            server_ns: self.server.read_ns(),
            done,
        }
    }
}

/// Returns the share of system time in the CPU time between two readings, 0 to 1; over the whole lifetime of the
/// processes if too few ticks lie between the readings.
fn system_time_share(last: ProcessResources, now: ProcessResources) -> f64 {
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

/// Returns the CPU time that the calling thread has used, which never decreases. If a sandbox denies access to the
/// thread's clock, getrusage(2) provides it in microseconds. If that is denied as well, the last reading is returned
/// and a warning is logged once.
pub fn thread_cpu() -> Duration {
    thread_local! {
        static LAST_READING: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }
    let used = read_thread_cpu(
        || ClockId::CLOCK_THREAD_CPUTIME_ID.now(),
        || getrusage(UsageWho::RUSAGE_THREAD),
    );
    let used = used.unwrap_or_else(|e| {
        static WARN_ONCE: Once = Once::new();
        WARN_ONCE.call_once(|| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{BufRead, BufReader, Write};

    #[test]
    fn meter_counts_initial_usage_and_microseconds() {
        let mut meter = ResourceMeter::new(WatchedProcesses::this_process());
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

    /// A shell that waits for a line, starts a child that burns CPU time, and waits until that has ended.
    fn forking_shell() -> std::process::Child {
        let script = "read -r _; (i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; read -r _); echo ended; read -r _";
        std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    }

    #[test]
    fn workers_that_start_and_end_later_are_counted() {
        let mut shell = forking_shell();
        let mut input = shell.stdin.take().unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let mut meter = ResourceMeter::new(WatchedProcesses::process_tree(shell.id()));
        let clocks = meter.server_clocks();
        let before = clocks.read_ns().unwrap();
        input.write_all(b"\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "done");
        let busy = meter.read().unwrap().cpu_us().unwrap();
        assert!(busy >= 1_000, "{busy}");
        assert_eq!(meter.pids().len(), 2);
        let during = clocks.read_ns().unwrap();
        assert!(during - before >= 1_000_000, "{before} {during}");
        input.write_all(b"\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "ended");
        // The worker's CPU time is neither lost nor counted again.
        let after = meter.read().unwrap().cpu_us().unwrap();
        assert!(after < busy, "{after} {busy}");
        assert_eq!(meter.pids().len(), 1);
        assert!(clocks.read_ns().unwrap() >= during);
        drop(input);
        shell.wait().unwrap();
        assert!(meter.read().is_none() && clocks.read_ns().is_none());
    }

    #[test]
    fn process_that_is_not_read_once_keeps_its_usage() {
        let mut watched = WatchedProcesses::process_tree(std::process::id());
        watched.keep_only(&[1, 2]);
        let mut meter = ResourceMeter {
            usage_by_pid: Vec::new(),
            last: None,
            ..ResourceMeter::new(watched)
        };
        let used = |cpu_ns| ProcessResources {
            cpu_ns,
            ..ProcessResources::default()
        };
        let mut sum = |now: &[(i32, u64)]| {
            let now = now.iter().map(|(pid, cpu_ns)| (*pid, used(*cpu_ns)));
            meter.sum_usage(now.collect()).map(|sum| sum.cpu_ns)
        };
        assert_eq!(sum(&[(1, 10), (2, 1_000)]), Some(1_010));
        assert_eq!(sum(&[(1, 11)]), Some(1_011));
        assert_eq!(sum(&[(1, 12), (2, 1_005)]), Some(1_017));
        // What is not watched any more has ended.
        assert_eq!(sum(&[(1, 12), (2, 1_005), (3, 7)]), Some(1_024));
        assert_eq!(sum(&[(1, 12), (2, 1_005)]), Some(1_024));
        assert_eq!(sum(&[]), None);
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
        let mut own = ResourceMeter::new(WatchedProcesses::this_process());
        let meter = BatchMeter::new(turns, Some(&mut own));
        let (first, second) = (
            meter.read_at_batch_start(0).unwrap(),
            meter.read_at_batch_start(20).unwrap(),
        );
        assert_eq!((first.batch, second.batch), (0, 1));
        assert!(meter.read_at_batch_start(1).is_none() && meter.read_at_batch_start(39).is_none());
        assert!(first.client_ns > 0 && second.client_ns > first.client_ns);
        assert!(first.server_ns < second.server_ns, "{first:?} {second:?}");
        let unwatched = BatchMeter::new(turns, None);
        assert_eq!(unwatched.read_at_batch_start(40).unwrap().server_ns, None);
    }
}
