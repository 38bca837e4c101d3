//! The bus between backends and gateways: a log for each session, and channels down to
//! the client and up from it.
//!
//! Invariant: a frame is in its session's log before it is published, and posts of one
//! process keep their order. So who subscribes first and then reads the log misses
//! nothing. Two buses have the same behaviour: [`Bus::embedded`] inside one process, and
//! [`Bus::redis`]. The LLM simulator posts, the gateway listens.

mod channels;
mod embedded;
mod redis;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use channels::{Listening, Sink};
pub(crate) use redis::Offer;
pub use redis::{RedisAddress, RedisOptions};
pub use sessions::{BeginError, BusError, Part, Reached, Way};
pub(crate) use sessions::{Run, Stamp, Standing, channel, new_epoch};

use embedded::Embedded;
use redis::Redis;

/// Frames read from a log at once.
pub(crate) const HISTORY_PAGE: usize = 256;
/// A run's lock lasts three times as long; the owner of the run renews it.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(20);

/// Either bus. Cheap to clone.
#[derive(Clone)]
pub enum Bus {
    /// See [`Bus::embedded`].
    Embedded(Arc<Embedded>),
    /// See [`Bus::redis`].
    Redis(Arc<Redis>),
}

impl Bus {
    /// A bus inside this process. Sessions are forgotten `ttl` after their last run.
    pub fn embedded(ttl: Duration) -> Bus {
        Bus::Embedded(Arc::new(Embedded::new(ttl)))
    }

    /// A bus over Redis. Returns at once; the connections are made, and made again when
    /// lost, in the background. Must be called inside the runtime.
    pub fn redis(address: RedisAddress, options: RedisOptions) -> Bus {
        Bus::Redis(Redis::start(address, options))
    }

    /// What other processes share; `None`: nothing.
    pub(crate) fn shared(&self) -> Option<&Redis> {
        match self {
            Bus::Embedded(_) => None,
            Bus::Redis(redis) => Some(redis),
        }
    }

    /// Waits until the bus can be used.
    ///
    /// # Errors
    /// When that takes longer than `limit`.
    pub async fn ready(&self, limit: Duration) -> Result<(), BusError> {
        match self {
            Bus::Embedded(_) => Ok(()),
            Bus::Redis(redis) => redis.ready(limit).await,
        }
    }

    /// Whether the bus can be used now.
    pub(crate) fn is_up(&self) -> bool {
        self.shared().is_none_or(Redis::is_up)
    }

    /// Grows by one whenever posts may have been lost: the owner of frames of a run that
    /// goes on posts them all again (readers drop what they have).
    pub fn generation(&self) -> u64 {
        self.shared().map_or(0, Redis::generation)
    }

    /// Grows by one whenever the bus was found to have lost what it held: an instance that knows a
    /// session restores it with [`Bus::restore`].
    pub(crate) fn losses(&self) -> u64 {
        self.shared().map_or(0, Redis::losses)
    }

    /// Restores a session on a bus that has lost it; its numbers go on after `begun.last`. The
    /// first call for a session counts.
    ///
    /// # Errors
    /// When that is not known to have reached the bus; it is then to be restored again.
    pub(crate) async fn restore(
        &self,
        session: &str,
        begun: Reached,
        run: Run,
    ) -> Result<(), BusError> {
        match self {
            Bus::Embedded(_) => Ok(()),
            Bus::Redis(redis) => redis.restore(session, begun, run).await,
        }
    }

    /// Makes a session.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub async fn create(&self, session: &str, epoch: u64) -> Result<(), BusError> {
        match self {
            Bus::Embedded(bus) => {
                bus.create(session, epoch);
                Ok(())
            }
            Bus::Redis(redis) => redis.create(session, epoch).await,
        }
    }

    /// Begins a run; a session has one at a time. The caller listens to [`Way::Up`] before it asks: that is how a
    /// run whose backend died is distinguished from one that goes on.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub async fn begin_run(&self, session: &str) -> Result<Reached, BeginError> {
        match self {
            Bus::Embedded(bus) => bus.begin_run(session),
            Bus::Redis(redis) => redis.begin_run(session).await,
        }
    }

    /// Appends a frame to the session's log and publishes it, in this order, without
    /// waiting. The last frame of a run lets the next one begin before it is published.
    /// While the bus is away the frame is dropped: see [`Bus::generation`].
    pub fn post(&self, session: &str, frame: &Bytes, part: Part) {
        match self {
            Bus::Embedded(bus) => bus.post(session, frame, part),
            Bus::Redis(redis) => redis.post(session, frame, part),
        }
    }

    /// Everything posted before has reached the bus when this returns.
    ///
    /// # Errors
    /// When that is not known; the frames are then to be posted again.
    pub async fn confirm(&self, session: &str) -> Result<(), BusError> {
        match self {
            Bus::Embedded(_) => Ok(()),
            Bus::Redis(redis) => redis.confirm(session).await,
        }
    }

    /// Renews the lock of a run that goes on; it ends a minute after the last renewal.
    pub(crate) fn renew(&self, session: &str) {
        if let Some(redis) = self.shared() {
            redis.renew(session);
        }
    }

    /// Ends a session; `false`: there was none. Its log stays for a minute, for readers
    /// that are behind.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub async fn close(&self, session: &str) -> Result<bool, BusError> {
        match self {
            Bus::Embedded(bus) => Ok(bus.close(session)),
            Bus::Redis(redis) => redis.close(session).await,
        }
    }

    /// Listens to a channel until the [`Listening`] is dropped. When this returns, no
    /// later message passes by the sink.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub async fn listen(
        &self,
        session: &str,
        way: Way,
        sink: Arc<dyn Sink>,
    ) -> Result<Listening, BusError> {
        match self {
            Bus::Embedded(bus) => Ok(bus.listen(&channel(session, way), sink)),
            Bus::Redis(redis) => redis.listen(&redis.channel(session, way), sink).await,
        }
    }

    /// Sends a client's message up; how many listened.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn send_up(&self, session: &str, payload: &[u8]) -> Result<u64, BusError> {
        match self {
            Bus::Embedded(bus) => {
                let name = channel(session, Way::Up);
                Ok(bus.publish(&name, &Bytes::copy_from_slice(payload)))
            }
            Bus::Redis(redis) => {
                redis
                    .publish(&redis.channel(session, Way::Up), payload)
                    .await
            }
        }
    }

    /// Returns at most [`HISTORY_PAGE`] frames of the session's log from `position` on (0: the
    /// first one).
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn history(
        &self,
        session: &str,
        position: u64,
    ) -> Result<Vec<Bytes>, BusError> {
        match self {
            Bus::Embedded(bus) => Ok(bus.history(session, position)),
            Bus::Redis(redis) => redis.history(session, position).await,
        }
    }

    /// Notes where a session's socket stopped, for the next one. Within an epoch it never
    /// goes back.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn note_stopped(&self, session: &str, at: Reached) -> Result<(), BusError> {
        match self {
            Bus::Embedded(bus) => {
                bus.note_stopped(session, at);
                Ok(())
            }
            Bus::Redis(redis) => redis.note_stopped(session, at).await,
        }
    }

    /// Whether the session is open, its newest frame, and where its last socket stopped.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn standing(&self, session: &str) -> Result<Standing, BusError> {
        match self {
            Bus::Embedded(bus) => Ok(bus.standing(session)),
            Bus::Redis(redis) => redis.standing(session).await,
        }
    }
}

#[cfg(test)]
mod tests;
