//! The `[call.session]` section: its defaults, and checks of its values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use plimsoll_model::formats::redaction;
use plimsoll_model::formats::units::{Period, parse_seconds};
use plimsoll_model::plan::{GoodputBounds, RequestFields, Target};
use plimsoll_model::rows::template::{
    self, MessageRenderer, RenderContext, Template, VariationSettings, VaryingMessages,
};
use plimsoll_model::spec::{
    CallSection, FieldNameRules, GoodputSpec, LoadSpec, MetadataSpec, OptionalPeriod, PlanRows,
    Problems, ResolveContext, Spec, UrlSchemes, is_bare_unix_socket, resolve_target_url,
    struct_keys,
};
use serde::{Deserialize, Serialize};

use super::{QueryText, SessionCall};
use crate::http::check_name;
use crate::shared::backoff::Backoff;

/// The default deadline of one query. It is long, because an answer streams until its text ends.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);
const DEFAULT_RECONNECTS: u32 = 5;
/// The default text of a query; backends refuse a run without one.
const DEFAULT_QUERY: &str = "What does the load line show?";
const MAX_QUERIES_PER_SESSION: u32 = 1_000_000;

/// Header fields that a plan may set on the requests of a session.
const HEADER_NAME_RULES: FieldNameRules = FieldNameRules {
    key: "call.session.headers",
    binary: false,
    check: |name| match name {
        "accept" | "content-type" => Err("set by sessions themselves: remove it"),
        "host" => Err("set by the target's URL: remove it"),
        name if name.starts_with("sec-websocket-") => {
            Err("set by the WebSocket handshake: remove it")
        }
        name => check_name(name),
    },
};

/// A scripted session of queries whose tokens arrive on a WebSocket.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionSection {
    /// Address of the WebSockets: `ws://host:port`, or `wss://host:port` over TLS. Default: host and port of the
    /// target.
    #[arg(skip)]
    pub socket: Option<String>,

    /// The first segment of the socket's path. Default `agent`.
    #[arg(skip)]
    pub agent: Option<String>,

    /// Number of queries in each session [default: 1].
    #[arg(long, value_name = "N", help_heading = "Session")]
    pub queries: Option<u32>,

    /// The text of a query, with fields such as `{{seq}}` or `{{row.NAME}}` where it varies. Default: a question about
    /// load lines.
    #[arg(
        help = "The text of a query, with fields such as {{seq}} or {{row.NAME}} where it varies",
        long,
        value_name = "TEXT",
        help_heading = "Session"
    )]
    pub query: Option<String>,

    /// Number of tokens that each query must return, if the service does not announce it; a query with fewer fails with
    /// TOKENS_SHORT [default: any number].
    #[arg(long, value_name = "N", help_heading = "Session")]
    pub expect_tokens: Option<u64>,

    /// Maximum attempts in a row to reopen a lost socket; 0: never [default: 5].
    #[arg(long, value_name = "N", help_heading = "Session")]
    pub reconnects: Option<u32>,

    /// The longest pause before the first attempt; it doubles each time [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, help_heading = "Session")]
    pub reconnect_pause: Option<Period>,

    /// The longest pause before any attempt [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, help_heading = "Session")]
    pub reconnect_pause_most: Option<Period>,

    /// Offer to have the sockets' messages compressed (permessage-deflate); each costs CPU.
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Session")]
    pub compression: Option<bool>,

    /// Header fields of the API's requests and of the sockets' upgrades; `authorization` is sent with the requests
    /// only, as upgrades carry the session's token.
    #[arg(skip)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, MetadataSpec>,

    /// The bounds that a successful query must meet to count as good.
    #[arg(skip)]
    pub goodput: Option<GoodputSpec>,
}

impl CallSection for SessionSection {
    const SCHEMES: UrlSchemes = UrlSchemes {
        section: "session",
        purpose: "for sessions",
        plain: "session",
        secured: Some("sessions"),
        aliases: None,
        foreign_schemes: &[],
        ports: None,
        with_path: false,
    };
    const SUPPORTS_ROWS: bool = true;
    const SUPPORTS_TRACEPARENT: bool = true;
    type Call = SessionCall;

    fn nested_keys(path: &str) -> Option<&'static [&'static str]> {
        match path {
            "goodput" => Some(struct_keys::<GoodputSpec>()),
            path => path.starts_with("headers.").then(MetadataSpec::keys),
        }
    }

    fn fields(&mut self) -> Option<&mut BTreeMap<String, MetadataSpec>> {
        Some(&mut self.headers)
    }

    /// Sets one session for each client unless a duration or a number of queries is given, and two connections for each
    /// session.
    fn apply_defaults(&self, load: &mut LoadSpec) {
        let queries = self.queries.unwrap_or(1);
        if let Some(clients) = load.clients {
            if load.duration.is_none() && load.calls.is_none() {
                load.calls = Some(u64::from(clients) * u64::from(queries));
            }
            if load.connections.is_none() && load.reuse.is_none() {
                load.connections = Some(clients.saturating_mul(2));
            }
        }
        load.deadline = load
            .deadline
            .or(Some(OptionalPeriod::After(Period(DEFAULT_DEADLINE))));
    }

    fn calls_per_user(&self) -> Option<u32> {
        Some(self.queries.unwrap_or(1))
    }

    /// Returns whether the sockets use TLS, which depends on their own URL.
    fn uses_tls(&self, spec: &Spec) -> bool {
        let socket = self.socket.as_deref();
        socket.is_some_and(|url| match parse_socket_url(url) {
            Some((_, secured)) => secured || spec.tls.is_some() && is_bare_unix_socket(url),
            None => false,
        })
    }

    fn resolve(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn ResolveContext,
    ) -> Option<SessionCall> {
        let before = problems.0.len();
        let target = spec.target.as_deref().unwrap_or_default();
        let api = resolve_target_url(target, spec).ok();
        let socket = self.socket_target(spec, api.as_ref(), problems);
        let goodput = problems.resolve_goodput("call.session.goodput", self.goodput.as_ref());
        let agent = self.agent.clone().unwrap_or_else(|| "agent".to_owned());
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
        if agent.is_empty() || !agent.bytes().all(is_plain) {
            problems.add(
                "call.session.agent",
                format!(
                    "`{agent}` is not one part of a path: use letters, digits, `-`, `_` and `.`"
                ),
            );
        }
        let queries = self.queries.unwrap_or(1);
        if !(1..=MAX_QUERIES_PER_SESSION).contains(&queries) {
            problems.add(
                "call.session.queries",
                format!("{queries} queries in a session: use 1 to {MAX_QUERIES_PER_SESSION}"),
            );
        }
        if spec.load.clients.is_none() && spec.load.think.is_some() && queries == 1 {
            problems.add(
                "load.think",
                "a pause between a session's queries, but there is only one: set call.session.queries to 2 or more",
            );
        }
        if spec.load.reuse.is_some() {
            problems.add(
                "load.reuse",
                "not used with sessions: each has connections of its own",
            );
        }
        if spec.tls.as_ref().is_some_and(|tls| tls.resume.is_some()) {
            problems.add(
                "tls.resume",
                "not used with sessions: every socket makes a full handshake",
            );
        }
        if let (Some(calls), Some(_)) = (spec.load.calls, spec.load.clients)
            && queries > 0
            && !calls.is_multiple_of(u64::from(queries))
        {
            problems.add(
                "load.calls",
                format!(
                    "{calls} queries are not a multiple of {queries}, the queries of a session"
                ),
            );
        }
        if self.expect_tokens == Some(0) {
            problems.add(
                "call.session.expect_tokens",
                "0 tokens, but a query without tokens is a failure: use 1 or more, or leave it out",
            );
        }
        let (query, headers) = self.resolve_query(spec, problems, surroundings);
        if problems.0.len() > before {
            return None;
        }
        let (query, (socket, socket_secured)) = (query?, socket?);
        let backoff = Backoff::default();
        Some(SessionCall {
            socket,
            api_secured: api.is_some_and(|(_, secured)| secured),
            socket_secured,
            agent,
            queries,
            query,
            expect_tokens: self.expect_tokens,
            think: spec.load.think.map_or(Duration::ZERO, |p| p.0),
            reconnects: self.reconnects.unwrap_or(DEFAULT_RECONNECTS),
            reconnect_pause: self.reconnect_pause.map_or(backoff.first, |p| p.0),
            max_reconnect_pause: self.reconnect_pause_most.map_or(backoff.max, |p| p.0),
            compression: self.compression.unwrap_or(false),
            headers,
            goodput,
        })
    }

    fn with_defaults(self, call: &SessionCall) -> SessionSection {
        SessionSection {
            socket: Some(call.socket.url.clone()),
            agent: Some(call.agent.clone()),
            queries: Some(call.queries),
            query: Some(call.query.text.clone()),
            expect_tokens: call.expect_tokens,
            reconnects: Some(call.reconnects),
            reconnect_pause: Some(Period(call.reconnect_pause)),
            reconnect_pause_most: Some(Period(call.max_reconnect_pause)),
            compression: call.compression.then_some(true),
            // Header fields stay as the user wrote them, because their resolved values may be secret.
            headers: self.headers,
            goodput: (call.goodput != GoodputBounds::default()).then(|| GoodputSpec {
                first_token: call.goodput.first_token.map(Period),
                time_per_token: call.goodput.time_per_token.map(Period),
                query: call.goodput.query.map(Period),
            }),
        }
    }
}

/// Returns the target URL that corresponds to a WebSocket URL, and whether it uses TLS.
fn parse_socket_url(url: &str) -> Option<(String, bool)> {
    if is_bare_unix_socket(url) {
        return Some((url.to_owned(), false));
    }
    let secured = url.strip_prefix("wss");
    let rest = secured.or_else(|| url.strip_prefix("ws"))?;
    let begins = ["://", "+unix"].iter().any(|with| rest.starts_with(with));
    begins.then(|| (format!("session{rest}"), secured.is_some()))
}

impl SessionSection {
    /// Resolves the address of the sockets, and whether they use TLS.
    fn socket_target(
        &self,
        spec: &Spec,
        api: Option<&(Target, bool)>,
        problems: &mut Problems,
    ) -> Option<(Target, bool)> {
        let Some(url) = &self.socket else {
            return api.cloned();
        };
        let named = parse_socket_url(url).ok_or_else(|| {
            let url = redaction::mask_urls(url);
            format!(
                "`{url}` is not the address of WebSockets: write ws://HOST:PORT, or wss://HOST:PORT over TLS; ws+unix:/PATH or wss+unix:/PATH for a Unix socket"
            )
        });
        let parsed = named.and_then(|(named, secured)| {
            let (socket, given) = resolve_target_url(&named, spec)?;
            Ok((socket, secured || given))
        });
        let (mut socket, secured) = problems.ok_or_report("call.session.socket", parsed)?;
        socket.url = redaction::replace_secrets_with_variables(url);
        Some((socket, secured))
    }

    /// Resolves the text of the queries, and their header fields.
    fn resolve_query(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn ResolveContext,
    ) -> (Option<QueryText>, RequestFields) {
        let text = self.query.as_deref().unwrap_or(DEFAULT_QUERY);
        let rows = problems.resolve_rows(spec, surroundings);
        let given = PlanRows::from_spec(rows.as_ref(), spec);
        let mut headers =
            problems.resolve_metadata(&HEADER_NAME_RULES, &self.headers, given, surroundings);
        problems.add_traceparent(&HEADER_NAME_RULES, spec, &mut headers);
        if matches!(given, PlanRows::Unreadable) {
            return (None, RequestFields::default());
        }
        if spec.rows.is_some() && !template::uses_rows(text) && !headers.uses_rows {
            problems.add(
                "rows",
                "not used by the query or a header: write {{row.NAME}} where a column belongs",
            );
        }
        let variation = problems
            .resolve_variation(spec, rows.as_ref())
            .with_calls_per_client(self.queries.unwrap_or(1));
        let headers = headers.into_request_fields(&variation);
        let template = Template::parse(text, &mut 0, rows.as_ref());
        let template = problems.ok_or_report("call.session.query", template);
        let query = template.map(|template| build_query_text(text, template, variation));
        (query, headers)
    }
}

/// Builds the text of all queries from the template that the user wrote.
fn build_query_text(text: &str, template: Template, variation: VariationSettings) -> QueryText {
    if let Some(constant) = template.constant_text() {
        return QueryText {
            text: text.to_owned(),
            ..QueryText::constant(constant)
        };
    }
    let rendered = RunBody(template);
    let mut body = Vec::new();
    rendered.render(&variation.render_context(0, 0, 0), &mut body);
    QueryText {
        text: text.to_owned(),
        body,
        varying: Some(VaryingMessages {
            variation,
            messages: vec![Arc::new(rendered)],
        }),
    }
}

/// The request body that starts a run: a JSON object with the query's text.
#[derive(Debug)]
struct RunBody(Template);

impl MessageRenderer for RunBody {
    fn render(&self, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        let mut text = Vec::new();
        self.0.write(moment, &mut text);
        let text = String::from_utf8_lossy(&text);
        let body = serde_json::json!({ "query": text }).to_string();
        out.extend_from_slice(body.as_bytes());
    }

    fn max_bytes(&self) -> usize {
        // An escaped character takes at most six bytes.
        self.0.length_bounds().1 * 6 + r#"{"query":""}"#.len()
    }
}
