//! A connection that carries subscriptions. Changes of what is listened to leave together, the last of
//! each channel; after a loss all of them are made again, and then listeners read their logs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, PushInfo, PushKind, Value, cmd};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::commands::Commands;
use super::connection::{Batch, Connection, Failure, error_in};
use super::connector::{Connector, Lost, Traffic};
use crate::bus::channels::{Channels, Upstream};

/// A silent server is asked for a sign of life this often.
const PING_EVERY: Duration = Duration::from_secs(5);
/// Channels subscribed in one batch.
const SUBSCRIBE_AT_ONCE: usize = 512;

/// The words for channels of a kind.
pub(super) struct Words {
    subscribe: &'static str,
    unsubscribe: &'static str,
    pub(super) publish: &'static str,
    pub(super) count: &'static str,
}

pub(super) static PLAIN: Words = Words {
    subscribe: "SUBSCRIBE",
    unsubscribe: "UNSUBSCRIBE",
    publish: "PUBLISH",
    count: "NUMSUB",
};

pub(super) static SHARDED: Words = Words {
    subscribe: "SSUBSCRIBE",
    unsubscribe: "SUNSUBSCRIBE",
    publish: "SPUBLISH",
    count: "SHARDNUMSUB",
};

pub(super) struct Subscriber {
    pub(super) connector: Arc<Connector>,
    commands: Arc<Commands>,
    words: &'static Words,
    clustered: bool,
    changes: Mutex<Changes>,
    wake: Notify,
}

#[derive(Default)]
struct Changes {
    connected: bool,
    /// Whether each is to be subscribed from now on.
    channels: HashMap<Box<str>, bool>,
}

impl Subscriber {
    pub(super) fn new(
        connector: Arc<Connector>,
        commands: Arc<Commands>,
        words: &'static Words,
    ) -> Subscriber {
        Subscriber {
            commands,
            clustered: connector.address.is_cluster(),
            connector,
            words,
            changes: Mutex::default(),
            wake: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, channel: &str, subscribed: bool) {
        let mut changes = self.lock();
        if changes.connected {
            changes.channels.insert(channel.into(), subscribed);
            self.wake.notify_one();
        }
    }

    async fn carry_out(
        &self,
        connection: &mut Connection,
        changes: Vec<(Box<str>, bool)>,
    ) -> Result<(), Failure> {
        for some in changes.chunks(SUBSCRIBE_AT_ONCE) {
            let mut batch = Batch::default();
            for (channel, subscribed) in some {
                let word = match subscribed {
                    true => self.words.subscribe,
                    false => self.words.unsubscribe,
                };
                let key = self.clustered.then_some(&**channel);
                batch.put(key, cmd(word).arg(&**channel).take());
            }
            if let Some(why) = error_in(&connection.run(batch).await?) {
                return Err(why);
            }
        }
        Ok(())
    }

    async fn ping(&self, connection: &mut Connection) -> Result<(), Failure> {
        let mut batch = Batch::default();
        batch.put(self.clustered.then_some(""), Cmd::ping());
        connection.run(batch).await.map(|_| ())
    }
}

impl Upstream for Subscriber {
    fn subscribe(&self, channel: &str) {
        self.change(channel, true);
    }

    fn unsubscribe(&self, channel: &str) {
        self.change(channel, false);
    }
}

impl Traffic for Channels<Subscriber> {
    fn pushed(&self, PushInfo { kind, data }: PushInfo) {
        let mut data = data.into_iter();
        let Some(Value::BulkString(name)) = data.next() else {
            return;
        };
        let Ok(name) = std::str::from_utf8(&name) else {
            return;
        };
        match (kind, data.next()) {
            (PushKind::Message | PushKind::SMessage, Some(Value::BulkString(payload))) => {
                self.deliver(name, &Bytes::from(payload));
            }
            (PushKind::Subscribe | PushKind::SSubscribe, _) => self.acknowledge(name),
            // Not asked for: its slot has moved to another node.
            (PushKind::SUnsubscribe, _) if self.interrupt(name) => {
                self.upstream.change(name, true);
            }
            _ => {}
        }
    }

    async fn serve(
        &self,
        mut connection: Connection,
        connector: &Connector,
        lost: &Lost,
    ) -> Failure {
        let subscriber = &self.upstream;
        // From here on changes are noted; what was there before is all in the names.
        *subscriber.lock() = Changes {
            connected: true,
            ..Changes::default()
        };
        let mut came_back = subscriber.commands.came_back.subscribe();
        let all = || self.names().into_iter().map(|name| (name, true)).collect();
        let why = async {
            subscriber.ping(&mut connection).await?;
            connector.is_usable();
            subscriber.carry_out(&mut connection, all()).await?;
            self.resync();
            loop {
                let changes = std::mem::take(&mut subscriber.lock().channels);
                if !changes.is_empty() {
                    let changes = changes.into_iter().collect();
                    subscriber.carry_out(&mut connection, changes).await?;
                    continue;
                }
                tokio::select! {
                    () = subscriber.wake.notified() => tokio::task::yield_now().await,
                    Ok(()) = came_back.changed() => {
                        // The library makes connections to a cluster's nodes again by itself,
                        // and does not report whether all subscriptions have followed.
                        if subscriber.clustered {
                            subscriber.carry_out(&mut connection, all()).await?;
                        }
                        // Listeners announce the sessions that Redis has lost.
                        self.resync();
                    }
                    why = lost.wait() => return Err(why),
                    () = sleep(PING_EVERY) => subscriber.ping(&mut connection).await?,
                }
            }
        };
        let why: Result<std::convert::Infallible, Failure> = why.await;
        *subscriber.lock() = Changes::default();
        self.unacknowledge();
        match why {
            Err(why) => why,
            Ok(never) => match never {},
        }
    }
}
