//! `--trace`: prints one line for each frame of a connection.

use plimsoll_engine::driver::{Direction, Tracer};

use super::frame::{Command, Form, Frame, FrameError, Kind, MAX_CONTENT};
use super::{Status, header};
use crate::traced::{Halves, not};

/// A tracer that reads a copy of both directions of a connection and never disturbs it.
#[derive(Debug, Default)]
pub struct FrameTracer(Halves);

impl Tracer for FrameTracer {
    fn bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>) {
        self.0[direction as usize].read(bytes, lines, not("a Bolt frame"), |bytes| {
            let parsed = Frame::parse(bytes, MAX_CONTENT)?;
            let line = |(frame, length)| (length, Some(line(&frame, length)));
            Ok::<_, FrameError>(parsed.map(line))
        });
    }
}

/// Describes a frame: `id 7 v1 request, timeout 3000 ms, SofaRequest, service=peer.HelloService:1.0, 297
/// bytes`.
fn line(frame: &Frame<'_>, length: usize) -> String {
    let form = match frame.form {
        Form::V1 => "v1",
        form if form.has_crc() => "v2 with CRC",
        Form::V2 { .. } => "v2",
    };
    let what = match (frame.command, frame.kind) {
        (Command::Heartbeat, Kind::Response { .. }) => "heartbeat ack".to_owned(),
        (Command::Heartbeat, _) => "heartbeat".to_owned(),
        (Command::GoAway, _) => "goaway".to_owned(),
        (_, Kind::Request { timeout }) => format!("request, timeout {timeout} ms"),
        (_, Kind::Oneway { .. }) => "oneway".to_owned(),
        (_, Kind::Response { status }) => match Status::from_number(status) {
            Some(status) => format!("response {}", status.name()),
            None => format!("response with status {status:#06x}"),
        },
    };
    let class = String::from_utf8_lossy(frame.class);
    let class = class.rsplit('.').next().unwrap_or_default();
    let mut line = format!("id {} {form} {what}", frame.id);
    if !class.is_empty() {
        line += &format!(", {class}");
    }
    for key in [header::SERVICE.as_bytes(), header::RESPONSE_ERROR] {
        if let Ok(Some(value)) = header::find(frame.header, key) {
            line += &format!(", {}={}", key.escape_ascii(), value.escape_ascii());
        }
    }
    line + &format!(", {length} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_lists_frames_and_reports_garbage_once() {
        let (mut tracer, mut lines, mut wire) = (FrameTracer::default(), Vec::new(), Vec::new());
        Frame::heartbeat(Form::V2_CRC, 7).write(&mut wire);
        Frame::bare_response(Form::V1, 8, 1, Status::ServerThreadpoolBusy).write(&mut wire);
        for byte in &wire {
            tracer.bytes(Direction::Received, &[*byte], &mut lines);
        }
        tracer.bytes(Direction::Received, b"HTTP", &mut lines);
        tracer.bytes(Direction::Received, b"HTTP", &mut lines);
        assert_eq!(
            lines,
            [
                "id 7 v2 heartbeat, 24 bytes",
                "id 8 v1 response SERVER_THREADPOOL_BUSY, 20 bytes",
                "not a Bolt frame (protocol byte 0x48, expected 0x01 or 0x02); no more is read",
            ]
        );
    }
}
