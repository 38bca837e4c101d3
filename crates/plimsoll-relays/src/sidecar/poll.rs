//! Readiness of sockets under epoll, for one worker.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

const WAKER: u64 = u64::MAX;
const MAX_EVENTS: usize = 256;

/// A socket that is ready, by its token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) token: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
}

/// Wakes a worker from another thread.
#[derive(Clone, Debug)]
pub(super) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(super) fn wake(&self) {
        // A counter that is full means that a wake-up waits already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// Room for the events of one wait. It stays on the thread that waits.
pub(super) struct Events(Vec<epoll::Event>);

impl Events {
    pub(super) fn new() -> Events {
        Events(Vec::with_capacity(MAX_EVENTS))
    }
}

pub(super) struct Poll {
    epoll: OwnedFd,
    waker: Waker,
}

/// What a socket is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interest {
    pub(super) reads: bool,
    pub(super) writes: bool,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.reads);
        flags.set(epoll::EventFlags::OUT, self.writes);
        flags
    }
}

impl Poll {
    pub(super) fn new() -> io::Result<Poll> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker(Arc::new(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?));
        let data = epoll::EventData::new_u64(WAKER);
        epoll::add(&epoll, &*waker.0, data, epoll::EventFlags::IN)?;
        Ok(Poll { epoll, waker })
    }

    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Level-triggered: what is not taken is reported again.
    pub(super) fn add(&self, socket: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, socket, data, interest.flags())?)
    }

    pub(super) fn change(
        &self,
        socket: impl AsFd,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::modify(&self.epoll, socket, data, interest.flags())?)
    }

    /// `ready` is filled anew; `events` is room for the kernel's answers.
    pub(super) fn wait(
        &self,
        longest: Duration,
        events: &mut Events,
        ready: &mut Vec<Ready>,
    ) -> io::Result<()> {
        ready.clear();
        events.0.clear();
        let timeout = Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        let spare = rustix::buffer::spare_capacity(&mut events.0);
        match epoll::wait(&self.epoll, spare, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for event in &events.0 {
            let (flags, token) = (event.flags, event.data.u64());
            if token == WAKER {
                let _ = rustix::io::read(&*self.waker.0, &mut [0u8; 8]);
                continue;
            }
            let failed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            ready.push(Ready {
                token,
                readable: failed || flags.contains(epoll::EventFlags::IN),
                writable: failed || flags.contains(epoll::EventFlags::OUT),
            });
        }
        Ok(())
    }
}
