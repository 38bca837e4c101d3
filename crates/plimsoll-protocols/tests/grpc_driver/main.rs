//! Tests of the gRPC client driver with scripted bytes: what RFC 9113 forbids, what servers may do, all
//! splits, and random servers.
//!
//! A binary of its own, because [`memory`] installs an allocator that counts.

#![expect(clippy::unwrap_used, reason = "tests")]

mod canned;
mod conformance;
mod held_back;
mod max_head;
mod memory;
mod packed;
mod sessions;
mod varying;
mod weather;
mod whole;

use plimsoll_engine::driver::{CallId, Driver, Event, Protocol, ProtocolError};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::grpc::{GrpcCall, GrpcDriver, GrpcProtocol, GrpcRequest};
use plimsoll_wire::hpack::Encoder;
use plimsoll_wire::http2::{self, ErrorCode, FrameHeader, Http2Frame, write};

/// Returns a protocol whose request message has `size` bytes.
fn protocol(size: usize) -> GrpcProtocol {
    prepare(&GrpcCall {
        method: "score.ScoreService/GetScore".to_owned(),
        message: (0..size).map(|i| i as u8).collect(),
        metadata: vec![("x-team".to_owned(), "red".to_owned())],
        max_message: 1000,
        ..GrpcCall::default()
    })
}

fn prepare(call: &GrpcCall) -> GrpcProtocol {
    let authority = "localhost:50051";
    GrpcProtocol::new(&GrpcRequest {
        call,
        authority,
        secure: false,
        deadline: None,
    })
    .unwrap()
}

/// A sent frame with its payload.
type SentFrame = (FrameHeader, Vec<u8>);

/// The client side of a connection, and what it has sent and reported.
struct Client {
    driver: GrpcDriver,
    out: Vec<u8>,
    events: Vec<Event>,
    calls: u32,
}

impl Client {
    fn new(request_size: usize) -> Client {
        Client::of(&protocol(request_size))
    }

    fn of(protocol: &GrpcProtocol) -> Client {
        let mut driver = protocol.new_driver();
        let mut out = Vec::new();
        driver.open(Time(0), &mut out);
        Client {
            driver,
            out,
            events: Vec::new(),
            calls: 0,
        }
    }

    /// Creates a client that has received the server's SETTINGS and has `calls` calls in flight.
    fn with_calls(request_size: usize, settings: &[(u16, u32)], calls: u32) -> Client {
        let mut client = Client::new(request_size);
        client.greet(settings);
        for _ in 0..calls {
            client.start();
        }
        client
    }

    /// Receives the server's SETTINGS.
    fn greet(&mut self, settings: &[(u16, u32)]) {
        let mut greeting = Vec::new();
        write::settings(&mut greeting, settings);
        self.receive(&greeting).unwrap();
    }

    fn start(&mut self) -> u32 {
        let call = self.calls;
        self.calls += 1;
        self.driver
            .start(CallId(call), u64::from(call), Time(1), &mut self.out);
        call
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        self.driver
            .receive(bytes, Time(2), &mut self.out, &mut self.events)
    }

    /// Returns the frames sent since the last call, without the preface.
    fn sent(&mut self) -> Vec<SentFrame> {
        let out = std::mem::take(&mut self.out);
        let mut input = out.strip_prefix(http2::PREFACE).unwrap_or(&out);
        let mut frames = Vec::new();
        while let Some((head, payload)) = http2::split_frame(&mut input, 16_384).unwrap() {
            Http2Frame::parse(head, payload).unwrap();
            frames.push((head, payload.to_vec()));
        }
        assert_eq!(input, b"", "only whole frames are sent");
        frames
    }

    /// Returns the ended calls with their outcomes.
    fn ended(&self) -> Vec<(u32, Outcome)> {
        let done = |event: &Event| match event {
            Event::Done(done) | Event::Unprocessed(done) => Some((done.call.0, done.outcome)),
            _ => None,
        };
        self.events.iter().filter_map(done).collect()
    }

    fn details(&self) -> Vec<String> {
        let detail = |event: &Event| match event {
            Event::Detail { text, .. } => Some(text.clone()),
            _ => None,
        };
        self.events.iter().filter_map(detail).collect()
    }

    fn late_answers(&self) -> usize {
        self.events
            .iter()
            .filter(|event| **event == Event::Late)
            .count()
    }
}

/// Encodes a frame, valid or not.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write::frame_header(&mut out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

/// Encodes HEADERS whose block changes no dynamic table.
fn headers(stream: u32, fields: &[(&str, &str)], end_stream: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let block = Encoder::encode_plain(fields.iter().copied());
    write::header_block(&mut out, stream, &block, write::EndStream(end_stream));
    out
}

fn data(stream: u32, bytes: &[u8], end_stream: bool) -> Vec<u8> {
    let mut out = Vec::new();
    write::data(&mut out, stream, bytes, write::EndStream(end_stream));
    out
}

fn head(stream: u32) -> Vec<u8> {
    headers(
        stream,
        &[(":status", "200"), ("content-type", "application/grpc")],
        false,
    )
}

fn trailers(stream: u32, status: &str) -> Vec<u8> {
    headers(stream, &[("grpc-status", status)], true)
}

/// A message of three bytes with its prefix.
const MESSAGE: &[u8] = &[0, 0, 0, 0, 3, 1, 2, 3];

fn good_answer(stream: u32) -> Vec<u8> {
    [
        head(stream),
        data(stream, MESSAGE, false),
        trailers(stream, "0"),
    ]
    .concat()
}

/// Returns the code of the GOAWAY among `frames`.
fn goaway_code(frames: &[SentFrame]) -> Option<ErrorCode> {
    frames
        .iter()
        .find_map(|(head, payload)| match Http2Frame::parse(*head, payload) {
            Ok(Http2Frame::GoAway { code, .. }) => Some(code),
            _ => None,
        })
}

/// Returns stream and code of each RST_STREAM among `frames`.
fn resets(frames: &[SentFrame]) -> Vec<(u32, ErrorCode)> {
    let reset = |(head, payload): &SentFrame| match Http2Frame::parse(*head, payload) {
        Ok(Http2Frame::ResetStream { code }) => Some((head.stream(), code)),
        _ => None,
    };
    frames.iter().filter_map(reset).collect()
}
