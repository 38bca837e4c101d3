//! Sends the commands of all callers in order. Commands that are queued while a batch is in flight
//! leave together in the next one.
//!
//! Invariant: one batch is in flight at a time, so no command overtakes another, and the bytes
//! queued for a stalled server are bounded by [`MAX_UNSENT_BYTES`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, PushInfo, Value};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep};

use super::connection::{
    CommandBatch, RedisConnection, RedisFailure, first_error, server_error_text, unavailable_error,
};
use super::connector::{ConnectionUser, Connector, LossSignal};

/// How often an idle connection is checked.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const MAX_UNSENT_BYTES: usize = 64 << 20;
/// The key whose value is the random name of this Redis's data set. A gateway or backend that finds another name knows
/// that all sessions were lost.
const DATA_IDENTITY_KEY: &str = "session:data";
/// A cluster has this many such keys, numbered so that every node is likely to hold some.
const CLUSTER_IDENTITY_KEY_COUNT: usize = 64;
/// How long gateways and backends may take to restore their sessions after Redis has lost its data.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct CommandPipeline {
    pub(super) connector: Arc<Connector>,
    clustered: bool,
    queue: Mutex<UnsentCommands>,
    wake: Notify,
    overflowed: Notify,
    /// Number of connections made so far.
    pub(super) generation: AtomicU64,
    /// Number of connections that became usable so far.
    pub(super) reconnected: watch::Sender<u64>,
    /// Number of data losses detected.
    pub(super) data_losses: AtomicU64,
    data: Mutex<DataIdentity>,
}

#[derive(Default)]
struct UnsentCommands {
    is_connected: bool,
    batch: CommandBatch,
    pending_replies: Vec<PendingReplies>,
}

/// The receiver of the replies to the next `commands` commands.
struct PendingReplies {
    commands: usize,
    /// `None` if the replies are not needed.
    reply_to: Option<oneshot::Sender<Vec<Value>>>,
}

/// The names of the data set that Redis last held, and the time when Redis lost it.
#[derive(Default)]
struct DataIdentity {
    names: Vec<Value>,
    lost_at: Option<Instant>,
}

impl CommandPipeline {
    pub(super) fn new(connector: Arc<Connector>) -> Arc<CommandPipeline> {
        Arc::new(CommandPipeline {
            clustered: connector.address.is_cluster(),
            connector,
            queue: Mutex::default(),
            wake: Notify::new(),
            overflowed: Notify::new(),
            generation: AtomicU64::new(0),
            data_losses: AtomicU64::new(0),
            reconnected: watch::Sender::new(0),
            data: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, UnsentCommands> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_data(&self) -> MutexGuard<'_, DataIdentity> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether gateways and backends that know a lost session may still restore it.
    pub(super) fn may_restore_sessions(&self) -> bool {
        self.lock_data()
            .lost_at
            .is_some_and(|at| at.elapsed() < RESTORE_TIMEOUT)
    }

    /// Queues commands on the data of `key`; returns `false` without a connection. `reply_to`
    /// receives the replies.
    pub(super) fn send(
        &self,
        key: &str,
        commands: impl IntoIterator<Item = Cmd>,
        reply_to: Option<oneshot::Sender<Vec<Value>>>,
    ) -> bool {
        let mut queue = self.lock();
        if !queue.is_connected {
            return false;
        }
        let was_empty = queue.pending_replies.is_empty();
        let before = queue.batch.len();
        for command in commands {
            queue.batch.put(self.clustered.then_some(key), command);
        }
        let commands = queue.batch.len() - before;
        match queue.pending_replies.last_mut() {
            Some(last) if last.reply_to.is_none() && reply_to.is_none() => {
                last.commands += commands;
            }
            _ => queue
                .pending_replies
                .push(PendingReplies { commands, reply_to }),
        }
        if queue.batch.bytes > MAX_UNSENT_BYTES {
            self.overflowed.notify_one();
        }
        if was_empty {
            self.wake.notify_one();
        }
        true
    }

    /// Waits for the next batch, or for the loss of the connection.
    async fn next_batch(
        &self,
        lost: &LossSignal,
    ) -> Result<(CommandBatch, Vec<PendingReplies>), RedisFailure> {
        loop {
            {
                let mut queue = self.lock();
                if !queue.pending_replies.is_empty() {
                    let waiting = std::mem::take(&mut queue.pending_replies);
                    return Ok((std::mem::take(&mut queue.batch), waiting));
                }
            }
            tokio::select! {
                () = self.wake.notified() => {}
                why = lost.wait() => return Err(why),
                () = sleep(PING_INTERVAL) => {
                    self.send(DATA_IDENTITY_KEY, [Cmd::ping()], None);
                }
            }
            // Lets other tasks of this scheduler tick add their commands to the batch.
            tokio::task::yield_now().await;
        }
    }

    async fn wait_for_overflow(&self) {
        while self.lock().batch.bytes <= MAX_UNSENT_BYTES {
            self.overflowed.notified().await;
        }
    }

    async fn run_batches(
        &self,
        mut connection: RedisConnection,
        lost: &LossSignal,
    ) -> RedisFailure {
        loop {
            let (batch, waiting) = match self.next_batch(lost).await {
                Ok(next) => next,
                Err(why) => return why,
            };
            let replies = tokio::select! {
                replies = connection.run(batch) => match replies {
                    Ok(replies) => replies,
                    Err(why) => return why,
                },
                () = self.wait_for_overflow() => return RedisFailure::new_transient("it does not read data"),
            };
            // A lost cluster node may have restarted empty before it answered, so its replies are
            // not trusted.
            if lost.is_lost() {
                return lost.wait().await;
            }
            let elsewhere = replies.iter().find_map(unavailable_error);
            let mut replies = replies.into_iter();
            for PendingReplies { commands, reply_to } in waiting {
                let of_these = replies.by_ref().take(commands);
                match reply_to {
                    // A failure to send is ignored: the caller no longer waits.
                    Some(reply_to) => drop(reply_to.send(of_these.collect())),
                    None => of_these.for_each(log_error_reply),
                }
            }
            if let Some(why) = elsewhere {
                return why;
            }
        }
    }

    /// Detects whether Redis has lost the data that it held before.
    async fn detect_data_loss(&self, connection: &mut RedisConnection) -> Result<(), RedisFailure> {
        let name = uuid::Uuid::new_v4().to_string();
        let keys = if self.clustered {
            (0..CLUSTER_IDENTITY_KEY_COUNT)
                .map(|i| format!("{DATA_IDENTITY_KEY}:{i}"))
                .collect()
        } else {
            vec![DATA_IDENTITY_KEY.to_owned()]
        };
        let mut batch = CommandBatch::default();
        for key in &keys {
            let of = self.clustered.then_some(&**key);
            batch.put(of, Cmd::set_nx(key, &name));
            batch.put(of, Cmd::get(key));
        }
        let replies = connection.run(batch).await?;
        if let Some(why) = first_error(&replies) {
            return Err(why);
        }
        let names: Vec<Value> = replies.into_iter().skip(1).step_by(2).collect();
        let mut data = self.lock_data();
        let before = std::mem::replace(&mut data.names, names);
        if !before.is_empty() && before != data.names {
            tracing::warn!("redis has lost its data; announcing all known sessions again");
            data.lost_at = Some(Instant::now());
            self.data_losses.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }
}

fn log_error_reply(reply: Value) {
    if let Value::ServerError(message) = reply {
        tracing::warn!(
            message = server_error_text(&message),
            "redis refused a frame"
        );
    }
}

impl ConnectionUser for CommandPipeline {
    fn on_push(&self, _: PushInfo) {}

    async fn use_connection(
        &self,
        mut connection: RedisConnection,
        connector: &Connector,
        lost: &LossSignal,
    ) -> RedisFailure {
        if let Err(why) = self.detect_data_loss(&mut connection).await {
            return why;
        }
        *self.lock() = UnsentCommands {
            is_connected: true,
            ..UnsentCommands::default()
        };
        self.generation.fetch_add(1, Ordering::AcqRel);
        connector.mark_usable();
        self.reconnected.send_modify(|times| *times += 1);
        let why = self.run_batches(connection, lost).await;
        // Drops the queued senders, which fails the pending requests.
        *self.lock() = UnsentCommands::default();
        why
    }
}
