//! Keeps connections to Redis open: one for commands and a few for subscriptions. A lost connection is opened again.
//! The `redis` crate implements the protocol; this module handles failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{PushInfo, PushKind};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::address::RedisAddress;
use super::connection::{RedisConnection, RedisFailure};
use super::open::CONNECT_TIMEOUT;

const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(20);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Becomes true when the connection, or one to a node of the cluster, is lost.
#[derive(Default)]
pub(super) struct LossSignal(watch::Sender<bool>);

impl LossSignal {
    pub(super) fn is_lost(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the connection is lost; returns the failure to report.
    pub(super) async fn wait(&self) -> RedisFailure {
        // This value holds the sender, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|lost| *lost).await;
        RedisFailure::new_transient("closed by the server")
    }
}

/// The code that uses a connection, for commands or for subscriptions.
pub(super) trait ConnectionUser: Send + Sync + 'static {
    /// Handles a message that the server sent unprompted.
    fn on_push(&self, push: PushInfo);

    /// Uses a connection for as long as it lasts. Calls [`Connector::mark_usable`] once commands are accepted.
    fn use_connection(
        &self,
        connection: RedisConnection,
        connector: &Connector,
        lost: &LossSignal,
    ) -> impl Future<Output = RedisFailure> + Send;
}

#[derive(Clone, Debug)]
enum ConnectorState {
    Up,
    Down(Option<RedisFailure>),
}

pub(super) struct Connector {
    pub(super) address: RedisAddress,
    state: watch::Sender<ConnectorState>,
    has_been_up: AtomicBool,
}

impl Connector {
    pub(super) fn new(address: RedisAddress) -> Arc<Connector> {
        Arc::new(Connector {
            address,
            state: watch::Sender::new(ConnectorState::Down(None)),
            has_been_up: AtomicBool::new(false),
        })
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), ConnectorState::Up)
    }

    pub(super) fn mark_usable(&self) {
        self.state.send_replace(ConnectorState::Up);
        if self.has_been_up.swap(true, Ordering::Relaxed) {
            tracing::warn!(redis = %self.address, "connection to redis is back");
        }
    }

    /// Waits until the connection is usable; fails at once if waiting cannot help.
    pub(super) async fn wait_until_ready(&self) -> Result<(), RedisFailure> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| match state {
            ConnectorState::Up => true,
            ConnectorState::Down(why) => why.as_ref().is_some_and(|why| why.is_permanent),
        });
        match settled.await.map(|state| state.clone()) {
            Ok(ConnectorState::Down(Some(why))) => Err(why),
            _ => Ok(()),
        }
    }

    /// Returns the last error, if there is no connection.
    pub(super) fn down_reason(&self) -> Option<RedisFailure> {
        match &*self.state.borrow() {
            ConnectorState::Up => None,
            ConnectorState::Down(why) => why.clone(),
        }
    }

    /// Connects, lets `traffic` use the connection until it is lost, and repeats.
    pub(super) async fn run<T: ConnectionUser>(self: Arc<Connector>, traffic: Arc<T>) {
        let mut pause = MIN_RECONNECT_DELAY;
        loop {
            let lost = Arc::new(LossSignal::default());
            let why = match self.connect(&traffic, &lost).await {
                Ok(connection) => traffic.use_connection(connection, &self, &lost).await,
                Err(why) => why,
            };
            let is_news = self
                .down_reason()
                .is_none_or(|before| before.why != why.why);
            if self.is_up() {
                pause = MIN_RECONNECT_DELAY;
                tracing::warn!(redis = %self.address, %why, "connection to redis lost");
            } else if why.is_permanent && is_news {
                tracing::warn!(redis = %self.address, %why, "redis refuses the connection");
            } else if why.is_local && is_news {
                tracing::warn!(redis = %self.address, %why, "no connection to redis");
            } else {
                tracing::debug!(redis = %self.address, %why, "no connection to redis");
            }
            self.state.send_replace(ConnectorState::Down(Some(why)));
            sleep(pause).await;
            pause = (pause * 2).min(MAX_RECONNECT_DELAY);
        }
    }

    async fn connect<T: ConnectionUser>(
        &self,
        traffic: &Arc<T>,
        lost: &Arc<LossSignal>,
    ) -> Result<RedisConnection, RedisFailure> {
        let (traffic, lost) = (Arc::clone(traffic), Arc::clone(lost));
        let push = move |push: PushInfo| {
            match push.kind {
                PushKind::Disconnection => {
                    lost.0.send_replace(true);
                }
                _ => traffic.on_push(push),
            }
            Ok::<(), redis::aio::SendError>(())
        };
        match timeout(2 * CONNECT_TIMEOUT, self.address.connect(push)).await {
            Ok(connected) => connected.map_err(RedisFailure::from),
            Err(_) => Err(RedisFailure::new_transient("it does not answer")),
        }
    }
}
