//! Misbehaving servers that are asked for a file over HTTP/1.1 (RFC 9112).

use std::io;

use plimsoll_model::Outcome as O;

use super::peer::ScriptTransport;
use super::script::{HostileBehaviour, HostileStep, HostileStep::*};

/// Reads a request's head.
pub(super) fn read_request(peer: &mut ScriptTransport) -> io::Result<u32> {
    peer.read_until(b"\r\n\r\n").map(|_| 0)
}

const SEND_GOOD_ANSWER: HostileStep = Send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");

/// Sends a correct head, followed by a shorter body than the head declares.
const SEND_HALF_ANSWER: HostileStep = Send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe");

/// Sends the head of a chunked response.
const SEND_CHUNKED_HEAD: HostileStep =
    Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");

/// Sends the beginning of a chunk of 2^64 bytes.
const SEND_HUGE_CHUNK: HostileStep = Send(b"10000000000000000\r\nhello\r\n");

/// Sends the last chunk.
const SEND_LAST_CHUNK: HostileStep = Send(b"0\r\n");

pub(super) const BEHAVIOURS: &[HostileBehaviour] = &[
    // Connections that are closed, reset or stalled.
    HostileBehaviour::new("http-close-at-once", O::ConnectionClosed)
        .with_description("closes without sending a byte")
        .with_steps(&[]),
    HostileBehaviour::new("http-reset-at-once", O::Reset)
        .with_description("RST without sending a byte")
        .with_steps(&[Reset]),
    HostileBehaviour::new("http-silent", O::DeadlineExceeded)
        .with_description("accepts the request and never answers")
        .with_steps(&[Wait]),
    HostileBehaviour::new("http-deaf", O::DeadlineExceeded)
        .with_description("neither reads nor writes")
        .with_steps(&[Ignore]),
    HostileBehaviour::new("http-half-close", O::ConnectionClosed)
        .with_description("half-closes after the request, and keeps reading")
        .with_steps(&[Request, HalfClose]),
    HostileBehaviour::new("http-close-after-request", O::ConnectionClosed)
        .with_description("closes after the request")
        .with_steps(&[Request]),
    HostileBehaviour::new("http-reset-after-request", O::Reset)
        .with_description("RST after the request")
        .with_steps(&[Request, Reset]),
    HostileBehaviour::new("http-drip", O::Ok)
        .with_description("a valid answer, one byte per millisecond")
        .with_steps(&[Request, SEND_GOOD_ANSWER, Drip, Wait]),
    // Bytes that are not an HTTP/1.1 response.
    HostileBehaviour::new("http-garbage", O::ProtocolError)
        .with_description("bytes that are not HTTP")
        .answers_with(&[0xa5; 4096]),
    HostileBehaviour::new("http-http2", O::ProtocolError)
        .with_description("an HTTP/2 SETTINGS frame")
        .answers_with(&[0, 0, 0, 4, 0, 0, 0, 0, 0]),
    HostileBehaviour::new("http-tls-alert", O::ProtocolError)
        .with_description("a TLS alert")
        .answers_with(&[21, 3, 1, 0, 2, 2, 70]),
    HostileBehaviour::new("http-09", O::ProtocolError)
        .with_description("a body without a head, as HTTP/0.9 had it")
        .with_steps(&[Request, Send(b"<html>welcome</html>\r\n")]),
    HostileBehaviour::new("http-version", O::ProtocolError)
        .with_description("HTTP/3.0 in the status line")
        .answers_with(b"HTTP/3.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
    HostileBehaviour::new("http-status-letters", O::ProtocolError)
        .with_description("a status of letters")
        .answers_with(b"HTTP/1.1 two OK\r\nContent-Length: 5\r\n\r\nhello"),
    HostileBehaviour::new("http-header-nul", O::ProtocolError)
        .with_description("a NUL in a field (RFC 9110 §5.5)")
        .answers_with(b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 5\r\n\r\nhello"),
    HostileBehaviour::new("http-header-space", O::ProtocolError)
        .with_description("a space before a colon (RFC 9112 §5.1)")
        .answers_with(b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello"),
    // Endless heads.
    HostileBehaviour::new("http-head-flood", O::HeadTooLarge)
        .with_description("header fields without end")
        .answers_with_flood(b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n"),
    HostileBehaviour::new("http-line-flood", O::HeadTooLarge)
        .with_description("a header line without end")
        .answers_with_flood(b"HTTP/1.1 200 OK\r\nX-Long: ", b"xxxxxxxxxxxxxxxx"),
    HostileBehaviour::new("http-1xx-flood", O::HeadTooLarge)
        .with_description("100 Continue without end")
        .with_steps(&[Request, Flood(b"HTTP/1.1 100 Continue\r\n\r\n")]),
    HostileBehaviour::new("http-1xx", O::Ok)
        .with_description("103 before a good answer")
        .with_steps(&[
            Request,
            Send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
            SEND_GOOD_ANSWER,
            Wait,
        ]),
    HostileBehaviour::new("http-101", O::ProtocolError)
        .with_description("101 Switching Protocols without an Upgrade request (RFC 9110 §15.2.2)")
        .answers_with(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
    HostileBehaviour::new("http-stall-in-head", O::DeadlineExceeded)
        .with_description("half a head, and then silence")
        .answers_with(b"HTTP/1.1 200 OK\r\nContent-"),
    HostileBehaviour::new("http-close-in-head", O::ConnectionClosed)
        .with_description("half a head, and closes")
        .with_steps(&[Request, Send(b"HTTP/1.1 200 OK\r\nContent-")]),
    // Wrong or ambiguous body lengths.
    HostileBehaviour::new("http-stall-in-body", O::DeadlineExceeded)
        .with_description("half a body, and then silence")
        .with_steps(&[Request, SEND_HALF_ANSWER, Wait]),
    HostileBehaviour::new("http-close-in-body", O::BodyLength)
        .with_description("half a body, and closes")
        .with_steps(&[Request, SEND_HALF_ANSWER]),
    HostileBehaviour::new("http-reset-in-body", O::Reset)
        .with_description("half a body, and RST")
        .with_steps(&[Request, SEND_HALF_ANSWER, Reset]),
    HostileBehaviour::new("http-length-letters", O::BadAnswer)
        .with_description("a length of letters")
        .answers_with(b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello"),
    HostileBehaviour::new("http-length-negative", O::BadAnswer)
        .with_description("a negative length")
        .answers_with(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello"),
    HostileBehaviour::new("http-length-huge", O::BadAnswer)
        .with_description("a length of 2^64")
        .answers_with(b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\nhello"),
    HostileBehaviour::new("http-lengths-differ", O::BadAnswer)
        .with_description("two lengths that differ (RFC 9112 §6.3)")
        .answers_with(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    HostileBehaviour::new("http-length-and-chunked", O::BadAnswer)
        .with_description("a length and chunks (RFC 9112 §6.1)")
        .answers_with(
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n\
              5\r\nhello\r\n0\r\n\r\n",
        ),
    HostileBehaviour::new("http-no-length", O::Ok)
        .with_description("a body up to the connection's end")
        .with_steps(&[
            Request,
            Send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"),
        ]),
    HostileBehaviour::new("http-no-length-stall", O::DeadlineExceeded)
        .with_description("a body up to an end that never comes")
        .answers_with(b"HTTP/1.1 200 OK\r\n\r\nhello"),
    HostileBehaviour::new("http-204", O::coded("HTTP_2XX"))
        .with_description("204, without a length")
        .answers_with(b"HTTP/1.1 204 No Content\r\n\r\n"),
    HostileBehaviour::new("http-two-answers", O::Ok)
        .with_description("two answers to one request")
        .with_steps(&[Request, SEND_GOOD_ANSWER, SEND_GOOD_ANSWER, Wait]),
    HostileBehaviour::new("http-answer-unasked", O::Ok)
        .with_description("an answer at once, before the request arrives")
        .with_steps(&[SEND_GOOD_ANSWER, Wait]),
    // Invalid chunks and transfer codings.
    HostileBehaviour::new("http-coding", O::BadAnswer)
        .with_description("an unknown transfer coding")
        .answers_with(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: magic\r\n\r\nhello"),
    HostileBehaviour::new("http-chunks", O::Ok)
        .with_description("chunks with extensions and trailers, a byte a millisecond")
        .with_steps(&[
            Request,
            SEND_CHUNKED_HEAD,
            Send(b"2;a=b\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\n\r\n"),
            Drip,
            Wait,
        ]),
    HostileBehaviour::new("http-chunk-letters", O::BadAnswer)
        .with_description("a chunk's size in letters")
        .with_steps(&[Request, SEND_CHUNKED_HEAD, Send(b"five\r\nhello\r\n"), Wait]),
    HostileBehaviour::new("http-chunk-huge", O::BadAnswer)
        .with_description("a chunk of 2^64 bytes")
        .with_steps(&[Request, SEND_CHUNKED_HEAD, SEND_HUGE_CHUNK, Wait]),
    HostileBehaviour::new("http-chunk-no-end", O::BadAnswer)
        .with_description("more data where a chunk ends (RFC 9112 §7.1)")
        .with_steps(&[Request, SEND_CHUNKED_HEAD, Send(b"5\r\nhelloworld"), Wait]),
    HostileBehaviour::new("http-chunk-close", O::BodyLength)
        .with_description("closes within a chunk")
        .with_steps(&[Request, SEND_CHUNKED_HEAD, Send(b"5\r\nhe")]),
    HostileBehaviour::new("http-chunk-extension-flood", O::BadAnswer)
        .with_description("a chunk's extension without end")
        .with_steps(&[
            Request,
            SEND_CHUNKED_HEAD,
            Send(b"5;"),
            Flood(b"xxxxxxxxxxxxxxxx"),
        ]),
    HostileBehaviour::new("http-trailer-flood", O::HeadTooLarge)
        .with_description("trailers without end")
        .with_steps(&[
            Request,
            SEND_CHUNKED_HEAD,
            SEND_LAST_CHUNK,
            Flood(b"X-More: and more\r\n"),
        ]),
    HostileBehaviour::new("http-body-flood", O::DeadlineExceeded)
        .with_description("a chunked body without end")
        .with_steps(&[Request, SEND_CHUNKED_HEAD, Flood(b"5\r\nhello\r\n")]),
    // Unexpected status codes.
    HostileBehaviour::new("http-404", O::coded("HTTP_404"))
        .with_description("404 with a page")
        .answers_with(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"),
    HostileBehaviour::new("http-301", O::coded("HTTP_301"))
        .with_description("a redirect")
        .answers_with(
            b"HTTP/1.1 301 Moved Permanently\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n",
        ),
    HostileBehaviour::new("http-503", O::coded("HTTP_503_RETRY_AFTER"))
        .with_description("503 with Retry-After, and closes")
        .with_steps(&[
            Request,
            Send(
                b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\
              Connection: close\r\nContent-Length: 0\r\n\r\n",
            ),
        ]),
];
