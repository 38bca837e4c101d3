//! One connection of the event loop: reads from its socket, passes the bytes to the service, and writes the
//! responses.

use std::io::{self, IoSlice, Write as _};
use std::mem;
use std::net::{Shutdown, TcpStream};

use plimsoll_engine::tls::{ServerSession, SharedHandshakeTally};
use plimsoll_engine::transport::network::os::OsNetwork;
use plimsoll_engine::transport::network::{Network, SocketWriter};
use plimsoll_model::Time;

use super::service::{ArrivalTimes, LoopService};

/// The size of the read buffer, in bytes.
const READ_BUFFER_BYTES: usize = 128 * 1024;

/// Buffers of the loop, which the connection that is being served borrows.
pub(super) struct LoopBuffers {
    pub(super) read: Vec<u8>,
    pub(super) out: Vec<u8>,
}

impl LoopBuffers {
    pub(super) fn new() -> LoopBuffers {
        LoopBuffers {
            read: vec![0; READ_BUFFER_BYTES],
            out: Vec::new(),
        }
    }
}

/// One client's connection. There may be thousands of idle connections, so the size of this type matters.
pub(super) struct LoopConnection<S: LoopService> {
    pub(super) socket: TcpStream,
    pub(super) generation: u32,
    pub(super) transport: LoopTransport,
    /// The service's state. Over TLS, [`LoopService::on_open`] is called once the handshake is complete.
    pub(super) state: S::Connection,
}

pub(super) enum LoopTransport {
    /// Plaintext, with the bytes that the socket did not accept. There rarely are any.
    #[expect(clippy::box_collection, reason = "it takes one word while empty")]
    Plain(Option<Box<Vec<u8>>>),
    Tls(ServerSession),
    /// The client was sent an alert; the connection is closed when the client closes, or after a short time.
    /// Closing with unread bytes would send RST, and the alert could be lost.
    Lingering,
}

/// The result of serving a ready connection.
pub(super) enum ServeOutcome {
    /// All bytes that arrived are answered and the responses written, or the socket is full.
    Waiting,
    /// A handshake failed, and the client was sent an alert.
    Refused,
    /// The client closed during its handshake.
    Abandoned,
    Closed,
    Broken(String),
}

impl<S: LoopService> LoopConnection<S> {
    /// Returns whether the connection has a deadline: its handshake is not complete, or it is about to be closed.
    pub(super) fn has_deadline(&self) -> bool {
        match &self.transport {
            LoopTransport::Plain(_) => false,
            LoopTransport::Tls(session) => session.is_handshaking(),
            LoopTransport::Lingering => true,
        }
    }

    /// Reads and answers until the socket is empty or full. All bytes that are read arrived after `empty_at`.
    pub(super) fn serve(
        &mut self,
        (network, buffers): (&mut OsNetwork, &mut LoopBuffers),
        service: &S,
        handshakes: &SharedHandshakeTally,
        empty_at: Time,
    ) -> ServeOutcome {
        let mut emptied = false;
        loop {
            match self.flush(network) {
                Ok(true) => {}
                Ok(false) => return ServeOutcome::Waiting,
                Err(e) => return ServeOutcome::Broken(format!("writing: {e}")),
            }
            let LoopBuffers { read, out } = &mut *buffers;
            out.clear();
            if service.append_next_part(&mut self.state, out) {
                if let Err(e) = self.write(network, out) {
                    return ServeOutcome::Broken(format!("writing: {e}"));
                }
                continue;
            }
            if emptied {
                return ServeOutcome::Waiting;
            }
            let got = match network.read(&mut self.socket, read) {
                Ok(0) => return self.on_stream_end(),
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if S::IS_MOSTLY_IDLE
                        && let LoopTransport::Tls(session) = &mut self.transport
                    {
                        session.start_resting();
                    }
                    return ServeOutcome::Waiting;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return ServeOutcome::Broken(format!("reading: {e}")),
            };
            // A read that does not fill the buffer has emptied the socket, and more bytes raise another event.
            emptied = got < read.len() && !S::IS_MOSTLY_IDLE;
            let bytes = &mut read[..got];
            let served = &mut self.state;
            if network.has_receive_times() {
                let received = network.last_receive_time();
                let last = received.map_or_else(|| network.now(), |received| received.earliest);
                let earliest = empty_at.min(last);
                service.on_arrival(served, ArrivalTimes { last, earliest });
            }
            let understood = match &mut self.transport {
                LoopTransport::Plain(_) => service.receive(served, bytes, out),
                LoopTransport::Tls(session) => {
                    let handshaking = session.is_handshaking();
                    let mut opened = !handshaking;
                    let mut understood = Ok(());
                    let received = session.receive(bytes, &mut |plain| {
                        if !mem::replace(&mut opened, true) {
                            service.on_open(served, out);
                        }
                        if understood.is_ok() {
                            understood = service.receive(served, plain, out);
                        }
                    });
                    if handshaking && !session.is_handshaking() {
                        if !opened {
                            service.on_open(served, out);
                        }
                        if let Some(agreement) = session.negotiated_parameters() {
                            handshakes.add(agreement);
                            service.on_handshake_done(agreement);
                        }
                    }
                    match received {
                        Ok(false) => understood,
                        Ok(true) => {
                            let _ = self.write(network, out);
                            self.send_close_notify(network);
                            return ServeOutcome::Closed;
                        }
                        Err(e) => return self.send_alert(network, handshaking, &e.to_string()),
                    }
                }
                LoopTransport::Lingering => continue,
            };
            let written = self.write(network, out);
            if let Err(why) = understood {
                let _ = self.flush(network);
                return ServeOutcome::Broken(why);
            }
            if let Err(e) = written {
                return ServeOutcome::Broken(format!("writing: {e}"));
            }
        }
    }

    /// Sends the alert that explains the error, then waits for the client to close.
    fn send_alert(
        &mut self,
        network: &mut OsNetwork,
        handshaking: bool,
        why: &str,
    ) -> ServeOutcome {
        let _ = self.flush(network);
        if !handshaking {
            return ServeOutcome::Broken(why.to_owned());
        }
        tracing::debug!("{why}");
        let _ = self.socket.shutdown(Shutdown::Write);
        self.transport = LoopTransport::Lingering;
        ServeOutcome::Refused
    }

    /// Handles the end of the client's stream.
    fn on_stream_end(&self) -> ServeOutcome {
        match &self.transport {
            LoopTransport::Tls(session) if session.is_handshaking() => ServeOutcome::Abandoned,
            // Without close_notify the stream may have been truncated (RFC 8446 §6.1).
            LoopTransport::Tls(_) if S::IS_MOSTLY_IDLE => ServeOutcome::Broken(
                "the client closed the connection without close_notify".to_owned(),
            ),
            _ => ServeOutcome::Closed,
        }
    }

    /// Writes as much as the socket accepts, and keeps the rest; over TLS the records are written by
    /// [`LoopConnection::flush`].
    pub(super) fn write(&mut self, network: &mut OsNetwork, out: &[u8]) -> io::Result<()> {
        let unsent = match &mut self.transport {
            LoopTransport::Plain(unsent) => unsent,
            LoopTransport::Tls(session) if !out.is_empty() => {
                session.seal(out);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let mut rest = out;
        while unsent.is_none() && !rest.is_empty() {
            match network.write(&mut self.socket, &[IoSlice::new(rest)]) {
                Ok(wrote) => rest = &rest[wrote..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if !rest.is_empty() {
            unsent.get_or_insert_default().extend_from_slice(rest);
        }
        Ok(())
    }

    /// Writes pending bytes. Returns true when nothing is left to send.
    pub(super) fn flush(&mut self, network: &mut OsNetwork) -> io::Result<bool> {
        let socket = &mut self.socket;
        let mut writer = SocketWriter { network, socket };
        let flushed = match &mut self.transport {
            LoopTransport::Tls(session) => session.flush(&mut writer),
            LoopTransport::Plain(unsent) => loop {
                let Some(waiting) = unsent.as_mut().filter(|waiting| !waiting.is_empty()) else {
                    *unsent = None;
                    break Ok(());
                };
                match writer.write(waiting) {
                    Ok(wrote) => drop(waiting.drain(..wrote)),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => break Err(e),
                }
            },
            LoopTransport::Lingering => Ok(()),
        };
        match flushed {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            flushed => flushed.map(|()| true),
        }
    }

    /// Sends close_notify over TLS, as far as the socket accepts it.
    pub(super) fn send_close_notify(&mut self, network: &mut OsNetwork) {
        if let LoopTransport::Tls(session) = &mut self.transport {
            session.queue_close_notify();
        }
        let _ = self.flush(network);
    }

    /// Lets the service write its last bytes and closes the sending side, as far as the socket accepts it.
    pub(super) fn shut_down(&mut self, network: &mut OsNetwork, service: &S, out: &mut Vec<u8>) {
        out.clear();
        if !self.has_deadline() {
            service.finish(&mut self.state, out);
        }
        let _ = self.write(network, out);
        self.send_close_notify(network);
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Nothing;

    impl LoopService for Nothing {
        const SERVICE_NAME: &str = "nothing";
        const IS_MOSTLY_IDLE: bool = true;
        type Connection = ();

        fn new_connection(&self) {}

        fn receive(&self, (): &mut (), _bytes: &[u8], _out: &mut Vec<u8>) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn idle_connection_is_small() {
        assert_eq!(size_of::<LoopTransport>(), 16);
        assert_eq!(size_of::<Option<LoopConnection<Nothing>>>(), 24);
    }
}
