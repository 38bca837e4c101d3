//! `serve llm`: a service that simulates a language model behind an agent platform. Its HTTP API creates sessions and
//! runs; a run's tokens are posted at a fixed pace to the bus, from which gateways pass them to clients. It also serves
//! the routes of OpenAI's and Anthropic's APIs, whose answers are streamed in HTTP responses and need no bus.
//!
//! Invariant: frame numbers of a session are consecutive over all runs and instances, and the last
//! frame of a run is its `done`. Instances share only the bus, so any of them can serve any
//! request, and an instance that stops hands its unfinished runs to the others.

mod chat;
mod completion;
mod connection;
mod embeddings;
mod frames;
mod messages;
mod metrics;
mod openai;
mod rerank;
mod responses;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use plimsoll_serving::accepting::accept_and_serve;
use plimsoll_serving::{BoundServer, ServeError, TrustedProxies};
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::bus::{BeginError, Bus, BusError, new_epoch};
use crate::metrics::{CONTENT_TYPE, Registry, encode_text};
use crate::refusals::RefusalLog;
use crate::token::TokenKeys;
use completion::{ServedApi, answer_request};
use connection::ApiConnection;
use frames::AnswerText;
pub use metrics::LlmStats;
use metrics::WaitingCount;

/// The APIs that the model is served over.
static APIS: [&ServedApi; 7] = [
    &chat::CHAT_API,
    &chat::COMPLETIONS_API,
    &responses::RESPONSES_API,
    &messages::MESSAGES_API,
    &embeddings::EMBEDDINGS_API,
    &rerank::RERANK_API,
    &rerank::UNVERSIONED_RERANK_API,
];

/// Largest body of a request in bytes.
const MAX_BODY_BYTES: usize = 2 << 20;
/// How long handing runs over to other instances may take after the drain time.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(3);

/// The default answer, 18 tokens.
pub const DEFAULT_RESPONSE_TEXT: &str = "Load is what a link carries, and the load line shows how \
                                 much it carries before it sinks.";

/// Options of the simulated model.
#[derive(Clone, Debug)]
pub struct LlmOptions {
    /// Time between two tokens, and before the first.
    pub token_delay: Duration,
    /// Largest deviation of each delay in either direction, uniformly distributed.
    pub jitter: Duration,
    /// The text of the answer; each word is a token.
    pub text: String,
    /// Number of tokens to which the text is repeated or cut. `None`: one token for each word of the text.
    pub tokens: Option<usize>,
    /// Maximum number of concurrent answers over OpenAI's and Anthropic's APIs; further answers wait. `None`:
    /// unlimited.
    pub slots: Option<usize>,
    /// Sessions are enabled, because there are gateways that receive their tokens.
    pub has_sessions: bool,
    /// Time from accept to the end of the first request's head, and from any head to the end of its
    /// body.
    pub request_timeout: Duration,
    /// Proxies whose `X-Forwarded-For` is believed, for the log.
    pub trusted_proxies: TrustedProxies,
    /// How long the service keeps serving after the signal to stop while `/ready` and `/health`
    /// answer 503, so that balancers notice before clients do.
    pub lame_duck: Duration,
}

impl Default for LlmOptions {
    fn default() -> LlmOptions {
        LlmOptions {
            token_delay: Duration::from_millis(50),
            jitter: Duration::ZERO,
            text: DEFAULT_RESPONSE_TEXT.to_owned(),
            tokens: None,
            slots: None,
            has_sessions: true,
            request_timeout: Duration::from_secs(10),
            trusted_proxies: TrustedProxies::default(),
            lame_duck: Duration::ZERO,
        }
    }
}

/// A service that is ready to serve.
pub struct LlmService {
    bus: Bus,
    keys: TokenKeys,
    text: AnswerText,
    options: LlmOptions,
    slots: Option<Arc<Semaphore>>,
    /// Number of answers that wait for a slot.
    waiting: WaitingCount,
    metrics: LlmStats,
    metrics_registry: Registry,
    refusals: RefusalLog,
    /// Number of runs in progress; shutdown waits for them.
    running: watch::Sender<usize>,
    /// Becomes true when runs must end at once.
    halt: watch::Sender<bool>,
    /// The service is about to stop: health checks fail, but clients are still served.
    is_in_lame_duck: AtomicBool,
}

impl LlmService {
    /// Creates a service; `keys` sign the tokens that open sessions.
    pub fn new(bus: Bus, keys: TokenKeys, options: LlmOptions) -> LlmService {
        let (metrics, running) = (LlmStats::default(), watch::Sender::new(0));
        let waiting = WaitingCount::default();
        LlmService {
            metrics_registry: metrics.registry(&running, &waiting, &bus),
            waiting,
            metrics,
            refusals: RefusalLog::default(),
            running,
            bus,
            keys,
            text: AnswerText::new(&options.text, options.tokens),
            slots: options.slots.map(|slots| Arc::new(Semaphore::new(slots))),
            options,
            halt: watch::Sender::new(false),
            is_in_lame_duck: AtomicBool::new(false),
        }
    }

    fn is_in_lame_duck(&self) -> bool {
        self.is_in_lame_duck.load(Ordering::Acquire)
    }

    /// Serves HTTP/1.1 and HTTP/2 until `shutdown` completes and for the lame-duck time after it.
    /// Runs in progress may then finish within the drain time. Unfinished ones are handed to
    /// another instance, or end with `"finish":"error"` if there is none.
    ///
    /// # Errors
    /// When the listening socket itself fails.
    pub async fn serve(
        self,
        bound: BoundServer,
        shutdown: impl Future<Output = ()>,
    ) -> Result<LlmStats, ServeError> {
        let drain = bound.drain;
        let llm = Arc::new(self);
        let adopting = run::adopt_offered_runs(&llm).await;
        let sessions = if llm.options.has_sessions {
            axum::Router::new()
                .route("/session/create", post(create_session))
                .route("/session/{id}/run", post(start_run))
                .route("/session/{id}/close", post(close_session))
        } else {
            axum::Router::new().route("/session/create", post(sessions_disabled_response))
        };
        let with_apis = APIS.into_iter().fold(sessions, |router, api| {
            let answer =
                |State(llm), headers: HeaderMap, body| answer_request(llm, api, headers, body);
            router.route(api.path, post(answer))
        });
        let router = with_apis
            .route("/v1/models", get(openai::models))
            .route("/health", get(health))
            .route("/ready", get(health))
            .route("/metrics", get(show_metrics))
            .with_state(Arc::clone(&llm));
        let mut end = Instant::now();
        let leaving = async {
            shutdown.await;
            llm.is_in_lame_duck.store(true, Ordering::Release);
            // Stops taking over other instances' runs, which could not finish here.
            drop(adopting);
            tokio::time::sleep(llm.options.lame_duck).await;
            end = Instant::now() + drain;
        };
        let connection = ApiConnection::new(&llm, router);
        // All accepted requests are answered before runs are counted, so no run can begin after the count.
        let serving = accept_and_serve(bound.with_alpn(&[b"h2", b"http/1.1"]), connection, leaving);
        let served = tokio::select! {
            served = serving => served.map(drop),
            () = llm.refusals.report_regularly() => Ok(()),
        };
        llm.refusals.report();
        served?;
        let mut running = llm.running.subscribe();
        let all_ended = |running: &usize| *running == 0;
        if timeout_at(end, running.wait_for(all_ended)).await.is_err() {
            llm.halt.send_replace(true);
            let _ = timeout(HANDOVER_TIMEOUT, running.wait_for(all_ended)).await;
        }
        let left = *llm.running.borrow() as u64;
        llm.metrics.unfinished.inc_by(left);
        Ok(llm.metrics.clone())
    }
}

async fn create_session(State(llm): State<Arc<LlmService>>) -> Response {
    let session = uuid::Uuid::new_v4().to_string();
    if let Err(e) = llm.bus.create_session(&session, new_epoch()).await {
        return bus_error_response(&e);
    }
    match llm.keys.sign(&session) {
        Ok(token) => {
            llm.metrics.sessions.inc();
            // Clients look for the token under either name.
            Json(json!({ "session_id": session, "auth_token": token, "token": token }))
                .into_response()
        }
        Err(e) => {
            tracing::error!("signing a token: {e}");
            error_response(
                StatusCode::INTERNAL_SERVER_ERROR,
                "token",
                "the token could not be signed",
            )
        }
    }
}

async fn sessions_disabled_response() -> Response {
    let text = "no sessions: nothing could receive their tokens; serve llm has them with --with-gateway or --redis";
    error_response(StatusCode::NOT_FOUND, "path", text)
}

/// Reads the body of a request, within the limits of time and size.
async fn read_body(llm: &LlmService, body: Body) -> Result<Bytes, Response> {
    match timeout(llm.options.request_timeout, to_bytes(body, MAX_BODY_BYTES)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(e)) => {
            let text = format!("the body: {e}");
            Err(error_response(StatusCode::BAD_REQUEST, "body", &text))
        }
        Err(_) => {
            let close = [(header::CONNECTION, "close")];
            let late = error_response(
                StatusCode::REQUEST_TIMEOUT,
                "body_late",
                "the body did not arrive in time",
            );
            Err((close, late).into_response())
        }
    }
}

/// The parameters of a request for a run.
#[derive(serde::Deserialize)]
struct RunRequest {
    /// Ignored: the answer is always the same text.
    #[serde(rename = "query")]
    _query: String,
}

async fn start_run(
    State(llm): State<Arc<LlmService>>,
    Path(session): Path<String>,
    body: Body,
) -> Response {
    if !is_session_id(&session) {
        return error_response(StatusCode::NOT_FOUND, "unknown_session", "no such session");
    }
    let body = match read_body(&llm, body).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    if !body.is_empty()
        && let Err(e) = serde_json::from_slice::<RunRequest>(&body)
    {
        let text = format!("the body is not {{\"query\": TEXT}}: {e}");
        return error_response(StatusCode::UNPROCESSABLE_ENTITY, "body", &text);
    }
    match run::begin_run(&llm, session).await {
        Ok(begun) => Json(json!({
            "run": begun.run_id(),
            "tokens": llm.text.len(),
            "epoch": begun.epoch,
        }))
        .into_response(),
        Err(e @ BeginError::Unknown) => {
            error_response(StatusCode::NOT_FOUND, "unknown_session", &e.to_string())
        }
        Err(e @ BeginError::Busy) => {
            error_response(StatusCode::CONFLICT, "run_in_progress", &e.to_string())
        }
        Err(BeginError::Bus(e)) => bus_error_response(&e),
    }
}

async fn close_session(
    State(llm): State<Arc<LlmService>>,
    Path(session): Path<String>,
) -> Response {
    if !is_session_id(&session) {
        return error_response(StatusCode::NOT_FOUND, "unknown_session", "no such session");
    }
    match llm.bus.close_session(&session).await {
        Ok(true) => Json(json!({ "closed": true })).into_response(),
        Ok(false) => error_response(StatusCode::NOT_FOUND, "unknown_session", "no such session"),
        Err(e) => bus_error_response(&e),
    }
}

async fn show_metrics(State(llm): State<Arc<LlmService>>) -> Response {
    (
        [(header::CONTENT_TYPE, CONTENT_TYPE)],
        encode_text(&llm.metrics_registry),
    )
        .into_response()
}

async fn health(State(llm): State<Arc<LlmService>>) -> Response {
    if llm.is_in_lame_duck() {
        let stopping = Json(json!({ "status": "stopping" }));
        return (StatusCode::SERVICE_UNAVAILABLE, stopping).into_response();
    }
    if !llm.bus.is_up() {
        let away = Json(json!({ "error": "the bus is not reachable" }));
        return (StatusCode::SERVICE_UNAVAILABLE, away).into_response();
    }
    let running = *llm.running.borrow();
    Json(json!({ "status": "healthy", "runs": running })).into_response()
}

/// The class of a refusal, for the log. Contains nothing that the client sent.
#[derive(Clone, Copy)]
struct RefusalReason(&'static str);

impl RefusalReason {
    fn new_extension(reason: &'static str) -> axum::Extension<RefusalReason> {
        axum::Extension(RefusalReason(reason))
    }
}

fn error_response(status: StatusCode, reason: &'static str, message: &str) -> Response {
    let reason = RefusalReason::new_extension(reason);
    (status, reason, Json(json!({ "error": message }))).into_response()
}

fn bus_error_response(e: &BusError) -> Response {
    tracing::warn!("{e}");
    let retry = [(header::RETRY_AFTER, "1")];
    (
        retry,
        error_response(StatusCode::SERVICE_UNAVAILABLE, "bus", &e.to_string()),
    )
        .into_response()
}

/// Returns whether the text is safe as part of a channel's name, so that a client cannot reach
/// another channel.
pub(crate) fn is_session_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}
