//! `--trace`: prints one line for each frame of a connection.

use plimsoll_engine::driver::{Direction, Tracer};
use plimsoll_plugin::{
    Codec, Decoded, Fault, Frame, Kind, MAX_FRAME, Sender, without_debug_messages,
};

use crate::traced::{Halves, not};

/// A tracer that reads a copy of both directions of a connection and never disturbs it.
#[derive(Debug)]
pub struct FrameTracer {
    codec: Codec,
    halves: Halves,
}

impl FrameTracer {
    /// Creates a tracer that decodes frames with the plugin.
    pub fn new(codec: Codec) -> FrameTracer {
        FrameTracer {
            codec,
            halves: Halves::default(),
        }
    }
}

impl Tracer for FrameTracer {
    fn bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>) {
        let sender = match direction {
            Direction::Sent => Sender::Client,
            Direction::Received => Sender::Server,
        };
        let codec = &self.codec;
        self.halves[direction as usize].read(bytes, lines, not(codec.name()), |bytes| {
            // Only the driver's calls of the plugin should print debug messages.
            let decoded = without_debug_messages(|| codec.decode(bytes, sender, MAX_FRAME));
            Ok::<_, Fault>(match decoded? {
                Decoded::Frame(frame) => Some((frame.length, Some(line(&frame)))),
                Decoded::More(_) => None,
            })
        });
    }
}

/// Describes a frame: `id 7 request, payload 11 bytes, 22 bytes`.
fn line(frame: &Frame) -> String {
    let what = match frame.kind {
        Kind::Request { timeout: None } => "request".to_owned(),
        Kind::Request {
            timeout: Some(timeout),
        } => format!("request, timeout {} ms", timeout.as_millis()),
        Kind::Oneway => "oneway".to_owned(),
        Kind::Response { status: 0 } => "response".to_owned(),
        Kind::Response { status } => format!("response with status {status}"),
        Kind::Heartbeat => "heartbeat".to_owned(),
        Kind::HeartbeatAck => "heartbeat ack".to_owned(),
        Kind::GoAway => "goaway".to_owned(),
    };
    format!(
        "id {} {what}, payload {} bytes, {} bytes",
        frame.id,
        frame.payload.len(),
        frame.length
    )
}
