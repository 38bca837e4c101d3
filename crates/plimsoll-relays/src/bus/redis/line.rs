//! One connection to Redis that is made again whenever it is lost.
//!
//! Commands of all callers leave together, in the order they were given; replies are
//! handed to the connection's [`Traffic`] in theirs. A server that is silent for long is
//! given up, and so is one that reads nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::address::RedisAddress;
use super::resp::{Reply, put_command, take_reply};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A silent server is asked for a sign of life this often, and given up after two.
const PING_EVERY: Duration = Duration::from_secs(5);
const MOST_UNSENT: usize = 64 << 20;
const READ_AT_ONCE: usize = 16 * 1024;

/// What a connection is used for.
pub(super) trait Traffic: Send + Sync {
    /// Commands that are answered before anything else is sent; how many.
    fn greet(&self, _out: &mut Vec<u8>) -> usize {
        0
    }
    /// The answer to the last of them.
    fn greeted(&self, _reply: Reply) {}
    /// The connection is up: what is to be sent first.
    fn connected(&self, out: &mut Vec<u8>);
    fn reply(&self, reply: Reply);
    fn disconnected(&self);
    /// A sign of life is wanted.
    fn ping(&self, out: &mut Vec<u8>);
}

pub(super) struct Line {
    pub(super) address: RedisAddress,
    outgoing: Mutex<Outgoing>,
    wake: Notify,
    up: AtomicBool,
    pub(super) came_up: Notify,
}

#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    connected: bool,
    overflowed: bool,
}

impl Line {
    pub(super) fn new(address: RedisAddress) -> Arc<Line> {
        Arc::new(Line {
            address,
            outgoing: Mutex::default(),
            wake: Notify::new(),
            up: AtomicBool::new(false),
            came_up: Notify::new(),
        })
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `put` append commands; `false` when there is no connection. What `put` notes
    /// of its commands is in the same order as they are.
    pub(super) fn send(&self, put: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut outgoing = self.lock();
        if !outgoing.connected {
            return false;
        }
        let was_empty = outgoing.bytes.is_empty();
        put(&mut outgoing.bytes);
        if outgoing.bytes.len() > MOST_UNSENT {
            outgoing.overflowed = true;
        }
        if was_empty {
            self.wake.notify_one();
        }
        true
    }

    /// Keeps the connection, for ever.
    pub(super) async fn keep(self: Arc<Line>, traffic: Arc<dyn Traffic>) {
        let mut pause = FIRST_PAUSE;
        let mut been_up = false;
        loop {
            match timeout(CONNECT_LIMIT, self.connect(&*traffic)).await {
                Ok(Ok(stream)) => {
                    pause = FIRST_PAUSE;
                    if std::mem::replace(&mut been_up, true) {
                        tracing::warn!(redis = %self.address, "connection to redis is back");
                    }
                    let why = self.serve(stream, &*traffic).await;
                    tracing::warn!(redis = %self.address, why, "connection to redis lost");
                }
                Ok(Err(why)) => {
                    tracing::debug!(redis = %self.address, why, "no connection to redis")
                }
                Err(_) => tracing::debug!(redis = %self.address, "redis does not answer"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect(&self, traffic: &dyn Traffic) -> Result<TcpStream, String> {
        let address = (self.address.host.as_str(), self.address.port);
        let mut stream = TcpStream::connect(address)
            .await
            .map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let mut hello = Vec::new();
        let mut expected = 0;
        if let Some(password) = &self.address.password {
            match &self.address.user {
                Some(user) => {
                    put_command(&mut hello, &[b"AUTH", user.as_bytes(), password.as_bytes()]);
                }
                None => put_command(&mut hello, &[b"AUTH", password.as_bytes()]),
            }
            expected += 1;
        }
        let database = self.address.database.to_string();
        put_command(&mut hello, &[b"SELECT", database.as_bytes()]);
        expected += 1;
        let mut greetings = traffic.greet(&mut hello);
        stream.write_all(&hello).await.map_err(|e| e.to_string())?;
        let mut input = BytesMut::new();
        while expected + greetings > 0 {
            match take_reply(&mut input) {
                Ok(Some(reply)) if expected == 0 => {
                    greetings -= 1;
                    if greetings == 0 {
                        traffic.greeted(reply);
                    }
                }
                Ok(Some(Reply::Error(message))) => {
                    return Err(String::from_utf8_lossy(&message).into_owned());
                }
                Ok(Some(_)) => expected -= 1,
                Ok(None) => {
                    if stream
                        .read_buf(&mut input)
                        .await
                        .map_err(|e| e.to_string())?
                        == 0
                    {
                        return Err("closed during the greeting".to_owned());
                    }
                }
                Err(_) => return Err("not a redis server".to_owned()),
            }
        }
        Ok(stream)
    }

    async fn serve(&self, mut stream: TcpStream, traffic: &dyn Traffic) -> &'static str {
        {
            let mut outgoing = self.lock();
            outgoing.bytes.clear();
            outgoing.connected = true;
            outgoing.overflowed = false;
        }
        // Not under the lock: who subscribes takes the channels' lock before this one.
        let mut first = Vec::new();
        traffic.connected(&mut first);
        self.lock().bytes.extend_from_slice(&first);
        self.wake.notify_one();
        self.up.store(true, Ordering::Release);
        self.came_up.notify_waiters();
        let (read, write) = stream.split();
        let why = tokio::select! {
            why = self.read(read, traffic) => why,
            why = self.write(write) => why,
        };
        self.up.store(false, Ordering::Release);
        self.lock().connected = false;
        traffic.disconnected();
        why
    }

    async fn read(
        &self,
        mut stream: impl AsyncReadExt + Unpin,
        traffic: &dyn Traffic,
    ) -> &'static str {
        let mut input = BytesMut::new();
        let mut silent = 0;
        loop {
            input.reserve(READ_AT_ONCE);
            match timeout(PING_EVERY, stream.read_buf(&mut input)).await {
                Err(_) if silent == 2 => return "silent",
                Err(_) => {
                    silent += 1;
                    self.send(|out| traffic.ping(out));
                }
                Ok(Ok(0)) => return "closed by the server",
                Ok(Err(_)) => return "reset",
                Ok(Ok(_)) => {
                    silent = 0;
                    loop {
                        match take_reply(&mut input) {
                            Ok(Some(reply)) => traffic.reply(reply),
                            Ok(None) => break,
                            Err(_) => return "it sent what is not the redis protocol",
                        }
                    }
                }
            }
        }
    }

    async fn write(&self, mut stream: impl AsyncWriteExt + Unpin) -> &'static str {
        let mut sending = Vec::new();
        loop {
            {
                let mut outgoing = self.lock();
                if outgoing.overflowed {
                    return "it takes nothing";
                }
                sending.clear();
                std::mem::swap(&mut sending, &mut outgoing.bytes);
            }
            if sending.is_empty() {
                self.wake.notified().await;
                // Whoever else is about to send in this turn goes along.
                tokio::task::yield_now().await;
                continue;
            }
            if stream.write_all(&sending).await.is_err() {
                return "reset";
            }
        }
    }
}
