//! Determines what used the CPU while the load's threads waited for it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// CPU contention on the machine in one interval; times are in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineUse {
    /// Cores of the machine.
    pub cores: u32,
    /// Time that the hypervisor took from this machine's cores (`steal` of proc_stat(5)), over all cores.
    pub stolen_us: u64,
    /// Time that threads of the load were runnable and waited for a core (`schedstat`), over all threads.
    pub waited_us: u64,
    /// The process with the most CPU time, except for the load and the watched server; left out where no other process
    /// used much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busiest: Option<OtherProcess>,
}

/// A process that is neither the load nor its server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherProcess {
    /// The process's name in the kernel, at most 15 bytes.
    pub name: String,
    /// Its process id.
    pub pid: i32,
    /// User and system CPU time, µs.
    pub cpu_us: u64,
}

impl MachineUse {
    /// Adds another interval.
    pub fn add(&mut self, other: &MachineUse) {
        let stolen_us = self.stolen_us + other.stolen_us;
        let used_us = match (&self.busiest, &other.busiest) {
            (Some(before), Some(now)) if before.pid == now.pid => Some(before.cpu_us + now.cpu_us),
            _ => None,
        };
        self.merge_same_machine(other);
        self.stolen_us = stolen_us;
        if let (Some(busiest), Some(used_us)) = (&mut self.busiest, used_us) {
            busiest.cpu_us = used_us;
        }
    }

    /// Merges the reading of another process of the same load, on the same machine and in the same interval. Stolen
    /// time and busiest process are the machine's, so they are not added. The order of merging does not matter: of two
    /// busiest processes with equal CPU time, the one with the larger id is kept.
    pub fn merge_same_machine(&mut self, other: &MachineUse) {
        self.cores = self.cores.max(other.cores);
        self.stolen_us = self.stolen_us.max(other.stolen_us);
        self.waited_us += other.waited_us;
        if Self::sort_key(&other.busiest) > Self::sort_key(&self.busiest) {
            self.busiest.clone_from(&other.busiest);
        }
    }

    /// Returns the sort key of a process. CPU time is counted in ticks of 10 ms, so it is often equal for two
    /// processes.
    fn sort_key(found: &Option<OtherProcess>) -> Option<(u64, i32, &str)> {
        found.as_ref().map(|p| (p.cpu_us, p.pid, p.name.as_str()))
    }
}

/// Minimum share, of a core's time and of the time that the load waited for a core, that a process must have used to be
/// named as a cause.
const MIN_CAUSE_SHARE: f64 = 0.01;

/// Why a load was late. The variants are ordered: the first is the one that users can influence least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LatenessCause {
    /// The hypervisor took this many per cent of the machine's CPU time.
    Host(u64),
    /// Other processes kept the load's threads waiting for this many per cent of a core; with the busiest of these
    /// processes.
    Others(u64, Option<OtherProcess>),
    /// The load's own work took this many per cent of a core.
    OwnWork(u64),
    /// None of the above: a timer fired late, or the core had to wake up.
    Timers,
}

impl LatenessCause {
    /// Determines the cause. `seconds`: the time that `machine` covers. `busiest`: the share of a core that the busiest
    /// worker used (0–1).
    pub fn determine(machine: &MachineUse, seconds: f64, busiest: f64) -> LatenessCause {
        let us = (seconds * 1e6).max(1.0);
        let percent = |part: f64| (part * 100.0).round() as u64;
        let stolen = machine.stolen_us as f64 / us / f64::from(machine.cores.max(1));
        let waited = machine.waited_us as f64 / us;
        // A process that used little CPU time can't be the cause.
        let least_us = MIN_CAUSE_SHARE * us.max(machine.waited_us as f64);
        let is_worth_naming = |p: &&OtherProcess| p.cpu_us as f64 >= least_us;
        if stolen >= 0.02 && stolen >= waited {
            LatenessCause::Host(percent(stolen))
        } else if waited >= 0.02 {
            LatenessCause::Others(
                percent(waited),
                machine.busiest.as_ref().filter(is_worth_naming).cloned(),
            )
        } else if busiest >= 0.8 {
            LatenessCause::OwnWork(percent(busiest))
        } else {
            LatenessCause::Timers
        }
    }
}

impl fmt::Display for LatenessCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LatenessCause::Host(percent) => write!(
                f,
                "the host took {percent} % of this machine's time for others (steal)"
            ),
            LatenessCause::Others(percent, busiest) => {
                write!(f, "its threads waited for CPU {percent} % of the time")?;
                match busiest {
                    Some(p) => write!(
                        f,
                        ", while {} (process {}) used {:.1} s of CPU",
                        p.name,
                        p.pid,
                        p.cpu_us as f64 / 1e6
                    ),
                    None => Ok(()),
                }
            }
            LatenessCause::OwnWork(percent) => write!(f, "a worker's own work took {percent} % of a core"),
            LatenessCause::Timers => f.write_str(
                "timers were late, or cores slow to wake: the host, other processes and its own work are not the cause",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(stolen_ms: u64, waited_ms: u64) -> MachineUse {
        MachineUse {
            cores: 2,
            stolen_us: stolen_ms * 1000,
            waited_us: waited_ms * 1000,
            busiest: Some(OtherProcess {
                name: "rustc".into(),
                pid: 7,
                cpu_us: 1_900_000,
            }),
        }
    }

    #[test]
    fn lateness_names_its_largest_cause() {
        let cause = |machine, busiest| LatenessCause::determine(&machine, 1.0, busiest).to_string();
        assert!(cause(seen(400, 0), 0.1).contains("20 % of this machine's time"));
        let others = cause(seen(0, 300), 0.99);
        assert!(others.contains("waited for CPU 30 %"), "{others}");
        assert!(others.contains("rustc (process 7) used 1.9 s"), "{others}");
        let mut idle = seen(0, 300);
        idle.busiest = idle.busiest.map(|p| OtherProcess { cpu_us: 9_000, ..p });
        assert_eq!(
            cause(idle, 0.1),
            "its threads waited for CPU 30 % of the time"
        );
        assert!(cause(seen(0, 0), 0.97).contains("97 % of a core"));
        assert!(cause(seen(0, 0), 0.1).contains("timers were late"));
    }

    #[test]
    fn merge_adds_times_and_keeps_busiest() {
        let mut both = seen(10, 20);
        let mut other = seen(1, 2);
        both.add(&other);
        assert_eq!((both.stolen_us, both.waited_us), (11_000, 22_000));
        assert_eq!(both.busiest.as_ref().unwrap().cpu_us, 3_800_000);
        both.merge_same_machine(&other);
        assert_eq!(
            both.busiest.as_ref().unwrap().cpu_us,
            3_800_000,
            "not twice"
        );
        both.waited_us = 22_000;
        other.busiest = None;
        both.add(&other);
        other.stolen_us = 50_000;
        both.merge_same_machine(&other);
        assert_eq!(both.stolen_us, 50_000);
        assert_eq!(both.busiest.unwrap().name, "rustc");
    }
}
