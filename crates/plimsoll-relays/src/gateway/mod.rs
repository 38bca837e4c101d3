//! `relay gateway`: connects WebSocket clients to the bus, to which backends post the frames of sessions.
//!
//! Invariant: a client gets its 101 only after its session's channel is subscribed, so it misses no
//! frame published after that. A client whose log is complete gets every frame once and in order,
//! even if the bus fails in between ([`delivery`]). A session's first socket begins at the
//! session's first frame; each later one continues where the previous one stopped, on whichever
//! gateway that was. Each session is one task that owns its socket and holds a bounded amount of
//! memory.

mod admission;
mod delivery;
mod echo;
mod mailbox;
mod metrics;
mod request;
mod session;
mod stream;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_engine::fault;
use plimsoll_serving::{AsyncListener, BoundServer, PeerAddress, ServeError, TrustedProxies};
use plimsoll_wire::websocket::code;
use rustls::ServerConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::bus::Bus;
use crate::client_address::ClientAddress;
use crate::refusals::RefusalLog;
use crate::token::TokenKeys;
use mailbox::Mailbox;
pub use metrics::Metrics;
use request::{GatewayRequest, GatewayResponse};
use stream::{ClientStream, accept_tls, send};

/// How long a client may take to answer our Close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a new socket waits for the one it replaces to record where it stopped.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often shutdown checks whether all sessions have ended.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Options of the gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Interval between pings.
    pub ping_interval: Duration,
    /// A client that sends nothing for longer than this, not even pongs, is disconnected with close code 4408.
    pub ping_timeout: Duration,
    /// Maximum number of concurrent sessions; further clients are answered 503.
    pub max_sessions: usize,
    /// Longest message from a client in bytes.
    pub max_message: usize,
    /// Bytes queued for a slow client; beyond that, frames are dropped and read from the log once
    /// it catches up. Replies to its own messages have the same limit; above it the client is not
    /// read, and after `ping_timeout` it is closed with 1008.
    pub max_queue: usize,
    /// Time from accept to the end of the request's head.
    pub request_timeout: Duration,
    /// Agree to compress messages (RFC 7692) with clients that offer it.
    pub compression: bool,
    /// Proxies whose `X-Forwarded-For` is believed, for the log.
    pub trusted_proxies: TrustedProxies,
    /// How long the gateway keeps serving after the signal to stop while `/ready` and `/health`
    /// answer 503, so that balancers notice before clients do.
    pub lame_duck: Duration,
    /// Echo every message, to any client on any path, for conformance suites.
    pub echo: bool,
}

impl Default for GatewayOptions {
    fn default() -> GatewayOptions {
        GatewayOptions {
            ping_interval: Duration::from_secs(15),
            ping_timeout: Duration::from_secs(30),
            max_sessions: 100_000,
            max_message: 64 * 1024,
            max_queue: 64 * 1024,
            request_timeout: Duration::from_secs(10),
            compression: false,
            trusted_proxies: TrustedProxies::default(),
            lame_duck: Duration::ZERO,
            echo: false,
        }
    }
}

/// A gateway that is ready to serve.
pub struct Gateway {
    bus: Bus,
    keys: TokenKeys,
    options: GatewayOptions,
    metrics: Metrics,
    metrics_registry: crate::metrics::Registry,
    refusals: RefusalLog,
    registry: SocketRegistry,
    open_sessions: Arc<AtomicU64>,
    /// The gateway is about to stop: health checks fail, but clients are still served.
    is_leaving: AtomicBool,
    /// The gateway accepts no new sockets.
    is_stopping: AtomicBool,
}

impl Gateway {
    /// Creates a gateway; `keys` verify the tokens that open sessions.
    pub fn new(bus: Bus, keys: TokenKeys, options: GatewayOptions) -> Gateway {
        let (metrics, open) = (Metrics::default(), Arc::default());
        Gateway {
            metrics_registry: metrics.registry(&open, &bus),
            bus,
            keys,
            options,
            metrics,
            refusals: RefusalLog::default(),
            registry: SocketRegistry::default(),
            open_sessions: open,
            is_leaving: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        }
    }

    /// Serves until `shutdown` completes and for the lame-duck time after it. Sessions are then closed with code 1012,
    /// one after another during the drain time, so that their clients do not reconnect all at once.
    ///
    /// # Errors
    /// When the listening socket itself fails.
    pub async fn serve(
        self,
        bound: BoundServer,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Metrics, ServeError> {
        let (lame_duck, drain) = (self.options.lame_duck, bound.drain);
        let left = async move {
            tokio::time::sleep(lame_duck).await;
            drain
        };
        self.serve_until(bound, shutdown, left).await
    }

    /// Like [`Gateway::serve`], but serves until `left` completes. `left` is polled once `shutdown`
    /// has completed, and returns the remaining drain time.
    ///
    /// # Errors
    /// When the listening socket itself fails.
    pub async fn serve_until(
        self,
        bound: BoundServer,
        shutdown: impl Future<Output = ()>,
        left: impl Future<Output = Duration>,
    ) -> Result<Metrics, ServeError> {
        let (tls, proxies) = (bound.tls_with_alpn(&[b"http/1.1"]), bound.proxies.clone());
        let listener = bound.into_listener()?;
        let gateway = Arc::new(self);
        let leaving = async {
            shutdown.await;
            gateway.is_leaving.store(true, Ordering::Release);
            left.await
        };
        let take = |stream, peer| {
            let (gateway, proxies, tls) = (Arc::clone(&gateway), proxies.clone(), tls.clone());
            tokio::spawn(serve_connection(gateway, stream, proxies, tls, peer));
        };
        let drain = tokio::select! {
            biased;
            drain = leaving => drain,
            failed = accept(&listener, take) => failed?,
            () = gateway.refusals.report_regularly() => Duration::ZERO,
        };
        listener.close(take).await;
        gateway.is_stopping.store(true, Ordering::Release);
        gateway.close_all(drain).await;
        gateway.refusals.report();
        Ok(gateway.metrics.clone())
    }

    async fn close_all(&self, drain: Duration) {
        let mailboxes: Vec<Arc<Mailbox>> = self.registry.all_mailboxes();
        let count = mailboxes.len().max(1) as u32;
        let end = tokio::time::Instant::now() + drain;
        // Half of the drain time is for closing sessions, half for their answers.
        let gap = drain / 2 / count;
        let mut due = tokio::time::Instant::now();
        for mailbox in mailboxes {
            mailbox.close(code::SERVICE_RESTART);
            due += gap;
            tokio::time::sleep_until(due).await;
        }
        while self.open_sessions.load(Ordering::Acquire) > 0 && tokio::time::Instant::now() < end {
            tokio::time::sleep(STOP_POLL_INTERVAL).await;
        }
    }

    fn record_refusal(&self, status: Option<u16>, reason: &'static str, peer: ClientAddress) {
        self.metrics.count_refusal(reason);
        self.refusals.log_refusal(status, reason, peer);
    }

    fn health_response(&self) -> GatewayResponse {
        if self.is_leaving.load(Ordering::Acquire) {
            return GatewayResponse::json(503, r#"{"status":"stopping"}"#);
        }
        if !self.bus.is_up() {
            return GatewayResponse::json(503, r#"{"status":"the bus is not reachable"}"#);
        }
        let open = self.open_sessions.load(Ordering::Acquire);
        GatewayResponse::json(200, format!(r#"{{"status":"healthy","sessions":{open}}}"#))
    }
}

/// Accepts connections until the listening socket fails.
///
/// # Errors
/// Returns the error of the listening socket.
async fn accept<T>(
    listener: &AsyncListener,
    take: impl Fn(TcpStream, PeerAddress),
) -> Result<T, ServeError> {
    loop {
        let (stream, peer) = listener.next().await?;
        take(stream, peer);
    }
}

async fn serve_connection(
    gateway: Arc<Gateway>,
    stream: TcpStream,
    proxies: TrustedProxies,
    tls: Option<Arc<ServerConfig>>,
    peer: PeerAddress,
) {
    fault::point("gateway");
    let opening = async {
        let peer = match proxies.read_client(&stream, peer).await {
            Ok(client) => client,
            Err(e) => {
                tracing::debug!(%peer, "{e}");
                if let Some(reason) = e.reason() {
                    gateway.record_refusal(None, reason, ClientAddress::Peer(peer));
                }
                return None;
            }
        };
        let mut stream = match accept_tls(stream, tls.as_ref()).await {
            Ok(stream) => stream,
            Err(e) => {
                tracing::debug!(%peer, "tls handshake: {e}");
                gateway.record_refusal(None, "tls_handshake", ClientAddress::Peer(peer));
                return None;
            }
        };
        let request = GatewayRequest::read(&mut stream).await;
        Some((stream, peer, request))
    };
    // Boxed so that the session, which may last for hours, does not hold the memory that opening it needed.
    let limit = gateway.options.request_timeout;
    let opened = tokio::time::timeout(limit, Box::pin(opening)).await;
    let Ok(Some((mut stream, peer, request))) = opened else {
        return;
    };
    let request = match request {
        Ok(request) => request,
        Err(Some(answer)) => {
            return refuse(&gateway, &mut stream, ClientAddress::Peer(peer), &answer).await;
        }
        Err(None) => return,
    };
    let peer = request.client_address(peer, &gateway.options.trusted_proxies);
    let answer = match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/health" | "/ready") => gateway.health_response(),
        ("GET", "/metrics") => {
            GatewayResponse::metrics_page(crate::metrics::encode_text(&gateway.metrics_registry))
        }
        _ if gateway.options.echo => match request.check_upgrade(gateway.options.compression) {
            Ok(upgrade) => return echo::serve(&gateway.options, stream, &upgrade).await,
            Err(answer) => answer,
        },
        _ => match session::admit(&gateway, &request, peer).await {
            Ok(admitted) => {
                drop(request);
                return admitted.serve(stream).await;
            }
            Err(answer) => answer,
        },
    };
    refuse(&gateway, &mut stream, peer, &answer).await;
}

async fn refuse(
    gateway: &Gateway,
    stream: &mut ClientStream,
    peer: ClientAddress,
    answer: &GatewayResponse,
) {
    if !answer.reason.is_empty() {
        gateway.record_refusal(Some(answer.status), answer.reason, peer);
    }
    let answering = async {
        send(stream, &answer.encode()).await?;
        stream.shutdown().await
    };
    // It is not an error if the client does not wait for the response.
    let _: Result<std::io::Result<()>, _> = tokio::time::timeout(CLOSE_TIMEOUT, answering).await;
}

/// The current socket of each session. Entries have a generation, so that closing a replaced socket
/// does not remove its successor.
#[derive(Default)]
struct SocketRegistry(Mutex<SocketMap>);

/// The generation of each session's socket, and the mailbox that its frames go to.
type SocketMap = HashMap<Box<str>, (u64, Arc<Mailbox>)>;

impl SocketRegistry {
    fn lock(&self) -> MutexGuard<'_, SocketMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a session's new socket and closes the old one with code 4001.
    fn register(&self, session: &str, generation: u64, mailbox: Arc<Mailbox>) {
        let replaced = self.lock().insert(session.into(), (generation, mailbox));
        if let Some((_, old)) = replaced {
            old.close(code::SESSION_REPLACED);
        }
    }

    /// Closes the session's current socket with code 4001, because a new one is about to replace it; returns its
    /// mailbox.
    fn close_current(&self, session: &str) -> Option<Arc<Mailbox>> {
        let old = self.lock().get(session).map(|(_, old)| Arc::clone(old))?;
        old.close(code::SESSION_REPLACED);
        Some(old)
    }

    fn unregister(&self, session: &str, generation: u64) {
        let mut map = self.lock();
        if map.get(session).is_some_and(|(g, _)| *g == generation) {
            map.remove(session);
        }
    }

    fn all_mailboxes(&self) -> Vec<Arc<Mailbox>> {
        self.lock().values().map(|(_, m)| Arc::clone(m)).collect()
    }
}
