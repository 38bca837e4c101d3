//! A driver in a box, which delegates every function to the driver inside.

use std::time::Duration;

use plimsoll_model::{Outcome, Time};

use super::{AfterConnection, CallId, CallProgress, Driver, Event, ProtocolError};

impl<D: Driver + ?Sized> Driver for Box<D> {
    fn on_alpn(&mut self, alpn: Option<&[u8]>) {
        (**self).on_alpn(alpn);
    }

    fn open(&mut self, now: Time, out: &mut Vec<u8>) {
        (**self).open(now, out);
    }

    fn has_negligible_receive_time(&self) -> bool {
        (**self).has_negligible_receive_time()
    }

    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }

    fn capacity(&self) -> usize {
        (**self).capacity()
    }

    fn is_reading_answer_remainder(&self) -> bool {
        (**self).is_reading_answer_remainder()
    }

    fn carries_one_call_at_a_time(&self) -> bool {
        (**self).carries_one_call_at_a_time()
    }

    fn is_draining(&self) -> bool {
        (**self).is_draining()
    }

    fn draining_outcome(&self) -> Outcome {
        (**self).draining_outcome()
    }

    fn after_connection(&self) -> AfterConnection {
        (**self).after_connection()
    }

    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        (**self).start(call, number, now, out);
    }

    fn shared_trace_number(&self) -> Option<u64> {
        (**self).shared_trace_number()
    }

    fn start_delayed(
        &mut self,
        call: CallId,
        number: u64,
        waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        (**self).start_delayed(call, number, waited, now, out);
    }

    fn cancel(&mut self, call: CallId, now: Time, out: &mut Vec<u8>) {
        (**self).cancel(call, now, out);
    }

    fn call_progress(&self, call: CallId) -> CallProgress {
        (**self).call_progress(call)
    }

    fn awaited_bytes(&self) -> u64 {
        (**self).awaited_bytes()
    }

    fn prefetch(&self) {
        (**self).prefetch();
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        (**self).receive(bytes, now, out, events)
    }

    fn receive_end(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        (**self).receive_end(now, events)
    }

    fn next_timer(&self) -> Option<Time> {
        (**self).next_timer()
    }

    fn appended_payload_bytes(&self) -> u64 {
        (**self).appended_payload_bytes()
    }

    fn has_held_back_messages(&self) -> bool {
        (**self).has_held_back_messages()
    }

    fn resume_sending(&mut self, now: Time, out: &mut Vec<u8>) {
        (**self).resume_sending(now, out);
    }

    fn on_timer(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        (**self).on_timer(now, out, events);
    }

    fn end_open_ended_calls(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        (**self).end_open_ended_calls(now, out, events);
    }

    fn abort(&mut self, outcome: Outcome, now: Time, events: &mut Vec<Event>) {
        (**self).abort(outcome, now, events);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        (**self).finish(out);
    }
}
