//! The interface of scripts to one connection of the hostile server.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, Stream};
use socket2::SockRef;

/// The longest time that a script waits for its client, or keeps its client waiting.
pub const MAX_WAIT: Duration = Duration::from_secs(30);

/// The maximum number of bytes that a flood sends over a connection.
pub const MAX_FLOOD_BYTES: usize = 256 << 20;

/// Maximum size of a request that a script reads, in bytes.
const MAX_REQUEST_BYTES: usize = 1 << 20;

/// State that the connections of one misbehaving server share: the number of chat sessions created, and the sessions
/// whose run (the answer to a query) has begun.
#[derive(Debug, Default)]
pub(super) struct StartedRuns {
    session_count: AtomicU64,
    started: Mutex<BTreeSet<String>>,
    changed: Condvar,
}

/// The maximum number of sessions whose runs are remembered.
const MAX_REMEMBERED_RUNS: usize = 1 << 16;

/// The server's end of one connection, through which a script sends, receives and closes.
pub struct ScriptTransport {
    stream: TcpStream,
    /// The TLS state; `None` until [`ScriptTransport::complete_handshake`] has set it up.
    tls: Option<Box<ServerConnection>>,
    config: Option<Arc<ServerConfig>>,
    /// Bytes that were received and that the script has not read yet.
    input: Vec<u8>,
    is_reset: bool,
    runs: Arc<StartedRuns>,
    /// Reads a complete request, and returns its id.
    request: fn(&mut ScriptTransport) -> io::Result<u32>,
    /// The id of the last request, or 0.
    pub(super) request_id: u32,
}

impl ScriptTransport {
    pub(super) fn new(
        stream: TcpStream,
        request: fn(&mut ScriptTransport) -> io::Result<u32>,
        config: Option<Arc<ServerConfig>>,
        runs: Arc<StartedRuns>,
    ) -> io::Result<ScriptTransport> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(MAX_WAIT))?;
        stream.set_write_timeout(Some(MAX_WAIT))?;
        Ok(ScriptTransport {
            stream,
            tls: None,
            config,
            input: Vec::new(),
            is_reset: false,
            runs,
            request,
            request_id: 0,
        })
    }

    /// Completes a correct TLS handshake; all bytes after it are encrypted.
    ///
    /// # Errors
    /// When the handshake fails, or the server has no certificate.
    pub(super) fn complete_handshake(&mut self) -> io::Result<()> {
        let config = self
            .config
            .clone()
            .ok_or_else(|| io::Error::other("this behaviour needs a certificate"))?;
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut self.stream)?;
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Sends bytes, encrypted if the connection uses TLS.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            return self.stream.write_all(bytes);
        };
        tls.writer().write_all(bytes)?;
        while tls.wants_write() {
            tls.write_tls(&mut self.stream)?;
        }
        Ok(())
    }

    /// Sends the bytes that the closure appends.
    pub(super) fn write(&mut self, bytes: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut out = Vec::new();
        bytes(&mut out);
        self.send(&out)
    }

    /// Sends bytes unencrypted, bypassing TLS.
    pub(super) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends close_notify, and leaves the connection open.
    pub(super) fn close_notify(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            while tls.wants_write() {
                tls.write_tls(&mut self.stream)?;
            }
        }
        Ok(())
    }

    /// Sends one byte per millisecond.
    pub(super) fn drip(&mut self, bytes: &[u8]) -> io::Result<()> {
        for byte in bytes {
            self.send(&[*byte])?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Sends the same bytes repeatedly, up to [`MAX_FLOOD_BYTES`], and then nothing more, so the outcome does not
    /// depend on how fast the client reads. Does not read meanwhile. Also succeeds if the client stops reading or
    /// disconnects.
    pub(super) fn flood(&mut self, bytes: &[u8]) -> io::Result<()> {
        let block = bytes.repeat((64 << 10) / bytes.len().max(1) + 1);
        let mut sent = 0;
        while sent < MAX_FLOOD_BYTES {
            if self.send(&block).is_err() {
                return Ok(());
            }
            sent += block.len();
        }
        self.wait_for_close()
    }

    /// Reads more bytes into the input buffer.
    fn fill_input(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        let n = match &mut self.tls {
            None => self.stream.read(&mut buffer)?,
            Some(tls) => Stream::new(&mut **tls, &mut self.stream).read(&mut buffer)?,
        };
        if n == 0 || self.input.len() > MAX_REQUEST_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.input.extend_from_slice(&buffer[..n]);
        Ok(())
    }

    /// Reads exactly `n` bytes from the client.
    pub(super) fn read_exact(&mut self, n: usize) -> io::Result<Vec<u8>> {
        while self.input.len() < n {
            self.fill_input()?;
        }
        Ok(self.input.drain(..n).collect())
    }

    /// Reads a complete request, and stores its id.
    pub(super) fn read_request(&mut self) -> io::Result<()> {
        self.request_id = (self.request)(self)?;
        Ok(())
    }

    /// Reads bytes up to and including `end`.
    pub(super) fn read_until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.input.windows(end.len()).position(|w| w == end) {
                return Ok(self.input.drain(..at + end.len()).collect());
            }
            self.fill_input()?;
        }
    }

    /// Reads and discards until the client closes, or for [`MAX_WAIT`].
    pub(super) fn wait_for_close(&mut self) -> io::Result<()> {
        self.input.clear();
        while self.fill_input().is_ok() {
            self.input.clear();
        }
        Ok(())
    }

    /// Neither reads nor writes until the client disconnects, or for [`MAX_WAIT`].
    pub(super) fn ignore_client(&mut self) -> io::Result<()> {
        let mut byte = [0];
        // Peeks at the socket, which shows that the client has disconnected and leaves the client's bytes unread.
        for _ in 0..MAX_WAIT.as_millis() / 20 {
            std::thread::sleep(Duration::from_millis(20));
            if matches!(self.stream.take_error(), Ok(Some(_)) | Err(_)) {
                break;
            }
            self.stream.set_nonblocking(true)?;
            let seen = self.stream.peek(&mut byte);
            self.stream.set_nonblocking(false)?;
            if matches!(seen, Ok(0)) {
                break;
            }
        }
        Ok(())
    }

    /// Returns an id for a new chat session, unique among the connections of one misbehaving server.
    pub(super) fn new_session_id(&self) -> String {
        format!(
            "hostile-{}",
            self.runs.session_count.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// Records that a session's run (the answer to a query) has begun, and wakes the thread that waits for it in
    /// [`ScriptTransport::wait_for_run`].
    pub(super) fn begin_run(&self, session: &str) {
        let mut begun = self
            .runs
            .started
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if begun.len() >= MAX_REMEMBERED_RUNS {
            begun.clear();
        }
        begun.insert(session.to_owned());
        self.runs.changed.notify_all();
    }

    /// Waits until the session's run has begun on any connection, or for [`MAX_WAIT`].
    pub(super) fn wait_for_run(&self, session: &str) {
        let begun = self
            .runs
            .started
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let _ = self
            .runs
            .changed
            .wait_timeout_while(begun, MAX_WAIT, |begun| !begun.contains(session));
    }

    /// Closes the sending side, and continues to read.
    pub(super) fn half_close(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        self.wait_for_close()
    }

    /// Makes the connection end with RST.
    pub(super) fn reset(&mut self) -> io::Result<()> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
        self.is_reset = true;
        Ok(())
    }

    /// Closes the connection so that all sent bytes arrive, even if the client is still sending.
    pub(super) fn close(mut self) {
        if self.is_reset || self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        // Unread bytes would turn the close into RST. A client that never closes is abandoned.
        let _ = self.stream.set_read_timeout(Some(Duration::from_secs(1)));
        self.tls = None;
        let _ = self.wait_for_close();
    }
}
