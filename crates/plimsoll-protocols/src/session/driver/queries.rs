//! The queries of a session: sends them, reads their tokens, and records how they ended.

use std::time::Duration;

use plimsoll_engine::script::{RequestTrace, ScriptContext};
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::{CallSample, Outcome, Time};

use super::{ActiveQuery, ApiRequest, SOCKET_LINK, UserSession};
use crate::session::measures;
use crate::shared::token_account::{DoneMessage, MessageEffect};

impl UserSession {
    pub(super) fn on_frame(&mut self, text: &str, now: Time, ctx: &mut ScriptContext<'_>) {
        let Ok(effect) = self.account.record_message(text, now) else {
            ctx.record_failure_message(
                Outcome::BadAnswer,
                "a frame that is not a JSON object with a type",
            );
            self.socket_failure = Some(Outcome::BadAnswer);
            return;
        };
        self.attempts = 0;
        self.socket_failure = None;
        match effect {
            MessageEffect::Recorded => {}
            MessageEffect::Token { .. } => self.token_times.record(now),
            MessageEffect::Counted(count) => ctx.add_to_count(count, 1),
            // While the API's response is outstanding the query does not end, because the response may contain the
            // number of tokens to expect.
            MessageEffect::Done if self.request.is_some() => {}
            MessageEffect::Done => self.end_query_if_done(now, ctx),
        }
    }

    /// Ends the current query if its `done` frame has arrived, and then begins the next query.
    pub(super) fn end_query_if_done(&mut self, now: Time, turn: &mut ScriptContext<'_>) {
        if let Some(done) = self.account.done() {
            let outcome = self.judge_query(done, turn);
            self.record_query_and_clear_deadline(outcome, done.at, turn);
            self.begin_next_query(now, turn);
        }
    }

    /// Decides the outcome of a query whose `done` frame has arrived.
    fn judge_query(&self, done: DoneMessage, turn: &mut ScriptContext<'_>) -> Outcome {
        let judged = self.account.judge_query(done);
        turn.add_to_count(Count::TokensMissing, judged.missing);
        if let Some(text) = &judged.text {
            turn.record_failure_message(judged.outcome, text);
        }
        judged.outcome
    }

    pub(super) fn send_query(&mut self, now: Time, turn: &mut ScriptContext<'_>) {
        self.deadline = self.options.deadline.map_or(Time::NEVER, |d| now + d);
        self.due_at = now;
        self.account.begin_query(self.options.call.expect_tokens);
        self.token_times.reset();
        self.query = Some(ActiveQuery {
            sent: Time::NEVER,
            bytes_sent: 0,
            reconnects: 0,
            reconnects_failed: 0,
        });
        self.start_api_request(ApiRequest::Run, now, turn);
        self.request_wake_up(turn);
    }

    /// Returns the number of the current query within the run, or of the next one if no query is in flight.
    pub(super) fn current_query_number(&self) -> u64 {
        let in_session = u64::from(self.queries_begun.saturating_sub(1));
        self.origin.number * u64::from(self.options.call.queries) + in_session
    }

    /// Records the current query, or the next one if no query is in flight.
    pub(super) fn record_query(
        &mut self,
        outcome: Outcome,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        let query = self.query.take();
        // For a query that was never sent, the time when it was due counts as its send time.
        let unsent = self.due_at.min(now);
        let sent = query.map_or(Time::NEVER, |query| query.sent);
        let sent = if sent == Time::NEVER { unsent } else { sent };
        let tokens = self.account.take_query();
        for (count, n) in tokens.counts() {
            turn.add_to_count(count, n);
        }
        // The time to create the session does not count as send delay, because it is recorded as a separate measure.
        let late = if self.queries_begun <= 1 {
            self.origin.late_ns
        } else {
            0
        };
        let arrival = Time(sent.0.saturating_sub(late));
        let first = self.token_times.first();
        let mut per_token = 0;
        if outcome.is_ok() {
            for ns in self.token_times.gaps_ns() {
                turn.record_time(TimeMeasure::TokenGap, ns);
            }
            if tokens.received > 1 {
                per_token = self.token_times.last().since(first) / (tokens.received - 1);
                turn.record_time(TimeMeasure::TokenMean, per_token);
            }
        }
        self.token_times.reset();
        if outcome.is_ok()
            && self.options.call.goodput.is_met(
                Duration::from_nanos(first.since(arrival)),
                Duration::from_nanos(per_token),
                now.duration_since(arrival),
            )
        {
            turn.add_to_count(Count::QueriesGood, 1);
        }
        let (reconnects, reconnects_failed) =
            query.map_or((0, 0), |query| (query.reconnects, query.reconnects_failed));
        let [received, duplicated, out_of_order] = tokens.counts();
        let counts = [
            received,
            duplicated,
            out_of_order,
            (Count::Reconnects, reconnects.into()),
            (Count::ReconnectsFailed, reconnects_failed.into()),
        ];
        let (first_byte, to_first) = match first {
            Time::NEVER => (now, 0),
            first => (first, first.since(sent)),
        };
        if first != Time::NEVER && outcome.is_ok() {
            turn.record_time(TimeMeasure::FirstToken, to_first);
        }
        let times = [
            (measures::SESSION_CREATE, self.created_ns),
            (TimeMeasure::SocketOpen, self.opened_ns),
            (TimeMeasure::FirstToken, to_first),
            (TimeMeasure::TokenMean, per_token),
        ];
        let sample = CallSample {
            number: self.current_query_number(),
            arrival,
            sent,
            first_byte,
            done: now,
            stage: 0,
            outcome,
            bytes_sent: query.map_or(0, |query| query.bytes_sent),
            bytes_received: tokens.bytes,
        };
        let was_sent = query.is_some_and(|query| query.sent != Time::NEVER);
        let traced_as = was_sent.then_some(RequestTrace {
            shared: None,
            step: None,
        });
        turn.record_call(SOCKET_LINK, sample, &counts, &times, traced_as);
        self.has_failed |= !outcome.is_ok();
    }

    pub(super) fn record_query_and_clear_deadline(
        &mut self,
        outcome: Outcome,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        self.record_query(outcome, now, turn);
        self.deadline = Time::NEVER;
        self.request_wake_up(turn);
    }

    /// Begins the next query, or closes the session after the last one.
    pub(super) fn begin_next_query(&mut self, now: Time, turn: &mut ScriptContext<'_>) {
        if self.queries_begun >= self.options.call.queries || turn.is_stopping() {
            self.start_api_request(ApiRequest::Close, now, turn);
            // All queries have ended, so the session waits for the response to its close request for at most five
            // seconds.
            let limit = Duration::from_secs(5);
            self.deadline = now + self.options.deadline.map_or(limit, |d| d.min(limit));
            return self.request_wake_up(turn);
        }
        if self.options.call.think.is_zero() {
            turn.count_due_call();
            self.queries_begun += 1;
            return self.send_query(now, turn);
        }
        self.next_at = now + self.options.call.think;
        self.request_wake_up(turn);
    }

    /// Counts the session as failed because the API did not close it; its queries keep their outcomes.
    pub(super) fn count_failed_session_close(&mut self, turn: &mut ScriptContext<'_>) {
        turn.add_to_count(Count::ClosesFailed, 1);
        self.has_failed = true;
    }

    /// Ends the session: the current query and all remaining ones fail.
    pub(super) fn abort_session(
        &mut self,
        outcome: Outcome,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        if self.request == Some(ApiRequest::Close) {
            self.count_failed_session_close(turn);
            return self.finish_session(turn);
        }
        if self.next_at == Time::NEVER {
            match self.account.done() {
                // The query's `done` frame arrived before the session ended.
                Some(done) if outcome != Outcome::DeadlineExceeded => {
                    let outcome = self.judge_query(done, turn);
                    self.record_query(outcome, done.at, turn);
                }
                _ => self.record_query(outcome, now, turn),
            }
        }
        if !turn.is_stopping() {
            while self.queries_begun < self.options.call.queries {
                turn.count_due_call();
                self.queries_begun += 1;
                self.due_at = now;
                self.record_query(Outcome::BrokenOff, now, turn);
            }
        }
        self.has_failed = true;
        self.finish_session(turn);
    }
}
