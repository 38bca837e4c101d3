//! A plan's sessions, resolved.

use std::borrow::Cow;
use std::time::Duration;

use plimsoll_model::plan::{Call, Goodput, RequestFields, Target};
use plimsoll_model::template::{MetadataField, TraceIds, Variation, Varying};

/// A scripted session: made over an HTTP API, its tokens read from a WebSocket. Each of
/// its queries is a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCall {
    /// Where the WebSockets are; the plan's target is the API.
    pub socket: Target,
    /// Which of the two are reached over TLS.
    pub api_secured: bool,
    /// The sockets are reached over TLS.
    pub socket_secured: bool,
    /// The first part of the socket's path.
    pub agent: String,
    /// Queries in each session.
    pub queries: u32,
    /// What is asked.
    pub query: QueryText,
    /// Tokens of each query, where the service does not say how many they are.
    pub expect_tokens: Option<u64>,
    /// Between a query's end and the next.
    pub think: Duration,
    /// How many attempts in a row are made to reopen a lost socket.
    pub reconnects: u32,
    /// The longest first pause before that; it doubles with every attempt.
    pub reconnect_pause: Duration,
    /// The longest pause.
    pub reconnect_pause_most: Duration,
    /// Offer to have the sockets' messages compressed.
    pub compression: bool,
    /// Header fields of requests and upgrades.
    pub headers: RequestFields,
    /// The bounds of a good query.
    pub goodput: Goodput,
}

impl Call for SessionCall {
    fn names(&self) -> (&'static str, Cow<'_, str>) {
        ("session", format!("{} queries", self.queries).into())
    }

    fn short_name(&self) -> Cow<'_, str> {
        "sessions".into()
    }

    fn calls_in_a_row(&self) -> Option<u32> {
        Some(self.queries)
    }

    fn variation(&self) -> Option<&Variation> {
        self.query.varying.as_ref().map(|v| &v.variation)
    }

    fn fields(&self) -> (&[(String, String)], &[MetadataField]) {
        let varying = self.headers.varying.as_ref();
        let live = varying.map_or(&[][..], |all| &all.fields);
        (&self.headers.constant, live)
    }

    fn traced(&self, ids: TraceIds) -> Option<SessionCall> {
        let mut call = self.clone();
        call.headers.varying = Some(self.headers.varying.as_ref()?.traced(ids)?);
        Some(call)
    }

    fn second_target(&self) -> Option<(&Target, bool)> {
        Some((&self.socket, self.socket_secured))
    }

    fn second_target_mut(&mut self) -> Option<&mut Target> {
        Some(&mut self.socket)
    }
}

/// What `POST /session/ID/run` carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryText {
    /// The text as typed, for the record.
    pub text: String,
    /// The request's body: `{"query": …}`. Where it varies: as the first query has it.
    pub body: Vec<u8>,
    /// `None`: every query sends the same.
    pub varying: Option<Varying>,
}

impl QueryText {
    /// A text that is the same for every query.
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
