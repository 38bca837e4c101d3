//! Tests of the ways to connect to Redis: TLS, a Unix socket, users and passwords, Sentinel and a
//! cluster. No token may be lost when a master fails.

use std::process::{Command, Stdio};
use std::time::Duration;

use plimsoll_relays::bus::{Bus, BusError, RedisAddress, RedisOptions};
use plimsoll_relays::gateway::GatewayOptions;
use plimsoll_relays::llm::LlmOptions;
use plimsoll_stack::certificates::{CertificateOptions, CertificatePaths, make_certificates};
use tokio::time::{Instant, sleep, timeout};

use crate::client::{SocketClient, numbers};
use crate::killing::{assert_complete, assert_complete_despite};
use crate::load::SessionLoad;
use crate::ports::free_port;
use crate::redis::{READY_LIMIT, RedisServer};
use crate::stack::{GatewayProcess, Stack, quick};

/// Timeout for what a failover interrupts, on a busy machine.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(60);

fn address(url: &str) -> RedisAddress {
    url.parse().unwrap()
}

fn bus(address: &RedisAddress) -> Bus {
    Bus::redis(address.clone(), RedisOptions::default())
}

async fn ready_bus(address: &RedisAddress) -> Bus {
    let bus = bus(address);
    bus.wait_until_ready(READY_LIMIT).await.unwrap();
    bus
}

/// Returns the error reply that makes an address unusable; fails if the bus keeps retrying instead.
async fn error_reply(address: &RedisAddress) -> String {
    let bus = bus(address);
    match bus.wait_until_ready(FAILOVER_TIMEOUT).await {
        Err(e @ BusError::ErrorReply { .. }) => e.to_string(),
        other => panic!("the bus kept retrying: {other:?}"),
    }
}

/// Runs sessions whose backend and gateway have separate connections.
async fn assert_sessions_work(address: &RedisAddress) {
    let stack = Stack::on(ready_bus(address).await, quick(), GatewayOptions::default());
    let gateway = GatewayProcess::start(&ready_bus(address).await, GatewayOptions::default());
    let record = SessionLoad::closed(10, 2)
        .within(FAILOVER_TIMEOUT)
        .carry_out(stack.api, gateway.address)
        .await;
    assert_complete(&record, 20);
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + FAILOVER_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Certificates for servers that require client certificates, also from each other.
struct RedisCertificates {
    set: CertificatePaths,
    _folder: tempfile::TempDir,
}

impl RedisCertificates {
    fn new() -> RedisCertificates {
        let folder = tempfile::tempdir().unwrap();
        RedisCertificates {
            set: make_certificates(folder.path(), &CertificateOptions::default()).unwrap(),
            _folder: folder,
        }
    }

    /// Returns the server's configuration lines.
    fn lines(&self) -> String {
        let set = &self.set;
        format!(
            "tls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\n\
             tls-client-cert-file {}\ntls-client-key-file {}",
            set.server_cert.display(),
            set.server_key.display(),
            set.ca_cert.display(),
            set.client_cert.display(),
            set.client_key.display(),
        )
    }

    fn ca_certificate(&self) -> Vec<u8> {
        std::fs::read(&self.set.ca_cert).unwrap()
    }

    /// Returns an address with the CA of such servers and a client certificate.
    fn address_with_certificates(&self, url: &str) -> RedisAddress {
        let read = |path: &std::path::Path| std::fs::read(path).unwrap();
        let client = (read(&self.set.client_cert), read(&self.set.client_key));
        let authority = Some(self.ca_certificate());
        let reached = address(url).with_certificates(authority, Some(client));
        reached.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_run_over_mutual_tls() {
    let secured = RedisCertificates::new();
    let lines = secured.lines();
    let server = RedisServer::configured(&format!("port 0\ntls-port PORT\n{lines}"));
    let url = format!("rediss://127.0.0.1:{}", server.port);
    let plain = address(&url);
    let trusting = |client| {
        let authority = Some(secured.ca_certificate());
        plain.clone().with_certificates(authority, client)
    };
    assert_sessions_work(&secured.address_with_certificates(&url)).await;
    // A server with a certificate of an unknown CA, and one that requires a client certificate.
    let reason = error_reply(&plain).await;
    assert!(reason.contains("UnknownIssuer"), "{reason}");
    let reason = error_reply(&trusting(None).unwrap()).await;
    assert!(reason.contains("CertificateRequired"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_run_over_unix_socket() {
    let server = RedisServer::configured("port 0\nunixsocket DIR/socket");
    let path = server.dir.path().join("socket");
    assert_sessions_work(&address(&format!("unix://{}", path.display()))).await;
    assert_sessions_work(&address(&format!("redis+unix://{}?db=3", path.display()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_auth_error_is_immediate() {
    let server = RedisServer::configured(
        "requirepass both\n\
         user plimsoll on >s/cret ~session:* &session* +@all\n\
         user guest on >guest ~other:* &other* +@all",
    );
    let with =
        |credentials: &str| address(&format!("redis://{credentials}127.0.0.1:{}", server.port));
    assert_sessions_work(&with("plimsoll:s%2Fcret@")).await;
    assert_sessions_work(&with(":both@")).await;
    for (credentials, needle) in [
        ("plimsoll:wrong@", "WRONGPASS"),
        (":wrong@", "WRONGPASS"),
        ("nobody:both@", "WRONGPASS"),
        ("", "NOAUTH"),
        ("guest:guest@", "NOPERM"),
    ] {
        let reason = error_reply(&with(credentials)).await;
        let place = format!("redis at 127.0.0.1:{} answered: ", server.port);
        assert!(
            reason.starts_with(&place) && reason.contains(needle),
            "{reason}"
        );
        assert!(
            !reason.contains("wrong@") && !reason.contains(":both"),
            "{reason}"
        );
    }
    let reason = error_reply(&address(&format!(
        "redis://:both@127.0.0.1:{}/99",
        server.port
    )))
    .await;
    assert!(reason.contains("DB index is out of range"), "{reason}");
    let reason = error_reply(&address(&format!(
        "redis-cluster://:both@127.0.0.1:{}",
        server.port
    )))
    .await;
    assert!(reason.contains("cluster support disabled"), "{reason}");
    // A missing server is no permanent error: it may still start.
    let absent = bus(&address(&format!("redis://127.0.0.1:{}", free_port())));
    let error = absent
        .wait_until_ready(Duration::from_millis(200))
        .await
        .unwrap_err();
    assert!(matches!(error, BusError::Unreachable { .. }), "{error}");
}

fn slow_tokens() -> LlmOptions {
    LlmOptions {
        token_delay: Duration::from_millis(60),
        ..LlmOptions::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_follow_sentinel_failover() {
    assert_failover_loses_nothing(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_follow_tls_sentinel_failover() {
    assert_failover_loses_nothing(Some(&RedisCertificates::new())).await;
}

/// `secured` applies to all connections except the test's own, which use other ports.
async fn assert_failover_loses_nothing(secured: Option<&RedisCertificates>) {
    let start = |lines: &str| {
        let Some(secured) = secured else {
            let server = RedisServer::configured(lines);
            let port = server.port;
            return (server, port);
        };
        let (port, tls) = (free_port(), secured.lines());
        let lines = format!("tls-port {port}\n{tls}\ntls-replication yes\n{lines}");
        (RedisServer::configured(&lines), port)
    };
    let (server, first) = start("");
    let mut servers = vec![(server, first)];
    servers.push(start(&format!("replicaof 127.0.0.1 {first}")));
    let (sentinel, sentinel_port) = start(&format!(
        "sentinel monitor main 127.0.0.1 {first} 1\n\
         sentinel down-after-milliseconds main 1000\n\
         sentinel failover-timeout main 6000"
    ));
    let follows = |server: &RedisServer| server.ask("ROLE").contains("connected");
    wait_until("it does not follow", || follows(&servers[1].0));
    wait_until("sentinel knows no replica", || {
        sentinel
            .ask("SENTINEL REPLICAS main")
            .contains("slave-priority")
    });
    let by_sentinel = match secured {
        None => address(&format!("redis-sentinel://127.0.0.1:{sentinel_port}/main")),
        Some(secured) => secured.address_with_certificates(&format!(
            "rediss-sentinel://127.0.0.1:{sentinel_port}/main"
        )),
    };
    let stack = Stack::on(
        ready_bus(&by_sentinel).await,
        slow_tokens(),
        GatewayOptions::default(),
    );
    let gateway = GatewayProcess::start(&ready_bus(&by_sentinel).await, GatewayOptions::default());
    let master = || {
        let answer = sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME main");
        let port = answer.lines().nth(4).unwrap();
        port.parse::<u16>().unwrap()
    };
    let mut idle = IdleSessions::open(&stack, &gateway, 4).await;
    // A master that is asked to step down, and one that is killed.
    for killed in [false, true] {
        let old = master();
        let losing = async {
            if killed {
                let mut all = servers.iter_mut();
                all.find(|(_, port)| *port == old).unwrap().0.kill();
            } else {
                assert!(sentinel.ask("SENTINEL FAILOVER main").starts_with("+OK"));
            }
        };
        assert_complete_despite(&stack, &gateway, 20, losing).await;
        wait_until("no failover", || master() != old);
        if !killed {
            let (old, _) = servers.iter().find(|(_, port)| *port == old).unwrap();
            wait_until("the old master does not follow", || follows(old));
            wait_until("sentinel still fails over", || {
                let known = sentinel.ask("SENTINEL REPLICAS main");
                known.contains("\r\nslave\r\n") && known.contains("\r\nok\r\n")
            });
        }
        // Until the old master becomes a replica, Redis would silently lose what is posted to it.
        idle.run_queries().await;
    }
}

/// Sessions whose sockets stay open between queries while the bus fails and recovers.
struct IdleSessions<'a> {
    stack: &'a Stack,
    sessions: Vec<(String, SocketClient)>,
    /// The number of frames that each session has received.
    received: u64,
}

impl<'a> IdleSessions<'a> {
    /// Opens sessions and sends a first query in each.
    async fn open(stack: &'a Stack, gateway: &GatewayProcess, sessions: usize) -> IdleSessions<'a> {
        let mut idle = IdleSessions {
            stack,
            sessions: Vec::new(),
            received: 0,
        };
        for _ in 0..sessions {
            let (session, token) = stack.session().await;
            let client = SocketClient::open(gateway.address, &session, &token, "").await;
            idle.sessions.push((session, client.ok().unwrap()));
        }
        idle.run_queries().await;
        idle
    }

    /// Sends another query in each, once the backend has noticed that the bus is back.
    async fn run_queries(&mut self) {
        let limit = Instant::now() + FAILOVER_TIMEOUT;
        for (session, _) in &self.sessions {
            let status = loop {
                match self.stack.run(session).await {
                    503 if Instant::now() < limit => sleep(Duration::from_millis(20)).await,
                    status => break status,
                }
            };
            assert_eq!(status, 200);
        }
        let expected: Vec<u64> = (self.received + 1..=self.received + 19).collect();
        for (_, client) in &mut self.sessions {
            let frames = timeout(FAILOVER_TIMEOUT, client.until_done()).await;
            assert_eq!(numbers(&frames.expect("tokens")), expected);
        }
        self.received += 19;
    }
}

/// Runs a redis-cli command to administer a cluster.
fn redis_cli(arguments: &[String]) {
    let made = Command::new("redis-cli")
        .args(["--cluster-yes", "--cluster"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("redis-cli is installed: tests/setup.sh tests");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stdout)
    );
}

/// Starts three masters without replicas, with additional configuration lines.
fn start_cluster(more: impl Fn() -> String) -> Vec<RedisServer> {
    let nodes: Vec<RedisServer> = (0..3)
        .map(|_| {
            RedisServer::configured(&format!(
                "cluster-enabled yes\ncluster-node-timeout 5000\ncluster-port {}\n{}",
                free_port(),
                more()
            ))
        })
        .collect();
    let places = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
    redis_cli(
        &std::iter::once("create".to_owned())
            .chain(places)
            .collect::<Vec<_>>(),
    );
    for node in &nodes {
        wait_until("no cluster", || {
            node.ask("CLUSTER INFO").contains("cluster_state:ok")
        });
    }
    nodes
}

fn cluster_address(nodes: &[RedisServer]) -> RedisAddress {
    let nodes: Vec<String> = nodes
        .iter()
        .map(|node| format!("127.0.0.1:{}", node.port))
        .collect();
    address(&format!("redis-cluster://{}", nodes.join(",")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_uses_all_nodes_without_loss() {
    let mut nodes = start_cluster(String::new);
    let address = cluster_address(&nodes);
    let stack = Stack::on(
        ready_bus(&address).await,
        slow_tokens(),
        GatewayOptions::default(),
    );
    let gateway = GatewayProcess::start(&ready_bus(&address).await, GatewayOptions::default());
    // The first load is undisturbed. All connections are cut during the second, and a node dies and
    // comes back empty during the third.
    let record = SessionLoad::closed(30, 2)
        .within(FAILOVER_TIMEOUT)
        .carry_out(stack.api, gateway.address)
        .await;
    assert_complete(&record, 60);
    for node in &nodes {
        let logs = node.ask("KEYS session:{*}:log");
        assert!(
            !logs.starts_with("*0"),
            "no session on one of the nodes: {logs}"
        );
    }
    let mut idle = IdleSessions::open(&stack, &gateway, 12).await;
    let cutting = async { nodes.iter().for_each(RedisServer::drop_connections) };
    assert_complete_despite(&stack, &gateway, 30, cutting).await;
    idle.run_queries().await;
    let killing = async {
        nodes[1].kill();
        nodes[1].restart();
    };
    assert_complete_despite(&stack, &gateway, 30, killing).await;
    idle.run_queries().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_run_over_tls_cluster() {
    let secured = RedisCertificates::new();
    let ports = std::cell::RefCell::new(Vec::new());
    let _nodes = start_cluster(|| {
        ports.borrow_mut().push(free_port());
        let (port, lines) = (ports.borrow().last().copied().unwrap(), secured.lines());
        format!("tls-port {port}\n{lines}\ntls-cluster yes\ntls-replication yes")
    });
    let hosts: Vec<String> = ports
        .take()
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    assert_sessions_work(
        &secured.address_with_certificates(&format!("rediss-cluster://{}", hosts.join(","))),
    )
    .await;
}

/// Moves each node's slots to the next one, a third at a time, while clients read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_migration_loses_no_tokens() {
    let nodes = start_cluster(String::new);
    let address = cluster_address(&nodes);
    let stack = Stack::on(
        ready_bus(&address).await,
        slow_tokens(),
        GatewayOptions::default(),
    );
    let gateway = GatewayProcess::start(&ready_bus(&address).await, GatewayOptions::default());
    let ids: Vec<String> = nodes
        .iter()
        .map(|node| {
            let answer = node.ask("CLUSTER MYID");
            answer.lines().nth(1).unwrap().trim().to_owned()
        })
        .collect();
    let first = format!("127.0.0.1:{}", nodes[0].port);
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let loading = SessionLoad::closed(40, 4)
            .within(FAILOVER_TIMEOUT)
            .carry_out(stack.api, gateway.address);
        let before = gateway.counter("frames_total").await;
        let arguments = [
            "reshard",
            &first,
            "--cluster-from",
            &ids[from],
            "--cluster-to",
            &ids[to],
            "--cluster-slots",
            "1800",
        ];
        let arguments = arguments.map(str::to_owned);
        let moving = async {
            gateway.until("frames_total", before + 100).await;
            let moved = tokio::task::spawn_blocking(move || redis_cli(&arguments));
            moved.await.unwrap();
        };
        let (record, ()) = tokio::join!(loading, moving);
        assert_complete(&record, 160);
    }
    for node in &nodes {
        wait_until("slots are still moving", || {
            node.ask("CLUSTER INFO").contains("cluster_state:ok")
        });
    }
}
