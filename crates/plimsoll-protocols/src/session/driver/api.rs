//! What a session asks of the HTTP API, and what it is answered.

use plimsoll_engine::script::Turn;
use plimsoll_model::measure::TimeMeasure;
use plimsoll_model::{Outcome, Time};

use super::{API, Api, Request, Session};
use crate::session::http::{Answer, put_post};

impl Session {
    pub(super) fn ask_api(&mut self, request: Request, now: Time, turn: &mut Turn<'_>) {
        self.request = Some(request);
        match self.api {
            Api::Up => self.send_request(now, turn),
            Api::Connecting => {}
            Api::Down => {
                self.api = Api::Connecting;
                turn.connect(API);
            }
        }
    }

    pub(super) fn send_request(&mut self, now: Time, turn: &mut Turn<'_>) {
        let path = match self.request {
            None => return,
            Some(Request::Create) => "/session/create".to_owned(),
            Some(Request::Run) => format!("/session/{}/run", self.session),
            Some(Request::Close) => format!("/session/{}/close", self.session),
        };
        self.requested = now;
        let out = turn.out(API);
        let before = out.len();
        put_post(out, &self.options.api_host, &path);
        let size = (out.len() - before) as u32;
        if let Some(query) = &mut self.query
            && self.request == Some(Request::Run)
        {
            query.bytes_sent += size;
            if query.sent == Time::NEVER {
                query.sent = now;
            }
        }
    }

    pub(super) fn answered(&mut self, answer: &Answer, now: Time, turn: &mut Turn<'_>) {
        if answer.closes {
            self.api = Api::Down;
            turn.close(API);
        }
        let ok = (200..300).contains(&answer.status);
        let refused = |what: &str| {
            let body = String::from_utf8_lossy(&answer.body);
            let body: String = body.chars().take(160).collect();
            format!("{what}: {} {body}", answer.status)
        };
        match self.request.take() {
            None => {
                let text = "an answer that nothing was asked for";
                self.api_failed(Outcome::BadAnswer, text, now, turn);
            }
            Some(Request::Create) if ok => self.created(&answer.body, now, turn),
            Some(Request::Create) => {
                turn.detail(Outcome::SessionRefused, &refused("POST /session/create"));
                self.break_off(Outcome::SessionRefused, now, turn);
            }
            Some(Request::Run) if ok => {
                #[derive(serde::Deserialize)]
                struct Begun {
                    run: Option<u64>,
                }
                let begun = serde_json::from_slice::<Begun>(&answer.body);
                let run = begun.ok().and_then(|begun| begun.run);
                match &mut self.query {
                    Some(query) => {
                        query.begun = true;
                        self.run = run.or(self.run);
                    }
                    // Its `done` was faster.
                    None => self.after_query(now, turn),
                }
            }
            Some(Request::Run) => {
                turn.detail(Outcome::RunRefused, &refused("POST /session/ID/run"));
                self.query_over(Outcome::RunRefused, now, turn);
                self.after_query(now, turn);
            }
            Some(Request::Close) => self.over(turn),
        }
    }

    pub(super) fn created(&mut self, body: &[u8], now: Time, turn: &mut Turn<'_>) {
        #[derive(serde::Deserialize)]
        struct Made {
            session_id: String,
            #[serde(alias = "jwt", alias = "access_token")]
            token: String,
        }
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        match serde_json::from_slice::<Made>(body) {
            Ok(made) if plain(&made.session_id) && plain(&made.token) => {
                self.created_ns = now.since(self.requested);
                turn.time(TimeMeasure::SessionCreate, self.created_ns);
                self.session = made.session_id;
                self.token = made.token;
                self.open_socket(now, turn);
            }
            _ => {
                // What the answer holds may be secret.
                let text = "POST /session/create: the answer has no session_id and token";
                self.api_failed(Outcome::BadAnswer, text, now, turn);
            }
        }
    }

    /// The API can't be used: what was asked of it fails, and the session with it.
    pub(super) fn api_failed(
        &mut self,
        outcome: Outcome,
        text: &str,
        now: Time,
        turn: &mut Turn<'_>,
    ) {
        turn.detail(outcome, text);
        if self.request == Some(Request::Close) {
            // Every query had ended.
            return self.over(turn);
        }
        if self.request == Some(Request::Run) && self.query.is_none() {
            self.request = None;
            return self.after_query(now, turn);
        }
        self.break_off(outcome, now, turn);
    }
}
