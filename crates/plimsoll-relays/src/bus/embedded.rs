//! The bus inside one process: the behaviour of the Redis bus without a server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::channels::Channels;
use super::{
    BeginError, ChannelDirection, FramePosition, FrameStamp, LogPosition, MAX_LOG_PAGE_FRAMES,
    MessageSink, SessionStatus, Subscription, channel_name,
};

/// How long the log of a closed session is kept for readers that are behind.
const CLOSED_LOG_TTL: Duration = Duration::from_secs(60);
const CLEANUP_INTERVAL: Duration = Duration::from_secs(1);

/// See [`super::Bus::embedded`].
pub struct EmbeddedBus {
    ttl: Duration,
    channels: Arc<Channels>,
    sessions: Mutex<SessionTable>,
}

struct SessionTable {
    map: HashMap<Box<str>, EmbeddedSession>,
    cleaned_up_at: Instant,
}

struct EmbeddedSession {
    epoch: u64,
    is_open: bool,
    expires_at: Instant,
    is_running: bool,
    log: Vec<Bytes>,
    last_delivered: Option<LogPosition>,
}

impl EmbeddedBus {
    pub(super) fn new(ttl: Duration) -> EmbeddedBus {
        EmbeddedBus {
            ttl,
            channels: Arc::new(Channels::new_embedded()),
            sessions: Mutex::new(SessionTable {
                map: HashMap::new(),
                cleaned_up_at: Instant::now(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn create_session(&self, session: &str, epoch: u64) {
        let now = Instant::now();
        let mut sessions = self.lock();
        if now - sessions.cleaned_up_at > CLEANUP_INTERVAL {
            sessions.cleaned_up_at = now;
            sessions
                .map
                .retain(|_, session| session.is_running || session.expires_at > now);
        }
        sessions.map.insert(
            session.into(),
            EmbeddedSession {
                epoch,
                is_open: true,
                expires_at: now + self.ttl,
                is_running: false,
                log: Vec::new(),
                last_delivered: None,
            },
        );
    }

    pub(super) fn begin_run(&self, session: &str) -> Result<LogPosition, BeginError> {
        let now = Instant::now();
        let mut sessions = self.lock();
        let session = sessions
            .map
            .get_mut(session)
            .filter(|session| session.is_open && session.expires_at > now)
            .ok_or(BeginError::Unknown)?;
        if std::mem::replace(&mut session.is_running, true) {
            return Err(BeginError::Busy);
        }
        let last = session
            .log
            .last()
            .and_then(|frame| FrameStamp::parse(frame).seq);
        Ok(LogPosition {
            epoch: session.epoch,
            last: last.unwrap_or(0),
        })
    }

    pub(super) fn post(&self, session: &str, frame: &Bytes, part: FramePosition) {
        if let Some(session) = self.lock().map.get_mut(session) {
            session.log.push(frame.clone());
            if part == FramePosition::Last {
                session.is_running = false;
                if session.is_open {
                    session.expires_at = Instant::now() + self.ttl;
                }
            }
        }
        self.channels
            .deliver(&channel_name(session, ChannelDirection::Down), frame);
    }

    pub(super) fn close_session(&self, session: &str) -> bool {
        match self.lock().map.get_mut(session) {
            Some(session) if session.is_open => {
                session.is_open = false;
                session.expires_at = Instant::now() + CLOSED_LOG_TTL;
                true
            }
            _ => false,
        }
    }

    pub(super) fn listen(&self, name: &str, sink: Arc<dyn MessageSink>) -> Subscription {
        self.channels.add_listener(name, sink).0
    }

    pub(super) fn publish(&self, name: &str, payload: &Bytes) -> u64 {
        self.channels.deliver(name, payload)
    }

    pub(super) fn read_log_page(&self, session: &str, position: u64) -> Vec<Bytes> {
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        match self.lock().map.get(session) {
            None => Vec::new(),
            Some(session) => {
                let log = session.log.iter().skip(position).take(MAX_LOG_PAGE_FRAMES);
                log.cloned().collect()
            }
        }
    }

    pub(super) fn save_position(&self, session: &str, at: LogPosition) {
        if let Some(session) = self.lock().map.get_mut(session) {
            let goes_back = |old: &LogPosition| old.epoch == at.epoch && old.last > at.last;
            session.last_delivered = session.last_delivered.filter(goes_back).or(Some(at));
        }
    }

    pub(super) fn session_status(&self, session: &str) -> SessionStatus {
        let sessions = self.lock();
        let Some(session) = sessions.map.get(session) else {
            return SessionStatus::default();
        };
        let newest = session.log.last().map(|frame| FrameStamp::parse(frame));
        SessionStatus {
            is_open: session.is_open && session.expires_at > Instant::now(),
            log_lost: false,
            last_delivered: session.last_delivered,
            newest: newest.unwrap_or(FrameStamp {
                seq: None,
                epoch: Some(session.epoch),
            }),
        }
    }
}
