//! `serve llm`: a service that answers like a language model behind an agent platform.
//! Its HTTP API makes sessions and runs; a run's tokens go to the bus at a set pace. Beside them it
//! has OpenAI's routes, whose answers stream over the same connection and need no bus.
//!
//! Invariant: a frame's number is one more than the one before it in its session, over
//! all runs and all instances, and the last frame of a run is its `done`. Instances
//! share nothing but the bus, so any of them takes any request, and one that stops before its
//! runs have ended hands them to the others.

mod connection;
mod frames;
mod metrics;
mod openai;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use plimsoll_protocols::serving::accepting::accept;
use plimsoll_protocols::serving::{Bound, Proxies, ServeError};
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::bus::{BeginError, Bus, BusError, new_epoch};
use crate::metrics::{CONTENT_TYPE, Registry, text};
use crate::refusals::Refusals;
use crate::token::Keys;
use connection::Connection;
use frames::Text;
pub use metrics::LlmStats;

/// The longest body of a request. Bytes.
const MAX_BODY: usize = 2 << 20;
/// Time that a hand-over to others may take after the drain time.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(3);

/// The answer unless another is asked for: 18 tokens.
pub const RESPONSE_TEXT: &str = "Load is what a link carries, and the load line shows how \
                                 much it carries before it sinks.";

/// How the model answers.
#[derive(Clone, Debug)]
pub struct LlmOptions {
    /// Time from one token to the next, and before the first.
    pub token_delay: Duration,
    /// Each delay varies evenly by at most this much, either way.
    pub jitter: Duration,
    /// What is answered, a token a word.
    pub text: String,
    /// How many tokens, the text repeated or cut; `None`: as many as the text has words.
    pub tokens: Option<usize>,
    /// Answers over OpenAI's routes that go on at once, the others wait; `None`: any number.
    pub slots: Option<usize>,
    /// Runs of sessions have somebody to send their tokens to.
    pub has_sessions: bool,
    /// Time from accept to the end of the first request's head, and from any head to the end of its
    /// body.
    pub request_timeout: Duration,
    /// Proxies whose `X-Forwarded-For` is believed, for the log.
    pub trusted_proxies: Proxies,
    /// Time that the service serves on after the signal to stop, while `/ready` and `/health`
    /// answer 503: balancers have to notice before clients do.
    pub lame_duck: Duration,
}

impl Default for LlmOptions {
    fn default() -> LlmOptions {
        LlmOptions {
            token_delay: Duration::from_millis(50),
            jitter: Duration::ZERO,
            text: RESPONSE_TEXT.to_owned(),
            tokens: None,
            slots: None,
            has_sessions: true,
            request_timeout: Duration::from_secs(10),
            trusted_proxies: Proxies::default(),
            lame_duck: Duration::ZERO,
        }
    }
}

/// The service, ready to be served.
pub struct Llm {
    bus: Bus,
    keys: Keys,
    text: Text,
    options: LlmOptions,
    slots: Option<Arc<Semaphore>>,
    metrics: LlmStats,
    shown: Registry,
    refusals: Refusals,
    /// Runs that have begun; stopping waits for them.
    running: watch::Sender<usize>,
    /// True once runs are to end at once.
    halt: watch::Sender<bool>,
    /// It is about to stop: health checks fail, and clients are still served.
    leaving: AtomicBool,
}

impl Llm {
    /// `keys`: of the tokens that open sessions.
    pub fn new(bus: Bus, keys: Keys, options: LlmOptions) -> Llm {
        let (metrics, running) = (LlmStats::default(), watch::Sender::new(0));
        Llm {
            shown: metrics.registry(&running, &bus),
            metrics,
            refusals: Refusals::default(),
            running,
            bus,
            keys,
            text: Text::new(&options.text, options.tokens),
            slots: options.slots.map(|slots| Arc::new(Semaphore::new(slots))),
            options,
            halt: watch::Sender::new(false),
            leaving: AtomicBool::new(false),
        }
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Serves HTTP/1.1 and HTTP/2 until `shutdown` completes, and for the lame duck's time after it. Runs
    /// that go on may then end within the drain time. Those that have not are handed to another
    /// instance, or end with `"finish":"error"` where there is none.
    ///
    /// # Errors
    /// When the listening socket itself fails.
    pub async fn serve(
        self,
        bound: Bound,
        shutdown: impl Future<Output = ()>,
    ) -> Result<LlmStats, ServeError> {
        let drain = bound.drain;
        let llm = Arc::new(self);
        let adopting = run::adopt_offered(&llm).await;
        let sessions = if llm.options.has_sessions {
            axum::Router::new()
                .route("/session/create", post(create))
                .route("/session/{id}/run", post(start_run))
                .route("/session/{id}/close", post(close))
        } else {
            axum::Router::new().route("/session/create", post(no_sessions))
        };
        let router = sessions
            .route("/v1/models", get(openai::models))
            .route("/v1/chat/completions", post(openai::chat))
            .route("/v1/completions", post(openai::completions))
            .route("/health", get(health))
            .route("/ready", get(health))
            .route("/metrics", get(show_metrics))
            .with_state(Arc::clone(&llm));
        let mut end = Instant::now();
        let leaving = async {
            shutdown.await;
            llm.leaving.store(true, Ordering::Release);
            // Others' runs would not end here.
            drop(adopting);
            tokio::time::sleep(llm.options.lame_duck).await;
            end = Instant::now() + drain;
        };
        let connection = Connection::new(&llm, router);
        // What was asked is answered before the runs are counted: none is begun after that.
        let serving = accept(
            bound.speaking_one_of(&[b"h2", b"http/1.1"]),
            connection,
            leaving,
        );
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
            let _ = timeout(HAND_OVER_LIMIT, running.wait_for(all_ended)).await;
        }
        let left = *llm.running.borrow() as u64;
        llm.metrics.unfinished.inc_by(left);
        Ok(llm.metrics.clone())
    }
}

async fn create(State(llm): State<Arc<Llm>>) -> Response {
    let session = uuid::Uuid::new_v4().to_string();
    if let Err(e) = llm.bus.create(&session, new_epoch()).await {
        return unavailable(&e);
    }
    match llm.keys.sign(&session) {
        Ok(token) => {
            llm.metrics.sessions.inc();
            // Clients look for it under either name.
            Json(json!({ "session_id": session, "auth_token": token, "token": token }))
                .into_response()
        }
        Err(e) => {
            tracing::error!("signing a token: {e}");
            problem(
                StatusCode::INTERNAL_SERVER_ERROR,
                "token",
                "the token could not be signed",
            )
        }
    }
}

async fn no_sessions() -> Response {
    let text = "no sessions: nothing could receive their tokens; serve llm has them with --with-gateway or --redis";
    problem(StatusCode::NOT_FOUND, "path", text)
}

/// The body of a request, if it comes in time and is not too long.
async fn whole_body(llm: &Llm, body: Body) -> Result<Bytes, Response> {
    match timeout(llm.options.request_timeout, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(e)) => {
            let text = format!("the body: {e}");
            Err(problem(StatusCode::BAD_REQUEST, "body", &text))
        }
        Err(_) => {
            let close = [(header::CONNECTION, "close")];
            let late = problem(
                StatusCode::REQUEST_TIMEOUT,
                "body_late",
                "the body did not come in time",
            );
            Err((close, late).into_response())
        }
    }
}

/// What a run is asked for with.
#[derive(serde::Deserialize)]
struct Asked {
    /// The answer is the same text whatever is asked.
    #[serde(rename = "query")]
    _query: String,
}

async fn start_run(
    State(llm): State<Arc<Llm>>,
    Path(session): Path<String>,
    body: Body,
) -> Response {
    if !is_session_id(&session) {
        return problem(StatusCode::NOT_FOUND, "unknown_session", "no such session");
    }
    let body = match whole_body(&llm, body).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    if !body.is_empty()
        && let Err(e) = serde_json::from_slice::<Asked>(&body)
    {
        let text = format!("the body is not {{\"query\": TEXT}}: {e}");
        return problem(StatusCode::UNPROCESSABLE_ENTITY, "body", &text);
    }
    match run::begin(&llm, session).await {
        Ok(begun) => Json(json!({
            "run": begun.run(),
            "tokens": llm.text.len(),
            "epoch": begun.epoch,
        }))
        .into_response(),
        Err(e @ BeginError::Unknown) => {
            problem(StatusCode::NOT_FOUND, "unknown_session", &e.to_string())
        }
        Err(e @ BeginError::Busy) => {
            problem(StatusCode::CONFLICT, "run_in_progress", &e.to_string())
        }
        Err(BeginError::Bus(e)) => unavailable(&e),
    }
}

async fn close(State(llm): State<Arc<Llm>>, Path(session): Path<String>) -> Response {
    if !is_session_id(&session) {
        return problem(StatusCode::NOT_FOUND, "unknown_session", "no such session");
    }
    match llm.bus.close(&session).await {
        Ok(true) => Json(json!({ "closed": true })).into_response(),
        Ok(false) => problem(StatusCode::NOT_FOUND, "unknown_session", "no such session"),
        Err(e) => unavailable(&e),
    }
}

async fn show_metrics(State(llm): State<Arc<Llm>>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text(&llm.shown)).into_response()
}

async fn health(State(llm): State<Arc<Llm>>) -> Response {
    if llm.is_leaving() {
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

/// Why a request is not answered as it wishes: its class, for the log. Never holds what the client sent.
#[derive(Clone, Copy)]
struct Reason(&'static str);

impl Reason {
    fn of(reason: &'static str) -> axum::Extension<Reason> {
        axum::Extension(Reason(reason))
    }
}

fn problem(status: StatusCode, reason: &'static str, message: &str) -> Response {
    let reason = Reason::of(reason);
    (status, reason, Json(json!({ "error": message }))).into_response()
}

fn unavailable(e: &BusError) -> Response {
    tracing::warn!("{e}");
    let retry = [(header::RETRY_AFTER, "1")];
    (
        retry,
        problem(StatusCode::SERVICE_UNAVAILABLE, "bus", &e.to_string()),
    )
        .into_response()
}

/// What may be part of a channel's name: nothing that a client could aim elsewhere with.
pub(crate) fn is_session_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}
