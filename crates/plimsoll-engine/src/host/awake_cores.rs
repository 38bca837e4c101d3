//! Prevents cores from going idle between the calls of a paced load.
//!
//! Waking an idle core takes as long as a small call, and varies: on a virtual machine the host has to schedule the
//! core again. A thread with the lowest scheduling policy (`SCHED_IDLE`, sched(7)) keeps each core busy and yields to
//! every other thread at once.

#![expect(
    unsafe_code,
    reason = "sched_setscheduler(2) reads a number by its address; rustix does not wrap it"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::thread::gettid;

use crate::host::cores;

/// Spin iterations between two checks of the stop flag, which take some microseconds.
const SPINS_PER_CHECK: u32 = 1_000;

/// Thread ids of the spinning threads, which must not count as load threads.
static SPINNING_THREADS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

fn lock_spinning_threads() -> MutexGuard<'static, Vec<i32>> {
    SPINNING_THREADS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether `thread` of this process keeps a core awake.
pub(crate) fn is_spinning_thread(thread: i32) -> bool {
    lock_spinning_threads().contains(&thread)
}

/// A guard that keeps the cores of this process awake until it is dropped.
#[derive(Debug)]
pub struct AwakeCores {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl AwakeCores {
    /// Starts a spinning thread on each core. Returns `None` if the spinning threads would use up a CPU quota (of a
    /// container), or if the system does not support the policy.
    pub fn start() -> Option<AwakeCores> {
        let cores = cores::usable_cores()?;
        let usable = thread::available_parallelism().ok()?;
        if usable.get() < cores.len() {
            return None;
        }
        let mut awake = AwakeCores {
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        };
        for core in cores {
            let over = Arc::clone(&awake.stop);
            let (ready, began) = std::sync::mpsc::channel();
            let body = move || {
                let is_idle = cores::pin_to_cores(&[core]) && set_idle_policy();
                // The receiver exists until `recv` below has returned, so sending cannot fail.
                let _ = ready.send(is_idle);
                if is_idle {
                    spin(&over);
                }
            };
            let spawned = thread::Builder::new().name("awake".to_owned()).spawn(body);
            awake.threads.push(spawned.ok()?);
            if !began.recv().unwrap_or(false) {
                return None;
            }
        }
        Some(awake)
    }
}

impl Drop for AwakeCores {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The threads cannot panic, so there is no error to handle.
            let _ = thread.join();
        }
    }
}

fn spin(over: &AtomicBool) {
    let own = gettid().as_raw_nonzero().get();
    lock_spinning_threads().push(own);
    while !over.load(Ordering::Relaxed) {
        for _ in 0..SPINS_PER_CHECK {
            std::hint::spin_loop();
        }
    }
    lock_spinning_threads().retain(|thread| *thread != own);
}

/// Gives the calling thread the `SCHED_IDLE` policy; returns whether that succeeded.
fn set_idle_policy() -> bool {
    // The kernel's `sched_param` consists of this one number. musl's has more fields, and its `sched_setscheduler`
    // always returns an error, hence the raw system call.
    let priority: libc::c_int = 0;
    let number = libc::SYS_sched_setscheduler;
    // SAFETY: `priority` outlives the call, which only reads it; thread id 0 is the calling thread.
    unsafe { libc::syscall(number, 0, libc::SCHED_IDLE, &raw const priority) == 0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use procfs::process::Process;

    use super::*;

    fn policies() -> Vec<(i32, Option<u32>)> {
        let tasks = Process::myself().unwrap().tasks().unwrap();
        let tasks = tasks.flatten().filter_map(|task| task.stat().ok());
        let awake = tasks.filter(|stat| stat.comm == "awake");
        awake.map(|stat| (stat.pid, stat.policy)).collect()
    }

    #[test]
    fn idle_thread_keeps_each_core_awake() {
        let Some(awake) = AwakeCores::start() else {
            // A container's CPU quota applies.
            let cores = cores::usable_cores().unwrap().len();
            assert!(thread::available_parallelism().unwrap().get() < cores);
            return;
        };
        let found = policies();
        assert_eq!(found.len(), cores::usable_cores().unwrap().len());
        let lowest = u32::try_from(libc::SCHED_IDLE).unwrap();
        assert!(
            found.iter().all(|(_, policy)| *policy == Some(lowest)),
            "{found:?}"
        );
        drop(awake);
        // The kernel wakes the joining thread before it removes the ended one from its list: up to a minute
        // earlier on a busy machine.
        for _ in 0..60_000 {
            if policies().is_empty() {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("{:?}", policies());
    }
}
