//! A connection that carries subscriptions. Changes are sent in batches that keep only the last change of each channel.
//! After a reconnect all channels are subscribed again, and then each listener reads the messages that it missed from
//! its session's log.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, PushInfo, PushKind, Value, cmd};
use tokio::time::sleep;

use super::commands::CommandPipeline;
use super::connection::{CommandBatch, RedisConnection, RedisFailure, first_error};
use super::connector::{ConnectionUser, Connector, LossSignal};
use crate::bus::channels::Channels;

/// How often an idle connection is checked.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of channels subscribed in one batch.
const MAX_SUBSCRIBE_BATCH: usize = 512;

/// The command names for plain or sharded channels.
pub(super) struct PubSubCommands {
    subscribe: &'static str,
    unsubscribe: &'static str,
    pub(super) publish: &'static str,
    pub(super) count: &'static str,
}

pub(super) static PLAIN_COMMANDS: PubSubCommands = PubSubCommands {
    subscribe: "SUBSCRIBE",
    unsubscribe: "UNSUBSCRIBE",
    publish: "PUBLISH",
    count: "NUMSUB",
};

pub(super) static SHARDED_COMMANDS: PubSubCommands = PubSubCommands {
    subscribe: "SSUBSCRIBE",
    unsubscribe: "SUNSUBSCRIBE",
    publish: "SPUBLISH",
    count: "SHARDNUMSUB",
};

pub(super) struct Subscriber {
    pub(super) channels: Arc<Channels>,
    pub(super) connector: Arc<Connector>,
    pub(super) commands: Arc<CommandPipeline>,
    pub(super) command_names: &'static PubSubCommands,
    pub(super) is_cluster: bool,
}

impl Subscriber {
    async fn apply_changes(
        &self,
        connection: &mut RedisConnection,
        changes: Vec<(Box<str>, bool)>,
    ) -> Result<(), RedisFailure> {
        for some in changes.chunks(MAX_SUBSCRIBE_BATCH) {
            let mut batch = CommandBatch::default();
            for (channel, subscribed) in some {
                let word = if *subscribed {
                    self.command_names.subscribe
                } else {
                    self.command_names.unsubscribe
                };
                let key = self.is_cluster.then_some(&**channel);
                batch.put(key, cmd(word).arg(&**channel).take());
            }
            if let Some(why) = first_error(&connection.run(batch).await?) {
                return Err(why);
            }
        }
        Ok(())
    }

    async fn ping(&self, connection: &mut RedisConnection) -> Result<(), RedisFailure> {
        let mut batch = CommandBatch::default();
        batch.put(self.is_cluster.then_some(""), Cmd::ping());
        connection.run(batch).await.map(|_| ())
    }
}

impl ConnectionUser for Subscriber {
    fn on_push(&self, PushInfo { kind, data }: PushInfo) {
        let mut data = data.into_iter();
        let Some(Value::BulkString(name)) = data.next() else {
            return;
        };
        let Ok(name) = std::str::from_utf8(&name) else {
            return;
        };
        match (kind, data.next()) {
            (PushKind::Message | PushKind::SMessage, Some(Value::BulkString(payload))) => {
                self.channels.deliver(name, &Bytes::from(payload));
            }
            (PushKind::Subscribe | PushKind::SSubscribe, _) => self.channels.on_subscribed(name),
            (PushKind::SUnsubscribe, _) => self.channels.on_subscription_ended(name),
            _ => {}
        }
    }

    async fn use_connection(
        &self,
        mut connection: RedisConnection,
        connector: &Connector,
        lost: &LossSignal,
    ) -> RedisFailure {
        let channels = &self.channels;
        channels.on_connected();
        let mut came_back = self.commands.reconnected.subscribe();
        let all = || {
            channels
                .channel_names()
                .into_iter()
                .map(|name| (name, true))
                .collect()
        };
        let why = async {
            self.ping(&mut connection).await?;
            connector.mark_usable();
            self.apply_changes(&mut connection, all()).await?;
            channels.resync();
            loop {
                let changes = channels.take_changes();
                if !changes.is_empty() {
                    let changes = changes.into_iter().collect();
                    self.apply_changes(&mut connection, changes).await?;
                    continue;
                }
                tokio::select! {
                    () = channels.changed.notified() => tokio::task::yield_now().await,
                    Ok(()) = came_back.changed() => {
                        // The library itself reconnects to a cluster's nodes and does not report
                        // whether all subscriptions were restored.
                        if self.is_cluster {
                            self.apply_changes(&mut connection, all()).await?;
                        }
                        // Makes listeners restore the sessions that Redis has lost.
                        channels.resync();
                    }
                    why = lost.wait() => return Err(why),
                    () = sleep(PING_INTERVAL) => self.ping(&mut connection).await?,
                }
            }
        };
        let why: Result<std::convert::Infallible, RedisFailure> = why.await;
        channels.on_disconnected();
        match why {
            Err(why) => why,
            Ok(never) => match never {},
        }
    }
}
