//! `--trace`: prints one line for each frame of a connection.
//!
//! The tracer reads a copy of both directions and never affects the connection: unreadable bytes end the trace with a
//! line that says so. Values that may be secret are redacted.

use std::fmt::Write as _;

use plimsoll_engine::driver::{Direction, Tracer};
use plimsoll_model::formats::redaction::{is_secret_field_name, is_secret_field_value};
use plimsoll_wire::hpack::Decoder;
use plimsoll_wire::http2::{
    self, FrameHeader, HeaderBlock, Http2Frame, PREFACE, Violation, flags, kind, setting,
};

use super::text::to_printable;
use crate::shared::frame_trace::DirectionTraces;

/// The maximum size of a frame in the format of HTTP/2 (RFC 9113, 4.2). The driver enforces the limit that was
/// negotiated.
const MAX_FRAME_BYTES: u32 = (1 << 24) - 1;

/// The maximum size of a header block that is decoded, in bytes.
const MAX_BLOCK_BYTES: usize = 1 << 20;

/// A tracer of one connection's HTTP/2 frames.
#[derive(Debug, Default)]
pub struct Http2FrameTracer {
    directions: DirectionTraces,
    fields: [FieldTracer; 2],
    preface_sent: bool,
}

impl Tracer for Http2FrameTracer {
    fn trace_bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>) {
        let (arrow, is_begun) = match direction {
            Direction::Sent => ('>', &mut self.preface_sent),
            Direction::Received => ('<', &mut true),
        };
        let fields = &mut self.fields[direction as usize];
        let unreadable = |violation| format!("{arrow} unreadable: {violation}");
        self.directions[direction as usize].read(bytes, lines, unreadable, |bytes| {
            if !*is_begun && bytes.len() < PREFACE.len() && PREFACE.starts_with(bytes) {
                return Ok(None);
            }
            if !std::mem::replace(is_begun, true) && bytes.starts_with(PREFACE) {
                let line = format!("{arrow} connection preface");
                return Ok(Some((PREFACE.len(), Some(line))));
            }
            let mut rest = bytes;
            let frame = http2::split_frame(&mut rest, MAX_FRAME_BYTES)?;
            Ok::<_, Violation>(frame.map(|(head, payload)| {
                let line = fields.describe_frame(arrow, head, payload);
                (bytes.len() - rest.len(), Some(line))
            }))
        });
    }
}

/// The header blocks of one direction of a connection, and their decoder.
#[derive(Debug)]
struct FieldTracer {
    decoder: Decoder,
    block: Option<HeaderBlock>,
}

impl Default for FieldTracer {
    fn default() -> FieldTracer {
        FieldTracer {
            // Accepts table sizes up to the largest that a peer's SETTINGS frame is likely to allow.
            decoder: Decoder::new(1 << 16, 1 << 20),
            block: None,
        }
    }
}

impl FieldTracer {
    fn describe_frame(&mut self, arrow: char, head: FrameHeader, payload: &[u8]) -> String {
        let name = kind::name(head.kind())
            .map_or_else(|| format!("type {:#04x}", head.kind()), str::to_owned);
        let mut line = format!(
            "{arrow} {name} stream={} length={}",
            head.stream(),
            head.length()
        );
        for flag in flag_names(head) {
            line.push(' ');
            line.push_str(flag);
        }
        let frame = match Http2Frame::parse(head, payload) {
            Ok(frame) => frame,
            Err(violation) => {
                line.push_str(&format!(" ({violation})"));
                return line;
            }
        };
        match frame {
            Http2Frame::Settings(settings) => {
                for (id, value) in settings.iter() {
                    let _ = match setting::name(id) {
                        Some(name) => write!(line, " {name}={value}"),
                        None => write!(line, " {id:#06x}={value}"),
                    };
                }
            }
            Http2Frame::ResetStream { code } => line.push_str(&format!(" {code}")),
            Http2Frame::GoAway {
                last_stream,
                code,
                debug,
            } => {
                line.push_str(&format!(
                    " last-stream={last_stream} {code} {}",
                    to_printable(debug)
                ));
            }
            Http2Frame::WindowUpdate { increment } => line.push_str(&format!(" +{increment}")),
            Http2Frame::Headers { fragment, .. } => self.begin_fields(head, fragment, &mut line),
            Http2Frame::PushPromise {
                promised, fragment, ..
            } => {
                line.push_str(&format!(" promised={promised}"));
                self.begin_fields(head, fragment, &mut line);
            }
            Http2Frame::Continuation {
                fragment,
                end_headers,
            } => {
                if let Some(mut block) = self.block.take() {
                    match block.push(fragment, MAX_BLOCK_BYTES) {
                        Ok(()) if end_headers => {
                            self.append_fields(block.payload().bytes, &mut line)
                        }
                        Ok(()) => self.block = Some(block),
                        Err(violation) => line.push_str(&format!(" ({violation})")),
                    }
                }
            }
            _ => {}
        }
        line
    }

    fn begin_fields(&mut self, head: FrameHeader, fragment: &[u8], line: &mut String) {
        if head.has_flag(flags::END_HEADERS) {
            self.append_fields(fragment, line)
        } else {
            self.block = Some(HeaderBlock::new(head.stream_payload(fragment)))
        }
    }

    fn append_fields(&mut self, block: &[u8], line: &mut String) {
        let result = self.decoder.decode(block, |field| {
            let name = to_printable(field.name);
            let value = to_printable(field.value);
            let value = if field.sensitive || is_secret(&name, &value) {
                "<redacted>"
            } else {
                &value
            };
            let _ = write!(line, " | {name}: {value}");
        });
        if let Err(error) = result {
            line.push_str(&format!(" ({error})"));
        }
    }
}

fn flag_names(head: FrameHeader) -> impl Iterator<Item = &'static str> {
    let known: &[(u8, &str)] = match head.kind() {
        kind::DATA => &[(flags::END_STREAM, "END_STREAM"), (flags::PADDED, "PADDED")],
        kind::HEADERS => &[
            (flags::END_STREAM, "END_STREAM"),
            (flags::END_HEADERS, "END_HEADERS"),
            (flags::PADDED, "PADDED"),
            (flags::PRIORITY, "PRIORITY"),
        ],
        kind::CONTINUATION | kind::PUSH_PROMISE => &[(flags::END_HEADERS, "END_HEADERS")],
        kind::SETTINGS | kind::PING => &[(flags::ACK, "ACK")],
        _ => &[],
    };
    known
        .iter()
        .filter(move |(flag, _)| head.flags() & flag != 0)
        .map(|(_, name)| *name)
}

/// Returns whether a field carries credentials, or a binary value that may. Pseudo-header fields such as `:authority`
/// carry none; secrets in a `:path` are masked where the line is printed.
fn is_secret(name: &str, value: &str) -> bool {
    let is_pseudo = name.starts_with(':');
    name.ends_with("-bin")
        || !is_pseudo && (is_secret_field_name(name) || is_secret_field_value(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_wire::hpack::Encoder;
    use plimsoll_wire::http2::{EndStream, ErrorCode, write};

    #[test]
    fn frames_are_traced_individually_without_secrets() {
        let mut bytes = http2::PREFACE.to_vec();
        write::settings(
            &mut bytes,
            &[(setting::INITIAL_WINDOW_SIZE, 70_000), (0x99, 1)],
        );
        let block = Encoder::default().encode([
            (":path", "/a.S/M"),
            (":authority", "a:1"),
            ("authorization", "Bearer hunter2"),
            ("x-pass", "hunter2"),
            ("x-custom", "Bearer hunter2"),
            ("x-trace-bin", "aHVudGVyMg=="),
            ("x-api-key", "hunter2"),
            ("x-plain", "shown"),
        ]);
        write::header_block(&mut bytes, 1, &block, EndStream(false));
        write::data(&mut bytes, 1, b"hunter2", EndStream(true));
        write::reset_stream(&mut bytes, 1, ErrorCode::CANCEL);
        write::goaway(&mut bytes, 0, ErrorCode::NO_ERROR, b"so\x1blong");
        let expected = [
            "> connection preface".to_owned(),
            "> SETTINGS stream=0 length=12 INITIAL_WINDOW_SIZE=70000 0x0099=1".to_owned(),
            format!(
                "> HEADERS stream=1 length={} END_HEADERS | :path: /a.S/M | :authority: a:1 | \
                 authorization: <redacted> | x-pass: <redacted> | x-custom: <redacted> | x-trace-bin: <redacted> | x-api-key: <redacted> | x-plain: shown",
                block.len()
            ),
            "> DATA stream=1 length=7 END_STREAM".to_owned(),
            "> RST_STREAM stream=1 length=4 CANCEL".to_owned(),
            "> GOAWAY stream=0 length=15 last-stream=0 NO_ERROR so\u{fffd}long".to_owned(),
        ];
        for step in 1..bytes.len() {
            let mut tracer = Http2FrameTracer::default();
            let mut lines = Vec::new();
            for chunk in bytes.chunks(step) {
                tracer.trace_bytes(Direction::Sent, chunk, &mut lines);
            }
            assert_eq!(lines, expected, "in chunks of {step}");
        }
    }

    #[test]
    fn tracing_garbage_does_not_panic() {
        let mut tracer = Http2FrameTracer::default();
        let mut lines = Vec::new();
        tracer.trace_bytes(Direction::Received, &[0xff; 100_000], &mut lines);
        tracer.trace_bytes(
            Direction::Received,
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            &mut lines,
        );
        assert!(lines.len() < 10_000);
    }
}
