//! The interface between relays and protocols: a protocol's name in a relay's configuration and how its
//! connections are relayed. For protocols whose calls share connections, the interface also covers the length and
//! purpose of frames, changing a frame's id, the meaning of header fields, and rejecting a call with a response of
//! the protocol.
//!
//! [`crate::registry::RELAYED_PROTOCOLS`] lists the protocols. The relay itself does not depend on any of
//! them.

mod watchdog;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use plimsoll_engine::transport::address::LocalResourceError;
use plimsoll_model::Outcome;

pub use watchdog::Watchdog;
pub(crate) use watchdog::{CallWatch, CodecFunction};

/// A protocol that relays support.
#[derive(Debug)]
pub struct RelayProtocol<C> {
    /// The protocol's name in a relay's configuration.
    pub name: &'static str,
    /// How its connections are relayed.
    pub mode: RelayMode<C>,
}

/// How the connections of a protocol are relayed.
#[derive(Debug)]
pub enum RelayMode<C> {
    /// Calls share connections, as frames with ids.
    Frames {
        /// Makes the codec of a route.
        open: fn(&CodecOptions<'_>) -> Result<C, CodecError>,
        /// Whether the codec is a shared object, whose path is given by a configuration key with the protocol's
        /// name.
        has_file: bool,
    },
    /// Calls share connections, as streams of HTTP/2.
    Streams {
        /// The protocol's usual name, for messages.
        title: &'static str,
    },
    /// Bytes are relayed unchanged, with one upstream connection for each client connection.
    Bytes,
}

/// The error of opening a codec.
pub type CodecError = Box<dyn Error + Send + Sync>;

/// The options of a codec, from the configuration of its route.
#[derive(Clone, Copy, Debug)]
pub struct CodecOptions<'a> {
    /// The route's name, for messages.
    pub route: &'a str,
    /// The shared object of the codec, if the protocol is implemented by a plugin.
    pub file: Option<&'a Path>,
    /// The maximum length of a frame, in bytes.
    pub max_frame: usize,
    /// How long one call of a plugin's function may take.
    pub timeout: Duration,
    /// Reports plugin functions that do not return.
    pub watchdog: &'a Watchdog,
}

/// The sender of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSender {
    /// The end that makes calls.
    Client,
    /// The end that answers.
    Server,
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayFrameKind {
    /// A request that expects a response.
    Request {
        /// The timeout that the frame specifies; `None`: it specifies none.
        timeout: Option<Duration>,
    },
    /// A request that expects no response.
    Oneway,
    /// A response.
    Response {
        /// The protocol's status code; 0: success.
        status: u32,
    },
    /// A heartbeat, which the receiver acknowledges.
    Heartbeat,
    /// The acknowledgement of a heartbeat.
    HeartbeatAck,
    /// The sender accepts no more requests on this connection.
    GoAway,
    /// A well-formed frame that cannot be relayed.
    Other,
}

/// A complete frame at the beginning of the received bytes.
#[derive(Clone, Copy, Debug)]
pub struct FrameInfo {
    /// The frame's length, in bytes.
    pub length: usize,
    /// The id that associates a response with its request.
    pub id: u64,
    /// The frame's purpose.
    pub kind: RelayFrameKind,
    /// The codec's notes about the frame's layout.
    pub flavor: FrameFlavor,
}

/// Codec-specific details of a frame, such as its layout, from which the codec can write a response in the
/// same format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFlavor(pub(crate) u64);

/// The reason why the relay answers a call itself, with a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The limit of requests in flight is reached.
    Busy,
    /// There is no connection to an upstream server.
    NoUpstream,
    /// The relay lacks a local resource for a connection to a server.
    LocalResource(LocalResourceError),
    /// The server did not respond in time.
    Timeout,
    /// The upstream connection closed while the call was in flight.
    UpstreamClosed,
    /// The route's configuration injects this fault.
    InjectedFault,
    /// The request or its response is longer than the route's `max_frame`.
    FrameTooLarge,
    /// The server's response is malformed. It is not relayed, since the client might close its connection
    /// because of it.
    MalformedResponse,
}

/// Received bytes that are invalid, or a frame that could not be written: the connection is closed.
#[derive(Debug)]
pub struct FrameError {
    /// The problem, in words.
    pub why: String,
    /// Who caused it.
    pub origin: FaultOrigin,
    /// The frame, if its end and its call are known, with the reason for rejecting that call. The connection
    /// then stays open, and only that call fails.
    pub call: Option<(FrameInfo, RejectReason)>,
}

/// Who caused an invalid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOrigin {
    /// The sender of the bytes.
    Peer,
    /// The codec itself, such as a plugin.
    Codec,
    /// The protocol has no frame for the purpose.
    Protocol,
}

impl FrameError {
    /// Creates an error that the peer caused.
    pub(crate) fn new(why: impl Into<String>) -> FrameError {
        FrameError {
            why: why.into(),
            origin: FaultOrigin::Peer,
            call: None,
        }
    }
}

/// A reader and writer of the frames of a protocol whose calls share connections.
pub trait FrameCodec {
    /// Opens the codec of a route.
    ///
    /// # Errors
    /// Returns an error if the plugin can't be loaded.
    fn open(options: &CodecOptions<'_>) -> Result<Self, CodecError>
    where
        Self: Sized;

    /// Returns the number of frame layouts. Frames of different layouts never share an upstream connection.
    fn layout_count(&self) -> usize {
        1
    }

    /// Returns the layout's index, which is less than [`FrameCodec::layout_count`].
    fn layout_index(&self, _flavor: FrameFlavor) -> usize {
        0
    }

    /// Returns true if the first bytes of a connection belong to this protocol, and false if there are too few to tell.
    /// The default implementation returns true, for protocols whose first frame is checked anyway.
    fn recognise(&self, _from: FrameSender, _bytes: &[u8]) -> Result<bool, FrameError> {
        Ok(true)
    }

    /// Returns the frame that `bytes` begin with; `None`: it is not complete yet.
    fn read(&self, from: FrameSender, bytes: &[u8]) -> Result<Option<FrameInfo>, FrameError>;

    /// Appends `frame` with another id. `flavor` is the [`FrameInfo::flavor`] of the frame.
    fn renumber(
        &self,
        frame: &[u8],
        flavor: FrameFlavor,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError>;

    /// Appends a heartbeat. Returns false if the protocol has none.
    fn write_heartbeat(
        &self,
        layout: usize,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<bool, FrameError>;

    /// Appends the acknowledgement of a heartbeat.
    fn write_heartbeat_ack(
        &self,
        id: u64,
        flavor: FrameFlavor,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError>;

    /// Appends a response that rejects the call for the given reason.
    fn write_rejection(
        &self,
        id: u64,
        flavor: FrameFlavor,
        why: RejectReason,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError>;

    /// Returns the status of a response as one word.
    fn status(&self, frame: &[u8]) -> Option<String>;

    /// Returns the usual name of a status code.
    fn status_name(&self, status: u32) -> String {
        status.to_string()
    }
}

/// The information that a protocol whose calls are HTTP/2 streams reads from a list of header fields. Connections
/// may also carry calls of other protocols, whose fields are ignored.
pub trait StreamFields: Default {
    /// Names of fields whose values differ from call to call.
    const VARYING_FIELDS: &'static [&'static [u8]];

    /// Reads one field of the list.
    fn read_field(&mut self, name: &[u8], value: &[u8]);

    /// Returns true if the list begins a call of the protocol, or the response to one.
    fn is_protocol_call(&self) -> bool;

    /// Returns the timeout that the request specifies.
    fn timeout(&self) -> Option<Duration>;

    /// Returns the call's status: a code of the protocol, below 1000.
    fn status(&self) -> Option<u32>;

    /// Returns the usual name of a status code.
    fn status_name(status: u32) -> String;

    /// Calls `push` with the fields that every response begins with.
    fn push_initial_fields(push: impl FnMut(&[u8], &[u8]));

    /// Calls `push` with the fields that end a response and say why the call failed. The protocol must have a
    /// status for `outcome`.
    fn push_final_fields(outcome: Outcome, why: &str, push: impl FnMut(&[u8], &[u8]));
}
