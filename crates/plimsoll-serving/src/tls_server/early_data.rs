//! The server's side of a TLS connection whose client may send its first request before the handshake is complete
//! (0-RTT, RFC 8446 §2.3), and may also receive the response before then.
//!
//! Such a request may be a replay (RFC 8446 §8): a server must check [`ServerStream::is_early_data`] and answer early
//! only those requests that are safe to repeat. The session store accepts every ticket once, so early data under a
//! replayed ticket is never accepted here.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

/// A byte stream that a server reads requests from and writes responses to.
pub trait ServerStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Returns whether the bytes read last were early data, which may be a replay.
    fn is_early_data(&self) -> bool {
        false
    }
}

impl ServerStream for TcpStream {}
impl ServerStream for TlsStream<TcpStream> {}

/// A server-side TLS stream that delivers early data before the handshake is complete.
pub struct EarlyDataStream {
    tcp: TcpStream,
    tls: ServerConnection,
    /// Early data that has been decrypted and not yet read.
    early_data: Vec<u8>,
    came_early: bool,
    closing: bool,
    /// Fires when the client has not completed its handshake in time.
    handshake_timeout: Pin<Box<Sleep>>,
}

impl EarlyDataStream {
    /// Begins a handshake that has to complete, or deliver early data, within `limit`.
    ///
    /// # Errors
    /// When the TLS library rejects `config`.
    pub fn new(
        tcp: TcpStream,
        config: Arc<ServerConfig>,
        limit: Duration,
    ) -> Result<EarlyDataStream, rustls::Error> {
        Ok(EarlyDataStream {
            tcp,
            tls: ServerConnection::new(config)?,
            early_data: Vec::new(),
            came_early: false,
            closing: false,
            handshake_timeout: Box::pin(tokio::time::sleep(limit)),
        })
    }

    /// Waits until the handshake is complete or early data has arrived.
    ///
    /// # Errors
    /// When the handshake fails, or takes too long.
    pub async fn wait_until_ready(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// Returns the TLS state.
    pub fn session(&self) -> &ServerConnection {
        &self.tls
    }

    /// Returns the socket, to be closed without TLS.
    pub fn into_tcp(self) -> TcpStream {
        self.tcp
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Poll::Ready(Err(e)) = self.poll_write_tls(cx) {
                return Poll::Ready(Err(e));
            }
            if !self.tls.is_handshaking() || !self.early_data.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if self.handshake_timeout.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            ready!(self.poll_read_tls(cx))?;
        }
    }

    /// Reads and decrypts data that the client has sent.
    fn poll_read_tls(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.tcp.poll_read_ready(cx))?;
            match self.tls.read_tls(&mut NonblockingSocket(&self.tcp)) {
                Ok(0) if self.tls.is_handshaking() => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        if let Err(e) = self.tls.process_new_packets() {
            // Tries to send the alert that explains the error.
            let _ = self.poll_write_tls(cx);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, e)));
        }
        if let Some(mut early) = self.tls.early_data() {
            early.read_to_end(&mut self.early_data)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes pending TLS records to the socket.
    fn poll_write_tls(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut NonblockingSocket(&self.tcp)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.tcp.poll_write_ready(cx))?;
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl ServerStream for EarlyDataStream {
    fn is_early_data(&self) -> bool {
        self.came_early
    }
}

impl AsyncRead for EarlyDataStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.early_data.is_empty() {
                let n = this.early_data.len().min(buffer.remaining());
                buffer.put_slice(&this.early_data[..n]);
                this.early_data.drain(..n);
                this.came_early = true;
                return Poll::Ready(Ok(()));
            }
            match this.tls.reader().read(buffer.initialize_unfilled()) {
                Ok(n) => {
                    buffer.advance(n);
                    this.came_early = false;
                    return Poll::Ready(Ok(()));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
            if let Poll::Ready(Err(e)) = this.poll_write_tls(cx) {
                return Poll::Ready(Err(e));
            }
            ready!(this.poll_read_tls(cx))?;
        }
    }
}

impl AsyncWrite for EarlyDataStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            let n = this.tls.writer().write(bytes)?;
            let drained = this.poll_write_tls(cx)?;
            if n > 0 || bytes.is_empty() {
                return Poll::Ready(Ok(n));
            }
            ready!(drained);
            // A client that has to present a certificate gets its response only after presenting it.
            if this.tls.is_handshaking() {
                ready!(this.poll_read_tls(cx))?;
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_write_tls(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Tickets are sent after the client's Finished message. If the connection were closed before, the client would
        // have no ticket, and its next handshake would be a full one.
        while this.tls.is_handshaking()
            && !this.closing
            && this.handshake_timeout.as_mut().poll(cx).is_pending()
        {
            ready!(this.poll_write_tls(cx))?;
            ready!(this.poll_read_tls(cx))?;
        }
        if !this.closing {
            this.closing = true;
            this.tls.send_close_notify();
        }
        ready!(this.poll_write_tls(cx))?;
        Pin::new(&mut this.tcp).poll_shutdown(cx)
    }
}

/// An adapter through which the TLS library reads and writes the socket without blocking.
struct NonblockingSocket<'a>(&'a TcpStream);

impl Read for NonblockingSocket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for NonblockingSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
