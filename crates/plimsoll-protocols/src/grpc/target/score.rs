//! `score.ScoreService/GetScore`: checks a vector, waits its artificial delay, answers
//! with a random score.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status};

use super::generated::score::score_service_server::{ScoreService, ScoreServiceServer};
use super::generated::score::{JsonVector, ScoreResponse};
use super::reflecting::reflecting;
use super::{Delay, Stall, answering::Answering, packing};
use crate::serving::{Bound, ConnectionStats, ServeError, http2};

/// How the score server behaves.
#[derive(Clone, Debug)]
pub struct ScoreOptions {
    pub delay: Delay,
    /// Work for every answer: so long the server computes, before its delay. At most a second.
    pub busy: Duration,
    pub stall: Option<Stall>,
    /// How long before an answer is due the server polls the clock instead of sleeping:
    /// precision for CPU. Zero: never.
    pub spin: Duration,
    /// For scores and random delays.
    pub seed: u64,
}

impl Default for ScoreOptions {
    fn default() -> ScoreOptions {
        ScoreOptions {
            delay: Delay::default(),
            busy: Duration::ZERO,
            stall: None,
            spin: Duration::from_micros(50),
            seed: 0,
        }
    }
}

/// What the score server counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoreStats {
    pub connections: ConnectionStats,
    /// Answered with a score.
    pub scored: u64,
    /// Refused as INVALID_ARGUMENT.
    pub invalid: u64,
    /// Cancelled by the client, or cut off, before the answer was due.
    pub abandoned: u64,
}

/// Serves until `shutdown` completes; calls in flight are finished.
///
/// # Errors
/// When an option makes no sense or the socket fails.
pub async fn serve(
    bound: Bound,
    options: ScoreOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<ScoreStats, ServeError> {
    if options.busy > LONGEST_BUSY {
        return Err(ServeError::Option {
            option: "busy",
            problem: format!("{:?} is too long; at most {LONGEST_BUSY:?}", options.busy),
        });
    }
    let score = Arc::new(Score {
        busy: options.busy,
        answering: Answering::new(options.delay, options.stall, options.spin, options.seed)?,
        received: AtomicU64::new(0),
        scored: AtomicU64::new(0),
        invalid: AtomicU64::new(0),
    });
    let service = ScoreServiceServer::from_arc(Arc::clone(&score))
        .accept_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Gzip);
    let connections =
        http2::serve(bound, reflecting(service, "score.ScoreService")?, shutdown).await?;
    let (scored, invalid) = (read(&score.scored), read(&score.invalid));
    Ok(ScoreStats {
        connections,
        scored,
        invalid,
        abandoned: read(&score.received).saturating_sub(scored + invalid),
    })
}

/// Longer than this nothing else is answered meanwhile: a mistake.
const LONGEST_BUSY: Duration = Duration::from_secs(1);

/// Computes for so long.
fn work(busy: Duration) {
    if busy.is_zero() {
        return;
    }
    let begun = Instant::now();
    while begun.elapsed() < busy {
        std::hint::spin_loop();
    }
}

struct Score {
    busy: Duration,
    answering: Answering,
    received: AtomicU64,
    scored: AtomicU64,
    invalid: AtomicU64,
}

#[tonic::async_trait]
impl ScoreService for Score {
    async fn get_score(
        &self,
        request: Request<JsonVector>,
    ) -> Result<Response<ScoreResponse>, Status> {
        self.received.fetch_add(1, Ordering::Relaxed);
        let packed = packing::is_packed(request.metadata());
        if let Err(e) = serde_json::from_str::<Vec<f64>>(&request.get_ref().json) {
            self.invalid.fetch_add(1, Ordering::Relaxed);
            return Err(Status::invalid_argument(format!(
                "field json: not a JSON array of numbers, as \"[0.1, 0.2]\" is: {e}"
            )));
        }
        work(self.busy);
        self.answering.wait().await;
        self.scored.fetch_add(1, Ordering::Relaxed);
        let answer = ScoreResponse {
            score: self.answering.fraction(),
        };
        Ok(packing::answer(packed, answer))
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
