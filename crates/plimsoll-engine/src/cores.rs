//! Which cores the two ends of loads have that take turns: the last one is the generators', all
//! others are the servers'.
//!
//! Left to itself, the system may run one rung's server beside a busy process, and another's on an idle
//! core, for many seconds: then they differ by that. On the same cores all fare alike.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that the calling thread may use, from the first; `None`: fewer than two, so that
/// nothing is to be divided, or unknown.
fn usable() -> Option<(CpuSet, Vec<usize>)> {
    let whole = sched_getaffinity(None).ok()?;
    let cores = listed(&whole);
    (cores.len() > 1).then_some((whole, cores))
}

/// The cores that the calling thread may use, from the first; `None`: unknown.
pub(crate) fn all() -> Option<Vec<usize>> {
    Some(listed(&sched_getaffinity(None).ok()?))
}

fn listed(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect()
}

/// Keeps the calling thread to them; false where the system refuses.
pub(crate) fn use_only(cores: &[usize]) -> bool {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    sched_setaffinity(None, &set).is_ok()
}

/// Keeps the calling thread, which makes load, to the generators' core.
pub fn generator() {
    if let Some((_, cores)) = usable() {
        // Where the system refuses, everything goes on as it was.
        let _ = use_only(&cores[cores.len() - 1..]);
    }
}

/// What `start` returns, a server that it started being kept to the servers' cores: a process
/// inherits them from the thread that starts it.
pub fn for_server<T>(start: impl FnOnce() -> T) -> T {
    let Some((whole, cores)) = usable() else {
        return start();
    };
    let _ = use_only(&cores[..cores.len() - 1]);
    let started = start();
    let _ = sched_setaffinity(None, &whole);
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generators_and_servers_share_no_core() {
        // On a thread of its own, which is kept to one core for good.
        let found = std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let servers = for_server(|| sched_getaffinity(None).unwrap());
            let between = sched_getaffinity(None).unwrap();
            generator();
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
