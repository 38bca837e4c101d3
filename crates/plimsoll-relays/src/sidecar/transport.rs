//! A socket with its TLS session and buffers. Callers read and write plaintext.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use plimsoll_engine::tls::certificate_expiry;
use rustls::HandshakeKind;

/// Capacity in bytes above which a buffer is freed when it becomes empty.
const MAX_EMPTY_BUFFER_BYTES: usize = 16 << 10;

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    Bytes,
    /// The peer will send nothing more.
    End,
}

pub(super) struct Transport {
    pub(super) socket: TcpStream,
    tls: Option<Box<rustls::Connection>>,
    /// Received plaintext that was not consumed yet.
    pub(super) input: Vec<u8>,
    /// Plaintext to be sent.
    pub(super) out: Vec<u8>,
    written: usize,
}

impl Transport {
    pub(super) fn new(socket: TcpStream, tls: Option<rustls::Connection>) -> Transport {
        let tls = tls.map(|mut session| {
            session.set_buffer_limit(None);
            Box::new(session)
        });
        Transport {
            socket,
            tls,
            input: Vec::new(),
            out: Vec::new(),
            written: 0,
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls
            .as_ref()
            .is_some_and(|session| session.is_handshaking())
    }

    /// Returns the number of bytes that wait to be sent, without those inside the TLS session.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.out.len() - self.written
    }

    /// Returns whether unsent data waits for the socket to become writable.
    pub(super) fn wants_write(&self) -> bool {
        match &self.tls {
            None => self.unsent_bytes() > 0,
            Some(session) => {
                session.wants_write() || (!session.is_handshaking() && self.unsent_bytes() > 0)
            }
        }
    }

    /// Reads once and appends the plaintext to `input`.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<ReadResult> {
        let got = match self.socket.read(buffer) {
            Ok(0) => return Ok(ReadResult::End),
            Ok(got) => got,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(ReadResult::Bytes);
            }
            Err(e) => return Err(e),
        };
        let Some(session) = &mut self.tls else {
            self.input.extend_from_slice(&buffer[..got]);
            return Ok(ReadResult::Bytes);
        };
        let mut records = &buffer[..got];
        while !records.is_empty() {
            if session.read_tls(&mut records)? == 0 {
                break;
            }
            let was_handshaking = session.is_handshaking();
            let state = session.process_new_packets().map_err(tls_io_error)?;
            if was_handshaking && session.handshake_kind() == Some(HandshakeKind::Resumed) {
                // In a resumed session, rustls does not check the certificates of the original session again, so their
                // expiry is checked here.
                let shown = session.peer_certificates().unwrap_or_default();
                certificate_expiry::check_not_expired(shown.iter().map(AsRef::as_ref))
                    .map_err(tls_io_error)?;
            }
            let plain = state.plaintext_bytes_to_read();
            if plain > 0 {
                let start = self.input.len();
                self.input.resize(start + plain, 0);
                session.reader().read_exact(&mut self.input[start..])?;
            }
            if state.peer_has_closed() {
                return Ok(ReadResult::End);
            }
        }
        Ok(ReadResult::Bytes)
    }

    /// Removes `taken` bytes from the front of the input.
    pub(super) fn consume(&mut self, taken: usize) {
        self.input.drain(..taken);
        if self.input.is_empty() && self.input.capacity() > MAX_EMPTY_BUFFER_BYTES {
            self.input = Vec::new();
        }
    }

    /// Sends as much as the socket accepts now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None => {
                while self.written < self.out.len() {
                    match self.socket.write(&self.out[self.written..]) {
                        Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                        Ok(n) => self.written += n,
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                            // Frees the written part of the buffer even if output remains.
                            if self.written > self.out.len() / 2 {
                                self.out.drain(..self.written);
                                self.written = 0;
                            }
                            return Ok(());
                        }
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(e),
                    }
                }
            }
            Some(session) => loop {
                while session.wants_write() {
                    match session.write_tls(&mut self.socket) {
                        Ok(_) => {}
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(e),
                    }
                }
                if session.is_handshaking() || self.out.is_empty() {
                    return Ok(());
                }
                session.writer().write_all(&self.out)?;
                clear_buffer(&mut self.out, &mut self.written);
            },
        }
        clear_buffer(&mut self.out, &mut self.written);
        Ok(())
    }

    /// Ends the sending direction after all output was sent.
    pub(super) fn finish_sending(&mut self) {
        if let Some(session) = &mut self.tls {
            session.send_close_notify();
            let _ = session.write_tls(&mut self.socket);
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}

fn tls_io_error(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Returns the TLS error inside an error of [`Transport::read`]; `None` if the socket failed.
pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn clear_buffer(out: &mut Vec<u8>, written: &mut usize) {
    *written = 0;
    if out.capacity() > MAX_EMPTY_BUFFER_BYTES {
        *out = Vec::new();
    } else {
        out.clear();
    }
}
