//! What several sources of one load measured, added up interval by interval.
//!
//! A source is a process of this machine, or a shard on another. What comes of it is the same
//! messages ([`Message`]); how they come is the caller's. How intervals are merged is
//! [`IntervalMerger`]'s. No I/O and no clock.

use plimsoll_engine::worker::Established;
use plimsoll_model::record::RequestRecord;
use plimsoll_model::run::NegotiatedTls;
use plimsoll_model::run::merge::IntervalMerger;

use super::wire::{End, Message, Ready};

/// One load from several sources.
pub(crate) struct Gathering {
    sources: Vec<Source>,
    pub(crate) intervals: IntervalMerger,
}

/// What one source has sent.
#[derive(Default)]
struct Source {
    connecting: u64,
    ready: Option<Ready>,
    /// It has carried its part out.
    end: Option<End>,
    /// Calls of its next interval.
    requests: Vec<RequestRecord>,
}

impl Gathering {
    pub(crate) fn new(sources: usize) -> Gathering {
        Gathering {
            sources: (0..sources).map(|_| Source::default()).collect(),
            intervals: IntervalMerger::new(sources),
        }
    }

    /// Every source has its connections, or has failed to make them.
    pub(crate) fn is_ready(&self) -> bool {
        self.sources.iter().all(|source| source.ready.is_some())
    }

    /// Connections that are up, while they come up.
    pub(crate) fn connecting(&self) -> u64 {
        let up = self.sources.iter().map(|source| source.connecting);
        up.fold(0, u64::saturating_add)
    }

    /// How connecting went over all sources that are ready, and their workers.
    pub(crate) fn established(&self) -> (Established, u32) {
        let mut established = Established::default();
        let mut workers = 0;
        for ready in self.sources.iter().filter_map(|s| s.ready.clone()) {
            workers = u32::saturating_add(workers, ready.workers);
            established.add(Established {
                open: ready.open,
                failed: ready.failed,
                failure: ready.failure,
                heap_bytes: None,
            });
        }
        (established, workers)
    }

    /// Takes what `source` sent. What is no part of a measurement changes nothing here.
    pub(crate) fn take(&mut self, source: usize, message: Message) {
        let from = &mut self.sources[source];
        match message {
            Message::Connecting(open) => from.connecting = open,
            Message::Ready(ready) => {
                from.connecting = u64::from(ready.open);
                from.ready = Some(ready);
            }
            Message::Request(request) => from.requests.push(request),
            Message::Interval(interval) => {
                let requests = std::mem::take(&mut from.requests);
                self.intervals.add(source, *interval, requests);
            }
            Message::Finished(end) => {
                from.end = Some(end);
                self.intervals.ended(source);
            }
            Message::Failed(_) | Message::Defect(_) | Message::Alive | Message::Clock(_) => {}
        }
    }

    /// What the handshakes of all sources agreed on.
    pub(crate) fn negotiated(&self) -> Option<NegotiatedTls> {
        let ends = self.sources.iter().filter_map(|s| s.end.as_ref());
        ends.filter_map(|end| end.negotiated.clone())
            .reduce(NegotiatedTls::with)
    }
}
