//! Handing runs over: the lock of a run on offer holds the offer's name, and the instance that replaces it
//! has the run.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, cmd};
use tokio::time::{Instant, sleep};

use super::{LEASE_SECONDS, Redis};
use crate::bus::channels::{Listening, Sink};
use crate::bus::{Begun, BusError, Offer};

const CHANNEL: &str = "sessions:offers";
/// Others take what they are offered by then.
const TAKEN_LIMIT: Duration = Duration::from_millis(1500);
const TAKEN_POLL: Duration = Duration::from_millis(20);
/// Sets `KEYS[1]` to 1 for `ARGV[2]` seconds where it holds `ARGV[1]`.
const TAKE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
    redis.call('SET', KEYS[1], '1', 'EX', ARGV[2]) \
    return 1";

impl Redis {
    pub(in crate::bus) async fn hear_offers(
        &self,
        sink: Arc<dyn Sink>,
    ) -> Result<Listening, BusError> {
        self.listen(CHANNEL, sink).await
    }

    pub(in crate::bus) async fn offer(
        &self,
        session: &str,
        begun: Begun,
        tokens: usize,
    ) -> Result<bool, BusError> {
        let (lock, offer) = (
            self.name(session, "run"),
            Offer::new(session, begun, tokens),
        );
        let Ok(text) = serde_json::to_vec(&offer) else {
            return Ok(false);
        };
        self.ask::<()>(session, [Cmd::set_ex(&lock, &offer.name, LEASE_SECONDS)])
            .await?;
        if self.publish(CHANNEL, &text).await? > 0 {
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

    pub(in crate::bus) async fn take(&self, offer: &Offer) -> Result<bool, BusError> {
        let lock = self.name(&offer.session, "run");
        let take = cmd("EVAL")
            .arg(TAKE)
            .arg(1)
            .arg(lock)
            .arg(&offer.name)
            .arg(LEASE_SECONDS)
            .take();
        let (taken,): (bool,) = self.ask(&offer.session, [take]).await?;
        Ok(taken)
    }
}
