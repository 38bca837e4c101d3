//! Streaming calls: sends and counts their messages, and decides whether the exchange is complete.
//! [`crate::grpc::stream_exchange`] holds the state of each stream. Unary calls don't use this module.

use std::sync::Arc;

use plimsoll_engine::driver::{Event, MAX_UNSENT_BYTES};
use plimsoll_model::formats::quantity::plural;
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::http2::{EndStream, ErrorCode, StreamPayload, Violation, write};

use super::{GrpcCalls, GrpcDriver, GrpcStream, completed_call};
use crate::grpc::rendered_messages::MessageRenderer;
use crate::grpc::response_state::{GrpcResponseState, ResponseAction};
use crate::http2::{CallStreamState, DriverEffects, StreamCalls, WINDOW_REPLENISH_BYTES};

impl GrpcDriver {
    /// Starts sending the messages of a call whose HEADERS were written.
    pub(super) fn begin_messages(&mut self, id: u32, number: u64, now: Time, out: &mut Vec<u8>) {
        let GrpcCalls {
            prepared,
            exchanges,
            ..
        } = &mut self.calls;
        if let (Some(script), Some(stream)) = (&prepared.script, self.streams.find(id)) {
            let exchanges = exchanges.get_or_insert_default();
            exchanges.now = now;
            let number = prepared.varying.as_ref().map(|_| number);
            stream.slot = exchanges.open(id, stream.call, number, now, script);
            stream.answer = GrpcResponseState::NEW_STREAM;
            self.send_messages(id, out);
        }
    }

    /// Sends the messages of a stream that are due, as far as the windows allow.
    pub(super) fn send_messages(&mut self, id: u32, out: &mut Vec<u8>) {
        let (Some(script), Some(exchanges)) = (
            &self.calls.prepared.script,
            self.calls.exchanges.as_deref_mut(),
        ) else {
            return;
        };
        let Some(stream) = self.streams.find(id) else {
            return;
        };
        let now = exchanges.now;
        let Some(exchange) = exchanges.get_mut(stream.slot) else {
            return;
        };
        let renderer = self
            .calls
            .prepared
            .varying
            .as_ref()
            .map(|varying| MessageRenderer {
                varying,
                compression: self.calls.prepared.compression,
                unix_ns: self.calls.prepared.request.unix_zero.unix_ns_at(now),
                taken: self.calls.step.as_ref().map_or(&[], |step| &step.captured),
            });
        let before = out.len();
        loop {
            let mut window = self
                .http2
                .send_window()
                .min(stream.send_window.max(0) as u32);
            if out.len() >= MAX_UNSENT_BYTES {
                // An empty frame with END_STREAM may still be sent, but no more messages.
                window = 0;
            }
            let Some(piece) = exchange.next_piece(script, renderer.as_ref(), window) else {
                break;
            };
            stream.send_window -= piece.bytes.len() as i32;
            self.http2.count_sent_data(piece.bytes.len() as u32);
            write::data(out, id, piece.bytes, EndStream(piece.end_stream));
        }
        self.payload_bytes += (out.len() - before) as u64;
        self.held_back |= exchange.is_blocked() && out.len() >= MAX_UNSENT_BYTES;
        // For a streaming call, `unsent` is only a flag: 0 once the request has ended, 1 before.
        stream.unsent = u32::from(exchange.is_sending());
        if exchange.is_blocked() && !exchange.queued {
            exchange.queued = true;
            self.blocked.push(id);
        }
    }

    /// Sends the messages of blocked streams: implements `StreamCalls::send_blocked_streams` for streaming calls.
    pub(super) fn send_blocked_messages(&mut self, out: &mut Vec<u8>) {
        for id in std::mem::take(&mut self.blocked) {
            if let Some(stream) = self.streams.find_open(id)
                && let Some(exchanges) = &mut self.calls.exchanges
                && let Some(exchange) = exchanges.get_mut(stream.slot)
            {
                exchange.queued = false;
                self.send_messages(id, out);
            }
        }
    }

    /// Handles DATA of a streaming call. `before` is the number of bytes received before it.
    #[inline(never)]
    pub(super) fn receive_stream_data(
        &mut self,
        piece: StreamPayload<'_>,
        before: u32,
        step: ResponseAction,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        let id = piece.stream;
        let prepared = Arc::clone(&self.calls.prepared);
        let (Some(script), Some(exchanges)) = (&prepared.script, &mut self.calls.exchanges) else {
            return Ok(());
        };
        let Some(stream) = self.streams.find(id) else {
            return Ok(());
        };
        let Some(exchange) = exchanges.get_mut(stream.slot) else {
            return Ok(());
        };
        let messages = u32::from(stream.answer.take_complete_message_count());
        exchange.received = exchange.received.saturating_add(messages);
        exchange.received_overflowed |= stream.answer.received < before;
        for _ in 0..messages {
            to.events.push(Event::Message(stream.call));
        }
        if step != ResponseAction::Continue {
            return self.apply_action(piece, step, to);
        }
        if (before ^ stream.answer.received) >= WINDOW_REPLENISH_BYTES {
            write::window_update(to.out, id, WINDOW_REPLENISH_BYTES);
        }
        if messages == 0 {
            return Ok(());
        }
        let received = exchange.received;
        exchange.on_answer(script);
        if script.cancel_after.is_some_and(|after| received >= after) {
            self.cancel_as_planned(id, to);
        } else if let Some(expected) = script.expect.filter(|expected| received > *expected) {
            let why = format!(
                "more than the {} expected",
                plural(u64::from(expected), "message")
            );
            self.end_call(
                id,
                Outcome::StreamLong,
                Some(why),
                CallStreamState::Abandoned,
                to.events,
            );
            self.reset_stream(id, ErrorCode::CANCEL, CallStreamState::Abandoned, to.out);
        } else {
            self.send_messages(id, to.out);
        }
        Ok(())
    }

    /// Cancels a call as the plan demands, which counts as a success.
    pub(super) fn cancel_as_planned(&mut self, id: u32, to: &mut DriverEffects<'_>) {
        self.end_call(id, Outcome::Ok, None, CallStreamState::Abandoned, to.events);
        self.reset_stream(id, ErrorCode::CANCEL, CallStreamState::Abandoned, to.out);
    }

    /// Ends the call of a stream that has ended with status OK.
    #[inline(never)]
    pub(super) fn on_stream_success(&mut self, id: u32, to: &mut DriverEffects<'_>) {
        let (outcome, detail) = match self.find_stream_failure(id) {
            None => (Outcome::Ok, None),
            Some((outcome, why)) => (outcome, Some(why)),
        };
        let unsent = self.end_call(id, outcome, detail, CallStreamState::Ended, to.events);
        self.stop_sending(id, unsent, to.out);
    }

    /// Returns the failure of a stream that has ended with status OK before all messages were exchanged.
    pub(super) fn find_stream_failure(&mut self, id: u32) -> Option<(Outcome, String)> {
        let script = self.calls.prepared.script.as_ref()?;
        let slot = self.streams.find(id)?.slot;
        let exchange = self.calls.exchanges.as_ref()?.get(slot)?;
        let sent = exchange.messages_sent(script);
        if let Some(expected) = script.expect.filter(|n| exchange.received < *n) {
            let why = format!(
                "status OK after {} from the server instead of {expected}",
                plural(u64::from(exchange.received), "message")
            );
            return Some((Outcome::StreamShort, why));
        }
        (sent < script.count).then(|| {
            let why = format!(
                "status OK after {sent} of {} messages were sent",
                script.count
            );
            (Outcome::StreamShort, why)
        })
    }

    /// Handles expired timers of streams: sends due messages and cancels calls.
    pub(super) fn handle_due_streams(&mut self, to: &mut DriverEffects<'_>) {
        let now = to.now;
        let prepared = Arc::clone(&self.calls.prepared);
        while let Some(exchanges) = &mut self.calls.exchanges
            && let Some(id) = exchanges.pop_expired_timer(now)
        {
            // The timer may belong to an earlier step of the journey, whose stream ended before the timer expired.
            let (Some(stream), Some(script)) = (self.streams.find_open(id), &prepared.script)
            else {
                continue;
            };
            let is_over = exchanges.has_reached_duration(stream.slot, now, script);
            if is_over || script.cancel_after == Some(0) {
                self.cancel_as_planned(id, to);
            } else {
                exchanges.release_paced_messages(stream.slot, id, now, script);
                self.send_messages(id, to.out);
            }
        }
    }
}

impl GrpcCalls {
    /// Reports the end of a streaming call, with the messages and bytes exchanged.
    #[inline(never)]
    pub(super) fn end_exchange(
        &self,
        stream: &GrpcStream,
        outcome: Outcome,
        events: &mut Vec<Event>,
    ) {
        let mut ended = completed_call(stream, outcome);
        let exchanged = self.call_progress(stream);
        (ended.bytes_sent, ended.bytes_received) = (exchanged.bytes_sent, exchanged.bytes_received);
        let exchanges = self.exchanges.as_deref();
        if let Some(exchange) = exchanges.and_then(|all| all.get(stream.slot)) {
            events.push(Event::MessagesSent {
                call: exchange.call,
                messages: exchanged.messages_sent,
            });
        }
        events.push(Event::Done(ended));
    }
}
