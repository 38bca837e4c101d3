//! Aggregates what several sources of one load measured, interval by interval.
//!
//! A source is a process of this machine or a shard on another. Both report by the same messages ([`super::wire`]),
//! which the caller receives; merging the intervals is left to [`IntervalMerger`]. Nothing here does I/O or reads a
//! clock.

use plimsoll_engine::worker::ConnectSummary;
use plimsoll_model::record::RequestRecord;
use plimsoll_model::run::NegotiatedTls;
use plimsoll_model::run::merge::IntervalMerger;

use super::wire::{FinishReport, ReadyReport, ShardMessage};

/// Aggregates the intervals of one load that several sources make.
pub(crate) struct IntervalAggregator {
    sources: Vec<SourceState>,
    pub(crate) intervals: IntervalMerger,
}

/// The reports of one source so far.
#[derive(Default)]
struct SourceState {
    connecting: u64,
    ready: Option<ReadyReport>,
    /// Set once the source has finished its part.
    end: Option<FinishReport>,
    /// Calls that belong to its next interval.
    requests: Vec<RequestRecord>,
}

impl IntervalAggregator {
    pub(crate) fn new(sources: usize) -> IntervalAggregator {
        IntervalAggregator {
            sources: (0..sources).map(|_| SourceState::default()).collect(),
            intervals: IntervalMerger::new(sources),
        }
    }

    /// Returns whether every source has its connections or has failed to make them.
    pub(crate) fn is_ready(&self) -> bool {
        self.sources.iter().all(|source| source.ready.is_some())
    }

    /// Returns the number of open connections while the sources connect.
    pub(crate) fn connecting(&self) -> u64 {
        let up = self.sources.iter().map(|source| source.connecting);
        up.fold(0, u64::saturating_add)
    }

    /// Returns the connection results and the number of workers of all sources that are ready.
    pub(crate) fn established(&self) -> (ConnectSummary, u32) {
        let mut established = ConnectSummary::default();
        let mut workers = 0;
        for ready in self.sources.iter().filter_map(|s| s.ready.clone()) {
            workers = u32::saturating_add(workers, ready.workers);
            established.add(ConnectSummary {
                open: ready.open,
                failed: ready.failed,
                failure: ready.failure,
                heap_bytes: None,
            });
        }
        (established, workers)
    }

    /// Adds a message of `source`. Messages that are not measurements are ignored.
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
                self.intervals.ended(source);
            }
            ShardMessage::Failed(_)
            | ShardMessage::Defect(_)
            | ShardMessage::Alive
            | ShardMessage::Clock(_) => {}
        }
    }

    /// Returns the TLS parameters that the handshakes of all sources negotiated.
    pub(crate) fn negotiated(&self) -> Option<NegotiatedTls> {
        let ends = self.sources.iter().filter_map(|s| s.end.as_ref());
        ends.filter_map(|end| end.negotiated.clone())
            .reduce(NegotiatedTls::with)
    }
}
