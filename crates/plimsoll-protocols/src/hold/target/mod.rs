//! `serve hold`: gives back what it gets, and holds as many connections in as little memory
//! as it can.
//!
//! A worker is one loop over the engine's network: no task and no stack a connection, one
//! read buffer for all, and at rest a connection keeps a descriptor and, over TLS, its
//! secrets ([`plimsoll_engine::tls::ServerSession`]). Workers share the listener; the
//! kernel wakes one of them for a new connection.

mod worker;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use plimsoll_engine::network::os::Waker;
use plimsoll_engine::tls::ServerSessions;
use plimsoll_engine::tls::SharedTally;
use rustls::ServerConfig;

use crate::serving::{Bound, ConnectionStats, Resumption, ServeError, joined};

use worker::Worker;

/// How the server is built, and as whom it speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldOptions {
    /// Threads. Each serves its share of the connections.
    pub workers: usize,
    /// A folder of certificates `NAME.crt` with keys `NAME.key` (PEM): a client that asks
    /// for NAME (RFC 6066 §3) gets that one, any other client the listener's own.
    pub certificates: Option<PathBuf>,
    /// Send no session tickets, so that nothing can be resumed.
    pub no_tickets: bool,
    /// Leave records to the TLS library, as TLS 1.2 demands: a connection at rest keeps all of its
    /// session.
    pub library_records: bool,
}

impl Default for HoldOptions {
    fn default() -> HoldOptions {
        HoldOptions {
            workers: 1,
            certificates: None,
            no_tickets: false,
            library_records: false,
        }
    }
}

/// What became of the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldStats {
    /// Bytes given back.
    pub echoed_bytes: u64,
    pub full_handshakes: u64,
    pub resumed_handshakes: u64,
    pub connections: ConnectionStats,
}

/// What workers count while they run.
#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    open: AtomicU64,
    most_at_once: AtomicU64,
    handshakes_failed: AtomicU64,
    broken: AtomicU64,
    handshakes: SharedTally,
    full: AtomicU64,
    resumed: AtomicU64,
    echoed: AtomicU64,
}

/// The server, all its files read and checked.
#[derive(Debug)]
pub struct Hold {
    bound: Bound,
    workers: usize,
    tls: Option<ServerConfig>,
    library_records: bool,
}

impl Hold {
    /// # Errors
    /// When an option makes no sense, or a certificate can't be used: the file is named.
    pub fn new(bound: Bound, options: &HoldOptions) -> Result<Hold, ServeError> {
        if options.workers == 0 {
            return Err(ServeError::Option {
                option: "workers",
                problem: "must be at least 1".to_owned(),
            });
        }
        let tls = bound.presenting(
            b"",
            options.certificates.as_deref(),
            Resumption::of(options.no_tickets, 0)?,
        )?;
        Ok(Hold {
            bound,
            workers: options.workers,
            tls,
            library_records: options.library_records,
        })
    }

    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Serves until `shutdown` completes. There is nothing to drain: connections get a
    /// goodbye and are closed.
    ///
    /// # Errors
    /// When threads or a worker's poller fail.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<HoldStats, ServeError> {
        let failed = |doing| move |source| ServeError::Io { doing, source };
        let counters = Arc::new(Counters {
            handshakes: self.bound.handshakes(),
            ..Counters::default()
        });
        let stopped = Arc::new(AtomicBool::new(false));
        let (sender, wakers) = mpsc::channel();
        let mut threads = Vec::with_capacity(self.workers);
        for _ in 0..self.workers {
            let listener = self
                .bound
                .listener
                .try_clone()
                .map_err(failed("sharing the listening socket"))?;
            let sessions = match self.library_records {
                true => ServerSessions::of_library,
                false => ServerSessions::new,
            };
            let sessions = self.tls.as_ref().map(sessions);
            let (counters, stopped) = (Arc::clone(&counters), Arc::clone(&stopped));
            let sender = sender.clone();
            let work = move || {
                let worker = Worker::new(listener, sessions, counters, stopped)?;
                // Whoever serves waits for it.
                let _ = sender.send(worker.waker());
                drop(sender);
                worker.run()
            };
            let thread = thread::Builder::new()
                .name("hold".to_owned())
                .spawn(work)
                .map_err(failed("starting a worker thread"))?;
            threads.push(thread);
        }
        drop(sender);
        // A worker that can't be made reports why when it is joined.
        let wakers: Vec<Waker> = wakers.iter().collect();
        if wakers.len() == self.workers {
            shutdown.await;
        }
        drop(self.bound);
        stopped.store(true, Ordering::Relaxed);
        wakers.iter().for_each(|waker| waker.wake());
        joined(threads).await?;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(HoldStats {
            echoed_bytes: read(&counters.echoed),
            full_handshakes: read(&counters.full),
            resumed_handshakes: read(&counters.resumed),
            connections: ConnectionStats {
                accepted: read(&counters.accepted),
                most_at_once: read(&counters.most_at_once),
                handshakes_failed: read(&counters.handshakes_failed),
                broken: read(&counters.broken),
                cut_off: 0,
            },
        })
    }
}
