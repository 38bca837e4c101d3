//! The relay codec of protocols implemented by plugins: converts the plugin's results to a relay's types.

use std::path::Path;
use std::sync::Arc;

use plimsoll_plugin::{self as plugin, Decoded, Fault, Make, Match};

use crate::relayed::{
    Blame, Broken, CodecOptions, FrameCodec, Function, Kind, Manner, Seen, Sender, Unusable, Watch,
    Why,
};

/// A plugin as the thread of one worker uses it.
#[derive(Clone, Debug)]
pub struct Codec(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    codec: plugin::Codec,
    watch: Arc<Watch>,
    /// The maximum length of a frame. Bytes.
    limit: usize,
}

/// The bytes within which a plugin must recognise its protocol.
const MAX_TO_RECOGNISE: usize = 4096;

impl Codec {
    fn new(codec: plugin::Codec, options: &CodecOptions<'_>) -> Codec {
        Codec(Arc::new(Inner {
            codec,
            watch: options.watchdog.watch(options),
            limit: options.max_frame,
        }))
    }

    pub(crate) fn of_worker(&self, options: &CodecOptions<'_>) -> Codec {
        Codec::new(self.0.codec.clone(), options)
    }

    #[inline]
    fn call<T>(&self, function: Function, call: impl FnOnce(&plugin::Codec) -> T) -> T {
        self.0.watch.within(function, || call(&self.0.codec))
    }

    fn decode(&self, from: Sender, bytes: &[u8], limit: usize) -> Result<Decoded, Fault> {
        self.call(Function::Decode, |codec| {
            codec.decode(bytes, sender(from), limit)
        })
    }

    /// Appends a frame that the plugin builds. Returns false if the protocol has no such frame. Errors are
    /// the codec's, since no peer's bytes are involved.
    fn make(&self, what: Make, id: u64, manner: Manner, out: &mut Vec<u8>) -> Result<bool, Broken> {
        let make = |codec: &plugin::Codec| codec.make(what, id, manner.0, &[], out);
        self.call(Function::Make, make).map_err(|fault| Broken {
            by: Blame::Codec,
            ..self.broken(fault)
        })
    }

    /// Appends a response that a caller waits for. If the protocol has no such response, returns an error,
    /// which closes the connection instead.
    fn answer(&self, what: Make, id: u64, manner: Manner, out: &mut Vec<u8>) -> Result<(), Broken> {
        if self.make(what, id, manner, out)? {
            return Ok(());
        }
        let name = self.0.codec.name();
        Err(Broken {
            by: Blame::Protocol,
            ..Broken::new(format!(
                "{name}: the protocol has no such response: {what:?}"
            ))
        })
    }

    fn broken(&self, fault: Fault) -> Broken {
        let by = if fault.is_the_plugins() {
            Blame::Codec
        } else {
            Blame::Peer
        };
        let (key, call) = match fault {
            Fault::TooLong { length, head, .. } => {
                let length = usize::try_from(length).ok();
                let seen = head.zip(length).map(|(head, length)| Seen {
                    length,
                    id: head.id,
                    kind: kind(head.kind),
                    manner: Manner(head.note),
                });
                (" (max_frame)", seen.map(|seen| (seen, Why::TooLong)))
            }
            _ => ("", None),
        };
        Broken {
            why: format!("{}: {fault}{key}", self.0.codec.name()),
            by,
            call,
        }
    }
}

impl FrameCodec for Codec {
    fn open(options: &CodecOptions<'_>) -> Result<Codec, Unusable> {
        let path = options.file.unwrap_or(Path::new(""));
        Ok(Codec::new(plugin::Codec::load(path)?, options))
    }

    fn recognise(&self, from: Sender, bytes: &[u8]) -> Result<bool, Broken> {
        match self.call(Function::Match, |codec| codec.matches(bytes, sender(from))) {
            Ok(Match::Yes) => Ok(true),
            Ok(Match::More) if bytes.len() < MAX_TO_RECOGNISE => Ok(false),
            Ok(Match::More | Match::No) => Err(Broken::new(format!(
                "the first bytes are not {}",
                self.0.codec.name()
            ))),
            Err(fault) => Err(self.broken(fault)),
        }
    }

    fn read(&self, from: Sender, bytes: &[u8]) -> Result<Option<Seen>, Broken> {
        match self.decode(from, bytes, self.0.limit) {
            Ok(Decoded::Frame(frame)) => Ok(Some(Seen {
                length: frame.length,
                id: frame.id,
                kind: kind(frame.kind),
                manner: Manner(frame.note),
            })),
            Ok(Decoded::More(_)) => Ok(None),
            Err(fault) => Err(self.broken(fault)),
        }
    }

    fn renumber(
        &self,
        frame: &[u8],
        manner: Manner,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        let encode = |codec: &plugin::Codec| codec.encode(frame, manner.0, id, out);
        self.call(Function::Encode, encode)
            .map_err(|fault| self.broken(fault))
    }

    fn heartbeat(&self, _layout: usize, id: u64, out: &mut Vec<u8>) -> Result<bool, Broken> {
        self.make(Make::Heartbeat, id, Manner::default(), out)
    }

    fn heartbeat_ack(&self, id: u64, manner: Manner, out: &mut Vec<u8>) -> Result<(), Broken> {
        self.answer(Make::HeartbeatAck, id, manner, out)
    }

    fn refuse(&self, id: u64, manner: Manner, why: Why, out: &mut Vec<u8>) -> Result<(), Broken> {
        let what = match why {
            Why::Busy => Make::Busy,
            Why::Timeout => Make::Timeout,
            Why::Cut => Make::Closed,
            // Plugins have no response for these reasons.
            Why::NoUpstream | Why::Lack(_) | Why::Fault | Why::TooLong | Why::BadAnswer => {
                Make::Unreachable
            }
        };
        self.answer(what, id, manner, out)
    }

    /// Returns the status code of the protocol.
    fn status(&self, frame: &[u8]) -> Option<String> {
        match self.decode(Sender::Server, frame, usize::MAX) {
            Ok(Decoded::Frame(frame)) => match frame.kind {
                plugin::Kind::Response { status } => Some(status.to_string()),
                _ => None,
            },
            Ok(Decoded::More(_)) | Err(_) => None,
        }
    }
}

fn sender(from: Sender) -> plugin::Sender {
    match from {
        Sender::Client => plugin::Sender::Client,
        Sender::Server => plugin::Sender::Server,
    }
}

fn kind(kind: plugin::Kind) -> Kind {
    match kind {
        plugin::Kind::Request { timeout } => Kind::Request { timeout },
        plugin::Kind::Oneway => Kind::Oneway,
        plugin::Kind::Response { status } => Kind::Response { status },
        plugin::Kind::Heartbeat => Kind::Heartbeat,
        plugin::Kind::HeartbeatAck => Kind::HeartbeatAck,
        plugin::Kind::GoAway => Kind::GoAway,
    }
}
