//! A client's connection: TCP, or TLS over it, without a task or a buffer of its own
//! while nothing is under way over plain TCP.
//!
//! Reading and writing never wait; a caller that would have to gets `WouldBlock` and sleeps
//! until the socket is ready. A TLS session is driven here, so that one loop serves both.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::{ServerConfig, ServerConnection};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::GOODBYE_LIMIT;

pub(super) const READ_AT_ONCE: usize = 16 * 1024;

thread_local! {
    /// One read buffer for all sessions of a thread: nothing is kept in it.
    pub(super) static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_AT_ONCE]);
}

/// Plaintext sealed at once: a record's worth.
const RECORD: usize = 16 * 1024;

pub(super) struct Stream {
    tcp: TcpStream,
    tls: Option<Box<Tls>>,
}

struct Tls {
    session: ServerConnection,
    /// The session may hold plaintext that was not read yet.
    unread: bool,
}

/// A socket as the TLS library wants to see it.
struct Records<'a>(&'a TcpStream);

impl Read for Records<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Records<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Tls {
    /// Takes what the socket has; 0: its end.
    fn take(&mut self, tcp: &TcpStream) -> io::Result<usize> {
        let got = self.session.read_tls(&mut Records(tcp))?;
        if let Err(e) = self.session.process_new_packets() {
            // The alert, as far as that takes no waiting.
            let _ = self.flush(tcp);
            return Err(io::Error::new(io::ErrorKind::InvalidData, e));
        }
        Ok(got)
    }

    /// Writes what is sealed, as far as the socket takes it.
    fn flush(&mut self, tcp: &TcpStream) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Records(tcp)) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn read(&mut self, tcp: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Ok(n) => {
                    self.unread = n == buffer.len();
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.unread = false,
                // Without a goodbye: the connection was cut off.
                Err(e) => return Err(e),
            }
            let got = self.take(tcp)?;
            // Key updates and the like are answered (RFC 8446 §4.6.3).
            self.flush(tcp)?;
            if got == 0 {
                return Ok(0);
            }
        }
    }

    fn write(&mut self, tcp: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        self.flush(tcp)?;
        if self.session.wants_write() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let sealed = self
            .session
            .writer()
            .write(&bytes[..bytes.len().min(RECORD)])?;
        self.flush(tcp)?;
        Ok(sealed)
    }
}

impl Stream {
    /// Makes the handshake, where there is one.
    ///
    /// # Errors
    /// When it fails, or the client goes away.
    pub(super) async fn accept(
        tcp: TcpStream,
        config: Option<&Arc<ServerConfig>>,
    ) -> io::Result<Stream> {
        // A socket that can't be set so is about to fail anyway.
        let _ = tcp.set_nodelay(true);
        let Some(config) = config else {
            return Ok(Stream { tcp, tls: None });
        };
        let session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        let mut tls = Tls {
            session,
            unread: true,
        };
        loop {
            tls.flush(&tcp)?;
            if tls.session.wants_write() {
                tcp.writable().await?;
            } else if tls.session.is_handshaking() {
                tcp.readable().await?;
                match tls.take(&tcp) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                    _ => {}
                }
            } else {
                let tls = Some(Box::new(tls));
                return Ok(Stream { tcp, tls });
            }
        }
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.tls.as_ref().is_some_and(|tls| tls.unread) {
            return Poll::Ready(Ok(()));
        }
        self.tcp.poll_read_ready(cx)
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.poll_write_ready(cx)
    }

    /// `Ok(0)`: the client has ended its side.
    pub(super) fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.tcp.try_read(buffer),
            Some(tls) => tls.read(&self.tcp, buffer),
        }
    }

    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.tcp.try_write(bytes),
            Some(tls) => tls.write(&self.tcp, bytes),
        }
    }

    /// Writes sealed records that wait; true when none does any more.
    pub(super) fn try_flush(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else {
            return Ok(true);
        };
        tls.flush(&self.tcp)?;
        Ok(!tls.session.wants_write())
    }

    /// Waits for something to read; the buffer may be another one at each call.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.try_read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.tcp.poll_read_ready(cx))?;
                }
                done => return Poll::Ready(done),
            }
        }
    }

    pub(super) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, buffer)).await
    }

    pub(super) async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.tcp.writable().await?,
                Err(e) => return Err(e),
            }
        }
        while !self.try_flush()? {
            self.tcp.writable().await?;
        }
        Ok(())
    }

    /// Sends what is last, ends our side, and reads to the end: closing with bytes unread would reset
    /// the connection, and the client might lose our Close.
    pub(super) async fn farewell(&mut self, last: &[u8]) {
        let farewell = async {
            self.write_all(last).await?;
            self.shutdown().await?;
            while poll_fn(|cx| READ_BUFFER.with_borrow_mut(|buffer| self.poll_read(cx, buffer)))
                .await?
                > 0
            {}
            Ok(())
        };
        let _: Result<io::Result<()>, _> = timeout(GOODBYE_LIMIT, farewell).await;
    }

    /// Ends our side.
    pub(super) async fn shutdown(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.session.send_close_notify();
        }
        while !self.try_flush()? {
            self.tcp.writable().await?;
        }
        rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Write)?;
        Ok(())
    }
}
