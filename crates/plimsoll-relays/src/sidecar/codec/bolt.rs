//! Bolt: a frame is passed on as it came, with another id; with a checksum that is made
//! anew.

use std::time::Duration;

use plimsoll_protocols::bolt::{Command, Form, Frame, FrameError, Kind as BoltKind, Status};

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
    let parsed = Frame::parse(bytes, limit).map_err(|e| {
        Broken::new(match e {
            FrameError::ContentTooLong { .. } => format!("{e} (max_frame)"),
            _ => e.to_string(),
        })
    })?;
    let Some((frame, length)) = parsed else {
        return Ok(None);
    };
    Ok(Some(Seen {
        length,
        id: frame.id.into(),
        kind: kind(&frame),
        manner: Manner::Bolt {
            form: frame.form,
            codec: frame.codec,
        },
    }))
}

#[inline]
fn kind(frame: &Frame<'_>) -> Kind {
    match (frame.kind, frame.command) {
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

pub(super) fn refuse(form: Form, codec: u8, id: u64, why: Why, out: &mut Vec<u8>) {
    let status = match why {
        Why::Busy => Status::ServerThreadpoolBusy,
        Why::NoUpstream => Status::NoProcessor,
        Why::Timeout => Status::Timeout,
        Why::Cut => Status::ConnectionClosed,
        Why::Fault => Status::ServerException,
    };
    Frame::bare_response(form.without_switches(), narrow(id), codec, status).write(out);
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
