//! The bus inside one process: the behaviour of the Redis bus without a server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::channels::Channels;
use super::{
    BeginError, HISTORY_PAGE, Listening, Part, Reached, Sink, Stamp, Standing, Way, channel,
};

/// How long the log of a closed session is kept for readers that are behind.
const AFTER_CLOSE: Duration = Duration::from_secs(60);
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// See [`super::Bus::embedded`].
pub struct Embedded {
    ttl: Duration,
    channels: Arc<Channels>,
    sessions: Mutex<Sessions>,
}

struct Sessions {
    map: HashMap<Box<str>, Session>,
    swept: Instant,
}

struct Session {
    epoch: u64,
    open: bool,
    expires: Instant,
    running: bool,
    log: Vec<Bytes>,
    stopped: Option<Reached>,
}

impl Embedded {
    pub(super) fn new(ttl: Duration) -> Embedded {
        Embedded {
            ttl,
            channels: Arc::new(Channels::within_process()),
            sessions: Mutex::new(Sessions {
                map: HashMap::new(),
                swept: Instant::now(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn create(&self, session: &str, epoch: u64) {
        let now = Instant::now();
        let mut sessions = self.lock();
        if now - sessions.swept > SWEEP_EVERY {
            sessions.swept = now;
            sessions
                .map
                .retain(|_, session| session.running || session.expires > now);
        }
        sessions.map.insert(
            session.into(),
            Session {
                epoch,
                open: true,
                expires: now + self.ttl,
                running: false,
                log: Vec::new(),
                stopped: None,
            },
        );
    }

    pub(super) fn begin_run(&self, session: &str) -> Result<Reached, BeginError> {
        let now = Instant::now();
        let mut sessions = self.lock();
        let session = sessions
            .map
            .get_mut(session)
            .filter(|session| session.open && session.expires > now)
            .ok_or(BeginError::Unknown)?;
        if std::mem::replace(&mut session.running, true) {
            return Err(BeginError::Busy);
        }
        let last = session.log.last().and_then(|frame| Stamp::of(frame).seq);
        Ok(Reached {
            epoch: session.epoch,
            last: last.unwrap_or(0),
        })
    }

    pub(super) fn post(&self, session: &str, frame: &Bytes, part: Part) {
        if let Some(session) = self.lock().map.get_mut(session) {
            session.log.push(frame.clone());
            if part == Part::Last {
                session.running = false;
                if session.open {
                    session.expires = Instant::now() + self.ttl;
                }
            }
        }
        self.channels.deliver(&channel(session, Way::Down), frame);
    }

    pub(super) fn close(&self, session: &str) -> bool {
        match self.lock().map.get_mut(session) {
            Some(session) if session.open => {
                session.open = false;
                session.expires = Instant::now() + AFTER_CLOSE;
                true
            }
            _ => false,
        }
    }

    pub(super) fn listen(&self, name: &str, sink: Arc<dyn Sink>) -> Listening {
        self.channels.add(name, sink).0
    }

    pub(super) fn publish(&self, name: &str, payload: &Bytes) -> u64 {
        self.channels.deliver(name, payload)
    }

    pub(super) fn history(&self, session: &str, position: u64) -> Vec<Bytes> {
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        match self.lock().map.get(session) {
            None => Vec::new(),
            Some(session) => {
                let log = session.log.iter().skip(position).take(HISTORY_PAGE);
                log.cloned().collect()
            }
        }
    }

    pub(super) fn note_stopped(&self, session: &str, at: Reached) {
        if let Some(session) = self.lock().map.get_mut(session) {
            let goes_back = |old: &Reached| old.epoch == at.epoch && old.last > at.last;
            session.stopped = session.stopped.filter(goes_back).or(Some(at));
        }
    }

    pub(super) fn standing(&self, session: &str) -> Standing {
        let sessions = self.lock();
        let Some(session) = sessions.map.get(session) else {
            return Standing::default();
        };
        let newest = session.log.last().map(|frame| Stamp::of(frame));
        Standing {
            open: session.open && session.expires > Instant::now(),
            gone: false,
            stopped: session.stopped,
            newest: newest.unwrap_or(Stamp {
                seq: None,
                epoch: Some(session.epoch),
            }),
        }
    }
}
