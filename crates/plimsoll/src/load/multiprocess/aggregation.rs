//! Aggregates the measurements of several sources of one load, interval by interval.
//!
//! A source is a process on this machine, or a shard on another machine. Both send the same messages ([`super::wire`]);
//! the caller receives the messages and adds them here. [`IntervalMerger`] merges the intervals. This module does no
//! I/O and reads no clock.

use plimsoll_engine::worker::ConnectSummary;
use plimsoll_model::records::record::RequestRecord;
use plimsoll_model::runs::run::NegotiatedTls;
use plimsoll_model::runs::run::merge::IntervalMerger;

use super::wire::{FinishReport, ReadyReport, ShardMessage};

/// Aggregator of the intervals of one load with several sources.
pub(crate) struct IntervalAggregator {
    sources: Vec<SourceState>,
    pub(crate) intervals: IntervalMerger,
}

/// The reports of one source so far.
#[derive(Default)]
struct SourceState {
    connecting: u64,
    ready: Option<ReadyReport>,
    /// The final report; `None` until the source has finished its share of the load.
    end: Option<FinishReport>,
    /// Calls that belong to the source's next interval.
    requests: Vec<RequestRecord>,
}

impl IntervalAggregator {
    pub(crate) fn new(sources: usize) -> IntervalAggregator {
        IntervalAggregator {
            sources: (0..sources).map(|_| SourceState::default()).collect(),
            intervals: IntervalMerger::new(sources),
        }
    }

    /// Returns whether every source has reported that each of its connections is open, or has failed once.
    pub(crate) fn is_ready(&self) -> bool {
        self.sources.iter().all(|source| source.ready.is_some())
    }

    /// Returns the total number of connections that the sources have opened so far; for progress messages before all
    /// sources are ready.
    pub(crate) fn open_connection_count(&self) -> u64 {
        let up = self.sources.iter().map(|source| source.connecting);
        up.fold(0, u64::saturating_add)
    }

    /// Returns the combined connection results and the total number of workers of all sources that are ready.
    pub(crate) fn connect_summary(&self) -> (ConnectSummary, u32) {
        let mut established = ConnectSummary::default();
        let mut workers = 0;
        for ready in self.sources.iter().filter_map(|s| s.ready.clone()) {
            workers = u32::saturating_add(workers, ready.workers);
            established.add(ready.into_summary());
        }
        (established, workers)
    }

    /// Adds a message from `source`. Messages that contain no measurements are ignored.
    pub(crate) fn add_message(&mut self, source: usize, message: ShardMessage) {
        let from = &mut self.sources[source];
        match message {
            ShardMessage::Connecting(open) => from.connecting = open,
            ShardMessage::Ready(ready) => {
                from.connecting = u64::from(ready.open);
                from.ready = Some(ready);
            }
            ShardMessage::Request(request) => from.requests.push(request),
            ShardMessage::Interval(interval) => {
                let requests = std::mem::take(&mut from.requests);
                self.intervals.add(source, *interval, requests);
            }
            ShardMessage::Finished(end) => {
                from.end = Some(end);
                self.intervals.mark_ended(source);
            }
            ShardMessage::Failed(_)
            | ShardMessage::Defect(_)
            | ShardMessage::Alive
            | ShardMessage::Clock(_) => {}
        }
    }

    /// Returns the merged TLS parameters that the sources negotiated.
    pub(crate) fn negotiated_tls(&self) -> Option<NegotiatedTls> {
        let ends = self.sources.iter().filter_map(|s| s.end.as_ref());
        ends.filter_map(|end| end.negotiated.clone())
            .reduce(NegotiatedTls::merge)
    }
}
