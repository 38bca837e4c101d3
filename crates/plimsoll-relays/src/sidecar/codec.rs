//! What the sidecar has to know of a protocol whose calls share connections: where frames
//! end and what they are for, how to give them another id, and how to say in the
//! protocol's own words that a call came to nothing.
//!
//! The multiplexing calls this and knows no protocol by name.

mod bolt;

use std::time::Duration;

use plimsoll_protocols::bolt::Form;

/// The protocol of a route whose calls are told apart.
#[derive(Clone, Debug)]
pub(super) enum Codec {
    Bolt,
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
    Response,
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
}

/// Why a call is answered by the sidecar itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Busy,
    NoUpstream,
    Timeout,
    /// The upstream's connection ended with the call in flight.
    Cut,
}

/// The bytes, or what was to be made of them, can't be meant: their connection is closed.
#[derive(Debug)]
pub(super) struct Broken(pub(super) String);

impl Codec {
    /// Manners of frames that never share an upstream connection.
    pub(super) fn layouts(&self) -> usize {
        match self {
            Codec::Bolt => bolt::LAYOUTS,
        }
    }

    /// The frame that `bytes` begin with; `None`: not all of it is there yet.
    #[inline]
    pub(super) fn read(&self, _from: From, bytes: &[u8]) -> Result<Option<Seen>, Broken> {
        match self {
            Codec::Bolt => bolt::read(bytes),
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
            (Codec::Bolt, Manner::Bolt { form, .. }) => bolt::renumber(frame, form, id, out),
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
            Codec::Bolt => bolt::heartbeat(layout, id, out),
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
            (Codec::Bolt, Manner::Bolt { form, .. }) => bolt::heartbeat_ack(form, id, out),
        }
        Ok(())
    }

    /// How an answer of this manner says that the call ended.
    pub(super) fn status(&self, frame: &[u8]) -> Option<String> {
        match self {
            Codec::Bolt => bolt::status(frame),
        }
    }

    /// Appends an answer that says why the call came to nothing.
    pub(super) fn refuse(
        &self,
        id: u64,
        manner: Manner,
        why: Why,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        match (self, manner) {
            (Codec::Bolt, Manner::Bolt { form, codec }) => bolt::refuse(form, codec, id, why, out),
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
        }
    }
}
