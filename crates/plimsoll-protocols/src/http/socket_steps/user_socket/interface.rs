//! Connects a user's socket with the engine.

use plimsoll_engine::driver::{
    AfterConnection, CallId, CallProgress, Driver, Event, ProtocolError,
};
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::websocket::code;

use super::reopening::Reopening;
use super::{SocketState, SocketStepDriver, StepInFlight};
use crate::http::socket_steps::call::AwaitedMessages;
use crate::shared::xorshift::Xorshift;

impl Driver for SocketStepDriver {
    fn open(&mut self, now: Time, out: &mut Vec<u8>) {
        // The step that opens the socket sends the first upgrade.
        if let SocketState::Reconnecting = self.state {
            self.write_upgrade_again(now, out);
        }
    }

    fn shared_trace_number(&self) -> Option<u64> {
        self.opened_by
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn capacity(&self) -> usize {
        usize::from(self.call.is_none())
    }

    fn is_draining(&self) -> bool {
        false
    }

    fn after_connection(&self) -> AfterConnection {
        match self.state {
            SocketState::Reconnecting => AfterConnection::Reconnect,
            _ => AfterConnection::Keep,
        }
    }

    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        let Some(step) = self.selected.clone() else {
            return;
        };
        (self.answer, self.fields) = (None, Vec::new());
        let prepared = &step.prepared;
        let moment = prepared.render_context(number, now, &step.taken);
        let until = match &prepared.call.until {
            AwaitedMessages::Count(_) => None,
            AwaitedMessages::Until(message) => Some(message),
            AwaitedMessages::Tokens(_) => {
                let account = self.account.get_or_insert_default();
                account.begin_query(step.expected_tokens);
                None
            }
        };
        let messages = [
            until,
            prepared.call.error.as_ref(),
            prepared.call.expect.as_ref(),
        ];
        let wanted =
            messages.map(|message| message.map_or(Vec::new(), |m| m.render_expected(&moment)));
        self.call = Some(StepInFlight {
            call,
            number,
            first_byte: Time::NEVER,
            sent: 0,
            received: 0,
            resume_at: now,
            has_sent: false,
            messages: 0,
            has_all_messages: !prepared.call.awaits_message(),
            has_expected: false,
            wanted,
        });
        match self.state {
            SocketState::Unopened if prepared.call.opens => {
                // The keys of handshakes and the masks protect against caching intermediaries, not against attackers,
                // so they may repeat in another run.
                let seed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                self.random = Xorshift::new(seed);
                self.reopening = Reopening::new(&step, number);
                self.write_upgrade(&step, number, now, out);
                if let Some(call) = &mut self.call {
                    call.resume_at = Time::NEVER;
                }
            }
            SocketState::Open => self.send_frames(now, out),
            _ => {}
        }
    }

    fn cancel(&mut self, _call: CallId, _now: Time, _out: &mut Vec<u8>) {
        self.call = None;
        if matches!(self.state, SocketState::Upgrading(_)) && !self.is_reopening() {
            let reason = "the socket was not open by the deadline of its step";
            self.state = SocketState::Closed(reason.to_owned());
        }
    }

    fn call_progress(&self, _call: CallId) -> CallProgress {
        let call = self.call.as_ref();
        CallProgress {
            messages_sent: 0,
            bytes_sent: call.map_or(0, |call| call.sent),
            bytes_received: call.map_or(0, |call| call.received),
        }
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let was_upgrading = matches!(self.state, SocketState::Upgrading(_));
        let bytes = match self.read_upgrade_response(bytes) {
            Ok(Some(rest)) => rest,
            Ok(None) => return Ok(()),
            Err(e) => {
                if !self.schedule_reopening(e.outcome, now, events) {
                    self.state = SocketState::Closed(format!("not opened: {}", e.detail));
                }
                return Err(e);
            }
        };
        if was_upgrading {
            self.record_reopened(now, events);
            self.send_frames(now, out);
            // A step that has just begun is continued by its timer.
            let is_waiting = |call: &StepInFlight| call.resume_at == Time::NEVER;
            if self.call.as_ref().is_some_and(is_waiting) {
                self.continue_step(now, out, events);
            }
        }
        if matches!(self.state, SocketState::Open | SocketState::Closing) && !bytes.is_empty() {
            self.read_frames(bytes, now, out, events)?;
        }
        Ok(())
    }

    fn receive_end(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        match self.state {
            SocketState::Upgrading(_) => {
                let detail = "websocket: closed before the upgrade was answered".to_owned();
                if !self.schedule_reopening(Outcome::SocketRefused, now, events) {
                    self.state = SocketState::Closed(detail.clone());
                }
                Err(ProtocolError {
                    outcome: Outcome::SocketRefused,
                    detail,
                })
            }
            SocketState::Closed(_) | SocketState::Pausing(_) | SocketState::Reconnecting => Ok(()),
            _ => {
                if !self.schedule_reopening(Outcome::SocketClosed, now, events) {
                    let reason = "the connection ended without a Close".to_owned();
                    self.on_socket_end(reason, events);
                }
                Ok(())
            }
        }
    }

    fn next_timer(&self) -> Option<Time> {
        let of_call = self
            .call
            .as_ref()
            .map_or(Time::NEVER, |call| call.resume_at);
        let of_socket = match self.state {
            SocketState::Pausing(until) => until,
            _ => Time::NEVER,
        };
        Some(of_call.min(of_socket)).filter(|at| *at != Time::NEVER)
    }

    fn on_timer(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        if matches!(self.state, SocketState::Pausing(until) if until <= now) {
            self.state = SocketState::Reconnecting;
        }
        if (self.call.as_ref()).is_some_and(|call| call.resume_at <= now) {
            self.continue_step(now, out, events);
        }
    }

    fn abort(&mut self, outcome: Outcome, now: Time, events: &mut Vec<Event>) {
        // What ended the connection has scheduled the next attempt.
        if matches!(self.state, SocketState::Pausing(_)) {
            return;
        }
        if !matches!(self.state, SocketState::Closed(_)) {
            if self.schedule_reopening(outcome, now, events) {
                return;
            }
            let reason = format!("the connection was lost: {}", outcome.code());
            self.state = SocketState::Closed(reason);
        }
        // Skips a step that has just begun, because it reads the stored messages first.
        if self
            .call
            .as_ref()
            .is_some_and(|call| call.resume_at == Time::NEVER)
        {
            self.end_call(outcome, None, events);
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if matches!(self.state, SocketState::Open) {
            self.append_close_frame(code::NORMAL_CLOSURE, "", out);
            self.state = SocketState::Closed("the end of the journey has closed it".to_owned());
        }
    }
}
