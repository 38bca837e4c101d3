//! Limits the size of Redis replies before the `redis` crate buffers them. The crate buffers a reply until it is
//! complete, even if its announced length is huge, and a line until it ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Largest reply in bytes. The largest reply that the bus requests is a page of a session's log: see
/// [`MAX_LOG_PAGE_FRAMES`](crate::bus::MAX_LOG_PAGE_FRAMES).
const MAX_REPLY_BYTES: u64 = 64 << 20;

/// Largest line in bytes outside bulk strings: a number, a status or an error.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Maximum number of values in one reply, because a value takes more memory than its shortest encoding.
const MAX_REPLY_VALUES: u64 = 1 << 17;

/// Progress through a reply (RESP3).
#[derive(Debug)]
pub(super) struct ReplyTracker {
    line: ReplyLine,
    /// Bytes of the current bulk string still to come.
    bulk: u64,
    /// Values still to come until the reply is complete.
    values: u64,
    /// Bytes of the reply so far; a bulk string counts as soon as its length is known.
    reply_bytes: u64,
    /// Values that the reply has announced so far.
    announced_values: u64,
}

#[derive(Debug)]
struct ReplyLine {
    kind: u8,
    length: usize,
    /// The number after `kind`; `None` if it is not a number.
    number: Option<u64>,
    is_negative: bool,
}

const EMPTY_LINE: ReplyLine = ReplyLine {
    kind: 0,
    length: 0,
    number: Some(0),
    is_negative: false,
};

impl Default for ReplyTracker {
    fn default() -> ReplyTracker {
        ReplyTracker {
            line: EMPTY_LINE,
            bulk: 0,
            values: 1,
            reply_bytes: 0,
            announced_values: 0,
        }
    }
}

impl ReplyTracker {
    /// Follows the next bytes of the stream.
    ///
    /// # Errors
    /// When the reply is larger than any that the bus requests.
    pub(super) fn track(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while let Some((first, rest)) = bytes.split_first() {
            if self.bulk > 0 {
                let part = self.bulk.min(bytes.len() as u64);
                self.bulk -= part;
                bytes = &bytes[part as usize..];
                if self.bulk == 0 {
                    self.end_value();
                }
                continue;
            }
            bytes = rest;
            self.add_reply_bytes(1)?;
            if *first == b'\n' {
                self.end_line()?;
                continue;
            }
            let line = &mut self.line;
            line.length += 1;
            match first {
                _ if line.length == 1 => line.kind = *first,
                b'-' if line.length == 2 => line.is_negative = true,
                b'\r' => {}
                digit @ b'0'..=b'9' => {
                    let digit = u64::from(digit - b'0');
                    let next = line.number.and_then(|n| n.checked_mul(10));
                    line.number = next.and_then(|n| n.checked_add(digit));
                }
                _ => line.number = None,
            }
            if line.length > MAX_LINE_BYTES {
                return Err(format!("a line of more than {MAX_LINE_BYTES} bytes"));
            }
        }
        Ok(())
    }

    fn add_reply_bytes(&mut self, length: u64) -> Result<(), String> {
        self.reply_bytes = self.reply_bytes.saturating_add(length);
        if self.reply_bytes > MAX_REPLY_BYTES {
            Err(format!("a reply of more than {MAX_REPLY_BYTES} bytes"))
        } else {
            Ok(())
        }
    }

    fn end_line(&mut self) -> Result<(), String> {
        let line = std::mem::replace(&mut self.line, EMPTY_LINE);
        let length = match line.is_negative {
            // A null of RESP2 (`$-1`, `*-1`).
            true => Some(0),
            false => line.number,
        };
        let strange = || "a length that is not a number".to_owned();
        match line.kind {
            b'$' | b'!' | b'=' if !line.is_negative => {
                let length = length.ok_or_else(strange)?;
                self.add_reply_bytes(length)?;
                // The two additional bytes are the CRLF that ends a bulk string.
                self.bulk = length.saturating_add(2);
                return Ok(());
            }
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let length = length.ok_or_else(strange)?;
                let each = if matches!(line.kind, b'%' | b'|') {
                    2
                } else {
                    1
                };
                let more = length.saturating_mul(each);
                self.announced_values = self.announced_values.saturating_add(more);
                if self.announced_values > MAX_REPLY_VALUES {
                    return Err(format!("a reply of more than {MAX_REPLY_VALUES} values"));
                }
                self.values += more;
                // An attribute precedes a value, and is not itself counted as a value.
                if line.kind == b'|' {
                    self.values += 1;
                }
            }
            _ => {}
        }
        self.end_value();
        Ok(())
    }

    fn end_value(&mut self) {
        self.values -= 1;
        if self.values == 0 {
            *self = ReplyTracker::default();
        }
    }
}

/// A stream that fails when Redis sends a reply above the limits.
#[derive(Debug)]
pub(super) struct BoundedStream<S> {
    stream: S,
    replies: ReplyTracker,
}

impl<S> BoundedStream<S> {
    pub(super) fn new(stream: S) -> BoundedStream<S> {
        let replies = ReplyTracker::default();
        BoundedStream { stream, replies }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let taken = self.replies.track(&buffer.filled()[before..]);
        Poll::Ready(taken.map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(bytes: &[u8], step: usize) -> Result<ReplyTracker, String> {
        let mut replies = ReplyTracker::default();
        for part in bytes.chunks(step) {
            replies.track(part)?;
        }
        Ok(replies)
    }

    #[test]
    fn replies_are_followed_to_end() {
        let replies = b"+OK\r\n:-5\r\n$5\r\na\r\nbc\r\n$-1\r\n*-1\r\n*2\r\n$0\r\n\r\n*1\r\n#t\r\n%1\r\n+a\r\n,1.5\r\n|1\r\n+k\r\n+v\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n=6\r\ntxt:hi\r\n!3\r\nERR\r\n_\r\n(123\r\n~0\r\n";
        for step in [1, 2, 3, 7, 1000] {
            let followed = take(replies, step).unwrap();
            assert_eq!((followed.reply_bytes, followed.values), (0, 1), "{step}");
        }
        // Many replies, each of which is short.
        let mut followed = ReplyTracker::default();
        for _ in 0..100_000 {
            followed.track(b"$1024\r\n").unwrap();
            followed.track(&[b'x'; 1026]).unwrap();
        }
        assert_eq!(followed.reply_bytes, 0);
    }

    #[test]
    fn oversized_replies_are_rejected_early() {
        for bytes in [
            &b"$67108865\r\n"[..],
            b"$99999999999999999999\r\n",
            b"*131073\r\n",
            b"*18446744073709551615\r\n",
            b"%65537\r\n",
            b"*2\r\n*100000\r\n*100000\r\n",
            b"$x\r\n",
            b"*x\r\n",
        ] {
            assert!(take(bytes, 1).is_err(), "{}", bytes.escape_ascii());
        }
        let line = vec![b'x'; MAX_LINE_BYTES + 2];
        assert!(take(&line, 1000).is_err());
        let mut long = ReplyTracker::default();
        let mut taken = long.track(b"*100\r\n");
        for _ in 0..100 {
            taken = taken.and_then(|()| long.track(b"$1000000\r\n"));
            taken = taken.and_then(|()| long.track(&vec![0; 1_000_002]));
        }
        assert!(taken.unwrap_err().contains("67108864 bytes"));
    }
}
