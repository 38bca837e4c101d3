//! `plimsoll serve http`.

use clap::Args;
use plimsoll_model::units::{Period, Size};
use plimsoll_protocols::http::target as http;

use super::answers::{AnswerFlags, DelayText};
use super::listen::ListenFlags;
use super::{Counted, ReferenceServer, Serving};
use crate::failure::Failure;

/// HTTP/1.1 and HTTP/2: bodies of any size, echo, statuses, delays, streams of events.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: 1 KiB after 2 ms; and /bytes/64KiB, /echo, /status/503, /sse/20, /ndjson/20\n  \
    plimsoll serve http --listen 127.0.0.1:8080 --delay 2ms --pace 10ms"
)]
pub(super) struct Arguments {
    #[command(flatten)]
    answers: AnswerFlags,

    #[command(flatten)]
    pub(super) listen: ListenFlags,

    /// The size of a body, where the path asks for no other.
    #[arg(long, value_name = "SIZE", default_value = "1KiB")]
    size: Size,

    /// The status of such an answer.
    #[arg(long, value_name = "STATUS", default_value_t = 200)]
    status: u16,

    /// How long an answer takes: "5ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(long, value_name = "TIME", default_value = "0s")]
    delay: DelayText,

    /// Requests in progress at once, while the others wait; 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pool: usize,

    /// Time between two events of a stream.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pace: Period,
}

impl ReferenceServer for Arguments {
    const NAME: &str = "http";

    async fn serve(&self, serving: Serving<'_>) -> Result<Counted, Failure> {
        let options = http::HttpOptions {
            size: self.size.0,
            status: self.status,
            delay: self.delay.0,
            stall: self.answers.stall.map(|s| s.0),
            spin: self.answers.spin.0,
            seed: self.answers.seed,
            pool: self.pool,
            pace: self.pace.0,
        };
        serving.announce()?;
        let stats = http::serve(serving.bound, options, serving.stopped)
            .await
            .map_err(Failure::error)?;
        Ok(Counted {
            connections: stats.connections,
            counts: vec![
                ("answered", stats.answered),
                ("refused", stats.refused),
                ("events", stats.events),
            ],
        })
    }
}
