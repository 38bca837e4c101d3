//! The control of a single worker, which starts at a given time and merges its intervals.

use plimsoll_engine::worker::{StopUrgency, WorkerControl, WorkerInterval};
use plimsoll_model::Time;
use plimsoll_model::records::record::RecordedInterval;

pub(crate) struct SoleWorkerControl {
    pub(crate) start: Option<Time>,
    pub(crate) total: RecordedInterval,
}

impl WorkerControl for SoleWorkerControl {
    fn stop_urgency(&self) -> StopUrgency {
        StopUrgency::Run
    }
    fn start_time(&self) -> Option<Time> {
        self.start
    }
    fn add_connections(&self, _change: i64) {}
    fn send_interval(&mut self, interval: WorkerInterval) -> Option<RecordedInterval> {
        self.total.merge(&interval.recorded);
        let mut spare = interval.recorded;
        spare.clear();
        Some(spare)
    }
}
