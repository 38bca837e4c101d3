//! A session's requests to the HTTP API, and the handling of its responses.

use plimsoll_engine::script::ScriptContext;
use plimsoll_model::{Outcome, Time};

use super::{API_LINK, ApiRequest, ApiState, UserSession};
use crate::session::http::{ApiResponse, write_post};
use crate::session::measures;

/// Outcome of a session that the API refused to create.
const SESSION_REFUSED: Outcome = Outcome::coded("SESSION_REFUSED");

/// Keys under which services return the session's token, in order of preference.
const AUTH_TOKEN_KEYS: [&str; 4] = ["auth_token", "token", "jwt", "access_token"];

impl UserSession {
    pub(super) fn start_api_request(
        &mut self,
        request: ApiRequest,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        self.request = Some(request);
        match self.api {
            ApiState::Up => self.send_request(now, turn),
            ApiState::Connecting => {}
            ApiState::Down => {
                self.api = ApiState::Connecting;
                turn.connect(API_LINK);
            }
        }
    }

    pub(super) fn send_request(&mut self, now: Time, turn: &mut ScriptContext<'_>) {
        let mut rendered = Vec::new();
        let (path, body) = match self.request {
            None => return,
            Some(ApiRequest::Create) => ("/session/create".to_owned(), &[][..]),
            Some(ApiRequest::Run) => {
                let path = format!("/session/{}/run", self.session_id);
                (path, self.query_body(now, &mut rendered))
            }
            Some(ApiRequest::Close) => (format!("/session/{}/close", self.session_id), &[][..]),
        };
        let out = turn.out_buffer(API_LINK);
        let before = out.len();
        let own = self.plan_header_fields(now);
        write_post(out, &self.options.api_host, &path, &own, body);
        self.requested_at = now;
        let size = (out.len() - before) as u32;
        if let Some(query) = &mut self.query
            && self.request == Some(ApiRequest::Run)
        {
            query.bytes_sent += size;
            if query.sent == Time::NEVER {
                query.sent = now;
            }
        }
    }

    /// Returns the plan's header fields.
    pub(super) fn plan_header_fields(&self, now: Time) -> Vec<(String, String)> {
        let unix_ns = self.unix_zero_ns.wrapping_add(now.0);
        self.options
            .call
            .headers
            .for_call(self.current_query_number(), unix_ns)
    }

    /// Returns the body of the current query.
    fn query_body<'a>(&'a self, now: Time, rendered: &'a mut Vec<u8>) -> &'a [u8] {
        let query = &self.options.call.query;
        let Some(varying) = &query.varying else {
            return &query.body;
        };
        let in_session = self.queries_begun.saturating_sub(1);
        let unix_ns = self.unix_zero_ns.wrapping_add(now.0);
        let number = self.current_query_number();
        let moment = varying
            .variation
            .render_context(number, in_session, unix_ns);
        if let Some(message) = varying.messages.first() {
            message.render(&moment, rendered);
        }
        rendered
    }

    pub(super) fn on_api_response(
        &mut self,
        answer: &ApiResponse,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        self.api_is_reused = !answer.closes;
        if answer.closes {
            self.api = ApiState::Down;
            turn.close(API_LINK);
        }
        let ok = (200..300).contains(&answer.status);
        let refused = |what: &str| {
            let body = String::from_utf8_lossy(&answer.body);
            let body: String = body.chars().take(160).collect();
            format!("{what}: {} {body}", answer.status)
        };
        match self.request.take() {
            None => {
                let text = "an answer without a request";
                self.on_api_failure(Outcome::BadAnswer, text, now, turn);
            }
            Some(ApiRequest::Create) if ok => self.on_session_created(&answer.body, now, turn),
            Some(ApiRequest::Create) => {
                turn.record_failure_message(SESSION_REFUSED, &refused("POST /session/create"));
                self.abort_session(SESSION_REFUSED, now, turn);
            }
            Some(ApiRequest::Run) if ok => {
                // The values are optional: other backends may use these keys for values of other types.
                let begun = serde_json::from_slice::<serde_json::Value>(&answer.body);
                let number = |key: &str| begun.as_ref().ok()?.get(key)?.as_u64();
                self.account.announce(number("run"), number("tokens"));
                self.end_query_if_done(now, turn);
            }
            Some(ApiRequest::Run) => {
                turn.record_failure_message(Outcome::RunRefused, &refused("POST /session/ID/run"));
                self.record_query_and_clear_deadline(Outcome::RunRefused, now, turn);
                self.begin_next_query(now, turn);
            }
            Some(ApiRequest::Close) => {
                if !ok {
                    self.count_failed_session_close(turn);
                }
                self.finish_session(turn);
            }
        }
    }

    pub(super) fn on_session_created(
        &mut self,
        body: &[u8],
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        let plain = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        let made = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
        let text = |key: &str| made.get(key)?.as_str().filter(plain);
        let token = AUTH_TOKEN_KEYS.iter().find_map(|key| text(key));
        match (text("session_id"), token) {
            (Some(session), Some(token)) => {
                self.created_ns = now.since(self.requested_at);
                turn.record_time(measures::SESSION_CREATE, self.created_ns);
                self.session_id = session.to_owned();
                self.session_token = token.to_owned();
                self.open_socket(now, turn);
            }
            _ => {
                // The response may hold secrets, so it is not shown.
                let text = "POST /session/create: the answer has no session_id and auth_token";
                self.on_api_failure(Outcome::BadAnswer, text, now, turn);
            }
        }
    }

    /// Handles a failure of the API: ends the session, and the current query fails.
    pub(super) fn on_api_failure(
        &mut self,
        outcome: Outcome,
        text: &str,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        turn.record_failure_message(outcome, text);
        if self.request == Some(ApiRequest::Close) {
            // All queries have ended, so only closing the session failed.
            self.count_failed_session_close(turn);
            return self.finish_session(turn);
        }
        if self.request == Some(ApiRequest::Run) && self.account.done().is_some() {
            self.request = None;
            return self.end_query_if_done(now, turn);
        }
        self.abort_session(outcome, now, turn);
    }
}
