//! `plimsoll serve fast`.

use clap::Args;
use plimsoll_model::units::Period;
use plimsoll_protocols::grpc::target::fast;

use super::listen::ListenFlags;
use super::{Counted, ReferenceServer, Serving};
use crate::failure::Failure;

/// Answers every unary call at once, with the same bytes: for measuring clients.
#[derive(Debug, Args)]
#[command(before_help = "Example: on one thread\n  \
    plimsoll serve fast --listen 127.0.0.1:50053 --workers 1")]
pub(super) struct Arguments {
    /// How long an idle worker looks for more calls before it sleeps. A client that sends to
    /// a sleeping server pays for waking it; a busy one takes a core.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    busy_poll: Period,

    #[command(flatten)]
    pub(super) listen: ListenFlags,
}

impl ReferenceServer for Arguments {
    const NAME: &str = "fast";

    async fn serve(&self, serving: Serving<'_>) -> Result<Counted, Failure> {
        let options = fast::FastOptions {
            workers: self.listen.workers.unwrap_or(1),
            busy_poll: self.busy_poll.0,
            ..fast::FastOptions::default()
        };
        serving.announce()?;
        let stats = fast::serve(serving.bound, options, serving.stopped)
            .await
            .map_err(Failure::error)?;
        Ok(Counted {
            connections: stats.connections,
            counts: vec![("answered", stats.answered)],
        })
    }
}
