//! The relay codec of protocols implemented by plugins: converts the plugin's results to a relay's types.

use std::path::Path;
use std::sync::Arc;

use plimsoll_plugin::{self as plugin, CodecFault, DecodeResult, Match, NewFrameKind};

use crate::interface::relayed::{
    CallWatch, CodecError, CodecFunction, CodecOptions, FaultOrigin, FrameCodec, FrameError,
    FrameFlavor, FrameInfo, FrameSender, RejectReason, RelayFrameKind,
};

/// A plugin's codec for the thread of one worker.
#[derive(Clone, Debug)]
pub struct PluginRelayCodec(Arc<SharedCodec>);

#[derive(Debug)]
struct SharedCodec {
    codec: plugin::Codec,
    watch: Arc<CallWatch>,
    /// The maximum length of a frame, in bytes.
    limit: usize,
}

/// The number of bytes after which a plugin must have recognised its protocol.
const MAX_RECOGNITION_BYTES: usize = 4096;

impl PluginRelayCodec {
    fn new(codec: plugin::Codec, options: &CodecOptions<'_>) -> PluginRelayCodec {
        PluginRelayCodec(Arc::new(SharedCodec {
            codec,
            watch: options.watchdog.register_watch(options),
            limit: options.max_frame,
        }))
    }

    pub(crate) fn for_worker(&self, options: &CodecOptions<'_>) -> PluginRelayCodec {
        PluginRelayCodec::new(self.0.codec.clone(), options)
    }

    #[inline]
    fn call_codec<T>(&self, function: CodecFunction, call: impl FnOnce(&plugin::Codec) -> T) -> T {
        self.0.watch.run_watched(function, || call(&self.0.codec))
    }

    fn decode(
        &self,
        from: FrameSender,
        bytes: &[u8],
        limit: usize,
    ) -> Result<DecodeResult, CodecFault> {
        self.call_codec(CodecFunction::Decode, |codec| {
            codec.decode(bytes, sender_role(from), limit)
        })
    }

    /// Appends a frame that the plugin builds. Returns false if the protocol has no such frame. Errors are
    /// attributed to the codec, since no peer's bytes are involved.
    fn append_built_frame(
        &self,
        what: NewFrameKind,
        id: u64,
        flavor: FrameFlavor,
        out: &mut Vec<u8>,
    ) -> Result<bool, FrameError> {
        let make = |codec: &plugin::Codec| codec.make_frame(what, id, flavor.0, &[], out);
        self.call_codec(CodecFunction::Make, make)
            .map_err(|fault| FrameError {
                origin: FaultOrigin::Codec,
                ..self.frame_error(fault)
            })
    }

    /// Appends a response that the plugin builds and that a caller waits for. If the protocol has no such response,
    /// returns an error, and the connection is closed instead.
    fn append_built_response(
        &self,
        what: NewFrameKind,
        id: u64,
        flavor: FrameFlavor,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        if self.append_built_frame(what, id, flavor, out)? {
            return Ok(());
        }
        let name = self.0.codec.name();
        Err(FrameError {
            origin: FaultOrigin::Protocol,
            ..FrameError::new(format!(
                "{name}: the protocol has no such response: {what:?}"
            ))
        })
    }

    fn frame_error(&self, fault: CodecFault) -> FrameError {
        let by = if fault.is_plugin_fault() {
            FaultOrigin::Codec
        } else {
            FaultOrigin::Peer
        };
        let (key, call) = match fault {
            CodecFault::TooLong { length, head, .. } => {
                let length = usize::try_from(length).ok();
                let seen = head.zip(length).map(|(head, length)| FrameInfo {
                    length,
                    id: head.id,
                    kind: relay_frame_kind(head.kind),
                    flavor: FrameFlavor(head.note),
                });
                (
                    " (max_frame)",
                    seen.map(|seen| (seen, RejectReason::FrameTooLarge)),
                )
            }
            _ => ("", None),
        };
        FrameError {
            why: format!("{}: {fault}{key}", self.0.codec.name()),
            origin: by,
            call,
        }
    }
}

impl FrameCodec for PluginRelayCodec {
    fn open(options: &CodecOptions<'_>) -> Result<PluginRelayCodec, CodecError> {
        let path = options.file.unwrap_or(Path::new(""));
        Ok(PluginRelayCodec::new(plugin::Codec::load(path)?, options))
    }

    fn recognise(&self, from: FrameSender, bytes: &[u8]) -> Result<bool, FrameError> {
        match self.call_codec(CodecFunction::Match, |codec| {
            codec.matches(bytes, sender_role(from))
        }) {
            Ok(Match::Yes) => Ok(true),
            Ok(Match::More) if bytes.len() < MAX_RECOGNITION_BYTES => Ok(false),
            Ok(Match::More | Match::No) => Err(FrameError::new(format!(
                "the first bytes are not {}",
                self.0.codec.name()
            ))),
            Err(fault) => Err(self.frame_error(fault)),
        }
    }

    fn read(&self, from: FrameSender, bytes: &[u8]) -> Result<Option<FrameInfo>, FrameError> {
        match self.decode(from, bytes, self.0.limit) {
            Ok(DecodeResult::Frame(frame)) => Ok(Some(FrameInfo {
                length: frame.length,
                id: frame.id,
                kind: relay_frame_kind(frame.kind),
                flavor: FrameFlavor(frame.note),
            })),
            Ok(DecodeResult::More(_)) => Ok(None),
            Err(fault) => Err(self.frame_error(fault)),
        }
    }

    fn renumber(
        &self,
        frame: &[u8],
        manner: FrameFlavor,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        let encode = |codec: &plugin::Codec| codec.encode(frame, manner.0, id, out);
        self.call_codec(CodecFunction::Encode, encode)
            .map_err(|fault| self.frame_error(fault))
    }

    fn write_heartbeat(
        &self,
        _layout: usize,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<bool, FrameError> {
        self.append_built_frame(NewFrameKind::Heartbeat, id, FrameFlavor::default(), out)
    }

    fn write_heartbeat_ack(
        &self,
        id: u64,
        manner: FrameFlavor,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        self.append_built_response(NewFrameKind::HeartbeatAck, id, manner, out)
    }

    fn write_rejection(
        &self,
        id: u64,
        manner: FrameFlavor,
        why: RejectReason,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        let what = match why {
            RejectReason::Busy => NewFrameKind::Busy,
            RejectReason::Timeout => NewFrameKind::Timeout,
            RejectReason::UpstreamClosed => NewFrameKind::Closed,
            // The plugin interface has no specific response for these reasons.
            RejectReason::NoUpstream
            | RejectReason::LocalResource(_)
            | RejectReason::InjectedFault
            | RejectReason::FrameTooLarge
            | RejectReason::MalformedResponse => NewFrameKind::Unreachable,
        };
        self.append_built_response(what, id, manner, out)
    }

    /// Returns the status code of the protocol.
    fn status(&self, frame: &[u8]) -> Option<String> {
        match self.decode(FrameSender::Server, frame, usize::MAX) {
            Ok(DecodeResult::Frame(frame)) => match frame.kind {
                plugin::FrameKind::Response { status } => Some(status.to_string()),
                _ => None,
            },
            Ok(DecodeResult::More(_)) | Err(_) => None,
        }
    }
}

fn sender_role(from: FrameSender) -> plugin::SenderRole {
    match from {
        FrameSender::Client => plugin::SenderRole::Client,
        FrameSender::Server => plugin::SenderRole::Server,
    }
}

fn relay_frame_kind(kind: plugin::FrameKind) -> RelayFrameKind {
    match kind {
        plugin::FrameKind::Request { timeout } => RelayFrameKind::Request { timeout },
        plugin::FrameKind::Oneway => RelayFrameKind::Oneway,
        plugin::FrameKind::Response { status } => RelayFrameKind::Response { status },
        plugin::FrameKind::Heartbeat => RelayFrameKind::Heartbeat,
        plugin::FrameKind::HeartbeatAck => RelayFrameKind::HeartbeatAck,
        plugin::FrameKind::GoAway => RelayFrameKind::GoAway,
    }
}
