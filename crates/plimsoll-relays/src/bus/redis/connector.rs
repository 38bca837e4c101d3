//! Keeps a connection to Redis: one for commands, a few for subscriptions, each made again after a
//! loss. The client library speaks the protocol; this module handles its failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{PushInfo, PushKind};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::address::RedisAddress;
use super::connection::{Connection, Failure};
use super::open::CONNECT_LIMIT;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Becomes true when the connection, or one to a node of the cluster, is lost.
#[derive(Default)]
pub(super) struct Lost(watch::Sender<bool>);

impl Lost {
    pub(super) fn is(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the loss.
    pub(super) async fn wait(&self) -> Failure {
        // This value holds the sender, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|lost| *lost).await;
        Failure::passing("closed by the server")
    }
}

/// The user of a connection.
pub(super) trait Traffic: Send + Sync + 'static {
    /// Handles a message that the server sent unprompted.
    fn pushed(&self, push: PushInfo);

    /// Uses a connection for as long as it lasts. Calls [`Connector::is_usable`] once commands are accepted.
    fn serve(
        &self,
        connection: Connection,
        connector: &Connector,
        lost: &Lost,
    ) -> impl Future<Output = Failure> + Send;
}

#[derive(Clone, Debug)]
enum State {
    Up,
    Down(Option<Failure>),
}

pub(super) struct Connector {
    pub(super) address: RedisAddress,
    state: watch::Sender<State>,
    been_up: AtomicBool,
}

impl Connector {
    pub(super) fn new(address: RedisAddress) -> Arc<Connector> {
        Arc::new(Connector {
            address,
            state: watch::Sender::new(State::Down(None)),
            been_up: AtomicBool::new(false),
        })
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), State::Up)
    }

    pub(super) fn is_usable(&self) {
        self.state.send_replace(State::Up);
        if self.been_up.swap(true, Ordering::Relaxed) {
            tracing::warn!(redis = %self.address, "connection to redis is back");
        }
    }

    /// Waits until the connection is usable; fails at once if waiting cannot help.
    pub(super) async fn ready(&self) -> Result<(), Failure> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| match state {
            State::Up => true,
            State::Down(why) => why.as_ref().is_some_and(|why| why.lasting),
        });
        match settled.await.map(|state| state.clone()) {
            Ok(State::Down(Some(why))) => Err(why),
            _ => Ok(()),
        }
    }

    /// Returns the last error, if there is no connection.
    pub(super) fn why_down(&self) -> Option<Failure> {
        match &*self.state.borrow() {
            State::Up => None,
            State::Down(why) => why.clone(),
        }
    }

    /// Connects and serves `traffic` in a loop.
    pub(super) async fn keep<T: Traffic>(self: Arc<Connector>, traffic: Arc<T>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let lost = Arc::new(Lost::default());
            let why = match self.connect(&traffic, &lost).await {
                Ok(connection) => traffic.serve(connection, &self, &lost).await,
                Err(why) => why,
            };
            let is_news = self.why_down().is_none_or(|before| before.why != why.why);
            if self.is_up() {
                pause = FIRST_PAUSE;
                tracing::warn!(redis = %self.address, %why, "connection to redis lost");
            } else if why.lasting && is_news {
                tracing::warn!(redis = %self.address, %why, "redis refuses the connection");
            } else if why.ours && is_news {
                tracing::warn!(redis = %self.address, %why, "no connection to redis");
            } else {
                tracing::debug!(redis = %self.address, %why, "no connection to redis");
            }
            self.state.send_replace(State::Down(Some(why)));
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect<T: Traffic>(
        &self,
        traffic: &Arc<T>,
        lost: &Arc<Lost>,
    ) -> Result<Connection, Failure> {
        let (traffic, lost) = (Arc::clone(traffic), Arc::clone(lost));
        let push = move |push: PushInfo| {
            match push.kind {
                PushKind::Disconnection => {
                    lost.0.send_replace(true);
                }
                _ => traffic.pushed(push),
            }
            Ok::<(), redis::aio::SendError>(())
        };
        match timeout(2 * CONNECT_LIMIT, self.address.connect(push)).await {
            Ok(connected) => connected.map_err(Failure::from),
            Err(_) => Err(Failure::passing("it does not answer")),
        }
    }
}
