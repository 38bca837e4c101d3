//! Tests of connections held for an hour of simulated time: the engine's worker, the driver, and both ends of
//! TLS, which are idle between messages.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use crate::alone;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use plimsoll_engine::tls::{ServerSession, ServerSessionFactory, TlsClient};
use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedNetwork, SimulatedPeerId, SimulatedServer,
};
use plimsoll_engine::worker::{Worker, WorkerShare};
use plimsoll_model::Time;
use plimsoll_model::plan::{Plan, Shard};
use plimsoll_model::records::record::{RecordedInterval, StageRecord};
use plimsoll_model::spec;
use plimsoll_protocols::hold::{HoldCall, HoldProtocol};
use plimsoll_stack::certificates::{CertificateOptions, CertificatePaths, make_certificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use alone::SoleWorkerControl;

/// An echo server that buffers no more than necessary.
struct EchoServer {
    sessions: ServerSessionFactory,
    connections: BTreeMap<SimulatedPeerId, ServerSession>,
}

impl SimulatedServer for EchoServer {
    fn on_open(&mut self, peer: SimulatedPeerId, _now: Time, _actions: &mut Vec<ServerAction>) {
        let session = self.sessions.new_session().unwrap();
        self.connections.insert(peer, session);
    }

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let session = self.connections.get_mut(&peer).unwrap();
        let mut echo = Vec::new();
        session
            .receive(&mut bytes.to_vec(), &mut |plain| {
                echo.extend_from_slice(plain);
            })
            .unwrap();
        if !echo.is_empty() {
            session.seal(&echo);
        }
        let mut out = Vec::new();
        session.flush(&mut out).unwrap();
        if !out.is_empty() {
            actions.push(ServerAction::Send(out));
        }
        session.start_resting();
    }
}

/// An environment without files and variables.
struct EmptyContext;

impl spec::ResolveContext for EmptyContext {
    fn env_variable(&self, _: &str) -> Option<String> {
        None
    }
    fn read(&self, _: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn read_bytes(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Returns a plan of thirty connections with client certificates, held for an hour.
fn plan(certificates: &CertificatePaths, keepalive: &str) -> Plan {
    let [ca, _, _, _, cert, key] = certificates
        .paths_without_crl()
        .map(|path| path.display().to_string());
    let text = format!(
        "target = 'tls://localhost:1'\n\
         [tls]\nca = '{ca}'\ncert = '{cert}'\nkey = '{key}'\n\
         [call.hold]\nkeepalive = '{keepalive}'\n\
         [load]\nconnections = 30\nduration = '1h'\n"
    );
    plimsoll_protocols::registry::register_protocols();
    spec::resolve(&spec::read(&text).unwrap(), &EmptyContext).unwrap()
}

/// Runs the plan and returns the record of all stages.
fn run_plan(certificates: &CertificatePaths, keepalive: &str, seed: u64) -> StageRecord {
    let plan = plan(certificates, keepalive);
    let call: &HoldCall = plan.call.downcast_ref().expect("connections that are held");
    let protocol = HoldProtocol::new(call.greeting, call.message);
    let tls = TlsClient::new(plan.tls.as_ref().unwrap(), &plan.target, &[])
        .unwrap()
        .for_idle_connections()
        .for_worker();
    let [ca, _, cert, key, ..] = certificates.paths_without_crl();
    let chain = CertificateDer::pem_file_iter(cert).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(ca).unwrap())
        .unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots));
    let config = rustls::ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            chain.collect::<Result<_, _>>().unwrap(),
            PrivateKeyDer::from_pem_file(key).unwrap(),
        )
        .unwrap();
    let mut server = EchoServer {
        sessions: ServerSessionFactory::new(&config),
        connections: BTreeMap::new(),
    };
    let weather = NetworkConditions {
        latency_us: 10..=3_000,
        piece: 1..=90,
        ..NetworkConditions::faultless(seed)
    };
    let share = WorkerShare::new(Shard::WHOLE_RUN, Arc::new(plan.load), plan.seed);
    let network = SimulatedNetwork::new(&mut server, weather);
    let mut worker = Worker::new(share, network, Arc::new(protocol), Some(tls));
    let mut control = SoleWorkerControl {
        start: None,
        total: RecordedInterval::default(),
    };
    let established = worker.establish_connections(&mut control).unwrap();
    assert_eq!((established.open, established.failed), (30, 0));
    let start = Time(30_000_000_000);
    control.start = Some(start);
    worker.run(start, &mut control).unwrap();
    drop(worker);
    let mut all = StageRecord::default();
    for (_, record) in control.total.recorded_stages() {
        all.merge(record);
    }
    all
}

#[test]
fn connections_survive_one_hour() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = make_certificates(dir.path(), &CertificateOptions::default()).unwrap();
    for (keepalive, seed, messages) in [("none", 1, 30), ("10m", 2, 6 * 30)] {
        let record = run_plan(&certificates, keepalive, seed);
        assert_eq!(
            (record.due, record.ok_calls()),
            (messages, messages),
            "{keepalive}"
        );
        assert_eq!(record.connections_full, 30, "none was replaced");
        assert_eq!(record.connections_lost, 0);
    }
}
