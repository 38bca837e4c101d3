//! Misbehaving gRPC servers over HTTP/2 (RFC 9113, RFC 7541).
//!
//! This file is long because it is a single list of behaviours.

mod forbidden_fields;

use std::io;

use plimsoll_model::Outcome as O;
use plimsoll_wire::hpack::Encoder;
use plimsoll_wire::http2::write::{self, reset_stream as reset};
use plimsoll_wire::http2::{EndStream, ErrorCode as Code, flags, kind, setting};

use super::peer::ScriptTransport;
use super::script::{BehaviourScript, FrameWriter, HostileBehaviour, HostileStep, HostileStep::*};
pub(super) use forbidden_fields::FIELD_BEHAVIOURS;

/// `score.ScoreResponse { score: 1.0 }` with gRPC's prefix.
const SCORE_MESSAGE: &[u8] = &[0, 0, 0, 0, 9, 9, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f];

/// Reads the client's connection preface.
const READ_PREFACE: HostileStep = Do(|p| p.read_exact(24).map(drop));

/// Sends SETTINGS.
const SEND_SETTINGS: HostileStep = Write(|out, _| write::settings(out, &[]));

/// Reads frames up to the end of the first request, acknowledges the client's SETTINGS, and returns the request's
/// stream id.
pub(super) fn read_request(peer: &mut ScriptTransport) -> io::Result<u32> {
    peer.run_steps(&[READ_PREFACE, SEND_SETTINGS])?;
    read_whole_request(peer)
}

/// Reads frames up to one with END_STREAM, and returns its stream id.
fn read_whole_request(peer: &mut ScriptTransport) -> io::Result<u32> {
    loop {
        let head = peer.read_exact(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        peer.read_exact(length)?;
        let (kind, bits) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        if kind == kind::SETTINGS && bits & flags::ACK == 0 {
            peer.write(write::settings_ack)?;
        }
        if matches!(kind, kind::HEADERS | kind::DATA) && bits & flags::END_STREAM != 0 {
            return Ok(stream);
        }
    }
}

fn write_headers(out: &mut Vec<u8>, stream: u32, fields: &[(&str, &str)], end: EndStream) {
    let block = Encoder::encode_plain(fields.iter().copied());
    write::header_block(out, stream, &block, end);
}

const ANSWER_HEAD_FIELDS: [(&str, &str); 2] =
    [(":status", "200"), ("content-type", "application/grpc")];
const STATUS_OK_FIELD: (&str, &str) = ("grpc-status", "0");

fn write_answer_head(out: &mut Vec<u8>, stream: u32) {
    write_headers(out, stream, &ANSWER_HEAD_FIELDS, EndStream(false));
}

fn write_message_data(out: &mut Vec<u8>, stream: u32) {
    write::data(out, stream, SCORE_MESSAGE, EndStream(false));
}

fn write_trailers(out: &mut Vec<u8>, stream: u32) {
    write_end_stream(out, stream, &[STATUS_OK_FIELD]);
}

fn write_answer(out: &mut Vec<u8>, stream: u32) {
    write_answer_head(out, stream);
    write_message_data(out, stream);
    write_trailers(out, stream);
}

/// Writes a head and half a message.
fn write_half_answer(out: &mut Vec<u8>, stream: u32) {
    write_answer_head(out, stream);
    write::data(out, stream, &SCORE_MESSAGE[..8], EndStream(false));
}

/// Writes a HEADERS frame with these fields and END_STREAM.
fn write_end_stream(out: &mut Vec<u8>, stream: u32, fields: &[(&str, &str)]) {
    write_headers(out, stream, fields, EndStream(true));
}

/// Writes a Trailers-Only response.
fn write_trailers_only(out: &mut Vec<u8>, stream: u32, fields: &[(&str, &str)]) {
    write_end_stream(out, stream, &[&ANSWER_HEAD_FIELDS, fields].concat());
}

/// Writes a Trailers-Only response with a status and a message.
fn write_error_status(out: &mut Vec<u8>, stream: u32, number: &str, message: &str) {
    let fields = [("grpc-status", number), ("grpc-message", message)];
    write_trailers_only(out, stream, &fields);
}

/// Writes a response whose message consists of these bytes, including the prefix.
fn write_message(out: &mut Vec<u8>, stream: u32, bytes: &[u8]) {
    write_message_with_fields(out, stream, &[], bytes);
}

/// Writes a response as [`write_message`] does, with more fields in its head.
fn write_message_with_fields(out: &mut Vec<u8>, stream: u32, more: &[(&str, &str)], bytes: &[u8]) {
    write_headers(
        out,
        stream,
        &[&ANSWER_HEAD_FIELDS, more].concat(),
        EndStream(false),
    );
    for piece in bytes.chunks(16_384) {
        write::data(out, stream, piece, EndStream(false));
    }
    write_trailers(out, stream);
}

/// Answers every request of the connection correctly.
fn answer_all_requests(peer: &mut ScriptTransport) -> io::Result<()> {
    loop {
        peer.run_steps(&[Write(write_answer)])?;
        peer.request_id = read_whole_request(peer)?;
    }
}

fn send_ping_flood(peer: &mut ScriptTransport) -> io::Result<()> {
    for _ in 0..1000 {
        peer.write(|out| write_ping(out, 0, b"pingping"))?;
    }
    Ok(())
}

/// Writes a HEADERS frame with these bytes as its header block.
fn write_header_block(out: &mut Vec<u8>, stream: u32, block: &[u8]) {
    write::header_block(out, stream, block, EndStream(false));
}

/// Writes a HEADERS frame without END_HEADERS.
fn write_unfinished_header_block(out: &mut Vec<u8>, stream: u32) {
    write_frame(out, kind::HEADERS, 0, stream, &[0x88]);
}

/// Writes a CONTINUATION with one field, without END_HEADERS.
fn write_continuation(out: &mut Vec<u8>, stream: u32) {
    write_frame(out, kind::CONTINUATION, 0, stream, b"\x00\x01a\x01b");
}

fn write_empty_continuation(out: &mut Vec<u8>, stream: u32) {
    write_frame(out, kind::CONTINUATION, 0, stream, b"");
}

fn write_empty_data(out: &mut Vec<u8>, stream: u32) {
    write::data(out, stream, b"", EndStream(false));
}

fn write_interim_response(out: &mut Vec<u8>, stream: u32) {
    write_headers(out, stream, &[(":status", "103")], EndStream(false));
}

fn write_ping(out: &mut Vec<u8>, stream: u32, payload: &[u8]) {
    write_frame(out, kind::PING, 0, stream, payload);
}

fn write_setting(out: &mut Vec<u8>, setting: u16, value: u32) {
    write::settings(out, &[(setting, value)]);
}

/// Writes a GOAWAY with this last stream id.
fn write_goaway(out: &mut Vec<u8>, last: u32) {
    write::goaway(out, last, Code::NO_ERROR, b"");
}

/// Writes a frame of this kind without any checks.
fn write_frame(out: &mut Vec<u8>, kind: u8, bits: u8, stream: u32, payload: &[u8]) {
    write::frame_header(out, payload.len(), kind, bits, stream);
    out.extend_from_slice(payload);
}

impl HostileBehaviour {
    /// Makes the behaviour answer the client's preface with these frames instead of SETTINGS, and then send
    /// nothing more.
    const fn with_preface_answer(self, frames: FrameWriter) -> HostileBehaviour {
        self.with_script(BehaviourScript::ThreeSteps([
            READ_PREFACE,
            Write(frames),
            Wait,
        ]))
    }
}

const HTTP_STATUS_ERROR_OUTCOME: O = O::coded("HTTP_STATUS");

pub(super) const BEHAVIOURS: &[HostileBehaviour] = &[
    // Connections that are closed, reset or stalled.
    HostileBehaviour::new("h2-close-at-once", O::ConnectionClosed)
        .with_description("closes without sending a byte")
        .with_steps(&[]),
    HostileBehaviour::new("h2-reset-at-once", O::Reset)
        .with_description("RST without sending a byte")
        .with_steps(&[Reset]),
    HostileBehaviour::new("h2-silent", O::ConnectTimeout)
        .with_description("accepts the connection and sends nothing")
        .with_steps(&[Wait]),
    HostileBehaviour::new("h2-deaf", O::ConnectTimeout)
        .with_description("accepts the connection, and neither reads nor writes")
        .with_steps(&[Ignore]),
    HostileBehaviour::new("h2-http1", O::coded("NOT_HTTP2"))
        .with_description("answers as an HTTP/1.1 server does")
        .with_steps(&[
            READ_PREFACE,
            Send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
        ]),
    HostileBehaviour::new("h2-tls-alert", O::coded("NOT_HTTP2"))
        .with_description("a TLS alert in plaintext")
        .with_steps(&[READ_PREFACE, Send(&[21, 3, 1, 0, 2, 2, 70]), Wait]),
    HostileBehaviour::new("h2-garbage", O::ProtocolError)
        .with_description("bytes that are not a frame")
        .with_steps(&[READ_PREFACE, Send(&[0xa5; 4096]), Wait]),
    HostileBehaviour::new("h2-close-after-settings", O::ConnectionClosed)
        .with_description("SETTINGS, and closes")
        .with_steps(&[READ_PREFACE, SEND_SETTINGS]),
    HostileBehaviour::new("h2-reset-after-settings", O::Reset)
        .with_description("SETTINGS, and RST")
        .with_steps(&[
            READ_PREFACE,
            SEND_SETTINGS,
            Do(|p| read_whole_request(p).map(drop)),
            Reset,
        ]),
    HostileBehaviour::new("h2-half-close", O::ConnectionClosed)
        .with_description("half-closes after the request, and keeps reading")
        .with_steps(&[Request, HalfClose]),
    HostileBehaviour::new("h2-no-answer", O::DeadlineExceeded)
        .with_description("accepts the request and never answers")
        .with_steps(&[Request, Wait]),
    HostileBehaviour::new("h2-drip", O::Ok)
        .with_description("a valid answer, one byte per millisecond")
        .with_steps(&[Request, Write(write_answer), Drip, Wait]),
    // Missing, invalid and extreme SETTINGS.
    HostileBehaviour::new("h2-no-settings", O::ProtocolError)
        .with_description("the first frame is not SETTINGS (RFC 9113 §3.4)")
        .with_preface_answer(|out, _| write_ping(out, 0, b"pingping")),
    HostileBehaviour::new("h2-settings-window", O::ProtocolError)
        .with_description("INITIAL_WINDOW_SIZE of 2^31 (§6.5.2)")
        .with_preface_answer(|out, _| write_setting(out, setting::INITIAL_WINDOW_SIZE, 1 << 31)),
    HostileBehaviour::new("h2-settings-frame-size", O::ProtocolError)
        .with_description("MAX_FRAME_SIZE of 100 (§6.5.2)")
        .with_preface_answer(|out, _| write_setting(out, setting::MAX_FRAME_SIZE, 100)),
    HostileBehaviour::new("h2-settings-length", O::ProtocolError)
        .with_description("SETTINGS of 5 bytes (§6.5)")
        .with_preface_answer(|out, _| write_frame(out, kind::SETTINGS, 0, 0, &[0; 5])),
    HostileBehaviour::new("h2-settings-on-stream", O::ProtocolError)
        .with_description("SETTINGS on a stream (§6.5)")
        .with_preface_answer(|out, _| write_frame(out, kind::SETTINGS, 0, 1, &[])),
    HostileBehaviour::new("h2-settings-ack-payload", O::ProtocolError)
        .with_description("an acknowledgement with a payload (§6.5)")
        .answers_with_frames(|out, _| write_frame(out, kind::SETTINGS, flags::ACK, 0, &[0; 6])),
    HostileBehaviour::new("h2-settings-no-streams", O::DeadlineExceeded)
        .with_description("MAX_CONCURRENT_STREAMS of 0, for ever")
        .with_preface_answer(|out, _| write_setting(out, setting::MAX_CONCURRENT_STREAMS, 0)),
    HostileBehaviour::new("h2-settings-window-none", O::DeadlineExceeded)
        .with_description("INITIAL_WINDOW_SIZE of 0, and never a WINDOW_UPDATE")
        .with_preface_answer(|out, _| write_setting(out, setting::INITIAL_WINDOW_SIZE, 0)),
    HostileBehaviour::new("h2-settings-flood", O::DeadlineExceeded)
        .with_description("SETTINGS without end, and reads nothing")
        .with_steps(&[Request, FloodFrames(|out, _| write::settings(out, &[]))]),
    HostileBehaviour::new("h2-ping-flood", O::DeadlineExceeded)
        .with_description("PING without end, and reads nothing")
        .with_steps(&[
            Request,
            FloodFrames(|out, _| write_ping(out, 0, b"pingping")),
        ]),
    HostileBehaviour::new("h2-ping-length", O::ProtocolError)
        .with_description("PING of 7 bytes (§6.7)")
        .answers_with_frames(|out, _| write_ping(out, 0, &[0; 7])),
    HostileBehaviour::new("h2-ping-on-stream", O::ProtocolError)
        .with_description("PING on a stream (§6.7)")
        .answers_with_frames(|out, s| write_ping(out, s, &[0; 8])),
    HostileBehaviour::new("h2-pings-then-answer", O::Ok)
        .with_description("1,000 PINGs before a good answer")
        .with_steps(&[Request, Do(send_ping_flood), Do(answer_all_requests)]),
    // Unexpected GOAWAY frames.
    HostileBehaviour::new("h2-goaway-at-once", O::Goaway)
        .with_description("GOAWAY after its SETTINGS")
        .with_steps(&[
            READ_PREFACE,
            SEND_SETTINGS,
            Write(|out, _| write_goaway(out, 0)),
        ]),
    HostileBehaviour::new("h2-goaway-before-answer", O::Goaway)
        .with_description("GOAWAY that excludes the request")
        .answers_with_frames(|out, _| write_goaway(out, 0)),
    HostileBehaviour::new("h2-goaway-calm", O::Goaway)
        .with_description("GOAWAY with ENHANCE_YOUR_CALM")
        .answers_with_frames(|out, _| {
            write::goaway(out, 0, Code::ENHANCE_YOUR_CALM, b"too_many_pings")
        }),
    HostileBehaviour::new("h2-goaway-then-answer", O::Ok)
        .with_description("GOAWAY that includes the request, and a good answer")
        .with_steps(&[Request, Write(write_goaway), Write(write_answer), Wait]),
    HostileBehaviour::new("h2-goaway-taken-back", O::Goaway)
        .with_description("GOAWAY that includes the request, then one that excludes it")
        .answers_with_frames(|out, s| {
            write_goaway(out, s);
            write_goaway(out, 0);
        }),
    HostileBehaviour::new("h2-goaway-storm", O::Goaway)
        .with_description("GOAWAY without end")
        .with_steps(&[Request, FloodFrames(|out, _| write_goaway(out, 0))]),
    HostileBehaviour::new("h2-goaway-length", O::ProtocolError)
        .with_description("GOAWAY of 4 bytes (§6.8)")
        .answers_with_frames(|out, _| write_frame(out, kind::GOAWAY, 0, 0, &[0; 4])),
    // Streams that are reset or end early.
    HostileBehaviour::new("h2-refused-stream", O::StreamRefused)
        .with_description("RST_STREAM with REFUSED_STREAM")
        .answers_with_frames(|out, s| reset(out, s, Code::REFUSED_STREAM)),
    HostileBehaviour::new("h2-reset-stream", O::StreamReset)
        .with_description("RST_STREAM with INTERNAL_ERROR")
        .answers_with_frames(|out, s| reset(out, s, Code::INTERNAL_ERROR)),
    HostileBehaviour::new("h2-reset-stream-unknown-code", O::StreamReset)
        .with_description("RST_STREAM with a code that does not exist")
        .answers_with_frames(|out, s| reset(out, s, Code(0xdead))),
    HostileBehaviour::new("h2-reset-stream-after-head", O::StreamReset)
        .with_description("RST_STREAM in the middle of an answer")
        .answers_with_frames(|out, s| {
            write_answer_head(out, s);
            reset(out, s, Code::INTERNAL_ERROR);
        }),
    HostileBehaviour::new("h2-reset-stream-cancel", O::Cancelled)
        .with_description("RST_STREAM with CANCEL")
        .answers_with_frames(|out, s| reset(out, s, Code::CANCEL)),
    HostileBehaviour::new("h2-reset-stream-calm", O::ResourceExhausted)
        .with_description("RST_STREAM with ENHANCE_YOUR_CALM")
        .answers_with_frames(|out, s| reset(out, s, Code::ENHANCE_YOUR_CALM)),
    HostileBehaviour::new("h2-reset-stream-security", O::PermissionDenied)
        .with_description("RST_STREAM with INADEQUATE_SECURITY")
        .answers_with_frames(|out, s| reset(out, s, Code::INADEQUATE_SECURITY)),
    HostileBehaviour::new("h2-reset-after-answer", O::Ok)
        .with_description("a good answer, then RST_STREAM with NO_ERROR (§8.1)")
        .answers_with_frames(|out, s| {
            write_answer(out, s);
            reset(out, s, Code::NO_ERROR);
        }),
    HostileBehaviour::new("h2-reset-stream-length", O::ProtocolError)
        .with_description("RST_STREAM of 3 bytes (§6.4)")
        .answers_with_frames(|out, s| write_frame(out, kind::RST_STREAM, 0, s, &[0; 3])),
    HostileBehaviour::new("h2-reset-idle-stream", O::ProtocolError)
        .with_description("RST_STREAM of a stream that was never opened (§5.1)")
        .answers_with_frames(|out, _| reset(out, 999, Code::CANCEL)),
    HostileBehaviour::new("h2-data-before-headers", O::ProtocolError)
        .with_description("DATA before HEADERS")
        .answers_with_frames(write_message_data),
    HostileBehaviour::new("h2-data-on-idle-stream", O::ProtocolError)
        .with_description("DATA on a stream that was never opened (§5.1)")
        .answers_with_frames(|out, _| write_message_data(out, 999)),
    HostileBehaviour::new("h2-data-on-stream-0", O::ProtocolError)
        .with_description("DATA on stream 0 (§6.1)")
        .answers_with_frames(|out, _| write_message_data(out, 0)),
    HostileBehaviour::new("h2-headers-on-stream-0", O::ProtocolError)
        .with_description("HEADERS on stream 0 (§6.2)")
        .answers_with_frames(|out, _| write_answer_head(out, 0)),
    HostileBehaviour::new("h2-headers-on-even-stream", O::ProtocolError)
        .with_description("HEADERS on a stream that the server opened (§5.1.1)")
        .answers_with_frames(|out, _| write_answer_head(out, 2)),
    HostileBehaviour::new("h2-push", O::ProtocolError)
        .with_description("PUSH_PROMISE where push is off (§8.4)")
        .answers_with_frames(|out, s| {
            write_frame(
                out,
                kind::PUSH_PROMISE,
                flags::END_HEADERS,
                s,
                &[0, 0, 0, 2, 0x88],
            )
        }),
    HostileBehaviour::new("h2-trailers-twice", O::Ok)
        .with_description("HEADERS after the end of the stream (§5.1)")
        .with_steps(&[Request, Write(write_answer), Write(write_trailers), Wait]),
    HostileBehaviour::new("h2-unknown-frames", O::Ok)
        .with_description("frames of unknown types around a good answer (§5.5)")
        .answers_with_frames(|out, s| {
            write_frame(out, 0x42, 0xff, s, &[7; 1000]);
            write_answer_head(out, s);
            write_frame(out, 0xbe, 0, 0, b"");
            write_message_data(out, s);
            write_frame(out, 0x42, 0, 12_345, &[0; 16_384]);
            write_trailers(out, s);
        }),
    // Violations of flow control.
    HostileBehaviour::new("h2-window-zero", O::ProtocolError)
        .with_description("WINDOW_UPDATE by 0 for the connection (§6.9)")
        .answers_with_frames(|out, _| write::window_update(out, 0, 0)),
    HostileBehaviour::new("h2-window-zero-stream", O::ProtocolError)
        .with_description("WINDOW_UPDATE by 0 for the stream (§6.9)")
        .answers_with_frames(|out, s| write::window_update(out, s, 0)),
    HostileBehaviour::new("h2-window-overflow", O::ProtocolError)
        .with_description("the connection's window grows beyond 2^31 − 1 (§6.9.1)")
        .answers_with_frames(|out, _| {
            write::window_update(out, 0, (1 << 31) - 1);
            write::window_update(out, 0, (1 << 31) - 1);
        }),
    HostileBehaviour::new("h2-window-length", O::ProtocolError)
        .with_description("WINDOW_UPDATE of 3 bytes (§6.9)")
        .answers_with_frames(|out, _| write_frame(out, kind::WINDOW_UPDATE, 0, 0, &[0; 3])),
    // Invalid frames and header blocks.
    HostileBehaviour::new("h2-frame-too-long", O::ProtocolError)
        .with_description("a frame of 16 MiB − 1 (§4.2)")
        .answers_with_frames(|out, s| write::frame_header(out, (1 << 24) - 1, kind::DATA, 0, s)),
    HostileBehaviour::new("h2-padding", O::ProtocolError)
        .with_description("padding longer than its frame (§6.1)")
        .answers_with_frames(|out, s| {
            write_answer_head(out, s);
            write_frame(out, kind::DATA, flags::PADDED, s, &[200, 1, 2, 3]);
        }),
    HostileBehaviour::new("h2-continuation-missing", O::ProtocolError)
        .with_description("HEADERS without END_HEADERS, and then DATA (§6.10)")
        .with_steps(&[
            Request,
            Write(write_unfinished_header_block),
            Write(write_message_data),
            Wait,
        ]),
    HostileBehaviour::new("h2-continuation-alone", O::ProtocolError)
        .with_description("CONTINUATION without HEADERS (§6.10)")
        .answers_with_frames(|out, s| {
            write_frame(out, kind::CONTINUATION, flags::END_HEADERS, s, &[0x88])
        }),
    HostileBehaviour::new("h2-continuation-flood", O::HeadTooLarge)
        .with_description("CONTINUATION without end")
        .with_steps(&[
            Request,
            Write(write_unfinished_header_block),
            FloodFrames(write_continuation),
        ]),
    HostileBehaviour::new("h2-continuation-empty-flood", O::HeadTooLarge)
        .with_description("empty CONTINUATION without end")
        .with_steps(&[
            Request,
            Write(write_unfinished_header_block),
            FloodFrames(write_empty_continuation),
        ]),
    HostileBehaviour::new("h2-data-empty-flood", O::DeadlineExceeded)
        .with_description("empty DATA without end (CVE-2019-9518)")
        .with_steps(&[
            Request,
            Write(write_answer_head),
            FloodFrames(write_empty_data),
        ]),
    HostileBehaviour::new("h2-hpack-index", O::ProtocolError)
        .with_description("an index beyond the table (RFC 7541 §2.3.3)")
        .answers_with_frames(|out, s| write_header_block(out, s, &[0xff, 0xff, 0x0f])),
    HostileBehaviour::new("h2-hpack-index-zero", O::ProtocolError)
        .with_description("index 0 (RFC 7541 §6.1)")
        .answers_with_frames(|out, s| write_header_block(out, s, &[0x80])),
    HostileBehaviour::new("h2-hpack-integer", O::ProtocolError)
        .with_description("an integer without end (RFC 7541 §5.1)")
        .answers_with_frames(|out, s| write_header_block(out, s, &[0xff; 64])),
    HostileBehaviour::new("h2-hpack-huffman", O::ProtocolError)
        .with_description("a Huffman code that is only padding (RFC 7541 §5.2)")
        .answers_with_frames(|out, s| {
            write_header_block(
                out,
                s,
                &[0x88, 0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 0x01, b'x'],
            )
        }),
    HostileBehaviour::new("h2-hpack-cut", O::ProtocolError)
        .with_description("a block that ends within a field")
        .answers_with_frames(|out, s| write_header_block(out, s, &[0x88, 0x00, 0x0a, b'x'])),
    HostileBehaviour::new("h2-hpack-table-size", O::ProtocolError)
        .with_description("a table larger than was allowed (RFC 7541 §6.3)")
        .answers_with_frames(|out, s| {
            write_header_block(out, s, &[0x3f, 0xe1, 0xff, 0xff, 0x7f, 0x88])
        }),
    HostileBehaviour::new("h2-hpack-bomb", O::HeadTooLarge)
        .with_description("4,000 bytes in the table, named 16,000 times")
        .answers_with_frames(|out, s| {
            // A literal with indexing, `a: bbb…`, which adds the entry with index 62 to the dynamic table.
            let mut block = vec![0x88, 0x40, 0x01, b'a', 0x7f, 0xa1, 0x1e];
            block.extend([b'b'; 4000]);
            block.extend([0xbe; 16_000]);
            write::header_block(out, s, &block, EndStream(false));
        }),
    HostileBehaviour::new("h2-header-upper-case", O::ProtocolError)
        .with_description("a field name in upper case (RFC 9113 §8.2.1)")
        .answers_with_frames(|out, s| write_trailers_only(out, s, &[("Grpc-Status", "0")])),
    HostileBehaviour::new("h2-header-connection", O::ProtocolError)
        .with_description("a connection-specific field (RFC 9113 §8.2.2)")
        .answers_with_frames(|out, s| {
            write_trailers_only(
                out,
                s,
                &[("connection", "keep-alive"), ("grpc-status", "0")],
            )
        }),
    HostileBehaviour::new("h2-header-list-long", O::HeadTooLarge)
        .with_description("1 MiB of header fields")
        .answers_with_frames(|out, s| write_error_status(out, s, "14", &"x".repeat(1 << 20))),
    // Violations of gRPC.
    HostileBehaviour::new("grpc-no-trailers", O::MissingStatus)
        .with_description("the stream ends with DATA: no status")
        .answers_with_frames(|out, s| {
            write_answer_head(out, s);
            write::data(out, s, SCORE_MESSAGE, EndStream(true));
        }),
    HostileBehaviour::new("grpc-head-only", O::MissingStatus)
        .with_description("the stream ends with its head: no status")
        .answers_with_frames(|out, s| write_end_stream(out, s, &ANSWER_HEAD_FIELDS)),
    HostileBehaviour::new("grpc-no-message", O::BadAnswer)
        .with_description("status OK and no message")
        .answers_with_frames(|out, s| write_trailers_only(out, s, &[STATUS_OK_FIELD])),
    HostileBehaviour::new("grpc-two-messages", O::BadAnswer)
        .with_description("two messages where one is expected")
        .answers_with_frames(|out, s| {
            write_message(out, s, &[SCORE_MESSAGE, SCORE_MESSAGE].concat())
        }),
    HostileBehaviour::new("grpc-status-unavailable", O::Unavailable)
        .with_description("status 14")
        .answers_with_frames(|out, s| write_error_status(out, s, "14", "over%20there")),
    HostileBehaviour::new("grpc-status-unknown-number", O::Unknown)
        .with_description("status 99")
        .answers_with_frames(|out, s| write_trailers_only(out, s, &[("grpc-status", "99")])),
    HostileBehaviour::new("grpc-status-no-number", O::Unknown)
        .with_description("a status of letters")
        .answers_with_frames(|out, s| write_trailers_only(out, s, &[("grpc-status", "fine")])),
    HostileBehaviour::new("grpc-message-controls", O::Internal)
        .with_description("a message with tabs, newlines and bad UTF-8")
        .answers_with_frames(|out, s| {
            write_error_status(out, s, "13", "line%0Aline%09tab%FF%00%1B[31mred")
        }),
    HostileBehaviour::new("grpc-message-long", O::Internal)
        .with_description("a grpc-message of 12 kB")
        .answers_with_frames(|out, s| write_error_status(out, s, "13", &"y".repeat(12_000))),
    HostileBehaviour::new("grpc-length-huge", O::MessageTooLarge)
        .with_description("a message declared as 2 GiB")
        .answers_with_frames(|out, s| write_message(out, s, &[0, 0x7f, 0xff, 0xff, 0xff, 1, 2, 3])),
    HostileBehaviour::new("grpc-message-cut", O::BadAnswer)
        .with_description("the stream ends within a message")
        .answers_with_frames(|out, s| {
            write_message(out, s, &[&[0, 0, 0, 0, 100], &SCORE_MESSAGE[5..]].concat())
        }),
    HostileBehaviour::new("grpc-message-flag", O::BadAnswer)
        .with_description("a compression flag of 7")
        .answers_with_frames(|out, s| write_message(out, s, &[7, 0, 0, 0, 1, 1])),
    HostileBehaviour::new("grpc-compressed-unasked", O::CompressionUnsupported)
        .with_description("a compressed message without grpc-encoding")
        .answers_with_frames(|out, s| write_message(out, s, &[1, 0, 0, 0, 1, 1])),
    HostileBehaviour::new("grpc-compressed-unknown", O::CompressionUnsupported)
        .with_description("an encoding that was not offered")
        .answers_with_frames(|out, s| {
            write_message_with_fields(out, s, &[("grpc-encoding", "snappy")], &[1, 0, 0, 0, 1, 1])
        }),
    HostileBehaviour::new("grpc-message-no-protobuf", O::BadAnswer)
        .with_description("a message that is not protobuf")
        .answers_with_frames(|out, s| {
            write_message(out, s, &[0, 0, 0, 0, 4, 0x0a, 0xff, 0xff, 0xff])
        }),
    HostileBehaviour::new("grpc-http-503", HTTP_STATUS_ERROR_OUTCOME)
        .with_description("HTTP status 503")
        .answers_with_frames(|out, s| {
            write_end_stream(out, s, &[(":status", "503"), ("content-type", "text/html")])
        }),
    HostileBehaviour::new("grpc-http-302", HTTP_STATUS_ERROR_OUTCOME)
        .with_description("a redirect")
        .answers_with_frames(|out, s| {
            write_end_stream(out, s, &[(":status", "302"), ("location", "/elsewhere")])
        }),
    HostileBehaviour::new("grpc-html", O::BadAnswer)
        .with_description("a page with status 200")
        .answers_with_frames(|out, s| {
            let page = [(":status", "200"), ("content-type", "text/html")];
            write_headers(out, s, &page, EndStream(false));
            write::data(out, s, b"<html>welcome</html>", EndStream(true));
        }),
    HostileBehaviour::new("grpc-informational", O::Ok)
        .with_description("103 Early Hints before a good answer")
        .answers_with_frames(|out, s| {
            let hints = [(":status", "103"), ("link", "</a>")];
            write_headers(out, s, &hints, EndStream(false));
            write_answer(out, s);
        }),
    HostileBehaviour::new("grpc-informational-flood", O::DeadlineExceeded)
        .with_description("103 without end")
        .with_steps(&[Request, FloodFrames(write_interim_response)]),
    HostileBehaviour::new("grpc-stall-after-head", O::DeadlineExceeded)
        .with_description("a head, and then silence")
        .answers_with_frames(write_answer_head),
    HostileBehaviour::new("grpc-stall-in-message", O::DeadlineExceeded)
        .with_description("half a message, and then silence")
        .answers_with_frames(write_half_answer),
    HostileBehaviour::new("grpc-close-in-message", O::ConnectionClosed)
        .with_description("half a message, and closes")
        .with_steps(&[Request, Write(write_half_answer)]),
    HostileBehaviour::new("grpc-reset-in-message", O::Reset)
        .with_description("half a message, and RST")
        .with_steps(&[Request, Write(write_half_answer), Reset]),
    HostileBehaviour::new("grpc-cut-frame", O::ConnectionClosed)
        .with_description("a frame's head, and closes")
        .with_steps(&[
            Request,
            Write(|out, s| write::frame_header(out, 100, kind::DATA, 0, s)),
        ]),
    HostileBehaviour::new("grpc-answer-unasked", O::ProtocolError)
        .with_description("an answer before any request")
        .with_steps(&[
            READ_PREFACE,
            SEND_SETTINGS,
            Write(|out, _| write_answer(out, 1)),
            Wait,
        ]),
];
