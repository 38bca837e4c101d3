//! The Bolt reference server, with known behaviour: SOFARPC's `HelloService` and `TestService`, and an echo
//! of plain strings.
//!
//! Heartbeats are answered at once. A request that has to wait for its delay or for a worker of the pool waits in a
//! separate task; any other request is answered by the task that reads it. A connection whose bytes are not Bolt is
//! closed, as the Java server does.

mod answers;
mod connection;

use std::future::Future;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use clap::Args;
use tokio::sync::{Semaphore, watch};

use super::Status;
use super::status::SOFA_ERROR;
use plimsoll_serving::ServeError;
use plimsoll_serving::accepting::{self, ConnectionHandler};
use plimsoll_serving::reference::{ReferenceServer, ServeContext, ServerCounts, ServerFuture};
use plimsoll_serving::response_timing::{ResponseDelay, ResponseScheduler, ResponseTiming};
use plimsoll_serving::tls_server::early_data::ServerStream;

/// The share of responses that fail with a given status (`--fail`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureShare {
    /// A Bolt status, or `None` for a SOFARPC failure: a success with an error header.
    pub status: Option<Status>,
    /// The share, from 0 to 1.
    pub share: f64,
}

impl FromStr for FailureShare {
    type Err = String;

    fn from_str(text: &str) -> Result<FailureShare, String> {
        let (name, share) = text
            .split_once('=')
            .ok_or_else(|| format!("`{text}` lacks an =: write \"TIMEOUT=1%\""))?;
        let status = if name.eq_ignore_ascii_case("SOFA_ERROR") {
            None
        } else {
            Some(Status::from_name(name).ok_or_else(|| {
                let names: Vec<&str> = Status::ALL.iter().map(|status| status.name()).collect();
                format!(
                    "`{name}` is not a valid status: use {} or SOFA_ERROR",
                    names.join(", ")
                )
            })?)
        };
        let percent = share
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok())
            .filter(|percent| (0.0..=100.0).contains(percent))
            .ok_or_else(|| {
                format!("`{share}` is not a valid share: write a percentage from 0% to 100%")
            })?;
        Ok(FailureShare {
            status,
            share: percent / 100.0,
        })
    }
}

/// SOFARPC over Bolt: HelloService/sayHello, TestService/echoStr, and the echo of strings.
#[derive(Args, Clone, Debug)]
#[command(
    before_help = "Example: a thread pool of 200 with no queue, 1 ms a request, 2% of them failing\n  \
    plimsoll serve bolt --listen 127.0.0.1:12200 --pool 200 --delay 1ms --fail SERVER_EXCEPTION=2%"
)]
pub struct BoltOptions {
    /// When and how calls are answered.
    #[command(flatten)]
    pub answers: ResponseTiming,

    /// How long an answer takes: "5ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub delay: ResponseDelay,

    /// Threads of the pool: maximum requests in progress at once; 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub pool: usize,

    /// Requests that may wait for the pool; further ones are answered with SERVER_THREADPOOL_BUSY.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub queue: usize,

    /// A share of answers that fail with a Bolt status, or with SOFA_ERROR (a success with
    /// an error header): "TIMEOUT=1%"; repeatable.
    #[arg(long, value_name = "STATUS=SHARE")]
    pub fail: Vec<FailureShare>,
}

impl ReferenceServer for BoltOptions {
    const COMMAND_NAME: &str = "bolt";

    fn start(self, context: ServeContext) -> Result<ServerFuture, ServeError> {
        check_failure_shares(&self.fail)?;
        let answering = ResponseScheduler::new(self.delay, self.answers)?;
        let server = Arc::new(BoltServer {
            scheduler: answering,
            answers_at_once: self.delay == ResponseDelay::Constant(Duration::ZERO)
                && self.answers.stall.is_none()
                && self.pool == 0,
            pool: (self.pool > 0).then(|| Semaphore::new(self.pool.min(Semaphore::MAX_PERMITS))),
            queue: self.queue,
            waiting: AtomicUsize::new(0),
            failure_shares: self.fail,
            counters: BoltCounters::default(),
        });
        Ok(Box::pin(async move {
            let handler = BoltHandler(Arc::clone(&server));
            let accepted = accepting::accept_and_serve(context.bound, handler, context.stopped);
            let connections = accepted.await?;
            let counters = &server.counters;
            let counted = [
                ("answered", &counters.answered),
                ("failed", &counters.failed),
                ("busy", &counters.busy),
                ("oneway", &counters.oneway),
                ("heartbeats", &counters.heartbeats),
                ("malformed", &counters.malformed),
            ];
            Ok(ServerCounts::from_counters(connections, counted))
        }))
    }
}

#[derive(Default)]
struct BoltCounters {
    /// Requests answered with the result of the call.
    answered: AtomicU64,
    oneway: AtomicU64,
    /// Requests answered with a failure, including those rejected as busy.
    failed: AtomicU64,
    busy: AtomicU64,
    heartbeats: AtomicU64,
    /// Connections closed because their bytes are not Bolt.
    malformed: AtomicU64,
}

/// The state that all connections share.
struct BoltServer {
    scheduler: ResponseScheduler,
    /// Whether responses can be sent as soon as their requests are read.
    answers_at_once: bool,
    pool: Option<Semaphore>,
    queue: usize,
    waiting: AtomicUsize,
    failure_shares: Vec<FailureShare>,
    counters: BoltCounters,
}

impl BoltServer {
    fn never_fails(&self) -> bool {
        self.failure_shares.is_empty()
    }

    /// Draws whether, and how, a request fails; `None`: it succeeds.
    fn draw_failure(&self) -> Option<FailureShare> {
        self.failure_shares.first()?;
        let mut drawn = self.scheduler.random_fraction();
        self.failure_shares.iter().copied().find(|share| {
            let is_met = drawn < share.share;
            drawn -= share.share;
            is_met
        })
    }

    /// Waits for a worker and then for the delay. Returns false if the queue is full.
    async fn wait_for_worker(&self) -> bool {
        let Some(pool) = &self.pool else {
            self.scheduler.wait().await;
            return true;
        };
        let worker = match pool.try_acquire() {
            Ok(worker) => Ok(worker),
            Err(_) if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.queue => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                return false;
            }
            Err(_) => {
                let worker = pool.acquire().await;
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                worker
            }
        };
        self.scheduler.wait().await;
        drop(worker);
        true
    }
}

fn check_failure_shares(shares: &[FailureShare]) -> Result<(), ServeError> {
    let total: f64 = shares.iter().map(|share| share.share).sum();
    let wrong = |share: &FailureShare| !(0.0..=1.0).contains(&share.share);
    if shares.iter().any(wrong) || total > 1.0 + 1e-9 {
        return Err(ServeError::invalid_option(
            "fail",
            format!(
                "the shares add up to {:.1}%: each share, and their sum, must be 0% to 100%",
                total * 100.0
            ),
        ));
    }
    Ok(())
}

/// The connection handler. Its clones, one for each connection, share the server.
#[derive(Clone)]
struct BoltHandler(Arc<BoltServer>);

impl ConnectionHandler for BoltHandler {
    fn serve<S: ServerStream>(
        self,
        stream: S,
        stopped: watch::Receiver<()>,
    ) -> impl Future<Output = io::Result<()>> + Send {
        connection::serve(stream, self.0, stopped)
    }
}

/// Prints the status's name, as in the report of a run.
impl std::fmt::Display for FailureShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.status.map_or(SOFA_ERROR.code(), Status::name))
    }
}
