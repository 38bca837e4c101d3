//! The reference server `score`: `score.ScoreService/GetScore` checks a vector, waits for its delay, and
//! answers with a random score.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use plimsoll_model::formats::units::Period;
use tokio::time::Instant;
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status};

use super::compression::ResponseCompression;
use super::generated::score::score_service_server::{ScoreService, ScoreServiceServer};
use super::generated::score::{JsonVector, ScoreResponse};
use super::reflection_service::with_reflection;
use plimsoll_serving::reference::{ReferenceServer, ServeContext, ServerCounts, ServerFuture};
use plimsoll_serving::response_timing::{ResponseDelay, ResponseScheduler, ResponseTiming};
use plimsoll_serving::{ServeError, http2};

/// score.ScoreService/GetScore: a random score after a delay.
#[derive(Args, Clone, Debug)]
#[command(before_help = "Example: with mutual TLS, on any free port\n  \
    plimsoll serve score --listen 127.0.0.1:0 --delay 5ms --tls-cert certs/server.crt \\\n      \
    --tls-key certs/server.key --tls-client-ca certs/ca.crt")]
pub struct ScoreOptions {
    /// When and how calls are answered.
    #[command(flatten)]
    pub answers: ResponseTiming,

    /// How long an answer takes: "5ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(long, value_name = "TIME", default_value = "5ms")]
    pub delay: ResponseDelay,

    /// CPU time that the server spends on every answer, in addition to its delay.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub busy: Period,
}

impl ReferenceServer for ScoreOptions {
    const COMMAND_NAME: &str = "score";

    fn start(self, context: ServeContext) -> Result<ServerFuture, ServeError> {
        let busy = self.busy.0;
        if busy > MAX_BUSY_TIME {
            return Err(ServeError::invalid_option(
                "busy",
                format!("{busy:?} is too long; at most {MAX_BUSY_TIME:?}"),
            ));
        }
        let score = Arc::new(ScoreHandler {
            busy,
            scheduler: ResponseScheduler::new(self.delay, self.answers)?,
            received: AtomicU64::new(0),
            scored: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
        });
        let service = ScoreServiceServer::from_arc(Arc::clone(&score))
            .accept_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Gzip);
        let service = with_reflection(service, "score.ScoreService")?;
        Ok(Box::pin(async move {
            let connections = http2::serve(context.bound, service, context.stopped).await?;
            let (scored, invalid) = (load_counter(&score.scored), load_counter(&score.invalid));
            // Calls that the client cancelled, or whose connection ended.
            let abandoned = load_counter(&score.received).saturating_sub(scored + invalid);
            Ok(ServerCounts {
                connections,
                counts: vec![
                    ("scored", scored),
                    ("invalid", invalid),
                    ("abandoned", abandoned),
                ],
            })
        }))
    }
}

/// The limit of `--busy`: during the computation all other responses of the thread wait.
const MAX_BUSY_TIME: Duration = Duration::from_secs(1);

/// Keeps the CPU busy for this long, like a computation.
fn keep_cpu_busy(busy: Duration) {
    if busy.is_zero() {
        return;
    }
    let begun = Instant::now();
    while begun.elapsed() < busy {
        std::hint::spin_loop();
    }
}

struct ScoreHandler {
    busy: Duration,
    scheduler: ResponseScheduler,
    received: AtomicU64,
    /// Calls answered with a score.
    scored: AtomicU64,
    /// Calls rejected as INVALID_ARGUMENT.
    invalid: AtomicU64,
}

#[tonic::async_trait]
impl ScoreService for ScoreHandler {
    async fn get_score(
        &self,
        request: Request<JsonVector>,
    ) -> Result<Response<ScoreResponse>, Status> {
        self.received.fetch_add(1, Ordering::Relaxed);
        let packing = ResponseCompression::from_metadata(request.metadata());
        if let Err(e) = serde_json::from_str::<Vec<f64>>(&request.get_ref().json) {
            self.invalid.fetch_add(1, Ordering::Relaxed);
            return Err(Status::invalid_argument(format!(
                "field json: not a JSON array of numbers such as \"[0.1, 0.2]\": {e}"
            )));
        }
        keep_cpu_busy(self.busy);
        self.scheduler.wait().await;
        self.scored.fetch_add(1, Ordering::Relaxed);
        let answer = ScoreResponse {
            score: self.scheduler.random_fraction(),
        };
        Ok(packing.build_response(answer))
    }
}

fn load_counter(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
