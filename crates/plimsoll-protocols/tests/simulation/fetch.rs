//! Simulation of downloads over HTTP/1.1 on a network that honours low-water marks exactly: a driver that
//! waits for more bytes than will ever arrive never wakes, and its call exceeds the deadline.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_engine::driver::{CallId, Driver, Event, Protocol, ProtocolError};
use plimsoll_engine::tls::{ServerSession, ServerSessionFactory, TlsClient};
use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedPeerId, SimulatedServer,
};
use plimsoll_model::plan::{
    ArrivalModel, ChainCheck, ConnectionReuse, LoadPlan, RecordLayer, ServerTrust, Target, TlsPlan,
};
use plimsoll_model::records::record::StageRecord;
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::http::{Http1Driver, Http1Protocol, HttpCall, HttpRequest};
use plimsoll_stack::certificates::{CertificateOptions, CertificatePaths, make_certificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{draw, load, run_under};

const CALLS: u64 = 12;
/// A deadline far beyond the time of any body here.
const DEADLINE: Duration = Duration::from_secs(30);

/// A file server with random bodies of every length and framing, complete or truncated.
struct RandomFileServer {
    seed: u64,
    /// The number of requests on all connections.
    asked: u64,
    sessions: Option<ServerSessionFactory>,
    connections: BTreeMap<SimulatedPeerId, (Vec<u8>, Option<ServerSession>)>,
}

impl RandomFileServer {
    fn new(seed: u64, sessions: Option<ServerSessionFactory>) -> RandomFileServer {
        RandomFileServer {
            seed,
            asked: 0,
            sessions,
            connections: BTreeMap::new(),
        }
    }

    /// Returns a response, and whether the connection ends after it.
    fn answer(&mut self) -> (Vec<u8>, bool) {
        self.asked += 1;
        let pick = |name, from, to| draw(self.seed, 1_000 * self.asked + name, from, to);
        // Sizes around the minimum for a low-water mark (32 KiB), records (16 KiB) and the read buffer (128
        // KiB).
        let near = [0, 1 << 10, 16 << 10, 32 << 10, 128 << 10, 300 << 10];
        let size = near[pick(1, 0, 5) as usize] + pick(2, 0, 2_000);
        let body = vec![b'x'; size as usize];
        let (mut out, ends) = match pick(3, 0, 7) {
            0 => (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), true),
            1 | 2 => {
                let mut out = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
                for chunk in body.chunks(pick(4, 1_000, 90_000) as usize) {
                    out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    out.extend_from_slice(chunk);
                    out.extend_from_slice(b"\r\n");
                }
                out.extend_from_slice(b"0\r\n\r\n");
                return (out, false);
            }
            _ => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
                (head.into_bytes(), false)
            }
        };
        // The body is cut in the middle: a part of it is sent.
        let cut = !ends && size > 1 && pick(5, 0, 5) == 0;
        let sent = if cut { pick(6, 1, size - 1) } else { size };
        out.extend_from_slice(&body[..sent as usize]);
        (out, ends || cut)
    }
}

impl SimulatedServer for RandomFileServer {
    fn on_open(&mut self, peer: SimulatedPeerId, _now: Time, _actions: &mut Vec<ServerAction>) {
        let session = self.sessions.as_ref().map(|s| s.new_session().unwrap());
        self.connections.insert(peer, (Vec::new(), session));
    }

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some((mut request, mut session)) = self.connections.remove(&peer) else {
            return;
        };
        match &mut session {
            None => request.extend_from_slice(bytes),
            Some(session) => {
                session
                    .receive(&mut bytes.to_vec(), &mut |plain| {
                        request.extend_from_slice(plain);
                    })
                    .unwrap();
            }
        }
        let asked = request.ends_with(b"\r\n\r\n");
        let (answer, ends) = if asked {
            self.answer()
        } else {
            (Vec::new(), false)
        };
        if asked {
            request.clear();
        }
        let out = match &mut session {
            None => answer,
            Some(session) => {
                if !answer.is_empty() {
                    session.seal(&answer);
                }
                if ends {
                    session.queue_close_notify();
                }
                take_sealed(session)
            }
        };
        if !out.is_empty() {
            actions.push(ServerAction::Send(out));
        }
        if ends {
            actions.push(ServerAction::Close);
        }
        self.connections.insert(peer, (request, session));
    }

    fn on_close(&mut self, peer: SimulatedPeerId, _now: Time) {
        self.connections.remove(&peer);
    }
}

/// Runs `protocol` on a network that loses nothing, and returns its record.
fn fetch<P: Protocol>(
    seed: u64,
    protocol: P,
    tls: Option<(TlsClient, ServerSessionFactory)>,
) -> StageRecord {
    let pick = |name, from, to| draw(seed, name, from, to);
    let clients = pick(50, 1, 4) as u32;
    let mut load = LoadPlan {
        arrivals: ArrivalModel::Closed {
            clients,
            think: Duration::ZERO,
        },
        connections: clients,
        reuse: ConnectionReuse::Always,
        calls: Some(CALLS),
        deadline: Some(DEADLINE),
        drain: Some(2 * DEADLINE),
        ..load(seed)
    };
    load.stages[0].duration = Some(Duration::from_secs(3_600));
    let weather = NetworkConditions {
        latency_us: 10..=pick(51, 10, 3_000),
        piece: 1..=pick(52, 500, 40_000) as usize,
        stall_ppm: pick(53, 0, 50_000) as u32,
        stall_ms: 1..=200,
        ..NetworkConditions::faultless(seed)
    };
    let (tls, sessions) = tls.unzip();
    let mut server = RandomFileServer::new(seed, sessions);
    let mut total = run_under(weather, load, &mut server, protocol, tls);
    total.stage_mut(0).clone()
}

fn protocol() -> Http1Protocol {
    Http1Protocol::new(&HttpRequest {
        call: &HttpCall {
            method: "GET".into(),
            path: "/x".into(),
            expect: vec![(200, 200)],
            max_body: u32::MAX,
            ..HttpCall::default()
        },
        authority: "h",
        closes: false,
    })
}

/// Checks that every call was answered or reported as truncated, so that none waited in vain.
fn assert_nothing_hangs(seed: u64, record: &StageRecord) -> u64 {
    let (ok, cut) = (record.ok_calls(), record.outcomes.get(Outcome::BodyLength));
    assert_eq!(
        (record.due, ok + cut),
        (CALLS, CALLS),
        "seed {seed}: {:?}",
        record.outcomes.iter().collect::<Vec<_>>()
    );
    cut
}

#[test]
fn driver_never_waits_past_response_end() {
    let cut: u64 = (0..1_000)
        .map(|seed| assert_nothing_hangs(seed, &fetch(seed, protocol(), None)))
        .sum();
    assert!(cut > 100, "{cut} were cut off");
}

#[test]
fn tls_driver_never_waits_past_response_end() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = make_certificates(dir.path(), &CertificateOptions::default()).unwrap();
    for records in [RecordLayer::Own, RecordLayer::Library] {
        let cut: u64 = (0..60)
            .map(|seed| {
                let tls = Some(tls_ends(&certificates, records));
                assert_nothing_hangs(seed, &fetch(seed, protocol(), tls))
            })
            .sum();
        assert!(cut > 0, "{records:?}");
    }
}

#[test]
fn overreading_driver_is_detected() {
    let seeds = 0..100;
    let waited_in_vain = |seed: &u64| {
        let record = fetch(*seed, OverreadingDriver(protocol()), None);
        record.outcomes.get(Outcome::DeadlineExceeded) > 0
    };
    let found = seeds.filter(waited_in_vain).count();
    assert!(found > 50, "{found} of 100");
}

/// What a server sends in the middle of a body, in fewer bytes than any low-water mark, before it goes
/// silent.
#[derive(Clone, Copy, Debug)]
enum Interruption {
    CloseNotify,
    Alert,
    TamperedRecord,
}

/// A server that sends half of a body, pauses, and then sends something else.
struct InterruptingServer {
    /// A pause that ends before a low-water mark is checked, or long after.
    pause: Duration,
    aside: Interruption,
    sessions: ServerSessionFactory,
    connections: BTreeMap<SimulatedPeerId, (Vec<u8>, ServerSession)>,
}

const PROMISED: usize = 2 << 20;
const LONG_PAUSE: Duration = Duration::from_secs(1);

impl SimulatedServer for InterruptingServer {
    fn on_open(&mut self, peer: SimulatedPeerId, _now: Time, _actions: &mut Vec<ServerAction>) {
        let session = self.sessions.new_session().unwrap();
        self.connections.insert(peer, (Vec::new(), session));
    }

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some((request, session)) = self.connections.get_mut(&peer) else {
            return;
        };
        let mut bytes = bytes.to_vec();
        let heard = session.receive(&mut bytes, &mut |plain| request.extend_from_slice(plain));
        if heard.is_err() {
            // The bytes are the client's own alert, in response to the tampered record.
            return;
        }
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            session
                .seal(format!("HTTP/1.1 200 OK\r\nContent-Length: {PROMISED}\r\n\r\n").as_bytes());
            session.seal(&vec![b'x'; PROMISED / 2]);
            actions.push(ServerAction::Timer {
                after: self.pause,
                tag: 0,
            });
        }
        send(session, actions);
    }

    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        _tag: u64,
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some((_, session)) = self.connections.get_mut(&peer) else {
            return;
        };
        match self.aside {
            Interruption::CloseNotify => session.queue_close_notify(),
            Interruption::Alert => {
                // The client must report the record that it can't decrypt: bad_record_mac.
                let mut garbage = vec![23, 3, 3, 0, 40];
                garbage.resize(45, 7);
                session.receive(&mut garbage, &mut |_| {}).unwrap_err();
            }
            Interruption::TamperedRecord => {
                session.seal(b"xxxx");
                let mut out = take_sealed(session);
                *out.last_mut().unwrap() ^= 1;
                actions.push(ServerAction::Send(out));
            }
        }
        send(session, actions);
    }

    fn on_close(&mut self, peer: SimulatedPeerId, _now: Time) {
        self.connections.remove(&peer);
    }
}

fn take_sealed(session: &mut ServerSession) -> Vec<u8> {
    let mut out = Vec::new();
    session.flush(&mut out).unwrap();
    out
}

fn send(session: &mut ServerSession, actions: &mut Vec<ServerAction>) {
    let out = take_sealed(session);
    if !out.is_empty() {
        actions.push(ServerAction::Send(out));
    }
}

#[test]
fn mid_body_tls_alert_fails_call_immediately() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = make_certificates(dir.path(), &CertificateOptions::default()).unwrap();
    for records in [RecordLayer::Own, RecordLayer::Library] {
        for (aside, outcome) in [
            (Interruption::CloseNotify, Outcome::BodyLength),
            (Interruption::Alert, Outcome::TlsAlert),
            (Interruption::TamperedRecord, Outcome::TlsFailed),
        ] {
            for seed in 0..10 {
                let (client, sessions) = tls_ends(&certificates, records);
                let pauses = [Duration::ZERO, Duration::from_millis(5), LONG_PAUSE];
                let mut server = InterruptingServer {
                    pause: pauses[seed as usize % 3],
                    aside,
                    sessions,
                    connections: BTreeMap::new(),
                };
                let mut load = LoadPlan {
                    arrivals: ArrivalModel::Closed {
                        clients: 1,
                        think: Duration::ZERO,
                    },
                    connections: 1,
                    reuse: ConnectionReuse::Always,
                    calls: Some(3),
                    deadline: Some(DEADLINE),
                    drain: Some(2 * DEADLINE),
                    ..load(seed)
                };
                load.stages[0].duration = Some(Duration::from_secs(3_600));
                let weather = NetworkConditions {
                    piece: 1..=draw(seed, 52, 500, 400_000) as usize,
                    latency_us: 10..=draw(seed, 51, 10, 3_000),
                    ..NetworkConditions::faultless(seed)
                };
                let mut total = run_under(weather, load, &mut server, protocol(), Some(client));
                let record = total.stage_mut(0);
                assert_eq!(
                    record.outcomes.get(outcome),
                    3,
                    "{records:?} {aside:?} seed {seed}: {:?}",
                    record.outcomes.iter().collect::<Vec<_>>()
                );
                // The bound is the pause, the network's delay, and the check of the low-water mark, all in
                // simulated time.
                let longest = record.failed.histogram().expect("three failed").max();
                let most = LONG_PAUSE + Duration::from_millis(500);
                assert!(u128::from(longest) < most.as_nanos(), "{longest} ns");
            }
        }
    }
}

fn tls_ends(
    certificates: &CertificatePaths,
    records: RecordLayer,
) -> (TlsClient, ServerSessionFactory) {
    let [ca, _, cert, key, ..] = certificates.paths_without_crl();
    let plan = TlsPlan {
        trust: ServerTrust::Ca(ca.to_owned()),
        crl: None,
        identity: None,
        server_name: None,
        suites: Vec::new(),
        groups: Vec::new(),
        versions: vec![plimsoll_model::plan::TlsVersion::V1_3],
        compress_certificates: false,
        key_log: None,
        resume: false,
        early_data: false,
        full_share: None,
        record_layer: records,
        chain_check: ChainCheck::Each,
    };
    let target = Target {
        url: "https://localhost:1".to_owned(),
        host: "localhost".to_owned(),
        port: 1,
        addresses: Vec::new(),
        socket: None,
        proxy: None,
    };
    let client = TlsClient::new(&plan, &target, &[]).unwrap().for_worker();
    let chain = CertificateDer::pem_file_iter(cert).unwrap();
    let config = rustls::ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
        .with_no_client_auth()
        .with_single_cert(
            chain.collect::<Result<_, _>>().unwrap(),
            PrivateKeyDer::from_pem_file(key).unwrap(),
        )
        .unwrap();
    (client, ServerSessionFactory::new(&config))
}

/// A driver that waits for four kilobytes more than the peer announced.
struct OverreadingDriver<T>(T);

impl Protocol for OverreadingDriver<Http1Protocol> {
    type Driver = OverreadingDriver<Http1Driver>;

    fn alpn(&self) -> Option<&'static [u8]> {
        self.0.alpn()
    }

    fn new_driver(&self) -> OverreadingDriver<Http1Driver> {
        OverreadingDriver(self.0.new_driver())
    }
}

impl Driver for OverreadingDriver<Http1Driver> {
    fn awaited_bytes(&self) -> u64 {
        match self.0.awaited_bytes() {
            0 => 0,
            n => n + 4_096,
        }
    }

    fn open(&mut self, now: Time, out: &mut Vec<u8>) {
        self.0.open(now, out);
    }
    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }
    fn capacity(&self) -> usize {
        self.0.capacity()
    }
    fn is_draining(&self) -> bool {
        self.0.is_draining()
    }
    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        self.0.start(call, number, now, out);
    }
    fn cancel(&mut self, call: CallId, now: Time, out: &mut Vec<u8>) {
        self.0.cancel(call, now, out);
    }
    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        self.0.receive(bytes, now, out, events)
    }
    fn receive_end(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.0.receive_end(now, events)
    }
    fn abort(&mut self, outcome: Outcome, now: Time, events: &mut Vec<Event>) {
        self.0.abort(outcome, now, events);
    }
    fn finish(&mut self, out: &mut Vec<u8>) {
        self.0.finish(out);
    }
}
