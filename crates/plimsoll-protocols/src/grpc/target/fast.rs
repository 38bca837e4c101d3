//! A server that answers every call with the same bytes, as fast as it can: for
//! benchmarks of clients, where the server must not be the limit.
//!
//! Worker threads each wait on their own epoll for their own connections; nothing is
//! shared between them. All requests that one read brings are answered with one write
//! (over TLS: one run of records). Buffers belong to the worker: a connection that is
//! keeping up owns none. Whoever serves accepts, and deals connections out in turn, so
//! that a few connections load all workers evenly.

mod worker;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Args;
use plimsoll_model::units::{Period, Size};

use self::worker::{Mailbox, Worker};
use crate::grpc::canned::{Canned, CannedOptions};
use crate::serving::reference::{self, Counted, Place, Reference, Serving};
use crate::serving::{Bound, ConnectionStats, Listener, ServeError, joined};

/// Bytes of answers made before those there are have been written, one answer more or less.
const MAX_OUT: usize = 1 << 20;
/// Of gRPC's prefix. Bytes.
const PREFIX: u64 = 5;

/// Answers every unary call at once, with the same bytes: for measuring clients.
#[derive(Args, Clone, Debug)]
#[command(before_help = "Example: on one thread\n  \
    plimsoll serve fast --listen 127.0.0.1:50053 --workers 1")]
pub struct FastOptions {
    // Threads. Each serves its share of the connections.
    #[arg(skip = 1usize)]
    pub workers: usize,

    // The answer's message (protobuf), without the gRPC prefix: a `score.ScoreResponse`.
    #[arg(skip = CannedOptions::default().message)]
    pub message: Vec<u8>,

    /// Answer with so many bytes, zeros after gRPC's prefix of five: for clients of HTTP/2 that do not
    /// decode them [default: a `score.ScoreResponse`, 14 bytes].
    #[arg(long, value_name = "SIZE")]
    pub answer_size: Option<Size>,

    // On a virtual machine waking is dear; a measurement of clients is of less else.
    /// How long an idle worker looks for more calls before it sleeps. A client that sends to
    /// a sleeping server pays for waking it; a busy one takes a core.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub busy_poll: Period,
}

impl Default for FastOptions {
    fn default() -> FastOptions {
        reference::untyped()
    }
}

impl Reference for FastOptions {
    const NAME: &str = "fast";

    fn serving(mut self, place: Place) -> Result<Serving, ServeError> {
        self.workers = place.workers.unwrap_or(1);
        Ok(Box::pin(serve(place.bound, self, place.stopped)))
    }
}

/// What workers count while they run.
#[derive(Debug, Default)]
struct Counters {
    open: AtomicU64,
    most_at_once: AtomicU64,
    handshakes_failed: AtomicU64,
    broken: AtomicU64,
    answered: AtomicU64,
}

/// Serves until `shutdown` completes. Answers need no time, so there is nothing to drain:
/// connections get a GOAWAY and are closed.
///
/// # Errors
/// When an option makes no sense, or threads or the socket fail.
pub async fn serve(
    bound: Bound,
    options: FastOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<Counted, ServeError> {
    if options.workers == 0 {
        return Err(ServeError::option("workers", "must be at least 1"));
    }
    let message = match options.answer_size {
        None => options.message,
        Some(Size(size)) if (PREFIX..=MAX_OUT as u64).contains(&size) => {
            vec![0; (size - PREFIX) as usize]
        }
        Some(Size(size)) => {
            return Err(ServeError::option(
                "answer-size",
                format!("is {size} bytes, and must be between {PREFIX} and {MAX_OUT}"),
            ));
        }
    };
    let canned = Canned::new(CannedOptions {
        message,
        max_concurrent_streams: bound.max_concurrent_streams,
        check_requests: false,
        most_out: MAX_OUT,
        ..CannedOptions::default()
    });
    let counters = Arc::new(Counters::default());
    let mut mailboxes = Vec::with_capacity(options.workers);
    let mut threads = Vec::with_capacity(options.workers);
    for _ in 0..options.workers {
        let (worker, mailbox) = Worker::new(
            canned.clone(),
            bound.tls.clone(),
            Arc::clone(&counters),
            options.busy_poll.0,
        )
        .map_err(ServeError::io("making a worker's poller"))?;
        let thread = thread::Builder::new()
            .name("fast".to_owned())
            .spawn(move || worker.run())
            .map_err(ServeError::io("starting a worker thread"))?;
        mailboxes.push(mailbox);
        threads.push(thread);
    }

    let listener = bound.into_listener()?;
    let accepted = deal(&listener, &mailboxes, shutdown).await?;
    drop(listener);
    // Workers end when no sender of connections is left.
    drop(mailboxes);
    joined(threads).await?;

    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let connections = ConnectionStats {
        accepted,
        most_at_once: read(&counters.most_at_once),
        handshakes_failed: read(&counters.handshakes_failed),
        broken: read(&counters.broken),
        cut_off: 0,
    };
    Ok(Counted::of(connections, [("answered", &counters.answered)]))
}

/// Accepts connections and gives them to the workers in turn, until `shutdown`
/// completes. Returns how many there were.
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
