//! The bytes that Redis sends, counted before the client library keeps them: it holds a reply until it is
//! whole, however long that is said to be, and a line until it ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The longest reply. Bytes. A page of a session's log is the longest that is asked for: see
/// [`HISTORY_PAGE`](crate::bus::HISTORY_PAGE).
const MAX_REPLY: u64 = 64 << 20;

/// Bytes of a line that is no bulk string: a number, a status, an error.
const MAX_LINE: usize = 64 << 10;

/// Values in one reply: each takes more memory here than in the shortest form that it can be sent in.
const MAX_VALUES: u64 = 1 << 17;

/// A reply as far as it has come (RESP3).
#[derive(Debug)]
pub(super) struct Replies {
    line: Line,
    /// Bytes of a bulk string that are to come.
    bulk: u64,
    /// Values that are to come until the reply is whole.
    values: u64,
    /// Bytes of the reply so far; those of a bulk string count once its length is known.
    taken: u64,
    counted: u64,
}

#[derive(Debug)]
struct Line {
    kind: u8,
    length: usize,
    /// What follows `kind`, as far as it is a number.
    number: Option<u64>,
    is_negative: bool,
}

const EMPTY_LINE: Line = Line {
    kind: 0,
    length: 0,
    number: Some(0),
    is_negative: false,
};

impl Default for Replies {
    fn default() -> Replies {
        Replies {
            line: EMPTY_LINE,
            bulk: 0,
            values: 1,
            taken: 0,
            counted: 0,
        }
    }
}

impl Replies {
    /// Looks at what came next.
    ///
    /// # Errors
    /// A reply is longer than any that was asked for.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Result<(), String> {
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
            self.count(1)?;
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
            if line.length > MAX_LINE {
                return Err(format!("a line of more than {MAX_LINE} bytes"));
            }
        }
        Ok(())
    }

    fn count(&mut self, length: u64) -> Result<(), String> {
        self.taken = self.taken.saturating_add(length);
        if self.taken > MAX_REPLY {
            Err(format!("a reply of more than {MAX_REPLY} bytes"))
        } else {
            Ok(())
        }
    }

    fn end_line(&mut self) -> Result<(), String> {
        let line = std::mem::replace(&mut self.line, EMPTY_LINE);
        let length = match line.is_negative {
            // Null, as RESP2 has it.
            true => Some(0),
            false => line.number,
        };
        let strange = || "a length that is no number".to_owned();
        match line.kind {
            b'$' | b'!' | b'=' if !line.is_negative => {
                let length = length.ok_or_else(strange)?;
                self.count(length)?;
                // The end of its line.
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
                self.counted = self.counted.saturating_add(more);
                if self.counted > MAX_VALUES {
                    return Err(format!("a reply of more than {MAX_VALUES} values"));
                }
                self.values += more;
                // Attributes come before a value, and are none.
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
            *self = Replies::default();
        }
    }
}

/// A stream that ends where Redis sends more than it can mean.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    stream: S,
    replies: Replies,
}

impl<S> Bounded<S> {
    pub(super) fn new(stream: S) -> Bounded<S> {
        let replies = Replies::default();
        Bounded { stream, replies }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let taken = self.replies.take(&buffer.filled()[before..]);
        Poll::Ready(taken.map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
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

    fn take(bytes: &[u8], step: usize) -> Result<Replies, String> {
        let mut replies = Replies::default();
        for part in bytes.chunks(step) {
            replies.take(part)?;
        }
        Ok(replies)
    }

    #[test]
    fn replies_are_followed_to_end() {
        let replies = b"+OK\r\n:-5\r\n$5\r\na\r\nbc\r\n$-1\r\n*-1\r\n*2\r\n$0\r\n\r\n*1\r\n#t\r\n%1\r\n+a\r\n,1.5\r\n|1\r\n+k\r\n+v\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n=6\r\ntxt:hi\r\n!3\r\nERR\r\n_\r\n(123\r\n~0\r\n";
        for step in [1, 2, 3, 7, 1000] {
            let followed = take(replies, step).unwrap();
            assert_eq!((followed.taken, followed.values), (0, 1), "{step}");
        }
        // Many replies, each of which is short.
        let mut followed = Replies::default();
        for _ in 0..100_000 {
            followed.take(b"$1024\r\n").unwrap();
            followed.take(&[b'x'; 1026]).unwrap();
        }
        assert_eq!(followed.taken, 0);
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
        let line = vec![b'x'; MAX_LINE + 2];
        assert!(take(&line, 1000).is_err());
        let mut long = Replies::default();
        let mut taken = long.take(b"*100\r\n");
        for _ in 0..100 {
            taken = taken.and_then(|()| long.take(b"$1000000\r\n"));
            taken = taken.and_then(|()| long.take(&vec![0; 1_000_002]));
        }
        assert!(taken.unwrap_err().contains("67108864 bytes"));
    }
}
