//! Hands unfinished runs over to other backends when this backend stops.
//!
//! The lock of an offered run holds the offer's name; the instance that replaces that name owns the
//! run. Only instances that share a Redis can take offers, so the embedded bus has none.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, cmd};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::{LOCK_TTL_SECONDS, RedisBus};
use crate::bus::channels::{MessageSink, Subscription};
use crate::bus::{BusError, LogPosition};

const OFFERS_CHANNEL: &str = "sessions:offers";
/// How long other instances may take to accept an offer.
const OFFER_TIMEOUT: Duration = Duration::from_millis(1500);
const OFFER_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Sets `KEYS[1]` to 1 for `ARGV[2]` seconds if it holds `ARGV[1]`.
const TAKE_OFFER_SCRIPT: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
    redis.call('SET', KEYS[1], '1', 'EX', ARGV[2]) \
    return 1";

/// A run that another instance may continue after the last frame in the session's log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunOffer {
    /// The session that the run belongs to.
    pub(crate) session: String,
    /// Number of tokens of the complete answer.
    pub(crate) tokens: usize,
    /// The session's position when the run began.
    #[serde(flatten)]
    pub(crate) begun: LogPosition,
    /// The value of the run's lock until an instance takes the run.
    name: String,
}

impl RedisBus {
    /// Subscribes to the offers of [`RedisBus::offer_run`].
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn subscribe_to_offers(
        &self,
        sink: Arc<dyn MessageSink>,
    ) -> Result<Subscription, BusError> {
        self.listen(OFFERS_CHANNEL, sink).await
    }

    /// Offers a run of this instance to all other backends; returns whether one has taken it. No
    /// frame of a run may be posted after it was taken.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn offer_run(
        &self,
        session: &str,
        begun: LogPosition,
        tokens: usize,
    ) -> Result<bool, BusError> {
        let offer = RunOffer {
            session: session.to_owned(),
            tokens,
            begun,
            name: format!("offer {}", uuid::Uuid::new_v4()),
        };
        let Ok(text) = serde_json::to_vec(&offer) else {
            return Ok(false);
        };
        let lock = self.key_name(session, "run");
        let set = Cmd::set_ex(&lock, &offer.name, LOCK_TTL_SECONDS);
        self.run_commands::<()>(session, [set]).await?;
        if self.publish(OFFERS_CHANNEL, &text).await? > 0 {
            let limit = Instant::now() + OFFER_TIMEOUT;
            while Instant::now() < limit {
                let (held,): (Option<String>,) =
                    self.run_commands(session, [Cmd::get(&lock)]).await?;
                if held.as_ref() != Some(&offer.name) {
                    return Ok(true);
                }
                sleep(OFFER_POLL_INTERVAL).await;
            }
        }
        // Withdraws the offer by taking the run back, unless another instance has taken it in the meantime.
        Ok(!self.take_offer(&offer).await?)
    }

    /// Takes an offered run; returns `false` if another instance has it or the offer was withdrawn.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn take_offer(&self, offer: &RunOffer) -> Result<bool, BusError> {
        let take = cmd("EVAL")
            .arg(TAKE_OFFER_SCRIPT)
            .arg(1)
            .arg(self.key_name(&offer.session, "run"))
            .arg(&offer.name)
            .arg(LOCK_TTL_SECONDS)
            .take();
        let (taken,): (bool,) = self.run_commands(&offer.session, [take]).await?;
        Ok(taken)
    }
}
