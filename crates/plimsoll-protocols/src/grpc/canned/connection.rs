//! The server's side of one connection: requests in, prepared answers out.
//!
//! Long because it is one state machine, whose parts share every field.

use std::sync::Arc;

use plimsoll_wire::hpack::{BlockChoice, Decoder, PeerTable};
use plimsoll_wire::http2::{
    self, DEFAULT_MAX_FRAME, DEFAULT_WINDOW, ErrorCode, Frame, FrameHead, HeaderBlock,
    MAX_HEADER_LIST, MAX_WINDOW, Settings, Violation, flags, kind, setting, write,
};

use super::{Blocks, CannedError, Prepared};
use crate::grpc::message::{MessageError, MessageReader, Sink};

/// Streams that are open at once where no limit is set. One that is refused may be tried
/// again (RFC 9113, 8.7).
const MAX_STREAMS: usize = 65_536;

/// Messages are counted, and what is in them does not matter.
struct Anything;

impl Sink for Anything {
    fn begin_packed(&mut self) -> Result<(), MessageError> {
        Ok(())
    }
    fn piece(&mut self, _: &[u8]) -> Result<(), MessageError> {
        Ok(())
    }
    fn end(&mut self) -> Result<(), MessageError> {
        Ok(())
    }
}

/// One request, from its HEADERS to the end of its answer.
#[derive(Debug)]
struct Stream {
    id: u32,
    message: MessageReader,
    receive_window: i64,
    send_window: i64,
    /// Bytes of the answer's message that wait for a window.
    unsent: usize,
    phase: Phase,
    /// The client has reset it, and is answered all the same.
    reset: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Receiving,
    Held,
    Answering,
}

/// The server's side of one connection.
#[derive(Debug)]
pub struct CannedConnection {
    prepared: Arc<Prepared>,
    preface_seen: usize,
    partial: Vec<u8>,
    block: Option<HeaderBlock>,
    decoder: Decoder,
    client_table: PeerTable,
    /// By id, which is the order they were opened in.
    streams: Vec<Stream>,
    highest: u32,
    send_window: i64,
    client_initial_window: i64,
    receive_window: u32,
    /// The client has acknowledged our SETTINGS, so it must keep them.
    limits_known: bool,
    /// Of the GOAWAY that was sent.
    last_stream: Option<u32>,
    /// Streams with an unsent rest.
    blocked: usize,
    /// Some of them wait for [`super::CannedOptions::most_out`].
    held_back: bool,
    requests: u64,
    answered: u64,
    resets: u64,
}

impl CannedConnection {
    pub(super) fn new(prepared: Arc<Prepared>) -> CannedConnection {
        let options = &prepared.options;
        CannedConnection {
            preface_seen: 0,
            partial: Vec::new(),
            block: None,
            decoder: Decoder::new(options.header_table_size, MAX_HEADER_LIST),
            client_table: PeerTable::default(),
            streams: Vec::new(),
            highest: 0,
            send_window: i64::from(DEFAULT_WINDOW),
            client_initial_window: i64::from(DEFAULT_WINDOW),
            receive_window: options.connection_window.max(DEFAULT_WINDOW),
            limits_known: false,
            last_stream: None,
            blocked: 0,
            held_back: false,
            requests: 0,
            answered: 0,
            resets: 0,
            prepared,
        }
    }

    /// The server's greeting; it need not wait for the client's.
    pub fn open(&mut self, out: &mut Vec<u8>) {
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
        write::settings(out, &settings);
        if options.connection_window > DEFAULT_WINDOW {
            write::window_update(out, 0, options.connection_window - DEFAULT_WINDOW);
        }
    }

    /// Takes bytes from the client, in any split, and appends what is to be sent. With
    /// `CannedOptions::hold`, whole requests are appended to `held` as stream ids.
    ///
    /// # Errors
    /// The client broke the protocol, or a limit it was given. A GOAWAY is in `out`, and
    /// the connection is of no more use.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        held: &mut Vec<u32>,
    ) -> Result<(), CannedError> {
        match self.receive_frames(bytes, out, held) {
            Ok(()) => Ok(()),
            Err(violation) => {
                let why = violation.why.as_bytes();
                write::goaway(out, self.highest, violation.code, why);
                Err(violation.into())
            }
        }
    }

    /// Answers a held request. One that its client has reset is left alone.
    pub fn complete(&mut self, stream: u32, out: &mut Vec<u8>) {
        if let Ok(place) = self
            .streams
            .binary_search_by_key(&stream, |stream| stream.id)
            && self.streams[place].phase == Phase::Held
        {
            self.answer(place, out);
        }
    }

    /// Whether answers wait only for what is out to be sent.
    pub fn is_held_back(&self) -> bool {
        self.held_back
    }

    /// What was made has been sent: makes more of the answers that were held back.
    pub fn go_on(&mut self, out: &mut Vec<u8>) {
        self.held_back = false;
        self.send_blocked(out);
    }

    /// Takes no more requests: GOAWAY up to the last one seen.
    pub fn goaway(&mut self, code: ErrorCode, out: &mut Vec<u8>) {
        self.last_stream = Some(self.highest);
        write::goaway(out, self.highest, code, b"");
    }

    /// Announces that a GOAWAY will follow, as a server does that wants no request to be
    /// lost (RFC 9113, 6.8).
    pub fn announce_goaway(&self, out: &mut Vec<u8>) {
        write::goaway(out, http2::MAX_STREAM_ID, ErrorCode::NO_ERROR, b"");
    }

    /// Changes settings in mid-flight. The caller keeps to what the client has seen:
    /// checks of stream windows and limits are by the options.
    pub fn send_settings(&self, settings: &[(u16, u32)], out: &mut Vec<u8>) {
        write::settings(out, settings);
    }

    /// A GOAWAY was sent and every request taken has been answered.
    pub fn is_finished(&self) -> bool {
        self.last_stream.is_some() && self.streams.is_empty()
    }

    /// Whole requests taken so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Requests answered to their end.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// RST_STREAM frames that the client sent.
    pub fn resets(&self) -> u64 {
        self.resets
    }

    fn receive_frames(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        held: &mut Vec<u32>,
    ) -> Result<(), Violation> {
        let mut input = bytes;
        if self.preface_seen < http2::PREFACE.len() {
            let expected = &http2::PREFACE[self.preface_seen..];
            let (preface, rest) = input.split_at(expected.len().min(input.len()));
            if !expected.starts_with(preface) {
                return Err(broken("no connection preface"));
            }
            self.preface_seen += preface.len();
            input = rest;
        }
        if !self.partial.is_empty() {
            let mut partial = std::mem::take(&mut self.partial);
            if !http2::complete(&mut partial, &mut input, DEFAULT_MAX_FRAME)? {
                self.partial = partial;
                return Ok(());
            }
            let mut whole = &partial[..];
            if let Some((head, payload)) = http2::split(&mut whole, DEFAULT_MAX_FRAME)? {
                self.mended_frame(head, payload, out, held)?;
            }
        }
        let rest = http2::each(input, DEFAULT_MAX_FRAME, |head, payload| {
            self.frame(head, payload, out, held)
        })?;
        self.partial.extend_from_slice(rest);
        Ok(())
    }

    /// A frame that came in several pieces; apart, so that the loop over whole ones has
    /// [`CannedConnection::frame`] in line.
    #[inline(never)]
    fn mended_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
        held: &mut Vec<u32>,
    ) -> Result<(), Violation> {
        self.frame(head, payload, out, held)
    }

    #[inline(always)]
    fn frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
        held: &mut Vec<u32>,
    ) -> Result<(), Violation> {
        let end_stream = head.has(flags::END_STREAM);
        match head.kind() {
            _ if self.block.is_some() => self.rare(head, payload, out, held),
            kind::DATA => {
                let data = Frame::data(head, payload)?;
                self.data(head.stream(), head.length(), data, end_stream, out, held)
            }
            kind::HEADERS if head.has(flags::END_HEADERS) => {
                let block = Frame::fragment(head, payload)?;
                self.request(head.stream(), block, end_stream, out, held)
            }
            _ => self.rare(head, payload, out, held),
        }
    }

    #[inline(never)]
    fn rare(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
        held: &mut Vec<u32>,
    ) -> Result<(), Violation> {
        let frame = Frame::parse(head, payload)?;
        if let Some(block) = &self.block
            && !(matches!(frame, Frame::Continuation { .. }) && head.stream() == block.stream)
        {
            return Err(broken("another frame inside a header block"));
        }
        match frame {
            Frame::Headers {
                fragment,
                end_stream,
                ..
            } => {
                self.block = Some(HeaderBlock::new(head.stream(), end_stream, fragment));
                Ok(())
            }
            Frame::Continuation {
                fragment,
                end_headers,
            } => {
                let Some(mut block) = self.block.take() else {
                    return Err(broken("CONTINUATION after no HEADERS"));
                };
                block.push(fragment)?;
                if end_headers {
                    let (id, end_stream) = (block.stream, block.end_stream);
                    return self.request(id, block.bytes(), end_stream, out, held);
                }
                self.block = Some(block);
                Ok(())
            }
            Frame::Settings(settings) => {
                self.settings(settings)?;
                write::settings_ack(out);
                self.send_blocked(out);
                Ok(())
            }
            Frame::SettingsAck => {
                self.limits_known = true;
                Ok(())
            }
            Frame::Ping { data } => {
                write::ping_ack(out, data);
                Ok(())
            }
            Frame::WindowUpdate { increment } => {
                self.window_update(head.stream(), increment)?;
                self.send_blocked(out);
                Ok(())
            }
            Frame::ResetStream { .. } => self.reset(head.stream()),
            Frame::PushPromise { .. } => Err(broken("PUSH_PROMISE from a client")),
            Frame::Data { .. }
            | Frame::GoAway { .. }
            | Frame::PingAck { .. }
            | Frame::Priority
            | Frame::Unknown => Ok(()),
        }
    }

    /// A whole header block of a request.
    fn request(
        &mut self,
        id: u32,
        block: &[u8],
        end_stream: bool,
        out: &mut Vec<u8>,
        held: &mut Vec<u32>,
    ) -> Result<(), Violation> {
        let options = &self.prepared.options;
        if options.check_requests {
            check_fields(&mut self.decoder, block)?;
        }
        if id.is_multiple_of(2) || id <= self.highest {
            return Err(broken(format!(
                "HEADERS on stream {id} after stream {}",
                self.highest
            )));
        }
        self.highest = id;
        if self.last_stream.is_some_and(|last| id > last) {
            return Ok(());
        }
        let open = match options.max_concurrent_streams {
            Some(_) => self.streams.iter().filter(|stream| !stream.reset).count(),
            None => 0,
        };
        if options
            .max_concurrent_streams
            .is_some_and(|limit| open >= limit as usize)
        {
            if options.check_requests && self.limits_known {
                return Err(broken(format!(
                    "stream {id} beyond the limit: {open} are open"
                )));
            }
            write::reset_stream(out, id, ErrorCode::REFUSED_STREAM);
            return Ok(());
        }
        if self.streams.len() >= MAX_STREAMS {
            write::reset_stream(out, id, ErrorCode::REFUSED_STREAM);
            return Ok(());
        }
        // Until it has acknowledged SETTINGS, a client may count with the default.
        let window = match self.limits_known {
            true => options.stream_window,
            false => options.stream_window.max(DEFAULT_WINDOW),
        };
        self.streams.push(Stream {
            id,
            message: MessageReader::NEW,
            receive_window: i64::from(window),
            send_window: self.client_initial_window,
            unsent: 0,
            phase: Phase::Receiving,
            reset: false,
        });
        if end_stream {
            return self.whole_request(open, out, held);
        }
        Ok(())
    }

    fn data(
        &mut self,
        id: u32,
        length: u32,
        data: &[u8],
        end_stream: bool,
        out: &mut Vec<u8>,
        held: &mut Vec<u32>,
    ) -> Result<(), Violation> {
        let options = &self.prepared.options;
        let Some(left) = self.receive_window.checked_sub(length) else {
            return Err(flow(0, self.receive_window.into(), length));
        };
        self.receive_window = left;
        let whole_window = options.connection_window.max(DEFAULT_WINDOW);
        if left <= whole_window / 2 {
            write::window_update(out, 0, whole_window - left);
            self.receive_window = whole_window;
        }
        // Most often the stream that was opened last.
        let place = match self.streams.last() {
            Some(last) if last.id == id => self.streams.len() - 1,
            _ => match self.streams.binary_search_by_key(&id, |stream| stream.id) {
                Ok(place) => place,
                Err(_) if id > self.highest => return Err(broken("DATA before HEADERS")),
                // Refused, or above GOAWAY.
                Err(_) => return Ok(()),
            },
        };
        let stream = &mut self.streams[place];
        if stream.phase != Phase::Receiving {
            return Err(broken(format!(
                "DATA after END_STREAM on stream {}",
                stream.id
            )));
        }
        if options.check_requests {
            let window = stream.receive_window;
            stream.receive_window -= i64::from(length);
            if stream.receive_window < 0 {
                return Err(flow(stream.id, window, length));
            }
            let read = match options.streams {
                false => stream.message.read(data, u32::MAX),
                true => stream.message.read_into(&mut Anything, data, u32::MAX),
            };
            read.map_err(|error| broken(error.to_string()))?;
        } else {
            stream.receive_window -= i64::from(length);
        }
        if end_stream {
            return self.whole_request(place, out, held);
        }
        let target = i64::from(options.stream_window);
        if stream.receive_window <= target / 2 {
            write::window_update(out, stream.id, (target - stream.receive_window) as u32);
            stream.receive_window = target;
        }
        Ok(())
    }

    fn whole_request(
        &mut self,
        place: usize,
        out: &mut Vec<u8>,
        held: &mut Vec<u32>,
    ) -> Result<(), Violation> {
        let options = &self.prepared.options;
        let stream = &mut self.streams[place];
        let wrong = !options.streams && stream.message.whole() != 1;
        if options.check_requests && (wrong || stream.message.is_inside()) {
            return Err(broken(format!(
                "stream {} carries not one message, or not whole ones",
                stream.id
            )));
        }
        self.requests += 1;
        let goaway = options.goaway_after == Some(self.requests);
        if let Some((every, code)) = options.reset_every
            && self.requests.is_multiple_of(every.max(1))
        {
            write::reset_stream(out, stream.id, code);
            self.streams.remove(place);
        } else if options.hold {
            stream.phase = Phase::Held;
            held.push(stream.id);
        } else {
            self.answer(place, out);
        }
        if goaway {
            self.goaway(ErrorCode::NO_ERROR, out);
        }
        Ok(())
    }

    #[inline]
    fn answer(&mut self, place: usize, out: &mut Vec<u8>) {
        let prepared = &*self.prepared;
        let stream = &mut self.streams[place];
        let length = prepared.body.len() as i64;
        let fits = length <= self.send_window.min(stream.send_window)
            && out.len() < prepared.options.most_out;
        if !fits || !self.client_table.is_steady() {
            return self.answer_slowly(place, fits, out);
        }
        self.send_window -= length;
        let start = out.len();
        out.extend_from_slice(&prepared.steady);
        let written = &mut out[start..];
        for &at in &prepared.ids {
            written[at as usize..][..4].copy_from_slice(&stream.id.to_be_bytes());
        }
        self.answered += 1;
        self.streams.remove(place);
    }

    /// An answer that does not go out as the prepared bytes. Blocks that others may come
    /// between are plain: only a whole answer may fill the client's table.
    #[inline(never)]
    fn answer_slowly(&mut self, place: usize, fits: bool, out: &mut Vec<u8>) {
        let prepared = &*self.prepared;
        let stream = &mut self.streams[place];
        let mut block = Vec::new();
        let needed = if fits {
            prepared.table_needed
        } else {
            usize::MAX
        };
        let choice = self.client_table.next(needed, &mut block);
        let first = choice == BlockChoice::First;
        let chosen = |blocks: &Blocks| {
            if first {
                blocks.first.clone()
            } else {
                blocks.plain.clone()
            }
        };
        block.extend_from_slice(&chosen(&prepared.head));
        write::header_block(out, stream.id, &block, prepared.trailers.is_none());
        stream.unsent = prepared.body.len();
        stream.phase = Phase::Answering;
        if !send_message(prepared, stream, &mut self.send_window, out) {
            self.blocked += 1;
            self.held_back |= out.len() >= prepared.options.most_out;
            return;
        }
        if let Some(trailers) = &prepared.trailers {
            write::header_block(out, stream.id, &chosen(trailers), true);
        }
        self.answered += 1;
        self.streams.remove(place);
    }

    fn send_blocked(&mut self, out: &mut Vec<u8>) {
        if self.blocked == 0 {
            return;
        }
        let prepared = &*self.prepared;
        let mut ended = 0;
        self.streams.retain_mut(|stream| {
            if stream.phase != Phase::Answering
                || !send_message(prepared, stream, &mut self.send_window, out)
            {
                return true;
            }
            if let Some(trailers) = &prepared.trailers {
                write::header_block(out, stream.id, &trailers.plain, true);
            }
            ended += 1;
            false
        });
        self.blocked -= ended;
        self.held_back |= self.blocked > 0 && out.len() >= prepared.options.most_out;
        self.answered += ended as u64;
    }

    fn settings(&mut self, settings: Settings<'_>) -> Result<(), Violation> {
        for (id, value) in settings.iter() {
            match id {
                setting::HEADER_TABLE_SIZE => self.client_table.allow(value),
                setting::INITIAL_WINDOW_SIZE => {
                    let change = i64::from(value) - self.client_initial_window;
                    self.client_initial_window = i64::from(value);
                    for stream in &mut self.streams {
                        stream.send_window = checked_window(stream.send_window + change)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn window_update(&mut self, id: u32, increment: u32) -> Result<(), Violation> {
        let increment = i64::from(increment);
        if id == 0 {
            self.send_window = checked_window(self.send_window + increment)?;
        } else if let Ok(place) = self.streams.binary_search_by_key(&id, |stream| stream.id) {
            let stream = &mut self.streams[place];
            stream.send_window = checked_window(stream.send_window + increment)?;
        }
        Ok(())
    }

    fn reset(&mut self, id: u32) -> Result<(), Violation> {
        if id > self.highest {
            return Err(broken(format!(
                "RST_STREAM on stream {id}, which was never opened"
            )));
        }
        self.resets += 1;
        if let Ok(place) = self.streams.binary_search_by_key(&id, |stream| stream.id) {
            match self.streams[place].phase {
                Phase::Held if self.prepared.options.ignore_resets => {
                    // Closed as far as limits go (RFC 9113, 5.1.2); the answer still comes.
                    self.streams[place].reset = true;
                    return Ok(());
                }
                Phase::Answering => self.blocked -= 1,
                Phase::Held | Phase::Receiving => {}
            }
            self.streams.remove(place);
        }
        Ok(())
    }
}

/// Sends what the windows let of an answer's message, and what may be out; true once all
/// is sent.
fn send_message(
    prepared: &Prepared,
    stream: &mut Stream,
    connection_window: &mut i64,
    out: &mut Vec<u8>,
) -> bool {
    let body = &prepared.body;
    while stream.unsent > 0 {
        if out.len() >= prepared.options.most_out {
            return false;
        }
        let window = (*connection_window).min(stream.send_window).max(0) as usize;
        let length = stream.unsent.min(window).min(DEFAULT_MAX_FRAME as usize);
        if length == 0 {
            return false;
        }
        let start = body.len() - stream.unsent;
        write::data(out, stream.id, &body[start..start + length], false);
        stream.unsent -= length;
        stream.send_window -= length as i64;
        *connection_window -= length as i64;
    }
    true
}

/// What every gRPC request must have (gRPC over HTTP/2, "Requests").
fn check_fields(decoder: &mut Decoder, block: &[u8]) -> Result<(), Violation> {
    let (mut method, mut path, mut te, mut grpc) = (false, false, false, false);
    let (mut regular, mut late_pseudo) = (false, false);
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
        .map_err(|error| Violation::connection(ErrorCode::COMPRESSION_ERROR, error.to_string()))?;
    if !(method && path && te && grpc) || late_pseudo {
        return Err(broken(
            "a request without the fields of gRPC, or with them out of order",
        ));
    }
    Ok(())
}

fn checked_window(window: i64) -> Result<i64, Violation> {
    if window > i64::from(MAX_WINDOW) {
        let why = "a window over 2147483647 bytes";
        return Err(Violation::connection(ErrorCode::FLOW_CONTROL_ERROR, why));
    }
    Ok(window)
}

#[cold]
fn broken(why: impl Into<String>) -> Violation {
    Violation::connection(ErrorCode::PROTOCOL_ERROR, why)
}

#[cold]
fn flow(stream: u32, window: i64, length: u32) -> Violation {
    let why = format!("{length} bytes of DATA on stream {stream} in a window of {window}");
    Violation::connection(ErrorCode::FLOW_CONTROL_ERROR, why)
}
