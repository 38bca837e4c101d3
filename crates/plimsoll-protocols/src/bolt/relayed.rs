//! The relay codec of Bolt. A frame is relayed unchanged except for its id, and for its checksum, which is
//! recomputed.

use std::time::Duration;

use super::frame::codec;
use super::hessian::{self, HessianValue};
use super::{BoltCommand, BoltFrame, BoltFrameError, BoltFrameKind, FrameLayout, Status, header};
use crate::interface::relayed::{
    self, CodecError, CodecOptions, FrameCodec, FrameError, FrameFlavor, FrameInfo, FrameSender,
    RejectReason,
};

/// The codec of a route, with the maximum length of a frame's content in bytes.
#[derive(Clone, Debug)]
pub struct BoltRelayCodec(usize);

/// The number of frame layouts. A Java server answers all requests of a connection in the layout of the first, so each
/// layout needs separate connections.
const FRAME_LAYOUT_COUNT: usize = 3;

/// Packs a frame's layout and codec into one number, a byte each: the revision of version 2 (0 for version 1),
/// the switches, and the codec.
#[inline]
fn frame_flavor(form: FrameLayout, codec: u8) -> FrameFlavor {
    let (revision, switches) = match form {
        FrameLayout::V1 => (0, 0),
        FrameLayout::V2 { revision, switches } => (revision, switches),
    };
    FrameFlavor(u64::from_le_bytes([
        revision, switches, codec, 0, 0, 0, 0, 0,
    ]))
}

#[inline]
fn frame_layout(manner: FrameFlavor) -> FrameLayout {
    match manner.0.to_le_bytes() {
        [0, ..] => FrameLayout::V1,
        [revision, switches, ..] => FrameLayout::V2 { revision, switches },
    }
}

impl BoltRelayCodec {
    pub(crate) fn for_worker(&self, options: &CodecOptions<'_>) -> BoltRelayCodec {
        BoltRelayCodec(options.max_frame)
    }
}

impl FrameCodec for BoltRelayCodec {
    fn open(options: &CodecOptions<'_>) -> Result<BoltRelayCodec, CodecError> {
        Ok(BoltRelayCodec(options.max_frame))
    }

    fn layout_count(&self) -> usize {
        FRAME_LAYOUT_COUNT
    }

    #[inline]
    fn layout_index(&self, flavor: FrameFlavor) -> usize {
        usize::from(flavor.0 as u8)
    }

    #[inline]
    fn read(&self, from: FrameSender, bytes: &[u8]) -> Result<Option<FrameInfo>, FrameError> {
        let parsed = BoltFrame::parse(bytes, self.0).map_err(|e| frame_error(e, bytes))?;
        let Some((frame, length)) = parsed else {
            return Ok(None);
        };
        let seen = FrameInfo {
            length,
            id: frame.id.into(),
            kind: relay_frame_kind(frame.kind, frame.command),
            flavor: frame_flavor(frame.layout, frame.codec),
        };
        if let Err(why) = check_relayable(&frame) {
            return Err(match from {
                FrameSender::Client => FrameError::new(why),
                FrameSender::Server => FrameError {
                    call: Some((seen, RejectReason::MalformedResponse)),
                    ..FrameError::new(why)
                },
            });
        }
        Ok(Some(seen))
    }

    #[inline]
    fn renumber(
        &self,
        frame: &[u8],
        manner: FrameFlavor,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        let (form, start) = (frame_layout(manner), out.len());
        out.extend_from_slice(frame);
        let frame = &mut out[start..];
        let at = form.id_offset();
        frame[at..at + 4].copy_from_slice(&to_bolt_id(id).to_be_bytes());
        if form.has_crc() {
            let end = frame.len() - 4;
            let crc = crc32fast::hash(&frame[..end]);
            frame[end..].copy_from_slice(&crc.to_be_bytes());
        }
        Ok(())
    }

    fn write_heartbeat(
        &self,
        layout: usize,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<bool, FrameError> {
        BoltFrame::heartbeat(frame_layout(FrameFlavor(layout as u64)), to_bolt_id(id)).write(out);
        Ok(true)
    }

    fn write_heartbeat_ack(
        &self,
        id: u64,
        flavor: FrameFlavor,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        BoltFrame::heartbeat_ack(frame_layout(flavor), to_bolt_id(id)).write(out);
        Ok(())
    }

    fn write_rejection(
        &self,
        id: u64,
        manner: FrameFlavor,
        why: RejectReason,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        let status = match why {
            RejectReason::Busy | RejectReason::LocalResource(_) => Status::ServerThreadpoolBusy,
            RejectReason::NoUpstream => Status::NoProcessor,
            RejectReason::Timeout => Status::Timeout,
            RejectReason::UpstreamClosed => Status::ConnectionClosed,
            RejectReason::InjectedFault => Status::ServerException,
            RejectReason::FrameTooLarge | RejectReason::MalformedResponse => Status::CodecException,
        };
        let (form, codec) = (
            frame_layout(manner).without_checksum(),
            manner.0.to_le_bytes()[2],
        );
        let mut answer = BoltFrame::status_response(form, to_bolt_id(id), codec, status);
        // Bolt has no specific status for some reasons, so a text explains these.
        let text = match why {
            RejectReason::FrameTooLarge => {
                let limit = self.0;
                format!("the content is over the sidecar's limit of {limit} bytes (max_frame)")
            }
            RejectReason::MalformedResponse => {
                "the upstream's answer is malformed (class or header map)".to_owned()
            }
            RejectReason::LocalResource(lack) => {
                format!("the sidecar can't connect to the upstream: {lack}")
            }
            _ => String::new(),
        };
        let content;
        if !text.is_empty() {
            content = hessian::encode(&HessianValue::String(text));
            answer.codec = codec::HESSIAN2;
            answer.class = b"java.lang.String";
            answer.content = &content;
        }
        answer.write(out);
        Ok(())
    }

    fn status(&self, frame: &[u8]) -> Option<String> {
        let (frame, _) = BoltFrame::parse(frame, usize::MAX).ok()??;
        let BoltFrameKind::Response { status } = frame.kind else {
            return None;
        };
        Some(self.status_name(status.into()))
    }

    fn status_name(&self, status: u32) -> String {
        match u16::try_from(status).ok().and_then(Status::from_number) {
            Some(status) => status.name().to_owned(),
            None => format!("{status:#06x}"),
        }
    }
}

/// Returns an error for frames that must not be relayed: the receiver might close its connection because of
/// such a frame, which would fail other calls.
#[inline]
fn check_relayable(frame: &BoltFrame<'_>) -> Result<(), String> {
    let most = i16::MAX as usize;
    if frame.class.len() > most || frame.header.len() > most {
        let (class, header) = (frame.class.len(), frame.header.len());
        return Err(format!(
            "a class of {class} bytes and a header of {header}: Java reads lengths over {most} as negative"
        ));
    }
    match header::pairs(frame.header).find_map(Result::err) {
        Some(error) => Err(error.to_string()),
        None => Ok(()),
    }
}

#[cold]
fn frame_error(error: BoltFrameError, bytes: &[u8]) -> FrameError {
    let BoltFrameError::ContentTooLong { .. } = error else {
        return FrameError::new(error.to_string());
    };
    let call = BoltFrame::parse_head(bytes).map(|head| {
        let seen = FrameInfo {
            length: head.length,
            id: head.id.into(),
            kind: relay_frame_kind(head.kind, head.command),
            flavor: frame_flavor(head.layout, head.codec),
        };
        (seen, RejectReason::FrameTooLarge)
    });
    FrameError {
        call,
        ..FrameError::new(format!("{error} (max_frame)"))
    }
}

#[inline]
fn relay_frame_kind(kind: BoltFrameKind, command: BoltCommand) -> relayed::RelayFrameKind {
    match (kind, command) {
        (BoltFrameKind::Response { .. }, BoltCommand::Heartbeat) => {
            relayed::RelayFrameKind::HeartbeatAck
        }
        (BoltFrameKind::Response { status }, _) => relayed::RelayFrameKind::Response {
            status: status.into(),
        },
        (_, BoltCommand::GoAway) => relayed::RelayFrameKind::GoAway,
        (BoltFrameKind::Request { .. }, BoltCommand::Heartbeat) => {
            relayed::RelayFrameKind::Heartbeat
        }
        (BoltFrameKind::Request { timeout }, BoltCommand::RpcRequest) => {
            relayed::RelayFrameKind::Request {
                timeout: u64::try_from(timeout)
                    .ok()
                    .filter(|millis| *millis > 0)
                    .map(Duration::from_millis),
            }
        }
        (BoltFrameKind::Oneway { .. }, BoltCommand::RpcRequest) => relayed::RelayFrameKind::Oneway,
        _ => relayed::RelayFrameKind::Other,
    }
}

/// Converts an id to Bolt's 32 bits. Ids read from frames and ids assigned to calls always fit.
#[inline]
fn to_bolt_id(id: u64) -> u32 {
    id as u32
}
