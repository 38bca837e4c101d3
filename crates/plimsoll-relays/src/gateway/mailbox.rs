//! A bounded queue of frames between the bus, to which backends post them, and the task of a session's socket.
//!
//! When it is full, further frames are dropped and the session is marked as behind, so that it
//! reads its log once it has caught up. A slow client therefore costs no more memory than the queue
//! and loses nothing that is in the log.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::sync::watch;

use crate::bus::MessageSink;

pub(super) struct Mailbox {
    max_bytes: usize,
    inner: Mutex<MailboxState>,
    /// True once the session's socket sends no more frames and its position is recorded on the bus.
    stopped: watch::Sender<bool>,
}

#[derive(Default)]
struct MailboxState {
    queue: VecDeque<Bytes>,
    bytes: usize,
    behind: bool,
    lost: bool,
    close: Option<u16>,
    waker: Option<Waker>,
}

/// Everything that was in the mailbox when the session's task emptied it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MailboxContents {
    pub(super) frames: VecDeque<Bytes>,
    /// Frames may have been missed, so the log must be read after `frames`.
    pub(super) behind: bool,
    /// The queue was full, so frames were dropped.
    pub(super) lost: bool,
    pub(super) close: Option<u16>,
}

/// The event that wakes the session's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeCondition {
    AnyMail,
    /// Only an order to close wakes the task.
    CloseOrder,
}

impl Mailbox {
    pub(super) fn new(most_bytes: usize) -> Mailbox {
        Mailbox {
            max_bytes: most_bytes,
            inner: Mutex::default(),
            stopped: watch::Sender::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_and_wake(&self, change: impl FnOnce(&mut MailboxState)) {
        let waker = {
            let mut inner = self.lock();
            change(&mut inner);
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Orders the socket to be closed with this code.
    pub(super) fn close(&self, code: u16) {
        self.update_and_wake(|inner| {
            inner.close.get_or_insert(code);
        });
    }

    pub(super) fn mark_stopped(&self) {
        self.stopped.send_replace(true);
    }

    /// Waits until [`Mailbox::mark_stopped`] is called.
    pub(super) async fn wait_until_stopped(&self) {
        let mut stopped = self.stopped.subscribe();
        // This mailbox holds the sender, so waiting cannot fail.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }

    /// Empties the mailbox and returns its contents.
    pub(super) fn take_contents(&self) -> MailboxContents {
        let mut inner = self.lock();
        inner.bytes = 0;
        MailboxContents {
            frames: std::mem::take(&mut inner.queue),
            behind: std::mem::take(&mut inner.behind),
            lost: std::mem::take(&mut inner.lost),
            close: inner.close,
        }
    }

    /// Returns ready when there is something to take.
    pub(super) fn poll(&self, cx: &mut Context<'_>, wanted: WakeCondition) -> Poll<()> {
        let mut inner = self.lock();
        let has_frames = inner.behind || inner.lost || !inner.queue.is_empty();
        let has_mail = inner.close.is_some() || wanted == WakeCondition::AnyMail && has_frames;
        if has_mail {
            return Poll::Ready(());
        }
        match &inner.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => inner.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl MessageSink for Mailbox {
    fn on_message(&self, payload: &Bytes) {
        self.update_and_wake(|inner| {
            let cost = payload.len() + size_of::<Bytes>();
            if inner.lost || inner.bytes + cost > self.max_bytes {
                inner.lost = true;
                inner.behind = true;
                return;
            }
            inner.bytes += cost;
            // A frame is a slice of the buffer that it was read into, and keeps that whole buffer alive. That is fine
            // for a frame that is taken at once, but a queue of slices could keep many times as many bytes alive as its
            // limit allows.
            let frame = if inner.queue.is_empty() {
                payload.clone()
            } else {
                Bytes::copy_from_slice(payload)
            };
            inner.queue.push_back(frame);
        });
    }

    fn resync(&self) {
        self.update_and_wake(|inner| inner.behind = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_mailbox_reports_loss() {
        let mailbox = Mailbox::new(2 * (4 + size_of::<Bytes>()) + 3);
        for _ in 0..1000 {
            mailbox.on_message(&Bytes::from_static(b"1234"));
        }
        let mail = mailbox.take_contents();
        assert_eq!((mail.frames.len(), mail.behind, mail.lost), (2, true, true));
        assert_eq!(mailbox.take_contents(), MailboxContents::default());
        mailbox.on_message(&Bytes::from_static(b"1234"));
        assert_eq!(mailbox.take_contents().frames.len(), 1);
        for _ in 0..1000 {
            mailbox.on_message(&Bytes::new());
        }
        assert_eq!(
            mailbox.take_contents().frames.len(),
            2,
            "empty ones cost, too"
        );
    }

    /// Queued frames must not keep the bus's read buffer alive.
    #[test]
    fn queued_frames_release_read_buffer() {
        let mailbox = Mailbox::new(1 << 20);
        let read = Bytes::from(vec![b'x'; 16 << 10]);
        for at in 0..100 {
            mailbox.on_message(&read.slice(at..at + 4));
        }
        let frames = mailbox.take_contents().frames;
        let inside = read.as_ptr_range();
        let held = frames.iter().filter(|f| inside.contains(&f.as_ptr()));
        assert_eq!((frames.len(), held.count()), (100, 1));
    }

    #[test]
    fn first_close_code_wins() {
        let mailbox = Mailbox::new(10);
        mailbox.close(4001);
        mailbox.close(1012);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(mailbox.poll(&mut cx, WakeCondition::CloseOrder).is_ready());
        assert_eq!(mailbox.take_contents().close, Some(4001));
    }
}
