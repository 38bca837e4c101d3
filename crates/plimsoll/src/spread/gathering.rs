//! What several sources of one load measured, added up interval by interval.
//!
//! A source is a process of this machine, or a shard on another. What comes of it is the same
//! messages ([`Message`]); how they come is the caller's. Invariant: every call that a source has
//! reported is in exactly one interval that is passed on, and what was open at the last word of a
//! source that is gone stays open to the end. No I/O and no clock.

use std::time::Duration;

use plimsoll_engine::worker::Established;
use plimsoll_model::record::RequestRecord;
use plimsoll_model::run::merge::InStep;
use plimsoll_model::run::{IntervalRecord, NegotiatedTls, Resources};

use super::wire::{End, Message, Ready};

/// One load from several sources.
pub(crate) struct Gathering {
    sources: Vec<Source>,
    intervals: InStep<Part>,
    /// The first interval that was not passed on.
    next: u64,
    last_end: Duration,
}

/// What one source has sent.
#[derive(Default)]
pub(crate) struct Source {
    /// Connections that are up, while they come up.
    pub(crate) connecting: u64,
    pub(crate) ready: Option<Ready>,
    /// It has carried its part out.
    pub(crate) end: Option<End>,
    requests: Vec<RequestRecord>,
    /// The interval that it was last in, and what was open at that one's end: a source that
    /// dies, or stands still, leaves it so.
    last: Option<u64>,
    open: Open,
}

/// What a source has at the end of an interval. Of two intervals it is that of the later, and
/// no sum.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    in_flight: u64,
    backlog: u64,
    connections: u64,
    client: Resources,
}

impl Open {
    fn of(interval: &IntervalRecord) -> Open {
        Open {
            in_flight: interval.in_flight,
            backlog: interval.backlog,
            connections: interval.connections_open,
            client: interval.client.unwrap_or_default(),
        }
    }

    /// Takes it out of an interval to which it was added.
    fn leave(&self, interval: &mut IntervalRecord) {
        interval.in_flight = interval.in_flight.saturating_sub(self.in_flight);
        interval.backlog = interval.backlog.saturating_sub(self.backlog);
        interval.connections_open = interval.connections_open.saturating_sub(self.connections);
        if let Some(client) = &mut interval.client {
            client.rss_bytes = client.rss_bytes.saturating_sub(self.client.rss_bytes);
            client.descriptors = client.descriptors.saturating_sub(self.client.descriptors);
            client.threads = client.threads.saturating_sub(self.client.threads);
        }
    }
}

/// The parts of one interval.
#[derive(Default)]
struct Part {
    record: IntervalRecord,
    requests: Vec<RequestRecord>,
}

impl Gathering {
    pub(crate) fn new(sources: usize) -> Gathering {
        Gathering {
            sources: (0..sources).map(|_| Source::default()).collect(),
            intervals: InStep::new(sources),
            next: 0,
            last_end: Duration::ZERO,
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
        let next = self.next;
        let from = &mut self.sources[source];
        match message {
            Message::Connecting(open) => from.connecting = open,
            Message::Ready(ready) => {
                from.connecting = u64::from(ready.open);
                from.ready = Some(ready);
            }
            Message::Request(request) => from.requests.push(request),
            Message::Interval(mut interval) => {
                // What is late is of the first second that is not passed on.
                let at = interval.index.max(next);
                let part = self.intervals.part(source, at);
                if from.last == Some(at) {
                    from.open.leave(&mut part.record);
                    interval.memory.clear();
                }
                (from.last, from.open) = (Some(at), Open::of(&interval));
                part.record.merge(&interval);
                part.requests.append(&mut from.requests);
            }
            Message::Finished(end) => {
                from.end = Some(end);
                (from.open.in_flight, from.open.backlog) = (0, 0);
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

    /// The next interval that every source has left behind; where `late` is given, up to that
    /// one also as far as there are parts of it.
    pub(crate) fn next(
        &mut self,
        late: Option<u64>,
    ) -> Option<(IntervalRecord, Vec<RequestRecord>)> {
        let whole = self.intervals.next_whole();
        let (index, part) = whole.or_else(|| self.intervals.next_until(late?))?;
        self.next = index + 1;
        let mut record = part.record;
        let end = record.end_offset().max(self.last_end);
        record.index = index;
        record.start_offset = self.last_end;
        record.length = end - self.last_end;
        self.last_end = end;
        // The calls that a source had begun which is dead, or late, are neither over nor
        // undone.
        let missing = |s: &&Source| s.end.is_none() && s.last.is_some_and(|last| last < index);
        for missing in self.sources.iter().filter(missing) {
            record.in_flight += missing.open.in_flight;
            record.backlog += missing.open.backlog;
        }
        Some((record, part.requests))
    }

    /// What the handshakes of all sources agreed on.
    pub(crate) fn negotiated(&self) -> Option<NegotiatedTls> {
        let ends = self.sources.iter().filter_map(|s| s.end.as_ref());
        ends.filter_map(|end| end.negotiated.clone())
            .reduce(NegotiatedTls::with)
    }
}
