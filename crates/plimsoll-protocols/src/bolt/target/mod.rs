//! The Bolt reference server: SOFARPC's `HelloService` and `TestService`, and the echo of
//! plain strings, with known behaviour.
//!
//! Heartbeats are answered at once. A request that has to wait for its delay, or for one
//! of the pool's workers, waits in a task of its own; every other one is answered where it
//! is read. A connection whose bytes are no Bolt is closed, as the Java server does.

mod answers;
mod connection;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use plimsoll_model::Outcome;
use tokio::sync::{Semaphore, watch};

use super::Status;
use crate::grpc::target::{Answering, Delay, Stall};
use crate::serving::accepting::{self, Serve};
use crate::serving::early::Link;
use crate::serving::{Bound, ConnectionStats, ServeError};

/// A share of answers that fail on demand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// A Bolt status, or `None` for a SOFARPC failure: a success with an error header.
    pub status: Option<Status>,
    /// 0 to 1.
    pub share: f64,
}

/// How the Bolt server behaves.
#[derive(Clone, Debug)]
pub struct BoltOptions {
    pub delay: Delay,
    pub stall: Option<Stall>,
    /// How long before an answer is due the clock is polled. Zero: never.
    pub spin: Duration,
    pub seed: u64,
    /// Requests in progress at once; 0: no limit.
    pub pool: usize,
    /// Requests that may wait for a worker of the pool; one more is answered as busy.
    pub queue: usize,
    /// Together at most 1.
    pub shares: Vec<Share>,
}

impl Default for BoltOptions {
    fn default() -> BoltOptions {
        BoltOptions {
            delay: Delay::Constant(Duration::ZERO),
            stall: None,
            spin: Duration::from_micros(50),
            seed: 0,
            pool: 0,
            queue: 0,
            shares: Vec::new(),
        }
    }
}

/// What the Bolt server counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoltStats {
    pub connections: ConnectionStats,
    /// Requests answered with what they asked for.
    pub answered: u64,
    pub oneway: u64,
    /// Requests answered with a failure, busy ones among them.
    pub failed: u64,
    pub busy: u64,
    pub heartbeats: u64,
    /// Connections closed for bytes that are no Bolt.
    pub malformed: u64,
}

#[derive(Default)]
struct Counters {
    answered: AtomicU64,
    oneway: AtomicU64,
    failed: AtomicU64,
    busy: AtomicU64,
    heartbeats: AtomicU64,
    malformed: AtomicU64,
}

/// What all connections share.
struct Server {
    answering: Answering,
    /// Whether an answer can leave as soon as its request is read.
    at_once: bool,
    pool: Option<Semaphore>,
    queue: usize,
    waiting: AtomicUsize,
    shares: Vec<Share>,
    counters: Counters,
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Answered,
    Fails(Share),
}

impl Server {
    fn fate(&self) -> Fate {
        if self.shares.is_empty() {
            return Fate::Answered;
        }
        let mut drawn = self.answering.fraction();
        for share in &self.shares {
            if drawn < share.share {
                return Fate::Fails(*share);
            }
            drawn -= share.share;
        }
        Fate::Answered
    }

    /// Waits for a worker and then for the delay; `false`: the queue is full.
    async fn work(&self) -> bool {
        let Some(pool) = &self.pool else {
            self.answering.wait().await;
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
        self.answering.wait().await;
        drop(worker);
        true
    }
}

fn check(options: &BoltOptions) -> Result<(), ServeError> {
    let total: f64 = options.shares.iter().map(|share| share.share).sum();
    let wrong = |share: &Share| !(0.0..=1.0).contains(&share.share);
    if options.shares.iter().any(wrong) || total > 1.0 + 1e-9 {
        return Err(ServeError::Option {
            option: "fail",
            problem: format!(
                "shares of {:.1}% in all: each is 0% to 100%, and so is their sum",
                total * 100.0
            ),
        });
    }
    Ok(())
}

/// Serves until `shutdown` completes; requests in progress are finished for at most
/// [`crate::serving::Listen::drain`].
///
/// # Errors
/// When an option makes no sense or the socket fails.
pub async fn serve(
    bound: Bound,
    options: BoltOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<BoltStats, ServeError> {
    check(&options)?;
    let answering = Answering::new(options.delay, options.stall, options.spin, options.seed)?;
    let server = Arc::new(Server {
        answering,
        at_once: options.delay == Delay::Constant(Duration::ZERO)
            && options.stall.is_none()
            && options.pool == 0,
        pool: (options.pool > 0).then(|| Semaphore::new(options.pool.min(Semaphore::MAX_PERMITS))),
        queue: options.queue,
        waiting: AtomicUsize::new(0),
        shares: options.shares,
        counters: Counters::default(),
    });
    let stats = accepting::accept(bound, Arc::clone(&server), shutdown).await?;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &server.counters;
    Ok(BoltStats {
        connections: stats,
        answered: read(&counters.answered),
        oneway: read(&counters.oneway),
        failed: read(&counters.failed),
        busy: read(&counters.busy),
        heartbeats: read(&counters.heartbeats),
        malformed: read(&counters.malformed),
    })
}

impl Serve for Arc<Server> {
    fn serve<S: Link>(
        self,
        stream: S,
        stopped: watch::Receiver<()>,
    ) -> impl Future<Output = io::Result<()>> + Send {
        connection::serve(stream, self, stopped)
    }
}

/// The share's name, as a run shows it.
impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.status.map_or(Outcome::SofaError.code(), Status::name))
    }
}
