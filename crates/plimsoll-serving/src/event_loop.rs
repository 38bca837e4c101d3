//! A server on its own threads, each of which runs one event loop for all its connections. A connection has no task
//! and no stack; all connections of a thread share one read buffer, and the loops share nothing but counters. This
//! suits servers that must never be the bottleneck, and servers whose connections must take very little memory.
//!
//! The calling task accepts connections and distributes them round-robin, so even a few connections load all threads
//! evenly. Events are edge-triggered, so a connection is read until its socket is empty. If the peer does not read its
//! responses, the connection is not read until the socket is writable again; meanwhile it buffers at most the responses
//! to one read and a bounded part of large responses. A service may delay a response until a given time, exact to a
//! few microseconds. When a loop panics, its connections are closed, and the loop continues with new ones.

mod connection;
mod service;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use plimsoll_engine::tls::{ServerSessionFactory, SharedHandshakeTally};
use plimsoll_engine::transport::network::os::OsNetwork;
use plimsoll_engine::transport::network::{Network, SocketReady, SocketToken, WaitKind, WakeTime};
use plimsoll_engine::transport::poller::Waker;
use plimsoll_engine::{Clock, defect, fault};
use plimsoll_model::Time;
use tokio::sync::Notify;

use self::connection::{LoopBuffers, LoopConnection, LoopTransport, ServeOutcome};
pub use self::service::{ArrivalTimes, ConnectionDisposition, DelayedResponse, LoopService};
use super::{AsyncListener, BoundServer, ConnectionStats, ServeError, join_threads};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to close its side after it was sent an alert.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval at which deadlines are checked; they need not be exact.
const DEADLINE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Counters that all threads share.
#[derive(Debug, Default)]
struct LoopCounters {
    open: AtomicU64,
    peak_open: AtomicU64,
    handshakes_failed: AtomicU64,
    broken: AtomicU64,
    handshakes: SharedHandshakeTally,
}

/// Serves until `shutdown` completes. Nothing is drained: connections are closed with a close_notify.
///
/// # Errors
/// When `workers` is 0, or when a thread or the socket fails. The server ends when one of its threads fails: the
/// clients of that thread would get no response.
pub async fn serve<S: LoopService>(
    bound: BoundServer,
    workers: usize,
    service: S,
    shutdown: impl Future<Output = ()>,
) -> Result<ConnectionStats, ServeError> {
    if workers == 0 {
        return Err(ServeError::invalid_option("workers", "must be at least 1"));
    }
    let counters = Arc::new(LoopCounters {
        handshakes: bound.handshakes.clone(),
        ..LoopCounters::default()
    });
    // With TLS 1.2, rustls's record layer is used: an idle connection then keeps a whole rustls session in memory.
    let sessions = if bound.offers_tls_1_2 {
        ServerSessionFactory::with_library_records
    } else {
        ServerSessionFactory::new
    };
    let (started, senders) = mpsc::channel();
    let ended = Arc::new(Notify::new());
    let mut threads = Vec::with_capacity(workers);
    for _ in 0..workers {
        let sessions = bound.tls.as_deref().map(sessions);
        let (service, counters) = (service.clone(), Arc::clone(&counters));
        let (started, end) = (started.clone(), EndNotice(Arc::clone(&ended)));
        let work = move || {
            let _end = end;
            let (streams, mail) = mpsc::channel();
            let worker = LoopWorker::new(mail, service, sessions, counters)?;
            let sender = WorkerSender {
                streams: Some(streams),
                waker: worker.network.waker(),
            };
            // Sending can't fail, because `serve` waits for the senders of all workers.
            let _ = started.send(sender);
            drop(started);
            worker.run()
        };
        let thread = thread::Builder::new()
            .name(S::SERVICE_NAME.to_owned())
            .spawn(work)
            .map_err(ServeError::io("starting a worker thread"))?;
        threads.push(thread);
    }
    drop(started);
    let senders: Vec<WorkerSender> = senders.iter().collect();
    let listener = bound.into_listener()?;
    // A worker that ends before shutdown has failed; the error is reported when its thread is joined.
    let shutdown = async {
        tokio::select! {
            biased;
            () = shutdown => {}
            () = ended.notified() => {}
        }
    };
    let accepted = if senders.len() == workers {
        accept_and_distribute(&listener, &senders, shutdown).await?
    } else {
        0
    };
    drop(listener);
    // Workers end when all senders of connections are dropped.
    drop(senders);
    join_threads(threads).await?;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(ConnectionStats {
        accepted,
        peak_open: read(&counters.peak_open),
        handshakes_failed: read(&counters.handshakes_failed),
        broken: read(&counters.broken),
        cut_off: 0,
    })
}

/// Accepts connections and distributes them round-robin over the workers, until `shutdown` completes. Returns the
/// number of connections.
///
/// # Errors
/// When the listening socket itself fails.
async fn accept_and_distribute(
    listener: &AsyncListener,
    senders: &[WorkerSender],
    shutdown: impl Future<Output = ()>,
) -> Result<u64, ServeError> {
    let mut shutdown = pin!(shutdown);
    let mut accepted = 0;
    for sender in senders.iter().cycle() {
        let (stream, _) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            next = listener.next() => next?,
        };
        match stream.into_std() {
            Ok(stream) => {
                accepted += 1;
                sender.send(stream);
            }
            Err(e) => tracing::warn!("accepting a connection: {e}"),
        }
    }
    Ok(accepted)
}

/// The sender of accepted connections to a worker. The worker ends when its sender is dropped.
struct WorkerSender {
    /// `Some` until dropped.
    streams: Option<mpsc::Sender<TcpStream>>,
    waker: Waker,
}

impl WorkerSender {
    fn send(&self, stream: TcpStream) {
        if let Some(streams) = &self.streams {
            // Sending fails if the worker has ended, whose error is reported when the thread is joined.
            let _ = streams.send(stream);
        }
        self.waker.wake();
    }
}

impl Drop for WorkerSender {
    fn drop(&mut self) {
        self.streams = None;
        self.waker.wake();
    }
}

/// A guard that notifies the serving task when it is dropped, because the worker has ended for any reason.
struct EndNotice(Arc<Notify>);

impl Drop for EndNotice {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

struct LoopWorker<S: LoopService> {
    network: OsNetwork,
    clock: Clock,
    mailbox: mpsc::Receiver<TcpStream>,
    service: S,
    sessions: Option<ServerSessionFactory>,
    counters: Arc<LoopCounters>,
    connections: Vec<Option<LoopConnection<S>>>,
    free: Vec<u32>,
    next_generation: u32,
    /// Connections that have to complete their handshake, or to close, before a deadline.
    deadlines: VecDeque<(Time, SocketToken)>,
    /// Delayed responses with their connections, the earliest on top.
    delayed: BinaryHeap<Reverse<(DelayedResponse, SocketToken)>>,
    /// When the last two waits for events began. Events that the second wait reports happened after the first began, so
    /// `waits_began[0]` is a lower bound of their time.
    waits_began: [Time; 2],
    buffers: LoopBuffers,
}

impl<S: LoopService> LoopWorker<S> {
    fn new(
        mailbox: mpsc::Receiver<TcpStream>,
        service: S,
        sessions: Option<ServerSessionFactory>,
        counters: Arc<LoopCounters>,
    ) -> io::Result<LoopWorker<S>> {
        let clock = service.clock();
        Ok(LoopWorker {
            // A server never connects, so it resolves no names.
            network: OsNetwork::new(clock, &[], service.socket_options(), 0)?,
            clock,
            mailbox,
            service,
            sessions,
            counters,
            connections: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
            deadlines: VecDeque::new(),
            delayed: BinaryHeap::new(),
            waits_began: [clock.now(); 2],
            buffers: LoopBuffers::new(),
        })
    }

    /// Runs until the sender of the mailbox ([`WorkerSender`]) is dropped.
    ///
    /// # Errors
    /// When the poller itself fails.
    fn run(mut self) -> io::Result<()> {
        if !self.service.socket_options().spin.is_zero() {
            OsNetwork::minimize_timer_slack();
        }
        defect::restart_on_panic(&mut self, LoopWorker::serve, LoopWorker::reset_after_panic)
    }

    /// Closes all connections and replaces the buffers: after a panic neither can be trusted.
    fn reset_after_panic(&mut self) {
        for index in 0..self.connections.len() as u32 {
            if self.close(index) {
                increment_counter(&self.counters.broken);
            }
        }
        self.deadlines.clear();
        self.delayed.clear();
        self.buffers = LoopBuffers::new();
    }

    fn serve(&mut self) -> io::Result<()> {
        let busy_poll = self.service.busy_poll();
        let mut ready = Vec::new();
        // The time until which the worker polls instead of sleeping.
        let mut awake_until = None;
        // The mailbox is read before the first wait: after a panic, it may contain connections whose wake-up has been
        // consumed.
        while self.take_new_connections() {
            let wake = self.next_wake(awake_until);
            self.waits_began = [self.waits_began[1], self.clock.now()];
            self.network.wait(wake, &mut ready)?;
            let is_busy = !ready.is_empty() && !busy_poll.is_zero();
            for event in ready.drain(..) {
                self.handle_event(event);
            }
            self.write_due_responses();
            if is_busy {
                awake_until = Some(self.clock.now() + busy_poll);
            }
            self.close_expired();
        }
        for connection in self.connections.iter_mut().flatten() {
            connection.shut_down(&mut self.network, &self.service, &mut self.buffers.out);
        }
        for index in 0..self.connections.len() as u32 {
            self.close(index);
        }
        Ok(())
    }

    fn next_wake(&self, awake_until: Option<Time>) -> Option<WakeTime> {
        let wake = self.next_coarse_wake(awake_until);
        match self.delayed.peek() {
            Some(Reverse((first, _))) if wake.is_none_or(|at| first.due <= at) => Some(WakeTime {
                at: first.due,
                kind: WaitKind::Precise,
            }),
            _ => wake.map(|at| WakeTime {
                at,
                kind: WaitKind::Rough,
            }),
        }
    }

    fn next_coarse_wake(&self, awake_until: Option<Time>) -> Option<Time> {
        let now = || self.clock.now();
        if let Some(until) = awake_until {
            let now = now();
            if now < until {
                return Some(now);
            }
        }
        (!self.deadlines.is_empty()).then(|| now() + DEADLINE_CHECK_INTERVAL)
    }

    /// Writes the delayed responses that are due.
    fn write_due_responses(&mut self) {
        while let Some(Reverse((first, token))) = self.delayed.peek().copied()
            && first.due <= self.clock.now()
        {
            self.delayed.pop();
            let Some(connection) = find_connection(&mut self.connections, token) else {
                continue;
            };
            let out = &mut self.buffers.out;
            out.clear();
            let disposition =
                (self.service).write_delayed_response(&mut connection.state, first.number, out);
            if out.is_empty() {
                continue;
            }
            let began = self.clock.now();
            let written = connection.write(&mut self.network, out);
            let written = written.and_then(|()| connection.flush(&mut self.network));
            let ended = self.clock.now();
            match written {
                Ok(is_all) => {
                    if is_all {
                        (self.service)
                            .on_delayed_response_written(&mut connection.state, [began, ended]);
                    }
                    if disposition == ConnectionDisposition::Closing {
                        connection.send_close_notify(&mut self.network);
                        let _ = connection.socket.shutdown(Shutdown::Write);
                    }
                }
                Err(e) => {
                    tracing::debug!("writing: {e}");
                    increment_counter(&self.counters.broken);
                    self.close(token.0 as u32);
                }
            }
        }
    }

    /// Adds the connections in the mailbox. Returns false when its sender has been dropped.
    fn take_new_connections(&mut self) -> bool {
        loop {
            match self.mailbox.try_recv() {
                Ok(socket) => {
                    if let Err(e) = self.add_connection(socket) {
                        tracing::warn!("taking a connection: {e}");
                        increment_counter(&self.counters.broken);
                    }
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn add_connection(&mut self, socket: TcpStream) -> io::Result<()> {
        // This fails on Unix sockets, which do not use Nagle's algorithm.
        let _ = socket.set_nodelay(true);
        let transport = match &self.sessions {
            None => LoopTransport::Plain(None),
            Some(sessions) => LoopTransport::Tls(sessions.new_session().map_err(io::Error::other)?),
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
        let token = SocketToken(u64::from(generation) << 32 | u64::from(index));
        if let Err(e) = self.network.watch_socket(&socket, token) {
            self.free.push(index);
            return Err(e);
        }
        let mut connection = LoopConnection {
            socket,
            generation,
            transport,
            state: self.service.new_connection(),
        };
        if matches!(connection.transport, LoopTransport::Plain(_)) {
            let out = &mut self.buffers.out;
            out.clear();
            self.service.on_open(&mut connection.state, out);
            // If this write fails, reading the socket fails, too, and reports the error.
            let _ = connection.write(&mut self.network, out);
        } else {
            let deadline = self.clock.now() + HANDSHAKE_TIMEOUT;
            self.deadlines.push_back((deadline, token));
        }
        self.connections[index as usize] = Some(connection);
        let open = self.counters.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.counters.peak_open.fetch_max(open, Ordering::Relaxed);
        Ok(())
    }

    fn handle_event(&mut self, event: SocketReady) {
        let Some(connection) = find_connection(&mut self.connections, event.token) else {
            return;
        };
        fault::point(S::SERVICE_NAME);
        let to = (&mut self.network, &mut self.buffers);
        let empty_at = self.waits_began[0];
        let ended = connection.serve(to, &self.service, &self.counters.handshakes, empty_at);
        while let Some(held) = self.service.next_delayed_response(&mut connection.state) {
            self.delayed.push(Reverse((held, event.token)));
        }
        match ended {
            ServeOutcome::Waiting => return,
            ServeOutcome::Refused => {
                increment_counter(&self.counters.handshakes_failed);
                let deadline = self.clock.now() + LINGER_TIMEOUT;
                self.deadlines.push_back((deadline, event.token));
                return;
            }
            ServeOutcome::Abandoned => increment_counter(&self.counters.handshakes_failed),
            ServeOutcome::Closed => {}
            ServeOutcome::Broken(why) => {
                tracing::debug!("{why}");
                increment_counter(&self.counters.broken);
            }
        }
        self.close(event.token.0 as u32);
    }

    /// Closes a connection. Returns false if there is none at this index.
    fn close(&mut self, index: u32) -> bool {
        let Some(connection) = self.connections[index as usize].take() else {
            return false;
        };
        self.service.on_closed(&connection.state);
        self.network.close(connection.socket);
        self.free.push(index);
        self.counters.open.fetch_sub(1, Ordering::Relaxed);
        true
    }

    fn close_expired(&mut self) {
        // Connections whose handshake is complete stay in the queue until they reach its front.
        while let Some((deadline, token)) = self.deadlines.front().copied() {
            let awaited =
                find_connection(&mut self.connections, token).filter(|c| c.has_deadline());
            if awaited.is_some() && deadline > self.clock.now() {
                break;
            }
            if let Some(connection) = awaited {
                if matches!(connection.transport, LoopTransport::Tls(_)) {
                    tracing::debug!("no tls handshake within {HANDSHAKE_TIMEOUT:?}");
                    increment_counter(&self.counters.handshakes_failed);
                }
                self.close(token.0 as u32);
            }
            self.deadlines.pop_front();
        }
    }
}

/// Returns the connection that a token names; `None` if it was closed earlier in the same batch of events.
fn find_connection<S: LoopService>(
    connections: &mut [Option<LoopConnection<S>>],
    token: SocketToken,
) -> Option<&mut LoopConnection<S>> {
    let (index, generation) = (token.0 as u32, (token.0 >> 32) as u32);
    let connection = connections.get_mut(index as usize)?.as_mut()?;
    (connection.generation == generation).then_some(connection)
}

fn increment_counter(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
