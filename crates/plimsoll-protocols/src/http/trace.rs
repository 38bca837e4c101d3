//! `--trace` for HTTP/1.1: writes a line for each head, and one for each body.

use plimsoll_engine::driver::{Direction, Tracer};
use plimsoll_wire::http1::{
    BodyFraming, BodyReader, FieldStorage, Http1Error, RequestHead, ResponseHead,
};

use crate::shared::frame_trace::{DirectionTrace, unreadable_line};

/// The maximum size of a head that is traced, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The tracer of both directions of one connection; it does not affect the connection.
#[derive(Debug, Default)]
pub(super) struct HeadTracer {
    sent: DirectionTrace,
    received: DirectionTrace,
    /// The bodies that are being sent and received.
    bodies: [Option<BodyReader>; 2],
    bodiless: bool,
}

impl HeadTracer {
    /// Creates a tracer. `bodiless`: whether responses have no body (HEAD).
    pub(super) fn new(bodiless: bool) -> HeadTracer {
        HeadTracer {
            bodiless,
            ..HeadTracer::default()
        }
    }
}

impl Tracer for HeadTracer {
    fn trace_bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>) {
        let bodiless = self.bodiless;
        let (half, body) = match direction {
            Direction::Sent => (&mut self.sent, &mut self.bodies[0]),
            Direction::Received => (&mut self.received, &mut self.bodies[1]),
        };
        half.read(bytes, lines, unreadable_line("HTTP/1.1"), |rest| {
            if let Some(open) = body {
                let taken = open.consume(rest, &mut |_| ())?;
                let line = open
                    .is_complete()
                    .then(|| format!("body, {} bytes", open.received_bytes()));
                if line.is_some() {
                    *body = None;
                }
                let has_moved = taken > 0 || line.is_some();
                return Ok::<_, Http1Error>(has_moved.then_some((taken, line)));
            }
            let mut space = FieldStorage::new();
            let (size, framing, line) = match direction {
                Direction::Sent => match RequestHead::parse(rest, MAX_HEAD_BYTES, &mut space)? {
                    None => return Ok(None),
                    Some(head) => {
                        let first = format!("{} {}", head.method, head.target);
                        (head.size, head.body, format_head(first, head.fields.iter()))
                    }
                },
                Direction::Received => match ResponseHead::parse(rest, &mut space)? {
                    None => return Ok(None),
                    Some(head) => {
                        let first = format!("{} {}", head.status, head.reason);
                        let body = if bodiless {
                            BodyFraming::Length(0)
                        } else {
                            head.body
                        };
                        (head.size, body, format_head(first, head.fields.iter()))
                    }
                },
            };
            *body = Some(BodyReader::new(framing, u64::MAX)?).filter(|body| !body.is_complete());
            Ok(Some((size, Some(line))))
        });
    }
}

/// Returns the line for a head. Values may be secret, so only the values of a few fields are shown.
fn format_head<'a>(first: String, fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    const SHOWN_FIELDS: [&str; 8] = [
        "content-length",
        "content-type",
        "content-encoding",
        "transfer-encoding",
        "connection",
        "host",
        "location",
        "retry-after",
    ];
    fields.fold(first, |line, (name, value)| {
        let lower = name.to_ascii_lowercase();
        if SHOWN_FIELDS.contains(&&*lower) {
            format!("{line}, {lower}: {}", super::checks::to_printable(value))
        } else {
            format!("{line}, {lower}")
        }
    })
}
