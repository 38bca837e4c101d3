//! `serve hold`: gives back what it gets, and holds as many connections in as little memory
//! as it can.
//!
//! A worker is one loop over the engine's network: no task and no stack a connection, one
//! read buffer for all, and at rest a connection keeps a descriptor and, over TLS, its
//! secrets ([`plimsoll_engine::tls::ServerSession`]). Workers share the listener; the
//! kernel wakes one of them for a new connection.

mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use clap::Args;
use plimsoll_engine::poller::Waker;
use plimsoll_engine::tls::ServerSessions;
use plimsoll_engine::tls::SharedTally;
use rustls::ServerConfig;

use crate::serving::reference::{Counted, Identity, Place, Reference, Serving};
use crate::serving::{ConnectionStats, ServeError, joined};

use worker::Worker;

/// Gives back every byte, and holds as many connections in as little memory as it can.
#[derive(Args, Clone, Debug)]
#[command(
    before_help = "Example: TLS 1.3, then 18,000 connections that rest\n  \
    plimsoll serve hold --listen 127.0.0.1:4434 --tls-cert certs/server.crt --tls-key certs/server.key\n  \
    plimsoll hold tls://localhost:4434 --ca certs/ca.crt --connections 18000 --for 10s"
)]
pub struct HoldOptions {
    #[command(flatten)]
    identity: Identity,
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

impl Reference for HoldOptions {
    const NAME: &str = "hold";

    fn serving(self, place: Place) -> Result<Serving, ServeError> {
        let workers = place.workers.unwrap_or(1);
        if workers == 0 {
            return Err(ServeError::option("workers", "must be at least 1"));
        }
        let tls = place.bound.presenting(
            b"",
            self.identity.tls_certs.as_deref(),
            self.identity.resumption(),
        )?;
        Ok(Box::pin(serve(place, workers, tls)))
    }
}

/// Serves until `place.stopped` completes. There is nothing to drain: connections get a
/// goodbye and are closed.
async fn serve(
    place: Place,
    workers: usize,
    tls: Option<ServerConfig>,
) -> Result<Counted, ServeError> {
    let bound = place.bound;
    let counters = Arc::new(Counters {
        handshakes: bound.handshakes(),
        ..Counters::default()
    });
    let stopped = Arc::new(AtomicBool::new(false));
    let (sender, wakers) = mpsc::channel();
    let mut threads = Vec::with_capacity(workers);
    for _ in 0..workers {
        let listener = bound
            .listener
            .try_clone()
            .map_err(ServeError::io("sharing the listening socket"))?;
        // TLS 1.2 takes the library's records: a connection at rest keeps all of its session.
        let sessions = match place.offers_1_2 {
            true => ServerSessions::of_library,
            false => ServerSessions::new,
        };
        let sessions = tls.as_ref().map(sessions);
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
            .map_err(ServeError::io("starting a worker thread"))?;
        threads.push(thread);
    }
    drop(sender);
    // A worker that can't be made reports why when it is joined.
    let wakers: Vec<Waker> = wakers.iter().collect();
    if wakers.len() == workers {
        place.stopped.await;
    }
    drop(bound);
    stopped.store(true, Ordering::Relaxed);
    wakers.iter().for_each(|waker| waker.wake());
    joined(threads).await?;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let connections = ConnectionStats {
        accepted: read(&counters.accepted),
        most_at_once: read(&counters.most_at_once),
        handshakes_failed: read(&counters.handshakes_failed),
        broken: read(&counters.broken),
        cut_off: 0,
    };
    let counted = [
        ("echoed bytes", &counters.echoed),
        ("full handshakes", &counters.full),
        ("resumed handshakes", &counters.resumed),
    ];
    Ok(Counted::of(connections, counted))
}
