//! One connection's side of HTTP/2, towards a client or towards an upstream.
//!
//! Frames come out as [`Event`]s one by one, each with the key of the call that its stream
//! belongs to. What needs no other connection is answered here: SETTINGS, PING, frames on
//! streams that are over, streams that break a rule.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_wire::http2::{
    self, DEFAULT_MAX_FRAME, DEFAULT_WINDOW, ErrorCode, Frame, FrameHead, HeaderBlock,
    MAX_STREAM_ID, PREFACE, Settings, Violation, flags, kind, setting, write,
};

use super::Fields;
use super::fields::{FieldReader, FieldWriter};
use super::window::{ReceiveWindow, widen};

/// What the other side may keep in the table that we decode with. Bytes.
pub(super) const TABLE_SIZE: u32 = 4096;

/// What waits of one stream at most. Bytes.
const STREAM_WINDOW: u32 = 64 << 10;

/// The same of a stream whose bytes have gone on as they came, so far. Bytes.
const FLOWING_WINDOW: u32 = 256 << 10;

/// What waits of a connection's streams together. Bytes.
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Streams that an upstream is given before its SETTINGS.
const STREAMS_BEFORE_SETTINGS: u32 = 100;

/// The data of our PINGs.
const BEAT: [u8; 8] = *b"sidecar\0";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sidecar) enum Side {
    /// The client is at the other end.
    Server,
    /// The service is, or the next sidecar.
    Client,
}

/// What a frame was for; `key` is the call's.
#[derive(Debug)]
pub(in crate::sidecar) enum Event<'a> {
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
    GoAway { last_stream: u32 },
}

#[derive(Debug)]
struct Stream {
    key: u64,
    send_window: i64,
    receive_window: ReceiveWindow,
    /// The peer has sent END_STREAM.
    ended: bool,
}

#[derive(Debug)]
pub(in crate::sidecar) struct Session {
    side: Side,
    greeting_seen: bool,
    settings_seen: bool,
    block: Option<HeaderBlock>,
    reader: FieldReader,
    writer: FieldWriter,
    streams: HashMap<u32, Stream>,
    /// The highest id that was opened, by the peer or by us.
    highest: u32,
    send_window: i64,
    receive_window: ReceiveWindow,
    peer_initial_window: u32,
    /// Streams that the peer takes at once.
    max_streams: u32,
    /// A PING of ours has not been answered.
    pub(in crate::sidecar) is_beating: bool,
}

impl Session {
    pub(in crate::sidecar) fn new(side: Side) -> Session {
        Session {
            side,
            greeting_seen: side == Side::Client,
            settings_seen: false,
            block: None,
            reader: FieldReader::new(),
            writer: FieldWriter::default(),
            streams: HashMap::new(),
            highest: 0,
            send_window: i64::from(DEFAULT_WINDOW),
            receive_window: ReceiveWindow::new(CONNECTION_WINDOW),
            peer_initial_window: DEFAULT_WINDOW,
            max_streams: STREAMS_BEFORE_SETTINGS,
            is_beating: false,
        }
    }

    pub(in crate::sidecar) fn side(&self) -> Side {
        self.side
    }

    /// The greeting, which need not wait for the peer's (RFC 9113, 3.4).
    /// `max_streams`: what a client may have open at once.
    pub(in crate::sidecar) fn open(&self, max_streams: u32, out: &mut Vec<u8>) {
        let window = (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW);
        match self.side {
            Side::Server => {
                let most = (setting::MAX_CONCURRENT_STREAMS, max_streams);
                write::settings(out, &[most, window]);
            }
            Side::Client => {
                out.extend_from_slice(PREFACE);
                write::settings(out, &[(setting::ENABLE_PUSH, 0), window]);
            }
        }
        write::window_update(out, 0, CONNECTION_WINDOW - DEFAULT_WINDOW);
    }

    /// The peer has sent its SETTINGS.
    pub(in crate::sidecar) fn is_greeted(&self) -> bool {
        self.settings_seen
    }

    /// Streams open.
    pub(in crate::sidecar) fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Streams that may be open at once, here as the client.
    pub(in crate::sidecar) fn places(&self) -> usize {
        self.max_streams as usize
    }

    /// Whether another stream may be opened now, here as the client.
    pub(in crate::sidecar) fn has_place(&self) -> bool {
        self.settings_seen && self.streams.len() < self.max_streams as usize && !self.is_used_up()
    }

    /// Every stream id was used.
    pub(in crate::sidecar) fn is_used_up(&self) -> bool {
        self.highest >= MAX_STREAM_ID - 1
    }

    /// The calls of the open streams that are above `last`.
    pub(in crate::sidecar) fn keys_above(&self, last: u32) -> Vec<u64> {
        let above = self.streams.iter().filter(|(id, _)| **id > last);
        above.map(|(_, stream)| stream.key).collect()
    }

    // ---- sending ----

    /// Opens a stream, here as the client.
    pub(in crate::sidecar) fn begin(
        &mut self,
        key: u64,
        fields: &Fields,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> u32 {
        let stream = match self.highest {
            0 => 1,
            highest => highest + 2,
        };
        self.highest = stream;
        self.insert(stream, key, false);
        self.headers(stream, fields, end_stream, out);
        stream
    }

    /// Takes a client's stream in.
    pub(in crate::sidecar) fn adopt(&mut self, stream: u32, key: u64, ended: bool) {
        self.insert(stream, key, ended);
    }

    fn insert(&mut self, stream: u32, key: u64, ended: bool) {
        let entry = Stream {
            key,
            send_window: i64::from(self.peer_initial_window),
            receive_window: ReceiveWindow::new(STREAM_WINDOW),
            ended,
        };
        self.streams.insert(stream, entry);
    }

    pub(in crate::sidecar) fn headers(
        &mut self,
        stream: u32,
        fields: &Fields,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) {
        write::header_block(out, stream, self.writer.block(fields), end_stream);
    }

    /// What may be sent on a stream now. Bytes.
    pub(in crate::sidecar) fn room(&self, stream: u32) -> usize {
        let window = self.streams.get(&stream).map_or(0, |s| s.send_window);
        window.min(self.send_window).max(0) as usize
    }

    /// `data`: within the [`Session::room`] and one frame.
    pub(in crate::sidecar) fn data(
        &mut self,
        stream: u32,
        data: &[u8],
        end_stream: bool,
        out: &mut Vec<u8>,
    ) {
        let length = data.len() as i64;
        self.send_window -= length;
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send_window -= length;
        }
        write::data(out, stream, data, end_stream);
    }

    /// The bytes that came last on `stream` were passed on at once.
    pub(in crate::sidecar) fn flows(&mut self, stream: u32) {
        if let Some(entry) = self.streams.get_mut(&stream)
            && entry.receive_window.is_half_used()
        {
            entry.receive_window.widen_to(FLOWING_WINDOW);
        }
    }

    /// Bytes that came on `stream` have been passed on, or never will be: as many may
    /// come again.
    pub(in crate::sidecar) fn give_back(&mut self, stream: u32, length: usize, out: &mut Vec<u8>) {
        let length = length as u32;
        if let Some(increment) = self.receive_window.give_back(length) {
            write::window_update(out, 0, increment);
        }
        if let Some(entry) = self.streams.get_mut(&stream)
            && !entry.ended
            && let Some(increment) = entry.receive_window.give_back(length)
        {
            write::window_update(out, stream, increment);
        }
    }

    /// Ends a stream at once; what still comes on it is ignored.
    pub(in crate::sidecar) fn reset(&mut self, stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
        write::reset_stream(out, stream, code);
        self.streams.remove(&stream);
    }

    /// Both sides have ended it, or one has reset it. Whether the peer has ended it.
    pub(in crate::sidecar) fn forget(&mut self, stream: u32) -> bool {
        self.streams.remove(&stream).is_none_or(|entry| entry.ended)
    }

    pub(in crate::sidecar) fn beat(&mut self, out: &mut Vec<u8>) {
        write::head(out, BEAT.len(), kind::PING, 0, 0);
        out.extend_from_slice(&BEAT);
        self.is_beating = true;
    }

    /// Announces the end, so that no request is lost, or gives it (RFC 9113, 6.8).
    pub(in crate::sidecar) fn say_goodbye(&self, last: bool, out: &mut Vec<u8>) {
        let stream = if last { self.highest } else { MAX_STREAM_ID };
        write::goaway(out, stream, ErrorCode::NO_ERROR, b"");
    }

    /// Says why the connection ends.
    pub(in crate::sidecar) fn fail(&self, violation: &Violation, out: &mut Vec<u8>) {
        let highest = match self.side {
            Side::Server => self.highest,
            Side::Client => 0,
        };
        write::goaway(out, highest, violation.code, violation.why.as_bytes());
    }

    // ---- receiving ----

    /// Takes frames off the front of `input` up to the next event; `None`: the rest is no
    /// whole frame. What the sidecar answers itself is appended to `out`.
    ///
    /// # Errors
    /// The peer broke the protocol: the connection is of no more use.
    pub(in crate::sidecar) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event<'a>>, Violation> {
        if !self.greeting_seen {
            let seen = input.len().min(PREFACE.len());
            if input[..seen] != PREFACE[..seen] {
                return Err(broken("no HTTP/2 connection preface (RFC 9113, 3.4)"));
            }
            if seen < PREFACE.len() {
                return Ok(None);
            }
            *input = &input[seen..];
            self.greeting_seen = true;
        }
        while let Some((head, payload)) = http2::split(input, DEFAULT_MAX_FRAME)? {
            match self.frame(head, payload, out) {
                Ok(None) => {}
                Ok(event) => return Ok(event),
                Err(violation) if violation.stream == 0 => return Err(violation),
                Err(violation) => {
                    if let Some(entry) = self.streams.remove(&violation.stream) {
                        write::reset_stream(out, violation.stream, violation.code);
                        return Ok(Some(Event::Reset {
                            key: entry.key,
                            code: violation.code,
                        }));
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
        let id = head.stream();
        if !self.settings_seen && (head.kind() != kind::SETTINGS || head.has(flags::ACK)) {
            return Err(broken("a frame before SETTINGS (RFC 9113, 3.4)"));
        }
        if let Some(block) = &self.block
            && (head.kind() != kind::CONTINUATION || id != block.stream)
        {
            return Err(broken(
                "another frame inside a header block (RFC 9113, 4.3)",
            ));
        }
        match Frame::parse(head, payload)? {
            Frame::Data { data, end_stream } => self.take_data(head, data, end_stream, out),
            Frame::Headers {
                fragment,
                end_stream,
                end_headers: true,
            } => self.take_block(id, fragment, end_stream),
            Frame::Headers {
                fragment,
                end_stream,
                ..
            } => {
                self.block = Some(HeaderBlock::new(id, end_stream, fragment));
                Ok(None)
            }
            Frame::Continuation {
                fragment,
                end_headers,
            } => {
                let Some(mut block) = self.block.take() else {
                    return Err(broken("CONTINUATION after no HEADERS (RFC 9113, 6.10)"));
                };
                block.push(fragment)?;
                if end_headers {
                    return self.take_block(block.stream, block.bytes(), block.end_stream);
                }
                self.block = Some(block);
                Ok(None)
            }
            Frame::ResetStream { code } => {
                self.check_opened(id)?;
                let entry = self.streams.remove(&id);
                Ok(entry.map(|entry| Event::Reset {
                    key: entry.key,
                    code,
                }))
            }
            Frame::Settings(settings) => {
                self.take_settings(settings)?;
                write::settings_ack(out);
                Ok(Some(Event::Room))
            }
            Frame::Ping { data } => {
                write::ping_ack(out, data);
                Ok(None)
            }
            Frame::PingAck { data } => {
                self.is_beating &= data != BEAT;
                Ok(None)
            }
            Frame::WindowUpdate { increment } if id == 0 => {
                self.send_window = widen(self.send_window, increment.into(), 0)?;
                Ok(Some(Event::Room))
            }
            Frame::WindowUpdate { increment } => {
                self.check_opened(id)?;
                let Some(entry) = self.streams.get_mut(&id) else {
                    return Ok(None);
                };
                entry.send_window = widen(entry.send_window, increment.into(), id)?;
                Ok(Some(Event::Room))
            }
            Frame::GoAway { last_stream, .. } => Ok(Some(Event::GoAway { last_stream })),
            Frame::PushPromise { .. } => {
                Err(broken("PUSH_PROMISE, and push is disabled (RFC 9113, 8.4)"))
            }
            Frame::Priority | Frame::SettingsAck | Frame::Unknown => Ok(None),
        }
    }

    fn take_data<'a>(
        &mut self,
        head: FrameHead,
        data: &'a [u8],
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event<'a>>, Violation> {
        let (id, length) = (head.stream(), head.length());
        self.check_opened(id)?;
        self.receive_window.take(0, length)?;
        let Some(entry) = self.streams.get_mut(&id) else {
            // Reset or refused before the peer knew: it will not be taken.
            self.give_back(id, length as usize, out);
            return Ok(None);
        };
        let problem = if entry.ended {
            let why = "DATA after END_STREAM (RFC 9113, 5.1)";
            Err(Violation::stream(id, ErrorCode::STREAM_CLOSED, why))
        } else {
            entry.receive_window.take(id, length)
        };
        if let Err(violation) = problem {
            self.give_back(id, length as usize, out);
            return Err(violation);
        }
        entry.ended = end_stream;
        let key = entry.key;
        let padding = length as usize - data.len();
        if padding > 0 {
            self.give_back(id, padding, out);
        }
        Ok(Some(Event::Data {
            key,
            data,
            end_stream,
        }))
    }

    /// A whole header block. It is decoded whatever becomes of it: the table must be kept.
    fn take_block(
        &mut self,
        id: u32,
        block: &[u8],
        end_stream: bool,
    ) -> Result<Option<Event<'static>>, Violation> {
        let fields = self.reader.read(block).map_err(|error| {
            Violation::connection(ErrorCode::COMPRESSION_ERROR, error.to_string())
        })?;
        if let Some(entry) = self.streams.get_mut(&id) {
            if entry.ended {
                let why = "HEADERS after END_STREAM (RFC 9113, 5.1)";
                return Err(Violation::stream(id, ErrorCode::STREAM_CLOSED, why));
            }
            entry.ended = end_stream;
            return Ok(Some(Event::Headers {
                key: entry.key,
                fields,
                end_stream,
            }));
        }
        if self.side == Side::Server && id > self.highest && id % 2 == 1 {
            self.highest = id;
            return Ok(Some(Event::Opened {
                stream: id,
                fields,
                end_stream,
            }));
        }
        self.check_opened(id)?;
        Ok(None)
    }

    /// # Errors
    /// The stream was never opened (RFC 9113, 5.1).
    fn check_opened(&self, id: u32) -> Result<(), Violation> {
        if id % 2 == 1 && id <= self.highest {
            return Ok(());
        }
        Err(broken(format!(
            "a frame on stream {id}, which was never opened (RFC 9113, 5.1)"
        )))
    }

    fn take_settings(&mut self, settings: Settings<'_>) -> Result<(), Violation> {
        if !self.settings_seen {
            self.settings_seen = true;
            self.max_streams = u32::MAX;
        }
        for (id, value) in settings.iter() {
            match id {
                setting::HEADER_TABLE_SIZE => self.writer.allow(value),
                setting::MAX_CONCURRENT_STREAMS => self.max_streams = value,
                setting::INITIAL_WINDOW_SIZE => {
                    let by = i64::from(value) - i64::from(self.peer_initial_window);
                    for stream in self.streams.values_mut() {
                        stream.send_window = widen(stream.send_window, by, 0)?;
                    }
                    self.peer_initial_window = value;
                }
                setting::ENABLE_PUSH if value != 0 && self.side == Side::Client => {
                    return Err(broken("ENABLE_PUSH from a server (RFC 9113, 6.5.2)"));
                }
                // Frames are never larger than what everyone takes.
                _ => {}
            }
        }
        Ok(())
    }
}

#[cold]
fn broken(why: impl Into<String>) -> Violation {
    Violation::connection(ErrorCode::PROTOCOL_ERROR, why)
}

#[cfg(test)]
mod tests;
