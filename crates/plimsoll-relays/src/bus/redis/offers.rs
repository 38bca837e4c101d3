//! Runs that one backend offers to the others, because it stops before they have ended.
//!
//! The lock of a run on offer holds the offer's name, and the instance that replaces it has the
//! run. Instances that can be offered anything share a Redis: inside one process there are none.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, cmd};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::{LEASE_SECONDS, Redis};
use crate::bus::channels::{Listening, Sink};
use crate::bus::{BusError, Reached};

const OFFERS_CHANNEL: &str = "sessions:offers";
/// Others take what they are offered by then.
const TAKEN_LIMIT: Duration = Duration::from_millis(1500);
const TAKEN_POLL: Duration = Duration::from_millis(20);
/// Sets `KEYS[1]` to 1 for `ARGV[2]` seconds where it holds `ARGV[1]`.
const TAKE_SCRIPT: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
    redis.call('SET', KEYS[1], '1', 'EX', ARGV[2]) \
    return 1";

/// A run that another instance is to carry on after the last frame that its log has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The session that the run belongs to.
    pub(crate) session: String,
    /// Tokens of the whole answer.
    pub(crate) tokens: usize,
    /// The session's position when the run began.
    #[serde(flatten)]
    pub(crate) begun: Reached,
    /// The value of the run's lock until an instance takes the run.
    name: String,
}

impl Redis {
    /// Listens to what [`Redis::offer`] offers.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn hear_offers(&self, sink: Arc<dyn Sink>) -> Result<Listening, BusError> {
        self.listen(OFFERS_CHANNEL, sink).await
    }

    /// Offers a run of the caller's to all other backends; whether one has taken it. Nothing
    /// may be posted of a run that was taken.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn offer(
        &self,
        session: &str,
        begun: Reached,
        tokens: usize,
    ) -> Result<bool, BusError> {
        let offer = Offer {
            session: session.to_owned(),
            tokens,
            begun,
            name: format!("offer {}", uuid::Uuid::new_v4()),
        };
        let Ok(text) = serde_json::to_vec(&offer) else {
            return Ok(false);
        };
        let lock = self.name(session, "run");
        let set = Cmd::set_ex(&lock, &offer.name, LEASE_SECONDS);
        self.ask::<()>(session, [set]).await?;
        if self.publish(OFFERS_CHANNEL, &text).await? > 0 {
            let limit = Instant::now() + TAKEN_LIMIT;
            while Instant::now() < limit {
                let (held,): (Option<String>,) = self.ask(session, [Cmd::get(&lock)]).await?;
                if held.as_ref() != Some(&offer.name) {
                    return Ok(true);
                }
                sleep(TAKEN_POLL).await;
            }
        }
        // Ours again, unless it was taken just now.
        Ok(!self.take(&offer).await?)
    }

    /// Takes a run that was offered; `false`: another instance has it, or it is not on offer any
    /// more.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn take(&self, offer: &Offer) -> Result<bool, BusError> {
        let take = cmd("EVAL")
            .arg(TAKE_SCRIPT)
            .arg(1)
            .arg(self.name(&offer.session, "run"))
            .arg(&offer.name)
            .arg(LEASE_SECONDS)
            .take();
        let (taken,): (bool,) = self.ask(&offer.session, [take]).await?;
        Ok(taken)
    }
}
