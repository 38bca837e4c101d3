//! The sessions of a plan, with all defaults resolved.

use std::borrow::Cow;
use std::time::Duration;

use plimsoll_model::plan::{Call, GoodputBounds, Metric, RequestFields, Target};
use plimsoll_model::rows::template::{MetadataField, TraceIds, VariationSettings, VaryingMessages};

/// A scripted session: created over an HTTP API, its tokens read from a WebSocket. Each of its queries is a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCall {
    /// The address of the WebSockets; the plan's target is the API.
    pub socket: Target,
    /// Whether the API is reached over TLS.
    pub api_secured: bool,
    /// Whether the WebSockets are reached over TLS.
    pub socket_secured: bool,
    /// The first segment of the WebSocket's path.
    pub agent: String,
    /// The number of queries in each session.
    pub queries: u32,
    /// The text of the queries.
    pub query: QueryText,
    /// The number of tokens that each query must return, if the service does not announce it.
    pub expect_tokens: Option<u64>,
    /// The pause between the end of a query and the next one.
    pub think: Duration,
    /// The maximum number of consecutive attempts to reopen a lost socket.
    pub reconnects: u32,
    /// The longest pause before the first attempt; it doubles with every attempt.
    pub reconnect_pause: Duration,
    /// The longest pause before any attempt.
    pub max_reconnect_pause: Duration,
    /// Whether compression of the sockets' messages is offered (permessage-deflate).
    pub compression: bool,
    /// Header fields of API requests and of upgrades.
    pub headers: RequestFields,
    /// The bounds that a query must meet to count as good.
    pub goodput: GoodputBounds,
}

impl Call for SessionCall {
    fn protocol_and_call_name(&self) -> (&'static str, Cow<'_, str>) {
        ("session", format!("{} queries", self.queries).into())
    }

    fn short_name(&self) -> Cow<'_, str> {
        "sessions".into()
    }

    fn calls_per_user(&self) -> Option<u32> {
        Some(self.queries)
    }

    fn missing_metric_reason(&self, metric: Metric) -> Option<&'static str> {
        matches!(metric, Metric::Finish(_))
            .then_some("sessions do not report why a model ended its answer: leave it out")
    }

    fn variation_settings(&self) -> Option<&VariationSettings> {
        self.query.varying.as_ref().map(|v| &v.variation)
    }

    fn header_fields(&self) -> (&[(String, String)], &[MetadataField]) {
        let varying = self.headers.varying.as_ref();
        let live = varying.map_or(&[][..], |all| &all.fields);
        (&self.headers.constant, live)
    }

    fn with_trace_ids(&self, ids: TraceIds) -> Option<SessionCall> {
        let mut call = self.clone();
        call.headers.varying = Some(self.headers.varying.as_ref()?.with_trace_ids(ids)?);
        Some(call)
    }

    fn other_targets(&self) -> Vec<(&Target, bool)> {
        vec![(&self.socket, self.socket_secured)]
    }

    fn other_targets_mut(&mut self) -> Vec<&mut Target> {
        vec![&mut self.socket]
    }
}

/// The text that `POST /session/ID/run` sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryText {
    /// The text as the user wrote it, for the run directory.
    pub text: String,
    /// The request's body, `{"query": …}`; if it varies, the body of the first query.
    pub body: Vec<u8>,
    /// The varying bodies; `None`: every query sends the same.
    pub varying: Option<VaryingMessages>,
}

impl QueryText {
    /// Creates a text that is the same for every query.
    pub fn constant(text: &str) -> QueryText {
        QueryText {
            text: text.to_owned(),
            body: serde_json::json!({ "query": text })
                .to_string()
                .into_bytes(),
            varying: None,
        }
    }
}
