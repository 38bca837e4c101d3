//! Everything but answers: settings, windows, resets, GOAWAY, and what happens to a
//! server that breaks the rules.

use plimsoll_engine::driver::{Event, ProtocolError};
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::http2::{
    ErrorCode, Frame, FrameHead, HeaderBlock, MAX_WINDOW, Settings, Violation, flags, kind,
    setting, write,
};

use super::streams::State;
use super::text::printable;
use super::{Calls, Connection, Stage};

/// The server speaks another version.
const NOT_SPOKEN: Outcome = Outcome::coded("NOT_HTTP2");

/// Of a peer that does not speak HTTP/2, how much of its first line is shown. Bytes.
const NAMED_START: usize = 80;

impl<C: Calls> Connection<C> {
    /// The server can't open a stream, nor use one that we have not (RFC 9113, 5.1.1).
    pub(super) fn check_not_idle(&self, id: u32, what: &str) -> Result<(), Violation> {
        if id % 2 == 1 && id < self.next_id {
            return Ok(());
        }
        let why = format!("{what} on stream {id}, which was never opened (RFC 9113, 5.1)");
        Err(Violation::connection(ErrorCode::PROTOCOL_ERROR, why))
    }

    /// What may come before SETTINGS, and inside a header block.
    #[cold]
    pub(super) fn check_order(&self, head: FrameHead) -> Result<(), Violation> {
        let name = || {
            kind::name(head.kind())
                .unwrap_or("a frame of unknown type")
                .to_owned()
        };
        if self.stage == Stage::Greeting
            && (head.kind() != kind::SETTINGS || head.flags() & flags::ACK != 0)
        {
            let why = format!("{} before the server's SETTINGS (RFC 9113, 3.4)", name());
            return Err(Violation::connection(ErrorCode::PROTOCOL_ERROR, why));
        }
        if let Some(block) = &self.block
            && (head.kind() != kind::CONTINUATION || head.stream() != block.stream)
        {
            let why = format!(
                "{} on stream {} inside the header block of stream {} (RFC 9113, 4.3)",
                name(),
                head.stream(),
                block.stream
            );
            return Err(Violation::connection(ErrorCode::PROTOCOL_ERROR, why));
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn rare(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let id = head.stream();
        match Frame::parse(head, payload)? {
            Frame::Headers {
                fragment,
                end_stream,
                ..
            } => {
                self.check_not_idle(id, "HEADERS")?;
                self.block = Some(Box::new(HeaderBlock::new(id, end_stream, fragment)));
                Ok(())
            }
            Frame::Continuation {
                fragment,
                end_headers,
            } => {
                let Some(mut block) = self.block.take() else {
                    let why =
                        format!("CONTINUATION on stream {id} after no HEADERS (RFC 9113, 6.10)");
                    return Err(Violation::connection(ErrorCode::PROTOCOL_ERROR, why));
                };
                block.push(fragment)?;
                if end_headers {
                    let (id, end_stream) = (block.stream, block.end_stream);
                    return C::header_block(self, id, block.bytes(), end_stream, now, out, events);
                }
                self.block = Some(block);
                Ok(())
            }
            Frame::Settings(settings) => {
                self.settings(settings)?;
                write::settings_ack(out);
                Ok(())
            }
            Frame::Ping { data } => {
                write::ping_ack(out, data);
                Ok(())
            }
            Frame::WindowUpdate { increment } if id == 0 => {
                self.connection_window = self
                    .connection_window
                    .checked_add(increment)
                    .filter(|window| *window <= MAX_WINDOW)
                    .ok_or_else(|| window_overflow(0))?;
                self.windows_opened = true;
                Ok(())
            }
            Frame::WindowUpdate { increment } => {
                self.check_not_idle(id, "WINDOW_UPDATE")?;
                if let Some(stream) = self.streams.find(id)
                    && stream.state == State::Open
                {
                    stream.send_window = stream
                        .send_window
                        .checked_add_unsigned(increment)
                        .ok_or_else(|| window_overflow(id))?;
                    self.windows_opened = true;
                }
                Ok(())
            }
            Frame::ResetStream { code } => {
                self.check_not_idle(id, "RST_STREAM")?;
                self.reset_by_peer(id, code, events);
                Ok(())
            }
            Frame::GoAway {
                last_stream,
                code,
                debug,
            } => self.goaway(last_stream, code, debug, events),
            Frame::PushPromise { .. } => Err(Violation::connection(
                ErrorCode::PROTOCOL_ERROR,
                "PUSH_PROMISE, and push is disabled (RFC 9113, 8.4)",
            )),
            Frame::SettingsAck
            | Frame::PingAck { .. }
            | Frame::Priority
            | Frame::Unknown
            | Frame::Data { .. } => Ok(()),
        }
    }

    pub(super) fn settings(&mut self, settings: Settings<'_>) -> Result<(), Violation> {
        for (id, value) in settings.iter() {
            match id {
                setting::HEADER_TABLE_SIZE => self.peer_table.allow(value),
                setting::ENABLE_PUSH if value != 0 => {
                    return Err(Violation::connection(
                        ErrorCode::PROTOCOL_ERROR,
                        "ENABLE_PUSH from a server (RFC 9113, 6.5.2)",
                    ));
                }
                setting::MAX_CONCURRENT_STREAMS => self.peer_max_streams = value,
                setting::INITIAL_WINDOW_SIZE => self.move_stream_windows(value)?,
                // Frames are never larger than what every server takes; of our field
                // list, the server will say so itself.
                _ => {}
            }
        }
        if self.stage == Stage::Greeting {
            self.stage = Stage::Ready;
        }
        Ok(())
    }

    /// A new INITIAL_WINDOW_SIZE moves the windows of open streams by the difference
    /// (RFC 9113, 6.9.2).
    pub(super) fn move_stream_windows(&mut self, initial: u32) -> Result<(), Violation> {
        let change = i64::from(initial) - i64::from(self.peer_initial_window);
        for stream in self.streams.iter_open() {
            let moved = i64::from(stream.send_window) + change;
            stream.send_window = i32::try_from(moved).map_err(|_| window_overflow(0))?;
        }
        self.peer_initial_window = initial;
        self.windows_opened = true;
        Ok(())
    }

    pub(super) fn reset_by_peer(&mut self, id: u32, code: ErrorCode, events: &mut Vec<Event>) {
        let Some(stream) = self.streams.find(id) else {
            return;
        };
        match stream.state {
            State::Open => {}
            State::Cancelled => return self.streams.close(id, State::ResetByPeer),
            State::Abandoned | State::ResetByPeer | State::Ended => return,
        }
        let detail = format!("RST_STREAM with {code}");
        let outcome = C::outcome_of_reset(code);
        self.end(id, outcome, Some(detail), State::ResetByPeer, events);
    }

    /// RFC 9113, 6.8.
    pub(super) fn goaway(
        &mut self,
        last_stream: u32,
        code: ErrorCode,
        debug: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if last_stream > self.last_stream {
            let why = format!(
                "GOAWAY up to stream {last_stream} after one up to {} (RFC 9113, 6.8)",
                self.last_stream
            );
            return Err(Violation::connection(ErrorCode::PROTOCOL_ERROR, why));
        }
        self.last_stream = last_stream;
        self.stage = Stage::Draining;
        let dropped: Vec<u32> = self
            .streams
            .iter_open()
            .map(|stream| stream.id)
            .filter(|id| *id > last_stream)
            .collect();
        for id in &dropped {
            self.end(*id, Outcome::Goaway, None, State::Abandoned, events);
            self.last_reset = self.last_reset.max(*id);
        }
        if code != ErrorCode::NO_ERROR || !dropped.is_empty() {
            let message = if debug.is_empty() {
                String::new()
            } else {
                format!(", {}", printable(debug))
            };
            self.detail(
                Outcome::Goaway,
                format!("GOAWAY with {code}{message}"),
                events,
            );
        }
        Ok(())
    }

    /// A stream error ends one call, a connection error all.
    #[cold]
    pub(super) fn contain(
        &mut self,
        violation: Violation,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let id = violation.stream;
        if id == 0 || self.check_not_idle(id, "").is_err() {
            return Err(violation);
        }
        match self.streams.find(id).map(|stream| stream.state) {
            Some(State::Open) => {
                let detail = violation.to_string();
                self.end(
                    id,
                    Outcome::ProtocolError,
                    Some(detail),
                    State::Abandoned,
                    events,
                );
                self.reset(id, violation.code, State::Abandoned, out);
            }
            Some(State::ResetByPeer) => self.reset(id, violation.code, State::Abandoned, out),
            _ => {}
        }
        Ok(())
    }

    /// Sees whether the first bytes are HTTP/2 at all. If not, whoever sent them would
    /// not understand a GOAWAY, and none is sent (RFC 9113, 3.4).
    #[cold]
    pub(super) fn check_greeting(&mut self, input: &[u8]) -> Result<(), ProtocolError> {
        let mut start = self.partial.clone();
        start.extend_from_slice(&input[..input.len().min(NAMED_START)]);
        // A line of text may go on and is worth showing whole. A TLS alert is all that comes.
        let is_whole = start.len() >= FrameHead::LEN
            || start.contains(&b'\n')
            || !start.first().is_some_and(|b| (b' '..=b'~').contains(b));
        match not_http2(&start) {
            Some(error) if is_whole => {
                self.stage = Stage::Failed;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Sends GOAWAY to a server that broke the protocol.
    #[cold]
    pub(super) fn fail(&mut self, violation: &Violation, out: &mut Vec<u8>) -> ProtocolError {
        self.stage = Stage::Failed;
        write::goaway(out, 0, violation.code, violation.why.as_bytes());
        ProtocolError {
            outcome: Outcome::ProtocolError,
            detail: violation.to_string(),
        }
    }
}

/// RFC 9113, 6.9.1 and 6.9.2.
#[cold]
pub(super) fn window_overflow(stream: u32) -> Violation {
    let why = "a window over 2147483647 bytes (RFC 9113, 6.9.1)";
    Violation::stream(stream, ErrorCode::FLOW_CONTROL_ERROR, why)
}

#[cold]
pub(crate) fn closed(when: &str) -> ProtocolError {
    let detail = format!("the server closed the connection {when}");
    ProtocolError {
        outcome: Outcome::ConnectionClosed,
        detail,
    }
}

/// Whether a server's first bytes are of another protocol, and which.
pub(crate) fn not_http2(start: &[u8]) -> Option<ProtocolError> {
    let shown = || {
        let line = start
            .split(|b| matches!(b, b'\r' | b'\n'))
            .next()
            .unwrap_or_default();
        printable(&line[..line.len().min(NAMED_START)])
    };
    let detail = match start {
        [b'H', b'T', b'T', b'P', b'/', ..] => {
            format!("the server answered in HTTP/1: `{}`", shown())
        }
        [0x14..=0x17, 3, ..] => {
            "the server answered in TLS; the target is spoken to in plaintext".to_owned()
        }
        // A frame's length comes first, and SETTINGS are short: a zero.
        [b' '..=b'~', ..] => format!("the server answered `{}`, not HTTP/2 frames", shown()),
        _ => return None,
    };
    Some(ProtocolError {
        outcome: NOT_SPOKEN,
        detail,
    })
}
