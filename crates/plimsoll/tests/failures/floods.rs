//! Peers that send endlessly and read nothing, against every server, both sides of the sidecar, and
//! the client: queued replies are bounded, and arrive once the peer reads.
//!
//! Memory is the process's own peak in /proc; the kernel's socket buffers are not included.

use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use plimsoll_protocols::bolt::{BoltFrame, FrameLayout};
use plimsoll_wire::http2::{self, kind, write};
use plimsoll_wire::websocket::{self, Opcode};
use support::{MAX_WAIT, Place, SCORE, Server, wait};

/// Bytes of a flood if everything is accepted.
const FLOOD_BYTES: usize = 160 << 20;
/// Most additional memory of a process, in KiB.
const MAX_GROWTH_KIB: u64 = 64 << 10;
/// How long a peer must accept nothing to count as not reading.
const STALL_TIME: Duration = Duration::from_secs(2);
/// The bytes that are sent repeatedly, and the length of the answer.
struct Flood {
    name: &'static str,
    greeting: Vec<u8>,
    unit: Vec<u8>,
    answer: usize,
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write::frame_header(&mut out, payload.len(), kind, 0, 0);
    out.extend_from_slice(payload);
    out
}

fn settings() -> Vec<u8> {
    let mut out = Vec::new();
    write::settings(&mut out, &[]);
    out
}

/// Returns the floods over HTTP/2, of a client or a server.
fn http2(from_client: bool) -> [Flood; 2] {
    let preface: &[u8] = if from_client { http2::PREFACE } else { b"" };
    let greeting = [preface, &settings()].concat();
    [
        Flood {
            name: "PING",
            greeting: greeting.clone(),
            unit: frame(kind::PING, &[7; 8]),
            answer: 17,
        },
        Flood {
            name: "SETTINGS",
            greeting,
            unit: settings(),
            answer: 9,
        },
    ]
}

fn heartbeat_flood() -> Flood {
    let (mut unit, mut answer) = (Vec::new(), Vec::new());
    BoltFrame::heartbeat(FrameLayout::V1, 7).write(&mut unit);
    BoltFrame::heartbeat_ack(FrameLayout::V1, 7).write(&mut answer);
    Flood {
        name: "heartbeats",
        greeting: Vec::new(),
        unit,
        answer: answer.len(),
    }
}

impl Flood {
    /// Sends until everything is sent or the peer accepts no more; returns the number of bytes
    /// sent.
    fn send(&self, mut stream: &TcpStream) -> usize {
        stream.write_all(&self.greeting).expect("a peer");
        stream.set_write_timeout(Some(STALL_TIME)).expect("a time");
        let chunk = self.unit.repeat(16 * 1024 / self.unit.len());
        let mut sent = 0;
        while sent < FLOOD_BYTES {
            match stream.write(&chunk[sent % chunk.len()..]) {
                Ok(n) => sent += n,
                Err(_) => break,
            }
        }
        sent
    }

    /// Reads the replies for this many bytes.
    #[track_caller]
    fn collect(&self, mut stream: &TcpStream, sent: usize) {
        stream.set_read_timeout(Some(MAX_WAIT)).expect("a time");
        let owed = sent / self.unit.len() * self.answer;
        let (mut came, mut buffer) = (0, vec![0; 64 << 10]);
        while came < owed {
            match stream.read(&mut buffer) {
                Ok(n @ 1..) => came += n,
                other => panic!("{}: {came} of {owed} bytes, then {other:?}", self.name),
            }
        }
    }
}

/// Returns a value of /proc/PID/status in KiB.
fn status_kib(pid: u32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let figure = line.and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
    figure.unwrap_or_else(|| panic!("no {key} in {text}"))
}

/// Returns the most memory that the process may use.
fn limit(pid: u32) -> u64 {
    status_kib(pid, "VmRSS") + MAX_GROWTH_KIB
}

#[track_caller]
fn assert_memory_within(pid: u32, limit: u64, what: &str) {
    let peak = status_kib(pid, "VmHWM");
    assert!(
        peak <= limit,
        "{what}: {peak} KiB at most, where {limit} are allowed"
    );
}

/// Floods a server over one connection and checks that it still answers.
#[track_caller]
fn flood_server(server: &Server, flood: &Flood, what: &str) {
    let (pid, what) = (server.child.id(), format!("{} at {what}", flood.name));
    let limit = limit(pid);
    let stream = TcpStream::connect(server.address()).expect("a server");
    let sent = flood.send(&stream);
    assert_memory_within(pid, limit, &what);
    flood.collect(&stream, sent);
    assert_memory_within(pid, limit, &what);
}

fn sidecar(place: &Place, protocol: &str, upstream: u16) -> Server {
    let file = format!("{protocol}-{upstream}.toml");
    let text = format!(
        "[[route]]\nname = \"{protocol}\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = [\"127.0.0.1:{upstream}\"]\nheartbeat = \"10m\"\n"
    );
    fs::write(place.path(&file), text).expect("writable");
    Server::start(&mut place.command(&["relay", "sidecar", &file]))
}

#[test]
fn servers_bound_memory_for_stalled_readers() {
    let place = Place::new();
    for name in ["fast", "score"] {
        for flood in http2(true) {
            flood_server(&place.serve(&[name]), &flood, &format!("serve {name}"));
        }
    }
    flood_server(&place.serve(&["bolt"]), &heartbeat_flood(), "serve bolt");
    let echo = Flood {
        name: "messages",
        greeting: Vec::new(),
        unit: b"...............\n".to_vec(),
        answer: 16,
    };
    flood_server(&place.serve(&["hold"]), &echo, "serve hold");
    let requests = Flood {
        name: "requests",
        greeting: Vec::new(),
        unit: b"GET /bytes/100 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        answer: 100,
    };
    flood_server(&place.serve(&["files"]), &requests, "serve files");
}

/// Sends a request; returns the status and body of the response.
fn post_request(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a server");
    stream.set_read_timeout(Some(MAX_WAIT)).expect("a time");
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    .expect("a server");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    body.to_owned()
}

/// Returns the request for the socket of a new session.
fn socket_of_new_session(api: &str) -> Vec<u8> {
    let made = post_request(api, "/session/create");
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    let text = |key: &str| made[key].as_str().expect("text").to_owned();
    format!(
        "GET /agent/ws/{} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Authorization: Bearer {}\r\n\r\n",
        text("session_id"),
        text("auth_token")
    )
    .into_bytes()
}

#[test]
fn session_stack_bounds_memory_for_stalled_readers() {
    /// Number of sockets for each kind of flood.
    const EACH: usize = 6;
    let place = Place::new();
    let mut server = place.serve(&["llm", "--with-gateway", "127.0.0.1:0"]);
    let (api, gateway, pid) = (server.address(), server.next_address(), server.child.id());
    let masked = |opcode, payload: &[u8]| {
        let mut unit = Vec::new();
        websocket::append_masked_frame(&mut unit, opcode, [1, 2, 3, 4], payload);
        unit
    };
    let mut floods = Vec::new();
    for _ in 0..EACH {
        for (name, unit) in [
            ("pings", masked(Opcode::Ping, b"")),
            ("long pings", masked(Opcode::Ping, &[b'p'; 125])),
            ("messages that are no JSON", masked(Opcode::Text, b"{")),
        ] {
            let flood = Flood {
                name,
                greeting: Vec::new(),
                unit,
                answer: 0,
            };
            floods.push((socket_of_new_session(&api), flood));
        }
    }
    let requests = Flood {
        name: "requests",
        greeting: Vec::new(),
        unit: b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        answer: 0,
    };
    let limit = limit(pid);
    let stuck: Vec<TcpStream> = thread::scope(|scope| {
        let sending: Vec<_> = floods
            .iter()
            .map(|flood| {
                let gateway = &gateway;
                scope.spawn(move || {
                    let mut stream = TcpStream::connect(gateway).expect("a gateway");
                    let (socket, flood) = flood;
                    stream.write_all(socket).expect("a gateway");
                    let mut answer = [0; 12];
                    stream.read_exact(&mut answer).expect("an answer");
                    assert_eq!(&answer, b"HTTP/1.1 101");
                    let sent = flood.send(&stream);
                    assert!(
                        sent < FLOOD_BYTES,
                        "{}: {sent} bytes were taken",
                        flood.name
                    );
                    stream
                })
            })
            .collect();
        let stream = TcpStream::connect(&api).expect("an API");
        // Keeps the system from accepting minutes' worth of answers.
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 64 << 10).expect("a socket");
        let sent = requests.send(&stream);
        assert_memory_within(pid, limit, "requests at the API");
        assert!(sent < FLOOD_BYTES, "{sent} bytes of requests were taken");
        let stuck = sending.into_iter().map(|s| s.join().expect("a flood"));
        stuck.collect()
    });
    assert_memory_within(pid, limit, "floods at a gateway");
    // Other clients are not affected.
    let (api, gateway) = (format!("session://{api}"), format!("ws://{gateway}"));
    let load = ["session", &api, "--socket", &gateway, "--clients", "5"];
    let load = [&load[..], &["--queries", "2", "--out", "run", "-q"]].concat();
    place.expect(0, &load);
    assert_eq!(place.run_json("run")["total"]["ok"], 10);
    assert_memory_within(pid, limit, "floods at a gateway, and others' sessions");
    drop(stuck);
}

#[test]
fn sidecar_bounds_memory_for_stalled_readers() {
    let place = Place::new();
    let bolt = place.serve(&["bolt"]);
    flood_server(
        &sidecar(&place, "bolt", bolt.port),
        &heartbeat_flood(),
        "a sidecar's Bolt",
    );
    let score = place.serve(&["score"]);
    for flood in http2(true) {
        let sidecar = sidecar(&place, "grpc", score.port);
        flood_server(&sidecar, &flood, "a sidecar's HTTP/2");
    }
    for flood in http2(false) {
        let (upstream, port) = listener();
        let sidecar = sidecar(&place, "grpc", port);
        let client = LoadProcess::begin(&place, &grpc_load(&sidecar.plaintext()));
        flood_client(
            &upstream,
            sidecar.child.id(),
            &flood,
            "a sidecar's upstream",
        );
        client.end();
    }
    let (upstream, port) = listener();
    let sidecar = sidecar(&place, "bolt", port);
    let client = LoadProcess::begin(&place, &sofa_load(sidecar.port));
    let pid = sidecar.child.id();
    flood_client(
        &upstream,
        pid,
        &heartbeat_flood(),
        "a sidecar's Bolt upstream",
    );
    client.end();
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    (listener, port)
}

const LOAD: [&str; 9] = [
    "--rate",
    "10/s",
    "--duration",
    "5m",
    "--deadline",
    "1s",
    "--connections",
    "1",
    "-q",
];

fn grpc_load(url: &str) -> Vec<String> {
    let flags = [&["grpc", url], &SCORE[..], &LOAD].concat();
    flags.into_iter().map(str::to_owned).collect()
}

fn sofa_load(port: u16) -> Vec<String> {
    let url = format!("sofa://127.0.0.1:{port}");
    let flags = [&["bolt", &url], &LOAD[..]].concat();
    flags.into_iter().map(str::to_owned).collect()
}

/// A running `plimsoll` process.
struct LoadProcess(Child);

impl LoadProcess {
    fn begin(place: &Place, arguments: &[String]) -> LoadProcess {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = place.command(&arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        LoadProcess(command.spawn().expect("plimsoll"))
    }

    /// Stops the process, which must exit by itself.
    fn end(mut self) {
        support::signal(&self.0, rustix::process::Signal::INT);
        wait(&mut self.0);
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Floods the connection that a process makes and checks that it continues.
#[track_caller]
fn flood_client(listener: &TcpListener, pid: u32, flood: &Flood, what: &str) {
    let (stream, _) = listener.accept().expect("a client");
    flood_connection(&stream, pid, flood, what);
}

#[track_caller]
fn flood_connection(stream: &TcpStream, pid: u32, flood: &Flood, what: &str) {
    let limit = limit(pid);
    let what = format!("{} at {what}", flood.name);
    let sent = flood.send(stream);
    assert_memory_within(pid, limit, &what);
    flood.collect(stream, sent);
    assert_memory_within(pid, limit, &what);
}

#[test]
fn clients_bound_memory_for_stalled_servers() {
    let place = Place::new();
    for flood in http2(false) {
        let (server, port) = listener();
        let client = LoadProcess::begin(&place, &grpc_load(&format!("grpc://127.0.0.1:{port}")));
        flood_client(&server, client.0.id(), &flood, "plimsoll grpc");
        client.end();
    }
    let (server, port) = listener();
    let client = LoadProcess::begin(&place, &sofa_load(port));
    flood_client(&server, client.0.id(), &heartbeat_flood(), "plimsoll bolt");
    client.end();
}

/// The upgrade request of a WebSocket client, and the response that accepts it.
fn upgrade(mut stream: &TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(MAX_WAIT)).expect("a time");
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        request.extend(byte);
    }
    let request = String::from_utf8(request).expect("text");
    let key = request.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("sec-websocket-key")
            .then_some(value.trim())
    });
    let accept = websocket::derive_accept_key(key.expect("a key").as_bytes());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
    .into_bytes()
}

#[test]
fn session_client_bounds_memory_for_stalled_gateway() {
    let place = Place::new();
    let api = place.serve(&["llm", "--with-gateway", "127.0.0.1:0"]);
    let (gateway, port) = listener();
    let (url, socket) = (
        format!("session://{}", api.address()),
        format!("ws://127.0.0.1:{port}"),
    );
    let session = ["session", &url, "--socket", &socket, "--clients", "1", "-q"];
    let client = LoadProcess::begin(&place, &session.map(str::to_owned));
    let (stream, _) = gateway.accept().expect("a client");
    let mut unit = Vec::new();
    websocket::append_frame(&mut unit, Opcode::Ping, &[b'p'; 125]);
    let pings = Flood {
        name: "pings",
        greeting: upgrade(&stream),
        answer: unit.len() + 4,
        unit,
    };
    flood_connection(&stream, client.0.id(), &pings, "plimsoll session");
    client.end();
}

/// The server ends each connection at once: few are made, and that is reported.
#[test]
fn short_lived_connections_are_limited_and_reported() {
    let place = Place::new();
    let (listener, port) = listener();
    let (sender, accepted) = mpsc::channel();
    thread::spawn(move || {
        let greeting = settings();
        let mut goaway = Vec::new();
        write::goaway(&mut goaway, 0, http2::ErrorCode::NO_ERROR, b"");
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(&[&greeting[..], &goaway].concat());
            let _ = sender.send(());
            // The socket is held until the client has closed its side.
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
            });
        }
    });
    let url = format!("grpc://127.0.0.1:{port}");
    let load = ["--rate", "20/s", "--duration", "3s", "--connections", "1"];
    let more = ["--out", "run", "--deadline", "1s"];
    let arguments = [&["grpc", &url], &SCORE[..], &load, &more].concat();
    let output = place.run(&arguments);
    let screen = support::stderr_of(&output) + &support::text(&output.stdout);
    let connections = accepted.try_iter().count();
    assert!(connections <= 30, "{connections} connections for 60 calls");
    let run = place.run_json("run");
    let unused = run["total"]["connections_unused"].as_u64().unwrap_or(0);
    assert!(unused >= 3 && unused <= connections as u64, "{run}");
    let sentence = "connections ended before they brought an answer";
    assert!(screen.contains(sentence), "{screen}");
    for report in [place.read("run/report.html"), {
        place.expect(0, &["report", "run", "--markdown", "-"])
    }] {
        assert!(report.contains(sentence), "{report}");
    }
}
