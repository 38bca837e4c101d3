//! The bus over Redis: one connection for commands, a few for subscriptions, whatever
//! the number of sessions.

mod address;
mod line;
mod offers;
mod resp;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

pub use address::RedisAddress;

use super::channels::{Channels, Upstream};
use super::{
    BeginError, Begun, BusError, HISTORY_PAGE, Listening, Part, Sink, Stamp, Standing, Stopped,
    Way, channel,
};
use line::{Line, Traffic};
use resp::{Reply, put_command};

const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Channels in one SUBSCRIBE.
const SUBSCRIBE_AT_ONCE: usize = 512;
const AFTER_CLOSE_SECONDS: &str = "60";
/// How long the lock of a run lasts that its backend does not renew, because it was killed.
const LEASE_SECONDS: &[u8] = b"60";
/// Sets KEYS[1] to "EPOCH SEQ", for ARGV[3] seconds; not to a lower number of the same epoch.
const NOTE_STOPPED: &[u8] = b"local old = redis.call('GET', KEYS[1]) \
    if old then \
      local epoch, seq = string.match(old, '^(%d+) (%d+)$') \
      if epoch == ARGV[1] and tonumber(seq) > tonumber(ARGV[2]) then return 0 end \
    end \
    redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'EX', ARGV[3]) \
    return 1";
/// Whoever makes this key names the data that Redis holds from then on: under another name
/// all the sessions are gone.
const DATA_KEY: &[u8] = b"session:data";
/// Those who know a session have told a Redis that lost it by then.
const TOLD_LIMIT: Duration = Duration::from_secs(3);
const TOLD_POLL: Duration = Duration::from_millis(50);

/// How the bus uses Redis.
#[derive(Clone, Copy, Debug)]
pub struct RedisOptions {
    /// Connections that carry the subscriptions of all sessions.
    pub subscribers: usize,
    /// A session and its log are forgotten this long after the last run.
    pub ttl: Duration,
    /// Sharded channels (Redis 7): cheaper, and another kind than the plain ones, so that
    /// all who publish and all who subscribe have to agree.
    pub sharded: bool,
}

/// The words for channels of a kind.
struct Words {
    subscribe: &'static [u8],
    unsubscribe: &'static [u8],
    publish: &'static [u8],
    count: &'static [u8],
    /// What replies begin with.
    subscribed: &'static [u8],
    message: &'static [u8],
}

static PLAIN: Words = Words {
    subscribe: b"SUBSCRIBE",
    unsubscribe: b"UNSUBSCRIBE",
    publish: b"PUBLISH",
    count: b"NUMSUB",
    subscribed: b"subscribe",
    message: b"message",
};

static SHARDED: Words = Words {
    subscribe: b"SSUBSCRIBE",
    unsubscribe: b"SUNSUBSCRIBE",
    publish: b"SPUBLISH",
    count: b"SHARDNUMSUB",
    subscribed: b"ssubscribe",
    message: b"smessage",
};

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
    commands: Arc<Line>,
    answers: Arc<Answers>,
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
        let words = if options.sharded { &SHARDED } else { &PLAIN };
        let commands = Line::new(address.clone());
        let answers = Arc::new(Answers::default());
        let mut tasks = vec![
            tokio::spawn(Arc::clone(&commands).keep(Arc::clone(&answers) as Arc<dyn Traffic>))
                .abort_handle(),
        ];
        let subscribers = (0..options.subscribers.max(1))
            .map(|_| {
                let line = Line::new(address.clone());
                let channels = Arc::new(Channels::new(Subscriber {
                    line: Arc::clone(&line),
                    words,
                }));
                let traffic = Arc::clone(&channels) as Arc<dyn Traffic>;
                tasks.push(tokio::spawn(line.keep(traffic)).abort_handle());
                channels
            })
            .collect();
        Arc::new(Redis {
            ttl_seconds: options.ttl.as_secs().max(1).to_string(),
            words,
            commands,
            answers,
            subscribers,
            hasher: RandomState::new(),
            tasks,
        })
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        let subscribers = self.subscribers.iter().map(|s| &*s.upstream.line);
        std::iter::once(&*self.commands).chain(subscribers)
    }

    pub(super) fn is_up(&self) -> bool {
        self.lines().all(Line::is_up)
    }

    pub(super) fn generation(&self) -> u64 {
        self.answers.generation.load(Ordering::Acquire)
    }

    pub(super) fn losses(&self) -> u64 {
        self.answers.losses.load(Ordering::Acquire)
    }

    pub(super) async fn ready(&self, limit: Duration) -> Result<(), BusError> {
        let all_up = async {
            for line in self.lines() {
                loop {
                    let came_up = line.came_up.notified();
                    if line.is_up() {
                        break;
                    }
                    // The line may have come up between the two lines above.
                    let _ = timeout(Duration::from_millis(50), came_up).await;
                }
            }
        };
        timeout(limit, all_up).await.map_err(|_| self.down())?;
        if std::ptr::eq(self.words, &PLAIN) {
            return Ok(());
        }
        // A server that lacks the command has nothing to say of it.
        let known = self
            .ask(&[&[b"COMMAND", b"INFO", self.words.publish]])
            .await?;
        match known.first() {
            Some(Reply::List(infos)) if !matches!(infos[..], [Reply::Nothing]) => Ok(()),
            _ => Err(BusError::Refused {
                address: self.commands.address.to_string(),
                message: format!(
                    "it has no {} (sharded channels need Redis 7)",
                    String::from_utf8_lossy(self.words.publish)
                ),
            }),
        }
    }

    fn down(&self) -> BusError {
        BusError::Down(self.commands.address.to_string())
    }

    /// Sends commands together and waits for all their replies.
    async fn ask(&self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, BusError> {
        let (tell, told) = oneshot::channel();
        let sent = self.commands.send(|out| {
            for command in commands {
                put_command(out, command);
            }
            self.answers.lock().push_back(Waiting {
                left: commands.len(),
                got: Vec::with_capacity(commands.len()),
                tell: Some(tell),
            });
        });
        if !sent {
            return Err(self.down());
        }
        let replies = match timeout(ANSWER_LIMIT, told).await {
            Ok(Ok(replies)) => replies,
            Ok(Err(_)) => return Err(self.down()),
            Err(_) => {
                let address = self.commands.address.to_string();
                return Err(BusError::Slow(address, ANSWER_LIMIT));
            }
        };
        for reply in &replies {
            if let Reply::Error(message) = reply {
                return Err(BusError::Refused {
                    address: self.commands.address.to_string(),
                    message: String::from_utf8_lossy(message).into_owned(),
                });
            }
        }
        Ok(replies)
    }

    pub(super) async fn create(&self, session: &str, epoch: u64) -> Result<(), BusError> {
        let (key, epoch) = (epoch_key(session), epoch.to_string());
        let ttl = self.ttl_seconds.as_bytes();
        self.ask(&[&[b"SET", key.as_bytes(), epoch.as_bytes(), b"EX", ttl]])
            .await
            .map(|_| ())
    }

    pub(super) async fn restore(
        &self,
        session: &str,
        begun: Begun,
        running: bool,
    ) -> Result<(), BusError> {
        let (key, lock) = (epoch_key(session), run_key(session));
        let known = format!("{} {}", begun.epoch, begun.last);
        let ttl = self.ttl_seconds.as_bytes();
        let commands: [&[&[u8]]; 2] = [
            &[b"SET", key.as_bytes(), known.as_bytes(), b"NX", b"EX", ttl],
            &[b"SET", lock.as_bytes(), b"1", b"NX", b"EX", LEASE_SECONDS],
        ];
        self.ask(&commands[..1 + usize::from(running)])
            .await
            .map(|_| ())
    }

    pub(super) async fn begin_run(&self, session: &str) -> Result<Begun, BeginError> {
        let begun = self.try_to_begin(session).await;
        if !matches!(begun, Err(BeginError::Unknown)) {
            return begun;
        }
        while self.answers.may_be_told() {
            sleep(TOLD_POLL).await;
            if self.standing(session).await?.open {
                return self.try_to_begin(session).await;
            }
        }
        begun
    }

    async fn try_to_begin(&self, session: &str) -> Result<Begun, BeginError> {
        let up = channel(session, Way::Up);
        let (epoch, log, lock) = (epoch_key(session), log_key(session), run_key(session));
        let stopped = stopped_key(session);
        let ttl = self.ttl_seconds.as_bytes();
        let replies = self
            .ask(&[
                &[b"GET", epoch.as_bytes()],
                &[b"SET", lock.as_bytes(), b"1", b"NX", b"EX", LEASE_SECONDS],
                &[b"LINDEX", log.as_bytes(), b"-1"],
                &[b"PUBSUB", self.words.count, up.as_bytes()],
                &[b"EXPIRE", epoch.as_bytes(), ttl],
                &[b"EXPIRE", stopped.as_bytes(), ttl],
            ])
            .await?;
        let Some(known) = as_begun(replies.first()) else {
            self.ask(&[&[b"DEL", lock.as_bytes()]]).await?;
            return Err(BeginError::Unknown);
        };
        if matches!(replies.get(1), Some(Reply::Nothing)) {
            let processes = match replies.get(3) {
                Some(Reply::List(counts)) => as_number(counts.get(1)).unwrap_or(0),
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
            Some(Reply::Text(frame)) => Stamp::of(frame).seq.unwrap_or(0),
            _ => 0,
        };
        Ok(Begun {
            epoch: known.epoch,
            last: last.max(known.last),
        })
    }

    pub(super) fn post(&self, session: &str, frame: &Bytes, part: Part) {
        let (log, down) = (log_key(session), channel(session, Way::Down));
        self.commands.send(|out| {
            put_command(out, &[b"RPUSH", log.as_bytes(), frame]);
            let mut commands = 2;
            if part == Part::First {
                let ttl = self.ttl_seconds.as_bytes();
                put_command(out, &[b"EXPIRE", log.as_bytes(), ttl]);
                commands += 1;
            }
            if part == Part::Last {
                // In the log, so the next run counts on from it; not yet published, so
                // that run is not refused.
                put_command(out, &[b"DEL", run_key(session).as_bytes()]);
                commands += 1;
            }
            put_command(out, &[self.words.publish, down.as_bytes(), frame]);
            self.answers.lock().push_back(Waiting {
                left: commands,
                got: Vec::new(),
                tell: None,
            });
        });
    }

    pub(super) fn renew(&self, session: &str) {
        let lock = run_key(session);
        self.commands.send(|out| {
            put_command(out, &[b"SET", lock.as_bytes(), b"1", b"EX", LEASE_SECONDS]);
            self.answers.lock().push_back(Waiting {
                left: 1,
                got: Vec::new(),
                tell: None,
            });
        });
    }

    pub(super) async fn confirm(&self, session: &str) -> Result<(), BusError> {
        let log = log_key(session);
        let ttl = self.ttl_seconds.as_bytes();
        let replies = self.ask(&[&[b"EXPIRE", log.as_bytes(), ttl]]).await?;
        // Nothing to expire: the log is not there, so posts were lost.
        match replies.first() {
            Some(Reply::Number(1)) => Ok(()),
            _ => Err(self.down()),
        }
    }

    pub(super) async fn close(&self, session: &str) -> Result<bool, BusError> {
        let (epoch, log) = (epoch_key(session), log_key(session));
        let stopped = stopped_key(session);
        let later = AFTER_CLOSE_SECONDS.as_bytes();
        let replies = self
            .ask(&[
                &[b"DEL", epoch.as_bytes()],
                &[b"EXPIRE", log.as_bytes(), later],
                &[b"EXPIRE", stopped.as_bytes(), later],
            ])
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
        if !channels.upstream.line.is_up() {
            return Err(self.down());
        }
        let (listening, acknowledged) = channels.add(name, sink, false);
        if let Some(acknowledged) = acknowledged
            && timeout(ANSWER_LIMIT, acknowledged).await.is_err()
        {
            let address = self.commands.address.to_string();
            return Err(BusError::Slow(address, ANSWER_LIMIT));
        }
        Ok(listening)
    }

    pub(super) async fn publish(&self, name: &str, payload: &[u8]) -> Result<u64, BusError> {
        let command: &[&[u8]] = &[self.words.publish, name.as_bytes(), payload];
        let replies = self.ask(&[command]).await?;
        Ok(as_number(replies.first()).unwrap_or(0))
    }

    pub(super) async fn history(
        &self,
        session: &str,
        position: u64,
    ) -> Result<Vec<Bytes>, BusError> {
        let log = log_key(session);
        let last = (position + HISTORY_PAGE as u64 - 1).to_string();
        let position = position.to_string();
        let command: &[&[u8]] = &[
            b"LRANGE",
            log.as_bytes(),
            position.as_bytes(),
            last.as_bytes(),
        ];
        let mut replies = self.ask(&[command]).await?;
        match replies.pop() {
            Some(Reply::List(frames)) => Ok(frames
                .into_iter()
                .filter_map(|frame| match frame {
                    Reply::Text(frame) => Some(frame),
                    _ => None,
                })
                .collect()),
            _ => Ok(Vec::new()),
        }
    }

    pub(super) async fn note_stopped(&self, session: &str, at: Stopped) -> Result<(), BusError> {
        let key = stopped_key(session);
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
        self.ask(&[command]).await.map(|_| ())
    }

    pub(super) async fn standing(&self, session: &str) -> Result<Standing, BusError> {
        let (log, epoch) = (log_key(session), epoch_key(session));
        let stopped = stopped_key(session);
        let replies = self
            .ask(&[
                &[b"LINDEX", log.as_bytes(), b"-1"],
                &[b"GET", epoch.as_bytes()],
                &[b"GET", stopped.as_bytes()],
            ])
            .await?;
        let known = as_begun(replies.get(1));
        let newest = match (replies.first(), known) {
            (Some(Reply::Text(frame)), _) => Stamp::of(frame),
            // The log was lost, and what was in it is known from who told the session anew.
            (_, Some(known)) => Stamp {
                seq: (known.last > 0).then_some(known.last),
                epoch: Some(known.epoch),
            },
            _ => Stamp::default(),
        };
        let logged = matches!(replies.first(), Some(Reply::Text(_)));
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

fn stopped_key(session: &str) -> String {
    format!("session:{session}:stopped")
}

fn epoch_key(session: &str) -> String {
    format!("session:{session}:epoch")
}

fn log_key(session: &str) -> String {
    format!("session:{session}:log")
}

fn run_key(session: &str) -> String {
    format!("session:{session}:run")
}

/// What the epoch's key holds: `EPOCH`, or `EPOCH LAST` where it was told anew.
fn as_begun(reply: Option<&Reply>) -> Option<Begun> {
    let Reply::Text(text) = reply? else {
        return None;
    };
    let text = std::str::from_utf8(text).ok()?;
    let (epoch, last) = text.split_once(' ').unwrap_or((text, "0"));
    Some(Begun {
        epoch: epoch.parse().ok()?,
        last: last.parse().ok()?,
    })
}

fn as_number(reply: Option<&Reply>) -> Option<u64> {
    match reply? {
        Reply::Number(n) => u64::try_from(*n).ok(),
        Reply::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// Who waits for replies on the command connection, in the order of the commands.
#[derive(Default)]
struct Answers {
    waiting: Mutex<VecDeque<Waiting>>,
    /// Connections made so far.
    generation: AtomicU64,
    /// Times that the data was found to be gone.
    losses: AtomicU64,
    data: Mutex<Data>,
}

/// What Redis holds, by its name.
#[derive(Default)]
struct Data {
    name: Option<Bytes>,
    lost_at: Option<Instant>,
}

struct Waiting {
    left: usize,
    got: Vec<Reply>,
    /// `None`: nobody wants the replies.
    tell: Option<oneshot::Sender<Vec<Reply>>>,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether sessions that are not known may still be told by those who know them.
    fn may_be_told(&self) -> bool {
        self.data()
            .lost_at
            .is_some_and(|at| at.elapsed() < TOLD_LIMIT)
    }
}

impl Traffic for Answers {
    fn greet(&self, out: &mut Vec<u8>) -> usize {
        let name = uuid::Uuid::new_v4().to_string();
        put_command(out, &[b"SET", DATA_KEY, name.as_bytes(), b"NX"]);
        put_command(out, &[b"GET", DATA_KEY]);
        2
    }

    fn greeted(&self, reply: Reply) {
        let Reply::Text(name) = reply else {
            return;
        };
        let mut data = self.data();
        let before = data.name.replace(name);
        if before.is_some() && before != data.name {
            tracing::warn!("redis has lost its data; sessions that are known here are told anew");
            data.lost_at = Some(Instant::now());
            self.losses.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn connected(&self, _out: &mut Vec<u8>) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn reply(&self, reply: Reply) {
        let mut waiting = self.lock();
        let Some(first) = waiting.front_mut() else {
            return;
        };
        first.left -= 1;
        if first.tell.is_some() {
            first.got.push(reply);
        } else if let Reply::Error(message) = reply {
            tracing::warn!(
                message = %String::from_utf8_lossy(&message),
                "redis refused a frame"
            );
        }
        if first.left == 0
            && let Some(done) = waiting.pop_front()
            && let Some(tell) = done.tell
        {
            // Whoever asked may have given up.
            let _ = tell.send(done.got);
        }
    }

    fn disconnected(&self) {
        // Dropping what waits tells those who asked.
        self.lock().clear();
    }

    fn ping(&self, out: &mut Vec<u8>) {
        put_command(out, &[b"PING"]);
        self.lock().push_back(Waiting {
            left: 1,
            got: Vec::new(),
            tell: None,
        });
    }
}

/// A connection that carries subscriptions.
struct Subscriber {
    line: Arc<Line>,
    words: &'static Words,
}

impl Upstream for Subscriber {
    fn subscribe(&self, channel: &str) {
        self.line
            .send(|out| put_command(out, &[self.words.subscribe, channel.as_bytes()]));
    }

    fn unsubscribe(&self, channel: &str) {
        self.line
            .send(|out| put_command(out, &[self.words.unsubscribe, channel.as_bytes()]));
    }
}

/// Answered after everything that was asked before: then all subscriptions stand.
const ALL_SUBSCRIBED: &[u8] = b"all-subscribed";

impl Traffic for Channels<Subscriber> {
    fn connected(&self, out: &mut Vec<u8>) {
        let names = self.names();
        for batch in names.chunks(SUBSCRIBE_AT_ONCE) {
            let mut command: Vec<&[u8]> = vec![self.upstream.words.subscribe];
            command.extend(batch.iter().map(|name| name.as_bytes()));
            put_command(out, &command);
        }
        put_command(out, &[b"PING", ALL_SUBSCRIBED]);
    }

    fn reply(&self, reply: Reply) {
        let Reply::List(parts) = reply else {
            return;
        };
        let words = self.upstream.words;
        match &parts[..] {
            [Reply::Text(kind), Reply::Text(name), Reply::Text(payload)]
                if kind == words.message =>
            {
                if let Ok(name) = std::str::from_utf8(name) {
                    self.deliver(name, payload);
                }
            }
            [Reply::Text(kind), Reply::Text(name), ..] if kind == words.subscribed => {
                if let Ok(name) = std::str::from_utf8(name) {
                    self.acknowledge(name);
                }
            }
            [Reply::Text(kind), Reply::Text(of)] if kind == "pong" && of == ALL_SUBSCRIBED => {
                self.resync();
            }
            _ => {}
        }
    }

    fn disconnected(&self) {
        self.unacknowledge();
    }

    fn ping(&self, out: &mut Vec<u8>) {
        put_command(out, &[b"PING"]);
    }
}
