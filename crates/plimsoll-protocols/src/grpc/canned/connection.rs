//! The server's side of one connection: receives requests and sends the prepared response.
//!
//! This file is long because it is one state machine whose parts share all fields.

use std::sync::Arc;

use plimsoll_wire::hpack::{BlockChoice, Decoder, PeerTable};
use plimsoll_wire::http2::{
    self, ControlEvent, DEFAULT_MAX_FRAME_BYTES, DEFAULT_WINDOW_BYTES, EndStream, ErrorCode,
    FrameHeader, Http2Connection, MAX_HEADER_LIST_BYTES, ReceiveWindow, ServerRole,
    StreamCloseCause, StreamPayload, Violation, flags, kind, setting, write,
};

use super::{AnswerBlocks, CannedError, PreparedAnswer};
use crate::grpc::message::{MessageError, MessageReader, MessageSink};

/// The maximum number of open streams if the options set none. Requests over it are refused, which allows clients to
/// retry them (RFC 9113, 8.7).
const MAX_STREAMS: usize = 65_536;

/// A sink that accepts any message, including compressed ones.
struct AnyMessageSink;

impl MessageSink for AnyMessageSink {
    fn on_compressed_start(&mut self) -> Result<(), MessageError> {
        Ok(())
    }
}

/// One request, from its HEADERS to the end of its response.
#[derive(Debug)]
struct CannedStream {
    id: u32,
    message: MessageReader,
    receive_window: ReceiveWindow,
    send_window: i32,
    /// Bytes of the response's messages that wait for a window.
    unsent: usize,
    phase: StreamPhase,
    /// Whether the client has reset the stream, and its response is sent nevertheless.
    reset: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPhase {
    Receiving,
    Held,
    Answering,
}

/// The open streams in the order of their ids, which is the order of opening.
#[derive(Debug, Default)]
struct CannedStreams(Vec<CannedStream>);

impl CannedStreams {
    /// Returns the index of a stream. Compares with the stream that was opened last first, because that is usually the
    /// right one.
    #[inline]
    fn find(&self, id: u32) -> Option<usize> {
        match self.0.last() {
            Some(last) if last.id == id => Some(self.0.len() - 1),
            _ => self.0.binary_search_by_key(&id, |stream| stream.id).ok(),
        }
    }
}

impl http2::StreamWindows for CannedStreams {
    fn send_window(&mut self, id: u32) -> Option<&mut i32> {
        let place = self.find(id)?;
        Some(&mut self.0[place].send_window)
    }

    fn send_windows(&mut self) -> impl Iterator<Item = &mut i32> {
        self.0.iter_mut().map(|stream| &mut stream.send_window)
    }
}

/// The effects of received bytes: bytes to send, and the stream ids of requests that wait until the caller answers
/// them.
struct CannedOutput<'a> {
    out: &'a mut Vec<u8>,
    held: &'a mut Vec<u32>,
}

/// The server's side of one connection.
#[derive(Debug)]
pub struct CannedConnection {
    prepared: Arc<PreparedAnswer>,
    http2: Http2Connection<ServerRole>,
    decoder: Decoder,
    client_table: PeerTable,
    streams: CannedStreams,
    /// The number of streams with unsent bytes.
    blocked: usize,
    /// Whether responses wait because of [`super::CannedOptions::max_unsent_bytes`].
    held_back: bool,
    requests: u64,
    answered: u64,
    resets: u64,
}

impl CannedConnection {
    pub(super) fn new(prepared: Arc<PreparedAnswer>) -> CannedConnection {
        let options = &prepared.options;
        CannedConnection {
            http2: Http2Connection::new(ServerRole, options.connection_window),
            decoder: Decoder::new(options.header_table_size, MAX_HEADER_LIST_BYTES),
            client_table: PeerTable::default(),
            streams: CannedStreams::default(),
            blocked: 0,
            held_back: false,
            requests: 0,
            answered: 0,
            resets: 0,
            prepared,
        }
    }

    /// Sends the server's connection preface, which need not wait for the client's (RFC 9113, 3.4).
    pub fn send_preface(&mut self, out: &mut Vec<u8>) {
        let options = &self.prepared.options;
        let mut settings = vec![(setting::INITIAL_WINDOW_SIZE, options.stream_window)];
        settings.extend(
            options
                .max_concurrent_streams
                .map(|n| (setting::MAX_CONCURRENT_STREAMS, n)),
        );
        if options.header_table_size != 4096 {
            settings.push((setting::HEADER_TABLE_SIZE, options.header_table_size));
        }
        self.http2.send_preface(&settings, out);
    }

    /// Handles bytes from the client, however they are split, and appends the bytes to send. With
    /// `CannedOptions::answered_by_caller`, the stream ids of complete requests are appended to `held`.
    ///
    /// # Errors
    /// Returns an error if the client violated the protocol or a limit. `out` then ends with a GOAWAY, and
    /// the connection can't be used any more.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        held: &mut Vec<u32>,
    ) -> Result<(), CannedError> {
        let to = &mut CannedOutput { out, held };
        self.receive_frames(bytes, to).map_err(|violation| {
            self.http2.close_with_error(&violation, to.out);
            violation.into()
        })
    }

    /// Answers a held request. Does nothing if its client has reset it.
    pub fn answer_held_request(&mut self, stream: u32, out: &mut Vec<u8>) {
        if let Some(place) = self.streams.find(stream)
            && self.streams.0[place].phase == StreamPhase::Held
        {
            self.send_answer(place, out);
        }
    }

    /// Returns true if responses wait because of the output limit, until the output is sent.
    pub fn is_held_back(&self) -> bool {
        self.held_back
    }

    /// Continues with held-back responses after the output was sent.
    pub fn resume_sending(&mut self, out: &mut Vec<u8>) {
        self.held_back = false;
        self.resume_blocked_streams(out);
    }

    /// Sends GOAWAY with the last request seen; accepts no more requests.
    pub fn send_goaway(&mut self, code: ErrorCode, out: &mut Vec<u8>) {
        self.http2.send_goaway(code, b"", out);
    }

    /// Sends a GOAWAY that announces the shutdown but accepts all streams, like a server that shuts down without losing
    /// requests (RFC 9113, 6.8).
    pub fn announce_goaway(&self, out: &mut Vec<u8>) {
        self.http2.announce_goaway(out);
    }

    /// Sends further SETTINGS on the open connection. Stream windows and limits are still checked against the
    /// options, so these settings must not contradict them.
    pub fn send_settings(&self, settings: &[(u16, u32)], out: &mut Vec<u8>) {
        write::settings(out, settings);
    }

    /// Returns true if a GOAWAY was sent and every accepted request has been answered.
    pub fn is_finished(&self) -> bool {
        self.http2.has_sent_goaway() && self.streams.0.is_empty()
    }

    /// Returns the number of complete requests received.
    pub fn request_count(&self) -> u64 {
        self.requests
    }

    /// Returns the number of requests answered completely.
    pub fn answer_count(&self) -> u64 {
        self.answered
    }

    /// Returns the number of RST_STREAM frames received.
    pub fn reset_count(&self) -> u64 {
        self.resets
    }

    fn receive_frames(&mut self, bytes: &[u8], to: &mut CannedOutput<'_>) -> Result<(), Violation> {
        let mut input = bytes;
        self.http2.consume_preface(&mut input)?;
        let mended = self.http2.take_reassembled_frame(&mut input)?;
        if let Some(frame) = &mended {
            http2::for_each_frame(frame, DEFAULT_MAX_FRAME_BYTES, |head, payload| {
                self.receive_reassembled_frame(head, payload, to)
            })?;
        }
        let rest = http2::for_each_frame(input, DEFAULT_MAX_FRAME_BYTES, |head, payload| {
            self.receive_frame(head, payload, to)
        })?;
        self.http2.store_partial_frame(rest, mended);
        self.http2.release_whole_window(to.out);
        Ok(())
    }

    /// Handles a frame that arrived in several pieces. This is a separate function, because then
    /// [`CannedConnection::receive_frame`] is inlined into the loop over complete frames.
    #[inline(never)]
    fn receive_reassembled_frame(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        to: &mut CannedOutput<'_>,
    ) -> Result<(), Violation> {
        self.receive_frame(head, payload, to)
    }

    #[inline(always)]
    fn receive_frame(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        to: &mut CannedOutput<'_>,
    ) -> Result<(), Violation> {
        let done = match head.kind() {
            kind::DATA => (self.http2.process_data(head, payload))
                .and_then(|piece| self.receive_data(piece, to)),
            kind::HEADERS if head.has_flag(flags::END_HEADERS) => {
                (self.http2.process_headers(head, payload))
                    .and_then(|piece| self.receive_header_block(piece, to))
            }
            _ => self.receive_control_frame(head, payload, to),
        };
        match done {
            Ok(()) => Ok(()),
            Err(violation) => self.handle_violation(violation, to.out),
        }
    }

    #[inline(never)]
    fn receive_control_frame(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        to: &mut CannedOutput<'_>,
    ) -> Result<(), Violation> {
        match (self.http2).process_control_frame(head, payload, &mut self.streams, to.out)? {
            ControlEvent::Block(block) => return self.receive_header_block(block.payload(), to),
            ControlEvent::Settings(settings) => {
                for size in settings.values(setting::HEADER_TABLE_SIZE) {
                    self.client_table.set_allowed_size(size);
                }
                self.resume_blocked_streams(to.out);
            }
            ControlEvent::WindowGrown => self.resume_blocked_streams(to.out),
            ControlEvent::Reset { stream, .. } => {
                self.resets += 1;
                let ignores = self.prepared.options.ignore_resets;
                let place = self.streams.find(stream).filter(|_| ignores);
                let held = place.map(|place| &mut self.streams.0[place]);
                match held.filter(|stream| stream.phase == StreamPhase::Held) {
                    // The stream no longer counts towards the limit (RFC 9113, 5.1.2), but the response is still
                    // sent.
                    Some(stream) => stream.reset = true,
                    None => self.remove_stream(stream),
                }
            }
            ControlEvent::Acknowledged => {
                for stream in &mut self.streams.0 {
                    let size = self.prepared.options.stream_window;
                    if let Some(increment) = stream.receive_window.resize(size) {
                        write::window_update(to.out, stream.id, increment);
                    }
                }
            }
            ControlEvent::GoAway { .. } | ControlEvent::Pong(_) | ControlEvent::Nothing => {}
        }
        Ok(())
    }

    /// Handles a violation. Without checks, a stream error ends only its own request (RFC 9113, 5.4.2).
    #[cold]
    fn handle_violation(
        &mut self,
        violation: Violation,
        out: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        if self.prepared.options.check_requests {
            return Err(violation);
        }
        let violation = self.http2.check_violation_scope(violation)?;
        if self.streams.find(violation.stream).is_some() {
            self.remove_stream(violation.stream);
            self.http2
                .reset_stream(violation.stream, violation.code, out);
        }
        Ok(())
    }

    fn remove_stream(&mut self, stream: u32) {
        if let Some(place) = self.streams.find(stream) {
            let stream = self.streams.0.remove(place);
            self.blocked -= usize::from(stream.phase == StreamPhase::Answering);
        }
    }

    /// Handles a complete header block: the header of a request, or the trailers that end it (RFC 9113, 8.1).
    fn receive_header_block(
        &mut self,
        block: StreamPayload<'_>,
        to: &mut CannedOutput<'_>,
    ) -> Result<(), Violation> {
        let options = &self.prepared.options;
        let id = block.stream;
        let is_new = self.http2.try_open_stream(id);
        if options.check_requests {
            check_fields(&mut self.decoder, block.bytes, !is_new)?;
        }
        if !is_new {
            let place = self.find_receiving_stream(block, "HEADERS")?;
            return match (place, block.end_stream) {
                (Some(place), true) => self.finish_request(place, to),
                (Some(_), false) => {
                    let why = "trailers without END_STREAM (RFC 9113, 8.1)";
                    Err(Violation::stream_error(id, ErrorCode::PROTOCOL_ERROR, why))
                }
                (None, _) => Ok(()),
            };
        }
        if self.http2.has_sent_goaway() {
            return Ok(());
        }
        let open = || self.streams.0.iter().filter(|stream| !stream.reset).count();
        let is_over = (options.max_concurrent_streams).is_some_and(|most| open() >= most as usize);
        if is_over && options.check_requests && self.http2.are_settings_acknowledged() {
            return Err(protocol_error(format!("stream {id} is beyond the limit")));
        }
        if is_over || self.streams.0.len() >= MAX_STREAMS {
            self.http2
                .reset_stream(id, ErrorCode::REFUSED_STREAM, to.out);
            return Ok(());
        }
        // Until the client has acknowledged SETTINGS, it may assume the default window.
        let window = if self.http2.are_settings_acknowledged() {
            options.stream_window
        } else {
            options.stream_window.max(DEFAULT_WINDOW_BYTES)
        };
        self.streams.0.push(CannedStream {
            id,
            message: MessageReader::NEW,
            receive_window: ReceiveWindow::new(window),
            // The cast is lossless, because a window is at most 2³¹−1.
            send_window: self.http2.initial_window() as i32,
            unsent: 0,
            phase: StreamPhase::Receiving,
            reset: false,
        });
        if block.end_stream {
            self.finish_request(self.streams.0.len() - 1, to)
        } else {
            Ok(())
        }
    }

    /// Returns the index of the stream that `piece` belongs to; `None`: the piece is ignored.
    #[inline]
    fn find_receiving_stream(
        &self,
        piece: StreamPayload<'_>,
        what: &str,
    ) -> Result<Option<usize>, Violation> {
        let place = self.streams.find(piece.stream);
        let closed = match place.map(|place| self.streams.0[place].phase) {
            Some(StreamPhase::Receiving) => return Ok(place),
            Some(_) => StreamCloseCause::EndedByPeer,
            None => StreamCloseCause::Forgotten,
        };
        self.http2.check_closed_stream(piece.stream, what, closed)?;
        Ok(None)
    }

    fn receive_data(
        &mut self,
        piece: StreamPayload<'_>,
        to: &mut CannedOutput<'_>,
    ) -> Result<(), Violation> {
        let Some(place) = self.find_receiving_stream(piece, "DATA")? else {
            return Ok(());
        };
        let options = &self.prepared.options;
        let stream = &mut self.streams.0[place];
        stream.receive_window.receive(stream.id, piece.length)?;
        if options.check_requests {
            let read = if options.streams {
                (stream.message).read_into(&mut AnyMessageSink, piece.bytes, u32::MAX)
            } else {
                stream.message.read(piece.bytes, u32::MAX)
            };
            read.map_err(|error| protocol_error(error.to_string()))?;
        }
        if piece.end_stream {
            return self.finish_request(place, to);
        }
        if let Some(increment) = stream.receive_window.release(piece.length) {
            write::window_update(to.out, stream.id, increment);
        }
        Ok(())
    }

    fn finish_request(&mut self, place: usize, to: &mut CannedOutput<'_>) -> Result<(), Violation> {
        let options = &self.prepared.options;
        let stream = &mut self.streams.0[place];
        let wrong = !options.streams && stream.message.complete_message_count() != 1;
        if options.check_requests && (wrong || stream.message.is_mid_message()) {
            return Err(protocol_error(format!(
                "stream {} does not carry exactly one complete message",
                stream.id
            )));
        }
        self.requests += 1;
        let goaway = options.goaway_after == Some(self.requests);
        if let Some((every, code)) = options.reset_every
            && self.requests.is_multiple_of(every.max(1))
        {
            self.http2.reset_stream(stream.id, code, to.out);
            self.streams.0.remove(place);
        } else if options.answered_by_caller {
            stream.phase = StreamPhase::Held;
            to.held.push(stream.id);
        } else {
            self.send_answer(place, to.out);
        }
        if goaway {
            self.send_goaway(ErrorCode::NO_ERROR, to.out);
        }
        Ok(())
    }

    #[inline]
    fn send_answer(&mut self, place: usize, out: &mut Vec<u8>) {
        let prepared = &*self.prepared;
        let stream = &mut self.streams.0[place];
        let length = prepared.body.len();
        let fits = length <= sendable_byte_count(&self.http2, stream)
            && out.len() < prepared.options.max_unsent_bytes;
        if !fits || !self.client_table.can_send_steady_block() {
            return self.send_answer_slow_path(place, fits, out);
        }
        self.http2.count_sent_data(length as u32);
        let start = out.len();
        out.extend_from_slice(&prepared.steady);
        let written = &mut out[start..];
        for &at in &prepared.id_offsets {
            written[at as usize..][..4].copy_from_slice(&stream.id.to_be_bytes());
        }
        self.answered += 1;
        self.streams.0.remove(place);
    }

    /// Sends a response in cases in which the prepared bytes can't be copied. Header blocks that may be interleaved
    /// with those of other responses don't use the dynamic table: only a complete response may add entries to the
    /// client's table.
    #[inline(never)]
    fn send_answer_slow_path(&mut self, place: usize, fits: bool, out: &mut Vec<u8>) {
        let prepared = &*self.prepared;
        let stream = &mut self.streams.0[place];
        let mut block = Vec::new();
        let needed = if fits {
            prepared.required_table_size
        } else {
            usize::MAX
        };
        let choice = self.client_table.choose_block(needed, &mut block);
        let first = choice == BlockChoice::First;
        let chosen = |blocks: &AnswerBlocks| {
            if first {
                blocks.first.clone()
            } else {
                blocks.plain.clone()
            }
        };
        block.extend_from_slice(&chosen(&prepared.head));
        write::header_block(
            out,
            stream.id,
            &block,
            EndStream(prepared.trailers.is_none()),
        );
        stream.unsent = prepared.body.len();
        stream.phase = StreamPhase::Answering;
        if !send_message(prepared, stream, &mut self.http2, out) {
            self.blocked += 1;
            self.held_back |= out.len() >= prepared.options.max_unsent_bytes;
            return;
        }
        if let Some(trailers) = &prepared.trailers {
            write::header_block(out, stream.id, &chosen(trailers), EndStream(true));
        }
        self.answered += 1;
        self.streams.0.remove(place);
    }

    fn resume_blocked_streams(&mut self, out: &mut Vec<u8>) {
        if self.blocked == 0 {
            return;
        }
        let prepared = &*self.prepared;
        let mut ended = 0;
        self.streams.0.retain_mut(|stream| {
            if stream.phase != StreamPhase::Answering
                || !send_message(prepared, stream, &mut self.http2, out)
            {
                return true;
            }
            if let Some(trailers) = &prepared.trailers {
                write::header_block(out, stream.id, &trailers.plain, EndStream(true));
            }
            ended += 1;
            false
        });
        self.blocked -= ended;
        self.held_back |= self.blocked > 0 && out.len() >= prepared.options.max_unsent_bytes;
        self.answered += ended as u64;
    }
}

/// Returns the bytes that may be sent on a stream.
#[inline]
fn sendable_byte_count(http2: &Http2Connection<ServerRole>, stream: &CannedStream) -> usize {
    http2.send_window().min(stream.send_window.max(0) as u32) as usize
}

/// Sends as much of a response's messages as the windows and the output limit allow. Returns true once all
/// messages are sent.
fn send_message(
    prepared: &PreparedAnswer,
    stream: &mut CannedStream,
    http2: &mut Http2Connection<ServerRole>,
    out: &mut Vec<u8>,
) -> bool {
    let body = &prepared.body;
    while stream.unsent > 0 {
        if out.len() >= prepared.options.max_unsent_bytes {
            return false;
        }
        let most = sendable_byte_count(http2, stream).min(DEFAULT_MAX_FRAME_BYTES as usize);
        let length = stream.unsent.min(most);
        if length == 0 {
            return false;
        }
        let start = body.len() - stream.unsent;
        write::data(
            out,
            stream.id,
            &body[start..start + length],
            EndStream(false),
        );
        stream.unsent -= length;
        stream.send_window -= length as i32;
        http2.count_sent_data(length as u32);
    }
    true
}

/// Checks the fields that every gRPC request must have (gRPC over HTTP/2, "Requests"), and the pseudo-header
/// fields that trailers must not have.
fn check_fields(decoder: &mut Decoder, block: &[u8], trailers: bool) -> Result<(), Violation> {
    let (mut method, mut path, mut te, mut grpc) = (false, false, false, false);
    let (mut regular, mut late_pseudo) = (trailers, false);
    decoder
        .decode(block, |field| {
            late_pseudo |= regular && field.name.starts_with(b":");
            regular |= !field.name.starts_with(b":");
            match field.name {
                b":method" => method = field.value == b"POST",
                b":path" => path = field.value.starts_with(b"/"),
                b"te" => te = field.value == b"trailers",
                b"content-type" => grpc = field.value.starts_with(b"application/grpc"),
                _ => {}
            }
        })
        .map_err(|error| {
            Violation::connection_error(ErrorCode::COMPRESSION_ERROR, error.to_string())
        })?;
    if !(trailers || method && path && te && grpc) || late_pseudo {
        return Err(protocol_error(
            "a request without the header fields of gRPC, or with them out of order",
        ));
    }
    Ok(())
}

#[cold]
fn protocol_error(why: impl Into<String>) -> Violation {
    Violation::connection_error(ErrorCode::PROTOCOL_ERROR, why)
}
