//! The request that every call sends, built or checked by the plugin before the first call.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_model::plan::{Call, Target};
use plimsoll_model::rows::template::{MetadataField, VariationSettings};
use plimsoll_plugin::{
    Codec, CodecFault, DecodeResult, FrameKind, NewFrameKind, SenderRole, without_debug_messages,
};

use super::varying::VaryingPluginCall;
use crate::framed::FramedSettings;
use crate::interface::prepare_error::RequestError;
use crate::journey::JourneyPlan;
use plimsoll_wire::hex;

/// A call in a protocol that a codec plugin implements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginCall {
    /// The shared object.
    pub codec: PathBuf,
    /// The protocol's name, as the plugin gives it.
    pub protocol: String,
    /// A complete request frame, with any id.
    pub frame: Vec<u8>,
    /// The limit of calls in flight on one connection; `None`: no limit.
    pub in_flight: Option<u32>,
    /// Idle time after which a heartbeat is sent; `None`: never.
    pub heartbeat: Option<Duration>,
    /// Maximum size of a frame, in bytes. Calls with larger frames fail with `MESSAGE_TOO_LARGE`.
    pub max_frame: usize,
    /// A payload that differs from user to user; only steps of a journey have one.
    pub varying: Option<Box<VaryingPluginCall>>,
    /// The journey that each user makes; the other fields are then those of its first step.
    pub journey: Option<Box<JourneyPlan>>,
}

impl Call for PluginCall {
    fn protocol_and_call_name(&self) -> (&'static str, Cow<'_, str>) {
        match &self.journey {
            Some(journey) => ("plugin", journey.name().into()),
            None => ("plugin", self.protocol.as_str().into()),
        }
    }

    fn variation_settings(&self) -> Option<&VariationSettings> {
        self.journey.as_ref().map(|journey| &journey.variation)
    }

    fn header_fields(&self) -> (&[(String, String)], &[MetadataField]) {
        self.journey
            .as_ref()
            .map_or((&[], &[]), |journey| journey.fields())
    }

    fn query_string_secrets(&self) -> Vec<(String, String)> {
        let journey = self.journey.as_ref();
        journey.map_or_else(Vec::new, |journey| journey.query_secrets.clone())
    }

    fn other_targets(&self) -> Vec<(&Target, bool)> {
        let journey = self.journey.as_ref();
        journey.map_or_else(Vec::new, |journey| journey.other_targets().collect())
    }

    fn other_targets_mut(&mut self) -> Vec<&mut Target> {
        let journey = self.journey.as_mut();
        journey.map_or_else(Vec::new, |journey| journey.other_targets_mut())
    }

    fn max_calls_per_journey(&self) -> Option<u32> {
        Some(self.journey.as_ref()?.max_calls())
    }

    fn calls_per_user(&self) -> Option<u32> {
        self.journey.as_ref().map(|_| 1)
    }
}

/// The input that a request is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestContent<'a> {
    /// A payload, which the plugin wraps in a frame.
    Payload(&'a [u8]),
    /// A complete frame.
    Frame(&'a [u8]),
    /// A complete frame in hexadecimal digits; white space is ignored.
    Hex(&'a str),
}

fn not_a_request_error(codec: &Codec, fault: &CodecFault) -> RequestError {
    RequestError::new(format_args!("not a request of {}: {fault}", codec.name()))
}

/// Returns the request frame for `content`, checked by the plugin.
///
/// # Errors
/// Returns an error if `content` is not a request of the plugin's protocol.
pub fn build_frame(codec: &Codec, content: RequestContent<'_>) -> Result<Vec<u8>, RequestError> {
    without_debug_messages(|| build_checked_frame(codec, content))
}

fn build_checked_frame(
    codec: &Codec,
    content: RequestContent<'_>,
) -> Result<Vec<u8>, RequestError> {
    let frame = match content {
        RequestContent::Frame(frame) => frame.to_vec(),
        RequestContent::Hex(text) => {
            let digits: String = text.split_whitespace().collect();
            hex::decode(&digits).ok_or_else(|| {
                RequestError::new("not hexadecimal: write two digits per byte, such as 7801")
            })?
        }
        RequestContent::Payload(payload) => {
            let mut frame = Vec::new();
            match codec.make_frame(NewFrameKind::Request, 1, 0, payload, &mut frame) {
                Ok(true) => frame,
                Ok(false) => {
                    return Err(RequestError::new(format_args!(
                        "{} can't build requests from a payload: give a whole frame",
                        codec.name()
                    )));
                }
                Err(fault) => return Err(not_a_request_error(codec, &fault)),
            }
        }
    };
    check_single_request(codec, &frame)?;
    Ok(frame)
}

/// Checks that `frame` is exactly one request. Returns the note that the plugin attached to it, and whether it
/// expects a response.
fn check_single_request(codec: &Codec, frame: &[u8]) -> Result<(u64, bool), RequestError> {
    let name = codec.name();
    let limit = frame.len().max(plimsoll_plugin::DEFAULT_MAX_FRAME_BYTES);
    let seen = match codec.decode(frame, SenderRole::Client, limit) {
        Ok(DecodeResult::Frame(seen)) => seen,
        Ok(DecodeResult::More(needed)) => {
            let (length, more) = (frame.len(), "more".to_owned());
            let needed = needed.map_or(more, |n| n.to_string());
            return Err(RequestError::new(format_args!(
                "not a whole request of {name}: {length} bytes, but {needed} are needed"
            )));
        }
        Err(fault) => return Err(not_a_request_error(codec, &fault)),
    };
    if seen.length < frame.len() {
        let more = frame.len() - seen.length;
        return Err(RequestError::new(format_args!(
            "{more} bytes follow the request: give one frame of {name}"
        )));
    }
    let kind = match seen.kind {
        FrameKind::Request { .. } => return Ok((seen.note, true)),
        FrameKind::Oneway => return Ok((seen.note, false)),
        FrameKind::Response { .. } => "response",
        FrameKind::Heartbeat => "heartbeat",
        FrameKind::HeartbeatAck => "heartbeat acknowledgement",
        FrameKind::GoAway => "goaway",
    };
    Err(RequestError::new(format_args!(
        "a {kind} of {name}, not a request"
    )))
}

/// A request's bytes and the settings of its connections.
#[derive(Debug)]
pub(super) struct PreparedPluginRequest {
    pub(super) codec: Codec,
    frame: Vec<u8>,
    note: u64,
    pub(super) oneway: bool,
    /// The settings that all connections share.
    pub(super) settings: FramedSettings,
    pub(super) max_frame: usize,
}

impl PreparedPluginRequest {
    pub(super) fn new(
        codec: &Codec,
        call: &PluginCall,
    ) -> Result<PreparedPluginRequest, RequestError> {
        // No call is made yet, so the plugin's debug messages would mislead.
        without_debug_messages(|| PreparedPluginRequest::new_without_debug_messages(codec, call))
    }

    fn new_without_debug_messages(
        codec: &Codec,
        call: &PluginCall,
    ) -> Result<PreparedPluginRequest, RequestError> {
        if call.in_flight == Some(0) {
            return Err(RequestError::zero_in_flight_error());
        }
        let (note, wants_answer) = check_single_request(codec, &call.frame)?;
        let fault = |fault| not_a_request_error(codec, &fault);
        let mut renumbered = Vec::new();
        codec
            .encode(&call.frame, note, 1, &mut renumbered)
            .map_err(fault)?;
        match codec.decode(&renumbered, SenderRole::Client, renumbered.len().max(1)) {
            Ok(DecodeResult::Frame(seen)) if seen.id == 1 && seen.length == renumbered.len() => {}
            other => {
                let got = match other {
                    Ok(DecodeResult::Frame(seen)) => {
                        format!("a frame of {} bytes with id {}", seen.length, seen.id)
                    }
                    Ok(DecodeResult::More(_)) => "a part of a frame".to_owned(),
                    Err(fault) => format!("bytes that it rejects: {fault}"),
                };
                return Err(RequestError::new(format_args!(
                    "the plugin {} does not renumber requests: when asked for id 1, it wrote {got}",
                    codec.name()
                )));
            }
        }
        // If the protocol has no heartbeats, the driver sends none.
        let mut beat = Vec::new();
        let has_heartbeats = codec
            .make_frame(NewFrameKind::Heartbeat, 1, 0, &[], &mut beat)
            .map_err(fault)?;
        let heartbeat = call.heartbeat.filter(|_| has_heartbeats);
        Ok(PreparedPluginRequest {
            frame: call.frame.clone(),
            note,
            oneway: !wants_answer,
            settings: FramedSettings::new(call.in_flight, heartbeat, &call.frame),
            max_frame: call.max_frame,
            codec: codec.clone(),
        })
    }

    /// Appends the request with `id`.
    ///
    /// # Errors
    /// Returns an error if the plugin fails; nothing is appended then.
    #[inline]
    pub(super) fn write(&self, id: u32, out: &mut Vec<u8>) -> Result<(), CodecFault> {
        self.codec.encode(&self.frame, self.note, id.into(), out)
    }
}
