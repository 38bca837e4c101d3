//! `plimsoll serve echo`.

use clap::Args;
use plimsoll_model::units::Period;
use plimsoll_protocols::grpc::target::echo;

use super::listen::ListenFlags;
use super::{Counted, ReferenceServer, Serving};
use crate::failure::Failure;

/// grpc.examples.echo.Echo: a call of each kind, timestamps in headers and trailers.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: ten messages, 50 ms apart, for a call of ServerStreamingEcho\n  \
    plimsoll serve echo --listen 127.0.0.1:50054 --pace 50ms"
)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) listen: ListenFlags,

    /// Answers to one message in server streaming.
    #[arg(long, value_name = "N", default_value_t = 10)]
    messages: u32,

    /// Time between two of them.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pace: Period,

    /// What the headers say under `location`.
    #[arg(long, value_name = "TEXT", default_value = "local")]
    location: String,
}

impl ReferenceServer for Arguments {
    const NAME: &str = "echo";

    async fn serve(&self, serving: Serving<'_>) -> Result<Counted, Failure> {
        let options = echo::EchoOptions {
            messages: self.messages,
            pace: self.pace.0,
            location: self.location.clone(),
        };
        serving.announce()?;
        let stats = echo::serve(serving.bound, options, serving.stopped)
            .await
            .map_err(Failure::error)?;
        Ok(Counted {
            connections: stats.connections,
            counts: vec![
                ("calls", stats.calls),
                ("messages received", stats.messages_received),
                ("messages sent", stats.messages_sent),
            ],
        })
    }
}
