//! Unary calls that differ from call to call. Their message is made where it goes out, and so are
//! the header fields of their own; the lengths of frames are put in afterwards.

use std::sync::Arc;

use plimsoll_engine::driver::{CallId, MOST_UNSENT};
use plimsoll_model::Time;
use plimsoll_wire::http2::{DEFAULT_MAX_FRAME, flags, kind, write};

use super::{GrpcDriver, send_body};
use crate::grpc::rendered::Renderer;
use crate::grpc::request::Prepared;

/// Bytes of a frame's head (RFC 9113, 4.1).
const FRAME_HEAD: usize = 9;

/// The HEADERS of a request that is not the connection's first.
fn steady_head(prepared: &Prepared, id: u32, number: u64, now: Time, out: &mut Vec<u8>) {
    let start = out.len();
    let Some(fields) = &prepared.varying_fields else {
        out.extend_from_slice(&prepared.steady);
        for &place in &prepared.ids {
            out[start + place as usize..][..4].copy_from_slice(&id.to_be_bytes());
        }
        return;
    };
    out.extend_from_slice(&[0; FRAME_HEAD]);
    out.extend_from_slice(&prepared.steady_block);
    fields.write(number, prepared.unix_ns(now), out);
    let size = (out.len() - start - FRAME_HEAD) as u32;
    if size > DEFAULT_MAX_FRAME {
        let block = out.split_off(start + FRAME_HEAD);
        out.truncate(start);
        return write::header_block(out, id, &block, false);
    }
    put_head(
        &mut out[start..],
        size,
        kind::HEADERS,
        flags::END_HEADERS,
        id,
    );
}

/// Puts in a frame's head (RFC 9113, 4.1).
fn put_head(frame: &mut [u8], size: u32, kind: u8, flags: u8, id: u32) {
    let [_, a, b, c] = size.to_be_bytes();
    let [d, e, f, g] = id.to_be_bytes();
    frame[..FRAME_HEAD].copy_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
}

impl GrpcDriver {
    #[inline(never)]
    pub(super) fn start_varying(
        &mut self,
        id: u32,
        call: CallId,
        number: u64,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        let prepared = Arc::clone(&self.prepared);
        if self.peer_table.is_steady() && self.waited.is_zero() {
            steady_head(&prepared, id, number, now, out);
        } else {
            self.write_head(id, number, now, out);
        }
        let start = out.len();
        out.extend_from_slice(&[0; FRAME_HEAD]);
        match &prepared.varying {
            None => out.extend_from_slice(&prepared.body),
            Some(varying) => {
                let renderer = Renderer {
                    varying,
                    compression: prepared.compression,
                    unix_ns: prepared.unix_ns(now),
                };
                renderer.write(number, 0, out);
            }
        }
        let size = (out.len() - start - FRAME_HEAD) as u32;
        // At most MAX_WINDOW.
        let stream_window = self.peer_initial_window as i32;
        let window = self.connection_window.min(self.peer_initial_window);
        if size <= window.min(DEFAULT_MAX_FRAME) {
            put_head(&mut out[start..], size, kind::DATA, flags::END_STREAM, id);
            self.connection_window -= size;
            self.streams
                .insert(id, call, stream_window - size as i32, size, 0);
            return;
        }
        let body = out.split_off(start + FRAME_HEAD).into_boxed_slice();
        out.truncate(start);
        self.streams.insert(id, call, stream_window, size, size);
        if let Some(stream) = self.streams.find(id) {
            self.carried += send_body(&body, stream, &mut self.connection_window, out);
            if stream.unsent > 0 {
                self.held_back |= out.len() >= MOST_UNSENT;
                self.blocked.push(id);
                self.bodies.insert(id, body);
            }
        }
    }

    /// Streams make messages when they may send them, and those may hold the time.
    #[inline]
    pub(super) fn note_time(&mut self, now: Time) {
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.now = now;
        }
    }
}
