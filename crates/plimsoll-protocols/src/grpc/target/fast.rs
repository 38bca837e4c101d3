//! The reference server `fast`, which answers every call with the same bytes as fast as possible: for
//! benchmarks of clients, where the server must not be the bottleneck.
//!
//! All requests of one read are answered with one write (over TLS: one sequence of records).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use plimsoll_model::formats::units::{ByteSize, Period};

use plimsoll_wire::http2::ErrorCode;

use crate::grpc::canned::{CannedConnection, CannedOptions, CannedServer};
use plimsoll_serving::ServeError;
use plimsoll_serving::event_loop::{self, LoopService};
use plimsoll_serving::reference::{ReferenceServer, ServeContext, ServerCounts, ServerFuture};

/// The limit of unsent response bytes, exceeded by at most one response.
const MAX_UNSENT_BYTES: usize = 1 << 20;
/// The length of gRPC's message prefix, in bytes.
const PREFIX_BYTES: u64 = 5;

/// Answers every unary call at once, with the same bytes: for measuring clients.
#[derive(Args, Clone, Debug)]
#[command(before_help = "Example: on one thread\n  \
    plimsoll serve fast --listen 127.0.0.1:50053 --workers 1")]
pub struct FastOptions {
    /// The answer's message (protobuf), without the gRPC prefix: a `score.ScoreResponse`.
    #[arg(skip = CannedOptions::default().message)]
    pub message: Vec<u8>,

    /// Answer with this many bytes, zeros after gRPC's prefix of five: for clients of HTTP/2 that do not decode them
    /// [default: a `score.ScoreResponse`, 14 bytes].
    #[arg(long, value_name = "SIZE")]
    pub answer_size: Option<ByteSize>,

    // Waking an idle virtual CPU is expensive; busy-polling keeps that out of measurements of clients.
    /// How long an idle worker looks for more calls before it sleeps. A client that sends to a sleeping server waits
    /// until it wakes; a server that never sleeps occupies a core.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub busy_poll: Period,
}

impl ReferenceServer for FastOptions {
    const COMMAND_NAME: &str = "fast";

    fn start(self, context: ServeContext) -> Result<ServerFuture, ServeError> {
        let message = match self.answer_size {
            None => self.message,
            Some(ByteSize(size)) if (PREFIX_BYTES..=MAX_UNSENT_BYTES as u64).contains(&size) => {
                vec![0; (size - PREFIX_BYTES) as usize]
            }
            Some(ByteSize(size)) => {
                return Err(ServeError::invalid_option(
                    "answer-size",
                    format!(
                        "is {size} bytes, and must be between {PREFIX_BYTES} and {MAX_UNSENT_BYTES}"
                    ),
                ));
            }
        };
        let canned = CannedServer::new(CannedOptions {
            message,
            max_concurrent_streams: context.bound.max_concurrent_streams,
            check_requests: false,
            max_unsent_bytes: MAX_UNSENT_BYTES,
            ..CannedOptions::default()
        });
        let answered = Arc::default();
        let service = FastService {
            canned,
            answered: Arc::clone(&answered),
            busy_poll: self.busy_poll.0,
        };
        let workers = context.workers.unwrap_or(1);
        Ok(Box::pin(async move {
            let served = event_loop::serve(context.bound, workers, service, context.stopped);
            Ok(ServerCounts::from_counters(
                served.await?,
                [("answered", &*answered)],
            ))
        }))
    }
}

#[derive(Clone)]
struct FastService {
    canned: CannedServer,
    answered: Arc<AtomicU64>,
    busy_poll: Duration,
}

impl LoopService for FastService {
    const SERVICE_NAME: &str = FastOptions::COMMAND_NAME;
    const IS_MOSTLY_IDLE: bool = false;
    type Connection = CannedConnection;

    fn busy_poll(&self) -> Duration {
        self.busy_poll
    }

    fn new_connection(&self) -> CannedConnection {
        self.canned.new_connection()
    }

    fn on_open(&self, connection: &mut CannedConnection, out: &mut Vec<u8>) {
        connection.send_preface(out);
    }

    fn receive(
        &self,
        connection: &mut CannedConnection,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        // No ids are appended to `held`: the connection answers all requests itself.
        let received = connection.receive(bytes, out, &mut Vec::new());
        received.map_err(|e| e.to_string())
    }

    fn append_next_part(&self, connection: &mut CannedConnection, out: &mut Vec<u8>) -> bool {
        let is_held_back = connection.is_held_back();
        if is_held_back {
            connection.resume_sending(out);
        }
        is_held_back
    }

    fn finish(&self, connection: &mut CannedConnection, out: &mut Vec<u8>) {
        connection.send_goaway(ErrorCode::NO_ERROR, out);
    }

    fn on_closed(&self, connection: &CannedConnection) {
        self.answered
            .fetch_add(connection.answer_count(), Ordering::Relaxed);
    }
}
