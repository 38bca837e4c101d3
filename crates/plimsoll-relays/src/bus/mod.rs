//! The bus between backends and gateways: a log for each session, and channels down to the client
//! and up from it.
//!
//! Invariant: a frame is in its session's log before it is published, and posts of one process keep
//! their order. A reader that subscribes first and then reads the log therefore misses nothing.
//! There are two implementations with the same behaviour: [`Bus::embedded`] inside one process, and
//! [`Bus::redis`]. The LLM simulator posts frames, the gateway listens.

mod channels;
mod embedded;
mod redis;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use channels::{MessageSink, Subscription};
pub(crate) use redis::RunOffer;
pub use redis::{RedisAddress, RedisOptions};
pub use sessions::{BeginError, BusError, ChannelDirection, FramePosition, LogPosition};
pub(crate) use sessions::{FrameStamp, RunStatus, SessionStatus, channel_name, new_epoch};

use embedded::EmbeddedBus;
use redis::RedisBus;

/// Maximum number of frames returned by one read of a log.
pub(crate) const MAX_LOG_PAGE_FRAMES: usize = 256;
/// How often the owner of a run renews its lock, which lasts three times as long.
pub(crate) const LOCK_RENEWAL_INTERVAL: Duration = Duration::from_secs(20);

/// A bus of either kind. Cloning is cheap.
#[derive(Clone)]
pub enum Bus {
    /// See [`Bus::embedded`].
    Embedded(Arc<EmbeddedBus>),
    /// See [`Bus::redis`].
    Redis(Arc<RedisBus>),
}

impl Bus {
    /// Creates a bus inside this process. Sessions are forgotten `ttl` after their last run.
    pub fn embedded(ttl: Duration) -> Bus {
        Bus::Embedded(Arc::new(EmbeddedBus::new(ttl)))
    }

    /// Creates a bus over Redis. Returns at once: connections are made, and restored after a loss,
    /// in the background. Must be called inside the runtime.
    pub fn redis(address: RedisAddress, options: RedisOptions) -> Bus {
        Bus::Redis(RedisBus::start(address, options))
    }

    /// Returns the Redis bus, the only kind that other processes share.
    pub(crate) fn as_redis(&self) -> Option<&RedisBus> {
        match self {
            Bus::Embedded(_) => None,
            Bus::Redis(redis) => Some(redis),
        }
    }

    /// Waits until the bus is usable.
    ///
    /// # Errors
    /// When that takes longer than `limit`.
    pub async fn wait_until_ready(&self, limit: Duration) -> Result<(), BusError> {
        match self {
            Bus::Embedded(_) => Ok(()),
            Bus::Redis(redis) => redis.wait_until_ready(limit).await,
        }
    }

    /// Returns whether the bus is usable now.
    pub(crate) fn is_up(&self) -> bool {
        self.as_redis().is_none_or(RedisBus::is_up)
    }

    /// Returns a counter that grows whenever posts may have been lost. The owner of a run in
    /// progress then posts all its frames again; readers drop duplicates.
    pub fn possible_post_losses(&self) -> u64 {
        self.as_redis().map_or(0, RedisBus::possible_post_losses)
    }

    /// Returns a counter that grows whenever a loss of the bus's data is detected. A gateway or backend that knows a
    /// session then restores it with [`Bus::restore_session`].
    pub(crate) fn data_losses(&self) -> u64 {
        self.as_redis().map_or(0, RedisBus::data_losses)
    }

    /// Restores a session on a bus that has lost it; its frame numbers continue after `begun.last`.
    /// Only the first call for a session takes effect.
    ///
    /// # Errors
    /// Returns an error when the bus may not have received the session; the caller must try again.
    pub(crate) async fn restore_session(
        &self,
        session: &str,
        begun: LogPosition,
        run: RunStatus,
    ) -> Result<(), BusError> {
        match self {
            Bus::Embedded(_) => Ok(()),
            Bus::Redis(redis) => redis.restore_session(session, begun, run).await,
        }
    }

    /// Creates a session.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub async fn create_session(&self, session: &str, epoch: u64) -> Result<(), BusError> {
        match self {
            Bus::Embedded(bus) => {
                bus.create_session(session, epoch);
                Ok(())
            }
            Bus::Redis(redis) => redis.create_session(session, epoch).await,
        }
    }

    /// Begins a run; a session has at most one at a time. The caller must listen to [`ChannelDirection::Up`] first,
    /// because a run without a listener there counts as one whose backend has died.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub async fn begin_run(&self, session: &str) -> Result<LogPosition, BeginError> {
        match self {
            Bus::Embedded(bus) => bus.begin_run(session),
            Bus::Redis(redis) => redis.begin_run(session).await,
        }
    }

    /// Appends a frame to the session's log and then publishes it, without waiting. Posting the
    /// last frame of a run releases the run's lock before the frame is published. While the bus is
    /// down the frame is dropped: see [`Bus::possible_post_losses`].
    pub fn post(&self, session: &str, frame: &Bytes, part: FramePosition) {
        match self {
            Bus::Embedded(bus) => bus.post(session, frame, part),
            Bus::Redis(redis) => redis.post(session, frame, part),
        }
    }

    /// Waits until everything posted before has reached the bus.
    ///
    /// # Errors
    /// Returns an error when the frames may not have arrived; the caller must post them again.
    pub async fn confirm_posts(&self, session: &str) -> Result<(), BusError> {
        match self {
            Bus::Embedded(_) => Ok(()),
            Bus::Redis(redis) => redis.confirm_posts(session).await,
        }
    }

    /// Renews the lock of a run in progress, which expires a minute after the last renewal.
    pub(crate) fn renew_lock(&self, session: &str) {
        if let Some(redis) = self.as_redis() {
            redis.renew_lock(session);
        }
    }

    /// Ends a session; returns `false` if there was none. The log stays for a minute, for readers
    /// that are behind.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub async fn close_session(&self, session: &str) -> Result<bool, BusError> {
        match self {
            Bus::Embedded(bus) => Ok(bus.close_session(session)),
            Bus::Redis(redis) => redis.close_session(session).await,
        }
    }

    /// Listens to a channel until the [`Subscription`] is dropped. Every message published after this
    /// returns reaches the sink.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub async fn listen(
        &self,
        session: &str,
        way: ChannelDirection,
        sink: Arc<dyn MessageSink>,
    ) -> Result<Subscription, BusError> {
        match self {
            Bus::Embedded(bus) => Ok(bus.listen(&channel_name(session, way), sink)),
            Bus::Redis(redis) => redis.listen(&redis.channel_name(session, way), sink).await,
        }
    }

    /// Publishes a client's message to the backends; returns the number of backends that listen.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn send_to_backends(
        &self,
        session: &str,
        payload: &[u8],
    ) -> Result<u64, BusError> {
        match self {
            Bus::Embedded(bus) => {
                let name = channel_name(session, ChannelDirection::Up);
                Ok(bus.publish(&name, &Bytes::copy_from_slice(payload)))
            }
            Bus::Redis(redis) => {
                redis
                    .publish(&redis.channel_name(session, ChannelDirection::Up), payload)
                    .await
            }
        }
    }

    /// Returns at most [`MAX_LOG_PAGE_FRAMES`] frames of the session's log, beginning with the frame at index
    /// `position`.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn read_log_page(
        &self,
        session: &str,
        position: u64,
    ) -> Result<Vec<Bytes>, BusError> {
        match self {
            Bus::Embedded(bus) => Ok(bus.read_log_page(session, position)),
            Bus::Redis(redis) => redis.read_log_page(session, position).await,
        }
    }

    /// Records the last frame that a session's socket delivered, as the starting point of the next socket. The position
    /// never decreases within an epoch.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn save_position(
        &self,
        session: &str,
        at: LogPosition,
    ) -> Result<(), BusError> {
        match self {
            Bus::Embedded(bus) => {
                bus.save_position(session, at);
                Ok(())
            }
            Bus::Redis(redis) => redis.save_position(session, at).await,
        }
    }

    /// Returns whether the session is open, its newest frame, and the last frame that its latest socket delivered.
    ///
    /// # Errors
    /// When the bus can't be reached.
    pub(crate) async fn session_status(&self, session: &str) -> Result<SessionStatus, BusError> {
        match self {
            Bus::Embedded(bus) => Ok(bus.session_status(session)),
            Bus::Redis(redis) => redis.session_status(session).await,
        }
    }
}

#[cfg(test)]
mod tests;
