//! One thread's loop: accept, read, echo, write, rest.
//!
//! Sockets report once that they can be read, so a connection is read until it is empty,
//! unless its peer does not take its echo: then it is left alone until its socket takes
//! bytes again, and holds at most what one read brought about. Where the loop panics, its
//! connections are gone, and it begins anew with those that come.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_engine::network::os::{OsNetwork, SocketOptions};
use plimsoll_engine::network::{Network, Ready, Token, Wake};
use plimsoll_engine::poller::Waker;
use plimsoll_engine::tls::{ServerSession, ServerSessions};
use plimsoll_engine::{Clock, defect, fault};
use plimsoll_model::Time;
use rustix::io::Errno;

use super::Counters;
use crate::serving::{ACCEPT_PAUSE, NotAccepted, unix};

/// Not a connection's: those have 63 bits.
const LISTENER: Token = Token(u64::MAX - 1);
/// Read at once. Bytes.
const READ_BUFFER: usize = 64 * 1024;
/// Connections taken in before others are served again.
const ACCEPT_AT_ONCE: usize = 64;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may take to close its side after it was sent what was wrong.
const LINGER: Duration = Duration::from_secs(1);
/// How often deadlines are looked at: none is exact.
const SWEEP: Duration = Duration::from_millis(200);

pub(super) struct Worker {
    network: OsNetwork,
    clock: Clock,
    listener: TcpListener,
    /// When the listener is watched again, after descriptors ran out.
    pause: Option<Time>,
    not_accepted: NotAccepted,
    sessions: Option<ServerSessions>,
    counters: Arc<Counters>,
    stopped: Arc<AtomicBool>,
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    next_generation: u32,
    /// Connections that have to come up, or to go, until a moment.
    deadlines: VecDeque<(Time, Token)>,
    buffer: Vec<u8>,
    echo: Vec<u8>,
}

struct Connection {
    socket: TcpStream,
    generation: u32,
    transport: Transport,
}

enum Transport {
    /// What the socket would not take.
    Plain(Vec<u8>),
    Tls(ServerSession),
    /// The client was sent what was wrong; closes when it has, or soon. Closing with bytes unread
    /// would reset the connection, and the alert could be lost on its way.
    Lingering,
}

/// How a turn of a connection ended.
enum Turn {
    /// Everything that arrived is echoed and written, or the socket is full.
    Waiting,
    /// A handshake that failed was answered.
    Refused,
    /// The client went away in the middle of its handshake.
    Abandoned,
    Closed,
    Broken(String),
}

impl Worker {
    pub(super) fn new(
        listener: TcpListener,
        sessions: Option<ServerSessions>,
        counters: Arc<Counters>,
        stopped: Arc<AtomicBool>,
    ) -> io::Result<Worker> {
        let clock = Clock::new();
        // It connects nowhere, so there is no name to look up.
        let mut network = OsNetwork::new(clock, &[], SocketOptions::default(), 0)?;
        network.watch(&listener, LISTENER)?;
        Ok(Worker {
            network,
            clock,
            listener,
            pause: None,
            not_accepted: NotAccepted::default(),
            sessions,
            counters,
            stopped,
            connections: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
            deadlines: VecDeque::new(),
            buffer: vec![0; READ_BUFFER],
            echo: Vec::new(),
        })
    }

    pub(super) fn waker(&self) -> Waker {
        self.network.waker()
    }

    /// Runs until told to stop and woken.
    ///
    /// # Errors
    /// When the poller itself fails.
    pub(super) fn run(mut self) -> io::Result<()> {
        defect::persist(&mut self, Worker::serve, Worker::begin_anew)
    }

    /// After a panic: no connection, and no buffer, can be trusted.
    fn begin_anew(&mut self) {
        for connection in self.connections.drain(..).flatten() {
            count(&self.counters.broken);
            self.counters.open.fetch_sub(1, Ordering::Relaxed);
            self.network.close(connection.socket);
        }
        self.free.clear();
        self.deadlines.clear();
        self.buffer = vec![0; READ_BUFFER];
        self.echo = Vec::new();
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        while !self.stopped.load(Ordering::Relaxed) {
            let wake = self.next_wake().map(|at| Wake { at, precise: false });
            self.network.wait(wake, &mut ready)?;
            for event in ready.drain(..) {
                match event.token {
                    LISTENER => self.accept()?,
                    _ => self.turn(event),
                }
            }
            self.expire()?;
        }
        for connection in self.connections.iter_mut().flatten() {
            connection.part(&mut self.network);
        }
        Ok(())
    }

    fn next_wake(&self) -> Option<Time> {
        let sweep = (!self.deadlines.is_empty()).then(|| self.clock.now() + SWEEP);
        match (sweep, self.pause) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..ACCEPT_AT_ONCE {
            match unix::accept(&self.listener) {
                Ok((socket, _)) => {
                    if let Err(e) = self.welcome(socket) {
                        tracing::warn!("taking a connection: {e}");
                        count(&self.counters.broken);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => {
                    let errno = e.raw_os_error().map(Errno::from_raw_os_error);
                    if matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) {
                        let now = self.clock.now();
                        self.not_accepted.report(&e, now);
                        self.network.unwatch(&self.listener)?;
                        self.pause = Some(now + ACCEPT_PAUSE);
                        return Ok(());
                    }
                    // A client that has gone again before it was accepted.
                    tracing::debug!("accepting a connection: {e}");
                }
            }
        }
        Ok(())
    }

    fn welcome(&mut self, socket: TcpStream) -> io::Result<()> {
        count(&self.counters.accepted);
        // A socket without a network delays nothing, and has no such option.
        let _ = socket.set_nodelay(true);
        let transport = match &self.sessions {
            None => Transport::Plain(Vec::new()),
            Some(sessions) => Transport::Tls(sessions.session().map_err(io::Error::other)?),
        };
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1) & 0x7fff_ffff;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.connections.push(None);
                (self.connections.len() - 1) as u32
            }
        };
        let token = Token(u64::from(generation) << 32 | u64::from(index));
        if let Err(e) = self.network.adopt(&socket, token) {
            self.free.push(index);
            return Err(e);
        }
        if matches!(transport, Transport::Tls(_)) {
            let deadline = self.clock.now() + HANDSHAKE_LIMIT;
            self.deadlines.push_back((deadline, token));
        }
        self.connections[index as usize] = Some(Connection {
            socket,
            generation,
            transport,
        });
        let open = self.counters.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.counters
            .most_at_once
            .fetch_max(open, Ordering::Relaxed);
        Ok(())
    }

    /// The live connection that a token names.
    fn live(&mut self, token: Token) -> Option<(u32, &mut Connection)> {
        let (index, generation) = (token.0 as u32, (token.0 >> 32) as u32);
        let connection = self.connections.get_mut(index as usize)?.as_mut()?;
        (connection.generation == generation).then_some((index, connection))
    }

    fn turn(&mut self, event: Ready) {
        let (mut buffer, mut echo) = (mem::take(&mut self.buffer), mem::take(&mut self.echo));
        let counters = Arc::clone(&self.counters);
        let index = event.token.0 as u32;
        let generation = (event.token.0 >> 32) as u32;
        let turn = match self.connections.get_mut(index as usize) {
            Some(Some(connection)) if connection.generation == generation => {
                fault::point("hold");
                connection.turn(&mut self.network, &mut buffer, &mut echo, &counters)
            }
            // Closed earlier among the same events.
            _ => Turn::Waiting,
        };
        (self.buffer, self.echo) = (buffer, echo);
        match turn {
            Turn::Waiting => {}
            Turn::Refused => {
                count(&counters.handshakes_failed);
                let deadline = self.clock.now() + LINGER;
                self.deadlines.push_back((deadline, event.token));
            }
            Turn::Abandoned => {
                count(&counters.handshakes_failed);
                self.close(index);
            }
            Turn::Closed => self.close(index),
            Turn::Broken(why) => {
                tracing::debug!("{why}");
                count(&counters.broken);
                self.close(index);
            }
        }
    }

    fn close(&mut self, index: u32) {
        if let Some(connection) = self.connections[index as usize].take() {
            self.network.close(connection.socket);
            self.free.push(index);
            self.counters.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn expire(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        if self.pause.is_some_and(|until| until <= now) {
            self.pause = None;
            self.network.watch(&self.listener, LISTENER)?;
        }
        // Those that have come up long since wait behind one that has not.
        while let Some((deadline, token)) = self.deadlines.front().copied() {
            let waits = self.live(token).is_some_and(|(_, c)| c.is_awaited());
            if waits && deadline > now {
                break;
            }
            self.deadlines.pop_front();
            if waits && let Some((index, connection)) = self.live(token) {
                if matches!(connection.transport, Transport::Tls(_)) {
                    tracing::debug!("no tls handshake within {HANDSHAKE_LIMIT:?}");
                    count(&self.counters.handshakes_failed);
                }
                self.close(index);
            }
        }
        Ok(())
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Connection {
    /// Something has to happen to it before its deadline.
    fn is_awaited(&self) -> bool {
        match &self.transport {
            Transport::Plain(_) => false,
            Transport::Tls(session) => session.is_handshaking(),
            Transport::Lingering => true,
        }
    }

    /// Reads and echoes until the socket is empty, or full.
    fn turn(
        &mut self,
        network: &mut OsNetwork,
        buffer: &mut [u8],
        echo: &mut Vec<u8>,
        counters: &Counters,
    ) -> Turn {
        loop {
            match self.flush(network) {
                Ok(true) => {}
                Ok(false) => return Turn::Waiting,
                Err(e) => return Turn::Broken(format!("writing: {e}")),
            }
            let got = match network.read(&mut self.socket, buffer) {
                Ok(0) => return self.ended(),
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.rest();
                    return Turn::Waiting;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Turn::Broken(format!("reading: {e}")),
            };
            echo.clear();
            let bytes = &mut buffer[..got];
            match &mut self.transport {
                Transport::Plain(unsent) => unsent.extend_from_slice(bytes),
                Transport::Lingering => continue,
                Transport::Tls(session) => {
                    let handshaking = session.is_handshaking();
                    let received = session.receive(bytes, &mut |plain| {
                        echo.extend_from_slice(plain);
                    });
                    if handshaking && let Some(agreement) = session.agreement() {
                        counters.handshakes.add(agreement);
                        count(if agreement.resumed {
                            &counters.resumed
                        } else {
                            &counters.full
                        });
                    }
                    match received {
                        Ok(said_goodbye) => {
                            if !echo.is_empty() {
                                session.seal(echo);
                            }
                            if said_goodbye {
                                session.close_notify();
                                let _ = self.flush(network);
                                return Turn::Closed;
                            }
                        }
                        Err(e) => return self.refuse(network, handshaking, &e.to_string()),
                    }
                }
            }
            let echoed = match &self.transport {
                Transport::Plain(_) => got,
                _ => echo.len(),
            };
            counters.echoed.fetch_add(echoed as u64, Ordering::Relaxed);
        }
    }

    /// The alert that says what was wrong goes out first.
    fn refuse(&mut self, network: &mut OsNetwork, handshaking: bool, why: &str) -> Turn {
        let _ = self.flush(network);
        if !handshaking {
            return Turn::Broken(why.to_owned());
        }
        tracing::debug!("{why}");
        let _ = self.socket.shutdown(Shutdown::Write);
        self.transport = Transport::Lingering;
        Turn::Refused
    }

    /// The client has closed its side.
    fn ended(&self) -> Turn {
        match &self.transport {
            Transport::Plain(_) | Transport::Lingering => Turn::Closed,
            Transport::Tls(session) if session.is_handshaking() => Turn::Abandoned,
            // Without close_notify it is not known whether that was all (RFC 8446 §6.1).
            Transport::Tls(_) => Turn::Broken("the client hung up without close_notify".to_owned()),
        }
    }

    /// Nothing is under way: keep no more than it takes to go on.
    fn rest(&mut self) {
        match &mut self.transport {
            Transport::Plain(unsent) => *unsent = Vec::new(),
            Transport::Tls(session) => session.rest(),
            Transport::Lingering => {}
        }
    }

    /// True when nothing is left to send.
    fn flush(&mut self, network: &mut OsNetwork) -> io::Result<bool> {
        loop {
            let waiting: &[u8] = match &self.transport {
                Transport::Plain(unsent) => unsent,
                Transport::Tls(session) => session.outgoing(),
                Transport::Lingering => &[],
            };
            if waiting.is_empty() {
                return Ok(true);
            }
            match network.write(&mut self.socket, &[IoSlice::new(waiting)]) {
                Ok(wrote) => match &mut self.transport {
                    Transport::Plain(unsent) => drop(unsent.drain(..wrote)),
                    Transport::Tls(session) => session.sent(wrote),
                    Transport::Lingering => {}
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Says goodbye as far as the socket takes it.
    fn part(&mut self, network: &mut OsNetwork) {
        if let Transport::Tls(session) = &mut self.transport {
            session.close_notify();
        }
        let _ = self.flush(network);
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}
