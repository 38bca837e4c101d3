//! A protocol that a plugin brings: what the plugin returns, in the multiplexing's terms.

use std::sync::Arc;

use plimsoll_plugin::{Codec, Decoded, Fault, Kind as PluginKind, Make, Match, Sender};

use super::super::watchdog::{Function, Watch};
use super::{Blame, Broken, From, Kind, Manner, Seen, Why};

/// A plugin as one worker's thread uses it.
#[derive(Clone, Debug)]
pub(in crate::sidecar) struct Watched(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    codec: Codec,
    watch: Arc<Watch>,
    /// Bytes of a frame, at most.
    limit: usize,
}

impl Watched {
    pub(super) fn new(codec: Codec, watch: Arc<Watch>, limit: usize) -> Watched {
        Watched(Arc::new(Inner {
            codec,
            watch,
            limit,
        }))
    }

    pub(super) fn of_worker(&self, watch: Arc<Watch>, limit: usize) -> Watched {
        Watched::new(self.0.codec.clone(), watch, limit)
    }

    fn name(&self) -> &str {
        self.0.codec.name()
    }

    #[inline]
    fn call<T>(&self, function: Function, call: impl FnOnce(&Codec) -> T) -> T {
        self.0.watch.within(function, || call(&self.0.codec))
    }
}

/// Bytes with which a plugin must know its protocol.
const MAX_TO_RECOGNISE: usize = 4096;

fn sender(from: From) -> Sender {
    match from {
        From::Client => Sender::Client,
        From::Server => Sender::Server,
    }
}

fn broken(codec: &Watched, fault: Fault) -> Broken {
    let by = match fault.is_the_plugins() {
        true => Blame::Plugin,
        false => Blame::Peer,
    };
    let key = match fault {
        Fault::TooLong { .. } => " (max_frame)",
        _ => "",
    };
    let too_long = match fault {
        Fault::TooLong {
            length,
            head: Some(head),
            ..
        } => usize::try_from(length).ok().map(|length| Seen {
            length,
            id: head.id,
            kind: kind(head.kind),
            manner: Manner::Plugin { note: head.note },
        }),
        _ => None,
    };
    Broken {
        why: format!("{}: {fault}{key}", codec.name()),
        by,
        too_long,
    }
}

/// What the plugin was to make itself: no peer has a part in it.
fn not_made(codec: &Watched, fault: Fault) -> Broken {
    Broken {
        by: Blame::Plugin,
        ..broken(codec, fault)
    }
}

/// `false`: more bytes are needed.
pub(super) fn recognise(codec: &Watched, from: From, bytes: &[u8]) -> Result<bool, Broken> {
    match codec.call(Function::Match, |codec| codec.matches(bytes, sender(from))) {
        Ok(Match::Yes) => Ok(true),
        Ok(Match::More) if bytes.len() < MAX_TO_RECOGNISE => Ok(false),
        Ok(Match::More | Match::No) => Err(Broken::new(format!(
            "the first bytes are not {}",
            codec.name()
        ))),
        Err(fault) => Err(broken(codec, fault)),
    }
}

pub(super) fn read(codec: &Watched, from: From, bytes: &[u8]) -> Result<Option<Seen>, Broken> {
    let limit = codec.0.limit;
    let decoded = codec.call(Function::Decode, |codec| {
        codec.decode(bytes, sender(from), limit)
    });
    let frame = match decoded {
        Ok(Decoded::Frame(frame)) => frame,
        Ok(Decoded::More(_)) => return Ok(None),
        Err(fault) => return Err(broken(codec, fault)),
    };
    Ok(Some(Seen {
        length: frame.length,
        id: frame.id,
        kind: kind(frame.kind),
        manner: Manner::Plugin { note: frame.note },
    }))
}

fn kind(kind: PluginKind) -> Kind {
    match kind {
        PluginKind::Request { timeout } => Kind::Request { timeout },
        PluginKind::Oneway => Kind::Oneway,
        PluginKind::Response { status } => Kind::Response { status },
        PluginKind::Heartbeat => Kind::Heartbeat,
        PluginKind::HeartbeatAck => Kind::HeartbeatAck,
        PluginKind::GoAway => Kind::GoAway,
    }
}

pub(super) fn renumber(
    codec: &Watched,
    frame: &[u8],
    note: u64,
    id: u64,
    out: &mut Vec<u8>,
) -> Result<(), Broken> {
    codec
        .call(Function::Encode, |codec| codec.encode(frame, note, id, out))
        .map_err(|fault| broken(codec, fault))
}

/// `false`: the protocol has no heartbeats.
pub(super) fn heartbeat(codec: &Watched, id: u64, out: &mut Vec<u8>) -> Result<bool, Broken> {
    codec
        .call(Function::Make, |codec| {
            codec.make(Make::Heartbeat, id, 0, &[], out)
        })
        .map_err(|fault| not_made(codec, fault))
}

pub(super) fn heartbeat_ack(
    codec: &Watched,
    id: u64,
    note: u64,
    out: &mut Vec<u8>,
) -> Result<(), Broken> {
    answer(codec, Make::HeartbeatAck, id, note, out)
}

pub(super) fn refuse(
    codec: &Watched,
    id: u64,
    note: u64,
    why: Why,
    out: &mut Vec<u8>,
) -> Result<(), Broken> {
    let what = match why {
        Why::Busy => Make::Busy,
        Why::NoUpstream => Make::Unreachable,
        Why::Timeout => Make::Timeout,
        Why::Cut => Make::Closed,
        // These have no words of their own.
        Why::Fault | Why::TooLong => Make::Unreachable,
    };
    answer(codec, what, id, note, out)
}

/// The protocol's own number.
pub(super) fn status(codec: &Watched, frame: &[u8]) -> Option<String> {
    let decoded = codec.call(Function::Decode, |codec| {
        codec.decode(frame, Sender::Server, usize::MAX)
    });
    match decoded {
        Ok(Decoded::Frame(frame)) => match frame.kind {
            PluginKind::Response { status } => Some(status.to_string()),
            _ => None,
        },
        Ok(Decoded::More(_)) | Err(_) => None,
    }
}

/// A caller waits for it: where the protocol has no such answer, the connection is closed instead.
fn answer(
    codec: &Watched,
    what: Make,
    id: u64,
    note: u64,
    out: &mut Vec<u8>,
) -> Result<(), Broken> {
    let made = codec.call(Function::Make, |codec| codec.make(what, id, note, &[], out));
    match made {
        Ok(true) => Ok(()),
        Ok(false) => Err(Broken {
            why: format!(
                "{}: the protocol has no answer for this: {what:?}",
                codec.name()
            ),
            by: Blame::Protocol,
            too_long: None,
        }),
        Err(fault) => Err(not_made(codec, fault)),
    }
}
