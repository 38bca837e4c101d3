//! The client side of a codec plugin's protocol, for the engine's driver of framed protocols
//! ([`FramedDriver`]).
//!
//! Invariant: whatever the plugin returns, at most one connection ends because of it. In the steady state a call costs
//! two calls of the plugin: one to write the request, one to read the response.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{Protocol, ProtocolError, Tracer};
use plimsoll_model::Outcome;
use plimsoll_plugin::{
    Codec, CodecFault, DecodeResult, Frame, FrameKind, Match, NewFrameKind, SenderRole,
};

use super::request::{PluginCall, PreparedPluginRequest};
use super::trace::PluginFrameTracer;
use crate::framed::{FrameFormat, FramePurpose, FramedDriver, FramedSettings};
use crate::interface::prepare_error::RequestError;

/// The outcome of a call for which the plugin failed, or returned an invalid result.
const PLUGIN_FAILED: Outcome = Outcome::coded("PLUGIN_FAILED");

/// A plugin's protocol with a prepared call.
#[derive(Clone, Debug)]
pub struct PluginProtocol {
    prepared: Arc<PreparedPluginRequest>,
    /// The number of bytes that the plugin needs to decode the partial frame that it was passed last.
    needed_bytes: Option<usize>,
    /// Whether the server's first bytes were recognised as the plugin's protocol.
    is_recognised: bool,
}

/// The client side of one connection.
pub type PluginDriver = FramedDriver<PluginProtocol>;

impl PluginProtocol {
    /// Checks the call, and that the plugin has the functions that calls need.
    ///
    /// # Errors
    /// Returns an error that names the part of the call that can't be sent.
    pub fn new(codec: &Codec, call: &PluginCall) -> Result<PluginProtocol, RequestError> {
        Ok(PluginProtocol {
            prepared: Arc::new(PreparedPluginRequest::new(codec, call)?),
            needed_bytes: None,
            is_recognised: false,
        })
    }

    /// Returns the settings of connections that send this request.
    pub(super) fn connection_settings(&self) -> FramedSettings {
        self.prepared.settings
    }

    /// Takes over the request of `other`, and keeps what is known of the connection.
    pub(super) fn replace_request(&mut self, other: &PluginProtocol) {
        self.prepared = Arc::clone(&other.prepared);
    }

    /// Returns true once the connection's first bytes are recognised, and false if there are too few.
    fn recognise_protocol(&mut self, bytes: &[u8]) -> Result<bool, ProtocolError> {
        let codec = &self.prepared.codec;
        match codec.matches(bytes, SenderRole::Server) {
            Ok(Match::Yes) => {
                self.is_recognised = true;
                Ok(true)
            }
            Ok(Match::More) if bytes.len() < self.prepared.max_frame => Ok(false),
            Ok(Match::More | Match::No) => Err(ProtocolError {
                outcome: Outcome::ProtocolError,
                detail: format!(
                    "the server's bytes are not {}: they begin with \"{}\"",
                    codec.name(),
                    bytes[..bytes.len().min(20)].escape_ascii()
                ),
            }),
            Err(fault) => Err(self.codec_fault_error(fault)),
        }
    }

    #[cold]
    fn codec_fault_error(&self, fault: CodecFault) -> ProtocolError {
        let outcome = match fault {
            CodecFault::TooLong { .. } => Outcome::MessageTooLarge,
            CodecFault::Malformed => Outcome::ProtocolError,
            _ => PLUGIN_FAILED,
        };
        ProtocolError {
            outcome,
            detail: format!("{}: {fault}", self.prepared.codec.name()),
        }
    }
}

impl Protocol for PluginProtocol {
    type Driver = PluginDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn new_driver(&self) -> PluginDriver {
        FramedDriver::new(self.clone(), self.prepared.settings)
    }

    fn new_tracer(&self) -> Option<Box<dyn Tracer>> {
        Some(Box::new(PluginFrameTracer::new(
            self.prepared.codec.clone(),
        )))
    }
}

impl FrameFormat for PluginProtocol {
    type Frame<'a> = Frame;

    fn name(&self) -> &str {
        self.prepared.codec.name()
    }

    #[inline]
    fn is_oneway(&self) -> bool {
        self.prepared.oneway
    }

    #[inline]
    fn write_request(
        &self,
        id: u32,
        _: Option<Duration>,
        out: &mut Vec<u8>,
    ) -> Result<(), Outcome> {
        self.prepared.write(id, out).map_err(|_| PLUGIN_FAILED)
    }

    #[inline]
    fn read(&mut self, bytes: &[u8]) -> Result<Option<(Frame, usize)>, ProtocolError> {
        if !self.is_recognised && !self.recognise_protocol(bytes)? {
            return Ok(None);
        }
        let limit = self.prepared.max_frame;
        match self.prepared.codec.decode(bytes, SenderRole::Server, limit) {
            Ok(DecodeResult::Frame(frame)) => {
                self.needed_bytes = None;
                let length = frame.length;
                Ok(Some((frame, length)))
            }
            Ok(DecodeResult::More(needed)) => {
                self.needed_bytes = needed;
                Ok(None)
            }
            Err(fault) => Err(self.codec_fault_error(fault)),
        }
    }

    fn needed_length(&self, _partial: &[u8]) -> Option<usize> {
        self.needed_bytes
    }

    /// Classifies a frame. Ids over 32 bits belong to no call, since this driver assigns smaller ones.
    #[inline]
    fn frame_purpose(frame: &Frame) -> FramePurpose {
        match (frame.kind, u32::try_from(frame.id)) {
            (FrameKind::Response { .. }, Ok(id)) => FramePurpose::Answer(id),
            (FrameKind::HeartbeatAck, Ok(id)) => FramePurpose::HeartbeatAck(id),
            (FrameKind::GoAway, _) => FramePurpose::GoAway,
            (FrameKind::Heartbeat | FrameKind::Request { .. }, _) => FramePurpose::NeedsResponse,
            _ => FramePurpose::Other,
        }
    }

    #[inline]
    fn outcome(&self, answer: &Frame) -> Outcome {
        match answer.kind {
            FrameKind::Response { status: 0 } => Outcome::Ok,
            _ => Outcome::AnswerStatus,
        }
    }

    fn failure_detail(&self, answer: &Frame) -> Option<String> {
        let FrameKind::Response { status } = answer.kind else {
            return None;
        };
        Some(format!("status {status} of {}", self.name()))
    }

    fn write_response(&self, asking: &Frame, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let what = match asking.kind {
            FrameKind::Heartbeat => NewFrameKind::HeartbeatAck,
            _ => NewFrameKind::Unreachable,
        };
        let codec = &self.prepared.codec;
        let made = codec.make_frame(what, asking.id, asking.note, &[], out);
        made.map(drop)
            .map_err(|fault| self.codec_fault_error(fault))
    }

    fn write_heartbeat(&self, id: u32, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let codec = &self.prepared.codec;
        let made = codec.make_frame(NewFrameKind::Heartbeat, id.into(), 0, &[], out);
        made.map(drop).map_err(|fault| ProtocolError {
            outcome: PLUGIN_FAILED,
            detail: format!("{}: no heartbeat: {fault}", codec.name()),
        })
    }
}

#[cfg(test)]
mod tests;
