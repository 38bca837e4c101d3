//! The bus over Redis: one connection for commands, a few for subscriptions, whatever
//! the number of sessions.

mod address;
mod commands;
mod connection;
mod connector;
mod offers;
mod subscriber;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::Value;
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

pub use address::RedisAddress;

use super::channels::Channels;
use super::{
    BeginError, Begun, BusError, HISTORY_PAGE, Listening, Part, Run, Sink, Stamp, Standing,
    Stopped, Way,
};
use commands::Commands;
use connection::words_of;
use connector::Connector;
use subscriber::{PLAIN, SHARDED, Subscriber, Words};

const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const AFTER_CLOSE_SECONDS: &str = "60";
/// How long the lock of a run lasts that its backend does not renew, because it was killed.
const LEASE_SECONDS: &[u8] = b"60";
/// Sets `KEYS[1]` to "EPOCH SEQ", for `ARGV[3]` seconds; not to a lower number of the same epoch.
const NOTE_STOPPED: &[u8] = b"local old = redis.call('GET', KEYS[1]) \
    if old then \
      local epoch, seq = string.match(old, '^(%d+) (%d+)$') \
      if epoch == ARGV[1] and tonumber(seq) > tonumber(ARGV[2]) then return 0 end \
    end \
    redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'EX', ARGV[3]) \
    return 1";
const RESTORE_POLL: Duration = Duration::from_millis(50);

/// How the bus uses Redis.
#[derive(Clone, Copy, Debug)]
pub struct RedisOptions {
    /// Connections that carry the subscriptions of all sessions.
    pub subscribers: usize,
    /// A session and its log are forgotten this long after the last run.
    pub ttl: Duration,
    /// Sharded channels (Redis 7): cheaper, and another kind than the plain ones, so that
    /// all who publish and all who subscribe have to agree. A cluster has them in any case.
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
pub struct Redis {
    ttl_seconds: String,
    words: &'static Words,
    clustered: bool,
    commands: Arc<Commands>,
    subscribers: Vec<Arc<Channels<Subscriber>>>,
    hasher: RandomState,
    tasks: Vec<AbortHandle>,
}

impl Drop for Redis {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Redis {
    pub(super) fn start(address: RedisAddress, options: RedisOptions) -> Arc<Redis> {
        let clustered = address.is_cluster();
        let words = if options.sharded || clustered {
            &SHARDED
        } else {
            &PLAIN
        };
        let connector = Connector::new(address.clone());
        let commands = Commands::new(Arc::clone(&connector));
        let mut tasks = vec![tokio::spawn(connector.keep(Arc::clone(&commands))).abort_handle()];
        let subscribers = (0..options.subscribers.max(1))
            .map(|_| {
                let connector = Connector::new(address.clone());
                let subscriber =
                    Subscriber::new(Arc::clone(&connector), Arc::clone(&commands), words);
                let channels = Arc::new(Channels::new(subscriber));
                tasks.push(tokio::spawn(connector.keep(Arc::clone(&channels))).abort_handle());
                channels
            })
            .collect();
        Arc::new(Redis {
            ttl_seconds: options.ttl.as_secs().max(1).to_string(),
            words,
            clustered,
            commands,
            subscribers,
            hasher: RandomState::new(),
            tasks,
        })
    }

    fn connectors(&self) -> impl Iterator<Item = &Connector> {
        let subscribers = self.subscribers.iter().map(|s| &*s.upstream.connector);
        std::iter::once(&*self.commands.connector).chain(subscribers)
    }

    pub(super) fn is_up(&self) -> bool {
        self.connectors().all(Connector::is_up)
    }

    pub(super) fn generation(&self) -> u64 {
        self.commands.generation.load(Ordering::Acquire)
    }

    pub(super) fn losses(&self) -> u64 {
        self.commands.losses.load(Ordering::Acquire)
    }

    pub(super) async fn ready(&self, limit: Duration) -> Result<(), BusError> {
        let all_up = async {
            for connector in self.connectors() {
                connector
                    .ready()
                    .await
                    .map_err(|why| self.refused(&why.why))?;
            }
            Ok(())
        };
        match timeout(limit, all_up).await {
            Ok(settled) => settled?,
            Err(_) => {
                return Err(match self.connectors().find_map(Connector::why_down) {
                    Some(why) => BusError::Away {
                        address: self.address(),
                        why: why.why,
                    },
                    None => self.down(),
                });
            }
        }
        if std::ptr::eq(self.words, &PLAIN) {
            return Ok(());
        }
        // A server that lacks the command answers with nil.
        let known = self
            .ask("", &[&[b"COMMAND", b"INFO", self.words.publish]])
            .await?;
        match known.first() {
            Some(Value::Array(infos)) if !matches!(infos[..], [Value::Nil]) => Ok(()),
            _ => Err(self.refused(&format!(
                "it has no {} (sharded channels need Redis 7)",
                String::from_utf8_lossy(self.words.publish)
            ))),
        }
    }

    fn address(&self) -> String {
        self.commands.connector.address.to_string()
    }

    fn down(&self) -> BusError {
        BusError::Down(self.address())
    }

    fn refused(&self, message: &str) -> BusError {
        BusError::Refused {
            address: self.address(),
            message: message.to_owned(),
        }
    }

    /// The name of a session's key or channel. In a cluster all of a session's are in one slot.
    fn name(&self, session: &str, what: &str) -> String {
        match self.clustered {
            false => format!("session:{session}:{what}"),
            true => format!("session:{{{session}}}:{what}"),
        }
    }

    pub(super) fn channel(&self, session: &str, way: Way) -> String {
        self.name(session, way.name())
    }

    /// Sends commands on the data of a session (or another key) together and waits for all
    /// their replies.
    async fn ask(&self, key: &str, commands: &[&[&[u8]]]) -> Result<Vec<Value>, BusError> {
        let (reply_to, replies) = oneshot::channel();
        if !self.commands.send(key, commands, Some(reply_to)) {
            return Err(self.down());
        }
        let replies = match timeout(ANSWER_LIMIT, replies).await {
            Ok(Ok(replies)) => replies,
            Ok(Err(_)) => return Err(self.down()),
            Err(_) => return Err(BusError::Slow(self.address(), ANSWER_LIMIT)),
        };
        match replies.iter().find_map(|reply| match reply {
            Value::ServerError(message) => Some(message),
            _ => None,
        }) {
            Some(message) => Err(self.refused(&words_of(message))),
            None => Ok(replies),
        }
    }

    pub(super) async fn create(&self, session: &str, epoch: u64) -> Result<(), BusError> {
        let (key, epoch) = (self.name(session, "epoch"), epoch.to_string());
        let ttl = self.ttl_seconds.as_bytes();
        self.ask(
            session,
            &[&[b"SET", key.as_bytes(), epoch.as_bytes(), b"EX", ttl]],
        )
        .await
        .map(|_| ())
    }

    pub(super) async fn restore(
        &self,
        session: &str,
        begun: Begun,
        run: Run,
    ) -> Result<(), BusError> {
        let (key, lock) = (self.name(session, "epoch"), self.name(session, "run"));
        let known = format!("{} {}", begun.epoch, begun.last);
        let ttl = self.ttl_seconds.as_bytes();
        let commands: [&[&[u8]]; 2] = [
            &[b"SET", key.as_bytes(), known.as_bytes(), b"NX", b"EX", ttl],
            &[b"SET", lock.as_bytes(), b"1", b"NX", b"EX", LEASE_SECONDS],
        ];
        self.ask(session, &commands[..1 + usize::from(run == Run::GoesOn)])
            .await
            .map(|_| ())
    }

    pub(super) async fn begin_run(&self, session: &str) -> Result<Begun, BeginError> {
        let begun = self.try_to_begin(session).await;
        if !matches!(begun, Err(BeginError::Unknown)) {
            return begun;
        }
        while self.commands.may_be_restored() {
            sleep(RESTORE_POLL).await;
            if self.standing(session).await?.open {
                return self.try_to_begin(session).await;
            }
        }
        begun
    }

    async fn try_to_begin(&self, session: &str) -> Result<Begun, BeginError> {
        let up = self.channel(session, Way::Up);
        let (epoch, log, lock) = (
            self.name(session, "epoch"),
            self.name(session, "log"),
            self.name(session, "run"),
        );
        let stopped = self.name(session, "stopped");
        let ttl = self.ttl_seconds.as_bytes();
        let replies = self
            .ask(
                session,
                &[
                    &[b"GET", epoch.as_bytes()],
                    &[b"SET", lock.as_bytes(), b"1", b"NX", b"EX", LEASE_SECONDS],
                    &[b"LINDEX", log.as_bytes(), b"-1"],
                    &[b"PUBSUB", self.words.count, up.as_bytes()],
                    &[b"EXPIRE", epoch.as_bytes(), ttl],
                    &[b"EXPIRE", stopped.as_bytes(), ttl],
                ],
            )
            .await?;
        let Some(known) = as_begun(replies.first()) else {
            self.ask(session, &[&[b"DEL", lock.as_bytes()]]).await?;
            return Err(BeginError::Unknown);
        };
        if matches!(replies.get(1), Some(Value::Nil)) {
            let processes = match replies.get(3) {
                Some(Value::Array(counts)) => as_number(counts.get(1)).unwrap_or(0),
                _ => 0,
            };
            // A run that goes on listens; a lock without another listener has outlived its
            // backend. Two runs of one process share a subscription.
            if processes > 1 || self.subscriber(&up).listeners(&up) > 1 {
                return Err(BeginError::Busy);
            }
            tracing::info!(session, "taking over from a run whose backend is gone");
            self.renew(session);
        }
        let last = match replies.get(2) {
            Some(Value::BulkString(frame)) => Stamp::of(frame).seq.unwrap_or(0),
            _ => 0,
        };
        Ok(Begun {
            epoch: known.epoch,
            last: last.max(known.last),
        })
    }

    pub(super) fn post(&self, session: &str, frame: &Bytes, part: Part) {
        let (log, down) = (self.name(session, "log"), self.channel(session, Way::Down));
        let run = self.name(session, "run");
        let push: &[&[u8]] = &[b"RPUSH", log.as_bytes(), frame];
        let publish: &[&[u8]] = &[self.words.publish, down.as_bytes(), frame];
        let expire: &[&[u8]] = &[b"EXPIRE", log.as_bytes(), self.ttl_seconds.as_bytes()];
        // In the log, so the next run counts on from it; not yet published, so that run is
        // not refused.
        let unlock: &[&[u8]] = &[b"DEL", run.as_bytes()];
        let commands: &[_] = match part {
            Part::First => &[push, expire, publish],
            Part::Middle => &[push, publish],
            Part::Last => &[push, unlock, publish],
        };
        self.commands.send(session, commands, None);
    }

    pub(super) fn renew(&self, session: &str) {
        let lock = self.name(session, "run");
        let set: &[&[u8]] = &[b"SET", lock.as_bytes(), b"1", b"EX", LEASE_SECONDS];
        self.commands.send(session, &[set], None);
    }

    pub(super) async fn confirm(&self, session: &str) -> Result<(), BusError> {
        let log = self.name(session, "log");
        let ttl = self.ttl_seconds.as_bytes();
        let replies = self
            .ask(session, &[&[b"EXPIRE", log.as_bytes(), ttl]])
            .await?;
        // Nothing to expire: the log is not there, so posts were lost.
        match replies.first() {
            Some(Value::Int(1)) => Ok(()),
            _ => Err(self.down()),
        }
    }

    pub(super) async fn close(&self, session: &str) -> Result<bool, BusError> {
        let (epoch, log) = (self.name(session, "epoch"), self.name(session, "log"));
        let stopped = self.name(session, "stopped");
        let later = AFTER_CLOSE_SECONDS.as_bytes();
        let replies = self
            .ask(
                session,
                &[
                    &[b"DEL", epoch.as_bytes()],
                    &[b"EXPIRE", log.as_bytes(), later],
                    &[b"EXPIRE", stopped.as_bytes(), later],
                ],
            )
            .await?;
        Ok(as_number(replies.first()) == Some(1))
    }

    fn subscriber(&self, name: &str) -> &Arc<Channels<Subscriber>> {
        let place = self.hasher.hash_one(name) as usize % self.subscribers.len();
        &self.subscribers[place]
    }

    pub(super) async fn listen(
        &self,
        name: &str,
        sink: Arc<dyn Sink>,
    ) -> Result<Listening, BusError> {
        let channels = self.subscriber(name);
        if !channels.upstream.connector.is_up() {
            return Err(self.down());
        }
        let (listening, acknowledged) = channels.add(name, sink);
        if let Some(acknowledged) = acknowledged
            && timeout(ANSWER_LIMIT, acknowledged).await.is_err()
        {
            return Err(BusError::Slow(self.address(), ANSWER_LIMIT));
        }
        Ok(listening)
    }

    pub(super) async fn publish(&self, name: &str, payload: &[u8]) -> Result<u64, BusError> {
        let command: &[&[u8]] = &[self.words.publish, name.as_bytes(), payload];
        let replies = self.ask(name, &[command]).await?;
        Ok(as_number(replies.first()).unwrap_or(0))
    }

    pub(super) async fn history(
        &self,
        session: &str,
        position: u64,
    ) -> Result<Vec<Bytes>, BusError> {
        let log = self.name(session, "log");
        let last = (position + HISTORY_PAGE as u64 - 1).to_string();
        let position = position.to_string();
        let command: &[&[u8]] = &[
            b"LRANGE",
            log.as_bytes(),
            position.as_bytes(),
            last.as_bytes(),
        ];
        let mut replies = self.ask(session, &[command]).await?;
        match replies.pop() {
            Some(Value::Array(frames)) => Ok(frames
                .into_iter()
                .filter_map(|frame| match frame {
                    Value::BulkString(frame) => Some(Bytes::from(frame)),
                    _ => None,
                })
                .collect()),
            _ => Ok(Vec::new()),
        }
    }

    pub(super) async fn note_stopped(&self, session: &str, at: Stopped) -> Result<(), BusError> {
        let key = self.name(session, "stopped");
        let (epoch, seq) = (at.epoch.to_string(), at.seq.to_string());
        let command: &[&[u8]] = &[
            b"EVAL",
            NOTE_STOPPED,
            b"1",
            key.as_bytes(),
            epoch.as_bytes(),
            seq.as_bytes(),
            self.ttl_seconds.as_bytes(),
        ];
        self.ask(session, &[command]).await.map(|_| ())
    }

    pub(super) async fn standing(&self, session: &str) -> Result<Standing, BusError> {
        let (log, epoch) = (self.name(session, "log"), self.name(session, "epoch"));
        let stopped = self.name(session, "stopped");
        let replies = self
            .ask(
                session,
                &[
                    &[b"LINDEX", log.as_bytes(), b"-1"],
                    &[b"GET", epoch.as_bytes()],
                    &[b"GET", stopped.as_bytes()],
                ],
            )
            .await?;
        let known = as_begun(replies.get(1));
        let newest = match (replies.first(), known) {
            (Some(Value::BulkString(frame)), _) => Stamp::of(frame),
            // The log was lost, and what was in it is known from who restored the session.
            (_, Some(known)) => Stamp {
                seq: (known.last > 0).then_some(known.last),
                epoch: Some(known.epoch),
            },
            _ => Stamp::default(),
        };
        let logged = matches!(replies.first(), Some(Value::BulkString(_)));
        Ok(Standing {
            open: known.is_some(),
            newest,
            gone: !logged && newest.seq.is_some(),
            stopped: as_begun(replies.get(2)).map(|at| Stopped {
                epoch: at.epoch,
                seq: at.last,
            }),
        })
    }
}

/// What the epoch's key holds: `EPOCH`, or `EPOCH LAST` where it was restored.
fn as_begun(reply: Option<&Value>) -> Option<Begun> {
    let Value::BulkString(text) = reply? else {
        return None;
    };
    let text = std::str::from_utf8(text).ok()?;
    let (epoch, last) = text.split_once(' ').unwrap_or((text, "0"));
    Some(Begun {
        epoch: epoch.parse().ok()?,
        last: last.parse().ok()?,
    })
}

fn as_number(reply: Option<&Value>) -> Option<u64> {
    match reply? {
        Value::Int(n) => u64::try_from(*n).ok(),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
