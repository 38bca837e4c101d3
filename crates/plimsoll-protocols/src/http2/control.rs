//! Handles frames that are not part of a response (SETTINGS, WINDOW_UPDATE, RST_STREAM and GOAWAY), and servers
//! that violate the protocol.

use plimsoll_engine::driver::{Event, ProtocolError};
use plimsoll_model::Outcome;
use plimsoll_wire::http2::{ControlEvent, ErrorCode, FrameHeader, Violation, setting};

use super::streams::CallStreamState;
use super::text::to_printable;
use super::{Connection, DriverEffects, StreamCalls};

/// The outcome if the server uses another protocol, or another version of HTTP.
pub(crate) const NOT_HTTP2: Outcome = Outcome::coded("NOT_HTTP2");

/// The maximum length of the excerpt from the first line of a peer that does not use HTTP/2, in bytes.
const MAX_EXCERPT_BYTES: usize = 80;

impl<C: StreamCalls> Connection<C> {
    #[inline(never)]
    pub(super) fn handle_control_frame(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        match (self.http2).process_control_frame(head, payload, &mut self.streams, to.out)? {
            ControlEvent::Block(block) => {
                return C::on_header_block(self, block.payload(), to);
            }
            ControlEvent::Settings(settings) => {
                for size in settings.values(setting::HEADER_TABLE_SIZE) {
                    self.peer_table.set_allowed_size(size);
                }
                self.windows_opened = true;
            }
            ControlEvent::WindowGrown => self.windows_opened = true,
            ControlEvent::Reset { stream, code } => self.handle_reset(stream, code, to.events),
            ControlEvent::GoAway {
                last_stream,
                code,
                debug,
            } => self.handle_goaway(last_stream, code, debug, to.events),
            ControlEvent::Acknowledged | ControlEvent::Pong(_) | ControlEvent::Nothing => {}
        }
        Ok(())
    }

    fn handle_reset(&mut self, id: u32, code: ErrorCode, events: &mut Vec<Event>) {
        let Some(stream) = self.streams.find(id) else {
            return;
        };
        match stream.state {
            CallStreamState::Open => {}
            CallStreamState::Cancelled => {
                return self.streams.close(id, CallStreamState::ResetByPeer);
            }
            CallStreamState::Abandoned | CallStreamState::ResetByPeer | CallStreamState::Ended => {
                return;
            }
        }
        let detail = format!("RST_STREAM with {code}");
        let outcome = C::outcome_from_reset(code);
        let before = events.len();
        self.end_call(
            id,
            outcome,
            Some(detail),
            CallStreamState::ResetByPeer,
            events,
        );
        if code == ErrorCode::REFUSED_STREAM {
            mark_calls_unprocessed(&mut events[before..]);
        }
    }

    /// Handles GOAWAY (RFC 9113, 6.8): streams above `last_stream` were not processed and may be retried.
    fn handle_goaway(
        &mut self,
        last_stream: u32,
        code: ErrorCode,
        debug: &[u8],
        events: &mut Vec<Event>,
    ) {
        let dropped: Vec<u32> = self
            .streams
            .iter_open()
            .map(|stream| stream.id)
            .filter(|id| *id > last_stream)
            .collect();
        let before = events.len();
        for id in &dropped {
            self.end_call(
                *id,
                Outcome::Goaway,
                None,
                CallStreamState::Abandoned,
                events,
            );
        }
        mark_calls_unprocessed(&mut events[before..]);
        if code != ErrorCode::NO_ERROR || !dropped.is_empty() {
            let message = if debug.is_empty() {
                String::new()
            } else {
                format!(", {}", to_printable(debug))
            };
            self.report_detail(
                Outcome::Goaway,
                format!("GOAWAY with {code}{message}"),
                events,
            );
        }
    }

    /// Handles a violation: a stream error ends one call; a connection error, which ends all calls, is
    /// returned.
    #[cold]
    pub(super) fn handle_violation(
        &mut self,
        violation: Violation,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        let violation = self.http2.check_violation_scope(violation)?;
        let id = violation.stream;
        match self.streams.get(id).map(|stream| stream.state) {
            Some(CallStreamState::Open) => {
                let detail = violation.to_string();
                let outcome = Outcome::ProtocolError;
                self.end_call(
                    id,
                    outcome,
                    Some(detail),
                    CallStreamState::Abandoned,
                    to.events,
                );
                self.reset_stream(id, violation.code, CallStreamState::Abandoned, to.out);
            }
            Some(CallStreamState::ResetByPeer) => {
                self.reset_stream(id, violation.code, CallStreamState::Abandoned, to.out)
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks whether the first bytes are HTTP/2 at all. If not, no GOAWAY is sent, since the peer would not
    /// understand it (RFC 9113, 3.4).
    #[cold]
    pub(super) fn check_first_bytes(&mut self, input: &[u8]) -> Result<(), ProtocolError> {
        let mut start = self.http2.partial_frame().to_vec();
        start.extend_from_slice(&input[..input.len().min(MAX_EXCERPT_BYTES)]);
        // A short line of text may be incomplete, so the error waits for more bytes. Other bytes, such as a TLS alert,
        // cause the error at once.
        let is_whole = start.len() >= FrameHeader::LEN
            || start.contains(&b'\n')
            || !start.first().is_some_and(|b| (b' '..=b'~').contains(b));
        match other_protocol_error(&start) {
            Some(error) if is_whole => {
                self.http2.close();
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Sends GOAWAY to a server that violated the protocol, and returns the error to report.
    #[cold]
    pub(super) fn fail_connection(
        &mut self,
        violation: &Violation,
        out: &mut Vec<u8>,
    ) -> ProtocolError {
        self.http2.close_with_error(violation, out);
        ProtocolError {
            // ENHANCE_YOUR_CALM is used only for header blocks over the limit.
            outcome: match violation.code {
                ErrorCode::ENHANCE_YOUR_CALM => Outcome::HeadTooLarge,
                _ => Outcome::ProtocolError,
            },
            detail: violation.to_string(),
        }
    }
}

/// Marks the calls that `events` end as not processed by the server, so that they may be retried (RFC 9113,
/// 8.7).
fn mark_calls_unprocessed(events: &mut [Event]) {
    for event in events {
        if let Event::Done(done) = event {
            *event = Event::Unprocessed(*done);
        }
    }
}

#[cold]
pub(crate) fn connection_closed_error(when: &str) -> ProtocolError {
    let detail = format!("the server closed the connection {when}");
    ProtocolError {
        outcome: Outcome::ConnectionClosed,
        detail,
    }
}

/// Returns an error that names the other protocol if a server's first bytes are not HTTP/2.
pub(crate) fn other_protocol_error(start: &[u8]) -> Option<ProtocolError> {
    let shown = || {
        let line = start
            .split(|b| matches!(b, b'\r' | b'\n'))
            .next()
            .unwrap_or_default();
        to_printable(&line[..line.len().min(MAX_EXCERPT_BYTES)])
    };
    let detail = match start {
        [b'H', b'T', b'T', b'P', b'/', ..] => {
            format!("the server answered in HTTP/1: `{}`", shown())
        }
        [0x14..=0x17, 3, ..] => {
            "the server answered in TLS, but the target is plaintext".to_owned()
        }
        // An HTTP/2 frame starts with its length, and the first byte of a short SETTINGS frame's length is
        // zero.
        [b' '..=b'~', ..] => format!("the server answered `{}`, not HTTP/2 frames", shown()),
        _ => return None,
    };
    Some(ProtocolError {
        outcome: NOT_HTTP2,
        detail,
    })
}
