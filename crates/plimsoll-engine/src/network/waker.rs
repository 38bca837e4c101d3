//! Wakes a worker from another thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// One end of it; the other is in the worker's wait.
#[derive(Clone, Debug)]
pub struct Waker(pub(super) Arc<OwnedFd>);

impl Waker {
    /// Make the worker's [`super::Network::wait`] return soon.
    pub fn wake(&self) {
        // A full eventfd counter means the worker has a wake-up waiting already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}
