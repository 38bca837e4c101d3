//! A gRPC server that answers every request with the same bytes. It has no socket and no clock: bytes in, bytes
//! out.
//!
//! It is the server in the simulation and in the driver's tests, where it also checks that the client conforms
//! to RFC 9113 ([`CannedOptions::check_requests`]), and it runs inside the reference server `fast`, where it
//! must never be the bottleneck: responses are prepared once, only stream ids are filled in, and all responses of
//! one call of [`CannedConnection::receive`] are appended to one buffer.
//!
//! ```
//! use plimsoll_protocols::grpc::canned::{CannedServer, CannedOptions};
//!
//! let canned = CannedServer::new(CannedOptions::default());
//! let mut connection = canned.new_connection();
//! let (mut out, mut held) = (Vec::new(), Vec::new());
//! connection.send_preface(&mut out); // SETTINGS, at once
//! // Then, for whatever the client sends:
//! let bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
//! connection.receive(bytes, &mut out, &mut held).unwrap();
//! ```

mod connection;

use std::sync::Arc;

use thiserror::Error;

pub use self::connection::CannedConnection;
use plimsoll_wire::hpack::Encoder;
use plimsoll_wire::http2::{
    DEFAULT_MAX_FRAME_BYTES, EndStream, ErrorCode, MAX_WINDOW_BYTES, Violation, write,
};

use crate::http2::stream_id_offsets;

/// The responses of the server, and its limits.
#[derive(Clone, Debug)]
pub struct CannedOptions {
    /// The message of a response, without gRPC's prefix. Not sent if `status` is not 0.
    pub message: Vec<u8>,
    /// The number of messages in a response, at least 1.
    pub messages: u32,
    /// Whether requests may have any number of messages, compressed or not. Otherwise they must have one,
    /// uncompressed.
    pub streams: bool,
    /// The value of `grpc-status`.
    pub status: u8,
    /// The value of `grpc-message`, percent-encoded; empty: none.
    pub status_message: String,
    /// SETTINGS_MAX_CONCURRENT_STREAMS; `None`: no limit.
    pub max_concurrent_streams: Option<u32>,
    /// The receive window of a stream in bytes (at least 65,535, HTTP/2's default). It is replenished as requests
    /// arrive.
    pub stream_window: u32,
    /// The receive window of the connection in bytes; see `stream_window`.
    pub connection_window: u32,
    /// The value of SETTINGS_HEADER_TABLE_SIZE, in bytes.
    pub header_table_size: u32,
    /// Sends GOAWAY after this many requests. Later requests are ignored.
    pub goaway_after: Option<u64>,
    /// Resets every nth request with this code instead of answering it.
    pub reset_every: Option<(u64, ErrorCode)>,
    /// Whether complete requests are held: reported to the caller, who decides when to answer them.
    pub answered_by_caller: bool,
    /// Whether a held request is answered even if the client has reset it. This imitates a server whose response was
    /// already in transit.
    pub ignore_resets: bool,
    /// The limit of response bytes that one [`CannedConnection::receive`] produces, exceeded by at most one
    /// response. The rest waits for [`CannedConnection::resume_sending`].
    pub max_unsent_bytes: usize,
    /// Whether requests are decoded and violations by the client are errors. If not, requests are read only as far as
    /// necessary to answer them, and not checked.
    pub check_requests: bool,
}

impl Default for CannedOptions {
    /// Returns options for a response of 9 bytes (`score.ScoreResponse` of 0.5), status OK, and no limits.
    fn default() -> CannedOptions {
        CannedOptions {
            message: vec![9, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f],
            messages: 1,
            streams: false,
            status: 0,
            status_message: String::new(),
            max_concurrent_streams: None,
            stream_window: MAX_WINDOW_BYTES,
            connection_window: MAX_WINDOW_BYTES,
            header_table_size: 4096,
            goaway_after: None,
            reset_every: None,
            answered_by_caller: false,
            ignore_resets: false,
            max_unsent_bytes: usize::MAX,
            check_requests: true,
        }
    }
}

/// A violation of the protocol by the client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the client broke the protocol: {0}")]
pub struct CannedError(String);

impl From<Violation> for CannedError {
    fn from(violation: Violation) -> CannedError {
        CannedError(violation.to_string())
    }
}

/// A server: the response that is prepared once and shared by all connections.
#[derive(Clone, Debug)]
pub struct CannedServer(Arc<PreparedAnswer>);

#[derive(Debug)]
struct PreparedAnswer {
    options: CannedOptions,
    head: AnswerBlocks,
    /// The trailers; `None` if the response consists of one header block ("Trailers-Only").
    trailers: Option<AnswerBlocks>,
    /// The messages with their prefixes; empty in a Trailers-Only response.
    body: Vec<u8>,
    required_table_size: usize,
    /// A complete response with steady header blocks (see [`plimsoll_wire::hpack`]); `id_offsets` contains the offsets
    /// of its stream ids.
    steady: Vec<u8>,
    id_offsets: Box<[u32]>,
}

/// The first and the plain header block of a list of fields: see [`plimsoll_wire::hpack`].
#[derive(Debug)]
struct AnswerBlocks {
    first: Vec<u8>,
    plain: Vec<u8>,
}

impl CannedServer {
    /// Prepares the response, once for all connections.
    pub fn new(options: CannedOptions) -> CannedServer {
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
        let mut blocks = |fields: &[(&str, &str)]| AnswerBlocks {
            first: encoder.encode(fields.iter().copied()),
            plain: Encoder::encode_plain(fields.iter().copied()),
        };
        let head_blocks = blocks(&head);
        let trailers = (!trailers_only).then(|| blocks(&last));
        let table_needed = encoder.inserted_bytes();

        let mut body = Vec::new();
        let mut steady = Vec::new();
        let steady_head = encoder.encode(head.iter().copied());
        write::header_block(&mut steady, 0, &steady_head, EndStream(trailers_only));
        if !trailers_only {
            for _ in 0..options.messages.max(1) {
                body.push(0);
                body.extend_from_slice(&(options.message.len() as u32).to_be_bytes());
                body.extend_from_slice(&options.message);
            }
            for chunk in body.chunks(DEFAULT_MAX_FRAME_BYTES as usize) {
                write::data(&mut steady, 0, chunk, EndStream(false));
            }
            let steady_trailers = encoder.encode(last.iter().copied());
            write::header_block(&mut steady, 0, &steady_trailers, EndStream(true));
        }
        let ids = stream_id_offsets(&steady);
        let head = head_blocks;
        CannedServer(Arc::new(PreparedAnswer {
            options,
            head,
            trailers,
            body,
            required_table_size: table_needed,
            steady,
            id_offsets: ids,
        }))
    }

    /// Creates the server's side of a new connection.
    pub fn new_connection(&self) -> CannedConnection {
        CannedConnection::new(Arc::clone(&self.0))
    }
}
