//! A language model's answer as server-sent events over HTTP/1.1 (WHATWG HTML 9.2, OpenAI's API), done wrong.

use std::io;

use plimsoll_model::Outcome as O;

use super::{Behaviour, Peer};

const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

/// `choices[].delta.content`
const TOKEN: &[u8] = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"it \"}}]}\n\n";

const DONE: &[u8] = b"data: [DONE]\n\n";

/// Reads a request whose body is one object of JSON.
fn request(peer: &mut Peer) -> io::Result<()> {
    let head = peer.take_until(b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse().ok());
    peer.take(length.unwrap_or(0)).map(|_| ())
}

/// A head, these bytes, and the connection's end.
fn streams(peer: &mut Peer, body: &[&[u8]]) -> io::Result<()> {
    request(peer)?;
    peer.send(HEAD)?;
    peer.send(&body.concat())
}

/// A head, these bytes, and silence.
fn stalls(peer: &mut Peer, body: &[&[u8]]) -> io::Result<()> {
    streams(peer, body)?;
    peer.wait()
}

/// A head and these bytes, the second of which are repeated without end.
fn floods(peer: &mut Peer, begin: &[u8], without_end: &[u8]) -> io::Result<()> {
    request(peer)?;
    peer.send(HEAD)?;
    peer.send(begin)?;
    peer.flood(without_end)
}

/// A body that is packed as `coding`, or is not.
fn packed(peer: &mut Peer, coding: &str, body: &[u8]) -> io::Result<()> {
    request(peer)?;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: {coding}\r\nConnection: close\r\n\r\n"
    );
    peer.send(head.as_bytes())?;
    peer.send(body)
}

/// A frame of zstd (RFC 8878, 3.1.1) of one line without end: blocks of one byte that stand for 128 KiB each.
fn zstd_bomb() -> Vec<u8> {
    // The magic number, no content size, and a window of 8 MiB.
    let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3];
    for _ in 0..100_000 {
        // Not the last, RLE, 2^17 bytes.
        let block = (1u32 << 17) << 3 | 1 << 1;
        bomb.extend_from_slice(&block.to_le_bytes()[..3]);
        bomb.push(b':');
    }
    bomb
}

pub(super) const BEHAVIOURS: &[Behaviour] = &[
    // Good, if unusual.
    Behaviour::new(
        "sse-drip",
        "a good answer, a byte a millisecond",
        O::Ok,
        |p| {
            request(p)?;
            p.send(HEAD)?;
            p.drip(&[TOKEN, DONE].concat())
        },
    ),
    Behaviour::new(
        "sse-line-ends",
        "a byte order mark, comments, and lines that end in CR, LF or both",
        O::Ok,
        |p| {
            let token = b"data: {\"choices\":[{\"text\":\"it\"}]}\r\r";
            streams(
                p,
                &[
                    b"\xef\xbb\xbf: hello\r\n\r\n",
                    token,
                    b"id: 1\r\nevent\r\n",
                    TOKEN,
                    b"data:[DONE]\r\n\r\n",
                ],
            )
        },
    ),
    Behaviour::new(
        "sse-data-lines",
        "an event's JSON in many lines of data",
        O::Ok,
        |p| {
            streams(
                p,
                &[
                    b"data: {\"choices\":\ndata:  [{\"text\":\ndata: \"it\"}]}\n\n",
                    DONE,
                ],
            )
        },
    ),
    Behaviour::new("sse-done-then-more", "tokens behind [DONE]", O::Ok, |p| {
        streams(p, &[TOKEN, DONE, TOKEN, b"data: no JSON\n\n"])
    }),
    Behaviour::new(
        "sse-done-no-end",
        "[DONE], and the body never ends",
        O::Ok,
        |p| stalls(p, &[TOKEN, DONE]),
    ),
    Behaviour::new(
        "sse-usage-twice",
        "the tokens are counted twice, differently",
        O::Ok,
        |p| {
            let usage = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n";
            let other = b"data: {\"usage\":{\"completion_tokens\":3}}\n\n";
            streams(p, &[TOKEN, usage, other, DONE])
        },
    ),
    // Ends that are none.
    Behaviour::new(
        "sse-close-at-once",
        "a head, and closes",
        O::StreamShort,
        |p| streams(p, &[]),
    ),
    Behaviour::new(
        "sse-close-in-event",
        "closes within an event",
        O::StreamShort,
        |p| streams(p, &[TOKEN, b"data: {\"choices\":[{\"te"]),
    ),
    Behaviour::new(
        "sse-no-done",
        "tokens, and no [DONE]",
        O::StreamShort,
        |p| streams(p, &[TOKEN, TOKEN]),
    ),
    Behaviour::new("sse-no-token", "[DONE] alone", O::StreamShort, |p| {
        streams(p, &[DONE])
    }),
    Behaviour::new(
        "sse-empty-tokens",
        "a thousand tokens without text, and [DONE]",
        O::StreamShort,
        |p| {
            let empty = b"data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n".repeat(1000);
            streams(p, &[&empty, DONE])
        },
    ),
    Behaviour::new("sse-reset", "a token, and RST", O::Reset, |p| {
        streams(p, &[TOKEN])?;
        p.reset()
    }),
    Behaviour::new(
        "sse-stall-at-once",
        "a head, and then silence",
        O::DeadlineExceeded,
        |p| stalls(p, &[]),
    ),
    Behaviour::new(
        "sse-stall-after-token",
        "a token, and then silence",
        O::DeadlineExceeded,
        |p| stalls(p, &[TOKEN]),
    ),
    Behaviour::new("sse-html", "a page with status 200", O::StreamShort, |p| {
        request(p)?;
        p.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 14\r\n\r\n<html></html>\n")?;
        p.wait()
    }),
    // Events that are none.
    Behaviour::new(
        "sse-not-json",
        "an event that is no JSON",
        O::BadAnswer,
        |p| stalls(p, &[TOKEN, b"data: hello\n\n"]),
    ),
    Behaviour::new(
        "sse-json-cut",
        "an event whose JSON is cut off",
        O::BadAnswer,
        |p| stalls(p, &[b"data: {\"choices\":[{\"delta\":{\"con\n\n"]),
    ),
    Behaviour::new(
        "sse-json-types",
        "keys that hold something else",
        O::BadAnswer,
        |p| stalls(p, &[b"data: {\"choices\":{\"0\":\"it\"}}\n\n"]),
    ),
    Behaviour::new(
        "sse-json-deep",
        "half a million brackets",
        O::BadAnswer,
        |p| {
            let deep = b"[".repeat(500_000);
            stalls(p, &[b"data: {\"more\":", &deep, b"\n\n"])
        },
    ),
    Behaviour::new(
        "sse-not-utf8",
        "a token that is no UTF-8",
        O::BadAnswer,
        |p| stalls(p, &[b"data: {\"choices\":[{\"text\":\"\xff\xfe\"}]}\n\n"]),
    ),
    Behaviour::new(
        "sse-usage-huge",
        "a count of 2^64 tokens",
        O::BadAnswer,
        |p| {
            let usage = b"data: {\"usage\":{\"completion_tokens\":18446744073709551616}}\n\n";
            stalls(p, &[TOKEN, usage])
        },
    ),
    // Errors.
    Behaviour::new(
        "sse-error",
        "an event that reports an error",
        O::EventError,
        |p| {
            stalls(
                p,
                &[TOKEN, b"data: {\"error\":{\"message\":\"overloaded\"}}\n\n"],
            )
        },
    ),
    Behaviour::new(
        "sse-error-event",
        "an event named error",
        O::EventError,
        |p| stalls(p, &[TOKEN, b"event: error\ndata: overloaded\n\n"]),
    ),
    Behaviour::new(
        "sse-429",
        "429 with Retry-After, and closes",
        O::coded("HTTP_429_RETRY_AFTER"),
        |p| {
            request(p)?;
            p.send(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        },
    ),
    // Without end.
    Behaviour::new(
        "sse-token-flood",
        "tokens without end",
        O::DeadlineExceeded,
        |p| floods(p, b"", TOKEN),
    ),
    Behaviour::new(
        "sse-comment-flood",
        "comments without end",
        O::DeadlineExceeded,
        |p| floods(p, TOKEN, b": still here\n\n"),
    ),
    Behaviour::new("sse-line-flood", "a line without end", O::BadAnswer, |p| {
        floods(p, b"data: ", b"xxxxxxxxxxxxxxxx")
    }),
    Behaviour::new(
        "sse-data-flood",
        "lines of data, and never a blank one",
        O::BadAnswer,
        |p| floods(p, b"", b"data: more and more\n"),
    ),
    // Packed.
    Behaviour::new(
        "sse-gzip-none",
        "not gzip, although it says so",
        O::BadAnswer,
        |p| packed(p, "gzip", &[TOKEN, DONE].concat()),
    ),
    Behaviour::new(
        "sse-coding",
        "a content coding that nobody knows",
        O::CompressionUnsupported,
        |p| packed(p, "magic", &[TOKEN, DONE].concat()),
    ),
    Behaviour::new(
        "sse-zstd-bomb",
        "400 kB of zstd that unpack to 13 GB",
        O::MessageTooLarge,
        |p| packed(p, "zstd", &zstd_bomb()),
    ),
];
