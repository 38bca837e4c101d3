//! Tests of the Bolt reference server over a real socket, byte by byte.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_protocols::bolt::frame::DEFAULT_MAX_CONTENT_BYTES;
use plimsoll_protocols::bolt::hessian::HessianValue;
use plimsoll_protocols::bolt::sofa::{self, SofaCall};
use plimsoll_protocols::bolt::target::{BoltOptions, FailureShare};
use plimsoll_protocols::bolt::{
    BoltCommand, BoltFrame, BoltFrameKind, FrameLayout, Status, header,
};
use plimsoll_serving::reference::{ReferenceServer, ServeContext, ServerCounts, default_flags};
use plimsoll_serving::{ListenOptions, ResponseDelay, build_runtime};
use tokio::sync::oneshot;

struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<ServerCounts>,
}

impl Server {
    fn start(options: BoltOptions) -> Server {
        let listen = ListenOptions {
            address: ([127, 0, 0, 1], 0).into(),
            ..ListenOptions::default()
        };
        let bound = listen.bind().unwrap();
        let address = bound.address().tcp_address().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let place = ServeContext {
            bound,
            workers: None,
            stopped: Box::pin(async {
                let _ = stopped.await;
            }),
        };
        let thread = std::thread::spawn(move || {
            let serving = async move { options.start(place).unwrap().await.unwrap() };
            build_runtime(Some(2)).unwrap().block_on(serving)
        });
        Server {
            address,
            stop,
            thread,
        }
    }

    fn connect(&self) -> BoltClient {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        BoltClient {
            stream,
            bytes: Vec::new(),
        }
    }

    fn stop(self) -> ServerCounts {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap()
    }
}

/// Returns the server's counter of this name.
fn count(counted: &ServerCounts, name: &str) -> u64 {
    let found = counted.counts.iter().find(|(known, _)| *known == name);
    found
        .unwrap_or_else(|| panic!("no count of {name}: {counted:?}"))
        .1
}

struct BoltClient {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// A response with owned bytes.
#[derive(Debug)]
struct BoltAnswer {
    form: FrameLayout,
    id: u32,
    status: u16,
    command: BoltCommand,
    header: Vec<u8>,
    content: Vec<u8>,
}

impl BoltClient {
    fn send(&mut self, frame: BoltFrame<'_>) {
        let mut wire = Vec::new();
        frame.write(&mut wire);
        self.stream.write_all(&wire).unwrap();
    }

    fn read_answer(&mut self) -> BoltAnswer {
        loop {
            if let Some((frame, length)) =
                BoltFrame::parse(&self.bytes, DEFAULT_MAX_CONTENT_BYTES).unwrap()
            {
                let BoltFrameKind::Response { status } = frame.kind else {
                    panic!("{frame:?}");
                };
                let answer = BoltAnswer {
                    form: frame.layout,
                    id: frame.id,
                    status,
                    command: frame.command,
                    header: frame.header.to_vec(),
                    content: frame.content.to_vec(),
                };
                self.bytes.drain(..length);
                return answer;
            }
            let mut buffer = [0; 4096];
            let read = self.stream.read(&mut buffer).unwrap();
            assert!(read > 0, "closed with {} bytes", self.bytes.len());
            self.bytes.extend_from_slice(&buffer[..read]);
        }
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 16]), Ok(0))
    }
}

fn string_request(form: FrameLayout, id: u32, content: &[u8]) -> BoltFrame<'_> {
    BoltFrame {
        layout: form,
        command: BoltCommand::RpcRequest,
        class: b"java.lang.String",
        content,
        ..BoltFrame::heartbeat(form, id)
    }
}

fn sofa(service: &str, method: &str) -> (Vec<u8>, Vec<u8>) {
    let call = SofaCall {
        service: service.to_owned(),
        method: method.to_owned(),
        signature: vec!["java.lang.String".to_owned()],
        arguments: vec![HessianValue::from("world")],
    };
    (call.encode_header(), call.encode_content())
}

fn sofa_frame<'a>(id: u32, header: &'a [u8], content: &'a [u8]) -> BoltFrame<'a> {
    BoltFrame {
        class: sofa::REQUEST_CLASS.as_bytes(),
        header,
        ..string_request(FrameLayout::V1, id, content)
    }
}

#[test]
fn strings_are_echoed_in_request_layout() {
    let server = Server::start(default_flags());
    let mut client = server.connect();
    for (id, form) in [FrameLayout::V1, FrameLayout::V2, FrameLayout::V2_CRC]
        .into_iter()
        .enumerate()
    {
        // One connection may mix layouts.
        client.send(BoltFrame {
            layout: form,
            ..string_request(form, id as u32, b"\x05hello")
        });
        let answer = client.read_answer();
        assert_eq!(
            (answer.form, answer.id, answer.status),
            (form, id as u32, 0)
        );
        assert_eq!(answer.content, b"\x05hello");
        client.send(BoltFrame::heartbeat(form, 99));
        let ack = client.read_answer();
        assert_eq!((ack.command, ack.id), (BoltCommand::Heartbeat, 99));
    }
    drop(client);
    let stats = server.stop();
    assert_eq!(
        (
            count(&stats, "answered"),
            count(&stats, "heartbeats"),
            count(&stats, "failed")
        ),
        (3, 3, 0)
    );
}

#[test]
fn services_answer_and_report_sofarpc_errors() {
    let server = Server::start(default_flags());
    let mut client = server.connect();
    let (header, content) = sofa("peer.HelloService:1.0", "sayHello");
    client.send(sofa_frame(1, &header, &content));
    assert_eq!(
        client.read_answer().content,
        sofa::encode_success("Hello, world".into())
    );
    let (header, content) = sofa("com.alipay.test.TestService:1.0", "echoStr");
    client.send(sofa_frame(2, &header, &content));
    assert_eq!(
        client.read_answer().content,
        sofa::encode_success("world".into())
    );
    for (service, method, needle) in [
        ("a.Nothing:1.0", "x", "cannot find service: [a.Nothing:1.0]"),
        ("a.TestService:1.0", "x", "Cannot find invoke method"),
    ] {
        let (header, content) = sofa(service, method);
        client.send(sofa_frame(3, &header, &content));
        let answer = client.read_answer();
        assert_eq!(answer.status, 0);
        assert_eq!(
            header::find(&answer.header, header::RESPONSE_ERROR_KEY),
            Ok(Some(&b"true"[..]))
        );
        let text = sofa::failure_text(&answer.content).unwrap();
        assert!(text.contains(needle), "{text}");
    }
    client.send(sofa_frame(4, b"", b"\xff\xff"));
    assert_eq!(
        client.read_answer().status,
        Status::ServerDeserialException.number()
    );
    client.send(BoltFrame {
        class: b"no.such.Class",
        ..string_request(FrameLayout::V2_CRC, 5, b"")
    });
    let answer = client.read_answer();
    assert_eq!(answer.status, Status::ServerException.number());
    assert!(!answer.form.has_crc());
    client.send(BoltFrame {
        codec: 9,
        ..string_request(FrameLayout::V1, 6, b"")
    });
    assert_eq!(
        client.read_answer().status,
        Status::ServerDeserialException.number()
    );
    drop(client);
    let stats = server.stop();
    assert_eq!((count(&stats, "answered"), count(&stats, "failed")), (2, 5));
}

#[test]
fn full_pool_and_queue_answer_busy() {
    let server = Server::start(BoltOptions {
        // The delay is long enough for all requests to arrive before the first response.
        delay: ResponseDelay::Constant(Duration::from_millis(500)),
        pool: 1,
        queue: 2,
        ..default_flags()
    });
    let mut client = server.connect();
    let mut wire = Vec::new();
    for id in 0..6 {
        string_request(FrameLayout::V1, id, b"\x01x").write(&mut wire);
    }
    // One write, so that the requests are read together.
    client.stream.write_all(&wire).unwrap();
    let answers: Vec<(u32, u16)> = (0..6)
        .map(|_| client.read_answer())
        .map(|a| (a.id, a.status))
        .collect();
    // Which requests find the queue full depends on the server's threads.
    let statuses: Vec<u16> = answers.iter().map(|(_, status)| *status).collect();
    let busy = Status::ServerThreadpoolBusy.number();
    assert_eq!(statuses, [busy, busy, busy, 0, 0, 0]);
    let ids: BTreeSet<u32> = answers.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, (0..6).collect());
    drop(client);
    assert_eq!(count(&server.stop(), "busy"), 3);
}

#[test]
fn failure_shares_match_configuration() {
    let server = Server::start(BoltOptions {
        fail: vec![
            FailureShare {
                status: Some(Status::Timeout),
                share: 0.25,
            },
            FailureShare {
                status: None,
                share: 0.25,
            },
        ],
        ..default_flags()
    });
    let mut client = server.connect();
    let (mut timeouts, mut failures) = (0, 0);
    for id in 0..400 {
        client.send(string_request(FrameLayout::V1, id, b"\x01x"));
        let answer = client.read_answer();
        timeouts += u32::from(answer.status == Status::Timeout.number());
        failures += u32::from(!answer.header.is_empty());
    }
    // Four standard deviations of a binomial distribution: 100 ± 35.
    assert!((65..=135).contains(&timeouts), "{timeouts}");
    assert!((65..=135).contains(&failures), "{failures}");
    drop(client);
    assert_eq!(
        count(&server.stop(), "failed"),
        u64::from(timeouts + failures)
    );
}

#[test]
fn non_bolt_bytes_close_only_their_connection() {
    let server = Server::start(default_flags());
    let mut good = server.connect();
    let mut crc = Vec::new();
    string_request(FrameLayout::V2_CRC, 1, b"\x01x").write(&mut crc);
    *crc.last_mut().unwrap() ^= 1;
    let huge =
        b"\x01\x01\0\x01\x01\0\0\0\x01\x01\0\0\x0b\xb8\0\x10\0\0\x7f\xff\xff\xffjava.lang.String";
    assert_eq!(huge.len(), 38);
    let mut negative = huge.to_vec();
    negative[18] = 0xff;
    for wire in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\x03",
        b"\x02\x09",
        huge,
        &negative,
        &crc,
    ] {
        let mut client = server.connect();
        client.stream.write_all(wire).unwrap();
        assert!(client.is_closed(), "{wire:?}");
    }
    // The server must not close a connection whose bytes arrive slowly.
    let mut wire = Vec::new();
    string_request(FrameLayout::V1, 8, b"\x01x").write(&mut wire);
    for byte in &wire {
        good.stream.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    assert_eq!(good.read_answer().content, b"\x01x");
    // Neither an unexpected acknowledgement nor a one-way request gets a response.
    good.send(BoltFrame::heartbeat_ack(FrameLayout::V1, 5));
    good.send(BoltFrame {
        kind: BoltFrameKind::Oneway { timeout: -1 },
        ..string_request(FrameLayout::V1, 9, b"\x01y")
    });
    good.send(string_request(FrameLayout::V1, 10, b"\x01z"));
    assert_eq!(good.read_answer().content, b"\x01z");
    drop(good);
    let stats = server.stop();
    assert_eq!(
        (
            count(&stats, "malformed"),
            count(&stats, "oneway"),
            count(&stats, "answered")
        ),
        (6, 1, 2)
    );
}
