//! Measures how long the load's threads waited for a CPU, and which process used it in the meantime. The conductor
//! reads this once per interval; workers never do.
//!
//! Processes are examined only if the load's threads had to wait in the interval: reading all processes of a machine
//! takes milliseconds.

use std::collections::HashMap;

use plimsoll_model::runs::run::{MachineUse, OtherProcess};
use procfs::process::{Process, all_processes};
use procfs::{CurrentSI, KernelStats};

use crate::host::awake_cores;

/// Minimum wait per interval that is reported, in µs. Shorter waits occur on every machine.
const MIN_REPORTED_WAIT_US: u64 = 5_000;

/// Minimum CPU time of a reported process, in µs. Processes that used less cannot have caused the wait.
const MIN_REPORTED_CPU_US: u64 = 20_000;

/// A meter of the machine's CPU use from one interval to the next.
pub(crate) struct MachineMeter {
    cores: u32,
    stolen_us: Option<u64>,
    /// Total time that each thread has waited for a core, in nanoseconds.
    waited_ns: HashMap<i32, u64>,
    /// CPU time by process in µs; `None` if /proc could not be read.
    processes: Option<HashMap<i32, u64>>,
}

impl MachineMeter {
    /// Creates a meter; earlier waits do not count.
    pub(crate) fn new() -> MachineMeter {
        MachineMeter {
            cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            stolen_us: stolen_us(),
            waited_ns: thread_wait_times(),
            processes: process_cpu_times(),
        }
    }

    /// Restarts the meter; earlier waits do not count.
    pub(crate) fn restart(&mut self) {
        *self = MachineMeter::new();
    }

    /// Returns the measurements since the last reading. `server` contains the target's process ids, which are excluded
    /// from the search for the busiest process.
    pub(crate) fn read(&mut self, server: &[i32]) -> MachineUse {
        let stolen = stolen_us();
        let stolen_us = match (stolen, self.stolen_us) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => 0,
        };
        self.stolen_us = stolen;
        let waited = thread_wait_times();
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
                .then(|| self.busiest_other_process(server))
                .flatten(),
        }
    }

    /// Returns the process, other than the generator and the target, that used the most CPU time since the last
    /// reading.
    fn busiest_other_process(&mut self, server: &[i32]) -> Option<OtherProcess> {
        let now = process_cpu_times()?;
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
            // Other processes of the same load do not count.
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

fn thread_wait_times() -> HashMap<i32, u64> {
    let own = Process::myself().ok();
    let tasks = own.and_then(|process| process.tasks().ok());
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter(|task| !awake_cores::is_spinning_thread(task.tid))
        .filter_map(|task| Some((task.tid, task.schedstat().ok()?.run_delay)))
        .collect()
}

fn process_cpu_times() -> Option<HashMap<i32, u64>> {
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
            let found = machine.busiest_other_process(&[]);
            used += found.filter(|p| p.pid == pid).map_or(0, |p| p.cpu_us);
            used >= 100_000
        });
        assert!(
            machine
                .busiest_other_process(&[pid])
                .is_none_or(|p| p.pid != pid)
        );
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
