//! Response bodies: filler bytes of any length that are not stored in memory, and events sent over time.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc::Receiver;

/// The length of a chunk of filler, in bytes.
const FILLER_BLOCK_BYTES: usize = 64 * 1024;

/// The block that filler bodies repeat.
static FILLER_BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| vec![b'x'; FILLER_BLOCK_BYTES]);

/// The body of a response.
pub(super) enum ResponseBody {
    Content(Bytes),
    Filler(u64),
    /// Events; the body ends when their sender is dropped.
    Events(Receiver<Bytes>),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match self.get_mut() {
            ResponseBody::Content(bytes) if bytes.is_empty() => None,
            ResponseBody::Content(bytes) => Some(std::mem::take(bytes)),
            ResponseBody::Filler(0) => None,
            ResponseBody::Filler(left) => {
                let size = usize::try_from(*left)
                    .unwrap_or(FILLER_BLOCK_BYTES)
                    .min(FILLER_BLOCK_BYTES);
                *left -= size as u64;
                Some(Bytes::from_static(&FILLER_BLOCK[..size]))
            }
            ResponseBody::Events(events) => match events.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(piece) => piece,
            },
        };
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Content(bytes) => bytes.is_empty(),
            ResponseBody::Filler(left) => *left == 0,
            ResponseBody::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Content(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Filler(left) => SizeHint::with_exact(*left),
            ResponseBody::Events(_) => SizeHint::default(),
        }
    }
}
