//! Checks the request that opens a session's socket: its path, upgrade and token, and whether there
//! is room for another session.

use std::sync::atomic::Ordering;

use super::Gateway;
use super::request::{GatewayRequest, GatewayResponse, WebSocketUpgrade};
use crate::llm::is_session_id;
use crate::token::TokenError;

/// An accepted request.
pub(super) struct AdmittedRequest<'a> {
    pub(super) session: &'a str,
    pub(super) upgrade: WebSocketUpgrade,
    pub(super) resume: Option<ResumePosition>,
}

/// The client's position in the session, from the query.
#[derive(Clone, Copy)]
pub(super) struct ResumePosition {
    pub(super) after: u64,
    pub(super) epoch: Option<u64>,
}

/// Checks a request's path and upgrade, then whether there is room for another session, then the token.
pub(super) fn check<'a>(
    gateway: &Gateway,
    request: &'a GatewayRequest,
) -> Result<AdmittedRequest<'a>, GatewayResponse> {
    let Some(session) = parse_session_id(&request.path) else {
        let text = "not found: connect to /{agent}/ws/{session}";
        return GatewayResponse::refusal_error(404, "path", text);
    };
    let upgrade = request.check_upgrade(gateway.options.compression)?;
    let overloaded =
        gateway.open_sessions.load(Ordering::Acquire) >= gateway.options.max_sessions as u64;
    if overloaded || gateway.is_stopping.load(Ordering::Acquire) {
        let reason = if overloaded { "overloaded" } else { "stopping" };
        return GatewayResponse::refusal_error(503, reason, "at capacity, try again later");
    }
    let Some(token) = request.bearer_token() else {
        let text = "a token is needed: Authorization: Bearer, or the subprotocols bearer, TOKEN";
        return GatewayResponse::refusal_error(401, "no_token", text);
    };
    if let Err(refusal) = gateway.keys.verify(token, session) {
        let reason = match refusal {
            TokenError::NotGenuine => "token_not_genuine",
            TokenError::Expired => "token_expired",
            TokenError::InvalidClaims => "token_claims",
            TokenError::WrongSession => "token_of_another_session",
        };
        return GatewayResponse::refusal_error(403, reason, &refusal.to_string());
    }
    let resume = match request.parse_query_number("after")? {
        None => None,
        Some(after) => Some(ResumePosition {
            after,
            epoch: request.parse_query_number("epoch")?,
        }),
    };
    Ok(AdmittedRequest {
        session,
        upgrade,
        resume,
    })
}

/// Returns the session id in a path `/{agent}/ws/{session}`.
fn parse_session_id(path: &str) -> Option<&str> {
    let mut parts = path.strip_prefix('/')?.split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(agent), Some("ws"), Some(session), None)
            if !agent.is_empty() && is_session_id(session) =>
        {
            Some(session)
        }
        _ => None,
    }
}
