//! What waits to go one way on a stream: for a window, or for room in a socket.

use std::sync::Arc;

use plimsoll_wire::http2::{DEFAULT_MAX_FRAME, End};

use super::{Fields, Session};

/// A buffer larger than this is given back when it is empty. Bytes.
const MAX_KEPT_CAPACITY: usize = 4 << 10;

/// Bounded by the stream's receive window on the side that it comes from.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    data: Vec<u8>,
    sent: usize,
    trailers: Option<Arc<Fields>>,
    /// END_STREAM comes after the data.
    ends: bool,
    /// It was sent.
    pub(crate) ended: bool,
    /// Its stream is in the list of those that wait.
    pub(crate) listed: bool,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting() == 0 && (self.ended || !self.ends)
    }

    /// Bytes of data.
    pub(crate) fn waiting(&self) -> usize {
        self.data.len() - self.sent
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

    /// Nothing comes after these.
    pub(crate) fn finish(&mut self, trailers: Arc<Fields>) {
        self.trailers = Some(trailers);
        self.ends = true;
    }

    /// Writes what the windows let, while `out` is shorter than `limit`; the bytes of
    /// data that went.
    pub(crate) fn send(
        &mut self,
        session: &mut Session,
        stream: u32,
        out: &mut Vec<u8>,
        limit: usize,
    ) -> usize {
        let mut went = 0;
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
            went += length;
        }
        if self.waiting() > 0 {
            return went;
        }
        self.sent = 0;
        if self.data.capacity() > MAX_KEPT_CAPACITY {
            self.data = Vec::new();
        } else {
            self.data.clear();
        }
        if self.ends && !self.ended {
            match self.trailers.take() {
                Some(trailers) => session.headers(stream, &trailers, End(true), out),
                None => session.data(stream, &[], End(true), out),
            }
            self.ended = true;
        }
        went
    }
}
