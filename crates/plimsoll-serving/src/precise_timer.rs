//! Timers that are exact to tens of microseconds.
//!
//! The runtime's own timer has a resolution of one millisecond, far too coarse for a server whose delay is the
//! reference value of a measurement. Here one kernel timer (`timerfd`, without the slack of sleeping threads) wakes the
//! runtime a configured lead time before the earliest deadline. The clock is polled for the remaining time, yielding
//! to other tasks in between. A deadline never fires early.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use plimsoll_engine::fault;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// The timer for one server's deadlines. Dropping the timer ends the task that watches the deadlines.
pub struct PreciseTimer {
    shared: Arc<TimerState>,
    watcher: AbortHandle,
}

struct TimerState {
    timer: AsyncFd<OwnedFd>,
    /// Wakes the watcher when the kernel timer could not be set, so that it falls back to the runtime's timer.
    set_failed: Notify,
    /// How long before a deadline the watcher starts to poll the clock; zero relies on the kernel's wake-up alone.
    lead: Duration,
    queue: Mutex<DeadlineQueue>,
}

#[derive(Default)]
struct DeadlineQueue {
    /// Wake-up senders by deadline; the number orders senders with the same deadline by registration.
    waiting: BTreeMap<(Instant, u64), oneshot::Sender<()>>,
    /// The number of the last registration.
    last_number: u64,
    /// When the kernel timer fires next.
    armed_for: Option<Instant>,
}

impl PreciseTimer {
    /// Makes the timer and starts its task. Must be called inside the tokio runtime.
    ///
    /// # Errors
    /// When the kernel refuses the timer (no descriptors left).
    pub fn new(lead: Duration) -> io::Result<PreciseTimer> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        #[expect(
            deprecated,
            reason = "its replacement is unsafe, for types whose descriptor may change; an OwnedFd's never does"
        )]
        let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
        let shared = Arc::new(TimerState {
            timer,
            set_failed: Notify::new(),
            lead,
            queue: Mutex::default(),
        });
        let watcher = tokio::spawn(watch_deadlines(Arc::clone(&shared))).abort_handle();
        Ok(PreciseTimer { shared, watcher })
    }

    /// Sleeps until `at`; returns immediately if `at` has passed.
    pub async fn sleep_until(&self, at: Instant) {
        if at <= Instant::now() {
            return;
        }
        let (wake, woken) = oneshot::channel();
        {
            let mut queue = self.shared.lock_queue();
            queue.last_number += 1;
            let number = queue.last_number;
            queue.waiting.insert((at, number), wake);
            let due = at - self.shared.lead;
            if queue.armed_for.is_none_or(|armed| due < armed) {
                self.shared.arm(&mut queue, due);
            }
        }
        // Receiving fails only during shutdown, when the sender is dropped.
        let _ = woken.await;
    }
}

impl Drop for PreciseTimer {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl TimerState {
    fn lock_queue(&self) -> MutexGuard<'_, DeadlineQueue> {
        // A panic elsewhere leaves the queue consistent: every change is a single insertion or removal.
        self.queue
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn arm(&self, queue: &mut DeadlineQueue, at: Instant) {
        // At least 1 ns, because zero would disarm the timer.
        let left = at
            .saturating_duration_since(Instant::now())
            .max(Duration::from_nanos(1));
        let spec = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            },
        };
        let set = fault::system_call("timerfd_settime").and_then(|()| {
            let flags = TimerfdTimerFlags::empty();
            Ok(timerfd_settime(self.timer.get_ref(), flags, &spec).map(drop)?)
        });
        if let Err(e) = set {
            tracing::warn!(
                "setting a timer (timerfd_settime): {e}; delays are exact to a millisecond only"
            );
            self.set_failed.notify_one();
        }
        queue.armed_for = Some(at);
    }
}

async fn watch_deadlines(shared: Arc<TimerState>) {
    let mut due = Vec::new();
    loop {
        let next = {
            let mut queue = shared.lock_queue();
            let now = Instant::now();
            while let Some(first) = queue.waiting.first_entry()
                && first.key().0 <= now
            {
                due.push(first.remove());
            }
            match queue.waiting.first_key_value().map(|(first, _)| first.0) {
                Some(at) if at - shared.lead > now => {
                    shared.arm(&mut queue, at - shared.lead);
                    None
                }
                None => {
                    queue.armed_for = None;
                    None
                }
                near => near,
            }
        };
        for wake in due.drain(..) {
            // Sending fails if the waiting call was cancelled.
            let _ = wake.send(());
        }
        if next.is_some() {
            tokio::task::yield_now().await;
            continue;
        }
        let not_set = async {
            shared.set_failed.notified().await;
            let armed = shared.lock_queue().armed_for;
            tokio::time::sleep_until(armed.unwrap_or_else(Instant::now)).await;
        };
        tokio::select! {
            ready = shared.timer.readable() => match ready {
                Ok(mut ready) => {
                    let _ = ready.try_io(|timer| {
                        rustix::io::read(timer.get_ref(), &mut [0u8; 8]).map_err(io::Error::from)
                    });
                }
                Err(e) => {
                    tracing::error!("waiting for a timer: {e}");
                    return;
                }
            },
            () = not_set => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the median lateness of our timer and of the runtime's, measured alternately.
    fn lateness(lead: Duration) -> (Duration, Duration) {
        let runtime = crate::build_runtime(Some(2)).unwrap();
        runtime.block_on(async {
            let alarms = PreciseTimer::new(lead).unwrap();
            let (mut late, mut theirs) = (Vec::new(), Vec::new());
            for i in 0..200u64 {
                let at = Instant::now() + Duration::from_micros(300 + 37 * (i % 50));
                alarms.sleep_until(at).await;
                let now = Instant::now();
                assert!(now >= at, "{:?} early", at - now);
                late.push(now - at);
                let at = Instant::now() + Duration::from_micros(300 + 37 * (i % 50));
                tokio::time::sleep_until(at).await;
                theirs.push(at.elapsed());
            }
            late.sort();
            theirs.sort();
            (late[100], theirs[100])
        })
    }

    #[test]
    fn delay_is_precise_and_never_early() {
        for lead in [Duration::ZERO, Duration::from_micros(60)] {
            let (ours, theirs) = lateness(lead);
            println!("lead {lead:?}: late {ours:?}, the runtime's own timer {theirs:?} (p50)");
            // The runtime's timer has a resolution of 1 ms. On a busy machine both are late.
            assert!(ours < theirs * 2, "{ours:?}, {theirs:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn all_deadlines_complete_on_time() {
        let alarms = Arc::new(PreciseTimer::new(Duration::from_micros(50)).unwrap());
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        // Sets later deadlines first, so that each one has to move the kernel timer.
        for i in (0..500u64).rev() {
            let alarms = Arc::clone(&alarms);
            tasks.spawn(async move {
                let at = start + Duration::from_micros(2000 + i * 20);
                alarms.sleep_until(at).await;
                (i, Instant::now() >= at)
            });
        }
        let ended = tasks.join_all().await;
        assert_eq!(ended.len(), 500);
        assert!(ended.iter().all(|(_, on_time)| *on_time));
    }

    #[tokio::test]
    async fn cancelled_deadline_does_not_block_next() {
        let alarms = PreciseTimer::new(Duration::ZERO).unwrap();
        let soon = Instant::now() + Duration::from_millis(2);
        let given_up = tokio::time::timeout(
            Duration::from_millis(1),
            alarms.sleep_until(Instant::now() + Duration::from_secs(60)),
        );
        assert!(given_up.await.is_err());
        alarms.sleep_until(soon).await;
        // Long before the cancelled deadline.
        assert!(soon.elapsed() < Duration::from_secs(30));
    }
}
