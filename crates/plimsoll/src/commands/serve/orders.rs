//! `plimsoll serve orders`.

use clap::Args;
use plimsoll_protocols::grpc::target::orders;

use super::answers::{AnswerFlags, DelayText};
use super::listen::ListenFlags;
use super::{Counted, ReferenceServer, Serving};
use crate::failure::Failure;

/// orders.OrderService/Submit: a pool of workers that take orders from a queue.
#[derive(Debug, Args)]
#[command(before_help = "Example: ten workers, 1 ms for an order\n  \
    plimsoll serve orders --listen 127.0.0.1:50052 --pool 10 --processing 1ms")]
pub(super) struct Arguments {
    #[command(flatten)]
    answers: AnswerFlags,

    #[command(flatten)]
    pub(super) listen: ListenFlags,

    /// Orders in progress at once.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pool: usize,

    /// Orders that may wait; one more is refused as RESOURCE_EXHAUSTED.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    queue: usize,

    /// What an order costs its worker: "1ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(long, value_name = "TIME", default_value = "0s")]
    processing: DelayText,
}

impl ReferenceServer for Arguments {
    const NAME: &str = "orders";

    async fn serve(&self, serving: Serving<'_>) -> Result<Counted, Failure> {
        let options = orders::OrdersOptions {
            workers: self.pool,
            queue: self.queue,
            processing: self.processing.0,
            stall: self.answers.stall.map(|s| s.0),
            spin: self.answers.spin.0,
            seed: self.answers.seed,
        };
        serving.announce()?;
        let stats = orders::serve(serving.bound, options, serving.stopped)
            .await
            .map_err(Failure::error)?;
        Ok(Counted {
            connections: stats.connections,
            counts: vec![
                ("processed", stats.processed),
                ("received", stats.received),
                ("refused", stats.refused),
                ("abandoned", stats.abandoned),
                ("most in progress", stats.most_in_progress),
                ("most waiting", stats.most_waiting),
            ],
        })
    }
}
