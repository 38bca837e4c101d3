//! Bolt: a frame is passed on as it came, with another id; with a checksum that is made
//! anew.

use std::time::Duration;

use plimsoll_protocols::bolt::frame::codec;
use plimsoll_protocols::bolt::hessian::{self, Value};
use plimsoll_protocols::bolt::{Command, Form, Frame, FrameError, Head, Kind as BoltKind, Status};

use super::{Broken, Kind, Manner, Seen, Why};

/// A Java server answers all requests of a connection in the layout of its first one, so
/// each layout has connections of its own.
pub(super) const LAYOUTS: usize = 3;

#[inline]
pub(super) fn layout(form: Form) -> usize {
    match form {
        Form::V1 => 0,
        Form::V2 { revision, .. } => usize::from(revision.min(2)),
    }
}

#[inline]
pub(super) fn read(bytes: &[u8], limit: usize) -> Result<Option<Seen>, Broken> {
    let parsed = Frame::parse(bytes, limit).map_err(|e| broken(e, bytes))?;
    let Some((frame, length)) = parsed else {
        return Ok(None);
    };
    Ok(Some(Seen {
        length,
        id: frame.id.into(),
        kind: kind(frame.kind, frame.command),
        manner: Manner::Bolt {
            form: frame.form,
            codec: frame.codec,
        },
    }))
}

#[cold]
fn broken(error: FrameError, bytes: &[u8]) -> Broken {
    let FrameError::ContentTooLong { .. } = error else {
        return Broken::new(error.to_string());
    };
    let seen = |head: Head| Seen {
        length: head.length,
        id: head.id.into(),
        kind: kind(head.kind, head.command),
        manner: Manner::Bolt {
            form: head.form,
            codec: head.codec,
        },
    };
    Broken {
        too_long: Frame::head(bytes).map(seen),
        ..Broken::new(format!("{error} (max_frame)"))
    }
}

#[inline]
fn kind(kind: BoltKind, command: Command) -> Kind {
    match (kind, command) {
        (BoltKind::Response { .. }, Command::Heartbeat) => Kind::HeartbeatAck,
        (BoltKind::Response { status }, _) => Kind::Response {
            status: status.into(),
        },
        (_, Command::GoAway) => Kind::GoAway,
        (BoltKind::Request { .. }, Command::Heartbeat) => Kind::Heartbeat,
        (BoltKind::Request { timeout }, Command::RpcRequest) => Kind::Request {
            timeout: u64::try_from(timeout)
                .ok()
                .filter(|millis| *millis > 0)
                .map(Duration::from_millis),
        },
        (BoltKind::Oneway { .. }, Command::RpcRequest) => Kind::Oneway,
        _ => Kind::Other,
    }
}

#[inline]
pub(super) fn renumber(frame: &[u8], form: Form, id: u64, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(frame);
    let frame = &mut out[start..];
    let at = form.id_at();
    frame[at..at + 4].copy_from_slice(&narrow(id).to_be_bytes());
    if form.has_crc() {
        let end = frame.len() - 4;
        let crc = crc32fast::hash(&frame[..end]);
        frame[end..].copy_from_slice(&crc.to_be_bytes());
    }
}

pub(super) fn heartbeat(layout: usize, id: u64, out: &mut Vec<u8>) {
    let form = match layout {
        0 => Form::V1,
        revision => Form::V2 {
            revision: revision as u8,
            switches: 0,
        },
    };
    Frame::heartbeat(form, narrow(id)).write(out);
}

pub(super) fn heartbeat_ack(form: Form, id: u64, out: &mut Vec<u8>) {
    Frame::heartbeat_ack(form, narrow(id)).write(out);
}

/// `limit`: that of the content, in bytes.
pub(super) fn refuse(form: Form, codec: u8, id: u64, why: Why, limit: usize, out: &mut Vec<u8>) {
    let status = match why {
        Why::Busy => Status::ServerThreadpoolBusy,
        Why::NoUpstream => Status::NoProcessor,
        Why::Timeout => Status::Timeout,
        Why::Cut => Status::ConnectionClosed,
        Why::Fault => Status::ServerException,
        Why::TooLong => Status::CodecException,
    };
    let answer = Frame::bare_response(form.without_switches(), narrow(id), codec, status);
    if why != Why::TooLong {
        return answer.write(out);
    }
    // There is no status for it.
    let text = format!("the content is over the sidecar's limit of {limit} bytes (max_frame)");
    let answer = Frame {
        codec: codec::HESSIAN2,
        class: b"java.lang.String",
        content: &hessian::encode(&Value::String(text)),
        ..answer
    };
    answer.write(out);
}

pub(super) fn status(frame: &[u8]) -> Option<String> {
    let (frame, _) = Frame::parse(frame, usize::MAX).ok()??;
    let BoltKind::Response { status } = frame.kind else {
        return None;
    };
    Some(status_name(status.into()))
}

pub(super) fn status_name(status: u32) -> String {
    match u16::try_from(status).ok().and_then(Status::from_number) {
        Some(status) => status.name().to_owned(),
        None => format!("{status:#06x}"),
    }
}

/// Ids of Bolt have 32 bits: those read from its frames, and those that calls are given.
#[inline]
fn narrow(id: u64) -> u32 {
    id as u32
}
