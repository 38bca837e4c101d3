//! Requests over HTTP/1.1 (RFC 9112) and HTTP/2 (RFC 9113) with any method, headers and bodies. Responses are checked
//! against the plan's expectations, and parsed into events if they are streamed.
//!
//! [`Http1Protocol`] and [`Http2Protocol`] are the client side: `request` encodes requests, `checks` checks responses,
//! `body_inspection` inspects bodies, and [`events`] parses streams. [`SocketProtocol`] opens a WebSocket with the
//! request (RFC 6455). `target` is the server.

mod body_inspection;
mod call;
mod checks;
mod conversation;
mod driver;
mod endless_streams;
mod envelopes;
mod errors;
pub mod events;
mod extra_keys;
mod field_list;
mod finish_reason;
mod flags;
mod foreign_lines;
mod form;
mod handshake;
mod header_names;
mod journey;
mod lenient_json;
mod limits;
mod llm;
mod llm_api;
mod llm_data_set;
mod load;
mod missing_page;
mod multiplexed;
mod negotiated_driver;
mod paths;
mod payload;
mod plan_import;
#[cfg(feature = "targets")]
mod probe;
#[cfg(feature = "targets")]
mod redirects;
mod refusals;
mod replayed_call;
mod replayed_parts;
mod request;
mod resolve;
mod response_settings;
mod script;
mod section;
mod socket;
mod socket_steps;
mod status;
mod stream_events;
#[cfg(feature = "targets")]
pub mod target;
mod text_or_number;
mod text_search;
mod token_range;
mod tokenizer;
mod tokens;
mod trace;
mod typed_parts;
mod user_scenarios;
mod varying_expectations;
mod ws;

/// The command for an address without a scheme.
pub(crate) const BARE_ADDRESS_COMMAND: &str = "http";

pub use call::{
    CallPurpose, ConversationPlan, EventFormat, EventMatch, EventStream, FrameAnswer, FrameCall,
    HttpCall, HttpVersion, ReplayedParts, VaryingBody, VaryingExpectations, VaryingRequest,
    WebSocketCall, WelcomeMessage,
};
pub use conversation::{AcceptsBodies, ConversationScenario};
pub use driver::{Http1Driver, Http1Protocol};
pub use flags::HttpFlags;
pub(crate) use header_names::check_name;
pub use journey::{HttpStepProtocol, StepValues, SwitchableProtocol};
pub use llm::LlmFlags;
pub use llm_api::{LlmApi, ModelResponseRules};
pub(crate) use load::ONLY_HTTP1_HINT;
pub use multiplexed::{Http2Driver, Http2Protocol, HttpScheme};
pub use negotiated_driver::HttpProtocol;
pub(crate) use paths::{invalid_path_message, is_valid_in_path};
pub(crate) use payload::{TemplateContext, parse_payload};
pub use request::HttpRequest;
pub(crate) use request::write_body;
pub(crate) use resolve::{check_host, resolve_call_path};
pub use script::FrameScripts;
pub use section::{
    ConversationSpec, ExpectedValues, FormPartSpec, FrameSpec, HttpSpec, StatusSpec, StreamSpec,
    WebSocketSpec,
};
pub use socket::{SocketDriver, SocketProtocol};
pub use socket_steps::SocketStepSpec;
pub use ws::WsFlags;
