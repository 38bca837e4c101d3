//! A client's connection: TCP, or TLS over TCP. It needs no task in addition to the session's, and no buffer while
//! idle.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use plimsoll_serving::ServerStream;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::CLOSE_TIMEOUT;

pub(super) const READ_BUFFER_BYTES: usize = 16 * 1024;

thread_local! {
    /// A read buffer shared by all sessions of a thread; its contents are consumed before the task
    /// yields.
    pub(super) static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BUFFER_BYTES]);
}

/// Bytes of plaintext that TLS buffers while the socket is full: one record.
const MAX_TLS_BUFFER_BYTES: usize = 16 * 1024;

pub(super) type ClientStream = Box<dyn ServerStream>;

/// Performs the TLS handshake, if TLS is configured.
///
/// # Errors
/// When the handshake fails, or the client closes the connection.
pub(super) async fn accept_tls(
    tcp: TcpStream,
    config: Option<&Arc<ServerConfig>>,
) -> io::Result<ClientStream> {
    // The error is ignored, because a socket on which this fails is about to fail anyway.
    let _ = tcp.set_nodelay(true);
    let Some(config) = config else {
        return Ok(Box::new(tcp));
    };
    let mut stream = TlsAcceptor::from(Arc::clone(config)).accept(tcp).await?;
    stream
        .get_mut()
        .1
        .set_buffer_limit(Some(MAX_TLS_BUFFER_BYTES));
    Ok(Box::new(stream))
}

/// Reads at most `most` bytes into the thread's buffer, where they stay valid until the task
/// yields.
pub(super) fn poll_read(
    stream: &mut ClientStream,
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
pub(super) async fn send(stream: &mut ClientStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Sends `last`, shuts down the write side and reads until the peer closes: closing a socket with
/// unread bytes would reset the connection and might lose our Close.
pub(super) async fn shutdown_and_drain(stream: &mut ClientStream, last: &[u8]) {
    let closing = async {
        send(stream, last).await?;
        stream.shutdown().await?;
        while poll_fn(|cx| poll_read(stream, cx, READ_BUFFER_BYTES)).await? > 0 {}
        Ok(())
    };
    let _: Result<io::Result<()>, _> = timeout(CLOSE_TIMEOUT, closing).await;
}
