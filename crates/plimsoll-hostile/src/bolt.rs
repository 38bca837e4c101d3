//! Misbehaving SOFABolt servers (RpcCommand layouts, versions 1 and 2).

use std::io;

use plimsoll_model::Outcome as O;

use super::peer::ScriptTransport;
use super::script::{HostileBehaviour, HostileStep::*};
use plimsoll_protocols::bolt::Status;
use plimsoll_protocols::bolt::frame::{BoltCommand, BoltFrame, BoltFrameKind, FrameLayout, codec};

/// Length of the fixed part of a request of version 1, in bytes.
const REQUEST_HEAD_LEN: usize = 22;

/// Reads a request of version 1, and returns its id.
pub(super) fn read_request(peer: &mut ScriptTransport) -> io::Result<u32> {
    loop {
        let head = peer.read_exact(REQUEST_HEAD_LEN)?;
        let be16 = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
        let be32 =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        peer.read_exact(be16(14) + be16(16) + be32(18) as usize)?;
        // Command 1 is a request. Heartbeats, command 0, are skipped.
        if be16(2) == 1 {
            return Ok(be32(5));
        }
    }
}

fn good_response(id: u32) -> BoltFrame<'static> {
    BoltFrame {
        content: b"\x02ok",
        class: b"java.lang.String",
        ..BoltFrame::status_response(FrameLayout::V1, id, codec::HESSIAN2, Status::Success)
    }
}

fn write_good_response(out: &mut Vec<u8>, id: u32) {
    good_response(id).write(out);
}

fn write_half_head(out: &mut Vec<u8>, id: u32) {
    write_good_response(out, id);
    out.truncate(10);
}

fn write_all_but_one_byte(out: &mut Vec<u8>, id: u32) {
    write_good_response(out, id);
    out.pop();
}

/// Writes a correct response in which `with` replaces the bytes at offset `at`.
fn write_patched_response(out: &mut Vec<u8>, id: u32, at: usize, with: &[u8]) {
    write_good_response(out, id);
    out[at..at + with.len()].copy_from_slice(with);
}

fn write_wrong_checksum(out: &mut Vec<u8>, id: u32) {
    let form = FrameLayout::V2_CRC;
    BoltFrame {
        layout: form,
        ..good_response(id)
    }
    .write(out);
    if let Some(last) = out.last_mut() {
        *last ^= 1;
    }
}

fn write_heartbeat(out: &mut Vec<u8>, id: u32) {
    BoltFrame::heartbeat(FrameLayout::V1, id.wrapping_add(1)).write(out);
}

/// Makes a behaviour that answers with only the status NUMBER.
const fn status_behaviour<const NUMBER: u16>(
    name: &'static str,
    about: &'static str,
) -> HostileBehaviour {
    let outcome = match Status::from_number(NUMBER) {
        Some(status) => status.outcome(),
        None => Status::Unknown.outcome(),
    };
    HostileBehaviour::new(name, outcome)
        .with_description(about)
        .answers_with_frames(|out, id| {
            BoltFrame {
                kind: BoltFrameKind::Response { status: NUMBER },
                ..BoltFrame::status_response(FrameLayout::V1, id, codec::HESSIAN2, Status::Success)
            }
            .write(out);
        })
}

pub(super) const BEHAVIOURS: &[HostileBehaviour] = &[
    // Connections that are closed, reset or stalled.
    HostileBehaviour::new("bolt-close-at-once", O::ConnectionClosed)
        .with_description("closes without sending a byte")
        .with_steps(&[]),
    HostileBehaviour::new("bolt-reset-at-once", O::Reset)
        .with_description("RST without sending a byte")
        .with_steps(&[Reset]),
    HostileBehaviour::new("bolt-silent", O::DeadlineExceeded)
        .with_description("accepts requests and never answers")
        .with_steps(&[Wait]),
    HostileBehaviour::new("bolt-deaf", O::DeadlineExceeded)
        .with_description("neither reads nor writes")
        .with_steps(&[Ignore]),
    HostileBehaviour::new("bolt-half-close", O::ConnectionClosed)
        .with_description("half-closes after the request, and keeps reading")
        .with_steps(&[Request, HalfClose]),
    HostileBehaviour::new("bolt-close-after-request", O::ConnectionClosed)
        .with_description("closes after the request")
        .with_steps(&[Request]),
    HostileBehaviour::new("bolt-reset-after-request", O::Reset)
        .with_description("RST after the request")
        .with_steps(&[Request, Reset]),
    HostileBehaviour::new("bolt-drip", O::Ok)
        .with_description("a valid answer, one byte per millisecond")
        .with_steps(&[Request, Write(write_good_response), Drip, Wait]),
    HostileBehaviour::new("bolt-close-in-head", O::ConnectionClosed)
        .with_description("half a head, and closes")
        .with_steps(&[Request, Write(write_half_head)]),
    HostileBehaviour::new("bolt-close-in-content", O::ConnectionClosed)
        .with_description("all but the last byte, and closes")
        .with_steps(&[Request, Write(write_all_but_one_byte)]),
    HostileBehaviour::new("bolt-reset-in-content", O::Reset)
        .with_description("all but the last byte, and RST")
        .with_steps(&[Request, Write(write_all_but_one_byte), Reset]),
    HostileBehaviour::new("bolt-stall-in-head", O::DeadlineExceeded)
        .with_description("half a head, and then silence")
        .answers_with_frames(write_half_head),
    HostileBehaviour::new("bolt-stall-in-content", O::DeadlineExceeded)
        .with_description("all but the last byte, and then silence")
        .answers_with_frames(write_all_but_one_byte),
    // Responses that are not a frame.
    HostileBehaviour::new("bolt-garbage", O::ProtocolError)
        .with_description("bytes that are not a frame")
        .answers_with(&[0xa5; 4096]),
    HostileBehaviour::new("bolt-http", O::ProtocolError)
        .with_description("an HTTP/1.1 answer")
        .answers_with(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    HostileBehaviour::new("bolt-protocol", O::ProtocolError)
        .with_description("protocol 3")
        .answers_with_frames(|out, id| write_patched_response(out, id, 0, &[3])),
    HostileBehaviour::new("bolt-type", O::ProtocolError)
        .with_description("a frame of type 9")
        .answers_with_frames(|out, id| write_patched_response(out, id, 1, &[9])),
    HostileBehaviour::new("bolt-command", O::ProtocolError)
        .with_description("command 77")
        .answers_with_frames(|out, id| write_patched_response(out, id, 2, &[0, 77])),
    HostileBehaviour::new("bolt-class-longer", O::DeadlineExceeded)
        .with_description("a class declared longer than it is")
        .answers_with_frames(|out, id| write_patched_response(out, id, 12, &[0x7f, 0xff])),
    HostileBehaviour::new("bolt-content-huge", O::MessageTooLarge)
        .with_description("a content declared as 2 GiB")
        .answers_with_frames(|out, id| {
            write_patched_response(out, id, 16, &[0x7f, 0xff, 0xff, 0xff])
        }),
    HostileBehaviour::new("bolt-content-negative", O::ProtocolError)
        .with_description("a content of −1 bytes")
        .answers_with_frames(|out, id| {
            write_patched_response(out, id, 16, &[0xff, 0xff, 0xff, 0xff])
        }),
    HostileBehaviour::new("bolt-crc", O::ProtocolError)
        .with_description("version 2 with a wrong checksum")
        .answers_with_frames(write_wrong_checksum),
    // Responses with unexpected ids.
    HostileBehaviour::new("bolt-other-id", O::DeadlineExceeded)
        .with_description("answers a request that was not sent")
        .answers_with_frames(|out, id| write_good_response(out, id ^ 0x5555)),
    HostileBehaviour::new("bolt-answer-twice", O::Ok)
        .with_description("answers twice")
        .with_steps(&[
            Request,
            Write(write_good_response),
            Write(write_good_response),
            Wait,
        ]),
    HostileBehaviour::new("bolt-answer-unasked", O::Ok)
        .with_description("an answer at once, to the id that the first request will have")
        .with_steps(&[Write(|out, _| write_good_response(out, 1)), Wait]),
    HostileBehaviour::new("bolt-request", O::DeadlineExceeded)
        .with_description("a request in place of an answer")
        .answers_with_frames(|out, id| {
            let request = BoltFrame {
                kind: BoltFrameKind::Request { timeout: 1000 },
                command: BoltCommand::RpcRequest,
                ..good_response(id)
            };
            request.write(out);
        }),
    HostileBehaviour::new("bolt-goaway", O::ConnectionClosed)
        .with_description("sends goaway, and closes with the request unanswered")
        .with_steps(&[
            Request,
            Write(|out, id| {
                let goaway = BoltFrame {
                    command: BoltCommand::GoAway,
                    ..BoltFrame::heartbeat(FrameLayout::V1, id.wrapping_add(1))
                };
                goaway.write(out);
            }),
        ]),
    HostileBehaviour::new("bolt-heartbeat-flood", O::DeadlineExceeded)
        .with_description("heartbeats without end, and reads nothing")
        .with_steps(&[Request, FloodFrames(write_heartbeat)]),
    HostileBehaviour::new("bolt-answer-flood", O::DeadlineExceeded)
        .with_description("answers to requests that were not sent, without end")
        .with_steps(&[
            Request,
            FloodFrames(|out, id| write_good_response(out, id ^ 0x5555)),
        ]),
    // Responses with an error status.
    status_behaviour::<0x01>("bolt-status-error", "status ERROR"),
    status_behaviour::<0x02>("bolt-status-exception", "status SERVER_EXCEPTION"),
    status_behaviour::<0x03>("bolt-status-unknown", "status UNKNOWN"),
    status_behaviour::<0x04>("bolt-status-busy", "status SERVER_THREADPOOL_BUSY"),
    status_behaviour::<0x05>("bolt-status-comm", "status ERROR_COMM"),
    status_behaviour::<0x06>("bolt-status-no-processor", "status NO_PROCESSOR"),
    status_behaviour::<0x07>("bolt-status-timeout", "status TIMEOUT"),
    status_behaviour::<0x08>("bolt-status-send", "status CLIENT_SEND_ERROR"),
    status_behaviour::<0x09>("bolt-status-codec", "status CODEC_EXCEPTION"),
    status_behaviour::<0x10>("bolt-status-closed", "status CONNECTION_CLOSED"),
    status_behaviour::<0x11>("bolt-status-serial", "status SERVER_SERIAL_EXCEPTION"),
    status_behaviour::<0x12>("bolt-status-deserial", "status SERVER_DESERIAL_EXCEPTION"),
    HostileBehaviour::new("bolt-status-number", O::coded("BOLT_UNKNOWN"))
        .with_description("a status that does not exist")
        .answers_with_frames(|out, id| write_patched_response(out, id, 10, &[0x7f, 0x01])),
];
