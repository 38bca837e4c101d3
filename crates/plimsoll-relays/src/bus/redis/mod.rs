//! The bus over Redis: one connection for commands and a few for subscriptions, independent of the
//! number of sessions.

mod address;
mod commands;
mod connection;
mod connector;
mod open;
mod reply_limits;
mod run_offers;
mod sentinel;
mod subscriber;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::{Cmd, FromRedisValue, ToRedisArgs, Value, cmd, from_redis_value};
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

pub use address::RedisAddress;
pub(crate) use run_offers::RunOffer;

use super::{
    BeginError, BusError, ChannelDirection, FramePosition, FrameStamp, LogPosition,
    MAX_LOG_PAGE_FRAMES, MessageSink, RunStatus, SessionStatus, Subscription,
};
use commands::CommandPipeline;
use connection::{RedisFailure, server_error_text};
use connector::Connector;
use subscriber::{PLAIN_COMMANDS, PubSubCommands, SHARDED_COMMANDS, Subscriber};

const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSED_LOG_TTL_SECONDS: i64 = 60;
/// How long the lock of a run lasts if its backend dies and no longer renews it.
const LOCK_TTL_SECONDS: u64 = 60;
/// Sets `KEYS[1]` to "EPOCH SEQ" for `ARGV[3]` seconds, unless it holds a higher number of the same
/// epoch.
const SAVE_POSITION_SCRIPT: &str = "local old = redis.call('GET', KEYS[1]) \
    if old then \
      local epoch, seq = string.match(old, '^(%d+) (%d+)$') \
      if epoch == ARGV[1] and tonumber(seq) > tonumber(ARGV[2]) then return 0 end \
    end \
    redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'EX', ARGV[3]) \
    return 1";
const RESTORE_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Options of the bus over Redis.
#[derive(Clone, Copy, Debug)]
pub struct RedisOptions {
    /// Connections that carry the subscriptions of all sessions.
    pub subscribers: usize,
    /// A session and its log are forgotten this long after the last run.
    pub ttl: Duration,
    /// Use sharded channels (Redis 7), which are cheaper. They are distinct from plain channels, so
    /// all publishers and subscribers must agree. A cluster always uses them.
    pub sharded: bool,
}

impl Default for RedisOptions {
    fn default() -> RedisOptions {
        RedisOptions {
            subscribers: 2,
            ttl: Duration::from_secs(10_800),
            sharded: false,
        }
    }
}

/// See [`super::Bus::redis`].
pub struct RedisBus {
    ttl_seconds: i64,
    command_names: &'static PubSubCommands,
    is_cluster: bool,
    commands: Arc<CommandPipeline>,
    subscribers: Vec<Arc<Subscriber>>,
    hasher: RandomState,
    tasks: Vec<AbortHandle>,
}

impl Drop for RedisBus {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl RedisBus {
    pub(super) fn start(address: RedisAddress, options: RedisOptions) -> Arc<RedisBus> {
        let clustered = address.is_cluster();
        let words = if options.sharded || clustered {
            &SHARDED_COMMANDS
        } else {
            &PLAIN_COMMANDS
        };
        let connector = Connector::new(address.clone());
        let commands = CommandPipeline::new(Arc::clone(&connector));
        let mut tasks = vec![tokio::spawn(connector.run(Arc::clone(&commands))).abort_handle()];
        let subscribers = (0..options.subscribers.max(1))
            .map(|_| {
                let connector = Connector::new(address.clone());
                let subscriber = Arc::new(Subscriber {
                    channels: Arc::default(),
                    connector: Arc::clone(&connector),
                    commands: Arc::clone(&commands),
                    command_names: words,
                    is_cluster: clustered,
                });
                tasks.push(tokio::spawn(connector.run(Arc::clone(&subscriber))).abort_handle());
                subscriber
            })
            .collect();
        Arc::new(RedisBus {
            ttl_seconds: i64::try_from(options.ttl.as_secs().max(1)).unwrap_or(i64::MAX),
            command_names: words,
            is_cluster: clustered,
            commands,
            subscribers,
            hasher: RandomState::new(),
            tasks,
        })
    }

    fn connectors(&self) -> impl Iterator<Item = &Connector> {
        let subscribers = self.subscribers.iter().map(|s| &*s.connector);
        std::iter::once(&*self.commands.connector).chain(subscribers)
    }

    pub(super) fn is_up(&self) -> bool {
        self.connectors().all(Connector::is_up)
    }

    pub(super) fn possible_post_losses(&self) -> u64 {
        self.commands.generation.load(Ordering::Acquire)
    }

    pub(super) fn data_losses(&self) -> u64 {
        self.commands.data_losses.load(Ordering::Acquire)
    }

    pub(super) async fn wait_until_ready(&self, limit: Duration) -> Result<(), BusError> {
        let all_up = async {
            for connector in self.connectors() {
                connector
                    .wait_until_ready()
                    .await
                    .map_err(|why| self.error_reply(&why.why))?;
            }
            Ok(())
        };
        match timeout(limit, all_up).await {
            Ok(settled) => settled?,
            Err(_) => {
                return Err(match self.connectors().find_map(Connector::down_reason) {
                    Some(why) => self.unreachable_error(why),
                    None => self.down_error(),
                });
            }
        }
        if std::ptr::eq(self.command_names, &PLAIN_COMMANDS) {
            return Ok(());
        }
        let publish = self.command_names.publish;
        let info = cmd("COMMAND").arg("INFO").arg(publish).take();
        // For a command that the server does not have, `COMMAND INFO` returns nil.
        let known: ([Value; 1],) = self.run_commands("", [info]).await?;
        match known {
            ([Value::Nil],) => Err(self.error_reply(&format!(
                "it has no {publish} (sharded channels need Redis 7)"
            ))),
            _ => Ok(()),
        }
    }

    fn address(&self) -> String {
        self.commands.connector.address.to_string()
    }

    fn down_error(&self) -> BusError {
        let whys = self.connectors().filter_map(Connector::down_reason);
        match whys.into_iter().find(|why| why.is_local) {
            Some(why) => self.unreachable_error(why),
            None => BusError::Down(self.address()),
        }
    }

    fn unreachable_error(&self, why: RedisFailure) -> BusError {
        BusError::Unreachable {
            address: self.address(),
            why: why.why,
        }
    }

    fn error_reply(&self, message: &str) -> BusError {
        BusError::ErrorReply {
            address: self.address(),
            message: message.to_owned(),
        }
    }

    /// Returns the name of a session's key or channel. In a cluster, all keys and channels of a session share one slot.
    fn key_name(&self, session: &str, what: &str) -> String {
        if self.is_cluster {
            format!("session:{{{session}}}:{what}")
        } else {
            format!("session:{session}:{what}")
        }
    }

    pub(super) fn channel_name(&self, session: &str, way: ChannelDirection) -> String {
        self.key_name(session, way.name())
    }

    /// Sends commands on the data of a session (or another key) together and waits for all replies.
    async fn run_commands<T: FromRedisValue>(
        &self,
        key: &str,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Result<T, BusError> {
        let (reply_to, replies) = oneshot::channel();
        if !self.commands.send(key, commands, Some(reply_to)) {
            return Err(self.down_error());
        }
        let replies = match timeout(REPLY_TIMEOUT, replies).await {
            Ok(Ok(replies)) => replies,
            Ok(Err(_)) => return Err(self.down_error()),
            Err(_) => return Err(BusError::TimedOut(self.address(), REPLY_TIMEOUT)),
        };
        match replies.iter().find_map(|reply| match reply {
            Value::ServerError(message) => Some(message),
            _ => None,
        }) {
            Some(message) => Err(self.error_reply(&server_error_text(message))),
            None => from_redis_value(Value::Array(replies))
                .map_err(|strange| self.error_reply(&strange.to_string())),
        }
    }

    pub(super) async fn create_session(&self, session: &str, epoch: u64) -> Result<(), BusError> {
        let key = self.key_name(session, "epoch");
        let set = set_with_ttl_command(&key, epoch, self.ttl_seconds);
        self.run_commands(session, [set]).await
    }

    pub(super) async fn restore_session(
        &self,
        session: &str,
        begun: LogPosition,
        run: RunStatus,
    ) -> Result<(), BusError> {
        let known = format!("{} {}", begun.epoch, begun.last);
        let key = self.key_name(session, "epoch");
        let set = set_with_ttl_command(&key, known, self.ttl_seconds)
            .arg("NX")
            .take();
        let lock = (run == RunStatus::Active).then(|| self.try_lock_command(session));
        self.run_commands(session, [set].into_iter().chain(lock))
            .await
    }

    /// Returns the command that takes the lock of a session's run if it is free.
    fn try_lock_command(&self, session: &str) -> Cmd {
        let lock = self.key_name(session, "run");
        set_with_ttl_command(&lock, 1, LOCK_TTL_SECONDS)
            .arg("NX")
            .take()
    }

    pub(super) async fn begin_run(&self, session: &str) -> Result<LogPosition, BeginError> {
        let begun = self.try_begin_run(session).await;
        if !matches!(begun, Err(BeginError::Unknown)) {
            return begun;
        }
        while self.commands.may_restore_sessions() {
            sleep(RESTORE_POLL_INTERVAL).await;
            if self.session_status(session).await?.is_open {
                return self.try_begin_run(session).await;
            }
        }
        begun
    }

    async fn try_begin_run(&self, session: &str) -> Result<LogPosition, BeginError> {
        let up = self.channel_name(session, ChannelDirection::Up);
        let (epoch, log) = (
            self.key_name(session, "epoch"),
            self.key_name(session, "log"),
        );
        let stopped = self.key_name(session, "stopped");
        let (known, locked, newest, counts, (), ()): BeginRunReply = self
            .run_commands(
                session,
                [
                    Cmd::get(&epoch),
                    self.try_lock_command(session),
                    Cmd::lindex(&log, -1),
                    cmd("PUBSUB").arg(self.command_names.count).arg(&up).take(),
                    Cmd::expire(&epoch, self.ttl_seconds),
                    Cmd::expire(&stopped, self.ttl_seconds),
                ],
            )
            .await?;
        let Some(known) = known.and_then(parse_position) else {
            let unlock = Cmd::del(self.key_name(session, "run"));
            self.run_commands::<()>(session, [unlock]).await?;
            return Err(BeginError::Unknown);
        };
        if locked.is_none() {
            let (_, processes) = counts;
            // The backend of a run in progress listens to `up`, so a lock without a listener has outlived its backend.
            // The caller listens, too, and runs of one process share a subscription, so its listeners are counted as
            // well.
            if processes > 1 || self.subscriber(&up).channels.listener_count(&up) > 1 {
                return Err(BeginError::Busy);
            }
            tracing::info!(session, "taking over from a run whose backend is gone");
            self.renew_lock(session);
        }
        let last = newest
            .and_then(|frame| FrameStamp::parse(&frame).seq)
            .unwrap_or(0);
        Ok(LogPosition {
            epoch: known.epoch,
            last: last.max(known.last),
        })
    }

    pub(super) fn post(&self, session: &str, frame: &Bytes, part: FramePosition) {
        let log = self.key_name(session, "log");
        let down = self.channel_name(session, ChannelDirection::Down);
        let then = match part {
            FramePosition::First => Some(Cmd::expire(&log, self.ttl_seconds)),
            FramePosition::Middle => None,
            // The lock is released after the frame is in the log, so that the next run continues
            // its numbers, and before it is published, so that the client may start that run at
            // once.
            FramePosition::Last => Some(Cmd::del(self.key_name(session, "run"))),
        };
        let push = Cmd::rpush(&log, &frame[..]);
        let publish = self.publish_command(&down, frame);
        let commands = [push].into_iter().chain(then).chain([publish]);
        self.commands.send(session, commands, None);
    }

    pub(super) fn renew_lock(&self, session: &str) {
        let lock = self.key_name(session, "run");
        let set = set_with_ttl_command(&lock, 1, LOCK_TTL_SECONDS);
        self.commands.send(session, [set], None);
    }

    pub(super) async fn confirm_posts(&self, session: &str) -> Result<(), BusError> {
        let log = self.key_name(session, "log");
        // If `EXPIRE` finds no key, the log is missing, so posts were lost.
        match self
            .run_commands(session, [Cmd::expire(&log, self.ttl_seconds)])
            .await?
        {
            (true,) => Ok(()),
            (false,) => Err(self.down_error()),
        }
    }

    pub(super) async fn close_session(&self, session: &str) -> Result<bool, BusError> {
        let log = self.key_name(session, "log");
        let stopped = self.key_name(session, "stopped");
        let commands = [
            Cmd::del(self.key_name(session, "epoch")),
            Cmd::expire(&log, CLOSED_LOG_TTL_SECONDS),
            Cmd::expire(&stopped, CLOSED_LOG_TTL_SECONDS),
        ];
        let (was_open, (), ()) = self.run_commands(session, commands).await?;
        Ok(was_open)
    }

    fn subscriber(&self, name: &str) -> &Subscriber {
        let place = self.hasher.hash_one(name) as usize % self.subscribers.len();
        &self.subscribers[place]
    }

    pub(super) async fn listen(
        &self,
        name: &str,
        sink: Arc<dyn MessageSink>,
    ) -> Result<Subscription, BusError> {
        let subscriber = self.subscriber(name);
        if !subscriber.connector.is_up() {
            return Err(self.down_error());
        }
        let (listening, acknowledged) = subscriber.channels.add_listener(name, sink);
        if let Some(acknowledged) = acknowledged
            && timeout(REPLY_TIMEOUT, acknowledged).await.is_err()
        {
            return Err(BusError::TimedOut(self.address(), REPLY_TIMEOUT));
        }
        Ok(listening)
    }

    pub(super) async fn publish(&self, name: &str, payload: &[u8]) -> Result<u64, BusError> {
        let (heard,) = self
            .run_commands(name, [self.publish_command(name, payload)])
            .await?;
        Ok(heard)
    }

    fn publish_command(&self, name: &str, payload: &[u8]) -> Cmd {
        cmd(self.command_names.publish)
            .arg(name)
            .arg(payload)
            .take()
    }

    pub(super) async fn read_log_page(
        &self,
        session: &str,
        position: u64,
    ) -> Result<Vec<Bytes>, BusError> {
        let log = self.key_name(session, "log");
        let last = position + MAX_LOG_PAGE_FRAMES as u64 - 1;
        let range = cmd("LRANGE").arg(log).arg(position).arg(last).take();
        let (frames,): (Vec<Vec<u8>>,) = self.run_commands(session, [range]).await?;
        Ok(frames.into_iter().map(Bytes::from).collect())
    }

    pub(super) async fn save_position(
        &self,
        session: &str,
        at: LogPosition,
    ) -> Result<(), BusError> {
        let note = cmd("EVAL")
            .arg(SAVE_POSITION_SCRIPT)
            .arg(1)
            .arg(self.key_name(session, "stopped"))
            .arg(at.epoch)
            .arg(at.last)
            .arg(self.ttl_seconds)
            .take();
        self.run_commands(session, [note]).await
    }

    pub(super) async fn session_status(&self, session: &str) -> Result<SessionStatus, BusError> {
        let commands = [
            Cmd::lindex(self.key_name(session, "log"), -1),
            Cmd::get(self.key_name(session, "epoch")),
            Cmd::get(self.key_name(session, "stopped")),
        ];
        type SessionStatusReply = (Option<Vec<u8>>, Option<String>, Option<String>);
        let (frame, known, stopped): SessionStatusReply =
            self.run_commands(session, commands).await?;
        let known = known.and_then(parse_position);
        let newest = match (&frame, known) {
            (Some(frame), _) => FrameStamp::parse(frame),
            // The log was lost, so the newest frame is known only from the gateway or backend that restored the
            // session.
            (_, Some(known)) => FrameStamp {
                seq: (known.last > 0).then_some(known.last),
                epoch: Some(known.epoch),
            },
            _ => FrameStamp::default(),
        };
        Ok(SessionStatus {
            is_open: known.is_some(),
            newest,
            log_lost: frame.is_none() && newest.seq.is_some(),
            last_delivered: stopped.and_then(parse_position),
        })
    }
}

/// The replies when a run begins: the session, whether the lock was free, the newest frame, and the number of processes
/// that listen to the channel with the client's messages.
type BeginRunReply = (
    Option<String>,
    Option<()>,
    Option<Vec<u8>>,
    (String, u64),
    (),
    (),
);

/// Returns the command that sets a key with a lifetime in seconds.
fn set_with_ttl_command(key: &str, value: impl ToRedisArgs, seconds: impl ToRedisArgs) -> Cmd {
    let mut set = cmd("SET");
    set.arg(key).arg(value).arg("EX").arg(seconds);
    set
}

/// Parses `EPOCH` or `EPOCH LAST`; the epoch's key has both after a restore.
fn parse_position(text: String) -> Option<LogPosition> {
    let (epoch, last) = text.split_once(' ').unwrap_or((&text, "0"));
    Some(LogPosition {
        epoch: epoch.parse().ok()?,
        last: last.parse().ok()?,
    })
}
