//! The slow path of starting calls: requests that are not a copy of the prepared bytes, and bodies that wait
//! for a window.
//!
//! If requests vary, their bodies and varying header fields are encoded directly into the output, and the
//! frame lengths are filled in afterwards.

use plimsoll_engine::driver::{CallId, MAX_UNSENT_BYTES};
use plimsoll_model::Time;
use plimsoll_wire::hpack::BlockChoice;
use plimsoll_wire::http2::{
    self, ClientRole, DEFAULT_MAX_FRAME_BYTES, EndStream, FrameHeader, flags, kind, write,
};

use super::fields::RequestBlock;
use super::request::BodyKind;
use super::streams::CallStream;
use super::{Connection, StreamCalls};

impl<C: StreamCalls> Connection<C> {
    /// Starts a call that can't be a copy of the prepared bytes. Either it is the connection's first call, or the
    /// windows or the server's HPACK table are too small, or the call is delayed and its header block contains the
    /// remaining time.
    #[inline(never)]
    pub(super) fn start_slow_path(
        &mut self,
        call: CallId,
        number: u64,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        let id = self.http2.allocate_stream_id();
        let request = self.calls.request();
        if request.varies() {
            return self.start_varying_call(id, call, number, now, out);
        }
        let body = request.body.len() as u32;
        // The window is at most MAX_WINDOW_BYTES, which fits.
        let stream_window = self.http2.initial_window() as i32;
        self.streams.insert(id, call, stream_window, body, body);
        self.write_head(id, number, now, out);
        if self.calls.request().body_kind == BodyKind::Streamed {
            return C::start_streamed_body(self, id, number, now, out);
        }
        if let Some(stream) = self.streams.find(id) {
            let body = &self.calls.request().body;
            self.payload_bytes += send_body(body, stream, &mut self.http2, out);
            if stream.unsent > 0 {
                self.blocked.push(id);
                self.held_back |= out.len() >= MAX_UNSENT_BYTES;
            }
        }
    }

    /// Writes a request's HEADERS.
    fn write_head(&mut self, id: u32, number: u64, now: Time, out: &mut Vec<u8>) {
        let request = self.calls.request();
        let mut block = Vec::new();
        let with_time_left = if self.waited.is_zero() {
            None
        } else {
            self.calls
                .header_block_with_timeout(self.waited)
                .map(RequestBlock::from_encoded)
        };
        let constant = match &with_time_left {
            Some(constant) => {
                self.peer_table
                    .append_size_updates(request.table_needed, &mut block);
                constant
            }
            None => match self
                .peer_table
                .choose_block(request.table_needed, &mut block)
            {
                BlockChoice::First => &request.first_block,
                BlockChoice::Steady => &request.steady_block,
                BlockChoice::Plain => &request.plain_block,
            },
        };
        write_block(&self.calls, constant, number, now, &mut block);
        write::header_block(out, id, &block, EndStream(request.is_bodiless));
    }

    #[inline(never)]
    fn start_varying_call(
        &mut self,
        id: u32,
        call: CallId,
        number: u64,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        self.calls.prepare(number, now);
        if self.peer_table.can_send_steady_block() && self.waited.is_zero() {
            write_fully_indexed_head(&self.calls, id, number, now, out);
        } else {
            self.write_head(id, number, now, out);
        }
        // The window is at most MAX_WINDOW_BYTES, which fits.
        let stream_window = self.http2.initial_window() as i32;
        if self.calls.request().is_bodiless {
            return self.streams.insert(id, call, stream_window, 0, 0);
        }
        let start = out.len();
        out.extend_from_slice(&[0; FrameHeader::LEN]);
        match self.calls.request() {
            request if request.body_kind == BodyKind::Same => out.extend_from_slice(&request.body),
            _ => self.calls.write_body(number, now, out),
        }
        let size = (out.len() - start - FrameHeader::LEN) as u32;
        let window = self.http2.send_window().min(stream_window as u32);
        if size <= window.min(DEFAULT_MAX_FRAME_BYTES) {
            write_frame_header(&mut out[start..], size, kind::DATA, flags::END_STREAM, id);
            self.http2.count_sent_data(size);
            self.streams
                .insert(id, call, stream_window - size as i32, size, 0);
            return;
        }
        let body = out.split_off(start + FrameHeader::LEN).into_boxed_slice();
        out.truncate(start);
        self.streams.insert(id, call, stream_window, size, size);
        if let Some(stream) = self.streams.find(id) {
            self.payload_bytes += send_body(&body, stream, &mut self.http2, out);
            if stream.unsent > 0 {
                self.held_back |= out.len() >= MAX_UNSENT_BYTES;
                self.blocked.push(id);
                self.bodies.insert(id, body);
            }
        }
    }

    /// Sends bodies that waited for a window, oldest stream first.
    #[inline(never)]
    pub(super) fn send_blocked_bodies(&mut self, out: &mut Vec<u8>) {
        let request = self.calls.request();
        if request.body_kind == BodyKind::Streamed {
            return C::send_blocked_streams(self, out);
        }
        let body = &request.body;
        let bodies = &mut self.bodies;
        let streams = &mut self.streams;
        let http2 = &mut self.http2;
        let payload_bytes = &mut self.payload_bytes;
        self.blocked.retain(|id| {
            let waits = match streams.find(*id) {
                Some(stream) if stream.unsent > 0 => {
                    *payload_bytes += send_body(bodies.get(id).unwrap_or(body), stream, http2, out);
                    stream.unsent > 0
                }
                _ => false,
            };
            if !waits {
                bodies.remove(id);
            }
            waits
        });
        if self.blocked.is_empty() {
            self.blocked = Vec::new();
        } else {
            self.held_back |= out.len() >= MAX_UNSENT_BYTES;
        }
    }
}

/// Appends a header block: `constant`, and the varying fields of call `number`.
#[inline]
fn write_block<C: StreamCalls>(
    calls: &C,
    constant: &RequestBlock,
    number: u64,
    now: Time,
    block: &mut Vec<u8>,
) {
    let request = calls.request();
    match &request.varying_fields {
        None => block.extend_from_slice(constant.bytes()),
        Some(fields) => {
            let unix_ns = request.unix_zero.unix_ns_at(now);
            let moment = fields
                .render_context(number, unix_ns)
                .with_captured_values(calls.captured_values());
            fields.write(constant, &moment, block);
        }
    }
    if C::HAS_PER_CALL_FIELDS {
        calls.write_per_call_fields(block);
    }
}

/// Writes the HEADERS of a request whose constant fields are all in the peer's HPACK table.
fn write_fully_indexed_head<C: StreamCalls>(
    calls: &C,
    id: u32,
    number: u64,
    now: Time,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let request = calls.request();
    if request.varying_fields.is_none() && !C::HAS_PER_CALL_FIELDS {
        out.extend_from_slice(&request.indexed_frames);
        for &place in &request.id_offsets {
            out[start + place as usize..][..4].copy_from_slice(&id.to_be_bytes());
        }
        return;
    }
    out.extend_from_slice(&[0; FrameHeader::LEN]);
    write_block(calls, &request.steady_block, number, now, out);
    let size = (out.len() - start - FrameHeader::LEN) as u32;
    if size > DEFAULT_MAX_FRAME_BYTES {
        let block = out.split_off(start + FrameHeader::LEN);
        out.truncate(start);
        return write::header_block(out, id, &block, EndStream(request.is_bodiless));
    }
    let flags = if request.is_bodiless {
        flags::END_HEADERS | flags::END_STREAM
    } else {
        flags::END_HEADERS
    };
    write_frame_header(&mut out[start..], size, kind::HEADERS, flags, id);
}

/// Writes a frame header over the first bytes of `frame` (RFC 9113, 4.1).
fn write_frame_header(frame: &mut [u8], size: u32, kind: u8, flags: u8, id: u32) {
    let [_, a, b, c] = size.to_be_bytes();
    let [d, e, f, g] = id.to_be_bytes();
    frame[..FrameHeader::LEN].copy_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
}

/// Sends as much of a request's body as the windows and the output buffer allow; returns the number of bytes
/// appended.
fn send_body<A>(
    body: &[u8],
    stream: &mut CallStream<A>,
    http2: &mut http2::Http2Connection<ClientRole>,
    out: &mut Vec<u8>,
) -> u64 {
    let before = out.len();
    while stream.unsent > 0 && out.len() < MAX_UNSENT_BYTES {
        let stream_window = stream.send_window.max(0) as u32;
        let length = stream
            .unsent
            .min(DEFAULT_MAX_FRAME_BYTES)
            .min(stream_window)
            .min(http2.send_window());
        if length == 0 {
            break;
        }
        let rest = &body[body.len() - stream.unsent as usize..];
        stream.unsent -= length;
        stream.send_window -= length as i32;
        http2.count_sent_data(length);
        write::data(
            out,
            stream.id,
            &rest[..length as usize],
            EndStream(stream.unsent == 0),
        );
    }
    (out.len() - before) as u64
}
