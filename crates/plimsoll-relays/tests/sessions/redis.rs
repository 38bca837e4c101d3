//! Tests of sessions over a real Redis server: no token may be lost when it is killed.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use plimsoll_model::metrics::measure::Count;
use plimsoll_relays::bus::{BeginError, Bus, ChannelDirection, FramePosition, RedisOptions};
use plimsoll_relays::gateway::GatewayOptions;
use plimsoll_relays::llm::LlmOptions;

use tokio::time::Instant;

use crate::client::{SocketClient, numbers};
use crate::killing::assert_complete_despite;
use crate::load::{SessionLoad, of};
use crate::ports::free_port;
use crate::stack::{GatewayProcess, Stack, quick};

pub(crate) const READY_LIMIT: Duration = Duration::from_secs(60);

/// A redis-server on a free port without persistence, killed when dropped.
pub(crate) struct RedisServer {
    pub(crate) port: u16,
    child: Child,
    pub(crate) dir: tempfile::TempDir,
}

impl RedisServer {
    pub(crate) fn start() -> RedisServer {
        RedisServer::configured("")
    }

    /// Starts a server with these configuration lines, in which PORT is replaced by its port and
    /// DIR by its folder. It listens without TLS unless they say otherwise.
    pub(crate) fn configured(lines: &str) -> RedisServer {
        let port = free_port();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display().to_string();
        let lines = lines
            .replace("PORT", &port.to_string())
            .replace("DIR", &path);
        let config =
            format!("port {port}\nbind 127.0.0.1\nsave \"\"\nappendonly no\ndir {path}\n{lines}\n");
        std::fs::write(dir.path().join("redis.conf"), config).unwrap();
        let child = RedisServer::spawn(port, dir.path(), lines.contains("sentinel"));
        RedisServer { port, child, dir }
    }

    fn spawn(port: u16, dir: &std::path::Path, sentinel: bool) -> Child {
        let child = Command::new("redis-server")
            .arg(dir.join("redis.conf"))
            .args(sentinel.then_some("--sentinel"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed: tests/setup.sh tests");
        let limit = Instant::now() + Duration::from_secs(60);
        let listens = || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
                || std::os::unix::net::UnixStream::connect(dir.join("socket")).is_ok()
        };
        while !listens() {
            assert!(Instant::now() < limit, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success(), "kill {signal}");
    }

    /// Closes all client connections, as a network failure would.
    pub(crate) fn drop_connections(&self) {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream
            .write_all(b"CLIENT KILL TYPE normal\r\nCLIENT KILL TYPE pubsub\r\n")
            .unwrap();
        let _ = stream.read(&mut [0; 64]).unwrap();
    }

    /// Returns Redis's reply to a command in wire format. Retries if the connection is cut, which
    /// Sentinel does to a server when its master changes.
    pub(crate) fn ask(&self, command: &str) -> String {
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            match self.try_command(command) {
                Ok(answer) if !answer.is_empty() => return answer,
                cut => assert!(Instant::now() < limit, "{command}: {cut:?}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn try_command(&self, command: &str) -> std::io::Result<String> {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut answer = [0; 4096];
        let n = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..n]).into_owned())
    }

    pub(crate) fn restart(&mut self) {
        self.child = RedisServer::spawn(self.port, self.dir.path(), false);
    }

    pub(crate) async fn bus(&self) -> Bus {
        bus_at(([127, 0, 0, 1], self.port).into()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_run_over_sharded_channels() {
    let mut server = RedisServer::start();
    let port = server.port;
    let sharded = async || {
        let address = format!("redis://127.0.0.1:{port}").parse().unwrap();
        let options = RedisOptions {
            sharded: true,
            ..RedisOptions::default()
        };
        let bus = Bus::redis(address, options);
        bus.wait_until_ready(READY_LIMIT).await.unwrap();
        bus
    };
    let stack = Stack::on(sharded().await, quick(), GatewayOptions::default());
    let gateway = GatewayProcess::start(&sharded().await, GatewayOptions::default());
    let record = SessionLoad::closed(20, 2)
        .carry_out(stack.api, gateway.address)
        .await;
    assert_eq!(
        (record.due, record.ok_calls()),
        (40, 40),
        "{:?}",
        record.outcomes
    );
    assert_eq!(of(&record, Count::TokensReceived), 40 * 18);
    server.kill();
    server.restart();
    for bus in [&stack.bus, &sharded().await] {
        bus.wait_until_ready(READY_LIMIT).await.unwrap();
    }
    let record = SessionLoad::closed(5, 1)
        .carry_out(stack.api, gateway.address)
        .await;
    assert_eq!(record.ok_calls(), 5, "{:?}", record.outcomes);
}

pub(crate) async fn bus_at(address: std::net::SocketAddr) -> Bus {
    let address = format!("redis://{address}").parse().unwrap();
    let bus = Bus::redis(address, RedisOptions::default());
    bus.wait_until_ready(READY_LIMIT).await.unwrap();
    bus
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // The test may have killed it already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn separate_gateways_share_one_redis() {
    let server = RedisServer::start();
    let stack = Stack::on(server.bus().await, quick(), GatewayOptions::default());
    // Another gateway with its own connections.
    let second = GatewayProcess::start(&server.bus().await, GatewayOptions::default());
    let record = SessionLoad::closed(40, 3)
        .carry_out(stack.api, second.address)
        .await;
    assert_eq!(
        (record.due, record.ok_calls()),
        (120, 120),
        "{:?}",
        record.outcomes
    );
    assert_eq!(of(&record, Count::TokensReceived), 120 * 18);
    let (session, token) = stack.session().await;
    let mut client = SocketClient::open(second.address, &session, &token, "")
        .await
        .ok()
        .unwrap();
    assert_eq!(stack.run(&session).await, 200);
    assert_eq!(
        numbers(&client.until_done().await),
        (1..=19).collect::<Vec<u64>>()
    );
    // The frames are in the log for a client that connects later to the other gateway.
    let gateway = stack.gateway.address;
    let mut late = SocketClient::open(gateway, &session, &token, "?after=10")
        .await
        .ok()
        .unwrap();
    assert_eq!(late.frame().await["resumed"], true);
    assert_eq!(
        numbers(&late.until_done().await),
        (11..=19).collect::<Vec<u64>>()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_backend_run_is_taken_over() {
    let server = RedisServer::start();
    let (dead, alive) = (server.bus().await, server.bus().await);
    struct Nothing;
    impl plimsoll_relays::bus::MessageSink for Nothing {
        fn on_message(&self, _: &bytes::Bytes) {}
        fn resync(&self) {}
    }
    let nothing = || std::sync::Arc::new(Nothing);
    dead.create_session("s", 5).await.unwrap();
    let listening = dead
        .listen("s", ChannelDirection::Up, nothing())
        .await
        .unwrap();
    dead.begin_run("s").await.unwrap();
    let frame = bytes::Bytes::from_static(br#"{"type":"token","seq":1,"epoch":5}"#);
    dead.post("s", &frame, FramePosition::First);
    dead.confirm_posts("s").await.unwrap();
    let _listening = alive
        .listen("s", ChannelDirection::Up, nothing())
        .await
        .unwrap();
    assert!(matches!(alive.begin_run("s").await, Err(BeginError::Busy)));
    drop(listening);
    drop(dead);
    // Redis notices the closed connection, after which the run has no listener.
    let limit = Instant::now() + Duration::from_secs(60);
    let begun = loop {
        match alive.begin_run("s").await {
            Ok(begun) => break begun,
            Err(e) => assert!(Instant::now() < limit, "{e}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((begun.epoch, begun.last), (5, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_crash_loses_no_tokens() {
    let mut server = RedisServer::start();
    let slow = LlmOptions {
        token_delay: Duration::from_millis(60),
        ..LlmOptions::default()
    };
    let stack = Stack::on(server.bus().await, slow, GatewayOptions::default());
    let gateway = GatewayProcess::start(&server.bus().await, GatewayOptions::default());
    // The server is killed in the middle of every session's query and restarts empty.
    let killing = async {
        server.kill();
        let path = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let limit = Instant::now() + Duration::from_secs(30);
        while crate::client::http(gateway.address, path).await.0 != 503 {
            assert!(
                Instant::now() < limit,
                "a gateway without its Redis says so"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server.restart();
    };
    let record = assert_complete_despite(&stack, &gateway, 40, killing).await;
    assert_eq!(of(&record, Count::Reconnects), 0, "the sockets lived on");
    // Everything continues as before.
    let record = SessionLoad::closed(10, 2)
        .carry_out(stack.api, gateway.address)
        .await;
    assert_eq!(record.ok_calls(), 20, "{:?}", record.outcomes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_stall_loses_no_tokens() {
    let server = RedisServer::start();
    let slow = LlmOptions {
        token_delay: Duration::from_millis(30),
        ..LlmOptions::default()
    };
    let stack = Stack::on(server.bus().await, slow, GatewayOptions::default());
    let gateway = GatewayProcess::start(&server.bus().await, GatewayOptions::default());
    let stopping = async {
        server.signal("-STOP");
        // Longer than any pause within a run, shorter than the timeout for a reply.
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.signal("-CONT");
    };
    assert_complete_despite(&stack, &gateway, 30, stopping).await;
    let record = SessionLoad::closed(30, 1)
        .carry_out(stack.api, gateway.address)
        .await;
    crate::killing::assert_complete(&record, 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_redis_gets_known_sessions_back() {
    let mut server = RedisServer::start();
    let stack = Stack::on(server.bus().await, quick(), GatewayOptions::default());
    let gateway = GatewayProcess::start(&server.bus().await, GatewayOptions::default());
    let open = async |session: &str, token: &str, query: &str| {
        let opened = SocketClient::open(gateway.address, session, token, query).await;
        opened.unwrap_or_else(|status| panic!("refused with {status}"))
    };
    // Waits until the backend has noticed that Redis is back.
    let run = async |session: &str| {
        loop {
            match stack.run(session).await {
                503 => tokio::time::sleep(Duration::from_millis(20)).await,
                status => return status,
            }
        }
    };
    let (session, token) = stack.session().await;
    let mut client = open(&session, &token, "").await;
    let (fresh, fresh_token) = stack.session().await;
    let mut fresh_client = open(&fresh, &fresh_token, "").await;
    // This session has no socket, and the other one is over.
    let (unknown, _) = stack.session().await;
    let (closed, closed_token) = stack.session().await;
    let _closed_client = open(&closed, &closed_token, "").await;
    let path = format!("/session/{closed}/close");
    assert_eq!(crate::client::post(stack.api, &path).await.0, 200);
    assert_eq!(stack.run(&session).await, 200);
    let epoch = client.until_done().await[0]["epoch"].as_u64().unwrap();
    stack.settled().await;

    // A lost connection loses no data: a session that is over stays over.
    let before = stack.bus.possible_post_losses();
    server.drop_connections();
    let limit = Instant::now() + Duration::from_secs(60);
    while stack.bus.possible_post_losses() == before {
        assert!(Instant::now() < limit, "the loss is not noticed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stack.bus.wait_until_ready(READY_LIMIT).await.unwrap();
    assert_eq!(run(&closed).await, 404);

    server.kill();
    server.restart();
    assert_eq!(run(&session).await, 200);
    let frames = client.until_done().await;
    assert_eq!(numbers(&frames), (20..=38).collect::<Vec<u64>>());
    assert_eq!(frames[0]["epoch"].as_u64(), Some(epoch));
    assert_eq!(run(&fresh).await, 200);
    let frames = fresh_client.until_done().await;
    assert_eq!(numbers(&frames), (1..=19).collect::<Vec<u64>>());
    assert_eq!(run(&unknown).await, 404);

    // A client that has everything continues; one that missed frames gets a notice.
    let mut whole = open(&session, &token, &format!("?after=38&epoch={epoch}")).await;
    assert_eq!(whole.frame().await["resumed"], true);
    let mut behind = open(&session, &token, "?after=7").await;
    assert_eq!(behind.frame().await["resumed"], true);
    assert_eq!(behind.frame().await["resumed"], false);
    assert_eq!(behind.close_code().await, 4409);
}
