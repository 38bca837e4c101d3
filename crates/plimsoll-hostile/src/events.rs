//! Misbehaving language-model servers: server-sent events over HTTP/1.1 (WHATWG HTML §9.2, OpenAI's API).

use std::io;

use plimsoll_model::Outcome as O;

use super::peer::ScriptTransport;
use super::script::{BehaviourScript, HostileBehaviour, HostileStep, HostileStep::*};

const SEND_HEAD: HostileStep =
    Send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n");

/// An event with `choices[].delta.content`.
const SEND_TOKEN: HostileStep = Send(TOKEN_EVENT);

const TOKEN_EVENT: &[u8] =
    b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"it \"}}]}\n\n";

const SEND_DONE: HostileStep = Send(b"data: [DONE]\n\n");

/// An empty step. Bytes that preceding steps have written are sent before it, and therefore separately from later
/// bytes.
const FLUSH: HostileStep = Do(|_| Ok(()));

const SEND_USAGE: HostileStep =
    Send(b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n");

const SEND_CONTRADICTORY_USAGE: HostileStep =
    Send(b"data: {\"usage\":{\"completion_tokens\":3}}\n\n");

/// Reads a request whose body is a JSON object.
pub(super) fn read_request(peer: &mut ScriptTransport) -> io::Result<u32> {
    let head = peer.read_until(b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse().ok());
    peer.read_exact(length.unwrap_or(0)).map(|_| 0)
}

fn write_empty_tokens(out: &mut Vec<u8>, _: u32) {
    let empty = b"data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n";
    out.extend(empty.repeat(1000));
}

fn write_deep_json(out: &mut Vec<u8>, _: u32) {
    out.extend(b"data: {\"more\":");
    out.extend(b"[".repeat(500_000));
    out.extend(b"\n\n");
}

/// Writes the head of a response whose body claims to be encoded with `coding`.
fn write_encoded_head(out: &mut Vec<u8>, coding: &str) {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: {coding}\r\nConnection: close\r\n\r\n"
    );
    out.extend(head.as_bytes());
}

/// Writes a zstd frame (RFC 8878 §3.1.1) of one endless line: RLE blocks that decode to 128 KiB each.
fn write_zstd_bomb(out: &mut Vec<u8>, _: u32) {
    // Frame header: magic number, no content size, and a window of 8 MiB.
    out.extend([0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3]);
    for _ in 0..100_000 {
        // Block header: not the last block, type RLE, 2^17 bytes.
        let block = (1u32 << 17) << 3 | 1 << 1;
        out.extend_from_slice(&block.to_le_bytes()[..3]);
        out.push(b':');
    }
}

/// Reads the request, and sends the head of a response.
const BEGIN_ANSWER: HostileStep = Do(|p| p.run_steps(&[Request, SEND_HEAD]));

/// Reads the request, and sends a head and a token.
const BEGIN_TOKENS: HostileStep = Do(|p| p.run_steps(&[Request, SEND_HEAD, SEND_TOKEN]));

impl HostileBehaviour {
    /// Makes the behaviour send a head and this event, and then keep the connection open without sending.
    const fn stall_after_event(self, event: &'static [u8]) -> HostileBehaviour {
        self.with_script(BehaviourScript::ThreeSteps([
            BEGIN_ANSWER,
            Send(event),
            Wait,
        ]))
    }

    /// Makes the behaviour send a head, a token and this event, and then keep the connection open without sending.
    const fn stall_after_token_and_event(self, event: &'static [u8]) -> HostileBehaviour {
        self.with_script(BehaviourScript::ThreeSteps([
            BEGIN_TOKENS,
            Send(event),
            Wait,
        ]))
    }
}

pub(super) const BEHAVIOURS: &[HostileBehaviour] = &[
    // Valid but unusual streams.
    HostileBehaviour::new("sse-drip", O::Ok)
        .with_description("a valid answer, one byte per millisecond")
        .with_steps(&[Request, SEND_HEAD, FLUSH, SEND_TOKEN, SEND_DONE, Drip]),
    HostileBehaviour::new("sse-line-ends", O::Ok)
        .with_description("a byte order mark, comments, and lines that end in CR, LF or both")
        .with_steps(&[
            Request,
            SEND_HEAD,
            Send(b"\xef\xbb\xbf: hello\r\n\r\n"),
            Send(b"data: {\"choices\":[{\"text\":\"it\"}]}\r\r"),
            Send(b"id: 1\r\nevent\r\n"),
            SEND_TOKEN,
            Send(b"data:[DONE]\r\n\r\n"),
        ]),
    HostileBehaviour::new("sse-data-lines", O::Ok)
        .with_description("an event's JSON in many lines of data")
        .with_steps(&[
            Request,
            SEND_HEAD,
            Send(b"data: {\"choices\":\ndata:  [{\"text\":\ndata: \"it\"}]}\n\n"),
            SEND_DONE,
        ]),
    HostileBehaviour::new("sse-done-then-more", O::Ok)
        .with_description("tokens after [DONE]")
        .with_steps(&[
            Request,
            SEND_HEAD,
            SEND_TOKEN,
            SEND_DONE,
            SEND_TOKEN,
            Send(b"data: no JSON\n\n"),
        ]),
    HostileBehaviour::new("sse-done-no-end", O::Ok)
        .with_description("[DONE], and the body never ends")
        .with_steps(&[Request, SEND_HEAD, SEND_TOKEN, SEND_DONE, Wait]),
    HostileBehaviour::new("sse-usage-twice", O::Ok)
        .with_description("the tokens are counted twice, differently")
        .with_steps(&[
            Request,
            SEND_HEAD,
            SEND_TOKEN,
            SEND_USAGE,
            SEND_CONTRADICTORY_USAGE,
            SEND_DONE,
        ]),
    HostileBehaviour::new("sse-not-utf8", O::Ok)
        .with_description("a token that is not UTF-8")
        .with_steps(&[
            Request,
            SEND_HEAD,
            Send(b"data: {\"choices\":[{\"text\":\"\xff\xfe\"}]}\n\n"),
            SEND_DONE,
        ]),
    HostileBehaviour::new("sse-usage-huge", O::Ok)
        .with_description("a count of 2^64 tokens")
        .with_steps(&[
            Request,
            SEND_HEAD,
            SEND_TOKEN,
            Send(b"data: {\"usage\":{\"completion_tokens\":18446744073709551616}}\n\n"),
            SEND_DONE,
        ]),
    HostileBehaviour::new("sse-signs-of-life", O::Ok)
        .with_description("events with names of their own, without data or with text")
        .with_steps(&[
            Request,
            SEND_HEAD,
            Send(b"event: ping\ndata:\n\n"),
            SEND_TOKEN,
            Send(b"event: heartbeat\ndata: keep-alive\n\n"),
            SEND_DONE,
        ]),
    HostileBehaviour::new("sse-done-unended", O::Ok)
        .with_description("[DONE] without the blank line after it, and closes")
        .with_steps(&[Request, SEND_HEAD, SEND_TOKEN, Send(b"data: [DONE]")]),
    // Streams that end incompletely.
    HostileBehaviour::new("sse-close-at-once", O::StreamShort)
        .with_description("a head, and closes")
        .with_steps(&[Request, SEND_HEAD]),
    HostileBehaviour::new("sse-close-in-event", O::StreamShort)
        .with_description("closes within an event")
        .with_steps(&[
            Request,
            SEND_HEAD,
            SEND_TOKEN,
            Send(b"data: {\"choices\":[{\"te"),
        ]),
    HostileBehaviour::new("sse-no-done", O::StreamShort)
        .with_description("tokens, and no [DONE]")
        .with_steps(&[Request, SEND_HEAD, SEND_TOKEN, SEND_TOKEN]),
    HostileBehaviour::new("sse-no-token", O::StreamShort)
        .with_description("[DONE] alone")
        .with_steps(&[Request, SEND_HEAD, SEND_DONE]),
    HostileBehaviour::new("sse-empty-tokens", O::StreamShort)
        .with_description("a thousand tokens without text, and [DONE]")
        .with_steps(&[Request, SEND_HEAD, Write(write_empty_tokens), SEND_DONE]),
    HostileBehaviour::new("sse-reset", O::Reset)
        .with_description("a token, and RST")
        .with_steps(&[Request, SEND_HEAD, SEND_TOKEN, Reset]),
    HostileBehaviour::new("sse-stall-at-once", O::DeadlineExceeded)
        .with_description("a head, and then silence")
        .with_steps(&[Request, SEND_HEAD, Wait]),
    HostileBehaviour::new("sse-stall-after-token", O::DeadlineExceeded)
        .with_description("a token, and then silence")
        .with_steps(&[Request, SEND_HEAD, SEND_TOKEN, Wait]),
    HostileBehaviour::new("sse-html", O::BadAnswer)
        .with_description("a page with status 200")
        .answers_with(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 14\r\n\r\n\
              <html></html>\n",
        ),
    // Malformed events.
    HostileBehaviour::new("sse-not-json", O::BadAnswer)
        .with_description("an event that is not JSON")
        .stall_after_token_and_event(b"data: hello\n\n"),
    HostileBehaviour::new("sse-json-cut", O::BadAnswer)
        .with_description("an event whose JSON is cut off")
        .stall_after_event(b"data: {\"choices\":[{\"delta\":{\"con\n\n"),
    HostileBehaviour::new("sse-json-types", O::BadAnswer)
        .with_description("keys that hold something else")
        .stall_after_event(b"data: {\"choices\":{\"0\":\"it\"}}\n\n"),
    HostileBehaviour::new("sse-json-deep", O::BadAnswer)
        .with_description("half a million brackets")
        .with_steps(&[Request, SEND_HEAD, Write(write_deep_json), Wait]),
    // Events and responses that report errors.
    HostileBehaviour::new("sse-error", O::EventError)
        .with_description("an event that reports an error")
        .stall_after_token_and_event(b"data: {\"error\":{\"message\":\"overloaded\"}}\n\n"),
    HostileBehaviour::new("sse-error-object", O::EventError)
        .with_description("an object that is an error, without a key of that name")
        .stall_after_token_and_event(
            b"data: {\"object\":\"error\",\"message\":\"the engine died\",\"code\":500}\n\n",
        ),
    HostileBehaviour::new("sse-error-in-choice", O::EventError)
        .with_description("a choice that reports an error")
        .stall_after_token_and_event(
            b"data: {\"choices\":[{\"error\":{\"code\":502},\"delta\":{}}]}\n\n",
        ),
    HostileBehaviour::new("sse-finish-abort", O::EventError)
        .with_description("an aborted answer")
        .stall_after_token_and_event(
            b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"abort\"}]}\n\n",
        ),
    HostileBehaviour::new("sse-error-event", O::EventError)
        .with_description("an event named error")
        .stall_after_token_and_event(b"event: error\ndata: overloaded\n\n"),
    HostileBehaviour::new("sse-429", O::coded("HTTP_429_RETRY_AFTER"))
        .with_description("429 with Retry-After, and closes")
        .with_steps(&[
            Request,
            Send(
                b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\n\
              Content-Length: 0\r\nConnection: close\r\n\r\n",
            ),
        ]),
    // Streams without end.
    HostileBehaviour::new("sse-token-flood", O::DeadlineExceeded)
        .with_description("tokens without end")
        .with_steps(&[Request, SEND_HEAD, Flood(TOKEN_EVENT)]),
    HostileBehaviour::new("sse-comment-flood", O::DeadlineExceeded)
        .with_description("comments without end")
        .with_steps(&[Request, SEND_HEAD, SEND_TOKEN, Flood(b": still here\n\n")]),
    HostileBehaviour::new("sse-line-flood", O::BadAnswer)
        .with_description("a line without end")
        .with_steps(&[
            Request,
            SEND_HEAD,
            Send(b"data: "),
            Flood(b"xxxxxxxxxxxxxxxx"),
        ]),
    HostileBehaviour::new("sse-data-flood", O::BadAnswer)
        .with_description("lines of data, and never a blank one")
        .with_steps(&[Request, SEND_HEAD, Flood(b"data: more and more\n")]),
    // Bodies with content codings.
    HostileBehaviour::new("sse-gzip-none", O::BadAnswer)
        .with_description("not gzip, although it says so")
        .with_steps(&[
            Request,
            Write(|out, _| write_encoded_head(out, "gzip")),
            SEND_TOKEN,
            SEND_DONE,
        ]),
    HostileBehaviour::new("sse-coding", O::CompressionUnsupported)
        .with_description("an unknown content coding")
        .with_steps(&[
            Request,
            Write(|out, _| write_encoded_head(out, "magic")),
            SEND_TOKEN,
            SEND_DONE,
        ]),
    HostileBehaviour::new("sse-zstd-bomb", O::MessageTooLarge)
        .with_description("400 kB of zstd that unpack to 13 GB")
        .with_steps(&[
            Request,
            Write(|out, _| write_encoded_head(out, "zstd")),
            Write(write_zstd_bomb),
        ]),
];
