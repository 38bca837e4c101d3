//! One client's connection: frames in, answers out, in the order in which they are ready.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

use super::super::Status;
use super::super::frame::{Command, Frame, Kind, MAX_CONTENT};
use super::{Server, answers};

/// Requests in progress on one connection, beyond which no more are read.
const MAX_IN_PROGRESS: usize = 65_536;
/// And so many bytes of them: each is kept until it is answered, and its answer until the
/// client has read it.
const MAX_BYTES: usize = 8 << 20;
const READ_AT_ONCE: usize = 64 << 10;
/// Buffers larger than this are given back when they are empty. Bytes.
const KEPT: usize = 256 << 10;

/// Serves until the client closes, or `stopped` and nothing is in progress any more.
///
/// # Errors
/// When the connection breaks.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    server: Arc<Server>,
    mut stopped: watch::Receiver<()>,
) -> io::Result<()> {
    let (sender, mut answers) = mpsc::unbounded_channel();
    let mut input: Vec<u8> = Vec::with_capacity(READ_AT_ONCE);
    let mut out = Vec::new();
    let mut in_progress = InProgress::default();
    let mut open = true;
    let mut stopping = false;
    while (open && !stopping) || in_progress.requests > 0 {
        let reads = open && !stopping && in_progress.has_room();
        tokio::select! {
            Some(answer) = answers.recv(), if in_progress.requests > 0 => {
                in_progress.end(answer, &mut out);
                while let Ok(answer) = answers.try_recv() {
                    in_progress.end(answer, &mut out);
                }
            }
            read = stream.read_buf(&mut input), if reads => {
                if read? == 0 {
                    open = false;
                } else {
                    match take(&input, &server, &sender, &mut in_progress, &mut out) {
                        Some(taken) => {
                            input.drain(..taken);
                            input.reserve(READ_AT_ONCE);
                        }
                        None => {
                            server.counters.malformed.fetch_add(1, Ordering::Relaxed);
                            open = false;
                        }
                    }
                }
            }
            _ = stopped.changed(), if !stopping => stopping = true,
        }
        if !out.is_empty() {
            stream.write_all(&out).await?;
            out.clear();
            out.shrink_to(KEPT);
        }
    }
    stream.shutdown().await
}

/// Requests whose answers are on their way.
#[derive(Default)]
struct InProgress {
    requests: usize,
    bytes: usize,
}

/// An answer, and how long its request was.
struct Answer {
    request: usize,
    bytes: Vec<u8>,
}

impl InProgress {
    fn has_room(&self) -> bool {
        self.requests < MAX_IN_PROGRESS && self.bytes < MAX_BYTES
    }

    fn begin(&mut self, request: usize) {
        self.requests += 1;
        self.bytes += request;
    }

    fn end(&mut self, answer: Answer, out: &mut Vec<u8>) {
        self.requests -= 1;
        self.bytes -= answer.request;
        out.extend_from_slice(&answer.bytes);
    }
}

/// Takes whole frames off `input`; how many bytes that were. `None`: it is no Bolt.
fn take(
    input: &[u8],
    server: &Arc<Server>,
    sender: &mpsc::UnboundedSender<Answer>,
    in_progress: &mut InProgress,
    out: &mut Vec<u8>,
) -> Option<usize> {
    let mut taken = 0;
    loop {
        match Frame::parse(&input[taken..], MAX_CONTENT) {
            Ok(Some((frame, length))) => {
                request(
                    &frame,
                    &input[taken..taken + length],
                    server,
                    sender,
                    in_progress,
                    out,
                );
                taken += length;
            }
            Ok(None) => return Some(taken),
            Err(error) => {
                tracing::debug!("closing a connection: {error}");
                return None;
            }
        }
    }
}

fn request(
    frame: &Frame<'_>,
    bytes: &[u8],
    server: &Arc<Server>,
    sender: &mpsc::UnboundedSender<Answer>,
    in_progress: &mut InProgress,
    out: &mut Vec<u8>,
) {
    match (frame.kind, frame.command) {
        (Kind::Request { .. }, Command::Heartbeat) => {
            server.counters.heartbeats.fetch_add(1, Ordering::Relaxed);
            Frame::heartbeat_ack(frame.form, frame.id).write(out);
        }
        (Kind::Request { .. }, _) if server.at_once => complete(frame, server, out),
        (Kind::Request { .. }, _) => {
            in_progress.begin(bytes.len());
            let (server, sender, bytes) = (Arc::clone(server), sender.clone(), bytes.to_vec());
            tokio::spawn(async move {
                let has_worked = server.work().await;
                let mut out = Vec::new();
                // The bytes have been a frame before.
                if let Ok(Some((frame, _))) = Frame::parse(&bytes, MAX_CONTENT) {
                    if has_worked {
                        complete(&frame, &server, &mut out);
                    } else {
                        server.counters.busy.fetch_add(1, Ordering::Relaxed);
                        server.counters.failed.fetch_add(1, Ordering::Relaxed);
                        answers::bare(&frame, Status::ServerThreadpoolBusy, &mut out);
                    }
                }
                // The connection may be gone.
                let _ = sender.send(Answer {
                    request: bytes.len(),
                    bytes: out,
                });
            });
        }
        (Kind::Oneway { .. }, _) => {
            server.counters.oneway.fetch_add(1, Ordering::Relaxed);
        }
        // Nothing was asked, so there is nothing to be answered.
        (Kind::Response { .. }, _) => {}
    }
}

/// Appends the answer, and counts it.
fn complete(frame: &Frame<'_>, server: &Server, out: &mut Vec<u8>) {
    let is_answered = match server.failure() {
        None => answers::answer(frame, out),
        Some(share) => {
            answers::fail(frame, share, out);
            false
        }
    };
    let counter = if is_answered {
        &server.counters.answered
    } else {
        &server.counters.failed
    };
    counter.fetch_add(1, Ordering::Relaxed);
}
