//! How much the load's threads waited for CPU, and which process used it instead. Read by the conductor once
//! per interval, never by a worker.
//!
//! Processes are examined only in intervals in which the load's threads waited: reading all of a machine's
//! processes takes milliseconds.

use std::collections::HashMap;

use plimsoll_model::run::{MachineUse, OtherProcess};
use procfs::process::{Process, all_processes};
use procfs::{CurrentSI, KernelStats};

use crate::awake;

/// Shorter waits per interval occur on every machine and are not reported. µs.
const MIN_REPORTED_WAIT_US: u64 = 5_000;

/// Processes that used less CPU time cannot be what the load waited for. µs.
const MIN_REPORTED_CPU_US: u64 = 20_000;

/// Measures the machine from one interval to the next.
pub(crate) struct MachineMeter {
    cores: u32,
    stolen_us: Option<u64>,
    /// How long each thread has waited for a core, in nanoseconds.
    waited_ns: HashMap<i32, u64>,
    /// CPU time by process in µs; `None` if /proc could not be read.
    processes: Option<HashMap<i32, u64>>,
}

impl MachineMeter {
    /// Makes a meter; earlier waiting does not count.
    pub(crate) fn new() -> MachineMeter {
        MachineMeter {
            cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            stolen_us: stolen_us(),
            waited_ns: waited(),
            processes: processes(),
        }
    }

    /// Restarts the meter: earlier waiting does not count.
    pub(crate) fn restart(&mut self) {
        *self = MachineMeter::new();
    }

    /// Returns the measurements since the last reading. `server` lists the target's processes, which are not
    /// reported as another process.
    pub(crate) fn read(&mut self, server: &[i32]) -> MachineUse {
        let stolen = stolen_us();
        let stolen_us = match (stolen, self.stolen_us) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => 0,
        };
        self.stolen_us = stolen;
        let waited = waited();
        let before = |thread| self.waited_ns.get(thread).copied().unwrap_or(0);
        let waited_us = waited
            .iter()
            .map(|(thread, ns)| ns.saturating_sub(before(thread)) / 1000)
            .sum();
        self.waited_ns = waited;
        MachineUse {
            cores: self.cores,
            stolen_us,
            waited_us,
            busiest: (waited_us >= MIN_REPORTED_WAIT_US)
                .then(|| self.busiest(server))
                .flatten(),
        }
    }

    /// Returns the other process that used the most CPU time since processes were last read.
    fn busiest(&mut self, server: &[i32]) -> Option<OtherProcess> {
        let now = processes()?;
        let before = self.processes.replace(now)?;
        let own = Process::myself().ok()?.stat().ok()?;
        let mut busy: Vec<(i32, u64)> = self
            .processes
            .as_ref()?
            .iter()
            .filter(|(pid, _)| **pid != own.pid && !server.contains(pid))
            .map(|(pid, us)| {
                let before = before.get(pid).copied().unwrap_or(0);
                (*pid, us.saturating_sub(before))
            })
            .filter(|(_, used)| *used >= MIN_REPORTED_CPU_US)
            .collect();
        busy.sort_by_key(|(_, used)| std::cmp::Reverse(*used));
        busy.into_iter().find_map(|(pid, cpu_us)| {
            let stat = Process::new(pid).ok()?.stat().ok()?;
            // Skip other processes of the same load.
            let is_kin = stat.comm == own.comm && stat.ppid == own.ppid;
            let name = stat.comm;
            (!is_kin).then_some(OtherProcess { name, pid, cpu_us })
        })
    }
}

fn stolen_us() -> Option<u64> {
    let ticks = KernelStats::current().ok()?.total.steal?;
    Some(ticks * (1_000_000 / procfs::ticks_per_second().max(1)))
}

fn waited() -> HashMap<i32, u64> {
    let own = Process::myself().ok();
    let tasks = own.and_then(|process| process.tasks().ok());
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter(|task| !awake::is_spinning_thread(task.tid))
        .filter_map(|task| Some((task.tid, task.schedstat().ok()?.run_delay)))
        .collect()
}

fn processes() -> Option<HashMap<i32, u64>> {
    let tick_us = 1_000_000 / procfs::ticks_per_second().max(1);
    let found = all_processes().ok()?.flatten();
    let stats = found.filter_map(|process| process.stat().ok());
    Some(
        stats
            .map(|stat| (stat.pid, (stat.utime + stat.stime) * tick_us))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Waits until `seen` returns true.
    fn wait_until(mut seen: impl FnMut() -> bool) {
        for _ in 0..600 {
            if seen() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("not seen in 30 s");
    }

    #[test]
    fn busiest_process_excludes_server() {
        let mut machine = MachineMeter::new();
        let mut loops = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(loops.id()).unwrap();
        let mut used = 0;
        wait_until(|| {
            let found = machine.busiest(&[]);
            used += found.filter(|p| p.pid == pid).map_or(0, |p| p.cpu_us);
            used >= 100_000
        });
        assert!(machine.busiest(&[pid]).is_none_or(|p| p.pid != pid));
        loops.kill().unwrap();
        loops.wait().unwrap();
    }

    #[test]
    fn thread_cpu_wait_is_measured() {
        let mut machine = MachineMeter::new();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let cores = machine.cores;
        std::thread::scope(|scope| {
            for _ in 0..=2 * cores {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let mut waited = 0;
            wait_until(|| {
                waited += machine.read(&[]).waited_us;
                waited >= 50_000
            });
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
