//! A connection that carries subscriptions. Changes are sent in batches that keep only the last
//! change of each channel; after a reconnect all channels are subscribed again, and then listeners
//! read their logs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, PushInfo, PushKind, Value, cmd};
use tokio::time::sleep;

use super::commands::Commands;
use super::connection::{Batch, Connection, Failure, error_in};
use super::connector::{Connector, Lost, Traffic};
use crate::bus::channels::Channels;

/// How often an idle connection is checked.
const PING_EVERY: Duration = Duration::from_secs(5);
/// Most channels subscribed in one batch.
const SUBSCRIBE_AT_ONCE: usize = 512;

/// The command names for plain or sharded channels.
pub(super) struct Words {
    subscribe: &'static str,
    unsubscribe: &'static str,
    pub(super) publish: &'static str,
    pub(super) count: &'static str,
}

pub(super) static PLAIN_COMMANDS: Words = Words {
    subscribe: "SUBSCRIBE",
    unsubscribe: "UNSUBSCRIBE",
    publish: "PUBLISH",
    count: "NUMSUB",
};

pub(super) static SHARDED_COMMANDS: Words = Words {
    subscribe: "SSUBSCRIBE",
    unsubscribe: "SUNSUBSCRIBE",
    publish: "SPUBLISH",
    count: "SHARDNUMSUB",
};

pub(super) struct Subscriber {
    pub(super) channels: Arc<Channels>,
    pub(super) connector: Arc<Connector>,
    pub(super) commands: Arc<Commands>,
    pub(super) words: &'static Words,
    pub(super) clustered: bool,
}

impl Subscriber {
    async fn carry_out(
        &self,
        connection: &mut Connection,
        changes: Vec<(Box<str>, bool)>,
    ) -> Result<(), Failure> {
        for some in changes.chunks(SUBSCRIBE_AT_ONCE) {
            let mut batch = Batch::default();
            for (channel, subscribed) in some {
                let word = if *subscribed {
                    self.words.subscribe
                } else {
                    self.words.unsubscribe
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

impl Traffic for Subscriber {
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
                self.channels.deliver(name, &Bytes::from(payload));
            }
            (PushKind::Subscribe | PushKind::SSubscribe, _) => self.channels.acknowledge(name),
            (PushKind::SUnsubscribe, _) => self.channels.interrupt(name),
            _ => {}
        }
    }

    async fn serve(
        &self,
        mut connection: Connection,
        connector: &Connector,
        lost: &Lost,
    ) -> Failure {
        let channels = &self.channels;
        channels.connected();
        let mut came_back = self.commands.came_back.subscribe();
        let all = || {
            channels
                .names()
                .into_iter()
                .map(|name| (name, true))
                .collect()
        };
        let why = async {
            self.ping(&mut connection).await?;
            connector.is_usable();
            self.carry_out(&mut connection, all()).await?;
            channels.resync();
            loop {
                let changes = channels.take_changes();
                if !changes.is_empty() {
                    let changes = changes.into_iter().collect();
                    self.carry_out(&mut connection, changes).await?;
                    continue;
                }
                tokio::select! {
                    () = channels.changed.notified() => tokio::task::yield_now().await,
                    Ok(()) = came_back.changed() => {
                        // The library reconnects to a cluster's nodes by itself and does not report
                        // whether all subscriptions were restored.
                        if self.clustered {
                            self.carry_out(&mut connection, all()).await?;
                        }
                        // Makes listeners restore the sessions that Redis has lost.
                        channels.resync();
                    }
                    why = lost.wait() => return Err(why),
                    () = sleep(PING_EVERY) => self.ping(&mut connection).await?,
                }
            }
        };
        let why: Result<std::convert::Infallible, Failure> = why.await;
        channels.disconnected();
        match why {
            Err(why) => why,
            Ok(never) => match never {},
        }
    }
}
