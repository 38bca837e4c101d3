//! Data of a stream, in one direction, that waits for a flow-control window or for room in a socket buffer.

use std::sync::Arc;

use plimsoll_wire::http2::{DEFAULT_MAX_FRAME_BYTES, EndStream};

use super::{HeaderFields, Http2Session};

/// Capacity in bytes above which a buffer is freed when it becomes empty.
const MAX_EMPTY_BUFFER_BYTES: usize = 4 << 10;

/// Maximum size in bytes of a request that is retained so that it can be sent again.
const MAX_RESENDABLE_REQUEST_BYTES: usize = 16 << 10;

/// A queue that is bounded by the receive window of the stream that fills it.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    data: Vec<u8>,
    sent: usize,
    /// Bytes of `data` that were sent to any connection, including an earlier one.
    ever_sent: usize,
    /// Sent data is retained, so that it can be sent again.
    retains_sent: bool,
    trailers: Option<Arc<HeaderFields>>,
    /// END_STREAM is sent after the data.
    has_end: bool,
    /// END_STREAM was sent.
    pub(crate) end_sent: bool,
    /// The call is in the list of those whose data waits to be sent on the connection.
    pub(crate) is_listed: bool,
}

impl SendQueue {
    /// Returns a queue for a request, which retains the data that it has sent, up to a limit, until
    /// the answer begins.
    pub(crate) fn new_for_request() -> SendQueue {
        SendQueue {
            retains_sent: true,
            ..SendQueue::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting_bytes() == 0 && (self.end_sent || !self.has_end)
    }

    /// Returns the number of bytes that wait to be sent.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.data.len() - self.sent
    }

    /// Returns the number of bytes that were never sent to any connection.
    pub(crate) fn never_sent_bytes(&self) -> usize {
        self.data.len() - self.ever_sent
    }

    /// Returns whether only END_STREAM is left to be sent.
    pub(crate) fn has_only_end_stream(&self) -> bool {
        self.has_end && self.waiting_bytes() == 0 && self.trailers.is_none()
    }

    /// Returns whether the source has ended the stream.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_end
    }

    pub(crate) fn push(&mut self, data: &[u8], end: EndStream) {
        self.data.extend_from_slice(data);
        self.has_end |= end.0;
    }

    /// Records data that was sent directly because the queue was empty.
    pub(crate) fn record_sent(&mut self, data: &[u8], end: EndStream) {
        if self.retains_sent {
            self.data.extend_from_slice(data);
            self.sent = self.data.len();
            self.ever_sent = self.sent;
            self.drop_sent_data();
        }
        self.has_end |= end.0;
        self.end_sent |= end.0;
    }

    /// Stops retaining sent data.
    pub(crate) fn stop_retaining(&mut self) {
        if self.retains_sent {
            self.retains_sent = false;
            self.drop_sent_data();
        }
    }

    /// Restarts the queue for another stream; returns `false` if the data already sent was not retained.
    pub(crate) fn rewind(&mut self) -> bool {
        if self.retains_sent {
            (self.sent, self.end_sent, self.is_listed) = (0, false, false);
        }
        self.retains_sent
    }

    /// Ends the stream with trailers.
    pub(crate) fn push_trailers(&mut self, trailers: Arc<HeaderFields>) {
        self.trailers = Some(trailers);
        self.has_end = true;
    }

    /// Writes as much as the windows allow while `out` is shorter than `limit`; returns the number of bytes that were
    /// sent for the first time.
    pub(crate) fn send(
        &mut self,
        session: &mut Http2Session,
        stream: u32,
        out: &mut Vec<u8>,
        limit: usize,
    ) -> usize {
        while self.waiting_bytes() > 0 && out.len() < limit {
            let room = session
                .sendable_bytes(stream)
                .min(DEFAULT_MAX_FRAME_BYTES as usize);
            let length = room.min(self.waiting_bytes());
            if length == 0 {
                break;
            }
            let end = self.sent + length;
            let last = self.has_end && self.trailers.is_none() && end == self.data.len();
            session.send_data(stream, &self.data[self.sent..end], EndStream(last), out);
            self.end_sent = last;
            self.sent = end;
        }
        let went = self.sent.saturating_sub(self.ever_sent);
        self.ever_sent += went;
        self.drop_sent_data();
        if self.waiting_bytes() == 0 && self.has_end && !self.end_sent {
            match &self.trailers {
                Some(trailers) => session.send_headers(stream, trailers, EndStream(true), out),
                None => session.send_data(stream, &[], EndStream(true), out),
            }
            self.end_sent = true;
        }
        went
    }

    /// Frees the buffer once all its data is sent, unless the data may be sent again.
    fn drop_sent_data(&mut self) {
        self.retains_sent &= self.sent <= MAX_RESENDABLE_REQUEST_BYTES;
        if self.retains_sent || self.waiting_bytes() > 0 {
            return;
        }
        (self.sent, self.ever_sent) = (0, 0);
        if self.data.capacity() > MAX_EMPTY_BUFFER_BYTES {
            self.data = Vec::new();
        } else {
            self.data.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::http2::EitherRole;

    use super::*;

    /// Returns a connection to a service that has sent its SETTINGS.
    fn greeted() -> Http2Session {
        let (mut session, mut greeting) = (Http2Session::new(EitherRole::Client), Vec::new());
        Http2Session::new(EitherRole::Server).send_preface(100, &mut greeting);
        let mut input = &greeting[..];
        while (session.next_event(&mut input, &mut Vec::new()).unwrap()).is_some() {}
        session
    }

    /// Sends the queue on a new stream of a new connection; returns the bytes and how many of them
    /// are new.
    fn sent_anew(queue: &mut SendQueue) -> (Vec<u8>, usize) {
        let (mut session, mut out) = (greeted(), Vec::new());
        session.add_stream(1, 7, EndStream(false));
        let went = queue.send(&mut session, 1, &mut out, usize::MAX);
        (out, went)
    }

    #[test]
    fn request_is_sent_again_byte_for_byte() {
        let mut queue = SendQueue::new_for_request();
        queue.push(b"hel", EndStream(false));
        queue.push(b"lo", EndStream(true));
        let (first, went) = sent_anew(&mut queue);
        assert_eq!(
            (went, queue.is_empty(), queue.never_sent_bytes()),
            (5, true, 0)
        );
        assert!(queue.rewind());
        assert!(!queue.is_empty() && !queue.end_sent);
        // The sender's window was already opened for these bytes.
        assert_eq!(sent_anew(&mut queue), (first, 0));
        queue.stop_retaining();
        assert!(!queue.rewind() && queue.end_sent && queue.is_empty());
    }

    #[test]
    fn long_request_is_not_kept() {
        let mut queue = SendQueue::new_for_request();
        queue.record_sent(&[0; MAX_RESENDABLE_REQUEST_BYTES], EndStream(false));
        queue.push(b"more", EndStream(false));
        assert_eq!(queue.never_sent_bytes(), 4);
        assert!(queue.rewind());
        assert_eq!(sent_anew(&mut queue).1, 4);
        assert!(!queue.rewind(), "{} bytes", queue.data.len());
        assert_eq!((queue.waiting_bytes(), queue.never_sent_bytes()), (0, 0));
        queue.record_sent(b"and more", EndStream(true));
        assert!(queue.data.is_empty() && queue.is_empty());
    }

    #[test]
    fn answers_are_not_kept() {
        let mut queue = SendQueue::default();
        queue.push(b"answer", EndStream(false));
        assert_eq!(sent_anew(&mut queue).1, 6);
        assert!(queue.data.is_empty() && !queue.rewind());
    }
}
