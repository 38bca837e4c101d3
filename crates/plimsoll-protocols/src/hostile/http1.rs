//! A file over HTTP/1.1 (RFC 9112), done wrong.

use std::io;

use plimsoll_model::Outcome as O;

use super::{Behaviour, Peer};

/// Reads a request's head.
fn request(peer: &mut Peer) -> io::Result<()> {
    peer.take_until(b"\r\n\r\n").map(|_| ())
}

/// These bytes for an answer; the connection stays open.
fn instead(peer: &mut Peer, answer: &[u8]) -> io::Result<()> {
    request(peer)?;
    peer.send(answer)?;
    peer.wait()
}

/// These bytes, and the connection's end.
fn ends_after(peer: &mut Peer, answer: &[u8]) -> io::Result<()> {
    request(peer)?;
    peer.send(answer)
}

/// An answer's head up to where the second piece is repeated without end.
fn floods(peer: &mut Peer, begin: &[u8], without_end: &[u8]) -> io::Result<()> {
    request(peer)?;
    peer.send(begin)?;
    peer.flood(without_end)
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

pub(super) const BEHAVIOURS: &[Behaviour] = &[
    // The connection.
    Behaviour::new(
        "http-close-at-once",
        "closes before a byte",
        O::ConnectionClosed,
        |_| Ok(()),
    ),
    Behaviour::new("http-reset-at-once", "RST before a byte", O::Reset, |p| {
        p.reset()
    }),
    Behaviour::new(
        "http-silent",
        "takes the request and never answers",
        O::DeadlineExceeded,
        |p| p.wait(),
    ),
    Behaviour::new(
        "http-deaf",
        "neither reads nor writes",
        O::DeadlineExceeded,
        |p| p.ignore(),
    ),
    Behaviour::new(
        "http-half-close",
        "ends its half after the request, and reads on",
        O::ConnectionClosed,
        |p| {
            request(p)?;
            p.half_close()
        },
    ),
    Behaviour::new(
        "http-close-after-request",
        "closes after the request",
        O::ConnectionClosed,
        request,
    ),
    Behaviour::new(
        "http-reset-after-request",
        "RST after the request",
        O::Reset,
        |p| {
            request(p)?;
            p.reset()
        },
    ),
    Behaviour::new(
        "http-drip",
        "a good answer, a byte a millisecond",
        O::Ok,
        |p| {
            request(p)?;
            p.drip(OK)?;
            p.wait()
        },
    ),
    // Not an answer.
    Behaviour::new(
        "http-garbage",
        "bytes that are no HTTP",
        O::ProtocolError,
        |p| instead(p, &[0xa5; 4096]),
    ),
    Behaviour::new(
        "http-http2",
        "an HTTP/2 SETTINGS frame",
        O::ProtocolError,
        |p| instead(p, &[0, 0, 0, 4, 0, 0, 0, 0, 0]),
    ),
    Behaviour::new("http-tls-alert", "a TLS alert", O::ProtocolError, |p| {
        instead(p, &[21, 3, 1, 0, 2, 2, 70])
    }),
    Behaviour::new(
        "http-09",
        "a body without a head, as HTTP/0.9 had it",
        O::ProtocolError,
        |p| ends_after(p, b"<html>welcome</html>\r\n"),
    ),
    Behaviour::new(
        "http-version",
        "HTTP/3.0 in the status line",
        O::ProtocolError,
        |p| instead(p, b"HTTP/3.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
    ),
    Behaviour::new(
        "http-status-letters",
        "a status of letters",
        O::ProtocolError,
        |p| instead(p, b"HTTP/1.1 two OK\r\nContent-Length: 5\r\n\r\nhello"),
    ),
    Behaviour::new(
        "http-header-nul",
        "a NUL in a field (RFC 9110 §5.5)",
        O::ProtocolError,
        |p| {
            instead(
                p,
                b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 5\r\n\r\nhello",
            )
        },
    ),
    Behaviour::new(
        "http-header-space",
        "a space before a colon (RFC 9112 §5.1)",
        O::ProtocolError,
        |p| instead(p, b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello"),
    ),
    // Heads without end.
    Behaviour::new(
        "http-head-flood",
        "header fields without end",
        O::ProtocolError,
        |p| floods(p, b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n"),
    ),
    Behaviour::new(
        "http-line-flood",
        "a header line without end",
        O::ProtocolError,
        |p| floods(p, b"HTTP/1.1 200 OK\r\nX-Long: ", b"xxxxxxxxxxxxxxxx"),
    ),
    Behaviour::new(
        "http-1xx-flood",
        "100 Continue without end",
        O::ProtocolError,
        |p| floods(p, b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ),
    Behaviour::new("http-1xx", "103 before a good answer", O::Ok, |p| {
        instead(
            p,
            &[b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", OK].concat(),
        )
    }),
    Behaviour::new(
        "http-101",
        "101 Switching Protocols, unasked (RFC 9110 §15.2.2)",
        O::ProtocolError,
        |p| instead(p, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
    ),
    Behaviour::new(
        "http-stall-in-head",
        "half a head, and then silence",
        O::DeadlineExceeded,
        |p| instead(p, b"HTTP/1.1 200 OK\r\nContent-"),
    ),
    Behaviour::new(
        "http-close-in-head",
        "half a head, and closes",
        O::ConnectionClosed,
        |p| ends_after(p, b"HTTP/1.1 200 OK\r\nContent-"),
    ),
    // Lengths.
    Behaviour::new(
        "http-stall-in-body",
        "half a body, and then silence",
        O::DeadlineExceeded,
        |p| instead(p, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"),
    ),
    Behaviour::new(
        "http-close-in-body",
        "half a body, and closes",
        O::BodyLength,
        |p| ends_after(p, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"),
    ),
    Behaviour::new(
        "http-reset-in-body",
        "half a body, and RST",
        O::Reset,
        |p| {
            ends_after(p, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")?;
            p.reset()
        },
    ),
    Behaviour::new(
        "http-length-letters",
        "a length of letters",
        O::BadAnswer,
        |p| instead(p, b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello"),
    ),
    Behaviour::new(
        "http-length-negative",
        "a length below nothing",
        O::BadAnswer,
        |p| instead(p, b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello"),
    ),
    Behaviour::new("http-length-huge", "a length of 2^64", O::BadAnswer, |p| {
        instead(
            p,
            b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\nhello",
        )
    }),
    Behaviour::new(
        "http-lengths-differ",
        "two lengths that differ (RFC 9112 §6.3)",
        O::BadAnswer,
        |p| {
            instead(
                p,
                b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
            )
        },
    ),
    Behaviour::new(
        "http-length-and-chunked",
        "a length and chunks (RFC 9112 §6.1)",
        O::BadAnswer,
        |p| {
            instead(p, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        },
    ),
    Behaviour::new(
        "http-no-length",
        "a body up to the connection's end",
        O::Ok,
        |p| ends_after(p, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"),
    ),
    Behaviour::new(
        "http-no-length-stall",
        "a body up to an end that never comes",
        O::DeadlineExceeded,
        |p| instead(p, b"HTTP/1.1 200 OK\r\n\r\nhello"),
    ),
    Behaviour::new(
        "http-204",
        "204, without a length",
        O::coded("HTTP_2XX"),
        |p| instead(p, b"HTTP/1.1 204 No Content\r\n\r\n"),
    ),
    Behaviour::new(
        "http-two-answers",
        "two answers to one request",
        O::Ok,
        |p| instead(p, &[OK, OK].concat()),
    ),
    Behaviour::new(
        "http-answer-unasked",
        "an answer at once, before the request can have come",
        O::Ok,
        |p| {
            p.send(OK)?;
            p.wait()
        },
    ),
    // Chunks.
    Behaviour::new(
        "http-coding",
        "a transfer coding that nobody knows",
        O::BadAnswer,
        |p| {
            instead(
                p,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: magic\r\n\r\nhello",
            )
        },
    ),
    Behaviour::new(
        "http-chunks",
        "chunks with extensions and trailers, a byte a millisecond",
        O::Ok,
        |p| {
            request(p)?;
            p.drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\n\r\n")?;
            p.wait()
        },
    ),
    Behaviour::new(
        "http-chunk-letters",
        "a chunk's size in letters",
        O::BadAnswer,
        |p| {
            instead(
                p,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n",
            )
        },
    ),
    Behaviour::new(
        "http-chunk-huge",
        "a chunk of 2^64 bytes",
        O::BadAnswer,
        |p| {
            instead(p, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\nhello\r\n")
        },
    ),
    Behaviour::new(
        "http-chunk-no-end",
        "more data where a chunk ends (RFC 9112 §7.1)",
        O::BadAnswer,
        |p| {
            instead(
                p,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloworld",
            )
        },
    ),
    Behaviour::new(
        "http-chunk-close",
        "closes within a chunk",
        O::BodyLength,
        |p| {
            ends_after(
                p,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
            )
        },
    ),
    Behaviour::new(
        "http-chunk-extension-flood",
        "a chunk's extension without end",
        O::BadAnswer,
        |p| {
            floods(
                p,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;",
                b"xxxxxxxxxxxxxxxx",
            )
        },
    ),
    Behaviour::new(
        "http-trailer-flood",
        "trailers without end",
        O::BadAnswer,
        |p| {
            floods(
                p,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
                b"X-More: and more\r\n",
            )
        },
    ),
    Behaviour::new(
        "http-body-flood",
        "a chunked body without end",
        O::DeadlineExceeded,
        |p| {
            floods(
                p,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"5\r\nhello\r\n",
            )
        },
    ),
    // Statuses.
    Behaviour::new("http-404", "404 with a page", O::coded("HTTP_404"), |p| {
        instead(
            p,
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone",
        )
    }),
    Behaviour::new("http-301", "a redirect", O::coded("HTTP_301"), |p| {
        instead(
            p,
            b"HTTP/1.1 301 Moved Permanently\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n",
        )
    }),
    Behaviour::new(
        "http-503",
        "503 with Retry-After, and closes",
        O::coded("HTTP_503_RETRY_AFTER"),
        |p| {
            ends_after(p, b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        },
    ),
];
