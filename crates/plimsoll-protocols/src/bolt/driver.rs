//! The client side of SOFABolt, for the engine's driver of framed protocols ([`FramedDriver`]).
//!
//! In the steady state a call costs one copy of the prepared request, with the call's id, and one check of the
//! response's fixed header. Nothing is allocated.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{Protocol, ProtocolError, Tracer};
use plimsoll_model::Outcome;

use super::frame::{BoltCommand, BoltFrame, BoltFrameError, BoltFrameKind};
use super::request::{BoltCall, PreparedBoltRequest, RefreshedRequest};
use super::status::SOFA_ERROR;
use super::trace::BoltFrameTracer;
use super::{Status, header, sofa};
use crate::framed::{FrameFormat, FramePurpose, FramedDriver, FramedSettings};
use crate::interface::prepare_error::RequestError;

/// SOFABolt with a prepared call.
#[derive(Clone, Debug)]
pub struct BoltProtocol {
    prepared: Arc<PreparedBoltRequest>,
    /// The request, if its header map has values that change during a run.
    live_request: Option<Arc<RefreshedRequest>>,
    /// The generation of the values that `prepared` contains.
    generation: u64,
}

/// The client side of one connection.
pub type BoltDriver = FramedDriver<BoltProtocol>;

impl BoltProtocol {
    /// Checks and encodes the call.
    ///
    /// # Errors
    /// Returns an error that names the part of the call that can't be sent.
    pub fn new(call: &BoltCall) -> Result<BoltProtocol, RequestError> {
        let live_request = RefreshedRequest::prepare(call)?.map(Arc::new);
        Ok(BoltProtocol {
            prepared: match &live_request {
                Some(renewing) => renewing.current().1,
                None => Arc::new(PreparedBoltRequest::new(call)?),
            },
            live_request,
            generation: 0,
        })
    }

    /// Returns the settings of connections that send this request.
    pub(super) fn connection_settings(&self) -> FramedSettings {
        self.prepared.settings
    }
}

impl Protocol for BoltProtocol {
    type Driver = BoltDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn new_driver(&self) -> BoltDriver {
        FramedDriver::new(self.clone(), self.prepared.settings)
    }

    fn new_tracer(&self) -> Option<Box<dyn Tracer>> {
        Some(Box::new(BoltFrameTracer::default()))
    }
}

impl FrameFormat for BoltProtocol {
    type Frame<'a> = BoltFrame<'a>;

    fn name(&self) -> &str {
        "Bolt"
    }

    #[inline]
    fn is_oneway(&self) -> bool {
        self.prepared.oneway
    }

    #[inline]
    fn take_changed_request(&mut self) -> Option<u32> {
        let renewing = self.live_request.as_ref()?;
        if renewing.generation() == self.generation {
            return None;
        }
        (self.generation, self.prepared) = renewing.current();
        Some(self.prepared.settings.request_bytes)
    }

    #[inline]
    fn write_request(
        &self,
        id: u32,
        waited: Option<Duration>,
        out: &mut Vec<u8>,
    ) -> Result<(), Outcome> {
        match waited {
            None => self.prepared.write(id, out),
            Some(waited) => self.prepared.write_with_remaining_time(id, waited, out),
        }
        Ok(())
    }

    #[inline]
    fn read<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<Option<(BoltFrame<'a>, usize)>, ProtocolError> {
        BoltFrame::parse(bytes, self.prepared.max_content).map_err(protocol_error)
    }

    /// Returns the length of `partial` plus one while the fixed header is incomplete, because the length of the fixed
    /// header depends on its contents.
    fn needed_length(&self, partial: &[u8]) -> Option<usize> {
        let length = BoltFrame::length(partial, self.prepared.max_content);
        length.ok()?.or(Some(partial.len() + 1))
    }

    #[inline]
    fn frame_purpose(frame: &BoltFrame<'_>) -> FramePurpose {
        match (frame.kind, frame.command) {
            (
                BoltFrameKind::Response { .. },
                BoltCommand::RpcResponse | BoltCommand::RpcRequest,
            ) => FramePurpose::Answer(frame.id),
            (BoltFrameKind::Response { .. }, _) => FramePurpose::HeartbeatAck(frame.id),
            (_, BoltCommand::GoAway) => FramePurpose::GoAway,
            (BoltFrameKind::Request { .. }, _) => FramePurpose::NeedsResponse,
            (BoltFrameKind::Oneway { .. }, _) => FramePurpose::Other,
        }
    }

    #[inline]
    fn outcome(&self, answer: &BoltFrame<'_>) -> Outcome {
        if answer.kind == (BoltFrameKind::Response { status: 0 }) && answer.header.is_empty() {
            Outcome::Ok
        } else {
            judge_answer(answer).0
        }
    }

    #[inline]
    fn content_bytes(&self, answer: Option<&BoltFrame<'_>>) -> u64 {
        let received = answer.map_or(0, |answer| answer.content.len());
        self.prepared.content_bytes + received as u64
    }

    fn failure_detail(&self, answer: &BoltFrame<'_>) -> Option<String> {
        judge_answer(answer).1.or_else(|| failure_text(answer))
    }

    fn write_response(
        &self,
        asking: &BoltFrame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let form = asking.layout.without_checksum();
        match asking.command {
            BoltCommand::Heartbeat => BoltFrame::heartbeat_ack(form, asking.id),
            _ => BoltFrame::status_response(form, asking.id, asking.codec, Status::NoProcessor),
        }
        .write(out);
        Ok(())
    }

    fn write_heartbeat(&self, id: u32, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        BoltFrame::heartbeat(self.prepared.layout, id).write(out);
        Ok(())
    }
}

/// Returns the outcome of a response that is not a plain success, and its reason.
#[inline(never)]
fn judge_answer(answer: &BoltFrame<'_>) -> (Outcome, Option<String>) {
    let BoltFrameKind::Response { status } = answer.kind else {
        return (Outcome::ProtocolError, None);
    };
    match Status::from_number(status) {
        Some(Status::Success) => match header::find(answer.header, header::RESPONSE_ERROR_KEY) {
            Ok(Some(b"true")) => (SOFA_ERROR, None),
            Ok(_) => (Outcome::Ok, None),
            Err(error) => (Outcome::BadAnswer, Some(error.to_string())),
        },
        Some(status) => (status.outcome(), None),
        None => (
            Status::Unknown.outcome(),
            Some(format!("status {status:#06x}, which does not exist")),
        ),
    }
}

#[cold]
fn protocol_error(error: BoltFrameError) -> ProtocolError {
    let outcome = match error {
        BoltFrameError::ContentTooLong { .. } => Outcome::MessageTooLarge,
        _ => Outcome::ProtocolError,
    };
    let hint = match error {
        BoltFrameError::Protocol(0x15) => " (a TLS alert: is the target sofas://?)",
        BoltFrameError::Protocol(b'H') => " (an HTTP server?)",
        _ => "",
    };
    ProtocolError {
        outcome,
        detail: format!("{error}{hint}"),
    }
}

/// Returns the text of a failed response.
fn failure_text(frame: &BoltFrame<'_>) -> Option<String> {
    if frame.codec == super::frame::codec::HESSIAN2 {
        return sofa::failure_text(frame.content);
    }
    let text = String::from_utf8_lossy(frame.content);
    Some(text.into_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
