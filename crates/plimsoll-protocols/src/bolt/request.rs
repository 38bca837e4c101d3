//! Prepares a request: it is encoded once, and only its id changes from call to call.
//!
//! With a checksum, the bytes of the checksum change too. CRC-32 is linear over GF(2), so the checksum of a frame with
//! a given id equals the checksum of the frame with id 0, XORed with a value for each byte of the id: four table
//! look-ups instead of a pass over the frame.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_model::plan::{Call, Target};
use plimsoll_model::rows::template::{
    CommandOutput, FieldSource, MetadataField, VariationSettings,
};

use super::frame::{BoltCommand, BoltFrame, BoltFrameKind, FrameLayout, codec};
use super::header;
use super::varying::VaryingBoltCall;
use crate::framed::FramedSettings;
use crate::interface::prepare_error::RequestError;
use crate::journey::JourneyPlan;

/// The maximum length in bytes of a class or header map, because Java declares these lengths as signed 16-bit numbers.
const MAX_HEADER_BYTES: usize = i16::MAX as usize;

/// The maximum length of a frame's content, in bytes.
const MAX_CONTENT_BYTES: usize = i32::MAX as usize;

/// A call over Bolt with its content encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoltCall {
    /// `service/method`; for a raw call, whose content is sent as given, the class.
    pub method: String,
    /// The layout of frames.
    pub layout: FrameLayout,
    /// The codec byte of the content.
    pub codec: u8,
    /// The encoded class name.
    pub class: Vec<u8>,
    /// The encoded header map, without the entries in `live`.
    pub header: Vec<u8>,
    /// The constant entries that the plan adds to the header map.
    pub constant: Vec<(String, String)>,
    /// Live entries, whose values are printed by commands and change during a run. Each template is one live
    /// value and nothing else.
    pub live: Vec<MetadataField>,
    /// The encoded content.
    pub content: Vec<u8>,
    /// The call's timeout, as sent to the server; `None`: no timeout is sent.
    pub timeout: Option<Duration>,
    /// Whether no response is expected.
    pub oneway: bool,
    /// The limit of calls in flight on one connection; `None`: no limit.
    pub in_flight: Option<u32>,
    /// Idle time after which a heartbeat is sent; `None`: never.
    pub heartbeat: Option<Duration>,
    /// Maximum size of a response's content, in bytes. Larger responses fail with `MESSAGE_TOO_LARGE`.
    pub max_content: usize,
    /// The parts that differ from user to user; only steps of a journey have them.
    pub varying: Option<Box<VaryingBoltCall>>,
    /// The journey that each user makes; the other fields are then those of its first step.
    pub journey: Option<Box<JourneyPlan>>,
}

impl Default for BoltCall {
    fn default() -> BoltCall {
        BoltCall {
            method: String::new(),
            layout: FrameLayout::V1,
            codec: codec::HESSIAN2,
            class: Vec::new(),
            header: Vec::new(),
            constant: Vec::new(),
            live: Vec::new(),
            content: Vec::new(),
            timeout: None,
            oneway: false,
            in_flight: None,
            heartbeat: None,
            max_content: super::frame::DEFAULT_MAX_CONTENT_BYTES,
            varying: None,
            journey: None,
        }
    }
}

impl Call for BoltCall {
    fn protocol_and_call_name(&self) -> (&'static str, Cow<'_, str>) {
        match &self.journey {
            Some(journey) => ("bolt", journey.name().into()),
            None => ("bolt", self.method.as_str().into()),
        }
    }

    fn variation_settings(&self) -> Option<&VariationSettings> {
        self.journey.as_ref().map(|journey| &journey.variation)
    }

    fn header_fields(&self) -> (&[(String, String)], &[MetadataField]) {
        match &self.journey {
            Some(journey) => journey.fields(),
            None => (&self.constant, &self.live),
        }
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

/// A request whose header map has values that change during a run. The request is encoded once for each change,
/// regardless of the number of connections and calls.
#[derive(Debug)]
pub(super) struct RefreshedRequest {
    /// The request without the live entries.
    without_entries: PreparedBoltRequest,
    live: Vec<(String, Arc<CommandOutput>)>,
    /// The request with its latest values, and their [`RefreshedRequest::generation`], which was read before the
    /// values.
    current: Mutex<(u64, Arc<PreparedBoltRequest>)>,
}

impl RefreshedRequest {
    /// Prepares the request with its live entries; returns `None` if it has none.
    pub(super) fn prepare(call: &BoltCall) -> Result<Option<RefreshedRequest>, RequestError> {
        let values = call.live.iter();
        let values = values.filter_map(|field| match &field.template.sole_field()?.source {
            FieldSource::CommandOutput(value) => Some((field.name.clone(), Arc::clone(value))),
            _ => None,
        });
        let live: Vec<(String, Arc<CommandOutput>)> = values.collect();
        if live.is_empty() {
            return Ok(None);
        }
        let bare = PreparedBoltRequest::new(call)?;
        let generation = generation(&live);
        let first = Arc::new(bare.with_entries(&live)?);
        Ok(Some(RefreshedRequest {
            without_entries: bare,
            live,
            current: Mutex::new((generation, first)),
        }))
    }

    /// Returns the generation of the values, which changes when a value changes.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        generation(&self.live)
    }

    /// Returns the request with the current values, and their generation. If the values have become too long
    /// for a frame, the previous request is kept.
    pub(super) fn current(&self) -> (u64, Arc<PreparedBoltRequest>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.generation();
        if current.0 != generation {
            match self.without_entries.with_entries(&self.live) {
                Ok(prepared) => *current = (generation, Arc::new(prepared)),
                Err(problem) => {
                    tracing::warn!("keeping the previous header map: {problem}");
                    current.0 = generation;
                }
            }
        }
        current.clone()
    }
}

fn generation(live: &[(String, Arc<CommandOutput>)]) -> u64 {
    live.iter().map(|(_, value)| value.generation()).sum()
}

fn too_long_error(what: &str, length: usize, most: usize) -> RequestError {
    RequestError::new(format_args!(
        "{what} of {length} bytes: at most {most} fit a frame"
    ))
}

/// A request's bytes and the settings of its connections.
#[derive(Debug)]
pub(super) struct PreparedBoltRequest {
    /// The frame, with id 0.
    frame: Vec<u8>,
    id_offset: usize,
    /// For each byte of the id and each of its values, the change of the checksum.
    crc_tables: Option<Box<[[u32; 256]; 4]>>,
    pub(super) layout: FrameLayout,
    pub(super) oneway: bool,
    timeout: Option<Duration>,
    /// The settings that all connections share.
    pub(super) settings: FramedSettings,
    pub(super) max_content: usize,
    /// The length of the content within the frame, in bytes.
    pub(super) content_bytes: u64,
}

impl PreparedBoltRequest {
    pub(super) fn new(call: &BoltCall) -> Result<PreparedBoltRequest, RequestError> {
        if call.class.len() > MAX_HEADER_BYTES {
            return Err(too_long_error("class", call.class.len(), MAX_HEADER_BYTES));
        }
        if call.header.len() > MAX_HEADER_BYTES {
            return Err(too_long_error(
                "header map",
                call.header.len(),
                MAX_HEADER_BYTES,
            ));
        }
        if call.content.len() > MAX_CONTENT_BYTES {
            return Err(too_long_error(
                "content",
                call.content.len(),
                MAX_CONTENT_BYTES,
            ));
        }
        if call.in_flight == Some(0) {
            return Err(RequestError::zero_in_flight_error());
        }
        let timeout = call.timeout.map_or(-1, timeout_millis);
        let mut frame = Vec::new();
        BoltFrame {
            layout: call.layout,
            kind: if call.oneway {
                BoltFrameKind::Oneway { timeout }
            } else {
                BoltFrameKind::Request { timeout }
            },
            command: BoltCommand::RpcRequest,
            command_version: 1,
            id: 0,
            codec: call.codec,
            class: &call.class,
            header: &call.header,
            content: &call.content,
        }
        .write(&mut frame);
        Ok(PreparedBoltRequest {
            crc_tables: frame_crc_tables(call.layout, &frame),
            settings: FramedSettings::new(call.in_flight, call.heartbeat, &frame),
            frame,
            id_offset: call.layout.id_offset(),
            layout: call.layout,
            oneway: call.oneway,
            timeout: call.timeout,
            max_content: call.max_content,
            content_bytes: call.content.len() as u64,
        })
    }

    /// Returns the request with the live entries appended to its header map.
    fn with_entries(
        &self,
        live: &[(String, Arc<CommandOutput>)],
    ) -> Result<PreparedBoltRequest, RequestError> {
        let parsed = BoltFrame::parse(&self.frame, usize::MAX);
        let Some((bare, _)) = parsed.ok().flatten() else {
            return Err(too_long_error(
                "content",
                self.frame.len(),
                MAX_CONTENT_BYTES,
            ));
        };
        let (mut map, mut value) = (bare.header.to_vec(), Vec::new());
        for (name, live) in live {
            value.clear();
            live.write(&mut value);
            header::write(&mut map, Some(name.as_bytes()), Some(&value));
        }
        if map.len() > MAX_HEADER_BYTES {
            return Err(too_long_error("header map", map.len(), MAX_HEADER_BYTES));
        }
        let mut frame = Vec::new();
        let whole = BoltFrame {
            header: &map,
            ..bare
        };
        whole.write(&mut frame);
        Ok(PreparedBoltRequest {
            crc_tables: frame_crc_tables(self.layout, &frame),
            settings: FramedSettings {
                request_bytes: u32::try_from(frame.len()).unwrap_or(u32::MAX),
                ..self.settings
            },
            frame,
            ..*self
        })
    }

    /// Appends the request with `id` of a call that was due `waited` ago; its timeout is the remaining time.
    pub(super) fn write_with_remaining_time(&self, id: u32, waited: Duration, out: &mut Vec<u8>) {
        let start = out.len();
        self.write(id, out);
        let Some(timeout) = self.timeout else {
            return;
        };
        let left = timeout_millis(timeout.saturating_sub(waited)).to_be_bytes();
        let written = &mut out[start..];
        written[self.layout.timeout_offset()..][..4].copy_from_slice(&left);
        if self.layout.has_crc() {
            let at = written.len() - 4;
            let crc = crc32fast::hash(&written[..at]).to_be_bytes();
            written[at..].copy_from_slice(&crc);
        }
    }

    /// Appends the request with `id`.
    #[inline]
    pub(super) fn write(&self, id: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.frame);
        let written = &mut out[start..];
        let id = id.to_be_bytes();
        written[self.id_offset..][..4].copy_from_slice(&id);
        if let Some(tables) = &self.crc_tables {
            let at = written.len() - 4;
            for (table, byte) in tables.iter().zip(id) {
                let adds = table[usize::from(byte)].to_be_bytes();
                for i in 0..4 {
                    written[at + i] ^= adds[i];
                }
            }
        }
    }
}

/// Converts a timeout to a frame's milliseconds, at least 1, so that a short timeout does not become "none".
fn timeout_millis(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis().max(1)).unwrap_or(i32::MAX)
}

/// Returns the checksum tables of `frame`, if its layout has a checksum.
fn frame_crc_tables(form: FrameLayout, frame: &[u8]) -> Option<Box<[[u32; 256]; 4]>> {
    (form.has_crc()).then(|| build_crc_tables(frame.len() - 4, form.id_offset()))
}

/// Returns, for each byte of an id at offset `id_at` of `length` bytes, the change of the CRC for each value.
fn build_crc_tables(length: usize, id_at: usize) -> Box<[[u32; 256]; 4]> {
    let mut zeros = vec![0u8; length];
    let nothing = crc32fast::hash(&zeros);
    let mut tables = Box::new([[0u32; 256]; 4]);
    for (place, table) in tables.iter_mut().enumerate() {
        // The CRCs of single bits come first, because the CRCs of all other values are XORs of these.
        for bit in 0..8 {
            zeros[id_at + place] = 1 << bit;
            table[1 << bit] = crc32fast::hash(&zeros) ^ nothing;
        }
        zeros[id_at + place] = 0;
        for value in 1..256usize {
            let lowest = value & value.wrapping_neg();
            table[value] = table[value ^ lowest] ^ table[lowest];
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_model::rows::template::Template;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_id_has_valid_checksum(
            id in any::<u32>(), content in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            for form in [FrameLayout::V1, FrameLayout::V2, FrameLayout::V2_CRC] {
                let request = BoltCall { layout: form, content: content.clone(), ..BoltCall::default() };
                let prepared = PreparedBoltRequest::new(&request).unwrap();
                let timeout = Some(Duration::from_millis(3_000));
                let late = PreparedBoltRequest::new(&BoltCall { timeout, ..request.clone() }).unwrap();
                let mut wire = b"before".to_vec();
                late.write_with_remaining_time(id, Duration::from_millis(1_200), &mut wire);
                let (frame, _) = BoltFrame::parse(&wire[6..], 1000).unwrap().unwrap();
                let left = BoltFrameKind::Request { timeout: 1_800 };
                prop_assert_eq!((frame.id, frame.kind, frame.content), (id, left, &content[..]));
                let mut wire = b"before".to_vec();
                prepared.write(id, &mut wire);
                let (frame, length) = BoltFrame::parse(&wire[6..], 1000).unwrap().unwrap();
                prop_assert_eq!((frame.id, frame.content), (id, &content[..]));
                prop_assert_eq!(length, prepared.settings.request_bytes as usize);
            }
        }
    }

    #[test]
    fn only_changed_live_value_reencodes_request() {
        let live = CommandOutput::new("mint", None, "first").unwrap();
        let fields = [MetadataField {
            name: "Token".to_owned(),
            typed: String::new(),
            template: Template::from_command_output(live),
        }];
        let FieldSource::CommandOutput(value) = &fields[0].template.sole_field().unwrap().source
        else {
            panic!("no live value");
        };
        let mut constant = Vec::new();
        header::write(&mut constant, Some(b"app"), Some(b"shop"));
        for form in [FrameLayout::V1, FrameLayout::V2, FrameLayout::V2_CRC] {
            value.set("first").unwrap();
            let request = BoltCall {
                layout: form,
                header: constant.clone(),
                live: fields.to_vec(),
                content: b"content".to_vec(),
                ..BoltCall::default()
            };
            let renewing = RefreshedRequest::prepare(&request).unwrap().unwrap();
            let (generation, first) = renewing.current();
            assert!(Arc::ptr_eq(&first, &renewing.current().1));
            for token in ["first", "Bearer second, which is longer"] {
                value.set(token).unwrap();
                let mut wire = Vec::new();
                let (_, prepared) = renewing.current();
                prepared.write(7_000_000, &mut wire);
                let (frame, length) = BoltFrame::parse(&wire, 1000).unwrap().unwrap();
                assert_eq!(length, prepared.settings.request_bytes as usize);
                assert_eq!((frame.id, frame.content), (7_000_000, &b"content"[..]));
                let found = |key: &[u8]| header::find(frame.header, key).unwrap();
                assert_eq!(found(b"app"), Some(&b"shop"[..]));
                assert_eq!(found(b"Token"), Some(token.as_bytes()));
            }
            assert_ne!(renewing.generation(), generation);
        }
        assert!(
            RefreshedRequest::prepare(&BoltCall::default())
                .unwrap()
                .is_none()
        );
        // A value that no longer fits is not sent.
        let most = vec![b'a'; MAX_HEADER_BYTES - 100];
        let request = BoltCall {
            header: most,
            live: fields.to_vec(),
            ..BoltCall::default()
        };
        let renewing = RefreshedRequest::prepare(&request).unwrap().unwrap();
        let (_, before) = renewing.current();
        value.set(&"x".repeat(500)).unwrap();
        assert!(Arc::ptr_eq(&before, &renewing.current().1));
        assert!(RefreshedRequest::prepare(&request).is_err());
    }

    #[test]
    fn oversized_requests_are_rejected() {
        let long = vec![b'a'; 40_000];
        let refuse =
            |request: BoltCall| PreparedBoltRequest::new(&request).unwrap_err().to_string();
        assert!(
            refuse(BoltCall {
                class: long.clone(),
                ..BoltCall::default()
            })
            .contains("class of 40000")
        );
        assert!(
            refuse(BoltCall {
                header: long,
                ..BoltCall::default()
            })
            .contains("header map of 40000")
        );
        assert!(
            refuse(BoltCall {
                in_flight: Some(0),
                ..BoltCall::default()
            })
            .contains("0 calls in flight")
        );
    }
}
