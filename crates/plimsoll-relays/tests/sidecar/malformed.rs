//! Clients that violate RFC 9113 or reset what they send, beside one that behaves well and gets
//! every answer: with our own upstream and with grpc-go.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use plimsoll_protocols::grpc::target::echo::EchoOptions;
use plimsoll_serving::reference::default_flags;
use plimsoll_wire::http2::{ErrorCode, write};

use super::http2_peer::{Http2Event, Http2Peer};
use super::shapes::{MESSAGE, block, list, request, shapes};
use super::{route, sidecar, start_server};

pub(crate) fn client(address: SocketAddr) -> Http2Peer {
    Http2Peer::new(TcpStream::connect(address).unwrap(), true, &[])
}

/// A well-behaved client.
pub(crate) struct ValidClient {
    peer: Http2Peer,
    path: &'static str,
    stream: u32,
    calls: u32,
}

impl ValidClient {
    pub(crate) fn new(address: SocketAddr, path: &'static str) -> ValidClient {
        ValidClient::by(client(address), path)
    }

    pub(crate) fn by(peer: Http2Peer, path: &'static str) -> ValidClient {
        let (stream, calls) = (1, 0);
        ValidClient {
            peer,
            path,
            stream,
            calls,
        }
    }

    /// Makes a call, which must succeed.
    pub(crate) fn call(&mut self, beside: &str) {
        self.begin_call("x-good");
        self.end_call(beside);
    }

    /// Sends a call with this field.
    pub(crate) fn begin_call(&mut self, field: &str) {
        let mut list = request(self.path);
        list.push((field.as_bytes().to_vec(), b"1".to_vec()));
        let stream = self.stream;
        self.stream += 2;
        self.peer.send_frames(|out| {
            write::header_block(out, stream, &block(&list), write::EndStream(false));
            write::data(out, stream, MESSAGE, write::EndStream(true));
        });
    }

    /// Waits for the next answer, which must be a success.
    pub(crate) fn end_call(&mut self, beside: &str) {
        loop {
            match self.peer.next() {
                Http2Event::Headers {
                    fields, end: true, ..
                } => {
                    let status = fields.iter().find(|(name, _)| name == "grpc-status");
                    let status = status.map(|(_, status)| &**status);
                    assert_eq!(status, Some("0"), "beside {beside}: {fields:?}");
                    break;
                }
                Http2Event::Headers { .. } | Http2Event::Data { .. } | Http2Event::Ping => {}
                other => panic!("beside {beside}: {other:?}"),
            }
        }
        self.calls += 1;
    }
}

/// An upstream that reports the complete calls that it received, and answers them.
fn recording_upstream() -> (SocketAddr, Receiver<Vec<(String, String)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let tell = tell.clone();
            let mut peer = Http2Peer::new(stream.unwrap(), false, &[]);
            thread::spawn(move || {
                let mut open = Vec::new();
                loop {
                    let (stream, end) = match peer.next() {
                        Http2Event::Headers {
                            stream,
                            fields,
                            end,
                        } => {
                            open.push((stream, fields));
                            (stream, end)
                        }
                        Http2Event::Data { stream, end, .. } => (stream, end),
                        Http2Event::End => return,
                        _ => continue,
                    };
                    if end {
                        let place = open.iter().position(|(known, _)| *known == stream);
                        let (_, fields) = open.remove(place.unwrap());
                        let _ = tell.send(fields);
                        let answer = [(":status", "200"), ("grpc-status", "0")];
                        peer.headers(stream, &answer, true);
                    }
                }
            });
        }
    });
    (address, told)
}

/// The grpc-go server, which `make setup` builds.
pub(crate) struct GoServer {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl GoServer {
    pub(crate) fn start() -> GoServer {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.peers/bin/go-score");
        let mut command = Command::new(&path);
        let child = command.stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|e| panic!("{}: {e} (make setup)", path.display()));
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap();
        let address = address.parse().unwrap();
        GoServer { child, address }
    }
}

impl Drop for GoServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) const ECHO: &str = "/grpc.examples.echo.Echo/UnaryEcho";
pub(crate) const SCORE: &str = "/score.ScoreService/GetScore";

/// Runs `attack` against a sidecar in front of each of the upstreams.
fn for_each_upstream(attack: impl Fn(SocketAddr, &'static str)) {
    let go = GoServer::start();
    for (upstream, path) in [
        (start_server(default_flags::<EchoOptions>), ECHO),
        (go.address, SCORE),
    ] {
        let (relay, outside) = sidecar(&route("grpc", upstream, ""));
        attack(outside, path);
        relay.stop();
    }
}

#[test]
fn malformed_requests_never_reach_upstream() {
    let (upstream, told) = recording_upstream();
    let (relay, outside) = sidecar(&route("grpc", upstream, ""));
    let mut passed = Vec::new();
    let mut good = ValidClient::new(outside, ECHO);
    for (place, shape) in shapes(ECHO).iter().enumerate() {
        let mut bad = client(outside);
        bad.send_frames(|out| shape.write(1, out));
        let refused = loop {
            match bad.next() {
                Http2Event::Headers { .. } | Http2Event::Data { .. } | Http2Event::Ping => {
                    passed.push(place)
                }
                other => break other,
            }
        };
        let is_refused = matches!(refused, Http2Event::Reset { stream: 1, code: 1 })
            || matches!(refused, Http2Event::GoAway { .. });
        assert!(is_refused, "{place}: {refused:?}");
        good.call("a malformed request");
    }
    assert_eq!(passed, [0; 0]);
    relay.stop();
    let seen: Vec<_> = told.try_iter().collect();
    assert_eq!(seen.len(), good.calls as usize);
    let is_good = |fields: &Vec<(String, String)>| fields.iter().any(|(name, _)| name == "x-good");
    assert!(seen.iter().all(is_good));
}

#[test]
fn malformed_requests_leave_other_callers_unaffected() {
    for_each_upstream(|outside, path| {
        let mut good = ValidClient::new(outside, path);
        for (place, shape) in shapes(path).iter().enumerate() {
            // Sent at once, and with the invalid part last, after the rest was passed on.
            let mut bad = client(outside);
            let mut frames = Vec::new();
            (0..8).for_each(|i| shape.write(2 * i + 1, &mut frames));
            bad.try_send(&frames);
            for stream in (17..33).step_by(2) {
                for part in shape.frames(stream) {
                    bad.try_send(&part);
                    good.call(&format!("shape {place}"));
                }
            }
        }
        assert!(good.calls > 1000);
    });
}

/// A way of causing useless work: what is sent first for a call, and what afterwards.
type AbusePattern = (
    &'static str,
    fn(&[u8], u32, &mut Vec<u8>),
    fn(u32, &mut Vec<u8>),
);

fn begin(block: &[u8], stream: u32, out: &mut Vec<u8>) {
    write::header_block(out, stream, block, write::EndStream(false));
}

fn begin_with_data(block: &[u8], stream: u32, out: &mut Vec<u8>) {
    begin(block, stream, out);
    write::data(out, stream, MESSAGE, write::EndStream(false));
}

pub(crate) fn make(block: &[u8], stream: u32, out: &mut Vec<u8>) {
    begin(block, stream, out);
    write::data(out, stream, MESSAGE, write::EndStream(true));
}

fn reset(stream: u32, out: &mut Vec<u8>) {
    write::reset_stream(out, stream, ErrorCode::CANCEL);
}

fn leave(_: u32, _: &mut Vec<u8>) {}

/// Makes the sidecar reset the call itself.
fn overflow(stream: u32, out: &mut Vec<u8>) {
    write::window_update(out, stream, (1 << 31) - 1);
}

fn bad_trailers(stream: u32, out: &mut Vec<u8>) {
    let fields = block(&list(&[(":path", "/")]));
    write::header_block(out, stream, &fields, write::EndStream(true));
}

const ABUSE_PATTERNS: [AbusePattern; 9] = [
    ("header fields, then resets", begin, reset),
    ("data, then resets", begin_with_data, reset),
    ("whole calls, then resets", make, reset),
    (
        "header fields, then the end of the connection",
        begin,
        leave,
    ),
    (
        "data, then the end of the connection",
        begin_with_data,
        leave,
    ),
    ("whole calls, then the end of the connection", make, leave),
    (
        "data, then a window that overflows",
        begin_with_data,
        overflow,
    ),
    (
        "header fields, then a window that overflows",
        begin,
        overflow,
    ),
    (
        "data, then malformed trailers",
        begin_with_data,
        bad_trailers,
    ),
];

#[test]
fn repeated_resets_leave_other_callers_unaffected() {
    for_each_upstream(|outside, path| {
        let fields = block(&request(path));
        let mut good = ValidClient::new(outside, path);
        for (name, first, then) in ABUSE_PATTERNS {
            for together in [true, false] {
                for round in 0..10 {
                    let mut bad = client(outside);
                    let streams = || (1..200).step_by(2);
                    let mut frames = Vec::new();
                    streams().for_each(|stream| first(&fields, stream, &mut frames));
                    if !together {
                        bad.send_frames(|out| out.append(&mut frames));
                        good.call(name);
                    }
                    streams().for_each(|stream| then(stream, &mut frames));
                    bad.try_send(&frames);
                    good.call(name);
                    // A client that connects later, from the same address.
                    if round % 3 == 0 {
                        ValidClient::new(outside, path).call(name);
                    }
                }
            }
        }
    });
}

#[test]
fn expired_deadlines_leave_other_callers_unaffected() {
    for_each_upstream(|outside, path| {
        let mut fields = request(path);
        fields.push((b"grpc-timeout".to_vec(), b"1m".to_vec()));
        let fields = block(&fields);
        let mut good = ValidClient::new(outside, path);
        for _ in 0..10 {
            let mut bad = client(outside);
            bad.send_frames(|out| {
                let streams = (1..200).step_by(2);
                streams.for_each(|stream| begin(&fields, stream, out));
            });
            let mut ended = 0;
            while ended < 100 {
                let came = bad.next();
                match came {
                    Http2Event::Headers { end: true, .. } => {
                        assert_eq!(came.field("grpc-status"), Some("4"), "{came:?}");
                        ended += 1;
                    }
                    // An upstream may enforce the deadline itself; grpc-go then resets calls that
                    // it has not answered, which the sidecar passes on.
                    Http2Event::Reset { code, .. } if code == ErrorCode::CANCEL.0 => ended += 1,
                    // The answer is followed by a reset, because the request was not complete.
                    Http2Event::Reset { code, .. } => assert_eq!(code, ErrorCode::NO_ERROR.0),
                    Http2Event::Headers { .. } | Http2Event::Ping => {}
                    other => panic!("{other:?}"),
                }
            }
            good.call("calls without time");
        }
    });
}
