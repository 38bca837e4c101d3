//! Who listens to which channel in this process. Several listeners share one
//! subscription: it begins with the first and ends with the last.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::oneshot;

/// Where a channel's messages go. Called while the channels are locked: quick, never
/// waiting, never calling the bus.
pub trait Sink: Send + Sync {
    /// A frame, as it was posted.
    fn message(&self, payload: &Bytes);

    /// Messages may have been lost, and are not any more: read the log.
    fn resync(&self);
}

/// Where the server is asked for a channel when its first listener comes, and no longer when the
/// last one goes.
pub(super) trait Upstream: Send + Sync {
    /// A channel is subscribed when this returns, without the server's word.
    const IS_AT_ONCE: bool = false;

    fn subscribe(&self, channel: &str);
    fn unsubscribe(&self, channel: &str);
}

/// Within one process there is no server to ask.
pub(super) struct NoUpstream;

impl Upstream for NoUpstream {
    const IS_AT_ONCE: bool = true;

    fn subscribe(&self, _channel: &str) {}
    fn unsubscribe(&self, _channel: &str) {}
}

struct Channel {
    listeners: Vec<(u64, Arc<dyn Sink>)>,
    acknowledged: bool,
    /// Messages passed by while it was not subscribed.
    interrupted: bool,
    waiting: Vec<oneshot::Sender<()>>,
}

pub(super) struct Channels<U: Upstream + 'static> {
    pub(super) upstream: U,
    map: Mutex<HashMap<Box<str>, Channel>>,
    next: AtomicU64,
}

impl<U: Upstream> Channels<U> {
    pub(super) fn new(upstream: U) -> Channels<U> {
        Channels {
            upstream,
            map: Mutex::default(),
            next: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Channel>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a listener. The receiver completes when the server has acknowledged.
    pub(super) fn add(
        self: &Arc<Self>,
        name: &str,
        sink: Arc<dyn Sink>,
    ) -> (Listening, Option<oneshot::Receiver<()>>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let listening = Listening {
            channels: Arc::downgrade(self) as Weak<dyn Leave>,
            name: name.into(),
            id,
        };
        let mut map = self.lock();
        let channel = map.entry(name.into()).or_insert_with(|| {
            // Under the lock, so that commands leave in the order of the changes.
            self.upstream.subscribe(name);
            Channel {
                listeners: Vec::with_capacity(1),
                acknowledged: U::IS_AT_ONCE,
                interrupted: false,
                waiting: Vec::new(),
            }
        });
        channel.listeners.push((id, sink));
        if channel.acknowledged {
            return (listening, None);
        }
        let (sender, acknowledged) = oneshot::channel();
        channel.waiting.push(sender);
        (listening, Some(acknowledged))
    }

    /// The server has acknowledged the subscription.
    pub(super) fn acknowledge(&self, name: &str) {
        if let Some(channel) = self.lock().get_mut(name) {
            // Again: it was lost in between.
            let again = std::mem::replace(&mut channel.acknowledged, true);
            for waiting in channel.waiting.drain(..) {
                // The listener may have given up.
                let _ = waiting.send(());
            }
            if std::mem::take(&mut channel.interrupted) || again {
                channel.listeners.iter().for_each(|(_, sink)| sink.resync());
            }
        }
    }

    /// The server has ended a subscription; whether it still has listeners.
    pub(super) fn interrupt(&self, name: &str) -> bool {
        let mut map = self.lock();
        let Some(channel) = map.get_mut(name) else {
            return false;
        };
        channel.acknowledged = false;
        channel.interrupted = true;
        true
    }

    /// The connection is gone: no channel is subscribed.
    pub(super) fn unacknowledge(&self) {
        for channel in self.lock().values_mut() {
            channel.acknowledged = false;
        }
    }

    /// Every channel that has listeners.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        self.lock().keys().cloned().collect()
    }

    pub(super) fn listeners(&self, name: &str) -> usize {
        self.lock().get(name).map_or(0, |c| c.listeners.len())
    }

    /// Every listener is to read its log.
    pub(super) fn resync(&self) {
        for channel in self.lock().values() {
            for (_, sink) in &channel.listeners {
                sink.resync();
            }
        }
    }

    /// How many listened.
    pub(super) fn deliver(&self, name: &str, payload: &Bytes) -> u64 {
        match self.lock().get(name) {
            None => 0,
            Some(channel) => {
                for (_, sink) in &channel.listeners {
                    sink.message(payload);
                }
                channel.listeners.len() as u64
            }
        }
    }
}

trait Leave: Send + Sync {
    fn leave(&self, name: &str, id: u64);
}

impl<U: Upstream> Leave for Channels<U> {
    fn leave(&self, name: &str, id: u64) {
        let mut map = self.lock();
        let Some(channel) = map.get_mut(name) else {
            return;
        };
        channel.listeners.retain(|(listener, _)| *listener != id);
        if channel.listeners.is_empty() {
            map.remove(name);
            self.upstream.unsubscribe(name);
        }
    }
}

/// A listener's place at a channel; dropping it leaves.
pub struct Listening {
    channels: Weak<dyn Leave>,
    name: Box<str>,
    id: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(channels) = self.channels.upgrade() {
            channels.leave(&self.name, self.id);
        }
    }
}
