//! What drivers report of their calls, and where it goes.

use plimsoll_model::{Count, Outcome, Time};

use super::Worker;
use super::calls::Call;
use super::connection::Role;
use crate::driver::{Event, Protocol};
use crate::network::Network;

impl<P: Protocol, N: Network> Worker<P, N> {
    /// What the driver reported.
    #[inline]
    pub(super) fn take_events(&mut self, role: Role, now: Time) {
        if self.client.events.is_empty() {
            return;
        }
        let mut events = std::mem::take(&mut self.client.events);
        if self.stamps {
            self.note_arrival(&events);
        }
        for event in events.drain(..) {
            match event {
                Event::Done(done) => self.call_ended(&done, role, now),
                Event::NotTaken(done) => self.not_taken(&done, role, now),
                Event::EndedWithLoad(done) => self.ended_with_load(&done, role, now),
                Event::Message(call) => match self.client.calls.message(call, now) {
                    (stage, Time::NEVER, sent) => {
                        self.recorder.first_message(stage, now.since(sent));
                    }
                    (stage, before, _) => self.recorder.inter_message(stage, now.since(before)),
                },
                Event::Token { call: id, bytes } => {
                    let (call, recorder) = (self.client.calls.get(id), &mut self.recorder);
                    self.client.tokens.token(id, bytes, (call, now), recorder);
                }
                Event::Usage { call, usage } => self.client.tokens.usage(call, usage),
                Event::Finished(call) => self.client.tokens.finished(call, now),
                Event::Count { call, count, n } => {
                    self.recorder
                        .count(self.client.calls.get(call).stage, count, n);
                }
                Event::Sent { call, messages } => {
                    let stage = self.client.calls.get(call).stage;
                    self.recorder.messages_sent(stage, u64::from(messages));
                }
                Event::Text { call, text } => {
                    self.recorder.text(self.client.calls.get(call).stage, text);
                }
                // Only scripts ask for it.
                Event::Answer { .. } => {}
                Event::Unasked => self.recorder.count(self.stage, Count::MessagesUnasked, 1),
                Event::Late => self.recorder.stage(self.stage).late += 1,
                Event::Detail { outcome, text } => self.recorder.detail(outcome, &text),
            }
        }
        self.client.events = events;
        self.client.last_answer = now;
    }

    /// When at the earliest the answers reached this host that these events are of.
    fn note_arrival(&mut self, events: &[Event]) {
        let mut ends = events.iter().filter_map(Event::ended);
        // A stamp is that of the last bytes: of several answers that were read together, the others' came before.
        let is_one = ends.next().is_some() && ends.next().is_none();
        let stamp = self.network.arrived().filter(|_| is_one);
        self.client.arrived = stamp.map_or(self.looked, |stamp| stamp.max(self.looked));
    }

    /// Records what the call took at least, had it been sent when it was due and its answer been read when it came. One
    /// that others wait behind made them wait for as long as its answer was not read.
    #[inline]
    pub(super) fn record_low_end(&mut self, call: &Call, outcome: Outcome, now: Time) {
        let read_late = now.since(self.client.arrived.max(call.sent));
        if outcome.is_ok() {
            let late = call.late_ns().saturating_add(read_late);
            let added = late.max(self.pauses.lengthened(call.sent));
            let low = now.since(call.arrival).saturating_sub(added);
            self.recorder.response_low(call.stage, low);
        }
        let others = u64::from(self.open_connections.max(1));
        self.issue.freed_late(read_late / others);
    }
}
