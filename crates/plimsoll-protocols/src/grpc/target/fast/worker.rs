//! One thread's loop: wait, read, answer, write.
//!
//! Events are edge-triggered, so a connection is read until it is empty, unless its peer
//! does not take answers: then it is left alone until its socket takes bytes again, and
//! holds at most what one read brought about, and of large answers a bounded part. Where the
//! loop panics, its connections are gone, and it begins anew with those that come.

use std::io::{self, BufRead, Read, Write};
use std::mem;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use plimsoll_engine::poller::{Events, Interest, Poller, Token, Waker};
use plimsoll_engine::{defect, fault};
use plimsoll_wire::http2::ErrorCode;
use rustls::{ServerConfig, ServerConnection};
use tokio::time::Instant;

use super::Counters;
use crate::grpc::canned::{Canned, CannedConnection};

/// Read at once. Bytes.
const READ_BUFFER: usize = 128 * 1024;

/// Where a worker gets its connections. Dropping it ends the worker.
pub(super) struct Mailbox {
    /// Always there until dropped.
    streams: Option<mpsc::Sender<TcpStream>>,
    waker: Waker,
}

impl Mailbox {
    pub(super) fn give(&self, stream: TcpStream) {
        if let Some(streams) = &self.streams {
            // A worker that is gone reports why when it is joined.
            let _ = streams.send(stream);
        }
        self.waker.wake();
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.streams = None;
        self.waker.wake();
    }
}

pub(super) struct Worker {
    poller: Poller,
    mail: mpsc::Receiver<TcpStream>,
    canned: Canned,
    tls: Option<Arc<ServerConfig>>,
    counters: Arc<Counters>,
    busy_poll: Duration,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    buffers: Buffers,
}

/// Lent to the connection being served.
struct Buffers {
    read: Vec<u8>,
    out: Vec<u8>,
    held: Vec<u32>,
}

impl Buffers {
    fn new() -> Buffers {
        Buffers {
            read: vec![0; READ_BUFFER],
            out: Vec::with_capacity(READ_BUFFER),
            held: Vec::new(),
        }
    }
}

struct Connection {
    stream: TcpStream,
    tls: Option<Box<ServerConnection>>,
    canned: CannedConnection,
    /// Answers that the socket would not take (over TLS, the library keeps them), and
    /// how many of their bytes are gone.
    unsent: Vec<u8>,
    sent: usize,
}

/// How a turn of a connection ended.
#[derive(Debug, PartialEq)]
enum Turn {
    /// Everything that arrived is answered and written, or the socket is full.
    Waiting,
    Closed,
    Broken,
}

impl Worker {
    pub(super) fn new(
        canned: Canned,
        tls: Option<Arc<ServerConfig>>,
        counters: Arc<Counters>,
        busy_poll: Duration,
    ) -> io::Result<(Worker, Mailbox)> {
        let poller = Poller::new()?;
        let waker = poller.waker();
        let (streams, mail) = mpsc::channel();
        let worker = Worker {
            poller,
            mail,
            canned,
            tls,
            counters,
            busy_poll,
            connections: Vec::new(),
            free: Vec::new(),
            buffers: Buffers::new(),
        };
        let streams = Some(streams);
        Ok((worker, Mailbox { streams, waker }))
    }

    /// Runs until the mailbox is gone.
    ///
    /// # Errors
    /// When the poller itself fails.
    pub(super) fn run(mut self) -> io::Result<()> {
        defect::persist(&mut self, Worker::serve, Worker::begin_anew)
    }

    /// After a panic: no connection, and no buffer, can be trusted.
    fn begin_anew(&mut self) {
        for connection in self.connections.drain(..).flatten() {
            count(&self.counters, &connection, &Turn::Broken);
        }
        self.free.clear();
        self.buffers = Buffers::new();
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = Events::default();
        // After a panic there may be some of which nothing is reported any more.
        let mut open = self.take_mail();
        // Until then the worker does not sleep.
        let mut awake_until = None;
        while open {
            let patience = awake_until
                .filter(|until| Instant::now() < *until)
                .map(|_| Duration::ZERO);
            if !self.poller.wait(patience, &mut events)? {
                continue;
            }
            for event in events.sockets() {
                self.turn(event.token.0 as usize);
            }
            if events.are_of_waker() {
                open = self.take_mail();
            }
            if !self.busy_poll.is_zero() {
                awake_until = Some(Instant::now() + self.busy_poll);
            }
        }
        for connection in self.connections.iter_mut().flatten() {
            connection.part(&mut self.buffers.out);
            count(&self.counters, connection, &Turn::Closed);
        }
        Ok(())
    }

    /// False when no more can come.
    fn take_mail(&mut self) -> bool {
        loop {
            match self.mail.try_recv() {
                Ok(stream) => {
                    if let Err(e) = self.welcome(stream) {
                        tracing::warn!("taking a connection: {e}");
                        self.counters.broken.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn welcome(&mut self, stream: TcpStream) -> io::Result<()> {
        // A socket without a network delays nothing, and has no such option.
        let _ = stream.set_nodelay(true);
        let tls = match &self.tls {
            None => None,
            Some(config) => {
                let mut tls =
                    ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
                // How much can be unsent is bounded by reading no further.
                tls.set_buffer_limit(None);
                Some(Box::new(tls))
            }
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let added = self
            .poller
            .add(&stream, Token(place as u64), Interest::Changes);
        if let Err(e) = added {
            self.free.push(place);
            return Err(e);
        }
        let mut connection = Connection {
            stream,
            tls,
            canned: self.canned.connection(),
            unsent: Vec::new(),
            sent: 0,
        };
        let out = &mut self.buffers.out;
        out.clear();
        connection.canned.open(out);
        // A socket that fails now fails again when it is read.
        let _ = connection.write(out);
        self.connections[place] = Some(connection);
        let open = self.counters.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.counters
            .most_at_once
            .fetch_max(open, Ordering::Relaxed);
        Ok(())
    }

    fn turn(&mut self, place: usize) {
        let Some(connection) = self.connections.get_mut(place).and_then(Option::as_mut) else {
            // Closed earlier among the same events.
            return;
        };
        fault::point("fast");
        let turn = connection.turn(&mut self.buffers);
        if turn != Turn::Waiting {
            count(&self.counters, connection, &turn);
            self.connections[place] = None;
            self.free.push(place);
        }
    }
}

fn count(counters: &Counters, connection: &Connection, turn: &Turn) {
    counters.open.fetch_sub(1, Ordering::Relaxed);
    counters
        .answered
        .fetch_add(connection.canned.answered(), Ordering::Relaxed);
    if connection
        .tls
        .as_ref()
        .is_some_and(|tls| tls.is_handshaking())
    {
        counters.handshakes_failed.fetch_add(1, Ordering::Relaxed);
    } else if *turn == Turn::Broken {
        counters.broken.fetch_add(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Reads and answers until the socket is empty, or full.
    fn turn(&mut self, buffers: &mut Buffers) -> Turn {
        loop {
            match self.flush() {
                Ok(true) => {}
                Ok(false) => return Turn::Waiting,
                Err(_) => return Turn::Broken,
            }
            if self.canned.is_held_back() {
                buffers.out.clear();
                self.canned.go_on(&mut buffers.out);
                if self.write(&buffers.out).is_err() {
                    return Turn::Broken;
                }
                continue;
            }
            let read = match self.stream.read(&mut buffers.read) {
                Ok(0) => return Turn::Closed,
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Turn::Waiting,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Turn::Broken,
            };
            buffers.out.clear();
            let understood =
                self.receive(&buffers.read[..read], &mut buffers.out, &mut buffers.held);
            if self.write(&buffers.out).is_err() {
                return Turn::Broken;
            }
            match understood {
                Ok(true) => {}
                Ok(false) => return Turn::Closed,
                Err(e) => {
                    tracing::debug!("{e}");
                    return Turn::Broken;
                }
            }
            // Less than was asked for: the socket is empty, and more is another event.
            let done = self.is_flushed() && !self.canned.is_held_back();
            if read < buffers.read.len() && done {
                return Turn::Waiting;
            }
        }
    }

    /// False when the peer has closed its side (TLS close_notify).
    fn receive(
        &mut self,
        mut bytes: &[u8],
        out: &mut Vec<u8>,
        held: &mut Vec<u32>,
    ) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else {
            self.canned
                .receive(bytes, out, held)
                .map_err(io::Error::other)?;
            return Ok(true);
        };
        while !bytes.is_empty() {
            tls.read_tls(&mut bytes)?;
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let mut reader = tls.reader();
            loop {
                let plain = match reader.fill_buf() {
                    Ok([]) => break,
                    Ok(plain) => plain,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e),
                };
                let understood = self.canned.receive(plain, out, held);
                let read = plain.len();
                reader.consume(read);
                understood.map_err(io::Error::other)?;
            }
            if state.peer_has_closed() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes answers, as much as the socket takes, and keeps the rest.
    fn write(&mut self, out: &[u8]) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(out)?;
            return self.flush().map(|_| ());
        }
        let mut sent = 0;
        if self.unsent.is_empty() {
            sent = push(&mut &self.stream, out)?;
        }
        self.unsent.extend_from_slice(&out[sent..]);
        Ok(())
    }

    /// True when nothing is left to send.
    fn flush(&mut self) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                match tls.write_tls(&mut &self.stream) {
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            return Ok(true);
        }
        self.sent += push(&mut &self.stream, &self.unsent[self.sent..])?;
        if self.sent < self.unsent.len() {
            return Ok(false);
        }
        // The memory goes too: being behind is rare.
        drop(mem::take(&mut self.unsent));
        self.sent = 0;
        Ok(true)
    }

    fn is_flushed(&self) -> bool {
        match &self.tls {
            Some(tls) => !tls.wants_write(),
            None => self.unsent.is_empty(),
        }
    }

    /// Says goodbye as far as the socket takes it.
    fn part(&mut self, out: &mut Vec<u8>) {
        out.clear();
        self.canned.goaway(ErrorCode::NO_ERROR, out);
        if self.write(out).is_ok() {
            if let Some(tls) = &mut self.tls {
                tls.send_close_notify();
            }
            let _ = self.flush();
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// Writes until everything is gone or the socket is full; returns how much went.
fn push(stream: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => sent += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(sent)
}
