//! One side of an HTTP/2 connection, towards a client or an upstream.
//!
//! Frames are returned one by one as [`Http2SessionEvent`]s with the key of the call that their stream belongs
//! to. Frames that concern no other connection are handled here or in [`Http2Connection`]: SETTINGS,
//! PING, frames on closed streams, and streams that violate a rule.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use plimsoll_wire::http2::{
    self, ConnectionStage, ControlEvent, DEFAULT_MAX_FRAME_BYTES, EitherRole, EndStream, ErrorCode,
    FrameHeader, Http2Connection, ReceiveWindow, StreamCloseCause, StreamPayload, Violation, flags,
    kind, setting, write,
};

use super::HeaderFields;
use super::fields::{FieldReader, FieldWriter};

/// Initial receive window of a stream in bytes, which bounds the data that is queued for it.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;

/// Receive window in bytes of a stream whose data has always been passed on at once.
const FAST_STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// Receive window of a connection in bytes, which bounds the data that is queued for all its streams.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Streams that may be opened before the upstream's SETTINGS arrive.
const MAX_STREAMS_BEFORE_SETTINGS: usize = 100;

/// Maximum number of PINGs without DATA or HEADERS from the peer in between; the last one is sent
/// only while a call is open.
const MAX_CONSECUTIVE_PINGS: u8 = 3;

/// Payload of our PINGs.
const PING_PAYLOAD: [u8; 8] = *b"sidecar\0";

/// The event that a frame causes; `key` is the key of the stream's call.
#[derive(Debug)]
pub(crate) enum Http2SessionEvent<'a> {
    /// A client opened a stream: [`Http2Session::add_stream`] or [`Http2Session::reset`] it.
    Opened {
        stream: u32,
        fields: Arc<HeaderFields>,
        end_stream: bool,
    },
    Headers {
        key: u64,
        fields: Arc<HeaderFields>,
        end_stream: bool,
    },
    Data {
        key: u64,
        data: &'a [u8],
        end_stream: bool,
    },
    /// The stream is closed and forgotten: the peer reset it or violated a rule on it.
    Reset { key: u64, code: ErrorCode },
    /// A flow-control window was opened, so more data may be sent.
    WindowOpened,
    /// The peer processes no stream above `last_stream`.
    GoAway { last_stream: u32, code: ErrorCode },
}

#[derive(Debug)]
struct StreamState {
    key: u64,
    send_window: i32,
    receive_window: ReceiveWindow,
    /// The peer has sent END_STREAM.
    peer_ended: bool,
    /// Set when the call is over and the stream will be reset later. The value says whether this end has sent
    /// END_STREAM.
    abandoned: Option<EndStream>,
}

/// Streams by id. The hash function is chosen for speed, because every frame of a call looks up its
/// stream.
#[derive(Debug, Default)]
struct StreamTable(HashMap<u32, StreamState, RandomState>);

impl http2::StreamWindows for StreamTable {
    fn send_window(&mut self, id: u32) -> Option<&mut i32> {
        self.0.get_mut(&id).map(|stream| &mut stream.send_window)
    }

    fn send_windows(&mut self) -> impl Iterator<Item = &mut i32> {
        self.0.values_mut().map(|stream| &mut stream.send_window)
    }
}

#[derive(Debug)]
pub(crate) struct Http2Session {
    pub(crate) http2: Http2Connection<EitherRole>,
    reader: FieldReader,
    writer: FieldWriter,
    streams: StreamTable,
    /// A PING that this end sent has not been answered yet.
    pub(crate) awaits_ping_ack: bool,
    /// PINGs sent since the last DATA or HEADERS.
    pings: u8,
}

impl Http2Session {
    /// Creates a session; [`EitherRole::Server`] means that the peer is a client, else it is a service or
    /// another sidecar.
    pub(crate) fn new(side: EitherRole) -> Http2Session {
        Http2Session {
            http2: Http2Connection::new(side, CONNECTION_WINDOW_BYTES),
            reader: FieldReader::new(),
            writer: FieldWriter::default(),
            streams: StreamTable::default(),
            awaits_ping_ack: false,
            pings: 0,
        }
    }

    pub(crate) fn side(&self) -> EitherRole {
        self.http2.role()
    }

    /// Sends the connection preface. `max_streams` limits the concurrent streams of a client.
    pub(crate) fn send_preface(&self, max_streams: u32, out: &mut Vec<u8>) {
        let first = match self.side() {
            EitherRole::Server => (setting::MAX_CONCURRENT_STREAMS, max_streams),
            EitherRole::Client => (setting::ENABLE_PUSH, 0),
        };
        let window = (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES);
        self.http2.send_preface(&[first, window], out);
    }

    /// Returns whether the peer has sent its SETTINGS.
    pub(crate) fn has_peer_settings(&self) -> bool {
        self.http2.stage() != ConnectionStage::Greeting
    }

    /// Returns the number of open streams.
    pub(crate) fn open_stream_count(&self) -> usize {
        self.streams.0.len()
    }

    /// Returns how many streams this end, as the client, may have open at once.
    pub(crate) fn max_open_streams(&self) -> usize {
        if self.has_peer_settings() {
            self.http2.max_streams() as usize
        } else {
            MAX_STREAMS_BEFORE_SETTINGS
        }
    }

    /// Returns whether this end, as the client, may open another stream now.
    pub(crate) fn can_open_stream(&self) -> bool {
        self.has_peer_settings()
            && self.open_stream_count() < self.max_open_streams()
            && !self.has_exhausted_ids()
    }

    /// Returns whether all stream ids are used.
    pub(crate) fn has_exhausted_ids(&self) -> bool {
        self.http2.stream_ids_left() == 0
    }

    /// Returns the keys of the calls whose stream ids are at least `first`, in the order of the ids.
    pub(crate) fn call_keys_from_stream(&self, first: u32) -> Vec<u64> {
        let mut calls: Vec<_> = self.open_calls().filter(|(id, _)| *id >= first).collect();
        calls.sort_unstable();
        calls.into_iter().map(|(_, key)| key).collect()
    }

    /// Returns the open streams with their calls.
    pub(crate) fn open_calls(&self) -> impl Iterator<Item = (u32, u64)> {
        let streams = self.streams.0.iter();
        let open = streams.filter(|(_, stream)| stream.abandoned.is_none());
        open.map(|(id, stream)| (*id, stream.key))
    }

    // ---- sending ----

    /// Opens a stream, as the client.
    pub(crate) fn open_stream(
        &mut self,
        key: u64,
        fields: &HeaderFields,
        end: EndStream,
        out: &mut Vec<u8>,
    ) -> u32 {
        let stream = self.http2.allocate_stream_id();
        self.add_stream(stream, key, EndStream(false));
        self.send_headers(stream, fields, end, out);
        stream
    }

    /// Adds a stream; `ended` says whether the peer has already ended its side.
    pub(crate) fn add_stream(&mut self, stream: u32, key: u64, ended: EndStream) {
        let entry = StreamState {
            key,
            // The initial window is at most 2³¹−1.
            send_window: self.http2.initial_window() as i32,
            receive_window: ReceiveWindow::new(STREAM_WINDOW_BYTES),
            peer_ended: ended.0,
            abandoned: None,
        };
        self.streams.0.insert(stream, entry);
    }

    pub(crate) fn send_headers(
        &mut self,
        stream: u32,
        fields: &HeaderFields,
        end: EndStream,
        out: &mut Vec<u8>,
    ) {
        write::header_block(out, stream, self.writer.encode(fields), end);
    }

    /// Returns how many bytes may be sent on a stream now.
    pub(crate) fn sendable_bytes(&self, stream: u32) -> usize {
        let window = self.streams.0.get(&stream).map_or(0, |s| s.send_window);
        self.http2.send_window().min(window.max(0) as u32) as usize
    }

    /// Sends data, which must not exceed [`Http2Session::sendable_bytes`] and the size of one frame.
    pub(crate) fn send_data(
        &mut self,
        stream: u32,
        data: &[u8],
        end: EndStream,
        out: &mut Vec<u8>,
    ) {
        self.http2.count_sent_data(data.len() as u32);
        if let Some(stream) = self.streams.0.get_mut(&stream) {
            stream.send_window -= data.len() as i32;
        }
        write::data(out, stream, data, end);
    }

    /// Widens the receive window of a stream whose data was passed on at once.
    pub(crate) fn widen_window(&mut self, stream: u32) {
        if let Some(entry) = self.streams.0.get_mut(&stream)
            && entry.receive_window.is_half_used()
        {
            entry.receive_window.widen_to(FAST_STREAM_WINDOW_BYTES);
        }
    }

    /// Reopens the windows for bytes of a stream that were passed on or dropped.
    pub(crate) fn replenish_window(&mut self, stream: u32, length: usize, out: &mut Vec<u8>) {
        let length = length as u32;
        self.http2.release_window(length, out);
        if let Some(entry) = self.streams.0.get_mut(&stream)
            && !entry.peer_ended
            && let Some(increment) = entry.receive_window.release(length)
        {
            write::window_update(out, stream, increment);
        }
    }

    /// Resets a stream; later frames on it are ignored.
    pub(crate) fn reset(&mut self, stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
        self.http2.reset_stream(stream, code, out);
        self.streams.0.remove(&stream);
    }

    /// Removes a stream that both sides have ended, or that one side has reset.
    pub(crate) fn remove_stream(&mut self, stream: u32) {
        self.streams.0.remove(&stream);
    }

    /// Returns whether the peer has ended or reset the stream.
    pub(crate) fn is_ended_by_peer(&self, stream: u32) -> bool {
        let entry = self.streams.0.get(&stream);
        entry.is_none_or(|entry| entry.peer_ended)
    }

    /// Marks a stream whose call is over: later frames on it are dropped. [`Http2Session::reset`] ends
    /// it later, unless the peer does first. `sent` says whether this end has sent END_STREAM.
    pub(crate) fn abandon_stream(&mut self, stream: u32, sent: EndStream) {
        if let Some(entry) = self.streams.0.get_mut(&stream) {
            entry.abandoned = Some(sent);
        }
    }

    /// Returns whether the stream is open but its call is over.
    pub(crate) fn is_abandoned(&self, stream: u32) -> bool {
        let entry = self.streams.0.get(&stream);
        entry.is_some_and(|entry| entry.abandoned.is_some())
    }

    /// Closes an abandoned stream that the peer has ended.
    #[cold]
    fn close_abandoned_stream(&mut self, stream: u32, sent: EndStream, out: &mut Vec<u8>) {
        self.streams.0.remove(&stream);
        if !sent.0 {
            self.http2.reset_stream(stream, ErrorCode::CANCEL, out);
        }
    }

    /// Returns whether the peer tolerates another PING. gRPC servers end a connection at the third
    /// PING too many, losing calls that arrive at that moment. They allow one every two hours
    /// without a call and every five minutes within one; the first PING after DATA or HEADERS is
    /// always allowed.
    pub(crate) fn may_ping(&self) -> bool {
        let is_idle = self.open_stream_count() == 0;
        self.has_peer_settings() && self.pings < MAX_CONSECUTIVE_PINGS - u8::from(is_idle)
    }

    pub(crate) fn send_ping(&mut self, out: &mut Vec<u8>) {
        write::frame_header(out, PING_PAYLOAD.len(), kind::PING, 0, 0);
        out.extend_from_slice(&PING_PAYLOAD);
        self.awaits_ping_ack = true;
        self.pings = self.pings.saturating_add(1);
    }

    /// Resets the count of PINGs on DATA or HEADERS. A PING in flight still counts, because the
    /// peer may receive it after them.
    fn reset_ping_count(&mut self) {
        self.pings = u8::from(self.awaits_ping_ack);
    }

    // ---- receiving ----

    /// Removes frames from the front of `input` up to the next event; returns `None` if the rest is not a complete
    /// frame. The sidecar's own replies are appended to `out`.
    ///
    /// # Errors
    /// Returns an error when the peer has violated the protocol, so the connection must be closed.
    pub(crate) fn next_event<'a>(
        &mut self,
        input: &mut &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Http2SessionEvent<'a>>, Violation> {
        self.http2.consume_preface(input)?;
        while let Some((head, payload)) = http2::split_frame(input, DEFAULT_MAX_FRAME_BYTES)? {
            match self.handle_frame(head, payload, out) {
                Ok(None) => {}
                Ok(event) => return Ok(event),
                Err(violation) => {
                    let violation = self.http2.check_violation_scope(violation)?;
                    let (stream, code) = (violation.stream, violation.code);
                    if let Some(StreamState { key, .. }) = self.streams.0.remove(&stream) {
                        self.http2.reset_stream(stream, code, out);
                        return Ok(Some(Http2SessionEvent::Reset { key, code }));
                    }
                }
            }
        }
        Ok(None)
    }

    fn handle_frame<'a>(
        &mut self,
        head: FrameHeader,
        payload: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Http2SessionEvent<'a>>, Violation> {
        match head.kind() {
            kind::DATA => {
                let data = self.http2.process_data(head, payload)?;
                self.reset_ping_count();
                return self.handle_data(data, out);
            }
            kind::HEADERS if head.has_flag(flags::END_HEADERS) => {
                let block = self.http2.process_headers(head, payload)?;
                return self.handle_header_block(block, out);
            }
            _ => {}
        }
        Ok(
            match (self.http2).process_control_frame(head, payload, &mut self.streams, out)? {
                ControlEvent::Block(block) => self.handle_header_block(block.payload(), out)?,
                ControlEvent::Settings(settings) => {
                    for size in settings.values(setting::HEADER_TABLE_SIZE) {
                        self.writer.set_table_size(size);
                    }
                    Some(Http2SessionEvent::WindowOpened)
                }
                ControlEvent::WindowGrown => Some(Http2SessionEvent::WindowOpened),
                ControlEvent::Reset { stream, code } => {
                    let entry = self.streams.0.remove(&stream);
                    let entry = entry.filter(|entry| entry.abandoned.is_none());
                    entry.map(|StreamState { key, .. }| Http2SessionEvent::Reset { key, code })
                }
                ControlEvent::GoAway {
                    last_stream, code, ..
                } => Some(Http2SessionEvent::GoAway { last_stream, code }),
                ControlEvent::Pong(data) => {
                    self.awaits_ping_ack &= data != PING_PAYLOAD;
                    None
                }
                ControlEvent::Acknowledged | ControlEvent::Nothing => None,
            },
        )
    }

    fn handle_data<'a>(
        &mut self,
        data: StreamPayload<'a>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Http2SessionEvent<'a>>, Violation> {
        let (stream, length) = (data.stream, data.length);
        let taken = self.find_receiving_stream(data, "DATA").and_then(|entry| {
            let Some(entry) = entry else {
                return Ok(None);
            };
            entry.receive_window.receive(stream, length)?;
            entry.peer_ended = data.end_stream;
            Ok(Some((entry.key, entry.abandoned)))
        });
        let passed_on = match taken {
            Ok(Some((_, None))) => data.bytes.len(),
            // The data is dropped: the peer sent it before it learned of the reset, or the data violated a rule.
            _ => 0,
        };
        if length as usize > passed_on {
            self.replenish_window(stream, length as usize - passed_on, out);
        }
        let Some((key, abandoned)) = taken? else {
            return Ok(None);
        };
        if let Some(sent) = abandoned {
            if data.end_stream {
                self.close_abandoned_stream(stream, sent, out);
            }
            return Ok(None);
        }
        Ok(Some(Http2SessionEvent::Data {
            key,
            data: data.bytes,
            end_stream: data.end_stream,
        }))
    }

    /// Handles a complete header block. The block is always decoded, so that both ends' HPACK tables stay equal.
    fn handle_header_block(
        &mut self,
        block: StreamPayload<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Http2SessionEvent<'static>>, Violation> {
        self.reset_ping_count();
        let fields = self.reader.read(block.bytes).map_err(|error| {
            Violation::connection_error(ErrorCode::COMPRESSION_ERROR, error.to_string())
        })?;
        let (stream, end_stream) = (block.stream, block.end_stream);
        if self.http2.try_open_stream(stream) {
            return Ok(Some(Http2SessionEvent::Opened {
                stream,
                fields,
                end_stream,
            }));
        }
        let Some(entry) = self.find_receiving_stream(block, "HEADERS")? else {
            return Ok(None);
        };
        entry.peer_ended = end_stream;
        let (key, abandoned) = (entry.key, entry.abandoned);
        if let Some(sent) = abandoned {
            if end_stream {
                self.close_abandoned_stream(stream, sent, out);
            }
            return Ok(None);
        }
        Ok(Some(Http2SessionEvent::Headers {
            key,
            fields,
            end_stream,
        }))
    }

    /// Returns the stream of a frame; `None` if frames on it are ignored.
    fn find_receiving_stream(
        &mut self,
        piece: StreamPayload<'_>,
        what: &str,
    ) -> Result<Option<&mut StreamState>, Violation> {
        let closed = match self.streams.0.get_mut(&piece.stream) {
            Some(entry) if !entry.peer_ended => return Ok(Some(entry)),
            Some(_) => StreamCloseCause::EndedByPeer,
            None => StreamCloseCause::Forgotten,
        };
        self.http2.check_closed_stream(piece.stream, what, closed)?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
