//! The reference server `known`, whose delay of each request is known, so that measurements can be checked against
//! it.
//!
//! Delays are drawn from a law ([`plimsoll_model::law`]: a distribution) with a seed. An envelope file
//! ([`plimsoll_serving::envelope`]) contains a commitment to the seed before the first request, and the seed itself at
//! the end. A delay counts from the kernel's receive timestamp of the request. The interval in which the response was
//! written is recorded, so this server's own lateness can be separated from the times that an ideal client would have
//! measured. Each thread runs one event loop, whose waits are exact to a few microseconds.

mod connection;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand;
use clap::Args;
use plimsoll_engine::Clock;
use plimsoll_engine::transport::network::os::SocketOptions;
use plimsoll_model::Time;
use plimsoll_model::formats::input;
use plimsoll_model::formats::units::Period;
use plimsoll_model::law::ServerDelays;

use self::connection::{KnownConnection, PendingRequest};
use crate::grpc::canned::{CannedOptions, CannedServer};
use plimsoll_serving::ServeError;
use plimsoll_serving::envelope::{EnvelopeLog, EnvelopeWriter, ServedRequest};
use plimsoll_serving::event_loop::{
    self, ArrivalTimes, ConnectionDisposition, DelayedResponse, LoopService,
};
use plimsoll_serving::reference::{ReferenceServer, ServeContext, ServerCounts, ServerFuture};

/// The limit of `--spin`; a longer busy-wait is treated as a typing error.
const MAX_SPIN: Duration = Duration::from_millis(100);

/// HTTP/1.1, HTTP/2 and gRPC: answers after delays from a known distribution, committed to beforehand, to check what
/// clients measure.
#[derive(Args, Clone, Debug)]
#[command(
    before_help = "Example: one request in fifty takes 40 ms, if law.toml says so\n  \
    plimsoll serve known --law law.toml --envelope envelope.jsonl --listen 127.0.0.1:8080"
)]
pub struct KnownOptions {
    /// The distribution of delays (TOML), such as: law = "exponential" and mean = "5ms" on two lines.
    #[arg(long, value_name = "FILE")]
    law: PathBuf,

    /// New file for the commitment, the outcome of each request, and at the end the values that open the commitment.
    #[arg(long, value_name = "FILE", default_value = "envelope.jsonl")]
    envelope: PathBuf,

    /// Seed of the random delays [default: random].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Busy-wait this long before an answer is due, for precision; "0s" saves CPU.
    #[arg(long, value_name = "TIME", default_value = "50us")]
    spin: Period,
}

impl ReferenceServer for KnownOptions {
    const COMMAND_NAME: &str = "known";
    const SINGLE_PROCESS_REASON: Option<&str> =
        Some("one process numbers all requests and writes their envelope");

    fn start(self, context: ServeContext) -> Result<ServerFuture, ServeError> {
        let named = |problem: String| {
            let law = self.law.display();
            ServeError::invalid_option("law", format!("{law}: {problem}"))
        };
        if self.spin.0 > MAX_SPIN {
            let problem = format!("{} is too long; at most {}", self.spin, Period(MAX_SPIN));
            return Err(ServeError::invalid_option("spin", problem));
        }
        let law =
            input::read_to_string(&self.law).map_err(|e| named(format!("can't read it: {e}")))?;
        let seed = match self.seed {
            Some(seed) => seed,
            None => {
                let mut bytes = [0; 8];
                rand::fill(&mut bytes).map_err(|_| {
                    ServeError::invalid_option(
                        "seed",
                        "the system's random number generator failed",
                    )
                })?;
                u64::from_le_bytes(bytes)
            }
        };
        let delays = ServerDelays::new(&law, seed).map_err(|e| named(e.to_string()))?;
        let begun = EnvelopeWriter::start(&self.envelope, seed, law);
        let (writer, log) = begun.map_err(|e| {
            let shown = self.envelope.display();
            let problem = match e.kind() {
                io::ErrorKind::AlreadyExists => {
                    format!("{shown} exists: move it away, or choose another file")
                }
                _ => format!("can't make {shown}: {e}"),
            };
            ServeError::invalid_option("envelope", problem)
        })?;
        let announced = &context.bound.startup_facts;
        announced.add("commitment", &*writer.commitment);
        let counters = Arc::<KnownCounters>::default();
        let service = KnownService {
            clock: Clock::new(),
            spin: self.spin.0,
            delays: Arc::new(Mutex::new(delays)),
            canned: CannedServer::new(CannedOptions {
                max_concurrent_streams: context.bound.max_concurrent_streams,
                answered_by_caller: true,
                check_requests: false,
                ..CannedOptions::default()
            }),
            log,
            counters: Arc::clone(&counters),
        };
        let bound = context.bound.with_alpn(&[b"h2", b"http/1.1"]);
        let workers = context.workers.unwrap_or(1);
        Ok(Box::pin(async move {
            let served = event_loop::serve(bound, workers, service, context.stopped).await;
            // All workers have ended, so the writer has received all requests.
            let written = tokio::task::spawn_blocking(|| writer.finish()).await;
            let connections = served?;
            written
                .unwrap_or_else(|e| Err(io::Error::other(e)))
                .map_err(ServeError::io("writing the envelope"))?;
            let counted = [
                ("answered", &counters.answered),
                ("unanswered", &counters.unanswered),
            ];
            Ok(ServerCounts::from_counters(connections, counted))
        }))
    }
}

#[derive(Debug, Default)]
struct KnownCounters {
    answered: AtomicU64,
    /// Requests whose clients disconnected, or whose responses were not due before the server stopped.
    unanswered: AtomicU64,
}

#[derive(Clone)]
struct KnownService {
    clock: Clock,
    spin: Duration,
    delays: Arc<Mutex<ServerDelays>>,
    canned: CannedServer,
    log: EnvelopeLog,
    counters: Arc<KnownCounters>,
}

impl KnownService {
    fn record_request(&self, pending: PendingRequest, written: Option<[Time; 2]>) {
        let counter = if written.is_some() {
            &self.counters.answered
        } else {
            &self.counters.unanswered
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let absolute = |time: Time| self.clock.origin_ns() + time.0;
        let ArrivalTimes { last, earliest } = pending.arrived;
        self.log.add(ServedRequest {
            number: pending.number,
            arrived_ns: absolute(last),
            arrived_after_ns: (earliest < last).then(|| absolute(earliest)),
            due_ns: absolute(pending.due),
            written_ns: written.map(|between| between.map(absolute)),
        });
    }
}

impl LoopService for KnownService {
    const SERVICE_NAME: &str = KnownOptions::COMMAND_NAME;
    const IS_MOSTLY_IDLE: bool = false;
    type Connection = KnownConnection;

    fn clock(&self) -> Clock {
        self.clock
    }

    fn socket_options(&self) -> SocketOptions {
        SocketOptions {
            spin: self.spin,
            wants_receive_times: true,
            ..SocketOptions::default()
        }
    }

    fn new_connection(&self) -> KnownConnection {
        KnownConnection::new(self.clock.now())
    }

    fn on_arrival(&self, connection: &mut KnownConnection, at: ArrivalTimes) {
        connection.arrived = at;
    }

    fn receive(
        &self,
        connection: &mut KnownConnection,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        let origin_ns = self.clock.origin_ns();
        // Requests are numbered in the order in which they are read, over all connections.
        connection.receive(&self.canned, bytes, out, &mut |arrived| {
            let number = delays.request_count();
            let due = delays.next(origin_ns + arrived.last.0);
            PendingRequest {
                number,
                arrived,
                due: Time(due - origin_ns),
            }
        })
    }

    fn next_delayed_response(&self, connection: &mut KnownConnection) -> Option<DelayedResponse> {
        connection.newly_held.pop_front()
    }

    fn write_delayed_response(
        &self,
        connection: &mut KnownConnection,
        number: u64,
        out: &mut Vec<u8>,
    ) -> ConnectionDisposition {
        let (afterwards, unanswered) = connection.write_due_answer(number, out);
        if let Some(pending) = unanswered {
            self.record_request(pending, None);
        }
        afterwards
    }

    fn on_delayed_response_written(&self, connection: &mut KnownConnection, between: [Time; 2]) {
        if let Some(pending) = connection.answer_in_write.take() {
            self.record_request(pending, Some(between));
        }
    }

    fn finish(&self, connection: &mut KnownConnection, out: &mut Vec<u8>) {
        connection.finish(out);
    }

    fn on_closed(&self, connection: &KnownConnection) {
        for pending in connection.unanswered() {
            self.record_request(*pending, None);
        }
    }
}
