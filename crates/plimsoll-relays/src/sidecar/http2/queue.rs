//! What waits to go one way on a stream: for a window, or for room in a socket.

use std::sync::Arc;

use plimsoll_wire::http2::{DEFAULT_MAX_FRAME, End};

use super::{Fields, Session};

/// A buffer larger than this is given back when it is empty. Bytes.
const MAX_KEPT_CAPACITY: usize = 4 << 10;

/// What of a request is kept at most, so that it can be sent again. Bytes.
const MAX_RESENT: usize = 16 << 10;

/// Bounded by the stream's receive window on the side that it comes from.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    data: Vec<u8>,
    sent: usize,
    /// The same, by the connection that it went to before, too.
    passed_on: usize,
    /// What was sent is kept.
    keeps: bool,
    trailers: Option<Arc<Fields>>,
    /// END_STREAM comes after the data.
    ends: bool,
    /// It was sent.
    pub(crate) ended: bool,
    /// Its stream is in the list of those that wait.
    pub(crate) listed: bool,
}

impl Queue {
    /// A request's queue, which keeps what it has sent, as long as that is short, until an answer begins.
    pub(crate) fn keeping() -> Queue {
        Queue {
            keeps: true,
            ..Queue::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting() == 0 && (self.ended || !self.ends)
    }

    /// Bytes of data.
    pub(crate) fn waiting(&self) -> usize {
        self.data.len() - self.sent
    }

    /// Bytes of data that no connection was given.
    pub(crate) fn not_passed_on(&self) -> usize {
        self.data.len() - self.passed_on
    }

    /// Nothing is to be sent but the end.
    pub(crate) fn is_bare_end(&self) -> bool {
        self.ends && self.waiting() == 0 && self.trailers.is_none()
    }

    /// The source has sent all that it will.
    pub(crate) fn ends(&self) -> bool {
        self.ends
    }

    pub(crate) fn push(&mut self, data: &[u8], end: End) {
        self.data.extend_from_slice(data);
        self.ends |= end.0;
    }

    /// Takes note of data that was sent without being pushed, as nothing waited.
    pub(crate) fn note_sent(&mut self, data: &[u8], end: End) {
        if self.keeps {
            self.data.extend_from_slice(data);
            self.sent = self.data.len();
            self.passed_on = self.sent;
            self.drop_sent();
        }
        self.ends |= end.0;
        self.ended |= end.0;
    }

    /// Keeps no longer what was sent.
    pub(crate) fn stop_keeping(&mut self) {
        if self.keeps {
            self.keeps = false;
            self.drop_sent();
        }
    }

    /// Has everything sent again, on another stream. `false`: it was not kept.
    pub(crate) fn rewind(&mut self) -> bool {
        if self.keeps {
            (self.sent, self.ended, self.listed) = (0, false, false);
        }
        self.keeps
    }

    /// Nothing comes after these.
    pub(crate) fn finish(&mut self, trailers: Arc<Fields>) {
        self.trailers = Some(trailers);
        self.ends = true;
    }

    /// Writes what the windows let, while `out` is shorter than `limit`; the bytes of
    /// data that went for the first time.
    pub(crate) fn send(
        &mut self,
        session: &mut Session,
        stream: u32,
        out: &mut Vec<u8>,
        limit: usize,
    ) -> usize {
        while self.waiting() > 0 && out.len() < limit {
            let room = session.room(stream).min(DEFAULT_MAX_FRAME as usize);
            let length = room.min(self.waiting());
            if length == 0 {
                break;
            }
            let end = self.sent + length;
            let last = self.ends && self.trailers.is_none() && end == self.data.len();
            session.data(stream, &self.data[self.sent..end], End(last), out);
            self.ended = last;
            self.sent = end;
        }
        let went = self.sent.saturating_sub(self.passed_on);
        self.passed_on += went;
        self.drop_sent();
        if self.waiting() == 0 && self.ends && !self.ended {
            match &self.trailers {
                Some(trailers) => session.headers(stream, trailers, End(true), out),
                None => session.data(stream, &[], End(true), out),
            }
            self.ended = true;
        }
        went
    }

    /// Frees the buffer of what was sent, once that is all, unless it may be sent again.
    fn drop_sent(&mut self) {
        self.keeps &= self.sent <= MAX_RESENT;
        if self.keeps || self.waiting() > 0 {
            return;
        }
        (self.sent, self.passed_on) = (0, 0);
        if self.data.capacity() > MAX_KEPT_CAPACITY {
            self.data = Vec::new();
        } else {
            self.data.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::http2::Side;

    use super::*;

    /// A connection to a service that has sent its greeting.
    fn greeted() -> Session {
        let (mut session, mut greeting) = (Session::new(Side::Client), Vec::new());
        Session::new(Side::Server).open(100, &mut greeting);
        let mut input = &greeting[..];
        while (session.next(&mut input, &mut Vec::new()).unwrap()).is_some() {}
        session
    }

    /// Sends what the queue has on a new stream of a new connection; the bytes and how many are new.
    fn sent_anew(queue: &mut Queue) -> (Vec<u8>, usize) {
        let (mut session, mut out) = (greeted(), Vec::new());
        session.adopt(1, 7, End(false));
        let went = queue.send(&mut session, 1, &mut out, usize::MAX);
        (out, went)
    }

    #[test]
    fn request_is_sent_again_byte_for_byte() {
        let mut queue = Queue::keeping();
        queue.push(b"hel", End(false));
        queue.push(b"lo", End(true));
        let (first, went) = sent_anew(&mut queue);
        assert_eq!(
            (went, queue.is_empty(), queue.not_passed_on()),
            (5, true, 0)
        );
        assert!(queue.rewind());
        assert!(!queue.is_empty() && !queue.ended);
        // Its sender's window was opened by as much already.
        assert_eq!(sent_anew(&mut queue), (first, 0));
        queue.stop_keeping();
        assert!(!queue.rewind() && queue.ended && queue.is_empty());
    }

    #[test]
    fn long_request_is_not_kept() {
        let mut queue = Queue::keeping();
        queue.note_sent(&[0; MAX_RESENT], End(false));
        queue.push(b"more", End(false));
        assert_eq!(queue.not_passed_on(), 4);
        assert!(queue.rewind());
        assert_eq!(sent_anew(&mut queue).1, 4);
        assert!(!queue.rewind(), "{} bytes", queue.data.len());
        assert_eq!((queue.waiting(), queue.not_passed_on()), (0, 0));
        queue.note_sent(b"and more", End(true));
        assert!(queue.data.is_empty() && queue.is_empty());
    }

    #[test]
    fn answers_are_not_kept() {
        let mut queue = Queue::default();
        queue.push(b"answer", End(false));
        assert_eq!(sent_anew(&mut queue).1, 6);
        assert!(queue.data.is_empty() && !queue.rewind());
    }
}
