//! The correct behaviour of a chat session's server; each misbehaviour replaces one step of it.
//!
//! The session's HTTP API and its WebSocket share an address: the first request on a connection decides which of the
//! two the connection is for.

use std::io;

use plimsoll_wire::http1::{BodyFraming, FieldStorage, RequestHead};
use plimsoll_wire::websocket::{Opcode, append_frame, derive_accept_key};

use super::peer::ScriptTransport;

/// The handlers of the steps of a session, in their order.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionHandlers {
    pub create: fn(&mut ScriptTransport) -> io::Result<()>,
    pub run: fn(&mut ScriptTransport) -> io::Result<()>,
    /// Answers the upgrade; the argument is the correct accept key.
    pub upgrade: fn(&mut ScriptTransport, &str) -> io::Result<()>,
    /// Writes to the open WebSocket once a run (the answer to a query) has begun.
    pub stream: fn(&mut ScriptTransport) -> io::Result<()>,
}

pub(super) const WELL_BEHAVED_HANDLERS: SessionHandlers = SessionHandlers {
    create: |p| {
        let id = p.new_session_id();
        send_json(p, &format!(r#"{{"session_id":"{id}","token":"token"}}"#))
    },
    run: |p| send_json(p, r#"{"run":1,"tokens":2}"#),
    upgrade: |p, accept| p.send(upgrade_response(accept).as_bytes()),
    stream: |p| {
        send_tokens(p, &[1, 2])?;
        send_done(p, 3)
    },
};

/// Answers requests until the connection becomes a WebSocket, or ends.
pub(super) fn serve_session(peer: &mut ScriptTransport, acts: &SessionHandlers) -> io::Result<()> {
    loop {
        let head = peer.read_until(b"\r\n\r\n")?;
        let mut space = FieldStorage::new();
        let head = RequestHead::parse(&head, head.len(), &mut space);
        let head = head.map_err(io::Error::other)?;
        let head = head.ok_or(io::ErrorKind::InvalidData)?;
        if let BodyFraming::Length(length) = head.body {
            peer.read_exact(length as usize)?;
        }
        let path = head.target;
        if let Some(key) = head.fields.values("sec-websocket-key").next() {
            (acts.upgrade)(peer, &derive_accept_key(key))?;
            let session = path.split('?').next().unwrap_or_default();
            peer.wait_for_run(session.rsplit('/').next().unwrap_or_default());
            (acts.stream)(peer)?;
            return peer.wait_for_close();
        } else if path.ends_with("/create") {
            (acts.create)(peer)?;
        } else if path.ends_with("/run") {
            (acts.run)(peer)?;
            peer.begin_run(path.split('/').nth(2).unwrap_or_default());
        } else {
            send_json(peer, "{}")?;
        }
    }
}

pub(super) fn send_json(peer: &mut ScriptTransport, body: &str) -> io::Result<()> {
    send_http(peer, "200 OK", body)
}

pub(super) fn send_http(peer: &mut ScriptTransport, status: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    peer.send(answer.as_bytes())
}

pub(super) fn upgrade_response(accept: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

pub(super) fn send_frame(
    peer: &mut ScriptTransport,
    opcode: Opcode,
    payload: &[u8],
) -> io::Result<()> {
    peer.write(|out| append_frame(out, opcode, payload))
}

pub(super) fn send_text(peer: &mut ScriptTransport, text: &str) -> io::Result<()> {
    send_frame(peer, Opcode::Text, text.as_bytes())
}

/// Sends token frames with these sequence numbers.
pub(super) fn send_tokens(peer: &mut ScriptTransport, numbers: &[u64]) -> io::Result<()> {
    for seq in numbers {
        send_text(
            peer,
            &format!(r#"{{"type":"token","content":"word","seq":{seq},"run":1}}"#),
        )?;
    }
    Ok(())
}

pub(super) fn send_done(peer: &mut ScriptTransport, seq: u64) -> io::Result<()> {
    send_text(
        peer,
        &format!(
            r#"{{"type":"done","content":"","seq":{seq},"run":1,"tokens":2,"finish":"stop"}}"#
        ),
    )
}
