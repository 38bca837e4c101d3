//! `serve llm`: a service that answers like a language model behind an agent platform.
//! Its HTTP API makes sessions and runs; a run's tokens go to the bus at a set pace.
//!
//! Invariant: a frame's number is one more than the one before it in its session, over
//! all runs and all instances, and the last frame of a run is its `done`. Instances
//! share nothing but the bus, so any of them takes any request.

mod frames;
mod listener;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use plimsoll_protocols::serving::{Bound, ServeError};
use serde_json::json;
use tokio::sync::watch;

use crate::bus::{BeginError, Bus, BusError, new_epoch};
use crate::token::Signer;
use frames::Text;
use listener::Port;

/// The answer unless another is asked for: 18 tokens.
pub const RESPONSE_TEXT: &str = "Load is what a link carries, and the load line shows how \
                                 much it carries before it sinks.";

/// How the model answers.
#[derive(Clone, Debug)]
pub struct LlmOptions {
    /// From one token to the next, and before the first.
    pub token_delay: Duration,
    /// Each delay varies evenly by at most this much, either way.
    pub jitter: Duration,
    /// What is answered, a token a word.
    pub text: String,
    /// How many tokens, the text repeated or cut; `None`: as many as the text has words.
    pub tokens: Option<usize>,
}

impl Default for LlmOptions {
    fn default() -> LlmOptions {
        LlmOptions {
            token_delay: Duration::from_millis(50),
            jitter: Duration::ZERO,
            text: RESPONSE_TEXT.to_owned(),
            tokens: None,
        }
    }
}

/// What became of the runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LlmStats {
    pub sessions: u64,
    pub runs: u64,
    pub tokens: u64,
    /// Runs whose end could not be brought to the bus.
    pub unfinished: u64,
}

/// The service, ready to be served.
pub struct Llm {
    bus: Bus,
    signer: Signer,
    text: Text,
    options: LlmOptions,
    counters: Counters,
    /// Runs that have begun; stopping waits for them.
    running: watch::Sender<usize>,
    /// True once runs are to end at once.
    halt: watch::Sender<bool>,
}

#[derive(Default)]
struct Counters {
    sessions: AtomicU64,
    runs: AtomicU64,
    tokens: AtomicU64,
    unfinished: AtomicU64,
}

impl Llm {
    pub fn new(bus: Bus, signer: Signer, options: LlmOptions) -> Llm {
        Llm {
            bus,
            signer,
            text: Text::new(&options.text, options.tokens),
            options,
            counters: Counters::default(),
            running: watch::Sender::new(0),
            halt: watch::Sender::new(false),
        }
    }

    /// Serves HTTP/1.1 until `shutdown` completes; runs that go on may then end within the
    /// drain time, and are ended with `"finish":"error"` after it.
    ///
    /// # Errors
    /// When the listening socket itself fails.
    pub async fn serve(
        self,
        bound: Bound,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<LlmStats, ServeError> {
        let drain = bound.drain();
        let tls = bound.tls_for(b"http/1.1");
        let listener = Port::new(bound.into_listener()?, tls);
        let llm = Arc::new(self);
        let router = axum::Router::new()
            .route("/session/create", post(create))
            .route("/session/{id}/run", post(start_run))
            .route("/session/{id}/close", post(close))
            .route("/health", get(health))
            .with_state(Arc::clone(&llm));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = axum::serve(listener, router).with_graceful_shutdown(async move {
            shutdown.await;
            let _ = stop.send(());
        });
        let serving = tokio::spawn(async move { serving.await });
        // Also when the server has failed: the sender is then gone.
        let _ = stopped.await;
        let mut running = llm.running.subscribe();
        let ended = running.wait_for(|running| *running == 0);
        if tokio::time::timeout(drain, ended).await.is_err() {
            llm.halt.send_replace(true);
            let ended = running.wait_for(|running| *running == 0);
            let _ = tokio::time::timeout(Duration::from_secs(2), ended).await;
        }
        // Idle connections that clients keep open are not waited for.
        match tokio::time::timeout(Duration::from_millis(200), serving).await {
            Ok(Ok(Err(source))) => Err(ServeError::Io {
                doing: "accepting connections",
                source,
            }),
            _ => Ok(llm.stats()),
        }
    }

    fn stats(&self) -> LlmStats {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LlmStats {
            sessions: value(&self.counters.sessions),
            runs: value(&self.counters.runs),
            tokens: value(&self.counters.tokens),
            unfinished: value(&self.counters.unfinished),
        }
    }
}

async fn create(State(llm): State<Arc<Llm>>) -> Response {
    let session = uuid::Uuid::new_v4().to_string();
    if let Err(e) = llm.bus.create(&session, new_epoch()).await {
        return unavailable(&e);
    }
    match llm.signer.sign(&session) {
        Ok(token) => {
            llm.counters.sessions.fetch_add(1, Ordering::Relaxed);
            // Clients look for it under either name.
            Json(json!({ "session_id": session, "auth_token": token, "token": token }))
                .into_response()
        }
        Err(e) => {
            tracing::error!("signing a token: {e}");
            problem(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the token could not be signed",
            )
        }
    }
}

/// What a run is asked for with.
#[derive(serde::Deserialize)]
struct Asked {
    /// It is answered by the same text whatever it says.
    #[serde(rename = "query")]
    _query: String,
}

async fn start_run(
    State(llm): State<Arc<Llm>>,
    Path(session): Path<String>,
    body: Bytes,
) -> Response {
    if !is_session_id(&session) {
        return problem(StatusCode::NOT_FOUND, "no such session");
    }
    if !body.is_empty()
        && let Err(e) = serde_json::from_slice::<Asked>(&body)
    {
        let text = format!("the body is not {{\"query\": TEXT}}: {e}");
        return problem(StatusCode::UNPROCESSABLE_ENTITY, &text);
    }
    match run::begin(&llm, session).await {
        Ok(begun) => Json(json!({
            "run": begun.run,
            "tokens": llm.text.len(),
            "epoch": begun.epoch,
        }))
        .into_response(),
        Err(e @ BeginError::Unknown) => problem(StatusCode::NOT_FOUND, &e.to_string()),
        Err(e @ BeginError::Busy) => problem(StatusCode::CONFLICT, &e.to_string()),
        Err(BeginError::Bus(e)) => unavailable(&e),
    }
}

async fn close(State(llm): State<Arc<Llm>>, Path(session): Path<String>) -> Response {
    if !is_session_id(&session) {
        return problem(StatusCode::NOT_FOUND, "no such session");
    }
    match llm.bus.close(&session).await {
        Ok(true) => Json(json!({ "closed": true })).into_response(),
        Ok(false) => problem(StatusCode::NOT_FOUND, "no such session"),
        Err(e) => unavailable(&e),
    }
}

async fn health(State(llm): State<Arc<Llm>>) -> Response {
    if !llm.bus.is_up() {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "the bus is not reachable");
    }
    let running = *llm.running.borrow();
    Json(json!({ "status": "healthy", "runs": running })).into_response()
}

fn problem(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": message }))).into_response()
}

fn unavailable(e: &BusError) -> Response {
    tracing::warn!("{e}");
    let retry = [(header::RETRY_AFTER, "1")];
    (
        retry,
        problem(StatusCode::SERVICE_UNAVAILABLE, &e.to_string()),
    )
        .into_response()
}

/// What may be part of a channel's name: nothing that a client could aim elsewhere with.
pub(crate) fn is_session_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}
