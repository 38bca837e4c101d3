//! `--trace`: a connection's bytes as a line a head, and one for each body.

use plimsoll_engine::driver::{Direction, Tracer};
use plimsoll_wire::http1::{Body, FieldSpace, Framing, Http1Error, RequestHead, ResponseHead};

/// Of a head's bytes that are kept until it is whole, at most.
const MOST: usize = 64 * 1024;

/// Reads along with one connection, both ways, and never disturbs it.
#[derive(Debug, Default)]
pub(super) struct HeadTracer {
    sent: Half,
    received: Half,
    bodiless: bool,
}

impl HeadTracer {
    /// `bodiless`: answers have no body.
    pub(super) fn new(bodiless: bool) -> HeadTracer {
        HeadTracer {
            bodiless,
            ..HeadTracer::default()
        }
    }
}

#[derive(Debug, Default)]
struct Half {
    pending: Vec<u8>,
    body: Option<Body>,
    lost: bool,
}

impl Tracer for HeadTracer {
    fn bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>) {
        let bodiless = self.bodiless;
        let half = match direction {
            Direction::Sent => &mut self.sent,
            Direction::Received => &mut self.received,
        };
        if half.lost {
            return;
        }
        half.pending.extend_from_slice(bytes);
        if let Err(error) = half.read(direction, bodiless, lines) {
            lines.push(format!("not HTTP/1.1 ({error}); no more is read"));
            half.lost = true;
        }
    }
}

impl Half {
    fn read(
        &mut self,
        direction: Direction,
        bodiless: bool,
        lines: &mut Vec<String>,
    ) -> Result<(), Http1Error> {
        let mut at = 0;
        while at < self.pending.len() {
            if let Some(body) = &mut self.body {
                at += body.take(&self.pending[at..], &mut |_| ())?;
                if !body.is_over() {
                    break;
                }
                lines.push(format!("body, {} bytes", body.seen()));
                self.body = None;
                continue;
            }
            let rest = &self.pending[at..];
            let mut space = FieldSpace::new();
            let (size, framing, line) = match direction {
                Direction::Sent => match RequestHead::parse(rest, MOST, &mut space)? {
                    None => break,
                    Some(head) => {
                        let first = format!("{} {}", head.method, head.target);
                        (head.size, head.body, line(first, head.fields.iter()))
                    }
                },
                Direction::Received => match ResponseHead::parse(rest, &mut space)? {
                    None => break,
                    Some(head) => {
                        let first = format!("{} {}", head.status, head.reason);
                        let body = match bodiless {
                            true => Framing::Length(0),
                            false => head.body,
                        };
                        (head.size, body, line(first, head.fields.iter()))
                    }
                },
            };
            lines.push(line);
            at += size;
            self.body = Some(Body::new(framing, u64::MAX)?).filter(|body| !body.is_over());
        }
        self.pending.drain(..at);
        Ok(())
    }
}

/// Values may be secret: they are not shown but for a few fields.
fn line<'a>(first: String, fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    const SHOWN: [&str; 8] = [
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
        match SHOWN.contains(&&*lower) {
            true => format!("{line}, {lower}: {}", super::checks::printable(value)),
            false => format!("{line}, {lower}"),
        }
    })
}
