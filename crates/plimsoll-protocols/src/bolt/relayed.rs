//! The relay codec of Bolt. A frame is relayed unchanged except for its id, and for its checksum, which is
//! recomputed.

use std::time::Duration;

use super::frame::codec;
use super::hessian::{self, Value};
use super::{Command, Form, Frame, FrameError, Kind, Status, header};
use crate::relayed::{self, Broken, CodecOptions, FrameCodec, Manner, Seen, Sender, Unusable, Why};

/// The codec of a route, with the limit of a frame's content. Bytes.
#[derive(Clone, Debug)]
pub struct Codec(usize);

/// The number of frame layouts. A Java server answers all requests of a connection in the layout of the
/// first, so each layout needs connections of its own.
const FRAME_LAYOUTS: usize = 3;

/// Packs the layout into one number: the revision of version 2 (0 for version 1), the switches, and the
/// codec.
#[inline]
fn manner(form: Form, codec: u8) -> Manner {
    let (revision, switches) = match form {
        Form::V1 => (0, 0),
        Form::V2 { revision, switches } => (revision, switches),
    };
    Manner(u64::from_le_bytes([
        revision, switches, codec, 0, 0, 0, 0, 0,
    ]))
}

#[inline]
fn form(manner: Manner) -> Form {
    match manner.0.to_le_bytes() {
        [0, ..] => Form::V1,
        [revision, switches, ..] => Form::V2 { revision, switches },
    }
}

impl Codec {
    pub(crate) fn of_worker(&self, options: &CodecOptions<'_>) -> Codec {
        Codec(options.max_frame)
    }
}

impl FrameCodec for Codec {
    fn open(options: &CodecOptions<'_>) -> Result<Codec, Unusable> {
        Ok(Codec(options.max_frame))
    }

    fn layouts(&self) -> usize {
        FRAME_LAYOUTS
    }

    #[inline]
    fn layout(&self, manner: Manner) -> usize {
        usize::from(manner.0 as u8)
    }

    #[inline]
    fn read(&self, from: Sender, bytes: &[u8]) -> Result<Option<Seen>, Broken> {
        let parsed = Frame::parse(bytes, self.0).map_err(|e| broken(e, bytes))?;
        let Some((frame, length)) = parsed else {
            return Ok(None);
        };
        let seen = Seen {
            length,
            id: frame.id.into(),
            kind: kind(frame.kind, frame.command),
            manner: manner(frame.form, frame.codec),
        };
        if let Err(why) = check(&frame) {
            return Err(match from {
                Sender::Client => Broken::new(why),
                Sender::Server => Broken {
                    call: Some((seen, Why::BadAnswer)),
                    ..Broken::new(why)
                },
            });
        }
        Ok(Some(seen))
    }

    #[inline]
    fn renumber(
        &self,
        frame: &[u8],
        manner: Manner,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        let (form, start) = (form(manner), out.len());
        out.extend_from_slice(frame);
        let frame = &mut out[start..];
        let at = form.id_at();
        frame[at..at + 4].copy_from_slice(&narrow(id).to_be_bytes());
        if form.has_crc() {
            let end = frame.len() - 4;
            let crc = crc32fast::hash(&frame[..end]);
            frame[end..].copy_from_slice(&crc.to_be_bytes());
        }
        Ok(())
    }

    fn heartbeat(&self, layout: usize, id: u64, out: &mut Vec<u8>) -> Result<bool, Broken> {
        Frame::heartbeat(form(Manner(layout as u64)), narrow(id)).write(out);
        Ok(true)
    }

    fn heartbeat_ack(&self, id: u64, manner: Manner, out: &mut Vec<u8>) -> Result<(), Broken> {
        Frame::heartbeat_ack(form(manner), narrow(id)).write(out);
        Ok(())
    }

    fn refuse(&self, id: u64, manner: Manner, why: Why, out: &mut Vec<u8>) -> Result<(), Broken> {
        let status = match why {
            Why::Busy | Why::Lack(_) => Status::ServerThreadpoolBusy,
            Why::NoUpstream => Status::NoProcessor,
            Why::Timeout => Status::Timeout,
            Why::Cut => Status::ConnectionClosed,
            Why::Fault => Status::ServerException,
            Why::TooLong | Why::BadAnswer => Status::CodecException,
        };
        let (form, codec) = (form(manner).without_switches(), manner.0.to_le_bytes()[2]);
        let mut answer = Frame::bare_response(form, narrow(id), codec, status);
        // Reasons without a status of their own are explained by a text.
        let text = match why {
            Why::TooLong => {
                let limit = self.0;
                format!("the content is over the sidecar's limit of {limit} bytes (max_frame)")
            }
            Why::BadAnswer => "the upstream's answer is malformed (class or header map)".to_owned(),
            Why::Lack(lack) => format!("the sidecar can't connect to the upstream: {lack}"),
            _ => String::new(),
        };
        let content;
        if !text.is_empty() {
            content = hessian::encode(&Value::String(text));
            answer.codec = codec::HESSIAN2;
            answer.class = b"java.lang.String";
            answer.content = &content;
        }
        answer.write(out);
        Ok(())
    }

    fn status(&self, frame: &[u8]) -> Option<String> {
        let (frame, _) = Frame::parse(frame, usize::MAX).ok()??;
        let Kind::Response { status } = frame.kind else {
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

/// Rejects frames for which a peer might close its connection, and so fail other calls. Such a frame is not
/// relayed.
#[inline]
fn check(frame: &Frame<'_>) -> Result<(), String> {
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
fn broken(error: FrameError, bytes: &[u8]) -> Broken {
    let FrameError::ContentTooLong { .. } = error else {
        return Broken::new(error.to_string());
    };
    let call = Frame::head(bytes).map(|head| {
        let seen = Seen {
            length: head.length,
            id: head.id.into(),
            kind: kind(head.kind, head.command),
            manner: manner(head.form, head.codec),
        };
        (seen, Why::TooLong)
    });
    Broken {
        call,
        ..Broken::new(format!("{error} (max_frame)"))
    }
}

#[inline]
fn kind(kind: Kind, command: Command) -> relayed::Kind {
    match (kind, command) {
        (Kind::Response { .. }, Command::Heartbeat) => relayed::Kind::HeartbeatAck,
        (Kind::Response { status }, _) => relayed::Kind::Response {
            status: status.into(),
        },
        (_, Command::GoAway) => relayed::Kind::GoAway,
        (Kind::Request { .. }, Command::Heartbeat) => relayed::Kind::Heartbeat,
        (Kind::Request { timeout }, Command::RpcRequest) => relayed::Kind::Request {
            timeout: u64::try_from(timeout)
                .ok()
                .filter(|millis| *millis > 0)
                .map(Duration::from_millis),
        },
        (Kind::Oneway { .. }, Command::RpcRequest) => relayed::Kind::Oneway,
        _ => relayed::Kind::Other,
    }
}

/// Converts an id to Bolt's 32 bits. Ids read from frames and ids assigned to calls always fit.
#[inline]
fn narrow(id: u64) -> u32 {
    id as u32
}
