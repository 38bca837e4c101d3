//! `--trace`: prints one line for each frame of a connection.

use plimsoll_engine::driver::{Direction, Tracer};
use plimsoll_plugin::{
    Codec, CodecFault, DEFAULT_MAX_FRAME_BYTES, DecodeResult, Frame, FrameKind, SenderRole,
    without_debug_messages,
};

use crate::shared::frame_trace::{DirectionTraces, unreadable_line};

/// A tracer that reads a copy of both directions of a connection and never disturbs it.
#[derive(Debug)]
pub struct PluginFrameTracer {
    codec: Codec,
    directions: DirectionTraces,
}

impl PluginFrameTracer {
    /// Creates a tracer that decodes frames with the plugin.
    pub fn new(codec: Codec) -> PluginFrameTracer {
        PluginFrameTracer {
            codec,
            directions: DirectionTraces::default(),
        }
    }
}

impl Tracer for PluginFrameTracer {
    fn trace_bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>) {
        let sender = match direction {
            Direction::Sent => SenderRole::Client,
            Direction::Received => SenderRole::Server,
        };
        let codec = &self.codec;
        self.directions[direction as usize].read(
            bytes,
            lines,
            unreadable_line(codec.name()),
            |bytes| {
                // The plugin should print debug messages for the driver's calls only.
                let decoded =
                    without_debug_messages(|| codec.decode(bytes, sender, DEFAULT_MAX_FRAME_BYTES));
                Ok::<_, CodecFault>(match decoded? {
                    DecodeResult::Frame(frame) => {
                        Some((frame.length, Some(describe_frame(&frame))))
                    }
                    DecodeResult::More(_) => None,
                })
            },
        );
    }
}

/// Describes a frame: `id 7 request, payload 11 bytes, 22 bytes`.
fn describe_frame(frame: &Frame) -> String {
    let what = match frame.kind {
        FrameKind::Request { timeout: None } => "request".to_owned(),
        FrameKind::Request {
            timeout: Some(timeout),
        } => format!("request, timeout {} ms", timeout.as_millis()),
        FrameKind::Oneway => "oneway".to_owned(),
        FrameKind::Response { status: 0 } => "response".to_owned(),
        FrameKind::Response { status } => format!("response with status {status}"),
        FrameKind::Heartbeat => "heartbeat".to_owned(),
        FrameKind::HeartbeatAck => "heartbeat ack".to_owned(),
        FrameKind::GoAway => "goaway".to_owned(),
    };
    format!(
        "id {} {what}, payload {} bytes, {} bytes",
        frame.id,
        frame.payload.len(),
        frame.length
    )
}
