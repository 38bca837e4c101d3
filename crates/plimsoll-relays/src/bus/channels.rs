//! Who listens to which channel in this process. Several listeners share one
//! subscription: it begins with the first and ends with the last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

/// Where a channel's messages go. Called while the channels are locked: quick, never
/// waiting, never calling the bus.
pub trait Sink: Send + Sync {
    /// A frame, as it was posted.
    fn message(&self, payload: &Bytes);

    /// Messages may have been lost, and are not any more: read the log.
    fn resync(&self);
}

#[derive(Default)]
struct Channel {
    listeners: Vec<(u64, Arc<dyn Sink>)>,
    acknowledged: bool,
    /// Messages passed by while it was not subscribed.
    interrupted: bool,
    waiting: Vec<oneshot::Sender<()>>,
}

/// Whether each channel is to be subscribed from now on.
pub(super) type Changes = HashMap<Box<str>, bool>;

#[derive(Default)]
struct State {
    map: HashMap<Box<str>, Channel>,
    next: u64,
    /// What the server has not been asked for yet; `None`: there is no connection to it.
    changes: Option<Changes>,
}

#[derive(Default)]
pub(super) struct Channels {
    /// A channel is subscribed when it is added: within one process there is no server to ask.
    at_once: bool,
    state: Mutex<State>,
    /// There are changes.
    pub(super) changed: Notify,
}

impl Channels {
    /// Returns the channels of a bus without a server.
    pub(super) fn within_process() -> Channels {
        Channels {
            at_once: true,
            ..Channels::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a listener. The receiver completes when the server has acknowledged.
    pub(super) fn add(
        self: &Arc<Self>,
        name: &str,
        sink: Arc<dyn Sink>,
    ) -> (Listening, Option<oneshot::Receiver<()>>) {
        let mut state = self.lock();
        let State { map, next, changes } = &mut *state;
        *next += 1;
        let listening = Listening {
            channels: Arc::downgrade(self),
            name: name.into(),
            id: *next,
        };
        let channel = map.entry(name.into()).or_insert_with(|| {
            self.change(changes, name, true);
            Channel {
                listeners: Vec::with_capacity(1),
                acknowledged: self.at_once,
                ..Channel::default()
            }
        });
        channel.listeners.push((listening.id, sink));
        if channel.acknowledged {
            return (listening, None);
        }
        let (sender, acknowledged) = oneshot::channel();
        channel.waiting.push(sender);
        (listening, Some(acknowledged))
    }

    /// The server is to be asked, if it can be.
    fn change(&self, changes: &mut Option<Changes>, name: &str, subscribed: bool) {
        if let Some(changes) = changes {
            changes.insert(name.into(), subscribed);
            self.changed.notify_one();
        }
    }

    /// There is a connection to the server: changes are noted from here on, and what was there before is all in
    /// the names.
    pub(super) fn connected(&self) {
        self.lock().changes = Some(Changes::new());
    }

    pub(super) fn take_changes(&self) -> Changes {
        self.lock()
            .changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// The server has acknowledged the subscription.
    pub(super) fn acknowledge(&self, name: &str) {
        if let Some(channel) = self.lock().map.get_mut(name) {
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

    /// The server has ended a subscription, which nobody asked for where it still has listeners: its slot has
    /// moved to another node.
    pub(super) fn interrupt(&self, name: &str) {
        let mut state = self.lock();
        let State { map, changes, .. } = &mut *state;
        if let Some(channel) = map.get_mut(name) {
            channel.acknowledged = false;
            channel.interrupted = true;
            self.change(changes, name, true);
        }
    }

    /// The connection is gone: no channel is subscribed.
    pub(super) fn disconnected(&self) {
        let mut state = self.lock();
        state.changes = None;
        for channel in state.map.values_mut() {
            channel.acknowledged = false;
        }
    }

    /// Every channel that has listeners.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        self.lock().map.keys().cloned().collect()
    }

    pub(super) fn listeners(&self, name: &str) -> usize {
        self.lock().map.get(name).map_or(0, |c| c.listeners.len())
    }

    /// Every listener is to read its log.
    pub(super) fn resync(&self) {
        for channel in self.lock().map.values() {
            for (_, sink) in &channel.listeners {
                sink.resync();
            }
        }
    }

    /// How many listened.
    pub(super) fn deliver(&self, name: &str, payload: &Bytes) -> u64 {
        match self.lock().map.get(name) {
            None => 0,
            Some(channel) => {
                for (_, sink) in &channel.listeners {
                    sink.message(payload);
                }
                channel.listeners.len() as u64
            }
        }
    }

    fn leave(&self, name: &str, id: u64) {
        let mut state = self.lock();
        let State { map, changes, .. } = &mut *state;
        let Some(channel) = map.get_mut(name) else {
            return;
        };
        channel.listeners.retain(|(listener, _)| *listener != id);
        if channel.listeners.is_empty() {
            map.remove(name);
            self.change(changes, name, false);
        }
    }
}

/// A listener's place at a channel; dropping it leaves.
pub struct Listening {
    channels: Weak<Channels>,
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
