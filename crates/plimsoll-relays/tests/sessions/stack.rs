//! A backend and gateways on one bus and on free ports, stopped when dropped.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_relays::bus::Bus;
use plimsoll_relays::gateway::{Gateway, GatewayOptions, Metrics};
use plimsoll_relays::llm::{LlmOptions, LlmService, LlmStats};
use plimsoll_relays::token::TokenKeys;
use plimsoll_serving::ListenOptions;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::{http, post};

pub(crate) const SECRET: &[u8] = b"a secret for tests, of 32 bytes and more";

pub(crate) fn listen() -> ListenOptions {
    ListenOptions {
        address: ([127, 0, 0, 1], 0).into(),
        drain: Duration::from_millis(500),
        ..ListenOptions::default()
    }
}

pub(crate) fn quick() -> LlmOptions {
    LlmOptions {
        token_delay: Duration::from_millis(2),
        ..LlmOptions::default()
    }
}

pub(crate) struct GatewayProcess {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Metrics>,
}

impl GatewayProcess {
    pub(crate) fn start(bus: &Bus, options: GatewayOptions) -> GatewayProcess {
        GatewayProcess::with_secret(bus, options, SECRET)
    }

    fn with_secret(bus: &Bus, options: GatewayOptions, secret: &[u8]) -> GatewayProcess {
        let keys = TokenKeys::new(&[secret.to_vec()]).unwrap();
        let gateway = Gateway::new(bus.clone(), keys, options);
        let bound = listen().bind().unwrap();
        let address = bound.address().tcp_address().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            gateway.serve(bound, stopped).await.unwrap()
        });
        GatewayProcess {
            address,
            stop: Some(stop),
            task,
        }
    }

    /// Begins to stop it without waiting.
    pub(crate) fn begin_to_stop(&mut self) {
        self.stop.take();
    }

    /// Returns one of the gateway's counters or gauges.
    pub(crate) async fn counter(&self, counter: &str) -> u64 {
        read_metric(self.address, &format!("plimsoll_gateway_{counter}")).await
    }

    /// Waits until one of the gateway's counters or gauges is `least` or more.
    pub(crate) async fn until(&self, counter: &str, least: u64) {
        let reached = async || self.counter(counter).await >= least;
        let not_yet = format!("{counter} is below {least}");
        wait_for(self.address, &not_yet, reached).await;
    }

    pub(crate) async fn stop(mut self) -> Metrics {
        self.stop.take();
        self.task.await.unwrap()
    }
}

/// A backend.
pub(crate) struct BackendProcess {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<LlmStats>,
}

impl BackendProcess {
    pub(crate) fn start(bus: &Bus, options: LlmOptions) -> BackendProcess {
        let keys = TokenKeys::new(&[SECRET.to_vec()]).unwrap();
        let llm = LlmService::new(bus.clone(), keys, options);
        let bound = listen().bind().unwrap();
        let address = bound.address().tcp_address().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            llm.serve(bound, stopped).await.unwrap()
        });
        BackendProcess {
            address,
            stop: Some(stop),
            task,
        }
    }

    /// Begins to stop it without waiting.
    pub(crate) fn begin_to_stop(&mut self) {
        self.stop.take();
    }

    pub(crate) async fn stop(mut self) -> LlmStats {
        self.stop.take();
        self.task.await.unwrap()
    }
}

pub(crate) struct Stack {
    pub(crate) bus: Bus,
    pub(crate) api: SocketAddr,
    pub(crate) gateway: GatewayProcess,
    _api: BackendProcess,
}

impl Stack {
    pub(crate) fn start(llm: LlmOptions, gateway: GatewayOptions) -> Stack {
        Stack::on(Bus::embedded(Duration::from_secs(60)), llm, gateway)
    }

    pub(crate) fn on(bus: Bus, llm: LlmOptions, gateway: GatewayOptions) -> Stack {
        let api = BackendProcess::start(&bus, llm);
        Stack {
            gateway: GatewayProcess::start(&bus, gateway),
            bus,
            api: api.address,
            _api: api,
        }
    }

    /// Creates a session; returns its id and token.
    pub(crate) async fn session(&self) -> (String, String) {
        session(self.api).await
    }

    /// Returns one of the backend's counters or gauges.
    async fn counter(&self, counter: &str) -> u64 {
        read_metric(self.api, &format!("plimsoll_llm_{counter}")).await
    }

    /// Returns the number of runs that the backend has begun since its start.
    pub(crate) async fn runs(&self) -> u64 {
        self.counter("runs_total").await
    }

    /// Waits until the backend has begun this many runs since its start.
    pub(crate) async fn wait_for_runs(&self, least: u64) {
        let reached = async || self.runs().await >= least;
        wait_for(self.api, "runs have not begun", reached).await;
    }

    /// Waits until every run has reached the bus completely. A client may have its last token
    /// before that, and the backend posts unconfirmed frames again.
    pub(crate) async fn settled(&self) {
        let reached = async || self.counter("runs_going_on").await == 0;
        wait_for(self.api, "runs are still in progress", reached).await;
    }

    pub(crate) async fn run(&self, session: &str) -> u16 {
        post(self.api, &format!("/session/{session}/run")).await.0
    }
}

/// Reads a counter or gauge from a metrics page.
async fn read_metric(at: SocketAddr, name: &str) -> u64 {
    let page = metrics_page(at).await;
    let rest = page.split(&format!("\n{name} ")).nth(1);
    let value = rest.and_then(|rest| rest.lines().next()?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {page}"))
}

async fn metrics_page(at: SocketAddr) -> String {
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    http(at, request).await.2
}

/// Waits for a condition that becomes true sooner or later on any machine. If it does not, prints the metrics at `at`.
async fn wait_for(at: SocketAddr, not_yet: &str, reached: impl AsyncFn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !reached().await {
        if Instant::now() >= limit {
            panic!("{not_yet}:\n{}", metrics_page(at).await);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Creates a session at a backend; returns its id and token.
pub(crate) async fn session(api: SocketAddr) -> (String, String) {
    let (status, made) = post(api, "/session/create").await;
    assert_eq!(status, 200, "{made}");
    let text = |key: &str| made[key].as_str().unwrap().to_owned();
    (text("session_id"), text("token"))
}

/// Starts a gateway with another secret.
pub(crate) fn foreign_gateway(bus: &Bus) -> GatewayProcess {
    GatewayProcess::with_secret(bus, GatewayOptions::default(), &[b'x'; 40])
}
