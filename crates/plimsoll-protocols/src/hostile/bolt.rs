//! SOFABolt (its RpcCommand layouts, versions 1 and 2), done wrong.

use std::io;

use plimsoll_model::Outcome as O;

use super::{Behaviour, Peer};
use crate::bolt::Status;
use crate::bolt::frame::{Command, Form, Frame, Kind, codec};

/// The fixed part of a request of version 1.
const HEAD: usize = 22;

/// Reads a request of version 1, and returns its id.
fn request(peer: &mut Peer) -> io::Result<u32> {
    loop {
        let head = peer.take(HEAD)?;
        let be16 = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
        let be32 =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        peer.take(be16(14) + be16(16) + be32(18) as usize)?;
        // Heartbeats are command 0.
        if be16(2) == 1 {
            return Ok(be32(5));
        }
    }
}

fn response(id: u32) -> Frame<'static> {
    Frame {
        content: b"\x02ok",
        class: b"java.lang.String",
        ..Frame::bare_response(Form::V1, id, codec::HESSIAN2, Status::Success)
    }
}

fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.write(&mut out);
    out
}

/// After a whole request these bytes, and then nothing more.
fn instead(peer: &mut Peer, answer: impl FnOnce(u32) -> Vec<u8>) -> io::Result<()> {
    let id = request(peer)?;
    peer.send(&answer(id))?;
    peer.wait()
}

/// A good answer with some bytes of its head changed.
fn patched(peer: &mut Peer, at: usize, with: &[u8]) -> io::Result<()> {
    instead(peer, |id| {
        let mut out = bytes(&response(id));
        out[at..at + with.len()].copy_from_slice(with);
        out
    })
}

fn status(peer: &mut Peer, status: Status) -> io::Result<()> {
    instead(peer, |id| {
        bytes(&Frame::bare_response(Form::V1, id, codec::HESSIAN2, status))
    })
}

pub(super) const BEHAVIOURS: &[Behaviour] = &[
    // The connection.
    Behaviour::new(
        "bolt-close-at-once",
        "closes before a byte",
        O::ConnectionClosed,
        |_| Ok(()),
    ),
    Behaviour::new("bolt-reset-at-once", "RST before a byte", O::Reset, |p| {
        p.reset()
    }),
    Behaviour::new(
        "bolt-silent",
        "takes requests and never answers",
        O::DeadlineExceeded,
        |p| p.wait(),
    ),
    Behaviour::new(
        "bolt-deaf",
        "neither reads nor writes",
        O::DeadlineExceeded,
        |p| p.ignore(),
    ),
    Behaviour::new(
        "bolt-half-close",
        "ends its half after the request, and reads on",
        O::ConnectionClosed,
        |p| {
            request(p)?;
            p.half_close()
        },
    ),
    Behaviour::new(
        "bolt-close-after-request",
        "closes after the request",
        O::ConnectionClosed,
        |p| request(p).map(|_| ()),
    ),
    Behaviour::new(
        "bolt-reset-after-request",
        "RST after the request",
        O::Reset,
        |p| {
            request(p)?;
            p.reset()
        },
    ),
    Behaviour::new(
        "bolt-drip",
        "a good answer, a byte a millisecond",
        O::Ok,
        |p| {
            let id = request(p)?;
            p.drip(&bytes(&response(id)))?;
            p.wait()
        },
    ),
    Behaviour::new(
        "bolt-close-in-head",
        "half a head, and closes",
        O::ConnectionClosed,
        |p| {
            let id = request(p)?;
            p.send(&bytes(&response(id))[..10])
        },
    ),
    Behaviour::new(
        "bolt-close-in-content",
        "all but the last byte, and closes",
        O::ConnectionClosed,
        |p| {
            let id = request(p)?;
            let out = bytes(&response(id));
            p.send(&out[..out.len() - 1])
        },
    ),
    Behaviour::new(
        "bolt-reset-in-content",
        "all but the last byte, and RST",
        O::Reset,
        |p| {
            let id = request(p)?;
            let out = bytes(&response(id));
            p.send(&out[..out.len() - 1])?;
            p.reset()
        },
    ),
    Behaviour::new(
        "bolt-stall-in-head",
        "half a head, and then silence",
        O::DeadlineExceeded,
        |p| instead(p, |id| bytes(&response(id))[..10].to_vec()),
    ),
    Behaviour::new(
        "bolt-stall-in-content",
        "all but the last byte, and then silence",
        O::DeadlineExceeded,
        |p| {
            instead(p, |id| {
                let mut out = bytes(&response(id));
                out.pop();
                out
            })
        },
    ),
    // Not a frame.
    Behaviour::new(
        "bolt-garbage",
        "bytes that are no frame",
        O::ProtocolError,
        |p| instead(p, |_| vec![0xa5; 4096]),
    ),
    Behaviour::new("bolt-http", "an HTTP/1.1 answer", O::ProtocolError, |p| {
        instead(p, |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())
    }),
    Behaviour::new("bolt-protocol", "protocol 3", O::ProtocolError, |p| {
        patched(p, 0, &[3])
    }),
    Behaviour::new("bolt-type", "a frame of type 9", O::ProtocolError, |p| {
        patched(p, 1, &[9])
    }),
    Behaviour::new("bolt-command", "command 77", O::ProtocolError, |p| {
        patched(p, 2, &[0, 77])
    }),
    Behaviour::new(
        "bolt-class-longer",
        "a class declared longer than it is",
        O::DeadlineExceeded,
        |p| patched(p, 12, &[0x7f, 0xff]),
    ),
    Behaviour::new(
        "bolt-content-huge",
        "a content declared as 2 GiB",
        O::MessageTooLarge,
        |p| patched(p, 16, &[0x7f, 0xff, 0xff, 0xff]),
    ),
    Behaviour::new(
        "bolt-content-negative",
        "a content of −1 bytes",
        O::ProtocolError,
        |p| patched(p, 16, &[0xff, 0xff, 0xff, 0xff]),
    ),
    Behaviour::new(
        "bolt-crc",
        "version 2 with a wrong checksum",
        O::ProtocolError,
        |p| {
            instead(p, |id| {
                let mut out = bytes(&Frame {
                    form: Form::V2_CRC,
                    ..response(id)
                });
                if let Some(last) = out.last_mut() {
                    *last ^= 1;
                }
                out
            })
        },
    ),
    // Ids.
    Behaviour::new(
        "bolt-other-id",
        "answers a request that nobody made",
        O::DeadlineExceeded,
        |p| instead(p, |id| bytes(&response(id ^ 0x5555))),
    ),
    Behaviour::new("bolt-answer-twice", "answers twice", O::Ok, |p| {
        instead(p, |id| bytes(&response(id)).repeat(2))
    }),
    Behaviour::new(
        "bolt-answer-unasked",
        "an answer at once, to the id that the first request will have",
        O::Ok,
        |p| {
            p.send(&bytes(&response(1)))?;
            p.wait()
        },
    ),
    Behaviour::new(
        "bolt-request",
        "a request in place of an answer",
        O::DeadlineExceeded,
        |p| {
            instead(p, |id| {
                bytes(&Frame {
                    kind: Kind::Request { timeout: 1000 },
                    command: Command::RpcRequest,
                    ..response(id)
                })
            })
        },
    ),
    Behaviour::new(
        "bolt-goaway",
        "says that it goes away, and closes with the request unanswered",
        O::ConnectionClosed,
        |p| {
            let id = request(p)?;
            p.send(&bytes(&Frame {
                command: Command::GoAway,
                ..Frame::heartbeat(Form::V1, id.wrapping_add(1))
            }))
        },
    ),
    Behaviour::new(
        "bolt-heartbeat-flood",
        "heartbeats without end, and reads nothing",
        O::DeadlineExceeded,
        |p| {
            let id = request(p)?;
            p.flood(&bytes(&Frame::heartbeat(Form::V1, id.wrapping_add(1))))
        },
    ),
    Behaviour::new(
        "bolt-answer-flood",
        "answers to nobody without end",
        O::DeadlineExceeded,
        |p| {
            let id = request(p)?;
            p.flood(&bytes(&response(id ^ 0x5555)))
        },
    ),
    // Statuses.
    Behaviour::new(
        "bolt-status-error",
        "status ERROR",
        O::coded("BOLT_ERROR"),
        |p| status(p, Status::Error),
    ),
    Behaviour::new(
        "bolt-status-exception",
        "status SERVER_EXCEPTION",
        O::coded("BOLT_SERVER_EXCEPTION"),
        |p| status(p, Status::ServerException),
    ),
    Behaviour::new(
        "bolt-status-unknown",
        "status UNKNOWN",
        O::coded("BOLT_UNKNOWN"),
        |p| status(p, Status::Unknown),
    ),
    Behaviour::new(
        "bolt-status-busy",
        "status SERVER_THREADPOOL_BUSY",
        O::coded("BOLT_SERVER_THREADPOOL_BUSY"),
        |p| status(p, Status::ServerThreadpoolBusy),
    ),
    Behaviour::new(
        "bolt-status-comm",
        "status ERROR_COMM",
        O::coded("BOLT_ERROR_COMM"),
        |p| status(p, Status::ErrorComm),
    ),
    Behaviour::new(
        "bolt-status-no-processor",
        "status NO_PROCESSOR",
        O::coded("BOLT_NO_PROCESSOR"),
        |p| status(p, Status::NoProcessor),
    ),
    Behaviour::new(
        "bolt-status-timeout",
        "status TIMEOUT",
        O::coded("BOLT_TIMEOUT"),
        |p| status(p, Status::Timeout),
    ),
    Behaviour::new(
        "bolt-status-send",
        "status CLIENT_SEND_ERROR",
        O::coded("BOLT_CLIENT_SEND_ERROR"),
        |p| status(p, Status::ClientSendError),
    ),
    Behaviour::new(
        "bolt-status-codec",
        "status CODEC_EXCEPTION",
        O::coded("BOLT_CODEC_EXCEPTION"),
        |p| status(p, Status::CodecException),
    ),
    Behaviour::new(
        "bolt-status-closed",
        "status CONNECTION_CLOSED",
        O::coded("BOLT_CONNECTION_CLOSED"),
        |p| status(p, Status::ConnectionClosed),
    ),
    Behaviour::new(
        "bolt-status-serial",
        "status SERVER_SERIAL_EXCEPTION",
        O::coded("BOLT_SERVER_SERIAL_EXCEPTION"),
        |p| status(p, Status::ServerSerialException),
    ),
    Behaviour::new(
        "bolt-status-deserial",
        "status SERVER_DESERIAL_EXCEPTION",
        O::coded("BOLT_SERVER_DESERIAL_EXCEPTION"),
        |p| status(p, Status::ServerDeserialException),
    ),
    Behaviour::new(
        "bolt-status-number",
        "a status that does not exist",
        O::coded("BOLT_UNKNOWN"),
        |p| patched(p, 10, &[0x7f, 0x01]),
    ),
];
