//! `plimsoll serve score`.

use clap::Args;
use plimsoll_model::units::Period;
use plimsoll_protocols::grpc::target::score;

use super::answers::{AnswerFlags, DelayText};
use super::listen::ListenFlags;
use super::{Counted, ReferenceServer, Serving};
use crate::failure::Failure;

/// score.ScoreService/GetScore: a random score after a delay.
#[derive(Debug, Args)]
#[command(before_help = "Example: with mutual TLS, on any free port\n  \
    plimsoll serve score --listen 127.0.0.1:0 --delay 5ms --tls-cert certs/server.crt \\\n      \
    --tls-key certs/server.key --tls-client-ca certs/ca.crt")]
pub(super) struct Arguments {
    #[command(flatten)]
    answers: AnswerFlags,

    #[command(flatten)]
    pub(super) listen: ListenFlags,

    /// How long an answer takes: "5ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(long, value_name = "TIME", default_value = "5ms")]
    delay: DelayText,

    /// Time that the server computes for every answer, besides its delay.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    busy: Period,
}

impl ReferenceServer for Arguments {
    const NAME: &str = "score";

    async fn serve(&self, serving: Serving<'_>) -> Result<Counted, Failure> {
        let options = score::ScoreOptions {
            delay: self.delay.0,
            busy: self.busy.0,
            stall: self.answers.stall.map(|s| s.0),
            spin: self.answers.spin.0,
            seed: self.answers.seed,
        };
        serving.announce()?;
        let stats = score::serve(serving.bound, options, serving.stopped)
            .await
            .map_err(Failure::error)?;
        Ok(Counted {
            connections: stats.connections,
            counts: vec![
                ("scored", stats.scored),
                ("invalid", stats.invalid),
                ("abandoned", stats.abandoned),
            ],
        })
    }
}
