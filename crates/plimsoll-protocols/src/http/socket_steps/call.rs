//! A step over a WebSocket, with all defaults resolved.

use std::borrow::Cow;

use plimsoll_model::plan::{Call, Metric};
use plimsoll_model::rows::template::{MetadataField, Template, TraceIds, VariationSettings};

use super::message_match::MessageMatch;
use crate::http::call::{HttpCall, VaryingBody};
use crate::journey::SharedAnswerReader;
use crate::shared::backoff::Backoff;
use crate::shared::bearer_token::{self, TOKEN_VARIABLE};

/// The actions of a step on the user's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketStepCall {
    /// The request that opens the socket; not used if the step opens none.
    pub(super) upgrade: HttpCall,
    /// Whether the step opens the socket.
    pub(super) opens: bool,
    /// The subprotocols to offer, in order of preference.
    pub(super) subprotocols: Vec<Template>,
    /// Whether the step offers compression.
    pub(super) compressed: bool,
    /// Maximum size of a message, in bytes.
    pub(super) max_message: usize,
    /// How the socket is opened again when it is lost; `None`: not at all.
    pub(super) reopening: Option<ReopeningRule>,
    /// The frames to send.
    pub(super) frames: Vec<FrameContent>,
    /// The messages to await.
    pub(super) until: AwaitedMessages,
    /// Recognises a message that reports an error.
    pub(super) error: Option<MessageMatch>,
    /// The rule that at least one awaited message must match.
    pub(super) expect: Option<MessageMatch>,
    /// The reader of binary messages; `None` if their type is not described.
    pub(super) message_type: Option<SharedAnswerReader>,
    /// Whether the step closes the socket at its end.
    pub(super) closes: bool,
}

/// How a lost socket is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReopeningRule {
    /// The maximum number of consecutive attempts.
    pub(super) max_attempts: u32,
    /// The pauses before attempts.
    pub(super) backoff: Backoff,
}

/// A frame of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameContent {
    /// The payload; empty if it varies.
    pub(super) constant: Vec<u8>,
    /// The template of the payload; `None` if the payload does not vary.
    pub(super) varying: Option<VaryingBody>,
    /// Whether it is a binary frame.
    pub(super) is_binary: bool,
}

/// The messages that a step awaits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AwaitedMessages {
    /// This many messages, whatever their content.
    Count(u32),
    /// All messages up to the first that matches.
    Until(MessageMatch),
    /// The tokens of a query up to its `done`; the template's text is their number, if it is known beforehand.
    Tokens(Option<Template>),
}

impl SocketStepCall {
    /// Returns whether the step awaits a message.
    pub(super) fn awaits_message(&self) -> bool {
        self.until != AwaitedMessages::Count(0)
    }

    /// Returns the template of the number of tokens that the step awaits, if it awaits tokens and has a number.
    pub(super) fn token_number(&self) -> Option<&Template> {
        match &self.until {
            AwaitedMessages::Tokens(number) => number.as_ref(),
            AwaitedMessages::Count(_) | AwaitedMessages::Until(_) => None,
        }
    }

    /// Returns the templates of frames, messages, subprotocols and the number of tokens.
    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        let frames = self
            .frames
            .iter()
            .filter_map(|frame| frame.varying.as_ref());
        let until = match &self.until {
            AwaitedMessages::Count(_) | AwaitedMessages::Tokens(_) => None,
            AwaitedMessages::Until(message) => Some(message),
        };
        let tokens = self.token_number();
        let messages = until.into_iter().chain(&self.error).chain(&self.expect);
        let messages = messages.filter_map(MessageMatch::template);
        let frames = frames.map(|frame| &frame.template);
        frames
            .chain(messages)
            .chain(tokens)
            .chain(&self.subprotocols)
    }
}

impl Call for SocketStepCall {
    fn protocol_and_call_name(&self) -> (&'static str, Cow<'_, str>) {
        self.upgrade.protocol_and_call_name()
    }

    fn variation_settings(&self) -> Option<&VariationSettings> {
        self.upgrade.variation_settings()
    }

    fn header_fields(&self) -> (&[(String, String)], &[MetadataField]) {
        self.upgrade.header_fields()
    }

    fn missing_metric_reason(&self, metric: Metric) -> Option<&'static str> {
        let awaits_tokens = matches!(self.until, AwaitedMessages::Tokens(_));
        match metric {
            Metric::Finish(_) if awaits_tokens => {
                Some("sockets do not report why a model ended its answer: leave it out")
            }
            metric => (metric.is_about_tokens() && !awaits_tokens).then_some(
                "no step awaits tokens: write tokens in one over WebSocket, or leave it out",
            ),
        }
    }

    fn query_string_secrets(&self) -> Vec<(String, String)> {
        self.upgrade.query_string_secrets()
    }

    fn setting_secrets(&self) -> Vec<(String, String)> {
        let offered = self.subprotocols.iter();
        let offered: Vec<&str> = offered
            .map(|name| name.constant_text().unwrap_or_default())
            .collect();
        let token = bearer_token::find_token(&offered).filter(|token| !token.is_empty());
        let named = token.map(|token| (TOKEN_VARIABLE.to_owned(), token.to_owned()));
        named.into_iter().collect()
    }

    fn with_trace_ids(&self, ids: TraceIds) -> Option<SocketStepCall> {
        let upgrade = self.upgrade.with_trace_ids(ids)?;
        Some(SocketStepCall {
            upgrade,
            ..self.clone()
        })
    }
}

/// Returns whether the byte can be part of a subprotocol's name, which is a token (RFC 6455, 4.1).
pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
