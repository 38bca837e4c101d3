//! The client's side of a user's WebSocket, which the steps of a journey share.
//!
//! Invariant: every call that was started and not cancelled ends in exactly one [`Event::Done`]. A call is a step: its
//! upgrade, its frames, the messages that it awaits, and its Close. Messages that arrive while no step awaits any are
//! stored with the time of their arrival, until a step awaits them; this is why the driver outlives its connection. A
//! step reads stored messages in [`Driver::on_timer`](plimsoll_engine::Driver::on_timer), which can report events.

mod interface;
mod opening;
mod reading;
mod reopening;
mod tokens;

use std::collections::VecDeque;
use std::sync::Arc;

use plimsoll_engine::driver::{CallId, CompletedCall, Event, ProtocolError};
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::websocket::{
    Opcode, ReaderRole, WebSocketReader, append_masked_frame, code, encode_close_payload,
};

use self::reopening::Reopening;
use super::call::AwaitedMessages;
use super::message_match::ReceivedMessage;
use super::prepared::PreparedSocketCall;
use crate::http::checks::BODY_MISMATCH;
use crate::journey::CapturedValues;
use crate::shared::token_account::TokenAccount;
use crate::shared::xorshift::Xorshift;

/// A step with the values of one user.
#[derive(Clone)]
pub(super) struct SelectedCall {
    pub(super) prepared: Arc<PreparedSocketCall>,
    pub(super) taken: Arc<CapturedValues>,
    /// The value of the upgrade's `cookie` field. If it is empty, the field is not sent.
    pub(super) cookies: String,
    /// The number of tokens that the step awaits, if it is known beforehand.
    pub(super) expected_tokens: Option<u64>,
}

enum SocketState {
    /// No step has opened the socket yet.
    Unopened,
    /// Waiting for the response to the upgrade; contains the bytes received so far.
    Upgrading(Vec<u8>),
    Open,
    /// A step has sent a Close frame, and waits for the server's.
    Closing,
    /// Closed, for this reason.
    Closed(String),
    /// Lost; a connection is asked for at this time.
    Pausing(Time),
    /// Lost; waiting for another connection.
    Reconnecting,
}

/// A message that arrived while no step awaited any.
struct WaitingMessage {
    at: Time,
    opcode: Opcode,
    data: Box<[u8]>,
}

/// The call of the current step.
struct StepInFlight {
    call: CallId,
    number: u64,
    first_byte: Time,
    sent: u32,
    received: u32,
    /// The time at which the call continues without further bytes from the server; [`Time::NEVER`] if it waits for
    /// bytes.
    resume_at: Time,
    /// Whether the step's frames have been sent.
    has_sent: bool,
    /// The number of awaited messages that have arrived.
    messages: u32,
    /// Whether all awaited messages have arrived.
    has_all_messages: bool,
    /// Whether a message has matched the step's `expect`.
    has_expected: bool,
    /// The rendered texts and values to compare messages with, for `until`, `error` and `expect`.
    wanted: [Vec<u8>; 3],
}

/// The name and the value of a header field of the response to the upgrade.
type UpgradeHeader = (Box<[u8]>, Box<[u8]>);

/// The driver of one socket; see the module's documentation.
pub(super) struct SocketStepDriver {
    state: SocketState,
    selected: Option<SelectedCall>,
    call: Option<StepInFlight>,
    waiting: VecDeque<WaitingMessage>,
    waiting_bytes: usize,
    /// The content of the message that ended the last step, or the reason why it can't be read.
    answer: Option<Result<Vec<u8>, String>>,
    /// The header fields of the response to the upgrade, if the last step opened the socket.
    fields: Vec<UpgradeHeader>,
    key: String,
    /// The subprotocols that were offered.
    subprotocols: Vec<String>,
    random: Xorshift,
    reader: WebSocketReader,
    /// The number of the call that opened the socket.
    opened_by: Option<u64>,
    /// How the socket is opened again when it is lost; `None`: not at all, or not any more.
    reopening: Option<Box<Reopening>>,
    /// The account of the socket's tokens; `None` until a step awaits tokens.
    account: Option<Box<TokenAccount>>,
    scratch: Vec<u8>,
}

impl SocketStepDriver {
    /// Creates the driver of a connection over which nothing has been sent.
    pub(super) fn new() -> SocketStepDriver {
        SocketStepDriver {
            state: SocketState::Unopened,
            selected: None,
            call: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            answer: None,
            fields: Vec::new(),
            key: String::new(),
            subprotocols: Vec::new(),
            random: Xorshift::new(1),
            reader: WebSocketReader::new(ReaderRole::Client, 0),
            opened_by: None,
            reopening: None,
            account: None,
            scratch: Vec::new(),
        }
    }

    /// Sets the step that the next call makes.
    pub(super) fn select_step(&mut self, step: SelectedCall) {
        self.selected = Some(step);
    }

    /// Returns the header fields of the upgrade's response, if the last step opened the socket.
    pub(super) fn response_fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let fields = self.fields.iter();
        fields.map(|(name, value)| (&**name, &**value))
    }

    /// Returns the content of the message that ended the last step, or the reason why there is none.
    pub(super) fn last_message(&self) -> Result<&[u8], &str> {
        match &self.answer {
            Some(Ok(content)) => Ok(content),
            Some(Err(problem)) => Err(problem),
            None => Err("the step awaited no message"),
        }
    }

    /// Gives back the memory of the last step. Messages that wait for a later step are kept.
    pub(super) fn release_buffers(&mut self) {
        (self.answer, self.fields) = (None, Vec::new());
        self.scratch = Vec::new();
    }

    /// Sends the frames of the current step, unless they have been sent.
    fn send_frames(&mut self, now: Time, out: &mut Vec<u8>) {
        let (Some(step), Some(call)) = (&self.selected, &mut self.call) else {
            return;
        };
        if std::mem::replace(&mut call.has_sent, true) {
            return;
        }
        let prepared = &step.prepared;
        let moment = prepared.render_context(call.number, now, &step.taken);
        for index in 0..prepared.call.frames.len() {
            let payload = prepared.render_frame(index, &moment, &mut self.scratch);
            call.sent = call.sent.saturating_add(payload.len() as u32);
            append_masked_frame(out, prepared.opcode(index), self.random.mask(), payload);
        }
    }

    /// Continues the current step as far as the received messages allow.
    fn continue_step(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        let (Some(step), Some(call)) = (&self.selected, &mut self.call) else {
            return;
        };
        call.resume_at = Time::NEVER;
        let step = Arc::clone(&step.prepared);
        let needs_open = step.call.opens || step.call.closes || !step.call.frames.is_empty();
        if needs_open && !matches!(self.state, SocketState::Open) {
            if self.is_reopening() {
                return;
            }
            return self.fail_call_on_closed_socket(events);
        }
        while self
            .call
            .as_ref()
            .is_some_and(|call| !call.has_all_messages)
        {
            let Some(message) = self.waiting.pop_front() else {
                break;
            };
            self.waiting_bytes -= message.data.len();
            let content = (message.opcode, &*message.data);
            self.on_awaited_message(content, now, Some(message.at), events);
        }
        self.end_step_if_complete(out, events);
        let may_receive = matches!(self.state, SocketState::Open) || self.is_reopening();
        let awaits_more = |call: &StepInFlight| !call.has_all_messages;
        if !may_receive && self.call.as_ref().is_some_and(awaits_more) {
            self.fail_call_on_closed_socket(events);
        }
    }

    /// Ends the current step if all its messages have arrived, or sends its Close. This is done before the bytes that
    /// follow in the same segment are read: they belong to later steps, and their Close does not fail this one.
    fn end_step_if_complete(&mut self, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        let (Some(step), Some(call)) = (&self.selected, &self.call) else {
            return;
        };
        if !call.has_all_messages {
            return;
        }
        if !step.prepared.call.closes {
            self.end_call(Outcome::Ok, None, events);
        } else if matches!(self.state, SocketState::Open) {
            self.append_close_frame(code::NORMAL_CLOSURE, "", out);
            self.state = SocketState::Closing;
        }
    }

    /// Handles a message that the current step awaits. `earlier`: the time of its arrival, if it arrived before the
    /// step began.
    fn on_awaited_message(
        &mut self,
        (opcode, data): (Opcode, &[u8]),
        now: Time,
        earlier: Option<Time>,
        events: &mut Vec<Event>,
    ) {
        let (Some(step), Some(call)) = (&self.selected, &mut self.call) else {
            return;
        };
        let step = &step.prepared.call;
        call.first_byte = call.first_byte.min(now);
        call.received = call.received.saturating_add(data.len() as u32);
        call.messages += 1;
        events.push(match earlier {
            None => Event::Message(call.call),
            Some(at) => Event::EarlierMessage {
                call: call.call,
                at,
            },
        });
        if let AwaitedMessages::Tokens(_) = step.until {
            return self.record_token_message(data, now, earlier, events);
        }
        let [until, error, expected] = &call.wanted;
        let received = ReceivedMessage::read(data, opcode, step.message_type.as_ref());
        if (step.error.as_ref()).is_some_and(|message| message.matches(&received, error)) {
            let text = format!("a message reports: {}", received.to_printable());
            return self.end_call(Outcome::EventError, Some(text), events);
        }
        let expect = step.expect.as_ref();
        call.has_expected |= expect.is_none_or(|message| message.matches(&received, expected));
        let is_last = match &step.until {
            AwaitedMessages::Count(count) => call.messages >= *count,
            AwaitedMessages::Until(message) => message.matches(&received, until),
            AwaitedMessages::Tokens(_) => false,
        };
        if !is_last {
            return;
        }
        if !call.has_expected {
            let shown = received.to_printable();
            let text = format!("no message is what the step expects; the last one: {shown}");
            return self.end_call(BODY_MISMATCH, Some(text), events);
        }
        call.has_all_messages = true;
        self.answer = Some(received.into_content());
    }

    /// Handles a message from the server, or stores it if no step awaits one.
    fn on_message(
        &mut self,
        (opcode, data): (Opcode, &[u8]),
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) {
        if let Some(reopening) = &mut self.reopening {
            reopening.reset_attempts();
        }
        let awaits = |call: &StepInFlight| !call.has_all_messages && call.resume_at == Time::NEVER;
        if self.waiting.is_empty() && self.call.as_ref().is_some_and(awaits) {
            self.on_awaited_message((opcode, data), now, None, events);
            return self.end_step_if_complete(out, events);
        }
        self.waiting_bytes += data.len();
        self.waiting.push_back(WaitingMessage {
            at: now,
            opcode,
            data: data.into(),
        });
    }

    /// Ends the current call because the socket is not open.
    fn fail_call_on_closed_socket(&mut self, events: &mut Vec<Event>) {
        let text = match &self.state {
            SocketState::Closed(reason) => reason.clone(),
            _ => "no step has opened the socket".to_owned(),
        };
        self.end_call(Outcome::SocketClosed, Some(text), events);
    }

    /// Ends the current call.
    fn end_call(&mut self, outcome: Outcome, text: Option<String>, events: &mut Vec<Event>) {
        let Some(call) = self.call.take() else { return };
        if let Some(text) = text {
            let text = format!("websocket: {text}");
            events.push(Event::Detail { outcome, text });
        }
        events.push(Event::Done(CompletedCall {
            call: call.call,
            outcome,
            first_byte: call.first_byte,
            bytes_sent: call.sent,
            bytes_received: call.received,
        }));
    }

    fn append_close_frame(&mut self, close_code: u16, reason: &str, out: &mut Vec<u8>) {
        let payload = encode_close_payload(close_code, reason);
        append_masked_frame(out, Opcode::Close, self.random.mask(), &payload);
    }

    /// Handles a Close frame from the server. The error of a socket that is opened again has its connection closed.
    fn on_close_frame(
        &mut self,
        text: String,
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        if matches!(self.state, SocketState::Closing) {
            self.state = SocketState::Closed("a step has closed the socket".to_owned());
            self.end_call(Outcome::Ok, None, events);
            return Ok(());
        }
        self.append_close_frame(code::NORMAL_CLOSURE, "", out);
        if self.schedule_reopening(Outcome::SocketClosed, now, events) {
            return Err(ProtocolError {
                outcome: Outcome::SocketClosed,
                detail: format!("websocket: {text}"),
            });
        }
        self.on_socket_end(text, events);
        Ok(())
    }

    /// Handles the end of a socket that no step has closed. A step that has just begun reads the stored messages before
    /// it fails.
    fn on_socket_end(&mut self, reason: String, events: &mut Vec<Event>) {
        self.state = SocketState::Closed(reason);
        let is_waiting = |call: &StepInFlight| call.resume_at == Time::NEVER;
        if self.call.as_ref().is_some_and(is_waiting) {
            self.fail_call_on_closed_socket(events);
        }
    }
}

#[cfg(test)]
mod tests;
