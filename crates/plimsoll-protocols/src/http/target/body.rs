//! Response bodies: filler bytes of any length without holding them in memory, and events over time.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc::Receiver;

/// Length of a chunk of filler. Bytes.
const BLOCK: usize = 64 * 1024;

/// Filler bodies repeat this block.
static MADE: LazyLock<Vec<u8>> = LazyLock::new(|| vec![b'x'; BLOCK]);

/// The body of a response.
pub(super) enum Answer {
    Whole(Bytes),
    Made(u64),
    /// Events, until the sender is dropped.
    Events(Receiver<Bytes>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match self.get_mut() {
            Answer::Whole(bytes) if bytes.is_empty() => None,
            Answer::Whole(bytes) => Some(std::mem::take(bytes)),
            Answer::Made(0) => None,
            Answer::Made(left) => {
                let size = usize::try_from(*left).unwrap_or(BLOCK).min(BLOCK);
                *left -= size as u64;
                Some(Bytes::from_static(&MADE[..size]))
            }
            Answer::Events(events) => match events.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(piece) => piece,
            },
        };
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Whole(bytes) => bytes.is_empty(),
            Answer::Made(left) => *left == 0,
            Answer::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Answer::Made(left) => SizeHint::with_exact(*left),
            Answer::Events(_) => SizeHint::default(),
        }
    }
}
