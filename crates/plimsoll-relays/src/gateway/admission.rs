//! Checks the request that opens a session's socket: its path, upgrade and token, and whether there
//! is room for another session.

use std::sync::atomic::Ordering;

use super::Gateway;
use super::request::{Answer, Request, Upgrade};
use crate::llm::is_session_id;
use crate::token::Refusal;

/// An accepted request.
pub(super) struct Admission<'a> {
    pub(super) session: &'a str,
    pub(super) upgrade: Upgrade,
    pub(super) resume: Option<Resume>,
}

/// The client's position in the session, from the query.
#[derive(Clone, Copy)]
pub(super) struct Resume {
    pub(super) after: u64,
    pub(super) epoch: Option<u64>,
}

/// Checks a request in the order path, upgrade, load, token.
pub(super) fn check<'a>(gateway: &Gateway, request: &'a Request) -> Result<Admission<'a>, Answer> {
    let Some(session) = session_of(&request.path) else {
        let text = "not found: connect to /{agent}/ws/{session}";
        return Answer::refuse(404, "path", text);
    };
    let upgrade = request.upgrade(gateway.options.compression)?;
    let overloaded = gateway.open.load(Ordering::Acquire) >= gateway.options.max_sessions as u64;
    if overloaded || gateway.stopping.load(Ordering::Acquire) {
        let reason = if overloaded { "overloaded" } else { "stopping" };
        return Answer::refuse(503, reason, "at capacity, try again later");
    }
    let Some(token) = request.token() else {
        let text = "a token is needed: Authorization: Bearer, or the subprotocols bearer, TOKEN";
        return Answer::refuse(401, "no_token", text);
    };
    if let Err(refusal) = gateway.keys.check(token, session) {
        let reason = match refusal {
            Refusal::NotGenuine => "token_not_genuine",
            Refusal::Expired => "token_expired",
            Refusal::Claims => "token_claims",
            Refusal::WrongSession => "token_of_another_session",
        };
        return Answer::refuse(403, reason, &refusal.to_string());
    }
    let resume = match request.number("after")? {
        None => None,
        Some(after) => Some(Resume {
            after,
            epoch: request.number("epoch")?,
        }),
    };
    Ok(Admission {
        session,
        upgrade,
        resume,
    })
}

/// `/{agent}/ws/{session}`
fn session_of(path: &str) -> Option<&str> {
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
