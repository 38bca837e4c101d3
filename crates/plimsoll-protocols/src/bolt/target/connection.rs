//! Serves one client's connection. Responses are sent in the order in which they become ready.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

use super::super::Status;
use super::super::frame::{BoltCommand, BoltFrame, BoltFrameKind, DEFAULT_MAX_CONTENT_BYTES};
use super::{BoltServer, answers};

/// The limit of requests in progress on one connection. At the limit, reading pauses.
const MAX_REQUESTS_IN_PROGRESS: usize = 65_536;
/// Maximum total size in bytes of requests in progress, which are kept until they are answered.
const MAX_IN_PROGRESS_BYTES: usize = 8 << 20;
const READ_CHUNK_BYTES: usize = 64 << 10;
/// Capacity in bytes to which empty buffers are shrunk.
const MAX_KEPT_BYTES: usize = 256 << 10;

/// Serves the connection until the client closes it, or until the server is stopped and nothing is in
/// progress.
///
/// # Errors
/// Returns an error if the connection breaks.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    server: Arc<BoltServer>,
    mut stopped: watch::Receiver<()>,
) -> io::Result<()> {
    let (sender, mut answers) = mpsc::unbounded_channel();
    let mut input: Vec<u8> = Vec::with_capacity(READ_CHUNK_BYTES);
    let mut out = Vec::new();
    let mut in_progress = InFlightRequests::default();
    let mut last = AnswerCache::default();
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
                    match handle_frames(&input, &server, &sender, (&mut in_progress, &mut last), &mut out) {
                        Some(taken) => {
                            input.drain(..taken);
                            input.reserve(READ_CHUNK_BYTES);
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
            out.shrink_to(MAX_KEPT_BYTES);
        }
    }
    stream.shutdown().await
}

/// The requests in progress.
#[derive(Default)]
struct InFlightRequests {
    requests: usize,
    bytes: usize,
}

/// A response, and the length of its request.
struct BoltAnswer {
    request: usize,
    bytes: Vec<u8>,
}

impl InFlightRequests {
    fn has_room(&self) -> bool {
        self.requests < MAX_REQUESTS_IN_PROGRESS && self.bytes < MAX_IN_PROGRESS_BYTES
    }

    fn begin(&mut self, request: usize) {
        self.requests += 1;
        self.bytes += request;
    }

    fn end(&mut self, answer: BoltAnswer, out: &mut Vec<u8>) {
        self.requests -= 1;
        self.bytes -= answer.request;
        out.extend_from_slice(&answer.bytes);
    }
}

/// Handles the complete frames at the front of `input`. Returns the number of bytes handled; `None`: the
/// bytes are not Bolt.
fn handle_frames(
    input: &[u8],
    server: &Arc<BoltServer>,
    sender: &mpsc::UnboundedSender<BoltAnswer>,
    (in_progress, last): (&mut InFlightRequests, &mut AnswerCache),
    out: &mut Vec<u8>,
) -> Option<usize> {
    let mut taken = 0;
    loop {
        match BoltFrame::parse(&input[taken..], DEFAULT_MAX_CONTENT_BYTES) {
            Ok(Some((frame, length))) => {
                let bytes = &input[taken..taken + length];
                if server.answers_at_once && is_call(&frame) {
                    complete_from_cache(&frame, bytes, server, last, out);
                } else {
                    handle_request(&frame, bytes, server, sender, in_progress, out);
                }
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

fn handle_request(
    frame: &BoltFrame<'_>,
    bytes: &[u8],
    server: &Arc<BoltServer>,
    sender: &mpsc::UnboundedSender<BoltAnswer>,
    in_progress: &mut InFlightRequests,
    out: &mut Vec<u8>,
) {
    match (frame.kind, frame.command) {
        (BoltFrameKind::Request { .. }, BoltCommand::Heartbeat) => {
            server.counters.heartbeats.fetch_add(1, Ordering::Relaxed);
            BoltFrame::heartbeat_ack(frame.layout, frame.id).write(out);
        }
        (BoltFrameKind::Request { .. }, _) => {
            in_progress.begin(bytes.len());
            let (server, sender, bytes) = (Arc::clone(server), sender.clone(), bytes.to_vec());
            tokio::spawn(async move {
                let has_worked = server.wait_for_worker().await;
                let mut out = Vec::new();
                // The bytes were parsed as a frame before, so parsing succeeds.
                if let Ok(Some((frame, _))) = BoltFrame::parse(&bytes, DEFAULT_MAX_CONTENT_BYTES) {
                    if has_worked {
                        complete(&frame, &server, &mut out);
                    } else {
                        server.counters.busy.fetch_add(1, Ordering::Relaxed);
                        server.counters.failed.fetch_add(1, Ordering::Relaxed);
                        answers::write_status_response(
                            &frame,
                            Status::ServerThreadpoolBusy,
                            &mut out,
                        );
                    }
                }
                // Sending fails if the connection is already closed.
                let _ = sender.send(BoltAnswer {
                    request: bytes.len(),
                    bytes: out,
                });
            });
        }
        (BoltFrameKind::Oneway { .. }, _) => {
            server.counters.oneway.fetch_add(1, Ordering::Relaxed);
        }
        // Ignores responses: this server sends no requests.
        (BoltFrameKind::Response { .. }, _) => {}
    }
}

fn is_call(frame: &BoltFrame<'_>) -> bool {
    matches!(frame.kind, BoltFrameKind::Request { .. }) && frame.command != BoltCommand::Heartbeat
}

/// The last request and its response. Most clients repeat one request that differs only in its id, so copying
/// the last response avoids decoding and encoding Hessian, which would make this server the bottleneck when
/// clients are measured.
#[derive(Default)]
struct AnswerCache {
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl AnswerCache {
    /// Appends the cached response if the request differs from the last one only in its id; returns false otherwise.
    /// `bytes` is `frame` in encoded form.
    fn write_if_repeated(&self, frame: &BoltFrame<'_>, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let (at, last) = (frame.layout.id_offset(), &self.request);
        let is_same = !frame.layout.has_crc()
            && bytes.len() == last.len()
            && bytes[..at] == last[..at]
            && bytes[at + 4..] == last[at + 4..];
        if is_same {
            let start = out.len() + at;
            out.extend_from_slice(&self.answer);
            out[start..start + 4].copy_from_slice(&frame.id.to_be_bytes());
        }
        is_same
    }

    fn store(&mut self, request: &[u8], answer: &[u8]) {
        for (kept, bytes) in [(&mut self.request, request), (&mut self.answer, answer)] {
            kept.clear();
            kept.shrink_to(MAX_KEPT_BYTES);
            kept.extend_from_slice(bytes);
        }
    }
}

/// Does the same as [`complete`], but copies the last response if the request equals the last one except for
/// its id.
fn complete_from_cache(
    frame: &BoltFrame<'_>,
    bytes: &[u8],
    server: &BoltServer,
    last: &mut AnswerCache,
    out: &mut Vec<u8>,
) {
    if server.never_fails() && last.write_if_repeated(frame, bytes, out) {
        server.counters.answered.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let start = out.len();
    if complete(frame, server, out) && bytes.len() <= MAX_KEPT_BYTES {
        last.store(bytes, &out[start..]);
    }
}

/// Appends the response and counts it. Returns true if the response is the result of the call, and false if it reports
/// a failure.
fn complete(frame: &BoltFrame<'_>, server: &BoltServer, out: &mut Vec<u8>) -> bool {
    let is_answered = match server.draw_failure() {
        None => answers::write_answer(frame, out),
        Some(share) => {
            answers::write_requested_failure(frame, share, out);
            false
        }
    };
    let counter = if is_answered {
        &server.counters.answered
    } else {
        &server.counters.failed
    };
    counter.fetch_add(1, Ordering::Relaxed);
    is_answered
}

#[cfg(test)]
mod tests {
    use super::super::super::frame::FrameLayout;
    use super::*;

    #[test]
    fn cached_response_equals_computed_response() {
        for form in [FrameLayout::V1, FrameLayout::V2, FrameLayout::V2_CRC] {
            let request = |id, content| BoltFrame {
                layout: form,
                command: BoltCommand::RpcRequest,
                class: b"java.lang.String",
                content,
                ..BoltFrame::heartbeat(form, id)
            };
            let wire = |frame: &BoltFrame<'_>| {
                let mut out = Vec::new();
                frame.write(&mut out);
                out
            };
            let made = |frame: &BoltFrame<'_>| {
                let mut out = b"before".to_vec();
                assert!(answers::write_answer(frame, &mut out));
                out
            };
            let mut last = AnswerCache::default();
            let first = request(1, &b"\x01a"[..]);
            let mut out = b"before".to_vec();
            assert!(!last.write_if_repeated(&first, &wire(&first), &mut out));
            last.store(&wire(&first), &made(&first)[6..]);
            let again = request(0xfedc_ba98, &b"\x01a"[..]);
            // A checksum covers the id, so such responses are not cached.
            let is_ready = form != FrameLayout::V2_CRC;
            assert_eq!(
                last.write_if_repeated(&again, &wire(&again), &mut out),
                is_ready
            );
            if is_ready {
                assert_eq!(out, made(&again));
            }
            let other = request(1, &b"\x01b"[..]);
            let timeout = BoltFrameKind::Request { timeout: 7 };
            let later = BoltFrame {
                kind: timeout,
                ..first
            };
            for other in [other, later] {
                assert!(!last.write_if_repeated(&other, &wire(&other), &mut out));
            }
        }
    }
}
