//! The `[call.session]` section: what it leaves out, and what can't be meant.

use std::sync::Arc;
use std::time::Duration;

use super::problem::Problems;
use super::resolve::{Given, Names, target_of};
use super::surroundings::Surroundings;
use super::target::is_bare_socket;
use super::{GoodputSpec, Limit, SessionSpec, Spec};
use crate::plan::{CallPlan, Goodput, QueryText, RequestFields, SessionCall};
use crate::template::{self, Moment, Render, Template, Variation, Varying};
use crate::units::Period;

/// For one query: answers stream for as long as there is text.
const DEADLINE: Duration = Duration::from_secs(60);
const RECONNECTS: u32 = 5;
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
const RECONNECT_PAUSE_MOST: Duration = Duration::from_secs(30);
/// Backends refuse a run without a query.
const QUERY: &str = "What does the load line show?";
const MAX_QUERIES: u32 = 1_000_000;

/// The spec of a session plan with the load that it means: each client has one session
/// unless a duration or a number of queries is given, and a session has two connections.
pub(super) fn with_defaults(spec: &Spec) -> Option<Spec> {
    let session = spec.call.session.as_ref()?;
    let mut spec = spec.clone();
    let queries = session.queries.unwrap_or(1);
    let load = &mut spec.load;
    if let Some(clients) = load.clients {
        if load.duration.is_none() && load.calls.is_none() {
            load.calls = Some(u64::from(clients) * u64::from(queries));
        }
        if load.connections.is_none() && load.reuse.is_none() {
            load.connections = Some(clients.saturating_mul(2));
        }
    }
    load.deadline = load.deadline.or(Some(Limit::After(Period(DEADLINE))));
    Some(spec)
}

/// Every default written out.
pub(super) fn fill_in(typed: &mut SessionSpec, call: &SessionCall) {
    *typed = SessionSpec {
        socket: Some(call.socket.url.clone()),
        agent: Some(call.agent.clone()),
        queries: Some(call.queries),
        query: Some(call.query.text.clone()),
        expect_tokens: call.expect_tokens,
        reconnects: Some(call.reconnects),
        reconnect_pause: Some(Period(call.reconnect_pause)),
        reconnect_pause_most: Some(Period(call.reconnect_pause_most)),
        compression: call.compression.then_some(true),
        // As they were typed: their values may be secret.
        headers: std::mem::take(&mut typed.headers),
        goodput: (call.goodput != Goodput::default()).then(|| GoodputSpec {
            first_token: call.goodput.first_token.map(Period),
            time_per_token: call.goodput.time_per_token.map(Period),
            query: call.goodput.query.map(Period),
        }),
    };
}

/// Whether the sockets are reached over TLS by their own URL.
pub(super) fn has_secured_socket(spec: &Spec) -> bool {
    let session = spec.call.session.as_ref();
    let socket = session.and_then(|session| session.socket.as_deref());
    socket.is_some_and(|url| match socket_of(url) {
        Some((_, secured)) => secured || spec.tls.is_some() && is_bare_socket(url),
        None => false,
    })
}

/// What a WebSocket URL is among targets, and whether it is secured.
fn socket_of(url: &str) -> Option<(String, bool)> {
    if is_bare_socket(url) {
        return Some((url.to_owned(), false));
    }
    let secured = url.strip_prefix("wss");
    let rest = secured.or_else(|| url.strip_prefix("ws"))?;
    let begins = ["://", "+unix"].iter().any(|with| rest.starts_with(with));
    begins.then(|| (format!("session{rest}"), secured.is_some()))
}

impl Problems {
    pub(super) fn session(
        &mut self,
        spec: &Spec,
        session: &SessionSpec,
        surroundings: &dyn Surroundings,
    ) -> Option<CallPlan> {
        let before = self.0.len();
        let target = spec.target.as_deref().unwrap_or_default();
        let api = target_of(target, spec).ok();
        let socket = match &session.socket {
            None => api.clone(),
            Some(url) => {
                let named = socket_of(url).ok_or_else(|| {
                    format!(
                        "`{url}` is not the address of WebSockets: write ws://HOST:PORT, or wss://HOST:PORT over TLS; ws+unix:/PATH or wss+unix:/PATH for a Unix socket"
                    )
                });
                let parsed = named.and_then(|(named, secured)| {
                    let (socket, given) = target_of(&named, spec)?;
                    Ok((socket, secured || given))
                });
                self.keep("call.session.socket", parsed)
                    .map(|(mut socket, secured)| {
                        socket.url.clone_from(url);
                        (socket, secured)
                    })
            }
        };
        let goodput = self.goodput("call.session.goodput", session.goodput.as_ref());
        let agent = session.agent.clone().unwrap_or_else(|| "agent".to_owned());
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
        if agent.is_empty() || !agent.bytes().all(is_plain) {
            self.add(
                "call.session.agent",
                format!(
                    "`{agent}` is not one part of a path: use letters, digits, `-`, `_` and `.`"
                ),
            );
        }
        let queries = session.queries.unwrap_or(1);
        if !(1..=MAX_QUERIES).contains(&queries) {
            self.add(
                "call.session.queries",
                format!("{queries} queries in a session: use 1 to {MAX_QUERIES}"),
            );
        }
        if spec.load.clients.is_none() && spec.load.think.is_some() && queries == 1 {
            self.add(
                "load.think",
                "a pause between a session's queries, and there is one: it needs call.session.queries, 2 or more",
            );
        }
        if spec.load.reuse.is_some() {
            self.add(
                "load.reuse",
                "not used with sessions: each has connections of its own",
            );
        }
        if spec.tls.as_ref().is_some_and(|tls| tls.resume.is_some()) {
            self.add(
                "tls.resume",
                "not used with sessions: every socket makes a full handshake",
            );
        }
        if let (Some(calls), Some(_)) = (spec.load.calls, spec.load.clients)
            && queries > 0
            && !calls.is_multiple_of(u64::from(queries))
        {
            self.add(
                "load.calls",
                format!("{calls} queries are no whole number of sessions of {queries}"),
            );
        }
        if session.expect_tokens == Some(0) {
            self.add(
                "call.session.expect_tokens",
                "0 tokens, and a query without tokens is a failure: use 1 or more, or leave it out",
            );
        }
        let (query, headers) = self.asked(spec, session, surroundings);
        if self.0.len() > before {
            return None;
        }
        let (query, (socket, socket_secured)) = (query?, socket?);
        Some(CallPlan::Session(SessionCall {
            socket,
            api_secured: api.is_some_and(|(_, secured)| secured),
            socket_secured,
            agent,
            queries,
            query,
            expect_tokens: session.expect_tokens,
            think: spec.load.think.map_or(Duration::ZERO, |p| p.0),
            reconnects: session.reconnects.unwrap_or(RECONNECTS),
            reconnect_pause: session.reconnect_pause.map_or(RECONNECT_PAUSE, |p| p.0),
            reconnect_pause_most: session
                .reconnect_pause_most
                .map_or(RECONNECT_PAUSE_MOST, |p| p.0),
            compression: session.compression.unwrap_or(false),
            headers,
            goodput,
        }))
    }

    /// What each query asks, and the header fields with which it does.
    fn asked(
        &mut self,
        spec: &Spec,
        session: &SessionSpec,
        surroundings: &dyn Surroundings,
    ) -> (Option<QueryText>, RequestFields) {
        let text = session.query.as_deref().unwrap_or(QUERY);
        let rows = self.rows(spec, surroundings);
        let given = match (&rows, &spec.rows) {
            (Some(rows), _) => Given::Rows(rows),
            (None, Some(_)) => Given::Lost,
            (None, None) => Given::Nothing,
        };
        let headers = self.metadata(Names::ScriptFields, &session.headers, given, surroundings);
        if matches!(given, Given::Lost) {
            return (None, RequestFields::default());
        }
        if rows.is_some() && !template::uses_rows(text) && !headers.uses_rows {
            self.add(
                "rows",
                "neither the query nor a header has a field of them: write {{row.NAME}} where a column belongs",
            );
        }
        let variation = self
            .variation(spec, rows.as_ref())
            .in_a_row(session.queries.unwrap_or(1));
        let headers = headers.in_requests(&variation);
        let template = Template::parse(text, &mut 0, rows.as_ref()).map_err(|e| e.to_string());
        let template = self.keep("call.session.query", template);
        (
            template.map(|template| query(text, template, variation)),
            headers,
        )
    }
}

/// The text of each query, which is typed.
fn query(text: &str, template: Template, variation: Variation) -> QueryText {
    if let Some(constant) = template.constant() {
        return QueryText {
            text: text.to_owned(),
            ..QueryText::constant(constant)
        };
    }
    let rendered = RunBody(template);
    let mut body = Vec::new();
    rendered.render(&variation.moment(0, 0, 0), &mut body);
    QueryText {
        text: text.to_owned(),
        body,
        varying: Some(Varying {
            variation,
            messages: vec![Arc::new(rendered)],
        }),
    }
}

/// A query's text as the JSON object that a run is asked for with.
#[derive(Debug)]
struct RunBody(Template);

impl Render for RunBody {
    fn render(&self, moment: &Moment<'_>, out: &mut Vec<u8>) {
        let mut text = Vec::new();
        self.0.write(moment, &mut text);
        let text = String::from_utf8_lossy(&text);
        let body = serde_json::json!({ "query": text }).to_string();
        out.extend_from_slice(body.as_bytes());
    }

    fn most(&self) -> usize {
        // An escaped character takes six bytes at most.
        self.0.bounds().1 * 6 + r#"{"query":""}"#.len()
    }
}
