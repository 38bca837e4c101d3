//! Readiness of sockets under epoll, for one thread. Workers, servers and relays use it for their waits.
//!
//! An event is identified by its token alone; there are no callbacks and no tables.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use crate::fault;

/// The system call that [`Poller::wait`] makes.
const WAIT_SYSCALL_NAME: &str = "epoll_pwait2";
const WAKER_TOKEN: u64 = u64::MAX;
/// Maximum number of events that one wait reports.
pub(crate) const MAX_EVENTS: usize = 512;

/// An identifier of a socket in the poller's events. The highest value is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketToken(pub u64);

/// A readiness event of a socket. A hang-up or an error counts as both readable and writable.
#[derive(Clone, Copy, Debug)]
pub struct SocketReady {
    /// The token with which the socket was added.
    pub token: SocketToken,
    /// Whether bytes, connections or end of stream can be read.
    pub readable: bool,
    /// Whether the socket accepts bytes, or its connection attempt has ended.
    pub writable: bool,
    /// Whether the peer has closed, or the connection failed, so that the socket must be read until end of stream. Only
    /// for sockets that are watched for [`Interest::Changes`].
    pub hangup: bool,
}

/// The events of a socket that are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Edge-triggered: reported once when the socket becomes readable or writable.
    Changes,
    /// Level-triggered: reported for as long as the socket is ready.
    State {
        /// Report readability.
        reads: bool,
        /// Report writability.
        writes: bool,
    },
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        use epoll::EventFlags as Flags;
        match self {
            Interest::Changes => Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET,
            Interest::State { reads, writes } => {
                let mut flags = Flags::empty();
                flags.set(Flags::IN, reads);
                flags.set(Flags::OUT, writes);
                flags
            }
        }
    }
}

/// A handle that wakes a poller from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the poller's wait return soon.
    pub fn wake(&self) {
        // A full counter means that a wake-up is already pending.
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&*self.0, &1u64.to_ne_bytes()));
    }
}

/// The events of one wait. They are not sent to other threads.
pub struct PollEvents(Vec<epoll::Event>);

impl Default for PollEvents {
    fn default() -> PollEvents {
        PollEvents(Vec::with_capacity(MAX_EVENTS))
    }
}

impl PollEvents {
    /// Returns the sockets that are ready.
    #[inline]
    pub fn sockets(&self) -> impl Iterator<Item = SocketReady> {
        let sockets = self
            .0
            .iter()
            .filter(|event| event.data.u64() != WAKER_TOKEN);
        sockets.map(|event| {
            let flags = event.flags;
            let failed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            SocketReady {
                token: SocketToken(event.data.u64()),
                readable: failed || flags.contains(epoll::EventFlags::IN),
                writable: failed || flags.contains(epoll::EventFlags::OUT),
                hangup: failed || flags.contains(epoll::EventFlags::RDHUP),
            }
        })
    }

    /// Returns whether a [`Waker`] was used.
    pub fn was_woken(&self) -> bool {
        self.0.iter().any(|event| event.data.u64() == WAKER_TOKEN)
    }
}

/// An epoll instance with the sockets of one thread.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    waker: Waker,
}

impl Poller {
    /// Creates a poller without sockets.
    ///
    /// # Errors
    /// Returns an error if the process has no free descriptor.
    pub fn new() -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let waker = Waker(Arc::new(eventfd(0, flags)?));
        let data = epoll::EventData::new_u64(WAKER_TOKEN);
        // The event is edge-triggered, so the counter need not be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &*waker.0, data, flags)?;
        Ok(Poller { epoll, waker })
    }

    /// Returns a handle that ends a wait of this poller from any thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Adds a socket, whose events have the given token.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot watch more sockets.
    pub fn add(&self, socket: impl AsFd, token: SocketToken, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.0);
        Ok(epoll::add(&self.epoll, socket, data, interest.flags())?)
    }

    /// Changes the token and the interest of a socket. Pending readiness is reported again.
    ///
    /// # Errors
    /// Returns an error if the socket was not added.
    pub fn change(
        &self,
        socket: impl AsFd,
        token: SocketToken,
        interest: Interest,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.0);
        Ok(epoll::modify(&self.epoll, socket, data, interest.flags())?)
    }

    /// Waits until sockets are ready, a [`Waker`] was used, or a signal arrived; returns `false` on timeout.
    /// Replaces the contents of `events`.
    ///
    /// # Errors
    /// Returns an error that names the system call if the kernel cannot wait.
    pub fn wait(&self, timeout: Option<Duration>, events: &mut PollEvents) -> io::Result<bool> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        events.0.clear();
        fault::system_call(WAIT_SYSCALL_NAME).map_err(add_syscall_name)?;
        let room = rustix::buffer::spare_capacity(&mut events.0);
        match epoll::wait(&self.epoll, room, timeout.as_ref()) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(true),
            Err(e) => Err(add_syscall_name(e.into())),
        }
    }
}

fn add_syscall_name(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{WAIT_SYSCALL_NAME}: {error}"))
}
