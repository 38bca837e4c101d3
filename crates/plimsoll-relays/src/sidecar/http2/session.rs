//! One connection's side of HTTP/2, towards a client or towards an upstream.
//!
//! Frames come out as [`Event`]s one by one, each with the key of the call that its stream
//! belongs to. What needs no other connection is answered here, or in [`Connection`]: SETTINGS, PING,
//! frames on streams that are over, streams that break a rule.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use plimsoll_wire::http2::{
    self, Closed, Connection, Control, DEFAULT_MAX_FRAME, End, ErrorCode, FrameHead, Piece,
    ReceiveWindow, Side, Stage, Violation, flags, kind, setting, write,
};

use super::Fields;
use super::fields::{FieldReader, FieldWriter};

/// What waits of one stream at most. Bytes.
const STREAM_WINDOW: u32 = 64 << 10;

/// The same of a stream whose bytes have gone on as they came, so far. Bytes.
const FLOWING_WINDOW: u32 = 256 << 10;

/// What waits of a connection's streams together. Bytes.
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Streams that an upstream is given before its SETTINGS.
const STREAMS_BEFORE_SETTINGS: usize = 100;

/// PINGs without DATA or HEADERS from the peer in between. The last of them is left for a call.
const MAX_PINGS: u8 = 3;

/// The data of our PINGs.
const PING_PAYLOAD: [u8; 8] = *b"sidecar\0";

/// What a frame was for; `key` is the call's.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// A client's new stream: [`Session::adopt`] it, or [`Session::reset`] it.
    Opened {
        stream: u32,
        fields: Arc<Fields>,
        end_stream: bool,
    },
    Headers {
        key: u64,
        fields: Arc<Fields>,
        end_stream: bool,
    },
    Data {
        key: u64,
        data: &'a [u8],
        end_stream: bool,
    },
    /// The stream is over and forgotten: the peer reset it, or broke a rule on it.
    Reset { key: u64, code: ErrorCode },
    /// More may be sent than before.
    Room,
    /// No stream above `last_stream` was or will be looked at.
    GoAway { last_stream: u32, code: ErrorCode },
}

#[derive(Debug)]
struct Stream {
    key: u64,
    send_window: i32,
    receive_window: ReceiveWindow,
    /// The peer has sent END_STREAM.
    ended: bool,
    /// Its call is over, and it is to be reset later; whether this end has sent END_STREAM.
    abandoned: Option<End>,
}

/// Streams by id. Hashing is for speed: a connection has few, and every frame of a call looks its own up.
#[derive(Debug, Default)]
struct Streams(HashMap<u32, Stream, RandomState>);

impl http2::Streams for Streams {
    fn send_window(&mut self, id: u32) -> Option<&mut i32> {
        self.0.get_mut(&id).map(|stream| &mut stream.send_window)
    }

    fn send_windows(&mut self) -> impl Iterator<Item = &mut i32> {
        self.0.values_mut().map(|stream| &mut stream.send_window)
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) http2: Connection<Side>,
    reader: FieldReader,
    writer: FieldWriter,
    streams: Streams,
    /// A PING of ours has not been answered.
    pub(crate) is_beating: bool,
    /// PINGs of ours since DATA or HEADERS came last.
    pings: u8,
}

impl Session {
    /// [`Side::Server`]: the client is at the other end; else the service is, or the next sidecar.
    pub(crate) fn new(side: Side) -> Session {
        Session {
            http2: Connection::new(side, CONNECTION_WINDOW),
            reader: FieldReader::new(),
            writer: FieldWriter::default(),
            streams: Streams::default(),
            is_beating: false,
            pings: 0,
        }
    }

    pub(crate) fn side(&self) -> Side {
        self.http2.peer()
    }

    /// The greeting. `max_streams`: what a client may have open at once.
    pub(crate) fn open(&self, max_streams: u32, out: &mut Vec<u8>) {
        let first = match self.side() {
            Side::Server => (setting::MAX_CONCURRENT_STREAMS, max_streams),
            Side::Client => (setting::ENABLE_PUSH, 0),
        };
        let window = (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW);
        self.http2.open(&[first, window], out);
    }

    /// The peer has sent its SETTINGS.
    pub(crate) fn is_greeted(&self) -> bool {
        self.http2.stage() != Stage::Greeting
    }

    /// Streams open.
    pub(crate) fn open_streams(&self) -> usize {
        self.streams.0.len()
    }

    /// Streams that may be open at once, here as the client.
    pub(crate) fn places(&self) -> usize {
        if self.is_greeted() {
            self.http2.max_streams() as usize
        } else {
            STREAMS_BEFORE_SETTINGS
        }
    }

    /// Whether another stream may be opened now, here as the client.
    pub(crate) fn has_place(&self) -> bool {
        self.is_greeted() && self.open_streams() < self.places() && !self.is_used_up()
    }

    /// Every stream id was used.
    pub(crate) fn is_used_up(&self) -> bool {
        self.http2.ids_left() == 0
    }

    /// The calls of the open streams from `first` on, in their order.
    pub(crate) fn keys_from(&self, first: u32) -> Vec<u64> {
        let mut calls: Vec<_> = self.open_calls().filter(|(id, _)| *id >= first).collect();
        calls.sort_unstable();
        calls.into_iter().map(|(_, key)| key).collect()
    }

    /// The open streams with their calls.
    pub(crate) fn open_calls(&self) -> impl Iterator<Item = (u32, u64)> {
        let streams = self.streams.0.iter();
        let open = streams.filter(|(_, stream)| stream.abandoned.is_none());
        open.map(|(id, stream)| (*id, stream.key))
    }

    // ---- sending ----

    /// Opens a stream, here as the client.
    pub(crate) fn begin(&mut self, key: u64, fields: &Fields, end: End, out: &mut Vec<u8>) -> u32 {
        let stream = self.http2.begin();
        self.adopt(stream, key, End(false));
        self.headers(stream, fields, end, out);
        stream
    }

    /// Takes a stream in whose peer has ended its side, or not.
    pub(crate) fn adopt(&mut self, stream: u32, key: u64, ended: End) {
        let entry = Stream {
            key,
            // The initial window is at most 2³¹−1.
            send_window: self.http2.initial_window() as i32,
            receive_window: ReceiveWindow::new(STREAM_WINDOW),
            ended: ended.0,
            abandoned: None,
        };
        self.streams.0.insert(stream, entry);
    }

    pub(crate) fn headers(&mut self, stream: u32, fields: &Fields, end: End, out: &mut Vec<u8>) {
        write::header_block(out, stream, self.writer.block(fields), end);
    }

    /// What may be sent on a stream now. Bytes.
    pub(crate) fn room(&self, stream: u32) -> usize {
        let window = self.streams.0.get(&stream).map_or(0, |s| s.send_window);
        self.http2.send_window().min(window.max(0) as u32) as usize
    }

    /// `data`: within the [`Session::room`] and one frame.
    pub(crate) fn data(&mut self, stream: u32, data: &[u8], end: End, out: &mut Vec<u8>) {
        self.http2.sent(data.len() as u32);
        if let Some(stream) = self.streams.0.get_mut(&stream) {
            stream.send_window -= data.len() as i32;
        }
        write::data(out, stream, data, end);
    }

    /// The bytes that came last on `stream` were passed on at once.
    pub(crate) fn flows(&mut self, stream: u32) {
        if let Some(entry) = self.streams.0.get_mut(&stream)
            && entry.receive_window.is_half_used()
        {
            entry.receive_window.widen_to(FLOWING_WINDOW);
        }
    }

    /// Bytes that came on `stream` have been passed on, or never will be: as many may
    /// come again.
    pub(crate) fn give_back(&mut self, stream: u32, length: usize, out: &mut Vec<u8>) {
        let length = length as u32;
        self.http2.give_back(length, out);
        if let Some(entry) = self.streams.0.get_mut(&stream)
            && !entry.ended
            && let Some(increment) = entry.receive_window.give_back(length)
        {
            write::window_update(out, stream, increment);
        }
    }

    /// Ends a stream at once; what still comes on it is ignored.
    pub(crate) fn reset(&mut self, stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
        self.http2.reset(stream, code, out);
        self.streams.0.remove(&stream);
    }

    /// Both sides have ended it, or one has reset it.
    pub(crate) fn forget(&mut self, stream: u32) {
        self.streams.0.remove(&stream);
    }

    /// The peer has ended it, or reset it.
    pub(crate) fn is_ended_by_peer(&self, stream: u32) -> bool {
        let entry = self.streams.0.get(&stream);
        entry.is_none_or(|entry| entry.ended)
    }

    /// Its call is over: what still comes on it is dropped. [`Session::reset`] ends it later, unless the
    /// peer does before. `sent`: whether this end has sent END_STREAM.
    pub(crate) fn abandon(&mut self, stream: u32, sent: End) {
        if let Some(entry) = self.streams.0.get_mut(&stream) {
            entry.abandoned = Some(sent);
        }
    }

    /// It is open, and its call is over.
    pub(crate) fn is_abandoned(&self, stream: u32) -> bool {
        let entry = self.streams.0.get(&stream);
        entry.is_some_and(|entry| entry.abandoned.is_some())
    }

    /// The peer has ended a stream that is abandoned.
    #[cold]
    fn end_abandoned(&mut self, stream: u32, sent: End, out: &mut Vec<u8>) {
        self.streams.0.remove(&stream);
        if !sent.0 {
            self.http2.reset(stream, ErrorCode::CANCEL, out);
        }
    }

    /// Whether the peer puts up with one more PING. Servers of gRPC end a connection that has three too many, and
    /// lose the calls that come at that moment: those without a call every two hours, and within a call every five
    /// minutes. The first one after DATA or HEADERS is never too many.
    pub(crate) fn may_beat(&self) -> bool {
        let is_idle = self.open_streams() == 0;
        self.is_greeted() && self.pings < MAX_PINGS - u8::from(is_idle)
    }

    pub(crate) fn beat(&mut self, out: &mut Vec<u8>) {
        write::head(out, PING_PAYLOAD.len(), kind::PING, 0, 0);
        out.extend_from_slice(&PING_PAYLOAD);
        self.is_beating = true;
        self.pings = self.pings.saturating_add(1);
    }

    /// DATA or HEADERS have come. The peer may take a PING that is under way for one that came after them.
    fn forget_pings(&mut self) {
        self.pings = u8::from(self.is_beating);
    }

    // ---- receiving ----

    /// Takes frames off the front of `input` up to the next event; `None`: the rest is no
    /// whole frame. What the sidecar answers itself is appended to `out`.
    ///
    /// # Errors
    /// The peer broke the protocol: the connection is of no more use.
    pub(crate) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event<'a>>, Violation> {
        self.http2.preface(input)?;
        while let Some((head, payload)) = http2::split(input, DEFAULT_MAX_FRAME)? {
            match self.frame(head, payload, out) {
                Ok(None) => {}
                Ok(event) => return Ok(event),
                Err(violation) => {
                    let violation = self.http2.contain(violation)?;
                    let (stream, code) = (violation.stream, violation.code);
                    if let Some(Stream { key, .. }) = self.streams.0.remove(&stream) {
                        self.http2.reset(stream, code, out);
                        return Ok(Some(Event::Reset { key, code }));
                    }
                }
            }
        }
        Ok(None)
    }

    fn frame<'a>(
        &mut self,
        head: FrameHead,
        payload: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event<'a>>, Violation> {
        match head.kind() {
            kind::DATA => {
                let data = self.http2.data(head, payload)?;
                self.forget_pings();
                return self.take_data(data, out);
            }
            kind::HEADERS if head.has(flags::END_HEADERS) => {
                let block = self.http2.headers(head, payload)?;
                return self.take_block(block, out);
            }
            _ => {}
        }
        Ok(
            match (self.http2).control(head, payload, &mut self.streams, out)? {
                Control::Block(block) => self.take_block(block.piece(), out)?,
                Control::Settings(settings) => {
                    for size in settings.values(setting::HEADER_TABLE_SIZE) {
                        self.writer.allow(size);
                    }
                    Some(Event::Room)
                }
                Control::Room => Some(Event::Room),
                Control::Reset { stream, code } => {
                    let entry = self.streams.0.remove(&stream);
                    let entry = entry.filter(|entry| entry.abandoned.is_none());
                    entry.map(|Stream { key, .. }| Event::Reset { key, code })
                }
                Control::GoAway {
                    last_stream, code, ..
                } => Some(Event::GoAway { last_stream, code }),
                Control::Pong(data) => {
                    self.is_beating &= data != PING_PAYLOAD;
                    None
                }
                Control::Acknowledged | Control::Nothing => None,
            },
        )
    }

    fn take_data<'a>(
        &mut self,
        data: Piece<'a>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event<'a>>, Violation> {
        let (stream, length) = (data.stream, data.length);
        let taken = self.receiving(data, "DATA").and_then(|entry| {
            let Some(entry) = entry else {
                return Ok(None);
            };
            entry.receive_window.take(stream, length)?;
            entry.ended = data.end_stream;
            Ok(Some((entry.key, entry.abandoned)))
        });
        let passed_on = match taken {
            Ok(Some((_, None))) => data.bytes.len(),
            // Reset or refused before the peer knew, or by what it broke: it will not be taken.
            _ => 0,
        };
        if length as usize > passed_on {
            self.give_back(stream, length as usize - passed_on, out);
        }
        let Some((key, abandoned)) = taken? else {
            return Ok(None);
        };
        if let Some(sent) = abandoned {
            if data.end_stream {
                self.end_abandoned(stream, sent, out);
            }
            return Ok(None);
        }
        Ok(Some(Event::Data {
            key,
            data: data.bytes,
            end_stream: data.end_stream,
        }))
    }

    /// A whole header block. It is decoded whatever becomes of it: the table must be kept.
    fn take_block(
        &mut self,
        block: Piece<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event<'static>>, Violation> {
        self.forget_pings();
        let fields = self.reader.read(block.bytes).map_err(|error| {
            Violation::connection(ErrorCode::COMPRESSION_ERROR, error.to_string())
        })?;
        let (stream, end_stream) = (block.stream, block.end_stream);
        if self.http2.opens(stream) {
            return Ok(Some(Event::Opened {
                stream,
                fields,
                end_stream,
            }));
        }
        let Some(entry) = self.receiving(block, "HEADERS")? else {
            return Ok(None);
        };
        entry.ended = end_stream;
        let (key, abandoned) = (entry.key, entry.abandoned);
        if let Some(sent) = abandoned {
            if end_stream {
                self.end_abandoned(stream, sent, out);
            }
            return Ok(None);
        }
        Ok(Some(Event::Headers {
            key,
            fields,
            end_stream,
        }))
    }

    /// The stream of `piece`; `None`: what comes there is ignored.
    fn receiving(
        &mut self,
        piece: Piece<'_>,
        what: &str,
    ) -> Result<Option<&mut Stream>, Violation> {
        let closed = match self.streams.0.get_mut(&piece.stream) {
            Some(entry) if !entry.ended => return Ok(Some(entry)),
            Some(_) => Closed::HalfEnded,
            None => Closed::Forgotten,
        };
        self.http2.check_closed(piece.stream, what, closed)?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
