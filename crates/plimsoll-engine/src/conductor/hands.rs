//! The channel between the conductor and its workers, and a worker's end of it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::record::Interval;

use crate::defect::Defect;
use crate::event_loop::{Control, Established, StopLevel, WorkerInterval};
use crate::resources::{TurnMeter, thread_cpu};
use crate::stop::Stop;

/// State shared by all threads of a run.
pub(super) struct Shared {
    pub(super) stop: Stop,
    /// Start of the load in nanoseconds on the run's clock; 0 while unknown.
    pub(super) start: AtomicU64,
    pub(super) connections: AtomicI64,
}

pub(super) enum Message {
    Established(Established),
    /// An interval, with the CPU time that the worker's thread used in it, in nanoseconds.
    Interval(Box<WorkerInterval>, u64),
    Failed(io::Error),
    /// The worker with this number panicked.
    Defect(u32, Defect),
}

/// A worker's end of the channel to its conductor.
pub(super) struct Hands {
    pub(super) shared: Arc<Shared>,
    pub(super) sender: Sender<Message>,
    pub(super) spares: Receiver<Interval>,
    /// CPU time of the thread at the end of its last interval.
    pub(super) used: Duration,
    pub(super) turn_meter: Option<TurnMeter>,
}

impl Hands {
    /// Excludes the CPU time used before the load.
    pub(super) fn begin(&mut self) {
        self.used = thread_cpu();
    }
}

impl Control for Hands {
    #[inline]
    fn stop_level(&self) -> StopLevel {
        self.shared.stop.level()
    }

    fn start(&self) -> Option<Time> {
        match self.shared.start.load(Ordering::Acquire) {
            0 => None,
            start => Some(Time(start)),
        }
    }

    fn connections(&self, change: i64) {
        self.shared.connections.fetch_add(change, Ordering::Relaxed);
    }

    fn interval(&mut self, interval: WorkerInterval) -> Option<Interval> {
        // A send fails only if the run was abandoned.
        let used = thread_cpu();
        let used_in_it = used.saturating_sub(std::mem::replace(&mut self.used, used));
        let used_ns = used_in_it.as_nanos() as u64;
        let _ = self
            .sender
            .send(Message::Interval(Box::new(interval), used_ns));
        self.spares.try_recv().ok()
    }
}
