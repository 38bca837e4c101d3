//! The state of a connection without its streams (RFC 9113): preface, order of frames, split header blocks,
//! SETTINGS, windows, stream ids, GOAWAY, and whether a violation ends a stream or the connection.
//!
//! [`Http2Connection`] has no socket, clock or streams. Its caller splits the input into frames
//! ([`super::for_each_frame`], [`super::split_frame`]), passes DATA to [`Http2Connection::process_data`], HEADERS with
//! END_HEADERS to [`Http2Connection::process_headers`] and all other frames to
//! [`Http2Connection::process_control_frame`], and keeps a table of its streams, which is accessed through
//! [`StreamWindows`]. Drivers, the canned server and the sidecar use it.

mod frames;

use std::mem;

use super::{
    DEFAULT_MAX_FRAME_BYTES, DEFAULT_WINDOW_BYTES, EndpointRole, ErrorCode, HeaderBlock,
    MAX_HEADER_BLOCK_BYTES, MAX_STREAM_ID, PREFACE, ReceiveWindow, SettingsPayload, Violation,
    fill_partial_frame, write,
};

/// Maximum capacity in bytes of the partial-frame buffer that is kept when it is empty.
const MAX_KEPT_PARTIAL_BYTES: usize = 64;

/// The send windows of the streams, which are stored by the caller of an [`Http2Connection`].
pub trait StreamWindows {
    /// Returns the send window of a stream in bytes, negative if SETTINGS reduced it (RFC 9113 §6.9.2);
    /// `None` if the stream is closed.
    fn send_window(&mut self, id: u32) -> Option<&mut i32>;

    /// Returns the send windows of all streams that have one.
    fn send_windows(&mut self) -> impl Iterator<Item = &mut i32>;
}

/// The event that the caller must handle after a frame that is neither DATA nor a complete header block.
#[derive(Debug)]
pub enum ControlEvent<'a> {
    /// There is nothing to handle: the frame has been answered, or needs no answer.
    Nothing,
    /// A header block of several frames is complete.
    Block(Box<HeaderBlock>),
    /// The peer's SETTINGS, which have been acknowledged. More data may be sendable than before; the caller must apply
    /// the new size of the peer's header table.
    Settings(SettingsPayload<'a>),
    /// The peer has acknowledged our SETTINGS.
    Acknowledged,
    /// A send window has grown.
    WindowGrown,
    /// The peer has reset an existing stream.
    Reset {
        /// The id of the stream.
        stream: u32,
        /// The peer's error code.
        code: ErrorCode,
    },
    /// The peer does not process streams above `last_stream`.
    GoAway {
        /// The last stream; never higher than in an earlier GOAWAY (RFC 9113 §6.8).
        last_stream: u32,
        /// The peer's error code.
        code: ErrorCode,
        /// Diagnostic data for human readers.
        debug: &'a [u8],
    },
    /// The answer to a PING.
    Pong([u8; 8]),
}

/// The way in which a stream had been closed before a frame arrived on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamCloseCause {
    /// This end has reset the stream or ignores it; the peer may have sent the frame before it knew.
    Reset,
    /// The peer has sent RST_STREAM and must not send on the stream any more.
    ResetByPeer,
    /// The peer has ended its side of the stream.
    EndedByPeer,
    /// Both ends have ended the stream.
    Ended,
    /// The caller has no record of the stream.
    Forgotten,
}

/// The stage of a connection's life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionStage {
    /// The peer's SETTINGS have not arrived.
    Greeting,
    /// SETTINGS have arrived.
    Open,
    /// The peer has sent GOAWAY.
    Draining,
    /// The connection failed or was closed.
    Failed,
}

/// The state of one end of a connection.
#[derive(Debug)]
pub struct Http2Connection<P> {
    role: P,
    stage: ConnectionStage,
    /// Number of bytes of the client's preface that have not arrived.
    preface_left: u8,
    /// Maximum size of a split header block in excess of [`MAX_HEADER_BLOCK_BYTES`], in multiples of that size. It is
    /// stored in one byte because there are many connections.
    extra_blocks: u8,
    is_acknowledged: bool,
    /// An incomplete frame.
    partial: Vec<u8>,
    /// An incomplete header block.
    block: Option<Box<HeaderBlock>>,
    /// The lowest unused stream id.
    next_id: u32,
    send_window: u32,
    /// Initial stream window according to the peer's SETTINGS.
    initial_window: u32,
    max_streams: u32,
    receive_window: ReceiveWindow,
    /// The last stream in the peer's latest GOAWAY.
    last_stream: u32,
    /// The last accepted stream according to the GOAWAY that we sent; `None` until we send a GOAWAY that names one.
    last_accepted: Option<u32>,
    /// The highest stream that this end has reset: frames on it, and on unrecorded streams below it, may be in flight.
    last_reset: u32,
}

impl<P: EndpointRole> Http2Connection<P> {
    /// Creates one end of a connection with a receive window of `window` bytes, at least 65,535.
    pub fn new(peer: P, window: u32) -> Http2Connection<P> {
        Http2Connection {
            role: peer,
            stage: ConnectionStage::Greeting,
            preface_left: if peer.is_client() {
                0
            } else {
                PREFACE.len() as u8
            },
            extra_blocks: 0,
            is_acknowledged: false,
            partial: Vec::new(),
            block: None,
            next_id: 1,
            send_window: DEFAULT_WINDOW_BYTES,
            initial_window: DEFAULT_WINDOW_BYTES,
            max_streams: u32::MAX,
            receive_window: ReceiveWindow::new(window.max(DEFAULT_WINDOW_BYTES)),
            last_stream: MAX_STREAM_ID,
            last_accepted: None,
            last_reset: 0,
        }
    }

    /// Returns the role of this end.
    pub fn role(&self) -> P {
        self.role
    }

    /// Returns the stage; [`ConnectionStage::Failed`] after this end has closed it.
    #[inline]
    pub fn stage(&self) -> ConnectionStage {
        self.stage
    }

    /// Returns whether the peer has acknowledged our SETTINGS.
    pub fn are_settings_acknowledged(&self) -> bool {
        self.is_acknowledged
    }

    /// Returns whether a GOAWAY with the last accepted stream was sent.
    pub fn has_sent_goaway(&self) -> bool {
        self.last_accepted.is_some()
    }

    /// Returns how many bytes the connection's window allows this end to send.
    #[inline]
    pub fn send_window(&self) -> u32 {
        self.send_window
    }

    /// Returns how many bytes a new stream's window allows this end to send, at most 2³¹−1.
    #[inline]
    pub fn initial_window(&self) -> u32 {
        self.initial_window
    }

    /// Returns how many concurrent streams the peer accepts.
    #[inline]
    pub fn max_streams(&self) -> u32 {
        self.max_streams
    }

    /// Accepts header blocks of up to `max` bytes, at most 256 times [`MAX_HEADER_BLOCK_BYTES`].
    pub fn set_max_header_block_bytes(&mut self, max: u32) {
        let extra = (max as usize)
            .div_ceil(MAX_HEADER_BLOCK_BYTES)
            .saturating_sub(1);
        self.extra_blocks = u8::try_from(extra).unwrap_or(u8::MAX);
    }

    /// Returns the maximum size of a split header block in bytes.
    fn max_header_block_bytes(&self) -> usize {
        (usize::from(self.extra_blocks) + 1) * MAX_HEADER_BLOCK_BYTES
    }

    /// Returns the number of unused stream ids (RFC 9113 §5.1.1).
    #[inline]
    pub fn stream_ids_left(&self) -> u32 {
        (MAX_STREAM_ID + 2).saturating_sub(self.next_id) / 2
    }

    /// Returns the lowest unused id.
    #[inline]
    pub fn next_stream_id(&self) -> u32 {
        self.next_id
    }

    /// Returns the heap memory in bytes.
    pub fn heap_bytes(&self) -> usize {
        let block = self.block.as_ref();
        let block = block.map_or(0, |block| {
            size_of_val(&**block) + block.payload().bytes.len()
        });
        self.partial.capacity() + block
    }

    // ---- sending ----

    /// Appends the preface and SETTINGS. They need not wait for the peer's SETTINGS (RFC 9113 §3.4).
    pub fn send_preface(&self, settings: &[(u16, u32)], out: &mut Vec<u8>) {
        if self.role.is_client() {
            out.extend_from_slice(PREFACE);
        }
        write::settings(out, settings);
        let more = self.receive_window.size() - DEFAULT_WINDOW_BYTES;
        if more > 0 {
            write::window_update(out, 0, more);
        }
    }

    /// Returns the id of a new stream of this end, which must be a client.
    #[inline]
    pub fn allocate_stream_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id += 2;
        id
    }

    /// Marks the ids below `next` as used.
    pub fn skip_ids_below(&mut self, next: u32) {
        self.next_id = next;
    }

    /// Subtracts `length` bytes of sent DATA, which must be within [`Http2Connection::send_window`], from the window.
    #[inline]
    pub fn count_sent_data(&mut self, length: u32) {
        self.send_window -= length;
    }

    /// Resets a stream. Frames that still arrive on it must be handled as [`StreamCloseCause::Reset`].
    pub fn reset_stream(&mut self, stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
        write::reset_stream(out, stream, code);
        self.last_reset = self.last_reset.max(stream);
    }

    /// Adds processed bytes to the peer's send window again, with a WINDOW_UPDATE when it is due.
    pub fn release_window(&mut self, length: u32, out: &mut Vec<u8>) {
        if let Some(increment) = self.receive_window.release(length) {
            write::window_update(out, 0, increment);
        }
    }

    /// Adds all received bytes to the peer's send window again, for callers that process data at once.
    #[inline]
    pub fn release_whole_window(&mut self, out: &mut Vec<u8>) {
        if let Some(increment) = self.receive_window.release_all() {
            write::window_update(out, 0, increment);
        }
    }

    /// Announces a later shutdown with a GOAWAY that names no last stream, so that no request is lost (RFC 9113 §6.8).
    pub fn announce_goaway(&self, out: &mut Vec<u8>) {
        write::goaway(out, MAX_STREAM_ID, ErrorCode::NO_ERROR, b"");
    }

    /// Sends GOAWAY: no further streams are accepted. Repeated calls name the same last stream (RFC 9113 §6.8).
    pub fn send_goaway(&mut self, code: ErrorCode, debug: &[u8], out: &mut Vec<u8>) {
        let newest = if self.role.is_client() {
            0
        } else {
            self.next_id.saturating_sub(2)
        };
        let last = *self.last_accepted.get_or_insert(newest);
        write::goaway(out, last, code, debug);
    }

    /// Closes the connection to a peer that violated the protocol, with a GOAWAY that gives the reason.
    #[cold]
    pub fn close_with_error(&mut self, violation: &Violation, out: &mut Vec<u8>) {
        self.send_goaway(violation.code, violation.why.as_bytes(), out);
        self.close();
    }

    /// Closes the connection; returns the previous stage.
    pub fn close(&mut self) -> ConnectionStage {
        (self.partial, self.block) = (Vec::new(), None);
        mem::replace(&mut self.stage, ConnectionStage::Failed)
    }

    // ---- bytes to frames ----

    /// Removes the available part of the client's preface from `input` (RFC 9113 §3.4).
    ///
    /// # Errors
    /// Returns an error if `input` does not contain the preface.
    #[inline]
    pub fn consume_preface(&mut self, input: &mut &[u8]) -> Result<(), Violation> {
        if self.preface_left == 0 {
            return Ok(());
        }
        let expected = &PREFACE[PREFACE.len() - usize::from(self.preface_left)..];
        let (preface, rest) = input.split_at(expected.len().min(input.len()));
        if !expected.starts_with(preface) {
            return Err(protocol_error(
                "no HTTP/2 connection preface (RFC 9113, 3.4)",
            ));
        }
        self.preface_left -= preface.len() as u8;
        *input = rest;
        Ok(())
    }

    /// Returns the stored incomplete frame if `input` contains the rest of it. Returns `None` if no frame was stored,
    /// or if it is still incomplete; the caller then continues with `input`.
    ///
    /// # Errors
    /// Returns an error if the frame is too large (RFC 9113 §4.2).
    #[inline]
    pub fn take_reassembled_frame(
        &mut self,
        input: &mut &[u8],
    ) -> Result<Option<Vec<u8>>, Violation> {
        if self.partial.is_empty()
            || !fill_partial_frame(&mut self.partial, input, DEFAULT_MAX_FRAME_BYTES)?
        {
            return Ok(None);
        }
        Ok(Some(mem::take(&mut self.partial)))
    }

    /// Stores `rest`, an incomplete frame. `buffer` is the result of the previous
    /// [`Http2Connection::take_reassembled_frame`], for reuse.
    #[inline]
    pub fn store_partial_frame(&mut self, rest: &[u8], buffer: Option<Vec<u8>>) {
        if let Some(mut buffer) =
            buffer.filter(|buffer| buffer.capacity() <= MAX_KEPT_PARTIAL_BYTES)
        {
            buffer.clear();
            self.partial = buffer;
        }
        self.partial.extend_from_slice(rest);
    }

    /// Returns the stored incomplete frame.
    pub fn partial_frame(&self) -> &[u8] {
        &self.partial
    }

    /// Returns whether no frame and no header block is incomplete.
    pub fn is_between_frames(&self) -> bool {
        self.partial.is_empty() && self.block.is_none()
    }
}

#[cold]
fn protocol_error(why: impl Into<String>) -> Violation {
    Violation::connection_error(ErrorCode::PROTOCOL_ERROR, why)
}

#[cfg(test)]
mod tests;
