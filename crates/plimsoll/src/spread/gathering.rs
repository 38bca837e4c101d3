//! What several sources of one load measured, added up interval by interval.
//!
//! A source is a process of this machine, or a shard on another. What comes of it is the same
//! messages ([`Message`]); how they come is the caller's. How intervals are merged is
//! [`IntervalMerger`]'s. No I/O and no clock.

use plimsoll_engine::worker::Established;
use plimsoll_model::record::RequestRecord;
use plimsoll_model::run::merge::IntervalMerger;
use plimsoll_model::run::{IntervalRecord, NegotiatedTls};

use super::wire::{End, Message, Ready};

/// One load from several sources.
pub(crate) struct Gathering {
    sources: Vec<Source>,
    intervals: IntervalMerger,
}

/// What one source has sent.
#[derive(Default)]
pub(crate) struct Source {
    /// Connections that are up, while they come up.
    pub(crate) connecting: u64,
    pub(crate) ready: Option<Ready>,
    /// It has carried its part out.
    pub(crate) end: Option<End>,
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

    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter()
    }

    /// How connecting went over all sources that are ready, and their workers.
    pub(crate) fn established(&self) -> (Established, u32) {
        let mut established = Established::default();
        let mut workers = 0;
        for ready in self.sources.iter().filter_map(|s| s.ready.as_ref()) {
            workers += ready.workers;
            established.add(Established {
                open: ready.open,
                failed: ready.failed,
                failure: ready.outcome(),
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
            Message::Failed(_) | Message::Defect(_) | Message::Alive => {}
        }
    }

    /// Nothing more comes of `source`.
    pub(crate) fn gone(&mut self, source: usize) {
        self.intervals.ended(source);
    }

    /// Nothing more comes at all.
    pub(crate) fn all_gone(&mut self) {
        self.intervals.all_ended();
    }

    /// The next interval: see [`IntervalMerger::next`].
    pub(crate) fn next(
        &mut self,
        late: Option<u64>,
    ) -> Option<(IntervalRecord, Vec<RequestRecord>)> {
        self.intervals.next(late)
    }

    /// What the handshakes of all sources agreed on.
    pub(crate) fn negotiated(&self) -> Option<NegotiatedTls> {
        let ends = self.sources.iter().filter_map(|s| s.end.as_ref());
        ends.filter_map(|end| end.negotiated.clone())
            .reduce(NegotiatedTls::with)
    }
}
