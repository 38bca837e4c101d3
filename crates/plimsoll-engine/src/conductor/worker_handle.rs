//! The channel between the conductor and its workers, and a worker's end of it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::records::record::RecordedInterval;

use crate::defect::PanicDescription;
use crate::event_loop::{ConnectSummary, StopUrgency, WorkerControl, WorkerInterval};
use crate::host::resources::{BatchMeter, thread_cpu};
use crate::stop_flag::StopFlag;

/// State shared by all threads of a run.
pub(super) struct SharedRunState {
    pub(super) stop: StopFlag,
    /// Start of the load in nanoseconds on the run's clock; 0 while unknown.
    pub(super) start: AtomicU64,
    pub(super) connections: AtomicI64,
}

pub(super) enum WorkerMessage {
    Established(ConnectSummary),
    /// A completed interval, and the CPU time in nanoseconds that the worker's thread used in it.
    Interval(Box<WorkerInterval>, u64),
    Failed(io::Error),
    /// The worker with this number panicked.
    Defect(u32, PanicDescription),
}

/// A worker's end of the channel to its conductor.
pub(super) struct WorkerHandle {
    pub(super) shared: Arc<SharedRunState>,
    pub(super) sender: Sender<WorkerMessage>,
    pub(super) spares: Receiver<RecordedInterval>,
    /// CPU time of the thread at the end of its last interval.
    pub(super) last_cpu: Duration,
    pub(super) batch_meter: Option<BatchMeter>,
}

impl WorkerHandle {
    /// Excludes the CPU time used before the load.
    pub(super) fn reset_cpu_time(&mut self) {
        self.last_cpu = thread_cpu();
    }
}

impl WorkerControl for WorkerHandle {
    #[inline]
    fn stop_urgency(&self) -> StopUrgency {
        self.shared.stop.level()
    }

    fn start_time(&self) -> Option<Time> {
        match self.shared.start.load(Ordering::Acquire) {
            0 => None,
            start => Some(Time(start)),
        }
    }

    fn add_connections(&self, change: i64) {
        self.shared.connections.fetch_add(change, Ordering::Relaxed);
    }

    fn send_interval(&mut self, interval: WorkerInterval) -> Option<RecordedInterval> {
        let used = thread_cpu();
        let used_in_it = used.saturating_sub(std::mem::replace(&mut self.last_cpu, used));
        let used_ns = used_in_it.as_nanos() as u64;
        // A send fails only if the run was abandoned.
        let _ = self
            .sender
            .send(WorkerMessage::Interval(Box::new(interval), used_ns));
        self.spares.try_recv().ok()
    }
}
