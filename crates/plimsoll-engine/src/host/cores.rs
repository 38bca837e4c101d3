//! Separates the cores of client and server for loads that alternate in batches: the generators use the last
//! core, the servers all others.
//!
//! Without this separation, the scheduler may run the server of one rung (one of the compared variants) next to a busy
//! process, and that of another on an idle core. This can last for many seconds and would look like a difference
//! between the rungs.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the calling thread's CPU affinity and its cores in ascending order; `None` if there are fewer than two
/// cores, or they are unknown.
fn separable_cores() -> Option<(CpuSet, Vec<usize>)> {
    let whole = sched_getaffinity(None).ok()?;
    let cores = list_cores(&whole);
    (cores.len() > 1).then_some((whole, cores))
}

/// Returns the cores that the calling thread may use, in ascending order; `None` if they are unknown.
pub(crate) fn usable_cores() -> Option<Vec<usize>> {
    Some(list_cores(&sched_getaffinity(None).ok()?))
}

fn list_cores(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect()
}

/// Restricts the calling thread to `cores`; returns false if the system refuses.
pub(crate) fn pin_to_cores(cores: &[usize]) -> bool {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    sched_setaffinity(None, &set).is_ok()
}

/// Restricts the calling thread to the generators' core.
pub fn pin_to_generator_core() {
    if let Some((_, cores)) = separable_cores() {
        // If the system refuses, the thread keeps its cores.
        let _ = pin_to_cores(&cores[cores.len() - 1..]);
    }
}

/// Runs `start` on the servers' cores and returns its result; processes that it starts inherit these cores.
pub fn run_on_server_cores<T>(start: impl FnOnce() -> T) -> T {
    let Some((whole, cores)) = separable_cores() else {
        return start();
    };
    let _ = pin_to_cores(&cores[..cores.len() - 1]);
    let started = start();
    let _ = sched_setaffinity(None, &whole);
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generators_and_servers_share_no_core() {
        // The test uses a thread of its own, which stays restricted to one core.
        let found = std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let servers = run_on_server_cores(|| sched_getaffinity(None).unwrap());
            let between = sched_getaffinity(None).unwrap();
            pin_to_generator_core();
            (before, servers, between, sched_getaffinity(None).unwrap())
        });
        let (before, servers, between, generators) = found.join().unwrap();
        assert_eq!(before, between);
        let all = before.count();
        if all > 1 {
            assert_eq!((servers.count(), generators.count()), (all - 1, 1));
            assert!((0..CpuSet::MAX_CPU).all(|n| !(servers.is_set(n) && generators.is_set(n))));
        }
    }
}
