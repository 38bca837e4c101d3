//! Applies the events that drivers report to calls and records.

use plimsoll_model::{Count, Outcome, Time};

use super::Worker;
use super::call_table::InFlightCall;
use super::connection::ConnectionRole;
use crate::driver::{Event, Protocol};
use crate::transport::network::Network;

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Processes the events that a driver has reported.
    #[inline]
    pub(super) fn process_events(&mut self, role: ConnectionRole, now: Time) {
        if self.client.events.is_empty() {
            return;
        }
        let mut events = std::mem::take(&mut self.client.events);
        if self.records_lower_bounds {
            self.determine_answer_arrival_time(&events);
        }
        for event in events.drain(..) {
            match event {
                Event::Done(done) => self.on_call_end(&done, role, now),
                Event::Unprocessed(done) => self.on_unprocessed_call(&done, role, now),
                Event::Refused(refused) => self.on_refused_call(&refused, role, now),
                Event::EndedByLoadEnd(done) => self.on_call_ended_by_load_end(&done, role, now),
                Event::Message(call) => match self.client.calls.record_message(call, now) {
                    (stage, Time::NEVER, sent) => {
                        self.recorder.record_first_message(stage, now.since(sent));
                    }
                    (stage, before, _) => {
                        self.recorder.record_message_gap(stage, now.since(before))
                    }
                },
                Event::Token { call: id, bytes } => {
                    let (call, recorder) = (self.client.calls.get(id), &mut self.recorder);
                    self.client
                        .tokens
                        .record_token_event(id, bytes, (call, now), recorder);
                }
                Event::Usage { call, usage } => self.client.tokens.set_usage(call, usage),
                Event::EndedWithoutText(call) => {
                    self.client.tokens.set_ended_without_text(call, now)
                }
                Event::WholeAnswer(call) => self.client.tokens.set_whole_answer(call),
                Event::Count { call, count, n } => {
                    self.recorder
                        .add_protocol_count(self.client.calls.get(call).stage, count, n);
                }
                Event::Time { measure, ns } => {
                    self.recorder.record_protocol_time(self.stage, measure, ns)
                }
                Event::MessagesSent { call, messages } => {
                    let stage = self.client.calls.get(call).stage;
                    self.recorder
                        .count_messages_sent(stage, u64::from(messages));
                }
                Event::TextToCount { call, text } => {
                    self.recorder
                        .push_answer_text(self.client.calls.get(call).stage, text);
                }
                // These events concern only scripts: no other client requests the text of answers, or makes calls whose
                // messages may arrive before the call.
                Event::AnswerText { .. }
                | Event::EarlierMessage { .. }
                | Event::EarlierToken { .. } => {}
                Event::Unsolicited => {
                    self.recorder
                        .add_protocol_count(self.stage, Count::MessagesUnasked, 1)
                }
                Event::Late => self.recorder.stage_mut(self.stage).late += 1,
                Event::Detail { outcome, text } => self.recorder.add_failure_detail(outcome, &text),
            }
        }
        self.client.events = events;
        self.client.last_answer = now;
    }

    /// Returns the time of the answers that were read until `now`. If the loop sleeps between ticks, it reads them late on
    /// purpose, and their time is that at which their last bytes reached this host.
    #[inline]
    pub(super) fn answer_time(&mut self, now: Time) -> Time {
        let Some(sleep) = self.call_source.tick_sleep_mut() else {
            return now;
        };
        let events = &self.client.events;
        let answers = events.iter().filter_map(Event::ended_call).count();
        let is_part = |event: &&Event| matches!(event, Event::Message(_) | Event::Token { .. });
        // Part of an answer may come from a peer that waits for the rest to be read, and of several only the last has a
        // receive time of its own.
        if answers != 1 || events.iter().filter(is_part).count() > 1 {
            sleep.postpone(now);
        }
        match self.network.last_receive_time() {
            Some(received) => Time(now.0.saturating_sub(received.age_ns)).max(self.last_poll),
            None => {
                // The last read of a connection that the server closes finds no bytes.
                if answers > 0 {
                    sleep.disable();
                }
                now
            }
        }
    }

    /// Determines the earliest time at which the answers of `events` can have reached this host.
    fn determine_answer_arrival_time(&mut self, events: &[Event]) {
        let mut ends = events.iter().filter_map(Event::ended_call);
        // The receive time applies to the last bytes that were read: if one read contained several answers, all but the
        // last may have arrived earlier.
        let is_one = ends.next().is_some() && ends.next().is_none();
        let stamp = self.network.last_receive_time().filter(|_| is_one);
        self.client.answers_arrived =
            stamp.map_or(self.last_poll, |stamp| stamp.earliest.max(self.last_poll));
    }

    /// Records a lower bound of the response time, as if the call had been sent when due and its answer read on
    /// arrival. Also adds the delay in reading this answer to calls that were queued meanwhile.
    #[inline]
    pub(super) fn record_response_lower_bound(
        &mut self,
        call: &InFlightCall,
        outcome: Outcome,
        now: Time,
    ) {
        let read_late = now.since(self.client.answers_arrived.max(call.sent));
        if outcome.is_ok() {
            let send_late = call.generator_delay_ns() + self.pauses.slow_sends.delay_ns(call.sent);
            let late = send_late.saturating_add(read_late);
            let added = late.max(self.pauses.max_added_ns(call.sent));
            let low = now.since(call.arrival).saturating_sub(added);
            self.recorder.record_response_lower_bound(call.stage, low);
        }
        let others = u64::from(self.open_connections.max(1));
        self.call_source.add_lateness(read_late / others);
    }
}
