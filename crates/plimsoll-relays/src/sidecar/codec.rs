//! What the sidecar has to know of a protocol whose calls share connections: where frames
//! end and what they are for, how to give them another id, and how to answer, in
//! the protocol's own terms, a call that failed.
//!
//! The multiplexing calls this and knows no protocol by name.

mod bolt;
mod plugin;

use std::time::Duration;

use plimsoll_protocols::bolt::Form;

use super::SidecarError;
use super::config::{Protocol, Route};
use super::watchdog::Watchdog;

/// The protocol of a route whose calls share connections.
#[derive(Clone, Debug)]
pub(super) enum Codec {
    /// Bytes of a frame's content, at most.
    Bolt(usize),
    Plugin(plugin::Watched),
}

/// Who sent what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Client,
    Server,
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `timeout`: what it brings of its own.
    Request {
        timeout: Option<Duration>,
    },
    /// A request that wants no answer.
    Oneway,
    /// `status`: a number of the protocol.
    Response {
        status: u32,
    },
    Heartbeat,
    HeartbeatAck,
    /// The sender takes no more requests on this connection.
    GoAway,
    /// Well-formed, and nothing that can be passed on.
    Other,
}

/// A whole frame at the beginning of what was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Bytes.
    pub(super) length: usize,
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) manner: Manner,
}

/// What is remembered of a frame, so that an answer can be given in its manner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Bolt { form: Form, codec: u8 },
    Plugin { note: u64 },
}

/// Why a call is answered by the sidecar itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Busy,
    NoUpstream,
    Timeout,
    /// The upstream's connection ended with the call in flight.
    Cut,
    /// The route's file asks for it.
    Fault,
    /// The request, or its answer, is longer than the route's `max_frame`.
    TooLong,
}

/// The bytes, or what was to be made of them, can't be meant: their connection is closed.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) why: String,
    pub(super) by: Blame,
    /// It is a frame that is only too long: its length is known, and whose call it is.
    pub(super) too_long: Option<Seen>,
}

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    Peer,
    Plugin,
    /// The protocol has no such message.
    Protocol,
}

impl Broken {
    /// By the peer.
    pub(super) fn new(why: impl Into<String>) -> Broken {
        Broken {
            why: why.into(),
            by: Blame::Peer,
            too_long: None,
        }
    }
}

impl Codec {
    /// That of a route; `None`: a stream of bytes.
    ///
    /// # Errors
    /// When its plugin can't be used.
    pub(super) fn of(route: &Route, watchdog: &Watchdog) -> Result<Option<Codec>, SidecarError> {
        Ok(match (route.protocol, &route.plugin) {
            (Protocol::Bolt, _) => Some(Codec::Bolt(route.max_frame())),
            (Protocol::Plugin, Some(path)) => {
                let loaded = plimsoll_plugin::Codec::load(path);
                let codec = loaded.map_err(|source| SidecarError::Plugin {
                    route: route.name.clone(),
                    source,
                })?;
                Some(Codec::Plugin(plugin::Watched::new(
                    codec,
                    watchdog.watch(route),
                    route.max_frame(),
                )))
            }
            (Protocol::Grpc | Protocol::Tcp | Protocol::Plugin, _) => None,
        })
    }

    /// The same, for the thread of one worker.
    pub(super) fn of_worker(&self, route: &Route, watchdog: &Watchdog) -> Codec {
        match self {
            Codec::Bolt(_) => Codec::Bolt(route.max_frame()),
            Codec::Plugin(codec) => {
                Codec::Plugin(codec.of_worker(watchdog.watch(route), route.max_frame()))
            }
        }
    }

    /// Manners of frames that never share an upstream connection.
    pub(super) fn layouts(&self) -> usize {
        match self {
            Codec::Bolt(_) => bolt::LAYOUTS,
            Codec::Plugin(_) => 1,
        }
    }

    /// Whether the first bytes of a connection are of this protocol; `false`: there are
    /// too few.
    pub(super) fn recognise(&self, from: From, bytes: &[u8]) -> Result<bool, Broken> {
        match self {
            // Its first frame shows that.
            Codec::Bolt(_) => Ok(true),
            Codec::Plugin(codec) => plugin::recognise(codec, from, bytes),
        }
    }

    /// The frame that `bytes` begin with; `None`: not all of it is there yet.
    #[inline]
    pub(super) fn read(&self, from: From, bytes: &[u8]) -> Result<Option<Seen>, Broken> {
        match self {
            Codec::Bolt(limit) => bolt::read(bytes, *limit),
            Codec::Plugin(codec) => plugin::read(codec, from, bytes),
        }
    }

    /// Appends `frame`, which was [`Codec::read`] with this manner, with another id.
    #[inline]
    pub(super) fn renumber(
        &self,
        frame: &[u8],
        manner: Manner,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        match (self, manner) {
            (Codec::Bolt(_), Manner::Bolt { form, .. }) => bolt::renumber(frame, form, id, out),
            (Codec::Plugin(codec), Manner::Plugin { note }) => {
                return plugin::renumber(codec, frame, note, id, out);
            }
            _ => return Err(another_route()),
        }
        Ok(())
    }

    /// Appends a heartbeat; `false`: the protocol has none.
    pub(super) fn heartbeat(
        &self,
        layout: usize,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<bool, Broken> {
        match self {
            Codec::Bolt(_) => bolt::heartbeat(layout, id, out),
            Codec::Plugin(codec) => return plugin::heartbeat(codec, id, out),
        }
        Ok(true)
    }

    /// Appends the answer to a heartbeat.
    pub(super) fn heartbeat_ack(
        &self,
        id: u64,
        manner: Manner,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        match (self, manner) {
            (Codec::Bolt(_), Manner::Bolt { form, .. }) => bolt::heartbeat_ack(form, id, out),
            (Codec::Plugin(codec), Manner::Plugin { note }) => {
                return plugin::heartbeat_ack(codec, id, note, out);
            }
            _ => return Err(another_route()),
        }
        Ok(())
    }

    /// What people call the status of an answer.
    pub(super) fn status_name(&self, status: u32) -> String {
        match self {
            Codec::Bolt(_) => bolt::status_name(status),
            Codec::Plugin(_) => status.to_string(),
        }
    }

    /// The status of an answer of this manner.
    pub(super) fn status(&self, frame: &[u8]) -> Option<String> {
        match self {
            Codec::Bolt(_) => bolt::status(frame),
            Codec::Plugin(codec) => plugin::status(codec, frame),
        }
    }

    /// Appends an answer with the reason why the call failed.
    pub(super) fn refuse(
        &self,
        id: u64,
        manner: Manner,
        why: Why,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        match (self, manner) {
            (Codec::Bolt(limit), Manner::Bolt { form, codec }) => {
                bolt::refuse(form, codec, id, why, *limit, out)
            }
            (Codec::Plugin(plugin), Manner::Plugin { note }) => {
                return plugin::refuse(plugin, id, note, why, out);
            }
            _ => return Err(another_route()),
        }
        Ok(())
    }
}

impl Manner {
    /// Less than [`Codec::layouts`].
    #[inline]
    pub(super) fn layout(self) -> usize {
        match self {
            Manner::Bolt { form, .. } => bolt::layout(form),
            Manner::Plugin { .. } => 0,
        }
    }
}

/// Calls never leave their route, and a route has one codec.
#[cold]
fn another_route() -> Broken {
    Broken::new("the frame is of another route's protocol")
}
