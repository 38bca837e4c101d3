//! The listeners of each channel of the bus in this process. All listeners of a channel share one subscription at the
//! server: it begins with the first listener and ends with the last one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

/// Receives the messages of a channel. Methods are called with the channels locked, so they must be
/// quick, must not block and must not call the bus.
pub trait MessageSink: Send + Sync {
    /// Receives a frame as it was posted.
    fn on_message(&self, payload: &Bytes);

    /// Called when delivery works again after messages may have been lost. The sink must then read the session's log.
    fn resync(&self);
}

#[derive(Default)]
struct Channel {
    listeners: Vec<(u64, Arc<dyn MessageSink>)>,
    acknowledged: bool,
    /// The subscription was interrupted, so messages may have been missed.
    interrupted: bool,
    acknowledgement_waiters: Vec<oneshot::Sender<()>>,
}

/// Channels to subscribe (`true`) or unsubscribe (`false`) at the server.
pub(super) type SubscriptionChanges = HashMap<Box<str>, bool>;

#[derive(Default)]
struct ChannelTable {
    map: HashMap<Box<str>, Channel>,
    next_id: u64,
    /// Changes not sent to the server yet; `None` without a connection to it.
    changes: Option<SubscriptionChanges>,
}

#[derive(Default)]
pub(super) struct Channels {
    /// Channels count as subscribed at once, because a bus within one process has no server.
    subscribes_at_once: bool,
    state: Mutex<ChannelTable>,
    /// Notified when there are changes to send.
    pub(super) changed: Notify,
}

impl Channels {
    /// Returns the channels of a bus within this process.
    pub(super) fn new_embedded() -> Channels {
        Channels {
            subscribes_at_once: true,
            ..Channels::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, ChannelTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a listener. The receiver, if any, completes once the server has acknowledged the
    /// subscription.
    pub(super) fn add_listener(
        self: &Arc<Self>,
        name: &str,
        sink: Arc<dyn MessageSink>,
    ) -> (Subscription, Option<oneshot::Receiver<()>>) {
        let mut state = self.lock();
        let ChannelTable {
            map,
            next_id: next,
            changes,
        } = &mut *state;
        *next += 1;
        let listening = Subscription {
            channels: Arc::downgrade(self),
            name: name.into(),
            id: *next,
        };
        let channel = map.entry(name.into()).or_insert_with(|| {
            self.queue_change(changes, name, true);
            Channel {
                listeners: Vec::with_capacity(1),
                acknowledged: self.subscribes_at_once,
                ..Channel::default()
            }
        });
        channel.listeners.push((listening.id, sink));
        if channel.acknowledged {
            return (listening, None);
        }
        let (sender, acknowledged) = oneshot::channel();
        channel.acknowledgement_waiters.push(sender);
        (listening, Some(acknowledged))
    }

    /// Queues a change for the server, if there is a connection.
    fn queue_change(
        &self,
        changes: &mut Option<SubscriptionChanges>,
        name: &str,
        subscribed: bool,
    ) {
        if let Some(changes) = changes {
            changes.insert(name.into(), subscribed);
            self.changed.notify_one();
        }
    }

    /// Starts queueing changes for a new connection. Earlier changes need no queueing, because the caller subscribes to
    /// all [`Channels::channel_names`].
    pub(super) fn on_connected(&self) {
        self.lock().changes = Some(SubscriptionChanges::new());
    }

    pub(super) fn take_changes(&self) -> SubscriptionChanges {
        self.lock()
            .changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Handles the server's acknowledgement of a subscription.
    pub(super) fn on_subscribed(&self, name: &str) {
        if let Some(channel) = self.lock().map.get_mut(name) {
            // A second acknowledgement means that the subscription was lost in between.
            let again = std::mem::replace(&mut channel.acknowledged, true);
            for waiting in channel.acknowledgement_waiters.drain(..) {
                // A failure to send is ignored: the listener no longer waits.
                let _ = waiting.send(());
            }
            if std::mem::take(&mut channel.interrupted) || again {
                channel.listeners.iter().for_each(|(_, sink)| sink.resync());
            }
        }
    }

    /// Handles a subscription that the server ended although it has listeners: the channel's slot has moved to another
    /// node, so the channel is subscribed again.
    pub(super) fn on_subscription_ended(&self, name: &str) {
        let mut state = self.lock();
        let ChannelTable { map, changes, .. } = &mut *state;
        if let Some(channel) = map.get_mut(name) {
            channel.acknowledged = false;
            channel.interrupted = true;
            self.queue_change(changes, name, true);
        }
    }

    /// Handles the loss of the connection, with which all subscriptions end.
    pub(super) fn on_disconnected(&self) {
        let mut state = self.lock();
        state.changes = None;
        for channel in state.map.values_mut() {
            channel.acknowledged = false;
        }
    }

    /// Returns the names of all channels that have listeners.
    pub(super) fn channel_names(&self) -> Vec<Box<str>> {
        self.lock().map.keys().cloned().collect()
    }

    pub(super) fn listener_count(&self, name: &str) -> usize {
        self.lock().map.get(name).map_or(0, |c| c.listeners.len())
    }

    /// Makes every listener read the log of its session.
    pub(super) fn resync(&self) {
        for channel in self.lock().map.values() {
            for (_, sink) in &channel.listeners {
                sink.resync();
            }
        }
    }

    /// Delivers a message to the channel's listeners; returns their number.
    pub(super) fn deliver(&self, name: &str, payload: &Bytes) -> u64 {
        match self.lock().map.get(name) {
            None => 0,
            Some(channel) => {
                for (_, sink) in &channel.listeners {
                    sink.on_message(payload);
                }
                channel.listeners.len() as u64
            }
        }
    }

    fn remove_listener(&self, name: &str, id: u64) {
        let mut state = self.lock();
        let ChannelTable { map, changes, .. } = &mut *state;
        let Some(channel) = map.get_mut(name) else {
            return;
        };
        channel.listeners.retain(|(listener, _)| *listener != id);
        if channel.listeners.is_empty() {
            map.remove(name);
            self.queue_change(changes, name, false);
        }
    }
}

/// A listener's registration at a channel, which ends when this is dropped.
pub struct Subscription {
    channels: Weak<Channels>,
    name: Box<str>,
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(channels) = self.channels.upgrade() {
            channels.remove_listener(&self.name, self.id);
        }
    }
}
