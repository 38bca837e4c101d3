//! A gRPC server that answers every request with the same bytes: no socket, no clock,
//! bytes in and bytes out.
//!
//! It is the far end in the simulation and the driver's tests, where it also checks that
//! the client keeps to RFC 9113 ([`CannedOptions::check_requests`]), and inside the fast
//! reference server, where it must never be the limit: answers are prepared once, only
//! stream ids are put in, and all that one call of [`CannedConnection::receive`] causes
//! is appended to one buffer.
//!
//! ```
//! use plimsoll_protocols::grpc::canned::{Canned, CannedOptions};
//!
//! let canned = Canned::new(CannedOptions::default());
//! let mut connection = canned.connection();
//! let (mut out, mut held) = (Vec::new(), Vec::new());
//! connection.open(&mut out); // SETTINGS, at once
//! // Then, for whatever the client sends:
//! let bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
//! connection.receive(bytes, &mut out, &mut held).unwrap();
//! ```

mod connection;

use std::sync::Arc;

use thiserror::Error;

pub use self::connection::CannedConnection;
use plimsoll_wire::hpack::Encoder;
use plimsoll_wire::http2::{DEFAULT_MAX_FRAME, End, ErrorCode, MAX_WINDOW, Violation, write};

use crate::http2::stream_id_places;

/// What the server answers, and how it treats its clients.
#[derive(Clone, Debug)]
pub struct CannedOptions {
    /// The answer's message, without gRPC's prefix. Not sent if `status` is not 0.
    pub message: Vec<u8>,
    /// How many of them an answer has: at least 1.
    pub messages: u32,
    /// Requests may have any number of messages, packed or not; otherwise one, not packed.
    pub streams: bool,
    /// `grpc-status`.
    pub status: u8,
    /// `grpc-message`, percent-encoded; empty: none.
    pub status_message: String,
    /// SETTINGS_MAX_CONCURRENT_STREAMS; `None`: no limit.
    pub max_concurrent_streams: Option<u32>,
    /// Windows for requests, of a stream and of the connection (at least 65,535, which
    /// HTTP/2 gives). Bytes. Opened again as requests arrive.
    pub stream_window: u32,
    /// See `stream_window`.
    pub connection_window: u32,
    /// SETTINGS_HEADER_TABLE_SIZE. Bytes.
    pub header_table_size: u32,
    /// GOAWAY with this many requests taken; later ones are ignored.
    pub goaway_after: Option<u64>,
    /// Every nth request is reset with the code, and not answered.
    pub reset_every: Option<(u64, ErrorCode)>,
    /// Whole requests are reported to the caller, who completes them when it likes.
    pub answered_by_caller: bool,
    /// Answer a held request even if the client has reset it, as a server does whose
    /// answer was on the way.
    pub ignore_resets: bool,
    /// Bytes of answers that one [`CannedConnection::receive`] may make, one answer more or
    /// less; what is beyond waits for [`CannedConnection::go_on`].
    pub most_out: usize,
    /// Decode requests and fail on what a client must not do. Off: only what is needed
    /// to answer is read, and nothing is checked.
    pub check_requests: bool,
}

impl Default for CannedOptions {
    /// An answer of 9 bytes (`score.ScoreResponse` of 0.5), status OK, no limits.
    fn default() -> CannedOptions {
        CannedOptions {
            message: vec![9, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f],
            messages: 1,
            streams: false,
            status: 0,
            status_message: String::new(),
            max_concurrent_streams: None,
            stream_window: MAX_WINDOW,
            connection_window: MAX_WINDOW,
            header_table_size: 4096,
            goaway_after: None,
            reset_every: None,
            answered_by_caller: false,
            ignore_resets: false,
            most_out: usize::MAX,
            check_requests: true,
        }
    }
}

/// The client did what a client must not.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the client broke the protocol: {0}")]
pub struct CannedError(String);

impl From<Violation> for CannedError {
    fn from(violation: Violation) -> CannedError {
        CannedError(violation.to_string())
    }
}

/// The prepared answer, shared by the connections of a server.
#[derive(Clone, Debug)]
pub struct Canned(Arc<Prepared>);

#[derive(Debug)]
struct Prepared {
    options: CannedOptions,
    head: Blocks,
    /// Absent where the head says it all ("Trailers-Only").
    trailers: Option<Blocks>,
    /// The messages with their prefixes; empty in a Trailers-Only answer.
    body: Vec<u8>,
    table_needed: usize,
    /// A whole answer of steady blocks, and where its stream ids go.
    steady: Vec<u8>,
    ids: Box<[u32]>,
}

/// A field list's header blocks: see [`plimsoll_wire::hpack::Encoder`].
#[derive(Debug)]
struct Blocks {
    first: Vec<u8>,
    plain: Vec<u8>,
}

impl Canned {
    /// Prepares the answer, once for all connections.
    pub fn new(options: CannedOptions) -> Canned {
        let status = options.status.to_string();
        let mut last = vec![("grpc-status", &status[..])];
        if !options.status_message.is_empty() {
            last.push(("grpc-message", &options.status_message));
        }
        let mut head = vec![(":status", "200"), ("content-type", "application/grpc")];
        let trailers_only = options.status != 0;
        if trailers_only {
            head.append(&mut last);
        }
        let mut encoder = Encoder::default();
        let mut blocks = |fields: &[(&str, &str)]| Blocks {
            first: encoder.encode(fields.iter().copied()),
            plain: Encoder::encode_plain(fields.iter().copied()),
        };
        let head_blocks = blocks(&head);
        let trailers = (!trailers_only).then(|| blocks(&last));
        let table_needed = encoder.table_used();

        let mut body = Vec::new();
        let mut steady = Vec::new();
        let steady_head = encoder.encode(head.iter().copied());
        write::header_block(&mut steady, 0, &steady_head, End(trailers_only));
        if !trailers_only {
            for _ in 0..options.messages.max(1) {
                body.push(0);
                body.extend_from_slice(&(options.message.len() as u32).to_be_bytes());
                body.extend_from_slice(&options.message);
            }
            for chunk in body.chunks(DEFAULT_MAX_FRAME as usize) {
                write::data(&mut steady, 0, chunk, End(false));
            }
            let steady_trailers = encoder.encode(last.iter().copied());
            write::header_block(&mut steady, 0, &steady_trailers, End(true));
        }
        let ids = stream_id_places(&steady);
        let head = head_blocks;
        Canned(Arc::new(Prepared {
            options,
            head,
            trailers,
            body,
            table_needed,
            steady,
            ids,
        }))
    }

    /// The server's side of a new connection.
    pub fn connection(&self) -> CannedConnection {
        CannedConnection::new(Arc::clone(&self.0))
    }
}
