//! A server's own threads, each with one event loop for all its connections: no task and no stack a connection, one
//! read buffer for all, and nothing shared between threads: for servers that must never be the limit, and for those
//! whose connections must cost next to nothing.
//!
//! Whoever serves accepts, and deals connections out in turn, so that a few load all threads evenly.
//! Events are edge-triggered, so a connection is read until it is empty, unless its peer does not take answers: then
//! it is left alone until its socket takes bytes again, and holds at most what one read brought about, and of large
//! answers a bounded part. Where a loop panics, its connections are gone, and it begins anew with those that come.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::net::{Shutdown, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use plimsoll_engine::network::os::{OsNetwork, SocketOptions};
use plimsoll_engine::network::{Network, Ready, Token, Wake};
use plimsoll_engine::poller::Waker;
use plimsoll_engine::tls::{Agreement, ServerSession, ServerSessions, SharedTally};
use plimsoll_engine::{Clock, defect, fault};
use plimsoll_model::Time;

use super::{Bound, ConnectionStats, Listener, ServeError, joined};

/// Read at once. Bytes.
const READ_BUFFER: usize = 128 * 1024;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may take to close its side after it was sent what was wrong.
const LINGER: Duration = Duration::from_secs(1);
/// How often deadlines are looked at: none is exact.
const SWEEP: Duration = Duration::from_millis(200);

/// What is served. Cloned for each thread.
pub(crate) trait Service: Clone + Send + 'static {
    /// Of its threads, and of the fault point in each turn of a connection.
    const NAME: &'static str;
    /// Connections rest most of the time: then they give up all memory that can be had again, and a TLS connection
    /// that ends without close_notify is broken.
    const RESTS: bool;
    /// One connection's state.
    type Connection;

    /// How long an idle thread polls before it sleeps.
    fn busy_poll(&self) -> Duration {
        Duration::ZERO
    }

    /// A connection is up: what it begins with.
    fn open(&self, out: &mut Vec<u8>) -> Self::Connection;

    /// Answers what a client has sent.
    ///
    /// # Errors
    /// Why the connection can't go on.
    fn receive(
        &self,
        connection: &mut Self::Connection,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), String>;

    /// All is written: makes more of the answers that were held back; false where there are none.
    fn go_on(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// The server stops.
    fn finish(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) {}

    /// A TLS handshake was completed.
    fn secured(&self, _agreement: Agreement) {}

    /// The connection is closed, by either end.
    fn closed(&self, _connection: &Self::Connection) {}
}

/// What threads count while they run.
#[derive(Debug, Default)]
struct Counters {
    open: AtomicU64,
    most_at_once: AtomicU64,
    handshakes_failed: AtomicU64,
    broken: AtomicU64,
    handshakes: SharedTally,
}

/// Serves until `shutdown` completes. There is nothing to drain: connections get a goodbye and are closed.
///
/// # Errors
/// When there are to be no threads, or threads or the socket fail.
pub(crate) async fn serve<S: Service>(
    bound: Bound,
    workers: usize,
    service: S,
    shutdown: impl Future<Output = ()>,
) -> Result<ConnectionStats, ServeError> {
    if workers == 0 {
        return Err(ServeError::option("workers", "must be at least 1"));
    }
    let counters = Arc::new(Counters {
        handshakes: bound.handshakes(),
        ..Counters::default()
    });
    // TLS 1.2 takes the library's records: a connection at rest keeps all of its session.
    let sessions = match bound.offers_1_2 {
        true => ServerSessions::of_library,
        false => ServerSessions::new,
    };
    let (started, mailboxes) = mpsc::channel();
    let mut threads = Vec::with_capacity(workers);
    for _ in 0..workers {
        let sessions = bound.tls.as_deref().map(sessions);
        let (service, counters) = (service.clone(), Arc::clone(&counters));
        let started = started.clone();
        let work = move || {
            let (streams, mail) = mpsc::channel();
            let worker = Worker::new(mail, service, sessions, counters)?;
            let mailbox = Mailbox {
                streams: Some(streams),
                waker: worker.network.waker(),
            };
            // Whoever serves waits for it.
            let _ = started.send(mailbox);
            drop(started);
            worker.run()
        };
        let thread = thread::Builder::new()
            .name(S::NAME.to_owned())
            .spawn(work)
            .map_err(ServeError::io("starting a worker thread"))?;
        threads.push(thread);
    }
    drop(started);
    let mailboxes: Vec<Mailbox> = mailboxes.iter().collect();
    let listener = bound.into_listener()?;
    // A worker that can't be made reports why when it is joined.
    let accepted = match mailboxes.len() == workers {
        true => deal(&listener, &mailboxes, shutdown).await?,
        false => 0,
    };
    drop(listener);
    // Workers end when no sender of connections is left.
    drop(mailboxes);
    joined(threads).await?;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(ConnectionStats {
        accepted,
        most_at_once: read(&counters.most_at_once),
        handshakes_failed: read(&counters.handshakes_failed),
        broken: read(&counters.broken),
        cut_off: 0,
    })
}

/// Accepts connections and gives them to the workers in turn, until `shutdown` completes. Returns how many there were.
///
/// # Errors
/// When the listening socket itself fails.
async fn deal(
    listener: &Listener,
    mailboxes: &[Mailbox],
    shutdown: impl Future<Output = ()>,
) -> Result<u64, ServeError> {
    let mut shutdown = pin!(shutdown);
    let mut accepted = 0;
    for mailbox in mailboxes.iter().cycle() {
        let (stream, _) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            next = listener.next() => next?,
        };
        match stream.into_std() {
            Ok(stream) => {
                accepted += 1;
                mailbox.give(stream);
            }
            Err(e) => tracing::warn!("accepting a connection: {e}"),
        }
    }
    Ok(accepted)
}

/// Where a worker gets its connections. Dropping it ends the worker.
struct Mailbox {
    /// Always there until dropped.
    streams: Option<mpsc::Sender<TcpStream>>,
    waker: Waker,
}

impl Mailbox {
    fn give(&self, stream: TcpStream) {
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

struct Worker<S: Service> {
    network: OsNetwork,
    clock: Clock,
    mail: mpsc::Receiver<TcpStream>,
    service: S,
    sessions: Option<ServerSessions>,
    counters: Arc<Counters>,
    connections: Vec<Option<Connection<S>>>,
    free: Vec<u32>,
    next_generation: u32,
    /// Connections that have to come up, or to go, until a moment.
    deadlines: VecDeque<(Time, Token)>,
    buffers: Buffers,
}

/// Lent to the connection being served.
struct Buffers {
    read: Vec<u8>,
    out: Vec<u8>,
}

impl Buffers {
    fn new() -> Buffers {
        Buffers {
            read: vec![0; READ_BUFFER],
            out: Vec::new(),
        }
    }
}

struct Connection<S: Service> {
    socket: TcpStream,
    generation: u32,
    transport: Transport,
    /// `None` until a TLS handshake is over.
    served: Option<S::Connection>,
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
    /// Everything that arrived is answered and written, or the socket is full.
    Waiting,
    /// A handshake that failed was answered.
    Refused,
    /// The client went away in the middle of its handshake.
    Abandoned,
    Closed,
    Broken(String),
}

impl<S: Service> Worker<S> {
    fn new(
        mail: mpsc::Receiver<TcpStream>,
        service: S,
        sessions: Option<ServerSessions>,
        counters: Arc<Counters>,
    ) -> io::Result<Worker<S>> {
        let clock = Clock::new();
        Ok(Worker {
            // It connects nowhere, so there is no name to look up.
            network: OsNetwork::new(clock, &[], SocketOptions::default(), 0)?,
            clock,
            mail,
            service,
            sessions,
            counters,
            connections: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
            deadlines: VecDeque::new(),
            buffers: Buffers::new(),
        })
    }

    /// Runs until the mailbox is gone.
    ///
    /// # Errors
    /// When the poller itself fails.
    fn run(mut self) -> io::Result<()> {
        defect::persist(&mut self, Worker::serve, Worker::begin_anew)
    }

    /// After a panic: no connection, and no buffer, can be trusted.
    fn begin_anew(&mut self) {
        for index in 0..self.connections.len() as u32 {
            if self.close(index) {
                count(&self.counters.broken);
            }
        }
        self.deadlines.clear();
        self.buffers = Buffers::new();
    }

    fn serve(&mut self) -> io::Result<()> {
        let busy_poll = self.service.busy_poll();
        let mut ready = Vec::new();
        // Until then the worker does not sleep.
        let mut awake_until = None;
        // After a panic there may be some of which nothing is reported any more.
        while self.take_mail() {
            let wake = self.next_wake(awake_until);
            let wake = wake.map(|at| Wake { at, precise: false });
            self.network.wait(wake, &mut ready)?;
            let is_busy = !ready.is_empty() && !busy_poll.is_zero();
            for event in ready.drain(..) {
                self.turn(event);
            }
            if is_busy {
                awake_until = Some(self.clock.now() + busy_poll);
            }
            self.expire();
        }
        for connection in self.connections.iter_mut().flatten() {
            connection.part(&mut self.network, &self.service, &mut self.buffers.out);
        }
        for index in 0..self.connections.len() as u32 {
            self.close(index);
        }
        Ok(())
    }

    fn next_wake(&self, awake_until: Option<Time>) -> Option<Time> {
        let now = || self.clock.now();
        if let Some(until) = awake_until {
            let now = now();
            if now < until {
                return Some(now);
            }
        }
        (!self.deadlines.is_empty()).then(|| now() + SWEEP)
    }

    /// False when no more can come.
    fn take_mail(&mut self) -> bool {
        loop {
            match self.mail.try_recv() {
                Ok(socket) => {
                    if let Err(e) = self.welcome(socket) {
                        tracing::warn!("taking a connection: {e}");
                        count(&self.counters.broken);
                    }
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn welcome(&mut self, socket: TcpStream) -> io::Result<()> {
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
        let mut connection = Connection {
            socket,
            generation,
            transport,
            served: None,
        };
        if matches!(connection.transport, Transport::Plain(_)) {
            let out = &mut self.buffers.out;
            out.clear();
            connection.served = Some(self.service.open(out));
            // A socket that fails now fails again when it is read.
            let _ = connection.write(&mut self.network, out);
        } else {
            let deadline = self.clock.now() + HANDSHAKE_LIMIT;
            self.deadlines.push_back((deadline, token));
        }
        self.connections[index as usize] = Some(connection);
        let open = self.counters.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.counters
            .most_at_once
            .fetch_max(open, Ordering::Relaxed);
        Ok(())
    }

    /// The live connection that a token names; `None`: closed earlier among the same events.
    fn live(&mut self, token: Token) -> Option<&mut Connection<S>> {
        let (index, generation) = (token.0 as u32, (token.0 >> 32) as u32);
        let connection = self.connections.get_mut(index as usize)?.as_mut()?;
        (connection.generation == generation).then_some(connection)
    }

    fn turn(&mut self, event: Ready) {
        let index = event.token.0 as u32;
        let generation = (event.token.0 >> 32) as u32;
        let turn = match self.connections.get_mut(index as usize) {
            Some(Some(connection)) if connection.generation == generation => {
                fault::point(S::NAME);
                let handshakes = &self.counters.handshakes;
                let to = (&mut self.network, &mut self.buffers);
                connection.turn(to, &self.service, handshakes)
            }
            // Closed earlier among the same events.
            _ => Turn::Waiting,
        };
        match turn {
            Turn::Waiting => return,
            Turn::Refused => {
                count(&self.counters.handshakes_failed);
                let deadline = self.clock.now() + LINGER;
                self.deadlines.push_back((deadline, event.token));
                return;
            }
            Turn::Abandoned => count(&self.counters.handshakes_failed),
            Turn::Closed => {}
            Turn::Broken(why) => {
                tracing::debug!("{why}");
                count(&self.counters.broken);
            }
        }
        self.close(index);
    }

    /// False where there is none.
    fn close(&mut self, index: u32) -> bool {
        let Some(connection) = self.connections[index as usize].take() else {
            return false;
        };
        if let Some(served) = &connection.served {
            self.service.closed(served);
        }
        self.network.close(connection.socket);
        self.free.push(index);
        self.counters.open.fetch_sub(1, Ordering::Relaxed);
        true
    }

    fn expire(&mut self) {
        // Those that have come up long since wait behind one that has not.
        while let Some((deadline, token)) = self.deadlines.front().copied() {
            let waits = self.live(token).is_some_and(|c| c.is_awaited());
            if waits && deadline > self.clock.now() {
                break;
            }
            self.deadlines.pop_front();
            if waits && let Some(connection) = self.live(token) {
                if matches!(connection.transport, Transport::Tls(_)) {
                    tracing::debug!("no tls handshake within {HANDSHAKE_LIMIT:?}");
                    count(&self.counters.handshakes_failed);
                }
                self.close(token.0 as u32);
            }
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<S: Service> Connection<S> {
    /// Something has to happen to it before its deadline.
    fn is_awaited(&self) -> bool {
        match &self.transport {
            Transport::Plain(_) => false,
            Transport::Tls(session) => session.is_handshaking(),
            Transport::Lingering => true,
        }
    }

    /// Reads and answers until the socket is empty, or full.
    fn turn(
        &mut self,
        (network, buffers): (&mut OsNetwork, &mut Buffers),
        service: &S,
        handshakes: &SharedTally,
    ) -> Turn {
        let mut emptied = false;
        loop {
            match self.flush(network) {
                Ok(true) => {}
                Ok(false) => return Turn::Waiting,
                Err(e) => return Turn::Broken(format!("writing: {e}")),
            }
            let Buffers { read, out } = &mut *buffers;
            out.clear();
            let served = self.served.as_mut();
            if served.is_some_and(|served| service.go_on(served, out)) {
                if let Err(e) = self.write(network, out) {
                    return Turn::Broken(format!("writing: {e}"));
                }
                continue;
            }
            if emptied {
                return Turn::Waiting;
            }
            let got = match network.read(&mut self.socket, read) {
                Ok(0) => return self.ended(),
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if S::RESTS
                        && let Transport::Tls(session) = &mut self.transport
                    {
                        session.rest();
                    }
                    return Turn::Waiting;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Turn::Broken(format!("reading: {e}")),
            };
            // Less than was asked for: the socket is empty, and more is another event.
            emptied = got < read.len() && !S::RESTS;
            let bytes = &mut read[..got];
            let understood = match (&mut self.transport, &mut self.served) {
                (Transport::Plain(_), Some(served)) => service.receive(served, bytes, out),
                (Transport::Tls(session), served) => {
                    let handshaking = session.is_handshaking();
                    let mut understood = Ok(());
                    let received = session.receive(bytes, &mut |plain| {
                        let served = served.get_or_insert_with(|| service.open(out));
                        if understood.is_ok() {
                            understood = service.receive(served, plain, out);
                        }
                    });
                    if handshaking && !session.is_handshaking() {
                        served.get_or_insert_with(|| service.open(out));
                        if let Some(agreement) = session.agreement() {
                            handshakes.add(agreement);
                            service.secured(agreement);
                        }
                    }
                    match received {
                        Ok(false) => understood,
                        Ok(true) => {
                            let _ = self.write(network, out);
                            self.say_goodbye(network);
                            return Turn::Closed;
                        }
                        Err(e) => return self.refuse(network, handshaking, &e.to_string()),
                    }
                }
                _ => continue,
            };
            let written = self.write(network, out);
            if let Err(why) = understood {
                let _ = self.flush(network);
                return Turn::Broken(why);
            }
            if let Err(e) = written {
                return Turn::Broken(format!("writing: {e}"));
            }
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
            Transport::Tls(session) if session.is_handshaking() => Turn::Abandoned,
            // Without close_notify it is not known whether that was all (RFC 8446 §6.1).
            Transport::Tls(_) if S::RESTS => {
                Turn::Broken("the client hung up without close_notify".to_owned())
            }
            _ => Turn::Closed,
        }
    }

    /// Writes as much as the socket takes, and keeps the rest; over TLS [`Connection::flush`] writes.
    fn write(&mut self, network: &mut OsNetwork, out: &[u8]) -> io::Result<()> {
        let unsent = match &mut self.transport {
            Transport::Plain(unsent) => unsent,
            Transport::Tls(session) if !out.is_empty() => {
                session.seal(out);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let mut rest = out;
        while unsent.is_empty() && !rest.is_empty() {
            match network.write(&mut self.socket, &[IoSlice::new(rest)]) {
                Ok(wrote) => rest = &rest[wrote..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        unsent.extend_from_slice(rest);
        Ok(())
    }

    /// True when nothing is left to send.
    fn flush(&mut self, network: &mut OsNetwork) -> io::Result<bool> {
        loop {
            let waiting: &[u8] = match &mut self.transport {
                // The memory goes too: being behind is rare.
                Transport::Plain(unsent) if unsent.is_empty() => {
                    drop(mem::take(unsent));
                    return Ok(true);
                }
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

    fn say_goodbye(&mut self, network: &mut OsNetwork) {
        if let Transport::Tls(session) = &mut self.transport {
            session.close_notify();
        }
        let _ = self.flush(network);
    }

    /// Says goodbye as far as the socket takes it.
    fn part(&mut self, network: &mut OsNetwork, service: &S, out: &mut Vec<u8>) {
        out.clear();
        if let Some(served) = &mut self.served {
            service.finish(served, out);
        }
        let _ = self.write(network, out);
        self.say_goodbye(network);
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}
