//! What a relay has to know of a protocol: its name in a configuration and how its connections are
//! carried; and where calls share connections, where frames end and what they are for, how to give
//! them another id, what header fields say, and how to answer, in the protocol's own terms, a call that
//! failed.
//!
//! [`crate::registry::RELAYED_PROTOCOLS`] lists the protocols. The relay knows none of them by name.

mod watchdog;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use plimsoll_engine::address::Lack;
use plimsoll_model::Outcome;

pub use watchdog::Watchdog;
pub(crate) use watchdog::{Function, Watch};

/// A protocol that relays carry.
#[derive(Debug)]
pub struct Relayed<C> {
    /// The protocol's name in a relay's configuration.
    pub name: &'static str,
    /// How its requests share connections.
    pub carriage: Carriage<C>,
}

/// How the connections of a protocol are carried.
#[derive(Debug)]
pub enum Carriage<C> {
    /// Calls share connections, as frames with ids.
    Frames {
        /// Makes the codec of a route.
        open: fn(&CodecOptions<'_>) -> Result<C, Unusable>,
        /// The codec is in a file, which is given by a key that has the protocol's name.
        has_file: bool,
    },
    /// Calls share connections, as streams of HTTP/2.
    Streams {
        /// What people call the protocol.
        title: &'static str,
    },
    /// Bytes are passed on as they come: a connection for a connection.
    Bytes,
}

/// Why a codec can't be used.
pub type Unusable = Box<dyn Error + Send + Sync>;

/// What a codec is made with: of the route that it is for.
#[derive(Clone, Copy, Debug)]
pub struct CodecOptions<'a> {
    /// The route's name, for messages.
    pub route: &'a str,
    /// The shared object, for a protocol that comes as a plugin.
    pub file: Option<&'a Path>,
    /// The longest frame. Bytes.
    pub max_frame: usize,
    /// How long one call into a file's code may take.
    pub timeout: Duration,
    /// Reports codecs that don't return.
    pub watchdog: &'a Watchdog,
}

/// Who sent what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The end that makes calls.
    Client,
    /// The end that answers.
    Server,
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `timeout`: what it brings of its own.
    Request {
        /// What the frame leaves for the call; `None`: it does not say.
        timeout: Option<Duration>,
    },
    /// A request that wants no answer.
    Oneway,
    /// `status`: a number of the protocol.
    Response {
        /// 0: success.
        status: u32,
    },
    /// Answered by who receives it.
    Heartbeat,
    /// The answer to one.
    HeartbeatAck,
    /// The sender takes no more requests on this connection.
    GoAway,
    /// Well-formed, and nothing that can be passed on.
    Other,
}

/// A whole frame at the beginning of what was read.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The frame's length. Bytes.
    pub length: usize,
    /// The id by which answers find their requests.
    pub id: u64,
    /// What it is for.
    pub kind: Kind,
    /// How its bytes are laid out.
    pub manner: Manner,
}

/// What its codec remembers of a frame, so that an answer can be given in its manner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner(pub(crate) u64);

/// Why a call is answered by the relay itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// As many requests are in flight as may be.
    Busy,
    /// No connection to a server.
    NoUpstream,
    /// The relay itself lacks something for a connection to a server.
    Lack(Lack),
    /// The server did not answer in time.
    Timeout,
    /// The upstream's connection ended with the call in flight.
    Cut,
    /// The route's file asks for it.
    Fault,
    /// The request, or its answer, is longer than the route's `max_frame`.
    TooLong,
    /// The server's answer is malformed, and its client may end its connection for it.
    BadAnswer,
}

/// The bytes, or what was to be made of them, can't be meant: their connection is closed.
#[derive(Debug)]
pub struct Broken {
    /// The problem, in words.
    pub why: String,
    /// Whose failure it is.
    pub by: Blame,
    /// A frame of which it is known where it ends, and whose call it is: that call alone fails, for this reason.
    pub call: Option<(Seen, Why)>,
}

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// Who sent the bytes.
    Peer,
    /// The codec itself, such as a plugin.
    Codec,
    /// The protocol has no such message.
    Protocol,
}

impl Broken {
    /// Makes one that is the peer's fault.
    pub(crate) fn new(why: impl Into<String>) -> Broken {
        Broken {
            why: why.into(),
            by: Blame::Peer,
            call: None,
        }
    }
}

/// Reads and writes the frames of a protocol whose calls share connections.
pub trait FrameCodec {
    /// # Errors
    /// When its file can't be used.
    fn open(options: &CodecOptions<'_>) -> Result<Self, Unusable>
    where
        Self: Sized;

    /// Manners of frames that never share an upstream connection.
    fn layouts(&self) -> usize {
        1
    }

    /// Less than [`FrameCodec::layouts`].
    fn layout(&self, _manner: Manner) -> usize {
        0
    }

    /// Whether the first bytes of a connection are of this protocol; `false`: there are too few.
    /// Where a protocol's first frame shows it, all are.
    fn recognise(&self, _from: Sender, _bytes: &[u8]) -> Result<bool, Broken> {
        Ok(true)
    }

    /// The frame that `bytes` begin with; `None`: not all of it is there yet.
    fn read(&self, from: Sender, bytes: &[u8]) -> Result<Option<Seen>, Broken>;

    /// Appends `frame`, which was read with this manner, with another id.
    fn renumber(
        &self,
        frame: &[u8],
        manner: Manner,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken>;

    /// Appends a heartbeat; `false`: the protocol has none.
    fn heartbeat(&self, layout: usize, id: u64, out: &mut Vec<u8>) -> Result<bool, Broken>;

    /// Appends the answer to a heartbeat.
    fn heartbeat_ack(&self, id: u64, manner: Manner, out: &mut Vec<u8>) -> Result<(), Broken>;

    /// Appends an answer with the reason why the call failed.
    fn refuse(&self, id: u64, manner: Manner, why: Why, out: &mut Vec<u8>) -> Result<(), Broken>;

    /// The status of an answer, in a word.
    fn status(&self, frame: &[u8]) -> Option<String>;

    /// What people call a status.
    fn status_name(&self, status: u32) -> String {
        status.to_string()
    }
}

/// What a protocol whose calls are streams of HTTP/2 says in a list of header fields. A connection may
/// carry other calls, too: in their fields it says nothing.
pub trait StreamFields: Default {
    /// Fields whose values differ from call to call.
    const CHANGING: &'static [&'static [u8]];

    /// Reads one field of the list.
    fn note(&mut self, name: &[u8], value: &[u8]);

    /// The list begins a call of the protocol, or the answer to one.
    fn are_of_protocol(&self) -> bool;

    /// How long the call may take, as its request says.
    fn timeout(&self) -> Option<Duration>;

    /// How the call ended: a number of the protocol, below 1000.
    fn status(&self) -> Option<u32>;

    /// What people call a status.
    fn status_name(status: u32) -> String;

    /// Calls `push` with the fields that every answer begins with.
    fn begin_answer(push: impl FnMut(&[u8], &[u8]));

    /// Calls `push` with the fields that end an answer, with the reason why the call failed. `outcome`:
    /// one that the protocol has a status for.
    fn end_answer(outcome: Outcome, why: &str, push: impl FnMut(&[u8], &[u8]));
}
