//! A token-streaming session, its API and its WebSocket (RFC 6455), done wrong.
//!
//! API and sockets share an address: a connection is what its first request makes of it.
//!
//! Long because it is one list.

use std::io;

use plimsoll_model::Outcome as O;
use plimsoll_wire::http1::{FieldSpace, Framing, RequestHead};
use plimsoll_wire::websocket::{Opcode, accept_key, put_frame, put_masked};

use super::{Behaviour, Peer};

/// What a connection does at each of the steps of a session; the others go well.
#[derive(Clone, Copy)]
struct Acts {
    create: fn(&mut Peer) -> io::Result<()>,
    run: fn(&mut Peer) -> io::Result<()>,
    /// In place of the answer to the upgrade; its argument is the right accept key.
    upgrade: fn(&mut Peer, &str) -> io::Result<()>,
    /// On the open socket, once a run has begun.
    stream: fn(&mut Peer) -> io::Result<()>,
}

const GOOD: Acts = Acts {
    create: |p| {
        let id = p.session();
        json(p, &format!(r#"{{"session_id":"{id}","token":"token"}}"#))
    },
    run: |p| json(p, r#"{"run":1,"tokens":2}"#),
    upgrade: |p, accept| p.send(switching(accept).as_bytes()),
    stream: |p| {
        tokens(p, &[1, 2])?;
        done(p, 3)
    },
};

fn json(peer: &mut Peer, body: &str) -> io::Result<()> {
    http(peer, "200 OK", body)
}

fn http(peer: &mut Peer, status: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    peer.send(answer.as_bytes())
}

const EARLY_HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";

/// The answer to a run with this Transfer-Encoding, and whatever fields follow it.
fn run_answer(peer: &mut Peer, coding: &str, body: &str) -> io::Result<()> {
    let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n{body}");
    peer.send(answer.as_bytes())
}

fn switching(accept: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// Answers requests until the connection is a socket, or has ended.
fn session(peer: &mut Peer, acts: Acts) -> io::Result<()> {
    loop {
        let head = peer.take_until(b"\r\n\r\n")?;
        let mut space = FieldSpace::new();
        let head = RequestHead::parse(&head, head.len(), &mut space);
        let head = head.map_err(io::Error::other)?;
        let head = head.ok_or(io::ErrorKind::InvalidData)?;
        if let Framing::Length(length) = head.body {
            peer.take(length as usize)?;
        }
        let path = head.target;
        if let Some(key) = head.fields.values("sec-websocket-key").next() {
            (acts.upgrade)(peer, &accept_key(key))?;
            let session = path.split('?').next().unwrap_or_default();
            peer.await_run(session.rsplit('/').next().unwrap_or_default());
            (acts.stream)(peer)?;
            return peer.wait();
        } else if path.ends_with("/create") {
            (acts.create)(peer)?;
        } else if path.ends_with("/run") {
            (acts.run)(peer)?;
            peer.begin_run(path.split('/').nth(2).unwrap_or_default());
        } else {
            json(peer, "{}")?;
        }
    }
}

fn frame(peer: &mut Peer, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
    let mut out = Vec::new();
    put_frame(&mut out, opcode, payload);
    peer.send(&out)
}

fn text(peer: &mut Peer, text: &str) -> io::Result<()> {
    frame(peer, Opcode::Text, text.as_bytes())
}

/// Tokens of these numbers.
fn tokens(peer: &mut Peer, numbers: &[u64]) -> io::Result<()> {
    for seq in numbers {
        text(
            peer,
            &format!(r#"{{"type":"token","content":"word","seq":{seq},"run":1}}"#),
        )?;
    }
    Ok(())
}

fn done(peer: &mut Peer, seq: u64) -> io::Result<()> {
    text(
        peer,
        &format!(
            r#"{{"type":"done","content":"","seq":{seq},"run":1,"tokens":2,"finish":"stop"}}"#
        ),
    )
}

/// A token, and then these bytes where a frame should be.
fn raw(peer: &mut Peer, bytes: &[u8]) -> io::Result<()> {
    tokens(peer, &[1])?;
    peer.send(bytes)?;
    peer.wait()
}

/// A token, and a close frame with this payload.
fn closes(peer: &mut Peer, payload: &[u8]) -> io::Result<()> {
    tokens(peer, &[1])?;
    frame(peer, Opcode::Close, payload)?;
    peer.wait()
}

pub(super) const BEHAVIOURS: &[Behaviour] = &[
    // The API.
    Behaviour::new(
        "api-close-at-once",
        "closes before a byte",
        O::ConnectionClosed,
        |_| Ok(()),
    ),
    Behaviour::new("api-reset-at-once", "RST before a byte", O::Reset, |p| {
        p.reset()
    }),
    Behaviour::new(
        "api-silent",
        "takes requests and never answers",
        O::DeadlineExceeded,
        |p| p.wait(),
    ),
    Behaviour::new(
        "api-create-500",
        "no session: 500",
        O::coded("SESSION_REFUSED"),
        |p| {
            session(
                p,
                Acts {
                    create: |p| http(p, "500 Internal Server Error", "oh"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-create-429",
        "no session: 429",
        O::coded("SESSION_REFUSED"),
        |p| {
            session(
                p,
                Acts {
                    create: |p| http(p, "429 Too Many Requests", "{}"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-create-garbage",
        "bytes that are no HTTP",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    create: |p| p.send(&[0xa5; 512]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-create-no-json",
        "a session that is no JSON",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    create: |p| json(p, "<html>"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-create-no-token",
        "a session without a token",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    create: |p| json(p, r#"{"session_id":"x"}"#),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-create-newline",
        "a token with a line end in it",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    create: |p| json(p, r#"{"session_id":"x","token":"a\r\nEvil: 1"}"#),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-create-flood",
        "a body declared as 1 TiB",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    create: |p| {
                        p.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n{")
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-head-flood",
        "header fields without end",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    create: |p| {
                        p.send(b"HTTP/1.1 200 OK\r\n")?;
                        p.flood(b"X-More: and more\r\n")
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-create-interim",
        "103 Early Hints before a good answer (RFC 9110 §15.2)",
        O::Ok,
        |p| {
            session(
                p,
                Acts {
                    create: |p| {
                        p.send(EARLY_HINTS)?;
                        (GOOD.create)(p)
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-create-interim-flood",
        "103 without end",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    create: |p| p.flood(EARLY_HINTS),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-run-chunks",
        "a good answer in chunks, with an extension and trailers (RFC 9112 §7.1)",
        O::Ok,
        |p| {
            session(
                p,
                Acts {
                    run: |p| {
                        run_answer(
                            p,
                            "chunked",
                            "1;a=b\r\n{\r\n8\r\n\"run\":1}\r\n0\r\nX: y\r\n\r\n",
                        )
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-run-coding",
        "a transfer coding that nobody knows",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    run: |p| run_answer(p, "magic\r\nContent-Length: 9", "{\"run\":1}"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-run-length-and-chunked",
        "a length and chunks (RFC 9112 §6.1)",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    run: |p| {
                        run_answer(
                            p,
                            "chunked\r\nContent-Length: 9",
                            "9\r\n{\"run\":1}\r\n0\r\n\r\n",
                        )
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-run-404",
        "knows no such session when it is to run",
        O::RunRefused,
        |p| {
            session(
                p,
                Acts {
                    run: |p| http(p, "404 Not Found", "{}"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-run-503",
        "has no room for the run",
        O::RunRefused,
        |p| {
            session(
                p,
                Acts {
                    run: |p| http(p, "503 Service Unavailable", "{}"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "api-run-close",
        "closes in place of an answer to the run",
        O::ConnectionClosed,
        |p| {
            session(
                p,
                Acts {
                    run: |_| Err(io::ErrorKind::Other.into()),
                    ..GOOD
                },
            )
        },
    ),
    // The upgrade.
    Behaviour::new(
        "ws-upgrade-401",
        "refuses the token",
        O::SocketDenied,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, _| http(p, "401 Unauthorized", "{}"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-upgrade-403",
        "forbids the session",
        O::SocketDenied,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, _| http(p, "403 Forbidden", "{}"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-upgrade-404",
        "has no WebSockets",
        O::SocketRefused,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, _| http(p, "404 Not Found", "{}"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new("ws-upgrade-503", "has no room", O::SocketRefused, |p| {
        session(
            p,
            Acts {
                upgrade: |p, _| http(p, "503 Service Unavailable", "{}"),
                ..GOOD
            },
        )
    }),
    Behaviour::new(
        "ws-upgrade-200",
        "answers the upgrade with a page",
        O::SocketRefused,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, _| http(p, "200 OK", "<html>"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-upgrade-key",
        "another client's accept key (RFC 6455 §4.1)",
        O::SocketRefused,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, _| p.send(switching("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=").as_bytes()),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-upgrade-no-key",
        "101 without an accept key (§4.1)",
        O::SocketRefused,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, _| {
                        p.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-upgrade-garbage",
        "bytes that are no HTTP",
        O::SocketRefused,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, _| p.send(&[0xa5; 512]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-upgrade-close",
        "closes in place of an answer",
        O::ConnectionClosed,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |_, _| Err(io::ErrorKind::Other.into()),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-upgrade-silent",
        "never answers the upgrade",
        O::DeadlineExceeded,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, _| p.wait(),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-upgrade-head-flood",
        "header fields without end",
        O::SocketRefused,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, _| {
                        p.send(b"HTTP/1.1 101 Switching Protocols\r\n")?;
                        p.flood(b"X-More: and more\r\n")
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-upgrade-interim",
        "103 Early Hints before a good answer (RFC 9110 §15.2)",
        O::Ok,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, accept| {
                        p.send(EARLY_HINTS)?;
                        (GOOD.upgrade)(p, accept)
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-upgrade-interim-flood",
        "103 without end",
        O::SocketRefused,
        |p| {
            session(
                p,
                Acts {
                    upgrade: |p, _| p.flood(EARLY_HINTS),
                    ..GOOD
                },
            )
        },
    ),
    // Frames.
    Behaviour::new("ws-drip", "good frames, a byte a millisecond", O::Ok, |p| {
        session(
            p,
            Acts {
                stream: |p| {
                    let mut out = Vec::new();
                    put_frame(
                        &mut out,
                        Opcode::Text,
                        br#"{"type":"token","content":"a","seq":1,"run":1}"#,
                    );
                    put_frame(
                        &mut out,
                        Opcode::Text,
                        br#"{"type":"token","content":"b","seq":2,"run":1}"#,
                    );
                    p.drip(&out)?;
                    done(p, 3)
                },
                ..GOOD
            },
        )
    }),
    Behaviour::new(
        "ws-masked",
        "a masked frame (RFC 6455 §5.1)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| {
                        let mut out = Vec::new();
                        put_masked(&mut out, Opcode::Text, [1, 2, 3, 4], b"{}");
                        raw(p, &out)
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-reserved-bit",
        "a reserved bit (§5.2)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, &[0xc1, 2, b'{', b'}']),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-opcode",
        "an opcode that does not exist (§5.2)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, &[0x83, 0]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-control-long",
        "a PING of 126 bytes (§5.5)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, &[0x89, 126, 0, 126]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-control-fragment",
        "half a PING (§5.5)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, &[0x09, 1, b'x']),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-continuation-alone",
        "a continuation of nothing (§5.4)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, &[0x80, 1, b'x']),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-fragments-mixed",
        "a message within a message (§5.4)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, &[0x01, 1, b'{', 0x81, 1, b'}']),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-length-not-minimal",
        "a length in more bytes than it needs (§5.2)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, &[0x81, 126, 0, 2, b'{', b'}']),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-length-huge",
        "a frame of 2^62 bytes",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, &[0x81, 127, 0x40, 0, 0, 0, 0, 0, 0, 0]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-length-negative",
        "a length with its highest bit set (§5.2)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, &[0x81, 127, 0x80, 0, 0, 0, 0, 0, 0, 0]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-utf8",
        "text that is no UTF-8 (§8.1)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, &[0x81, 2, 0xc3, 0x28]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-http",
        "HTTP in place of frames",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| raw(p, b"HTTP/1.1 502 Bad Gateway\r\n\r\n"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-fragment-flood",
        "a message of fragments without end",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| {
                        p.send(&[0x01, 1, b'{'])?;
                        p.flood(&[0x00, 4, b' ', b' ', b' ', b' '])
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-ping-flood",
        "PING without end, and reads nothing",
        O::DeadlineExceeded,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| p.flood(&[0x89, 4, b'p', b'i', b'n', b'g']),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-pong-flood",
        "PONG without end",
        O::DeadlineExceeded,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| p.flood(&[0x8a, 0]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-empty-flood",
        "empty messages without end",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| p.flood(&[0x81, 0]),
                    ..GOOD
                },
            )
        },
    ),
    // Ends.
    Behaviour::new(
        "ws-close-1000",
        "closes with 1000 in mid-run",
        O::SocketClosed,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| closes(p, &[0x03, 0xe8]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-close-1012",
        "closes with 1012 in mid-run",
        O::SocketClosed,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| closes(p, &[0x03, 0xf4]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-close-code",
        "closes with a code that does not exist (§7.4)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| closes(p, &[0x03, 0xe7]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-close-cut",
        "a close frame of one byte (§5.5.1)",
        O::ProtocolError,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| closes(p, &[0x03]),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-no-close",
        "ends the connection without a close frame",
        O::SocketClosed,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| {
                        tokens(p, &[1])?;
                        Err(io::ErrorKind::Other.into())
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new("ws-reset", "RST in mid-run", O::SocketClosed, |p| {
        session(
            p,
            Acts {
                stream: |p| {
                    tokens(p, &[1])?;
                    p.reset()?;
                    Err(io::ErrorKind::Other.into())
                },
                ..GOOD
            },
        )
    }),
    Behaviour::new(
        "ws-cut-frame",
        "half a frame, and ends the connection",
        O::SocketClosed,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| {
                        p.send(&[0x81, 100, b'{'])?;
                        Err(io::ErrorKind::Other.into())
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-stall",
        "a token, and then silence",
        O::DeadlineExceeded,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| tokens(p, &[1]),
                    ..GOOD
                },
            )
        },
    ),
    // Tokens.
    Behaviour::new(
        "ws-no-json",
        "a message that is no JSON",
        O::BadAnswer,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| text(p, "token"),
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-token-missing",
        "says it sent two tokens, and sent one",
        O::TokensLost,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| {
                        tokens(p, &[1])?;
                        done(p, 2)
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-token-gap",
        "leaves a number out, and no token",
        O::Ok,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| {
                        tokens(p, &[1, 3])?;
                        done(p, 4)
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-token-twice",
        "sends a token twice",
        O::TokensLost,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| {
                        tokens(p, &[1, 1, 2])?;
                        done(p, 3)
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-token-order",
        "sends tokens out of order",
        O::TokensLost,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| {
                        tokens(p, &[2, 1])?;
                        done(p, 3)
                    },
                    ..GOOD
                },
            )
        },
    ),
    Behaviour::new(
        "ws-run-error",
        "a run that ends with an error",
        O::RunFailed,
        |p| {
            session(
                p,
                Acts {
                    stream: |p| {
                        text(
                            p,
                            r#"{"type":"done","content":"","seq":1,"run":1,"tokens":0,"finish":"error"}"#,
                        )
                    },
                    ..GOOD
                },
            )
        },
    ),
];
