//! Misbehaving servers of chat sessions, each with an HTTP API and a WebSocket that streams tokens (RFC 6455).

use std::io;

use plimsoll_model::Outcome as O;
use plimsoll_wire::websocket::{Opcode, append_frame, append_masked_frame};

use super::peer::ScriptTransport;
use super::script::{BehaviourScript, HostileBehaviour, HostileStep::*};
use super::session::{
    SessionHandlers, WELL_BEHAVED_HANDLERS, send_done, send_frame, send_http, send_json, send_text,
    send_tokens, upgrade_response,
};

impl HostileBehaviour {
    /// Replaces the response to the request that creates a session.
    const fn with_create_session_handler(
        self,
        create: fn(&mut ScriptTransport) -> io::Result<()>,
    ) -> HostileBehaviour {
        self.with_script(BehaviourScript::Session(SessionHandlers {
            create,
            ..WELL_BEHAVED_HANDLERS
        }))
    }

    /// Replaces the response to the request that starts a run.
    const fn with_run_handler(
        self,
        run: fn(&mut ScriptTransport) -> io::Result<()>,
    ) -> HostileBehaviour {
        self.with_script(BehaviourScript::Session(SessionHandlers {
            run,
            ..WELL_BEHAVED_HANDLERS
        }))
    }

    /// Replaces the response to the upgrade.
    const fn with_upgrade_handler(
        self,
        upgrade: fn(&mut ScriptTransport, &str) -> io::Result<()>,
    ) -> HostileBehaviour {
        self.with_script(BehaviourScript::Session(SessionHandlers {
            upgrade,
            ..WELL_BEHAVED_HANDLERS
        }))
    }

    /// Replaces what is sent on the open socket once a run has begun.
    const fn with_stream_handler(
        self,
        stream: fn(&mut ScriptTransport) -> io::Result<()>,
    ) -> HostileBehaviour {
        self.with_script(BehaviourScript::Session(SessionHandlers {
            stream,
            ..WELL_BEHAVED_HANDLERS
        }))
    }
}

const EARLY_HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";

/// Answers the request that starts a run, with this Transfer-Encoding. `coding` may contain further header fields.
fn answer_run_request(peer: &mut ScriptTransport, coding: &str, body: &str) -> io::Result<()> {
    let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n{body}");
    peer.send(answer.as_bytes())
}

/// Sends a status line, and then endless header fields.
fn send_endless_fields(peer: &mut ScriptTransport, status: &[u8]) -> io::Result<()> {
    peer.send(status)?;
    peer.flood(b"X-More: and more\r\n")
}

/// Returns an error, which ends the script and closes the connection.
fn end_connection() -> io::Result<()> {
    Err(io::ErrorKind::Other.into())
}

/// Sends tokens with these numbers, and the `done` frame with the number `end`.
fn send_tokens_and_done(peer: &mut ScriptTransport, numbers: &[u64], end: u64) -> io::Result<()> {
    send_tokens(peer, numbers)?;
    send_done(peer, end)
}

/// Sends a token, and then these bytes instead of a frame.
fn send_raw_frame(peer: &mut ScriptTransport, bytes: &[u8]) -> io::Result<()> {
    send_tokens(peer, &[1])?;
    peer.send(bytes)?;
    peer.wait_for_close()
}

fn send_masked_frame(peer: &mut ScriptTransport) -> io::Result<()> {
    let mut out = Vec::new();
    append_masked_frame(&mut out, Opcode::Text, [1, 2, 3, 4], b"{}");
    send_raw_frame(peer, &out)
}

/// Sends correct frames, one byte at a time.
fn send_frames_slowly(peer: &mut ScriptTransport) -> io::Result<()> {
    let mut out = Vec::new();
    for token in [
        br#"{"type":"token","content":"a","seq":1,"run":1}"#,
        br#"{"type":"token","content":"b","seq":2,"run":1}"#,
    ] {
        append_frame(&mut out, Opcode::Text, token);
    }
    peer.drip(&out)?;
    send_done(peer, 3)
}

/// The last frame of a run that failed.
const FAILED_RUN_FRAME: &str =
    r#"{"type":"done","content":"","seq":1,"run":1,"tokens":0,"finish":"error"}"#;

/// Sends a token, and a close frame with this payload.
fn send_close_frame(peer: &mut ScriptTransport, payload: &[u8]) -> io::Result<()> {
    send_tokens(peer, &[1])?;
    send_frame(peer, Opcode::Close, payload)?;
    peer.wait_for_close()
}

pub(super) const BEHAVIOURS: &[HostileBehaviour] = &[
    // Misbehaviour of the API.
    HostileBehaviour::new("api-close-at-once", O::ConnectionClosed)
        .with_description("closes without sending a byte")
        .with_steps(&[]),
    HostileBehaviour::new("api-reset-at-once", O::Reset)
        .with_description("RST without sending a byte")
        .with_steps(&[Reset]),
    HostileBehaviour::new("api-silent", O::DeadlineExceeded)
        .with_description("accepts requests and never answers")
        .with_steps(&[Wait]),
    HostileBehaviour::new("api-create-500", O::coded("SESSION_REFUSED"))
        .with_description("no session: 500")
        .with_create_session_handler(|p| send_http(p, "500 Internal Server Error", "oh")),
    HostileBehaviour::new("api-create-429", O::coded("SESSION_REFUSED"))
        .with_description("no session: 429")
        .with_create_session_handler(|p| send_http(p, "429 Too Many Requests", "{}")),
    HostileBehaviour::new("api-create-garbage", O::BadAnswer)
        .with_description("bytes that are not HTTP")
        .with_create_session_handler(|p| p.send(&[0xa5; 512])),
    HostileBehaviour::new("api-create-no-json", O::BadAnswer)
        .with_description("a session that is not JSON")
        .with_create_session_handler(|p| send_json(p, "<html>")),
    HostileBehaviour::new("api-create-no-token", O::BadAnswer)
        .with_description("a session without a token")
        .with_create_session_handler(|p| send_json(p, r#"{"session_id":"x"}"#)),
    HostileBehaviour::new("api-create-newline", O::BadAnswer)
        .with_description("a token with a line end in it")
        .with_create_session_handler(|p| {
            send_json(p, r#"{"session_id":"x","token":"a\r\nEvil: 1"}"#)
        }),
    HostileBehaviour::new("api-create-flood", O::BadAnswer)
        .with_description("a body declared as 1 TiB")
        .with_create_session_handler(|p| {
            p.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n{")
        }),
    HostileBehaviour::new("api-head-flood", O::BadAnswer)
        .with_description("header fields without end")
        .with_create_session_handler(|p| send_endless_fields(p, b"HTTP/1.1 200 OK\r\n")),
    HostileBehaviour::new("api-create-interim", O::Ok)
        .with_description("103 Early Hints before a good answer (RFC 9110 §15.2)")
        .with_create_session_handler(|p| {
            p.send(EARLY_HINTS)?;
            (WELL_BEHAVED_HANDLERS.create)(p)
        }),
    HostileBehaviour::new("api-create-interim-flood", O::BadAnswer)
        .with_description("103 without end")
        .with_create_session_handler(|p| p.flood(EARLY_HINTS)),
    HostileBehaviour::new("api-run-chunks", O::Ok)
        .with_description("a good answer in chunks, with an extension and trailers (RFC 9112 §7.1)")
        .with_run_handler(|p| {
            answer_run_request(
                p,
                "chunked",
                "1;a=b\r\n{\r\n8\r\n\"run\":1}\r\n0\r\nX: y\r\n\r\n",
            )
        }),
    HostileBehaviour::new("api-run-coding", O::BadAnswer)
        .with_description("an unknown transfer coding")
        .with_run_handler(|p| answer_run_request(p, "magic\r\nContent-Length: 9", "{\"run\":1}")),
    HostileBehaviour::new("api-run-length-and-chunked", O::BadAnswer)
        .with_description("a length and chunks (RFC 9112 §6.1)")
        .with_run_handler(|p| {
            answer_run_request(
                p,
                "chunked\r\nContent-Length: 9",
                "9\r\n{\"run\":1}\r\n0\r\n\r\n",
            )
        }),
    HostileBehaviour::new("api-run-404", O::RunRefused)
        .with_description("reports an unknown session when the run starts")
        .with_run_handler(|p| send_http(p, "404 Not Found", "{}")),
    HostileBehaviour::new("api-run-503", O::RunRefused)
        .with_description("has no room for the run")
        .with_run_handler(|p| send_http(p, "503 Service Unavailable", "{}")),
    HostileBehaviour::new("api-run-close", O::ConnectionClosed)
        .with_description("closes in place of an answer to the run")
        .with_run_handler(|_| end_connection()),
    // Misbehaviour in response to the upgrade.
    HostileBehaviour::new("ws-upgrade-401", O::SocketDenied)
        .with_description("refuses the token")
        .with_upgrade_handler(|p, _| send_http(p, "401 Unauthorized", "{}")),
    HostileBehaviour::new("ws-upgrade-403", O::SocketDenied)
        .with_description("forbids the session")
        .with_upgrade_handler(|p, _| send_http(p, "403 Forbidden", "{}")),
    HostileBehaviour::new("ws-upgrade-404", O::SocketRefused)
        .with_description("has no WebSockets")
        .with_upgrade_handler(|p, _| send_http(p, "404 Not Found", "{}")),
    HostileBehaviour::new("ws-upgrade-503", O::SocketRefused)
        .with_description("has no room")
        .with_upgrade_handler(|p, _| send_http(p, "503 Service Unavailable", "{}")),
    HostileBehaviour::new("ws-upgrade-200", O::SocketRefused)
        .with_description("answers the upgrade with a page")
        .with_upgrade_handler(|p, _| send_http(p, "200 OK", "<html>")),
    HostileBehaviour::new("ws-upgrade-key", O::SocketRefused)
        .with_description("another client's accept key (RFC 6455 §4.1)")
        .with_upgrade_handler(|p, _| {
            p.send(upgrade_response("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=").as_bytes())
        }),
    HostileBehaviour::new("ws-upgrade-no-key", O::SocketRefused)
        .with_description("101 without an accept key (§4.1)")
        .with_upgrade_handler(|p, _| {
            p.send(
                b"HTTP/1.1 101 Switching Protocols\r\n\
                Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            )
        }),
    HostileBehaviour::new("ws-upgrade-garbage", O::SocketRefused)
        .with_description("bytes that are not HTTP")
        .with_upgrade_handler(|p, _| p.send(&[0xa5; 512])),
    HostileBehaviour::new("ws-upgrade-close", O::ConnectionClosed)
        .with_description("closes in place of an answer")
        .with_upgrade_handler(|_, _| end_connection()),
    HostileBehaviour::new("ws-upgrade-silent", O::DeadlineExceeded)
        .with_description("never answers the upgrade")
        .with_upgrade_handler(|p, _| p.wait_for_close()),
    HostileBehaviour::new("ws-upgrade-head-flood", O::SocketRefused)
        .with_description("header fields without end")
        .with_upgrade_handler(|p, _| {
            send_endless_fields(p, b"HTTP/1.1 101 Switching Protocols\r\n")
        }),
    HostileBehaviour::new("ws-upgrade-interim", O::Ok)
        .with_description("103 Early Hints before a good answer (RFC 9110 §15.2)")
        .with_upgrade_handler(|p, accept| {
            p.send(EARLY_HINTS)?;
            (WELL_BEHAVED_HANDLERS.upgrade)(p, accept)
        }),
    HostileBehaviour::new("ws-upgrade-interim-flood", O::SocketRefused)
        .with_description("103 without end")
        .with_upgrade_handler(|p, _| p.flood(EARLY_HINTS)),
    // Unusual and invalid frames.
    HostileBehaviour::new("ws-drip", O::Ok)
        .with_description("valid frames, one byte per millisecond")
        .with_stream_handler(send_frames_slowly),
    HostileBehaviour::new("ws-masked", O::ProtocolError)
        .with_description("a masked frame (RFC 6455 §5.1)")
        .with_stream_handler(send_masked_frame),
    HostileBehaviour::new("ws-reserved-bit", O::ProtocolError)
        .with_description("a reserved bit (§5.2)")
        .with_stream_handler(|p| send_raw_frame(p, &[0xc1, 2, b'{', b'}'])),
    HostileBehaviour::new("ws-opcode", O::ProtocolError)
        .with_description("an opcode that does not exist (§5.2)")
        .with_stream_handler(|p| send_raw_frame(p, &[0x83, 0])),
    HostileBehaviour::new("ws-control-long", O::ProtocolError)
        .with_description("a PING of 126 bytes (§5.5)")
        .with_stream_handler(|p| send_raw_frame(p, &[0x89, 126, 0, 126])),
    HostileBehaviour::new("ws-control-fragment", O::ProtocolError)
        .with_description("half a PING (§5.5)")
        .with_stream_handler(|p| send_raw_frame(p, &[0x09, 1, b'x'])),
    HostileBehaviour::new("ws-continuation-alone", O::ProtocolError)
        .with_description("a continuation without a message to continue (§5.4)")
        .with_stream_handler(|p| send_raw_frame(p, &[0x80, 1, b'x'])),
    HostileBehaviour::new("ws-fragments-mixed", O::ProtocolError)
        .with_description("a message within a message (§5.4)")
        .with_stream_handler(|p| send_raw_frame(p, &[0x01, 1, b'{', 0x81, 1, b'}'])),
    HostileBehaviour::new("ws-length-not-minimal", O::ProtocolError)
        .with_description("a length in more bytes than it needs (§5.2)")
        .with_stream_handler(|p| send_raw_frame(p, &[0x81, 126, 0, 2, b'{', b'}'])),
    HostileBehaviour::new("ws-length-huge", O::ProtocolError)
        .with_description("a frame of 2^62 bytes")
        .with_stream_handler(|p| send_raw_frame(p, &[0x81, 127, 0x40, 0, 0, 0, 0, 0, 0, 0])),
    HostileBehaviour::new("ws-length-negative", O::ProtocolError)
        .with_description("a length with its highest bit set (§5.2)")
        .with_stream_handler(|p| send_raw_frame(p, &[0x81, 127, 0x80, 0, 0, 0, 0, 0, 0, 0])),
    HostileBehaviour::new("ws-utf8", O::ProtocolError)
        .with_description("text that is not UTF-8 (§8.1)")
        .with_stream_handler(|p| send_raw_frame(p, &[0x81, 2, 0xc3, 0x28])),
    HostileBehaviour::new("ws-http", O::ProtocolError)
        .with_description("HTTP in place of frames")
        .with_stream_handler(|p| send_raw_frame(p, b"HTTP/1.1 502 Bad Gateway\r\n\r\n")),
    HostileBehaviour::new("ws-fragment-flood", O::ProtocolError)
        .with_description("a message of fragments without end")
        .with_stream_handler(|p| {
            p.send(&[0x01, 1, b'{'])?;
            p.flood(&[0x00, 4, b' ', b' ', b' ', b' '])
        }),
    HostileBehaviour::new("ws-ping-flood", O::DeadlineExceeded)
        .with_description("PING without end, and reads nothing")
        .with_stream_handler(|p| p.flood(&[0x89, 4, b'p', b'i', b'n', b'g'])),
    HostileBehaviour::new("ws-pong-flood", O::DeadlineExceeded)
        .with_description("PONG without end")
        .with_stream_handler(|p| p.flood(&[0x8a, 0])),
    HostileBehaviour::new("ws-empty-flood", O::BadAnswer)
        .with_description("empty messages without end")
        .with_stream_handler(|p| p.flood(&[0x81, 0])),
    // Unexpected ends of the socket.
    HostileBehaviour::new("ws-close-1000", O::SocketClosed)
        .with_description("closes with 1000 in mid-run")
        .with_stream_handler(|p| send_close_frame(p, &[0x03, 0xe8])),
    HostileBehaviour::new("ws-close-1012", O::SocketClosed)
        .with_description("closes with 1012 in mid-run")
        .with_stream_handler(|p| send_close_frame(p, &[0x03, 0xf4])),
    HostileBehaviour::new("ws-close-code", O::ProtocolError)
        .with_description("closes with a code that does not exist (§7.4)")
        .with_stream_handler(|p| send_close_frame(p, &[0x03, 0xe7])),
    HostileBehaviour::new("ws-close-cut", O::ProtocolError)
        .with_description("a close frame of one byte (§5.5.1)")
        .with_stream_handler(|p| send_close_frame(p, &[0x03])),
    HostileBehaviour::new("ws-no-close", O::SocketClosed)
        .with_description("ends the connection without a close frame")
        .with_stream_handler(|p| {
            send_tokens(p, &[1])?;
            end_connection()
        }),
    HostileBehaviour::new("ws-reset", O::SocketClosed)
        .with_description("RST in mid-run")
        .with_stream_handler(|p| {
            send_tokens(p, &[1])?;
            p.reset()?;
            end_connection()
        }),
    HostileBehaviour::new("ws-cut-frame", O::SocketClosed)
        .with_description("half a frame, and ends the connection")
        .with_stream_handler(|p| {
            p.send(&[0x81, 100, b'{'])?;
            end_connection()
        }),
    HostileBehaviour::new("ws-stall", O::DeadlineExceeded)
        .with_description("a token, and then silence")
        .with_stream_handler(|p| send_tokens(p, &[1])),
    // Wrong messages and token numbers.
    HostileBehaviour::new("ws-no-json", O::BadAnswer)
        .with_description("a message that is not JSON")
        .with_stream_handler(|p| send_text(p, "token")),
    HostileBehaviour::new("ws-token-missing", O::TokensLost)
        .with_description("says it sent two tokens, and sent one")
        .with_stream_handler(|p| send_tokens_and_done(p, &[1], 2)),
    HostileBehaviour::new("ws-token-gap", O::Ok)
        .with_description("skips a sequence number, but no token")
        .with_stream_handler(|p| send_tokens_and_done(p, &[1, 3], 4)),
    HostileBehaviour::new("ws-token-twice", O::TokensLost)
        .with_description("sends a token twice")
        .with_stream_handler(|p| send_tokens_and_done(p, &[1, 1, 2], 3)),
    HostileBehaviour::new("ws-token-order", O::TokensLost)
        .with_description("sends tokens out of order")
        .with_stream_handler(|p| send_tokens_and_done(p, &[2, 1], 3)),
    HostileBehaviour::new("ws-run-error", O::RunFailed)
        .with_description("a run that ends with an error")
        .with_stream_handler(|p| send_text(p, FAILED_RUN_FRAME)),
];
