//! Kills hundreds of connections at random times, between clients and gateways and between gateways
//! and Redis: no token may be lost, duplicated or reordered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_model::metrics::measure::Count;
use plimsoll_model::records::record::StageRecord;
use plimsoll_relays::gateway::GatewayOptions;
use plimsoll_relays::llm::LlmOptions;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::load::{SessionLoad, of};
use crate::redis::RedisServer;
use crate::stack::{GatewayProcess, Stack, quick};

/// A proxy that relays connections to `to` and cuts each after a random time.
struct KillingProxy {
    address: SocketAddr,
    kills: Arc<AtomicU64>,
    active: Arc<AtomicBool>,
}

impl KillingProxy {
    /// Cuts connections after `shortest` to twice that time.
    async fn start(to: SocketAddr, shortest: Duration) -> KillingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kills = Arc::new(AtomicU64::new(0));
        let active = Arc::new(AtomicBool::new(true));
        let (killed, killing) = (Arc::clone(&kills), Arc::clone(&active));
        tokio::spawn(async move {
            let mut random = 0x9e37_79b9_7f4a_7c15u64;
            while let Ok((mut client, _)) = listener.accept().await {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let life = shortest + shortest.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64);
                let (killed, killing) = (Arc::clone(&killed), Arc::clone(&killing));
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(to).await else {
                        return;
                    };
                    let mut carrying =
                        Box::pin(tokio::io::copy_bidirectional(&mut client, &mut server));
                    while timeout(life, &mut carrying).await.is_err() {
                        if killing.load(Ordering::Relaxed) {
                            killed.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                    }
                });
            }
        });
        KillingProxy {
            address,
            kills,
            active,
        }
    }

    fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }
}

/// Asserts that everything was received, once and in order.
pub(crate) fn assert_complete(record: &StageRecord, queries: u64) {
    let outcomes = || format!("{:?} {:?}", record.outcomes, record.measures);
    assert_eq!(
        (record.due, record.ok_calls()),
        (queries, queries),
        "{}",
        outcomes()
    );
    assert_eq!(of(record, Count::TokensReceived), queries * 18);
    for none in [
        Count::TokensMissing,
        Count::TokensDuplicated,
        Count::TokensOutOfOrder,
        Count::TokensStray,
        Count::HistoryGone,
    ] {
        assert_eq!(of(record, none), 0, "{}", none.key());
    }
}

/// Runs one query in each of several sessions and asserts that all are complete, although something
/// happens to the bus once all have begun to send tokens. A query that begins while the bus is down
/// is refused, and how long it is down depends on the machine.
pub(crate) async fn assert_complete_despite(
    stack: &Stack,
    gateway: &GatewayProcess,
    sessions: u32,
    disturbing: impl Future<Output = ()>,
) -> StageRecord {
    let queries = u64::from(sessions);
    let runs = stack.runs().await + queries;
    let frames = gateway.counter("frames_total").await + 2 * queries;
    let loading = SessionLoad::closed(sessions, 1)
        .within(Duration::from_secs(60))
        .carry_out(stack.api, gateway.address);
    let disturbing = async {
        stack.wait_for_runs(runs).await;
        gateway.until("frames_total", frames).await;
        disturbing.await;
    };
    let (record, ()) = tokio::join!(loading, disturbing);
    assert_complete(&record, queries);
    record
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_sockets_lose_no_tokens() {
    let slow = LlmOptions {
        token_delay: Duration::from_millis(25),
        ..LlmOptions::default()
    };
    let stack = Stack::start(slow, GatewayOptions::default());
    let killer = KillingProxy::start(stack.gateway.address, Duration::from_millis(120)).await;
    let record = SessionLoad::closed(50, 3)
        .carry_out(stack.api, killer.address)
        .await;
    assert_complete(&record, 150);
    assert!(killer.kills() >= 200, "{}", killer.kills());
    assert!(of(&record, Count::Reconnects) >= 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_redis_connections_lose_no_tokens() {
    let server = RedisServer::start();
    let to = SocketAddr::from(([127, 0, 0, 1], server.port));
    let killer = KillingProxy::start(to, Duration::from_millis(200)).await;
    let slow = LlmOptions {
        token_delay: Duration::from_millis(25),
        ..LlmOptions::default()
    };
    let stack = Stack::on(server.bus().await, slow, GatewayOptions::default());
    // The gateway reaches its Redis through the killer; the backend connects directly.
    let gateway = GatewayProcess::start(
        &crate::redis::bus_at(killer.address).await,
        GatewayOptions::default(),
    );
    let record = SessionLoad::closed(30, 4)
        .carry_out(stack.api, gateway.address)
        .await;
    assert_complete(&record, 120);
    assert!(killer.kills() >= 10, "{}", killer.kills());
    // Without further disturbance everything continues to work.
    killer.active.store(false, Ordering::Relaxed);
    let again = Stack::on(server.bus().await, quick(), GatewayOptions::default());
    let record = SessionLoad::closed(5, 2)
        .carry_out(again.api, gateway.address)
        .await;
    assert_complete(&record, 10);
}
