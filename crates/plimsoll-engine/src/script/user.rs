//! Users: scripts that make one call after another, each over one of their connections, with pauses in between.
//!
//! A [`Scenario`] defines a user's calls, and which connection each call needs. Everything specific to a protocol is in
//! its driver, which is the same as for independent calls. The first call is due at the user's arrival, and each
//! further call is due a pause after the end of the previous one. The time to establish a connection counts towards the
//! call that needs it. A call that fails ends its user, because the following calls depend on it, unless the scenario
//! decides otherwise, as journeys do ([`Scenario::next_action`]).
//!
//! Invariant: every call that was due is recorded once.
//!
//! This file is long because everything that may happen to a call or its connection is handled here, in one state
//! machine.

mod connection_loss;
mod connection_need;
mod ending;
mod factory;
mod messages;
mod retries;

use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::metrics::measure::Count;
use plimsoll_model::{CallSample, Outcome, Time};

pub use self::factory::UserScripts;
use self::factory::UserSettings;
use super::scenario::{EndedCall, NextAction, Scenario, UserCall};
use super::{LinkId, RequestTrace, Script, ScriptContext, ScriptStart};
use crate::driver::{CallId, CompletedCall, Driver, Event, Protocol};
use crate::worker::{MIN_TIMEOUT_REDUCTION, ResponseTokens};

/// The shortest pause in which a user's connections rest. Waking a TLS session costs a few microseconds.
pub const MIN_REST_PAUSE: Duration = Duration::from_secs(1);

/// The only call id: users make one call at a time.
const ONLY_CALL_ID: CallId = CallId(0);

/// One of a user's connections.
struct UserLink<D> {
    /// The driver of the established connection.
    driver: Option<D>,
    is_connecting: bool,
}

/// A user's current call, which is waiting or in flight.
#[derive(Clone, Debug)]
struct CurrentCall {
    due: Time,
    /// The time at which the call was first sent; [`Time::NEVER`] before that.
    sent: Time,
    /// Whether the call is waiting for a connection in order to be sent or retried.
    is_waiting: bool,
    is_retry: bool,
    /// Whether the server did not process the call when it was sent before.
    was_unprocessed: bool,
    /// How often the server has refused the call for now.
    refusals: u32,
    /// The time from which a refused call can be sent again; [`Time::NEVER`] if it need not wait.
    resend_at: Time,
    deadline: Time,
    answer: ResponseTokens,
    last_message: Time,
}

impl CurrentCall {
    fn new_waiting(due: Time) -> CurrentCall {
        CurrentCall {
            due,
            sent: Time::NEVER,
            is_waiting: true,
            is_retry: false,
            was_unprocessed: false,
            refusals: 0,
            resend_at: Time::NEVER,
            deadline: Time::NEVER,
            answer: ResponseTokens::EMPTY,
            last_message: Time::NEVER,
        }
    }
}

/// The script of one user; the module documentation describes its behaviour.
pub struct User<C: Scenario> {
    shared: Arc<UserSettings<C>>,
    origin: ScriptStart,
    /// The time at which the user was due.
    due: Time,
    /// The connection of the current call or, between two calls, of the previous one.
    link: LinkId,
    links: Box<[UserLink<<C::Protocol as Protocol>::Driver>]>,
    memory: C::UserState,
    /// Number of calls that have become due.
    calls_begun: u32,
    call: Option<CurrentCall>,
    /// The time at which the next call is due.
    next_at: Time,
    /// Whether the next call is due but must wait, because the connection is still reading the remainder of the last
    /// answer. (A call may end before its whole answer has arrived.)
    waits_for_remainder: bool,
    has_failed: bool,
    events: Vec<Event>,
}

impl<C: Scenario> User<C> {
    /// Returns the driver of the current call's connection.
    fn driver(&self) -> Option<&<C::Protocol as Protocol>::Driver> {
        self.links[usize::from(self.link.0)].driver.as_ref()
    }

    fn driver_mut(&mut self) -> Option<&mut <C::Protocol as Protocol>::Driver> {
        self.links[usize::from(self.link.0)].driver.as_mut()
    }

    fn link_mut(&mut self, link: LinkId) -> &mut UserLink<<C::Protocol as Protocol>::Driver> {
        &mut self.links[usize::from(link.0)]
    }

    /// Starts a call that was due at `due`.
    fn start_call(&mut self, due: Time, now: Time, context: &mut ScriptContext<'_>) {
        self.count_due_call(context);
        let link = self.shared.scenario.current_link(&self.memory);
        if link != self.link {
            // A connection that was requested for a previous call, which has failed in the meantime, is no longer
            // needed.
            let before = self.link;
            let connection = self.link_mut(before);
            if connection.driver.is_none() && std::mem::take(&mut connection.is_connecting) {
                context.close(before);
            }
            self.link = link;
        }
        self.replace_connection_if_needed(context);
        self.next_at = Time::NEVER;
        self.call = Some(CurrentCall {
            deadline: self.shared.deadline.map_or(Time::NEVER, |d| due + d),
            ..CurrentCall::new_waiting(due)
        });
        self.send_or_connect(now, context);
    }

    fn count_due_call(&mut self, context: &mut ScriptContext<'_>) {
        context.count_due_call();
        self.calls_begun += 1;
        let scenario = &self.shared.scenario;
        if !scenario.step_names().is_empty() {
            let step = scenario.current_step(&self.memory);
            context.count_due_step(step, scenario.step_names());
        }
    }

    /// Returns whether the connection has no capacity because it is reading the remainder of the last answer.
    fn is_reading_answer_remainder(&self) -> bool {
        let driver = self.driver();
        driver.is_some_and(|driver| driver.is_reading_answer_remainder() && driver.capacity() == 0)
    }

    fn call_number(&self) -> u64 {
        let in_user = u64::from(self.calls_begun.saturating_sub(1));
        self.origin.number * u64::from(self.shared.scenario.max_calls()) + in_user
    }

    /// Sends the waiting call, or requests a connection for it.
    fn send_or_connect(&mut self, now: Time, context: &mut ScriptContext<'_>) {
        if self.waits_for_remainder && !self.is_reading_answer_remainder() {
            self.waits_for_remainder = false;
            return if context.is_stopping() {
                self.stop_at_load_end(now, context)
            } else {
                self.start_call(now, now, context)
            };
        }
        let (number, link) = (self.call_number(), self.link);
        let waits = self.call.as_mut().filter(|call| call.is_waiting);
        if let Some(call) = waits.filter(|call| call.may_be_sent(now)) {
            call.resend_at = Time::NEVER;
            let connection = &mut self.links[usize::from(link.0)];
            match &mut connection.driver {
                Some(driver) if driver.is_draining() => {
                    connection.driver = None;
                    context.close(link);
                }
                Some(driver) if driver.capacity() > 0 => {
                    let step = UserCall {
                        call: self.calls_begun - 1,
                        number,
                        is_retry: call.is_retry,
                    };
                    let scenario = &self.shared.scenario;
                    if let Err((outcome, text)) =
                        scenario.prepare_call(step, now, &mut self.memory, driver)
                    {
                        return self.fail_unsent_call(outcome, &text, now, context);
                    }
                    let (waited, out_buffer) =
                        (now.duration_since(call.due), context.out_buffer(link));
                    if waited > MIN_TIMEOUT_REDUCTION {
                        driver.start_delayed(ONLY_CALL_ID, number, waited, now, out_buffer);
                    } else {
                        driver.start(ONLY_CALL_ID, number, now, out_buffer);
                    }
                    (call.sent, call.is_waiting) = (call.sent.min(now), false);
                }
                _ => {}
            }
        }
        let needs_connection = self.call.is_some();
        if needs_connection && let Some((outcome, text)) = self.missing_connection_failure() {
            return self.fail_unsent_call(outcome, &text, now, context);
        }
        let connection = self.link_mut(link);
        if needs_connection && connection.driver.is_none() && !connection.is_connecting {
            connection.is_connecting = true;
            context.connect(link);
        }
        self.set_timer(context);
    }

    /// Sets the wake-up time to the earliest timer.
    fn set_timer(&self, context: &mut ScriptContext<'_>) {
        let deadline = (self.call.as_ref()).map_or(Time::NEVER, CurrentCall::next_time);
        let drivers = self.links.iter().filter_map(|link| link.driver.as_ref());
        let of_drivers = drivers.filter_map(Driver::next_timer).min();
        let at = deadline.min(self.next_at);
        context.wake_at(at.min(of_drivers.unwrap_or(Time::NEVER)));
    }

    /// Processes the events that the driver has reported.
    fn process_events(&mut self, now: Time, context: &mut ScriptContext<'_>) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            let stage = context.stage;
            match (event, &mut self.call) {
                (Event::Done(done) | Event::EndedByLoadEnd(done), Some(_)) => {
                    self.on_call_end(&done, now, context);
                }
                (Event::Unprocessed(done), Some(_)) => {
                    self.on_unprocessed_call(&done, now, context)
                }
                (Event::Refused(refused), Some(_)) => self.on_refused_call(&refused, now, context),
                (Event::Token { bytes, .. }, Some(call)) => {
                    call.answer
                        .record_token_event(stage, bytes, now, context.recorder);
                }
                (Event::EarlierToken { bytes, at, .. }, Some(call)) => {
                    call.answer
                        .record_token_event(stage, bytes, at, context.recorder);
                }
                (Event::Message(_), Some(call)) => {
                    call.record_message(now, stage, context.recorder)
                }
                (Event::EarlierMessage { at, .. }, Some(call)) => {
                    call.record_message(at, stage, context.recorder)
                }
                (Event::Usage { usage, .. }, Some(call)) => call.answer.set_usage(usage),
                (Event::EndedWithoutText(_), Some(call)) => call.answer.set_ended_without_text(now),
                (Event::WholeAnswer(_), Some(call)) => call.answer.set_whole_answer(),
                (Event::AnswerText { text, .. }, _) => {
                    self.shared
                        .scenario
                        .on_response_text(text, &mut self.memory);
                }
                (Event::TextToCount { text, .. }, _) => {
                    context.recorder.push_answer_text(stage, text)
                }
                (Event::Count { count, n, .. }, _) => context.add_to_count(count, n),
                (Event::Time { measure, ns }, _) => context.record_time(measure, ns),
                (Event::MessagesSent { messages, .. }, _) => {
                    context
                        .recorder
                        .count_messages_sent(stage, u64::from(messages));
                }
                (Event::Unsolicited, _) => context.add_to_count(Count::MessagesUnasked, 1),
                (Event::Late, _) => context.recorder.stage_mut(stage).late += 1,
                (Event::Detail { outcome, text }, _) => {
                    context.record_failure_message(outcome, &text)
                }
                // Events of a cancelled call are ignored.
                (_, None) => {}
            }
        }
        self.keep_event_buffer(events, now);
    }

    fn on_call_end(&mut self, done: &CompletedCall, now: Time, context: &mut ScriptContext<'_>) {
        let mut done = *done;
        if done.outcome.is_ok()
            && let Some(driver) = &mut self.links[usize::from(self.link.0)].driver
            && let Err((outcome, text)) =
                (self.shared.scenario).check_answer(&mut self.memory, driver, now)
        {
            context.record_failure_message(outcome, &text);
            done.outcome = outcome;
        }
        self.record_call(&done, now, context);
        self.apply_next_action(done.outcome, now, context);
    }

    /// Performs the action that the scenario chooses after a call that has ended and been recorded.
    fn apply_next_action(&mut self, outcome: Outcome, now: Time, context: &mut ScriptContext<'_>) {
        let ended = EndedCall {
            outcome,
            calls_made: self.calls_begun,
            number: self.origin.number,
        };
        match self.shared.scenario.next_action(ended, &mut self.memory) {
            NextAction::CallAfter(_) if context.is_stopping() => {
                self.stop_at_load_end(now, context)
            }
            NextAction::CallAfter(pause) => self.next_at = now + pause,
            NextAction::Finish { is_ok } => {
                self.has_failed |= !is_ok;
                self.finish_user(now, context);
            }
            NextAction::Abort => self.abort_remaining_calls(now, context),
        }
    }

    /// Records the current call.
    fn record_call(&mut self, done: &CompletedCall, now: Time, context: &mut ScriptContext<'_>) {
        let Some(call) = self.call.take() else { return };
        // A call that was never sent was waiting until now.
        let sent = call.sent.min(now);
        let (due, goodput) = (call.due, &self.shared.goodput);
        let measured = (done.outcome.is_ok())
            .then(|| call.answer.token_measures((due, sent), goodput, now))
            .flatten();
        if let Some(measured) = &measured {
            call.answer
                .record(measured, context.stage, context.recorder);
        }
        let sample = CallSample {
            number: self.call_number(),
            arrival: call.due,
            sent,
            first_byte: done.first_byte.min(now),
            done: now,
            stage: 0,
            outcome: done.outcome,
            bytes_sent: done.bytes_sent,
            bytes_received: done.bytes_received,
        };
        let (counts, times) = measured
            .as_ref()
            .map_or((&[][..], &[][..]), |m| (&m.counts, &m.times));
        let driver = self.driver().filter(|_| call.sent != Time::NEVER);
        let shared = driver.map(|driver| driver.shared_trace_number());
        let scenario = &self.shared.scenario;
        let step = (!scenario.step_names().is_empty()).then(|| scenario.current_step(&self.memory));
        if let Some(step) = step {
            context.record_step_call(sample, step, scenario.step_names());
        }
        let traced_as = shared.map(|shared| RequestTrace { shared, step });
        context.record_call(self.link, sample, counts, times, traced_as);
    }

    /// Ends the current call with an outcome that does not come from the driver.
    fn fail_call(&mut self, outcome: Outcome, now: Time, context: &mut ScriptContext<'_>) {
        let exchanged = match (self.driver(), &self.call) {
            (Some(driver), Some(call)) if !call.is_waiting => driver.call_progress(ONLY_CALL_ID),
            _ => Default::default(),
        };
        let done = CompletedCall {
            call: ONLY_CALL_ID,
            outcome,
            first_byte: Time::NEVER,
            bytes_sent: exchanged.bytes_sent,
            bytes_received: exchanged.bytes_received,
        };
        self.record_call(&done, now, context);
    }

    /// Records the remaining calls as broken off after a failure, and ends the user.
    fn abort_remaining_calls(&mut self, now: Time, context: &mut ScriptContext<'_>) {
        while self.calls_begun < self.shared.scenario.max_calls() && !context.is_stopping() {
            self.count_due_call(context);
            self.call = Some(CurrentCall::new_waiting(now));
            self.fail_call(Outcome::BrokenOff, now, context);
        }
        self.has_failed = true;
        self.finish_user(now, context);
    }

    /// Ends the user before its last call because the load is over.
    fn stop_at_load_end(&mut self, now: Time, context: &mut ScriptContext<'_>) {
        if self.has_failed || self.shared.scenario.step_names().is_empty() {
            return self.finish_user(now, context);
        }
        context.add_to_count(Count::UsersStopped, 1);
        self.end_script(context);
    }

    fn finish_user(&mut self, now: Time, context: &mut ScriptContext<'_>) {
        let count = if self.has_failed {
            Count::UsersFailed
        } else {
            Count::UsersOk
        };
        context.add_to_count(count, 1);
        if !self.has_failed && !self.shared.scenario.step_names().is_empty() {
            context.record_journey(now.since(self.due), u64::from(self.calls_begun));
        }
        self.end_script(context);
    }
}

impl<C: Scenario> Script for User<C>
where
    <C::Protocol as Protocol>::Driver: Send,
{
    fn start(&mut self, now: Time, context: &mut ScriptContext<'_>) {
        self.due = Time(now.0.saturating_sub(self.origin.late_ns));
        self.start_call(self.due, now, context);
    }

    fn on_connected(
        &mut self,
        link: LinkId,
        _took_ns: u64,
        now: Time,
        context: &mut ScriptContext<'_>,
    ) {
        let mut driver = self.driver_for_connection(link);
        driver.open(now, context.out_buffer(link));
        *self.link_mut(link) = UserLink {
            driver: Some(driver),
            is_connecting: false,
        };
        self.send_or_connect(now, context);
    }

    fn receive(&mut self, link: LinkId, bytes: &[u8], now: Time, context: &mut ScriptContext<'_>) {
        let connection = &mut self.links[usize::from(link.0)];
        let Some(driver) = &mut connection.driver else {
            return;
        };
        let was_ready = driver.is_ready();
        let received = driver.receive(bytes, now, context.out_buffer(link), &mut self.events);
        if let Err(e) = &received {
            context.record_failure_message(e.outcome, &e.detail);
            driver.abort(e.outcome, now, &mut self.events);
        }
        self.process_events(now, context);
        if context.ended.is_some() {
            return;
        }
        if let Err(e) = received {
            context.close(link);
            if was_ready {
                return self.on_connection_lost(link, e.outcome, now, context);
            }
            return self.on_connection_failed(link, e.outcome, now, context);
        }
        let driver = self.link_mut(link).driver.as_ref();
        let is_draining = driver.is_some_and(Driver::is_draining);
        if is_draining && !self.shared.scenario.replaces_lost_connections() {
            context.close(link);
            return self.on_connection_lost(link, Outcome::SocketClosed, now, context);
        }
        self.send_or_connect(now, context);
    }

    fn on_link_lost(
        &mut self,
        link: LinkId,
        outcome: Outcome,
        detail: &str,
        now: Time,
        context: &mut ScriptContext<'_>,
    ) {
        // Only connections that were ready are replaced: a server that accepts connections without greeting
        // would otherwise be retried endlessly.
        let connection = &mut self.links[usize::from(link.0)];
        let was_up = connection.driver.as_ref().is_some_and(Driver::is_ready);
        if let Some(driver) = &mut connection.driver {
            let ended = match outcome {
                Outcome::ConnectionClosed => driver.receive_end(now, &mut self.events),
                _ => Ok(()),
            };
            let outcome = ended.map_or_else(|e| e.outcome, |()| outcome);
            driver.abort(outcome, now, &mut self.events);
            self.process_events(now, context);
        }
        if context.ended.is_some() {
            return;
        }
        // A server may close an idle connection; if it did so before the waiting call was sent, another connection is
        // established.
        if was_up {
            return self.on_connection_lost(link, outcome, now, context);
        }
        context.record_failure_message(outcome, detail);
        self.on_connection_failed(link, outcome, now, context);
    }

    fn on_timer(&mut self, now: Time, context: &mut ScriptContext<'_>) {
        for link in (0..self.links.len() as u8).map(LinkId) {
            if let Some(driver) = &mut self.links[usize::from(link.0)].driver
                && driver.next_timer().is_some_and(|at| at <= now)
            {
                driver.on_timer(now, context.out_buffer(link), &mut self.events);
                self.process_events(now, context);
                self.reconnect_if_needed(link, context);
            }
        }
        if context.ended.is_some() {
            return;
        }
        if self.next_at <= now && self.is_reading_answer_remainder() {
            (self.next_at, self.waits_for_remainder) = (Time::NEVER, true);
        }
        if self.next_at <= now {
            return if context.is_stopping() {
                self.stop_at_load_end(now, context)
            } else {
                self.start_call(self.next_at, now, context)
            };
        }
        if self.call.as_ref().is_some_and(|call| call.deadline <= now) {
            self.fail_call(Outcome::DeadlineExceeded, now, context);
            let link = self.link;
            if let Some(driver) = self.driver_mut() {
                driver.cancel(ONLY_CALL_ID, now, context.out_buffer(link));
            }
            self.apply_next_action(Outcome::DeadlineExceeded, now, context);
            if context.ended.is_some() {
                return;
            }
        }
        self.send_or_connect(now, context);
    }

    fn is_waiting(&self) -> bool {
        let call = self.call.as_ref();
        call.is_some_and(CurrentCall::is_waiting_for_connection)
    }

    fn is_pausing(&self, now: Time) -> bool {
        self.call.is_none() && self.next_at != Time::NEVER && self.next_at >= now + MIN_REST_PAUSE
    }

    fn abort(&mut self, outcome: Outcome, now: Time, context: &mut ScriptContext<'_>) {
        let failed = self.has_failed || self.call.is_some() && outcome.is_error();
        self.fail_call(outcome, now, context);
        if failed {
            context.add_to_count(Count::UsersFailed, 1);
        }
        self.finish_connections(context);
    }
}
