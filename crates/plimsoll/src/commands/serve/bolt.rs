//! `plimsoll serve bolt`.

use std::str::FromStr;

use clap::Args;
use plimsoll_protocols::bolt::Status;
use plimsoll_protocols::bolt::target as bolt;

use super::answers::{AnswerFlags, DelayText};
use super::listen::ListenFlags;
use super::{Counted, ReferenceServer, Serving};
use crate::failure::Failure;

/// SOFARPC over Bolt: HelloService/sayHello, TestService/echoStr, and the echo of strings.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: a thread pool of 200 with no queue, 1 ms a request, 2% of them failing\n  \
    plimsoll serve bolt --listen 127.0.0.1:12200 --pool 200 --delay 1ms --fail SERVER_EXCEPTION=2%"
)]
pub(super) struct Arguments {
    #[command(flatten)]
    answers: AnswerFlags,

    #[command(flatten)]
    pub(super) listen: ListenFlags,

    /// How long an answer takes: "5ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(long, value_name = "TIME", default_value = "0s")]
    delay: DelayText,

    /// Threads of the pool: requests in progress at once; 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pool: usize,

    /// Requests that may wait for the pool; one more is answered SERVER_THREADPOOL_BUSY.
    #[arg(long, value_name = "N", default_value_t = 0)]
    queue: usize,

    /// A share of answers that fail with a Bolt status, or with SOFA_ERROR (a success with
    /// an error header): "TIMEOUT=1%"; may be given again.
    #[arg(long, value_name = "STATUS=SHARE")]
    fail: Vec<FailText>,
}

/// A [`bolt::Share`] as typed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FailText(bolt::Share);

impl FromStr for FailText {
    type Err = String;

    fn from_str(text: &str) -> Result<FailText, String> {
        let (name, share) = text
            .split_once('=')
            .ok_or_else(|| format!("`{text}` lacks an =: write \"TIMEOUT=1%\""))?;
        let status = if name.eq_ignore_ascii_case("SOFA_ERROR") {
            None
        } else {
            Some(Status::from_name(name).ok_or_else(|| {
                let names: Vec<&str> = Status::ALL.iter().map(|status| status.name()).collect();
                format!(
                    "`{name}` is no status: use {} or SOFA_ERROR",
                    names.join(", ")
                )
            })?)
        };
        let percent = share
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok())
            .filter(|percent| (0.0..=100.0).contains(percent))
            .ok_or_else(|| format!("`{share}` is no share: write a percentage from 0% to 100%"))?;
        Ok(FailText(bolt::Share {
            status,
            share: percent / 100.0,
        }))
    }
}

impl ReferenceServer for Arguments {
    const NAME: &str = "bolt";

    async fn serve(&self, serving: Serving<'_>) -> Result<Counted, Failure> {
        let options = bolt::BoltOptions {
            delay: self.delay.0,
            stall: self.answers.stall.map(|s| s.0),
            spin: self.answers.spin.0,
            seed: self.answers.seed,
            pool: self.pool,
            queue: self.queue,
            shares: self.fail.iter().map(|fail| fail.0).collect(),
        };
        serving.announce()?;
        let stats = bolt::serve(serving.bound, options, serving.stopped)
            .await
            .map_err(Failure::error)?;
        Ok(Counted {
            connections: stats.connections,
            counts: vec![
                ("answered", stats.answered),
                ("failed", stats.failed),
                ("busy", stats.busy),
                ("oneway", stats.oneway),
                ("heartbeats", stats.heartbeats),
                ("malformed", stats.malformed),
            ],
        })
    }
}
