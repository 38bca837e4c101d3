//! Conformance cases over real sockets, against the gateway's echo mode and a client built from the
//! load generator's codec.
//!
//! Each case is what one side sends and must receive: echoes, and the peer's close. Every case is
//! sent at once, byte by byte, and cut in the middle.
//!
//! This file is long because each rule of RFC 6455 has a case of its own, on both sides.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_relays::bus::Bus;
use plimsoll_relays::gateway::GatewayOptions;
use plimsoll_wire::websocket::{
    DeflateParameters, Opcode, ReaderRole, UpgradeOffer, UpgradeResponse, WebSocketFrameHeader,
    WebSocketMessage, WebSocketReader, append_frame, append_masked_frame, client_key,
    derive_accept_key, encode_close_payload,
};
use std::ops::ControlFlow;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::client::{LIMIT, http, upgrade};
use crate::stack::GatewayProcess;

const MASK: [u8; 4] = [0x5a, 0x01, 0xff, 0x80];
const MAX_MESSAGE: usize = 70_000;

/// A frame: its first byte, whether it is masked correctly for its sender, and its payload.
type SentFrame = (u8, bool, Vec<u8>);

struct Case {
    what: &'static str,
    sent: Vec<SentFrame>,
    /// The first byte and payload of the frames that must come back before the Close.
    echoed: Vec<(u8, Vec<u8>)>,
    /// The code that must come back in the Close; 0 for a Close without a code.
    close: u16,
}

/// A valid case: `frames` are echoed as `echoed`, and the sender closes with 1000.
fn valid_case(what: &'static str, frames: &[(u8, &[u8])], echoed: &[(u8, &[u8])]) -> Case {
    let mut case = closing_case(what, frames, echoed, 1000);
    case.sent.push((0x88, true, encode_close_payload(1000, "")));
    case
}

fn closing_case(
    what: &'static str,
    frames: &[(u8, &[u8])],
    echoed: &[(u8, &[u8])],
    close: u16,
) -> Case {
    Case {
        what,
        sent: frames.iter().map(|(b, p)| (*b, true, p.to_vec())).collect(),
        echoed: echoed.iter().map(|(b, p)| (*b, p.to_vec())).collect(),
        close,
    }
}

fn cases() -> Vec<Case> {
    const TEXT: u8 = 0x81;
    const BINARY: u8 = 0x82;
    const PING: u8 = 0x89;
    const PONG: u8 = 0x8a;
    const CLOSE: u8 = 0x88;
    let mut cases = Vec::new();
    // Sizes around the boundaries between the three length encodings, for text and binary.
    let sizes = [0, 1, 125, 126, 127, 128, 65_535, 65_536, MAX_MESSAGE];
    let payloads: Vec<Vec<u8>> = sizes.iter().map(|n| vec![b'*'; *n]).collect();
    for payload in &payloads {
        cases.push(valid_case(
            "text of a size",
            &[(TEXT, payload)],
            &[(TEXT, payload)],
        ));
        cases.push(valid_case(
            "binary of a size",
            &[(BINARY, payload)],
            &[(BINARY, payload)],
        ));
    }
    let over = vec![b'*'; MAX_MESSAGE + 1];
    cases.push(closing_case("oversize", &[(BINARY, &over)], &[], 1009));
    let halves = vec![b'*'; MAX_MESSAGE / 2 + 1];
    cases.push(closing_case(
        "oversize in fragments",
        &[(0x02, &halves), (0x80, &halves)],
        &[],
        1009,
    ));

    // Pings and pongs.
    let most = vec![0xfe; 125];
    cases.push(valid_case("ping", &[(PING, b"")], &[(PONG, b"")]));
    cases.push(valid_case(
        "ping with a payload",
        &[(PING, b"hi")],
        &[(PONG, b"hi")],
    ));
    cases.push(valid_case(
        "the longest ping",
        &[(PING, &most)],
        &[(PONG, &most)],
    ));
    cases.push(closing_case(
        "a ping too long",
        &[(PING, &[0; 126])],
        &[],
        1002,
    ));
    cases.push(valid_case(
        "a pong unasked",
        &[(PONG, b"x"), (TEXT, b"y")],
        &[(TEXT, b"y")],
    ));
    let ten: Vec<Vec<u8>> = (0..10).map(|i| vec![b'0' + i]).collect();
    let pings: Vec<(u8, &[u8])> = ten.iter().map(|p| (PING, &p[..])).collect();
    let pongs: Vec<(u8, &[u8])> = ten.iter().map(|p| (PONG, &p[..])).collect();
    cases.push(valid_case("ten pings", &pings, &pongs));

    // Reserved bits and opcodes.
    for first in [0xc1, 0xa1, 0x91, 0xd1, 0xb1, 0xe1, 0xf1, 0xc9, 0xa8] {
        cases.push(closing_case(
            "a reserved bit",
            &[(TEXT, b"a"), (first, b"b")],
            &[(TEXT, b"a")],
            1002,
        ));
    }
    for opcode in (3..8).chain(11..16) {
        cases.push(closing_case(
            "a reserved opcode",
            &[(0x80 | opcode, b"a")],
            &[],
            1002,
        ));
    }

    // Fragments.
    let whole: &[(u8, &[u8])] = &[(TEXT, b"abc")];
    cases.push(valid_case(
        "two fragments",
        &[(0x01, b"a"), (0x80, b"bc")],
        whole,
    ));
    cases.push(valid_case(
        "empty fragments",
        &[(0x01, b""), (0x00, b"abc"), (0x80, b"")],
        whole,
    ));
    cases.push(valid_case(
        "a ping between fragments",
        &[(0x01, b"a"), (PING, b"p"), (0x00, b"b"), (0x80, b"c")],
        &[(PONG, b"p"), (TEXT, b"abc")],
    ));
    cases.push(closing_case(
        "a continuation without a message to continue",
        &[(0x80, b"a")],
        &[],
        1002,
    ));
    cases.push(closing_case(
        "a first fragment of nothing",
        &[(0x00, b"a")],
        &[],
        1002,
    ));
    cases.push(closing_case(
        "a continuation after the end",
        &[(0x01, b"a"), (0x80, b"bc"), (0x80, b"d")],
        whole,
        1002,
    ));
    cases.push(closing_case(
        "text inside fragments",
        &[(0x01, b"a"), (TEXT, b"b")],
        &[],
        1002,
    ));
    cases.push(closing_case(
        "a fragmented ping",
        &[(0x09, b"a"), (0x80, b"b")],
        &[],
        1002,
    ));
    cases.push(closing_case(
        "a fragmented close",
        &[(0x08, b"")],
        &[],
        1002,
    ));

    // UTF-8.
    for good in [
        "Hello-µ@ßöäüàá-UTF-8!!",
        "κόσμε",
        "\u{0}\u{7f}\u{80}\u{7ff}\u{800}\u{ffff}\u{10000}\u{10ffff}",
        "\u{fffd}\u{1fffe}",
    ] {
        let bytes = good.as_bytes();
        cases.push(valid_case("good UTF-8", &[(TEXT, bytes)], &[(TEXT, bytes)]));
        let pieces: Vec<(u8, &[u8])> = bytes
            .iter()
            .enumerate()
            .map(|(i, b)| (if i == 0 { 0x01 } else { 0x00 }, std::slice::from_ref(b)))
            .chain([(0x80, &b""[..])])
            .collect();
        cases.push(valid_case(
            "good UTF-8, a byte a fragment",
            &pieces,
            &[(TEXT, bytes)],
        ));
    }
    for bad in [
        &b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited"[..],
        b"\xf4\x90\x80\x80",
        b"\xc0\xaf",
        b"\xe0\x80\xaf",
        b"\xf8\x88\x80\x80\x80",
        b"\xfe",
        b"\x80",
        b"\xce",
        b"\xf0\x90\x80",
        b"\xed\xbf\xbf",
    ] {
        cases.push(closing_case("bad UTF-8", &[(TEXT, bad)], &[], 1007));
        cases.push(closing_case(
            "bad UTF-8 at the end",
            &[(0x01, b"ok"), (0x80, bad)],
            &[],
            1007,
        ));
        cases.push(valid_case(
            "no UTF-8, binary",
            &[(BINARY, bad)],
            &[(BINARY, bad)],
        ));
    }
    // Must be refused at the fragment that makes it invalid: the last one is never sent.
    cases.push(closing_case(
        "bad UTF-8 fails at once",
        &[(0x01, b"\xce\xba"), (0x00, b"\xed\xa0")],
        &[],
        1007,
    ));

    // Closing.
    cases.push(closing_case(
        "a close without a code",
        &[(CLOSE, b"")],
        &[],
        0,
    ));
    cases.push(closing_case("half a code", &[(CLOSE, b"\x03")], &[], 1002));
    cases.push(closing_case(
        "text after the close",
        &[(CLOSE, b"\x03\xe8"), (TEXT, b"a")],
        &[],
        1000,
    ));
    cases.push(closing_case(
        "a close in mid-message",
        &[(0x01, b"a"), (CLOSE, b"\x03\xe8")],
        &[],
        1000,
    ));
    let mut longest = b"\x03\xe8".to_vec();
    longest.resize(125, b'*');
    cases.push(closing_case(
        "the longest reason",
        &[(CLOSE, &longest)],
        &[],
        1000,
    ));
    longest.push(b'*');
    cases.push(closing_case(
        "a reason too long",
        &[(CLOSE, &longest)],
        &[],
        1002,
    ));
    cases.push(closing_case(
        "a reason that is no text",
        &[(CLOSE, b"\x03\xe8\xce")],
        &[],
        1007,
    ));
    for code in [
        1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999,
    ] {
        cases.push(closing_case(
            "a code to send",
            &[(CLOSE, &u16::to_be_bytes(code))],
            &[],
            code,
        ));
    }
    for code in [
        0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535,
    ] {
        cases.push(closing_case(
            "a code not to send",
            &[(CLOSE, &u16::to_be_bytes(code))],
            &[],
            1002,
        ));
    }
    let mut unmasked = closing_case(
        "the wrong masking",
        &[(TEXT, b"a"), (TEXT, b"b")],
        &[(TEXT, b"a")],
        1002,
    );
    unmasked.sent[1].1 = false;
    cases.push(unmasked);
    cases
}

/// Returns the bytes of a case, sent by a client (`masks`) or by a server.
fn bytes_of(case: &Case, masks: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (first, right, payload) in &case.sent {
        let begin = out.len();
        if masks == *right {
            append_masked_frame(&mut out, Opcode::Text, MASK, payload);
        } else {
            append_frame(&mut out, Opcode::Text, payload);
        }
        out[begin] = *first;
    }
    out
}

/// Returns the piece sizes in which a case is sent.
fn cuts(length: usize) -> Vec<usize> {
    let mut cuts = vec![length.max(1)];
    if length <= 600 {
        cuts.push(1);
    }
    if length > 2 {
        cuts.push(length / 2);
    }
    cuts
}

/// Sends a case in pieces and checks every frame that comes back until the end.
async fn check_case(stream: &mut TcpStream, case: &Case, piece: usize, as_client: bool) {
    let _ = stream.set_nodelay(true);
    let bytes = bytes_of(case, as_client);
    let (mut read, mut write) = stream.split();
    let sending = async {
        for part in bytes.chunks(piece) {
            // The peer may have closed already because of the bytes so far.
            if write.write_all(part).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    let mut came = Vec::new();
    let receiving = async {
        let mut input = vec![0; 32 * 1024];
        loop {
            match read.read(&mut input).await {
                // Bytes sent after the peer's Close may reset the connection.
                Ok(0) | Err(_) => break,
                Ok(n) => came.extend_from_slice(&input[..n]),
            }
            // A Close must be the last frame; the client waits for the server's end.
            if frames(&came, as_client).is_some_and(|f| f.iter().any(|(b, _)| *b == 0x88)) {
                break;
            }
        }
    };
    timeout(LIMIT, async { tokio::join!(sending, receiving) })
        .await
        .unwrap_or_else(|_| panic!("{}: no end in pieces of {piece}", case.what));
    let seen = frames(&came, as_client).unwrap_or_else(|| panic!("{}: half a frame", case.what));
    let (close, echoed) = seen
        .split_last()
        .unwrap_or_else(|| panic!("{}: nothing came back", case.what));
    let what = format!("{}, in pieces of {piece}", case.what);
    assert_eq!(close.0, 0x88, "{what}: the end is a Close, not {seen:?}");
    let code = match close.1[..] {
        [] => 0,
        [high, low, ..] => u16::from_be_bytes([high, low]),
        [_] => panic!("{what}: half a code"),
    };
    assert_eq!(code, case.close, "{what}");
    assert!(
        echoed.len() == case.echoed.len(),
        "{what}: {} frames",
        echoed.len()
    );
    for (seen, expected) in echoed.iter().zip(&case.echoed) {
        assert!(
            seen == expected,
            "{what}: {:#x} of {} bytes",
            seen.0,
            seen.1.len()
        );
    }
}

/// Decodes and unmasks frames; returns `None` if the last is incomplete. Checks that they are
/// masked as the peer must mask them.
fn frames(bytes: &[u8], from_server: bool) -> Option<Vec<(u8, Vec<u8>)>> {
    let (mut at, mut frames) = (0, Vec::new());
    while at < bytes.len() {
        let head = WebSocketFrameHeader::parse(&bytes[at..]).expect("a frame in order")?;
        assert_eq!(head.mask.is_none(), from_server, "only clients mask");
        let begin = at + head.size;
        let end = begin + head.length as usize;
        let mut payload = bytes.get(begin..end)?.to_vec();
        if let Some(mask) = head.mask {
            plimsoll_wire::websocket::apply_mask(&mut payload, mask);
        }
        frames.push((bytes[at], payload));
        at = end;
    }
    Some(frames)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_passes_conformance_cases() {
    let gateway = echo();
    let cases = cases();
    assert!(cases.len() > 100);
    for case in &cases {
        for piece in cuts(bytes_of(case, true).len()) {
            let mut stream = TcpStream::connect(gateway.address).await.unwrap();
            let request = upgrade("/any/path", "");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0);
            }
            let opened =
                UpgradeResponse::parse(&head, "dGhlIHNhbXBsZSBub25jZQ==", UpgradeOffer::default());
            let opened = opened.unwrap().unwrap();
            assert_eq!((opened.size, opened.problem), (head.len(), None));
            check_case(&mut stream, case, piece, true).await;
        }
    }
}

pub(crate) fn echo() -> GatewayProcess {
    echo_gateway_up_to(MAX_MESSAGE)
}

pub(crate) fn echo_gateway_up_to(max_message: usize) -> GatewayProcess {
    let options = GatewayOptions {
        echo: true,
        max_message,
        compression: true,
        ..GatewayOptions::default()
    };
    GatewayProcess::start(&Bus::embedded(Duration::from_secs(60)), options)
}

/// Opens a socket at `path` and echoes messages with the codec of the load generator's client,
/// compressed if the server agrees; returns the last message.
pub(crate) async fn echo_as_client(to: SocketAddr, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let key = client_key(b"a nonce, 16 long");
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {to}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Extensions: {}\r\n\r\n",
        DeflateParameters::CLIENT_OFFER
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut input = Vec::new();
    let (head, deflate) = loop {
        if let Some(opened) =
            UpgradeResponse::parse(&input, &key, UpgradeOffer::COMPRESSION_ONLY).unwrap()
        {
            assert_eq!(opened.problem, None);
            break (opened.size, opened.deflate);
        }
        assert_ne!(stream.read_buf(&mut input).await.unwrap(), 0, "{path}");
    };
    input.drain(..head);
    let most = MAX_MESSAGE.max(16 << 20);
    let reader = WebSocketReader::new(
        ReaderRole::Client,
        if path == "/case" { MAX_MESSAGE } else { most },
    );
    let mut reader = reader.with_deflate(deflate.is_some());
    let put = |out: &mut Vec<u8>, opcode, payload: &[u8]| match deflate {
        None => append_masked_frame(out, opcode, MASK, payload),
        Some(deflate) => deflate.append_masked_message(out, opcode, MASK, payload),
    };
    let (mut out, mut last, mut ended) = (Vec::new(), Vec::new(), false);
    loop {
        let read = reader.read(&input, |message| {
            match message {
                WebSocketMessage::Text(text) => {
                    last = text.as_bytes().to_vec();
                    put(&mut out, Opcode::Text, text.as_bytes());
                }
                WebSocketMessage::Binary(bytes) => {
                    last = bytes.to_vec();
                    put(&mut out, Opcode::Binary, bytes);
                }
                WebSocketMessage::Ping(payload) => {
                    append_masked_frame(&mut out, Opcode::Pong, MASK, payload)
                }
                WebSocketMessage::Pong(_) => {}
                WebSocketMessage::Close { code, .. } => {
                    append_masked_frame(
                        &mut out,
                        Opcode::Close,
                        MASK,
                        &encode_close_payload(code, ""),
                    );
                    ended = true;
                }
            }
            ControlFlow::Continue(())
        });
        if let Err(violation) = read {
            let payload = encode_close_payload(violation.code, violation.reason);
            append_masked_frame(&mut out, Opcode::Close, MASK, &payload);
            ended = true;
        }
        // A server whose case is complete may be gone.
        let wrote = stream.write_all(&out).await;
        out.clear();
        input.clear();
        if ended || wrote.is_err() {
            // The server closes first (RFC 6455 §7.1.1).
            let mut rest = [0; 4096];
            let goodbye = async { while matches!(stream.read(&mut rest).await, Ok(n) if n > 0) {} };
            let _ = timeout(LIMIT, goodbye).await;
            return last;
        }
        match timeout(LIMIT, stream.read_buf(&mut input)).await {
            Ok(Ok(n)) if n > 0 => {}
            _ => return last,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_passes_conformance_cases() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for case in &cases() {
        for piece in cuts(bytes_of(case, false).len()) {
            let serving = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0);
                }
                let text = String::from_utf8(head).unwrap();
                let key = text
                    .lines()
                    .find_map(|l| l.strip_prefix("Sec-WebSocket-Key: "))
                    .unwrap();
                let answer = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                     Sec-WebSocket-Accept: {}\r\n\r\n",
                    derive_accept_key(key.as_bytes())
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
                check_case(&mut stream, case, piece, false).await;
            };
            tokio::join!(serving, echo_as_client(address, "/case"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_upgrade_is_refused() {
    let gateway = echo();
    let good = upgrade("/x", "");
    for (from, to, status) in [
        ("GET", "POST", 405),
        ("HTTP/1.1", "HTTP/1.0", 426),
        ("Upgrade: websocket\r\n", "", 426),
        ("Connection: keep-alive, Upgrade\r\n", "", 426),
        ("Version: 13", "Version: 8", 426),
        ("dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ=", 400),
        ("Sec-WebSocket-Key", "X-Key", 400),
        ("Host: test", "Host test", 400),
        ("Host: test\r\n", "", 400),
        ("Host: test", "Host: test\r\nHost: other", 400),
        (
            "Host: test",
            "Host: test\r\nTransfer-Encoding: chunked",
            400,
        ),
        ("Host: test", "Host: test\r\nContent-Length: 5", 400),
    ] {
        assert!(good.contains(from), "{from}");
        let (seen, head, _) = http(gateway.address, &good.replace(from, to)).await;
        assert_eq!(seen, status, "{from} -> {to}: {head}");
    }
}
