//! The queries of a session: sends them, reads their tokens, and records how they ended.

use std::time::Duration;

use plimsoll_engine::script::{RequestTrace, ScriptContext};
use plimsoll_model::formats::quantity::plural;
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::{CallSample, Outcome, Time};

use super::{ActiveQuery, ApiRequest, DoneFrame, QueryEndReason, SOCKET_LINK, UserSession};
use crate::session::account::{SessionFrame, TokenArrival};
use crate::session::measures;

/// The maximum number of gaps between tokens that are kept until a query ends; later gaps are not recorded.
const MAX_RECORDED_TOKEN_GAPS: usize = 1 << 16;

impl UserSession {
    pub(super) fn on_frame(&mut self, text: &str, now: Time, ctx: &mut ScriptContext<'_>) {
        let Ok(frame) = serde_json::from_str::<SessionFrame<'_>>(text) else {
            ctx.record_failure_message(
                Outcome::BadAnswer,
                "a frame that is not a JSON object with a type",
            );
            self.socket_failure = Some(Outcome::BadAnswer);
            return;
        };
        self.attempts = 0;
        self.socket_failure = None;
        match &*frame.kind {
            "token" => {
                self.update_numbering_epoch(frame.epoch);
                self.on_token(&frame, text.len(), now, ctx);
            }
            "done" => {
                self.update_numbering_epoch(frame.epoch);
                self.on_done(&frame, now, ctx);
            }
            "resumed" if frame.resumed == Some(false) => {
                ctx.add_to_count(Count::HistoryGone, 1);
                self.account.restart_numbering();
                self.epoch = frame.epoch;
            }
            // Frames of unknown types are ignored.
            _ => {}
        }
    }

    pub(super) fn update_numbering_epoch(&mut self, epoch: Option<u64>) {
        if let (Some(ours), Some(theirs)) = (self.epoch, epoch)
            && ours != theirs
        {
            self.account.restart_numbering();
        }
        self.epoch = epoch.or(self.epoch);
    }

    /// Returns whether a frame belongs to a run (the answer to a query) that has already ended.
    pub(super) fn is_stray_frame(&self, frame: &SessionFrame<'_>) -> bool {
        self.query.is_none_or(|query| query.end.is_some())
            || matches!((frame.run, self.run_number), (Some(of), Some(run)) if of < run)
    }

    pub(super) fn on_token(
        &mut self,
        frame: &SessionFrame<'_>,
        length: usize,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        if self.is_stray_frame(frame) {
            match self.account.record_frame(frame.seq) {
                TokenArrival::Duplicate => turn.add_to_count(Count::TokensDuplicated, 1),
                TokenArrival::New | TokenArrival::Late => turn.add_to_count(Count::TokensStray, 1),
            }
            return;
        }
        let arrived = self.account.record_token(frame.seq);
        self.run_number = frame.run.or(self.run_number);
        let Some(query) = &mut self.query else {
            return;
        };
        query.bytes = query.bytes.saturating_add(length as u32);
        if arrived == TokenArrival::Duplicate || frame.content.as_deref() == Some("") {
            return;
        }
        if query.first_token == Time::NEVER {
            query.first_token = now;
        } else if self.gaps.len() < MAX_RECORDED_TOKEN_GAPS {
            self.gaps.push(now.since(query.last_token) as f32);
        }
        query.last_token = now;
    }

    pub(super) fn on_done(
        &mut self,
        frame: &SessionFrame<'_>,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        let again = self.account.record_frame(frame.seq) == TokenArrival::Duplicate;
        if self.is_stray_frame(frame) || again {
            return;
        }
        let finish = match frame.finish.as_deref() {
            Some("error") => QueryEndReason::Error,
            Some("cancelled") => QueryEndReason::Cancelled,
            _ => QueryEndReason::Stop,
        };
        if let Some(query) = &mut self.query {
            query.end = Some(DoneFrame {
                at: now,
                tokens: frame.tokens,
                finish,
            });
        }
        // While the API's response is outstanding the query does not end, because the response may contain the
        // number of tokens to expect.
        if self.request.is_none() {
            self.end_query_if_done(now, turn);
        }
    }

    /// Ends the current query if its `done` frame has arrived, and then begins the next query.
    pub(super) fn end_query_if_done(&mut self, now: Time, turn: &mut ScriptContext<'_>) {
        if let Some(end) = self.query.and_then(|query| query.end) {
            let outcome = self.judge_query(end, turn);
            self.record_query_and_clear_deadline(outcome, end.at, turn);
            self.begin_next_query(now, turn);
        }
    }

    /// Decides the outcome of a query whose `done` frame has arrived.
    fn judge_query(&self, end: DoneFrame, turn: &mut ScriptContext<'_>) -> Outcome {
        let account = self.account.query;
        let received = account.received;
        let promised = self
            .expected_tokens
            .filter(|_| end.finish == QueryEndReason::Stop);
        let most = end.tokens.max(promised).unwrap_or(0);
        turn.add_to_count(Count::TokensMissing, most.saturating_sub(received));
        match end.finish {
            QueryEndReason::Error => return Outcome::RunFailed,
            QueryEndReason::Cancelled => return Outcome::Cancelled,
            QueryEndReason::Stop => {}
        }
        let sent = end.tokens.or(promised);
        let lost = end.tokens.is_some_and(|sent| received < sent)
            || sent.is_some_and(|sent| received > sent)
            || account.duplicated > 0
            || account.out_of_order > 0;
        if !lost && let Some(promised) = promised.filter(|n| received < *n) {
            let outcome = Outcome::TokensShort;
            turn.record_failure_message(
                outcome,
                &format!(
                    "done after {} instead of {promised}",
                    plural(received, "token")
                ),
            );
            return outcome;
        }
        if !lost && received > 0 {
            return Outcome::Ok;
        }
        turn.record_failure_message(
            Outcome::TokensLost,
            &format!(
                "{received} of {} received, {}, {} out of order",
                sent.map_or("? tokens".to_owned(), |n| plural(n, "token")),
                plural(account.duplicated, "duplicate"),
                account.out_of_order
            ),
        );
        Outcome::TokensLost
    }

    pub(super) fn send_query(&mut self, now: Time, turn: &mut ScriptContext<'_>) {
        self.deadline = self.options.deadline.map_or(Time::NEVER, |d| now + d);
        self.due_at = now;
        self.account.begin_query();
        self.query = Some(ActiveQuery {
            sent: Time::NEVER,
            first_token: Time::NEVER,
            last_token: Time::NEVER,
            bytes: 0,
            bytes_sent: 0,
            reconnects: 0,
            reconnects_failed: 0,
            end: None,
        });
        self.expected_tokens = self.options.call.expect_tokens;
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
        let account = std::mem::take(&mut self.account.query);
        turn.add_to_count(Count::TokensReceived, account.received);
        turn.add_to_count(Count::TokensDuplicated, account.duplicated);
        turn.add_to_count(Count::TokensOutOfOrder, account.out_of_order);
        turn.add_to_count(Count::TokensStray, account.stray);
        // The time to create the session does not count as send delay, because it is recorded as a separate measure.
        let late = if self.queries_begun <= 1 {
            self.origin.late_ns
        } else {
            0
        };
        let arrival = Time(sent.0.saturating_sub(late));
        let first = query.map_or(Time::NEVER, |query| query.first_token);
        for ns in self.gaps.drain(..) {
            if outcome.is_ok() {
                turn.record_time(TimeMeasure::TokenGap, ns as u64);
            }
        }
        let mut per_token = 0;
        if let Some(query) = query
            && outcome.is_ok()
            && account.received > 1
        {
            per_token = query.last_token.since(query.first_token) / (account.received - 1);
            turn.record_time(TimeMeasure::TokenMean, per_token);
        }
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
        let counts = [
            (Count::TokensReceived, account.received),
            (Count::TokensDuplicated, account.duplicated),
            (Count::TokensOutOfOrder, account.out_of_order),
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
            bytes_received: query.map_or(0, |query| query.bytes),
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
            match self.query.and_then(|query| query.end) {
                // The query's `done` frame arrived before the session ended.
                Some(end) if outcome != Outcome::DeadlineExceeded => {
                    let outcome = self.judge_query(end, turn);
                    self.record_query(outcome, end.at, turn);
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
