//! `--trace`: prints one line for each frame of a connection.

use plimsoll_engine::driver::{Direction, Tracer};

use super::frame::{
    BoltCommand, BoltFrame, BoltFrameError, BoltFrameKind, DEFAULT_MAX_CONTENT_BYTES, FrameLayout,
};
use super::{Status, header};
use crate::shared::frame_trace::{DirectionTraces, unreadable_line};

/// A tracer that reads a copy of both directions of a connection and never disturbs it.
#[derive(Debug, Default)]
pub struct BoltFrameTracer(DirectionTraces);

impl Tracer for BoltFrameTracer {
    fn trace_bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>) {
        self.0[direction as usize].read(bytes, lines, unreadable_line("a Bolt frame"), |bytes| {
            let parsed = BoltFrame::parse(bytes, DEFAULT_MAX_CONTENT_BYTES)?;
            let line = |(frame, length)| (length, Some(describe_frame(&frame, length)));
            Ok::<_, BoltFrameError>(parsed.map(line))
        });
    }
}

/// Describes a frame: `id 7 v1 request, timeout 3000 ms, SofaRequest, service=peer.HelloService:1.0, 297
/// bytes`.
fn describe_frame(frame: &BoltFrame<'_>, length: usize) -> String {
    let form = match frame.layout {
        FrameLayout::V1 => "v1",
        form if form.has_crc() => "v2 with CRC",
        FrameLayout::V2 { .. } => "v2",
    };
    let what = match (frame.command, frame.kind) {
        (BoltCommand::Heartbeat, BoltFrameKind::Response { .. }) => "heartbeat ack".to_owned(),
        (BoltCommand::Heartbeat, _) => "heartbeat".to_owned(),
        (BoltCommand::GoAway, _) => "goaway".to_owned(),
        (_, BoltFrameKind::Request { timeout }) => format!("request, timeout {timeout} ms"),
        (_, BoltFrameKind::Oneway { .. }) => "oneway".to_owned(),
        (_, BoltFrameKind::Response { status }) => match Status::from_number(status) {
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
    for key in [header::SERVICE_KEY.as_bytes(), header::RESPONSE_ERROR_KEY] {
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
        let (mut tracer, mut lines, mut wire) =
            (BoltFrameTracer::default(), Vec::new(), Vec::new());
        BoltFrame::heartbeat(FrameLayout::V2_CRC, 7).write(&mut wire);
        BoltFrame::status_response(FrameLayout::V1, 8, 1, Status::ServerThreadpoolBusy)
            .write(&mut wire);
        for byte in &wire {
            tracer.trace_bytes(Direction::Received, &[*byte], &mut lines);
        }
        tracer.trace_bytes(Direction::Received, b"HTTP", &mut lines);
        tracer.trace_bytes(Direction::Received, b"HTTP", &mut lines);
        assert_eq!(
            lines,
            [
                "id 7 v2 heartbeat, 24 bytes",
                "id 8 v1 response SERVER_THREADPOOL_BUSY, 20 bytes",
                "not a Bolt frame (protocol byte 0x48, expected 0x01 or 0x02); the rest is not traced",
            ]
        );
    }
}
