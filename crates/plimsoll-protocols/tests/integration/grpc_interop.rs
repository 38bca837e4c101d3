//! Runs the client driver against the interoperability servers of grpc-go and grpc-java: all cases of gRPC's interop
//! test descriptions that need neither an account, a load balancer nor a cache.
//!
//! | case | test |
//! |---|---|
//! | `empty_unary`, `large_unary` | [`empty_and_large_unary`] |
//! | `client_streaming`, `server_streaming` | [`client_and_server_streaming`] |
//! | `ping_pong`, `empty_stream` | [`ping_pong_and_empty_stream`] |
//! | `client_compressed_unary`, `client_compressed_streaming` | [`compressed_unary_and_streaming_requests`] |
//! | `server_compressed_unary`, `server_compressed_streaming` | [`compressed_unary_and_streaming_responses`] |
//! | `custom_metadata` | [`custom_metadata`] |
//! | `status_code_and_message`, `special_status_message` | [`status_code_and_message`] |
//! | `unimplemented_method`, `unimplemented_service` | [`unimplemented_method_and_service`] |
//! | `cancel_after_begin`, `cancel_after_first_response` | [`cancellation`] |
//! | `timeout_on_sleeping_server` | [`timeout_on_sleeping_server`] |
//! | `rpc_soak`, `channel_soak` | [`rpc_and_channel_soak`] |
//!
//! grpc-go's server has no decompression, so it must refuse compressed requests as UNIMPLEMENTED. The probe of the
//! compressed cases, an uncompressed message that is declared as compressed, is left out, because the driver cannot
//! send one. The other cases need an account or a load balancer (`*_auth_*`, `compute_engine_creds`,
//! `google_default_credentials`, `orca_*`), or a caching proxy (`cacheable_unary`).
//!
//! `make setup` installs the servers. Their bytes are parsed twice: by the driver, and by [`FrameReader`], which keeps
//! the bodies and metadata that the driver only counts.
//!
//! This file is long because each of gRPC's interop cases has a function of its own.
#![cfg(feature = "schema")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::ports;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_engine::driver::{CallId, CompletedCall, Driver, Event, Protocol};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::grpc::{
    GrpcCall, GrpcProtocol, GrpcRequest, MessageCompression, MethodKind, StreamPace, StreamPlan,
    schema::Schema,
};
use plimsoll_wire::hpack::Decoder;
use plimsoll_wire::http2::{self, HeaderBlock, Http2Frame, kind};
use ports::free_port;
use serde_json::{Value, json};

/// A timeout far beyond what anything takes: it includes the start of a Java virtual machine.
const MAX_WAIT: Duration = Duration::from_secs(300);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The language of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerLanguage {
    Go,
    Java,
}

impl ServerLanguage {
    fn command(self, port: u16) -> Command {
        let peer = |path: &str| {
            let peer = root().join(".peers").join(path);
            assert!(peer.exists(), "no .peers/{path}: run `make setup-tests`");
            peer
        };
        match self {
            ServerLanguage::Go => {
                let mut command = Command::new(peer("bin/interop-server"));
                command.arg(format!("--port={port}"));
                command
            }
            ServerLanguage::Java => {
                let mut command = Command::new("java");
                // Only the fast compiler is used, since the process is short.
                command.arg("-XX:TieredStopAtLevel=1").arg("-cp");
                command.arg(peer("grpc-java/lib").join("*"));
                command.arg("io.grpc.testing.integration.TestServiceServer");
                command.arg(format!("--port={port}")).arg("--use_tls=false");
                command
            }
        }
    }
}

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(language: ServerLanguage) -> Server {
        let port = free_port();
        let child = language
            .command(port)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server { child, port };
        let end = Instant::now() + MAX_WAIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the interop server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A call to make.
struct Case {
    method: &'static str,
    /// One message, or those of a stream.
    messages: Vec<Value>,
    pace: StreamPace,
    cancel_after: Option<u32>,
    deadline: Option<Duration>,
    metadata: Vec<(String, String)>,
    compression: Option<MessageCompression>,
}

fn case(method: &'static str, messages: Vec<Value>) -> Case {
    Case {
        method,
        messages,
        pace: StreamPace::None,
        cancel_after: None,
        deadline: None,
        metadata: Vec::new(),
        compression: None,
    }
}

/// The result of a call.
#[derive(Default)]
struct CallResult {
    done: Option<CompletedCall>,
    details: Vec<String>,
    messages_counted: usize,
    messages_sent: u32,
    /// Header blocks in order: headers, trailers.
    heads: Vec<Vec<(String, String)>>,
    body: Vec<u8>,
    reset_sent: bool,
}

impl CallResult {
    fn outcome(&self) -> Outcome {
        self.done.unwrap().outcome
    }

    /// Returns the messages in the DATA.
    fn messages(&self) -> Vec<&[u8]> {
        let mut rest = &self.body[..];
        let mut messages = Vec::new();
        while let [0, a, b, c, d, tail @ ..] = rest {
            let (message, more) = tail.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
            messages.push(message);
            rest = more;
        }
        assert!(rest.is_empty());
        messages
    }

    fn header(&self, block: usize, name: &str) -> Option<&str> {
        let found = self.heads.get(block)?.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// An independent reader of the server's frames.
struct FrameReader {
    pending: Vec<u8>,
    decoder: Decoder,
    block: Option<HeaderBlock>,
}

impl FrameReader {
    fn read(&mut self, bytes: &[u8], answer: &mut CallResult) {
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let mut input = &pending[..];
        while let Some((head, payload)) = http2::split_frame(&mut input, 1 << 14).unwrap() {
            match Http2Frame::parse(head, payload).unwrap() {
                Http2Frame::Data { data, .. } => answer.body.extend_from_slice(data),
                Http2Frame::Headers {
                    fragment,
                    end_headers,
                    ..
                } => {
                    let block = HeaderBlock::new(head.stream_payload(fragment));
                    self.block = Some(block);
                    self.finish(end_headers, answer);
                }
                Http2Frame::Continuation {
                    fragment,
                    end_headers,
                } => {
                    self.block
                        .as_mut()
                        .unwrap()
                        .push(fragment, 64 << 10)
                        .unwrap();
                    self.finish(end_headers, answer);
                }
                _ => {}
            }
        }
        self.pending = input.to_vec();
    }

    fn finish(&mut self, end: bool, answer: &mut CallResult) {
        if !end {
            return;
        }
        let block = self.block.take().unwrap();
        let mut fields = Vec::new();
        self.decoder
            .decode(block.payload().bytes, |field| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                fields.push((text(field.name), text(field.value)));
            })
            .unwrap();
        answer.heads.push(fields);
    }
}

struct InteropSession {
    language: ServerLanguage,
    server: Server,
    schema: Schema,
}

impl InteropSession {
    fn call(&self, case: Case) -> CallResult {
        self.calls(case, 1)
    }

    /// Makes `count` calls on one connection, one after another; returns the last response.
    fn calls(&self, case: Case, count: u32) -> CallResult {
        let method = self.schema.method(case.method).unwrap();
        let messages: Vec<Vec<u8>> = case
            .messages
            .iter()
            .map(|m| self.schema.encode(&method, &m.to_string()).unwrap())
            .collect();
        let stream = (method.kind() != MethodKind::Unary).then(|| StreamPlan {
            kind: method.kind(),
            count: messages.len() as u32,
            messages: messages.clone(),
            pace: case.pace,
            expect: None,
            cancel_after: case.cancel_after,
            duration: None,
        });
        let call = GrpcCall {
            method: method.path(),
            message: messages.into_iter().next().unwrap_or_default(),
            metadata: case.metadata,
            compression: case.compression,
            answer_shapes: Some(Arc::new(self.schema.answer_shapes(&method))),
            max_message: 1 << 22,
            stream,
            ..GrpcCall::default()
        };
        let protocol = GrpcProtocol::new(&GrpcRequest {
            call: &call,
            authority: "localhost",
            secure: false,
            deadline: case.deadline,
        })
        .unwrap();
        self.run_calls(&protocol, case.deadline, count)
    }

    /// Makes calls on a new connection, as the engine would.
    fn run_calls(
        &self,
        protocol: &GrpcProtocol,
        deadline: Option<Duration>,
        count: u32,
    ) -> CallResult {
        let began = Instant::now();
        let now = || Time(began.elapsed().as_nanos() as u64);
        let mut socket = TcpStream::connect(("127.0.0.1", self.server.port)).unwrap();
        socket.set_nodelay(true).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let mut driver = protocol.new_driver();
        let mut answer = CallResult::default();
        let mut witness = FrameReader {
            pending: Vec::new(),
            decoder: Decoder::new(4096, 1 << 20),
            block: None,
        };
        let (mut out, mut events) = (Vec::new(), Vec::new());
        driver.open(now(), &mut out);
        let mut started: Option<Time> = None;
        let mut buffer = vec![0; 1 << 16];
        let mut number = 0;
        loop {
            if let Some(done) = answer.done {
                number += 1;
                if number == count || !done.outcome.is_ok() {
                    break;
                }
                (answer, started) = (CallResult::default(), None);
            }
            assert!(
                began.elapsed() < MAX_WAIT,
                "no end of {}",
                answer.heads.len()
            );
            if started.is_none() && driver.capacity() > 0 {
                started = Some(now());
                driver.start(CallId(number), number.into(), now(), &mut out);
            }
            if driver.next_timer().is_some_and(|when| when <= now()) {
                driver.on_timer(now(), &mut out, &mut events);
            }
            if let (Some(started), Some(deadline)) = (started, deadline)
                && now() > started + deadline
            {
                // The engine does the same when a call's deadline passes.
                driver.cancel(CallId(number), now(), &mut out);
                answer.done = Some(CompletedCall {
                    call: CallId(number),
                    outcome: Outcome::DeadlineExceeded,
                    first_byte: Time::NEVER,
                    bytes_sent: 0,
                    bytes_received: 0,
                });
            }
            answer.reset_sent |= has_reset(&out);
            socket.write_all(&out).unwrap();
            out.clear();
            match socket.read(&mut buffer) {
                Ok(0) => panic!("the server closed the connection"),
                Ok(n) => {
                    witness.read(&buffer[..n], &mut answer);
                    driver
                        .receive(&buffer[..n], now(), &mut out, &mut events)
                        .unwrap();
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) => panic!("{e}"),
            }
            for event in events.drain(..) {
                match event {
                    Event::Done(mut done) => {
                        // The engine maps this outcome in the same way, since the server enforces the
                        // deadline, too.
                        if done.outcome == Outcome::Cancelled
                            && let (Some(started), Some(deadline)) = (started, deadline)
                            && now() >= started + deadline
                        {
                            done.outcome = Outcome::DeadlineExceeded;
                        }
                        answer.done = Some(done);
                    }
                    Event::Message(_) => answer.messages_counted += 1,
                    Event::MessagesSent { messages, .. } => answer.messages_sent = messages,
                    Event::Detail { text, .. } => answer.details.push(text),
                    other => panic!("{other:?}"),
                }
            }
            answer.reset_sent |= has_reset(&out);
        }
        driver.finish(&mut out);
        socket.write_all(&out).unwrap();
        answer
    }
}

fn has_reset(out: &[u8]) -> bool {
    let mut input = out.strip_prefix(http2::PREFACE).unwrap_or(out);
    while let Some((head, _)) = http2::split_frame(&mut input, 1 << 14).unwrap() {
        if head.kind() == kind::RST_STREAM {
            return true;
        }
    }
    false
}

/// Runs a test with the server of each language.
fn for_each_server(test: impl Fn(&InteropSession)) {
    let proto = root().join("tests/peers/interop.proto");
    for language in [ServerLanguage::Go, ServerLanguage::Java] {
        test(&InteropSession {
            language,
            server: Server::start(language),
            schema: Schema::from_protos(std::slice::from_ref(&proto), &[]).unwrap(),
        });
    }
}

/// Returns `n` zero bytes in base64.
fn zeros(n: usize) -> String {
    let mut text = "AAAA".repeat(n / 3);
    text.push_str(["", "AA==", "AAA="][n % 3]);
    text
}

fn payload(n: usize) -> Value {
    json!({ "body": zeros(n) })
}

/// Returns true if a message has a payload of `n` zero bytes.
fn is_payload(message: &[u8], n: usize) -> bool {
    message.len() >= n && message[message.len() - n..].iter().all(|b| *b == 0) && {
        let head = message.len() - n;
        // Two tags and two lengths, of one to three bytes each.
        (4..=8).contains(&head)
    }
}

const UNARY: &str = "grpc.testing.TestService/UnaryCall";
const DUPLEX: &str = "grpc.testing.TestService/FullDuplexCall";
const REQUESTS: [usize; 4] = [27_182, 8, 1_828, 45_904];
const RESPONSES: [usize; 4] = [31_415, 9, 2_653, 58_979];

#[test]
fn empty_and_large_unary() {
    for_each_server(empty_and_large_unary_of);
}

fn empty_and_large_unary_of(interop: &InteropSession) {
    let answer = interop.call(case("grpc.testing.TestService/EmptyCall", vec![json!({})]));
    assert_eq!(answer.outcome(), Outcome::Ok);
    assert_eq!(answer.messages(), [b""]);

    let request = json!({ "responseSize": 314_159, "payload": payload(271_828) });
    let answer = interop.call(case(UNARY, vec![request]));
    assert_eq!(answer.outcome(), Outcome::Ok);
    assert!(is_payload(answer.messages()[0], 314_159));
}

#[test]
fn client_and_server_streaming() {
    for_each_server(client_and_server_streaming_of);
}

fn client_and_server_streaming_of(interop: &InteropSession) {
    let messages = REQUESTS.map(|n| json!({ "payload": payload(n) })).to_vec();
    let answer = interop.call(case(
        "grpc.testing.TestService/StreamingInputCall",
        messages,
    ));
    assert_eq!((answer.outcome(), answer.messages_sent), (Outcome::Ok, 4));
    // Field 1 as a varint: 74,922.
    assert_eq!(answer.messages(), [[8, 0xaa, 0xc9, 0x04]]);

    let sizes: Vec<Value> = RESPONSES.iter().map(|n| json!({ "size": n })).collect();
    let request = json!({ "responseParameters": sizes });
    let answer = interop.call(case(
        "grpc.testing.TestService/StreamingOutputCall",
        vec![request],
    ));
    assert_eq!(
        (answer.outcome(), answer.messages_counted),
        (Outcome::Ok, 4)
    );
    for (message, size) in answer.messages().into_iter().zip(RESPONSES) {
        assert!(is_payload(message, size), "{size}: {}", message.len());
    }
}

#[test]
fn ping_pong_and_empty_stream() {
    for_each_server(ping_pong_and_empty_stream_of);
}

fn ping_pong_and_empty_stream_of(interop: &InteropSession) {
    let messages = REQUESTS.iter().zip(RESPONSES).map(|(request, response)| {
        json!({ "responseParameters": [{ "size": response }], "payload": payload(*request) })
    });
    let mut ping_pong = case(DUPLEX, messages.collect());
    ping_pong.pace = StreamPace::Answers;
    let answer = interop.call(ping_pong);
    assert_eq!(answer.outcome(), Outcome::Ok);
    assert_eq!((answer.messages_sent, answer.messages_counted), (4, 4));
    for (message, size) in answer.messages().into_iter().zip(RESPONSES) {
        assert!(is_payload(message, size), "{size}: {}", message.len());
    }

    let answer = interop.call(case(DUPLEX, Vec::new()));
    assert_eq!(
        (answer.outcome(), answer.messages_counted),
        (Outcome::Ok, 0)
    );
}

#[test]
fn custom_metadata() {
    for_each_server(custom_metadata_of);
}

fn custom_metadata_of(interop: &InteropSession) {
    for (method, request) in [
        (
            UNARY,
            json!({ "responseSize": 314_159, "payload": payload(271_828) }),
        ),
        (
            DUPLEX,
            json!({ "responseParameters": [{ "size": 314_159 }], "payload": payload(271_828) }),
        ),
    ] {
        let mut case = case(method, vec![request]);
        case.metadata = vec![
            (
                "x-grpc-test-echo-initial".to_owned(),
                "test_initial_metadata_value".to_owned(),
            ),
            // The bytes ab ab ab.
            (
                "x-grpc-test-echo-trailing-bin".to_owned(),
                "q6ur".to_owned(),
            ),
        ];
        let answer = interop.call(case);
        assert_eq!(answer.outcome(), Outcome::Ok, "{method}");
        assert_eq!(
            answer.header(0, "x-grpc-test-echo-initial"),
            Some("test_initial_metadata_value")
        );
        assert_eq!(
            answer.header(1, "x-grpc-test-echo-trailing-bin"),
            Some("q6ur")
        );
    }
}

#[test]
fn status_code_and_message() {
    for_each_server(status_code_and_message_of);
}

fn status_code_and_message_of(interop: &InteropSession) {
    let status = json!({ "code": 2, "message": "test status message" });
    for method in [UNARY, DUPLEX] {
        let answer = interop.call(case(method, vec![json!({ "responseStatus": status })]));
        assert_eq!(answer.outcome(), Outcome::Unknown, "{method}");
        assert_eq!(answer.details, ["test status message"]);
    }

    let message = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";
    let status = json!({ "code": 2, "message": message });
    let answer = interop.call(case(UNARY, vec![json!({ "responseStatus": status })]));
    assert_eq!(answer.outcome(), Outcome::Unknown);
    assert_eq!(answer.details, [message]);
}

#[test]
fn unimplemented_method_and_service() {
    for_each_server(unimplemented_method_and_service_of);
}

fn unimplemented_method_and_service_of(interop: &InteropSession) {
    for method in [
        "grpc.testing.TestService/UnimplementedCall",
        "grpc.testing.UnimplementedService/UnimplementedCall",
    ] {
        let answer = interop.call(case(method, vec![json!({})]));
        assert_eq!(answer.outcome(), Outcome::Unimplemented, "{method}");
    }
}

#[test]
fn cancellation() {
    for_each_server(cancellation_of);
}

fn cancellation_of(interop: &InteropSession) {
    // cancel_after_begin
    let messages = REQUESTS.map(|n| json!({ "payload": payload(n) })).to_vec();
    let mut begin = case("grpc.testing.TestService/StreamingInputCall", messages);
    begin.cancel_after = Some(0);
    begin.pace = StreamPace::Every(Duration::from_secs(60));
    let answer = interop.call(begin);
    assert_eq!(answer.outcome(), Outcome::Ok, "cancelled as planned");
    assert!(answer.reset_sent);
    assert_eq!(answer.messages_counted, 0);

    // cancel_after_first_response
    let request = json!({ "responseParameters": [{ "size": 31_415 }], "payload": payload(27_182) });
    let mut first = case(DUPLEX, vec![request.clone(), request]);
    first.cancel_after = Some(1);
    first.pace = StreamPace::Every(Duration::from_secs(60));
    let answer = interop.call(first);
    assert_eq!(answer.outcome(), Outcome::Ok, "cancelled as planned");
    assert!(answer.reset_sent);
    assert_eq!((answer.messages_counted, answer.messages_sent), (1, 1));
}

#[test]
fn timeout_on_sleeping_server() {
    for_each_server(timeout_on_sleeping_server_of);
}

fn timeout_on_sleeping_server_of(interop: &InteropSession) {
    let request = json!({
        "responseParameters": [{ "size": 31_415, "intervalUs": 10_000_000 }],
        "payload": payload(27_182),
    });
    let mut sleeping = case(DUPLEX, vec![request]);
    sleeping.deadline = Some(Duration::from_millis(1));
    let answer = interop.call(sleeping);
    assert_eq!(answer.outcome(), Outcome::DeadlineExceeded);
}

#[test]
fn compressed_unary_and_streaming_requests() {
    for_each_server(compressed_unary_and_streaming_requests_of);
}

fn compressed_unary_and_streaming_requests_of(interop: &InteropSession) {
    let request = json!({ "responseSize": 314_159, "payload": payload(271_828) });
    let mut unary = case(UNARY, vec![request]);
    unary.compression = Some(MessageCompression::Gzip);
    let answer = interop.call(unary);
    if interop.language == ServerLanguage::Go {
        // The status of a server without decompression (gRPC, "Compression").
        return assert_eq!(answer.outcome(), Outcome::Unimplemented);
    }
    assert_eq!(answer.outcome(), Outcome::Ok, "{:?}", answer.details);

    let messages = REQUESTS.map(|n| json!({ "payload": payload(n) })).to_vec();
    let mut stream = case("grpc.testing.TestService/StreamingInputCall", messages);
    stream.compression = Some(MessageCompression::Gzip);
    let answer = interop.call(stream);
    assert_eq!((answer.outcome(), answer.messages_sent), (Outcome::Ok, 4));
}

#[test]
fn compressed_unary_and_streaming_responses() {
    for_each_server(compressed_unary_and_streaming_responses_of);
}

fn compressed_unary_and_streaming_responses_of(interop: &InteropSession) {
    if interop.language == ServerLanguage::Go {
        return;
    }
    for packed in [true, false] {
        let request = json!({
            "responseSize": 314_159,
            "responseCompressed": { "value": packed },
            "payload": payload(271_828),
        });
        let mut unary = case(UNARY, vec![request]);
        unary.compression = Some(MessageCompression::Gzip);
        let answer = interop.call(unary);
        assert_eq!(answer.outcome(), Outcome::Ok, "{:?}", answer.details);
        assert_eq!(
            (answer.body[0] == 1, answer.body.len() < 10_000),
            (packed, packed)
        );
    }

    let sizes = json!([
        { "size": 31_415, "compressed": { "value": true } },
        { "size": 92_653, "compressed": { "value": false } },
    ]);
    let request = json!({ "responseParameters": sizes });
    let mut stream = case(
        "grpc.testing.TestService/StreamingOutputCall",
        vec![request],
    );
    stream.compression = Some(MessageCompression::Gzip);
    let answer = interop.call(stream);
    assert_eq!(answer.outcome(), Outcome::Ok, "{:?}", answer.details);
    // grpc-java's server never compresses the messages of a stream.
    assert_eq!(answer.messages_counted, 2);
}

#[test]
fn rpc_and_channel_soak() {
    for_each_server(rpc_and_channel_soak_of);
}

fn rpc_and_channel_soak_of(interop: &InteropSession) {
    let request = || json!({ "responseSize": 314_159, "payload": payload(271_828) });
    // rpc_soak uses one connection, channel_soak a new one for each call.
    let answer = interop.calls(case(UNARY, vec![request()]), 100);
    assert_eq!(answer.outcome(), Outcome::Ok, "{:?}", answer.details);
    assert!(is_payload(answer.messages()[0], 314_159));
    for _ in 0..10 {
        let answer = interop.call(case(UNARY, vec![request()]));
        assert_eq!(answer.outcome(), Outcome::Ok, "{:?}", answer.details);
        assert!(is_payload(answer.messages()[0], 314_159));
    }
}
