//! A client's connection: TCP, or TLS over it, without a task or buffer of its own while idle.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use plimsoll_protocols::serving::Link;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::GOODBYE_LIMIT;

pub(super) const READ_AT_ONCE: usize = 16 * 1024;

thread_local! {
    /// A read buffer shared by all sessions of a thread; its contents are consumed before the task
    /// yields.
    pub(super) static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_AT_ONCE]);
}

/// Bytes of plaintext that TLS buffers while the socket is full: one record.
const TLS_BUFFER_LIMIT: usize = 16 * 1024;

pub(super) type Stream = Box<dyn Link>;

/// Performs the TLS handshake, if TLS is configured.
///
/// # Errors
/// The handshake fails, or the client closes the connection.
pub(super) async fn secure(
    tcp: TcpStream,
    config: Option<&Arc<ServerConfig>>,
) -> io::Result<Stream> {
    // A socket on which this fails is about to fail anyway.
    let _ = tcp.set_nodelay(true);
    let Some(config) = config else {
        return Ok(Box::new(tcp));
    };
    let mut stream = TlsAcceptor::from(Arc::clone(config)).accept(tcp).await?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_LIMIT));
    Ok(Box::new(stream))
}

/// Reads at most `most` bytes into the thread's buffer, where they stay valid until the task
/// yields.
pub(super) fn poll_read(
    stream: &mut Stream,
    cx: &mut Context<'_>,
    most: usize,
) -> Poll<io::Result<usize>> {
    READ_BUFFER.with_borrow_mut(|buffer| {
        let mut room = ReadBuf::new(&mut buffer[..most]);
        ready!(Pin::new(stream).poll_read(cx, &mut room))?;
        Poll::Ready(Ok(room.filled().len()))
    })
}

/// Writes all bytes and flushes them to the socket.
pub(super) async fn send(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Sends `last`, shuts down the write side and reads until the peer closes: closing a socket with
/// unread bytes would reset the connection and might lose our Close.
pub(super) async fn farewell(stream: &mut Stream, last: &[u8]) {
    let farewell = async {
        send(stream, last).await?;
        stream.shutdown().await?;
        while poll_fn(|cx| poll_read(stream, cx, READ_AT_ONCE)).await? > 0 {}
        Ok(())
    };
    let _: Result<io::Result<()>, _> = timeout(GOODBYE_LIMIT, farewell).await;
}
