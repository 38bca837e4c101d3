//! One connection of the file server: reads requests and writes responses until one side closes.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_wire::http1::{BodyFraming, FieldStorage, RequestHead, append_response_head};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use plimsoll_serving::tls_server::early_data::ServerStream;

use super::FileCounters;
use super::content::{ContentBody, ServedFolder};

/// Maximum size of the head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// The maximum size of a response whose head and body are written together, in bytes: the content of one TLS record
/// (RFC 8446 §5.1).
const MAX_RECORD_BYTES: usize = 16 * 1024;
/// How long a client may take to close its side.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

struct FileRequest {
    path: String,
    /// Whether the method is neither GET nor HEAD.
    has_wrong_method: bool,
    /// Whether the request is early data that may be a replay, and its method is not GET (RFC 8470 §5.2).
    is_too_early: bool,
    is_head: bool,
    keeps_alive: bool,
}

pub(super) async fn serve<I>(
    mut io: I,
    content: &ServedFolder,
    counters: &FileCounters,
    mut stop: watch::Receiver<()>,
) -> io::Result<()>
where
    I: ServerStream,
{
    let mut input = Vec::with_capacity(1024);
    let mut output = Vec::with_capacity(1024);
    loop {
        let mut request = loop {
            match parse_request(&input) {
                Err(()) => {
                    counters.refused.fetch_add(1, Ordering::Relaxed);
                    let fields = [("Content-Length", "0"), ("Connection", "close")];
                    output.clear();
                    append_response_head(&mut output, 400, &fields);
                    let _ = io.write_all(&output).await;
                    let _ = io.shutdown().await;
                    return Err(io::Error::other("not a request that this server supports"));
                }
                Ok(Some((length, asked))) => {
                    input.drain(..length);
                    break asked;
                }
                Ok(None) => {}
            }
            let read = tokio::select! {
                read = io.read_buf(&mut input) => read,
                _ = stop.changed() => {
                    let _ = io.shutdown().await;
                    return Ok(());
                }
            };
            match read {
                // A client that closes the connection between requests has finished; this is not an error.
                Ok(0) if input.is_empty() => {
                    let _ = io.shutdown().await;
                    return Ok(());
                }
                Err(e) if input.is_empty() && e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(());
                }
                Ok(0) => {
                    return Err(io::Error::other(
                        "the client closed the connection in the middle of a request",
                    ));
                }
                Err(e) => return Err(io::Error::other(e)),
                Ok(_) => {}
            }
        };
        if io.is_early_data() {
            counters.early_requests.fetch_add(1, Ordering::Relaxed);
            request.is_too_early = request.has_wrong_method || request.is_head;
        }
        output.clear();
        write_response(&mut io, &request, content, counters, &mut output).await?;
        if !request.keeps_alive {
            let _ = io.shutdown().await;
            // Reads the remaining bytes first: closing with unread bytes would send RST, and the response could be
            // lost.
            let drained = async { while let Ok(1..) = io.read(&mut [0; 256]).await {} };
            let _ = tokio::time::timeout(LINGER_TIMEOUT, drained).await;
            return Ok(());
        }
    }
}

/// Parses a complete request at the beginning of `input`, and returns it with its length.
fn parse_request(input: &[u8]) -> Result<Option<(usize, FileRequest)>, ()> {
    let mut space = FieldStorage::new();
    let head = RequestHead::parse(input, MAX_HEAD_BYTES, &mut space).map_err(|_| ())?;
    let Some(head) = head else {
        return Ok(None);
    };
    // This server accepts no requests with bodies.
    if head.body != BodyFraming::Length(0) {
        return Err(());
    }
    let asked = FileRequest {
        path: head.target.to_owned(),
        is_too_early: false,
        has_wrong_method: !matches!(head.method, "GET" | "HEAD"),
        is_head: head.method == "HEAD",
        keeps_alive: !head.closes,
    };
    Ok(Some((head.size, asked)))
}

async fn write_response<I: AsyncWrite + Unpin>(
    io: &mut I,
    asked: &FileRequest,
    content: &ServedFolder,
    counters: &FileCounters,
    output: &mut Vec<u8>,
) -> io::Result<()> {
    let body = if asked.has_wrong_method || asked.is_too_early {
        None
    } else {
        content.find(&asked.path)
    };
    let (status, mut body) = match body {
        Some(body) => (200, body),
        None if asked.is_too_early => (425, ContentBody::new_generated(0)),
        None if asked.has_wrong_method => (405, ContentBody::new_generated(0)),
        None => (404, ContentBody::new_generated(0)),
    };
    let count = if status == 200 {
        &counters.served
    } else {
        &counters.refused
    };
    count.fetch_add(1, Ordering::Relaxed);
    let connection = if asked.keeps_alive {
        "keep-alive"
    } else {
        "close"
    };
    let fields = [
        ("Content-Length", &*body.length().to_string()),
        ("Content-Type", "application/octet-stream"),
        ("Connection", connection),
    ];
    append_response_head(output, status, &fields);
    if asked.is_head {
        io.write_all(output).await?;
        return io.flush().await;
    }
    counters.bytes.fetch_add(body.length(), Ordering::Relaxed);
    let with_head = MAX_RECORD_BYTES.saturating_sub(output.len());
    output.extend_from_slice(body.next(with_head)?);
    io.write_all(output).await?;
    loop {
        let block = body.next(usize::MAX)?;
        if block.is_empty() {
            return io.flush().await;
        }
        io.write_all(block).await?;
    }
}
