//! Calls that are the steps of a journey: each step sends its own request, and values are captured from its response.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_model::formats::base64_text::decode_base64;
use plimsoll_wire::hpack::HpackError;

use super::{GrpcDriver, GrpcProtocol};
use crate::grpc::call::{ExpectedAnswer, MessageShapes};
use crate::grpc::head::{FailureTexts, GrpcHeaders, HeadReader};
use crate::grpc::message::PREFIX_LEN;
use crate::grpc::request::{GrpcRequest, PreparedGrpcCall};
use crate::grpc::wire_validator::AnswerValidator;
use crate::http::write_body;
use crate::interface::prepare_error::RequestError;
use crate::journey::{
    CaptureLevel, CapturedResponse, CapturedValues, CookieJar, SharedAnswerReader, StepMoment,
    StepProtocol,
};
use crate::shared::unpacking::{ContentCoding, Unpacker};

/// Maximum size in bytes of a message, as received, from which values are captured.
const MAX_CAPTURED_BYTES: usize = 1 << 20;

/// The state of a journey's current step.
#[derive(Debug, Default)]
pub(super) struct CurrentStep {
    pub(super) captured: Arc<CapturedValues>,
    /// Whether the last message of the response is kept.
    keeps_message: bool,
    /// The last complete message and the partial next one, with their prefixes.
    data: Vec<u8>,
    /// Whether a message was too large to be kept.
    is_too_large: bool,
    /// The layout and the content that the messages must have, with the values of the user; `None`: those of all
    /// calls.
    pub(super) answer_shapes: Option<Arc<MessageShapes>>,
    /// The metadata before and after the messages.
    fields: Vec<MetadataEntry>,
    /// The metadata of the block that was read last, which may belong to another call's response.
    last_read_fields: Vec<MetadataEntry>,
}

/// The name and the value of a metadata entry.
type MetadataEntry = (Box<[u8]>, Box<[u8]>);

impl CurrentStep {
    fn begin(&mut self, taken: &Arc<CapturedValues>, capture: CaptureLevel) {
        self.captured = Arc::clone(taken);
        self.keeps_message = capture == CaptureLevel::Whole;
        self.data.clear();
        self.fields.clear();
        self.last_read_fields.clear();
        self.is_too_large = false;
    }

    /// Gives back the memory of the response.
    fn release_buffers(&mut self) {
        self.data = Vec::new();
        (self.fields, self.last_read_fields) = (Vec::new(), Vec::new());
    }

    /// Reads a header block of any stream.
    ///
    /// # Errors
    /// Returns the errors of [`HeadReader::read_fields`].
    pub(super) fn read_fields(
        &mut self,
        heads: &mut HeadReader,
        block: &[u8],
    ) -> Result<(GrpcHeaders, Option<Box<FailureTexts>>), HpackError> {
        self.last_read_fields.clear();
        heads.read_fields(block, |name, value| {
            let value = match binary_value(name, value) {
                Some(padded) => padded.into_bytes().into(),
                None => value.into(),
            };
            self.last_read_fields.push((name.into(), value));
        })
    }

    /// Adds the metadata of the block that was read last, which belongs to the step's response.
    pub(super) fn keep_fields(&mut self) {
        self.fields.append(&mut self.last_read_fields);
    }

    /// Adds DATA of the step's response.
    pub(super) fn add_data(&mut self, data: &[u8]) {
        if !self.keeps_message || self.is_too_large {
            return;
        }
        self.data.extend_from_slice(data);
        // Drops the first message once the next one is complete, so that the last complete message is kept.
        while let Some(first) = first_message_length(&self.data)
            && first_message_length(&self.data[first..]).is_some()
        {
            self.data.drain(..first);
        }
        let complete = first_message_length(&self.data).unwrap_or(0);
        if complete.max(self.data.len() - complete) > MAX_CAPTURED_BYTES {
            self.is_too_large = true;
            self.data = Vec::new();
        }
    }

    /// Returns the last message of a response that has ended, decompressed. `limit` is its maximum size in bytes.
    fn last_message(&self, limit: u32) -> Result<Cow<'_, [u8]>, String> {
        if self.is_too_large {
            return Err(
                "its message is larger than 1 MiB, and values are looked for in no more".to_owned(),
            );
        }
        let Some((flag, message)) = first_message_length(&self.data)
            .and_then(|end| self.data[..end].split_first())
            .and_then(|(flag, rest)| Some((*flag, rest.get(PREFIX_LEN - 1..)?)))
        else {
            return Err("the answer has no message".to_owned());
        };
        if flag == 0 {
            return Ok(Cow::Borrowed(message));
        }
        let mut plain = Vec::new();
        let unpacked =
            Unpacker::new(ContentCoding::Gzip, limit.into()).is_some_and(|mut unpacker| {
                let mut keep = |piece: &[u8]| plain.extend_from_slice(piece);
                unpacker.decode(message, &mut keep).is_ok() && unpacker.finish(&mut keep).is_ok()
            });
        if unpacked {
            Ok(Cow::Owned(plain))
        } else {
            Err("its message can't be decompressed".to_owned())
        }
    }
}

/// Returns the first value of a name ending in `-bin`, in base64 with padding, as JSON has bytes. `None`: the name is
/// another, or the value is not base64.
fn binary_value(name: &[u8], value: &[u8]) -> Option<String> {
    // Values of one name may be joined by commas (gRPC over HTTP/2, "Custom-Metadata").
    let first = value.split(|byte| *byte == b',').next()?;
    let bytes = decode_base64(name.ends_with(b"-bin").then_some(first)?)?;
    Some(STANDARD.encode(bytes))
}

/// Returns the length of the first message including its prefix; `None`: the message is not complete.
fn first_message_length(data: &[u8]) -> Option<usize> {
    let [_, a, b, c, d, ..] = data else {
        return None;
    };
    let end = PREFIX_LEN + u32::from_be_bytes([*a, *b, *c, *d]) as usize;
    (end <= data.len()).then_some(end)
}

impl GrpcProtocol {
    /// Checks and encodes the call of a journey's step. `capture` selects the parts of its responses that are kept.
    ///
    /// # Errors
    /// Returns an error that names the part of the call that can't be sent.
    pub fn for_step(
        request: &GrpcRequest<'_>,
        capture: CaptureLevel,
    ) -> Result<GrpcProtocol, RequestError> {
        Ok(GrpcProtocol {
            prepared: Arc::new(PreparedGrpcCall::for_step(request, capture)?),
        })
    }

    fn answer_reader(&self) -> Option<&SharedAnswerReader> {
        self.prepared.capture.as_ref()?.1.as_ref()
    }

    /// Returns the layout and the content that responses must have, with the values of one user; `None` if they are
    /// the same for all users.
    ///
    /// # Errors
    /// Returns an error if a value does not fit its field.
    fn render_answer_shapes(
        &self,
        moment: StepMoment,
        values: &CapturedValues,
    ) -> Result<Option<Arc<MessageShapes>>, String> {
        let prepared = &self.prepared;
        let (Some(varying), Some(shapes)) = (&prepared.varying_answer, &prepared.answer_shapes)
        else {
            return Ok(None);
        };
        let Some(reader) = self.answer_reader() else {
            return Ok(None);
        };
        let unix_ns = prepared.request.unix_zero.unix_ns_at(moment.now);
        let context = varying.variation.render_context(moment.number, 0, unix_ns);
        let mut json = Vec::new();
        write_body(
            &varying.json,
            &context.with_captured_values(values),
            &mut json,
        );
        let json = String::from_utf8(json).map_err(|_| "expect_message: a value is not UTF-8")?;
        let check = reader.message_check(&json);
        let check = check.map_err(|e| format!("expect_message: {e}"))?;
        Ok(Some(Arc::new(MessageShapes {
            expected: Some(ExpectedAnswer::new(&json, check)),
            ..MessageShapes::clone(shapes)
        })))
    }
}

impl StepProtocol for GrpcProtocol {
    fn select_request(
        &self,
        driver: &mut GrpcDriver,
        moment: StepMoment,
        values: &Arc<CapturedValues>,
        _: &CookieJar,
    ) -> Result<(), String> {
        if let Some(varying) = &self.prepared.varying {
            let context = varying.variation.render_context(0, 0, 0);
            let context = context.with_captured_values(values);
            let mut messages = varying.messages.iter();
            messages.try_for_each(|message| message.check_captured_values(&context))?;
        }
        for (name, index) in &self.prepared.binary_captures {
            let value = values.get(usize::from(*index)).and_then(Option::as_deref);
            if value.is_some_and(|value| decode_base64(value).is_none()) {
                return Err(format!(
                    "metadata {name}: the taken value is not base64, which names ending in -bin need"
                ));
            }
        }
        let answer_shapes = self.render_answer_shapes(moment, values)?;
        let calls = &mut driver.calls;
        if answer_shapes.is_some() || !Arc::ptr_eq(&calls.prepared, &self.prepared) {
            calls.prepared = Arc::clone(&self.prepared);
            // Resets the cache: a valid message of one method, or for one user, may be invalid for another.
            calls.validator = AnswerValidator::default();
        }
        let capture = self.prepared.capture.as_ref();
        let capture = capture.map_or(CaptureLevel::Head, |(capture, _)| *capture);
        let step = calls.step.get_or_insert_default();
        step.begin(values, capture);
        step.answer_shapes = answer_shapes;
        Ok(())
    }

    fn inspect_response(&self, driver: &GrpcDriver, f: &mut dyn FnMut(CapturedResponse<'_>)) {
        let Some(step) = &driver.calls.step else {
            return f(CapturedResponse {
                fields: Vec::new(),
                body: Err("no call was made".to_owned()),
            });
        };
        let fields = step.fields.iter().map(|(name, value)| (&**name, &**value));
        let body = if step.keeps_message {
            let message = step.last_message(self.prepared.max_message);
            message.and_then(|message| match self.answer_reader() {
                Some(schema) => schema
                    .to_json(&message)
                    .map(|json| json.into_bytes().into()),
                None => Err("its message is not described".to_owned()),
            })
        } else {
            Ok(Cow::Borrowed(&[][..]))
        };
        f(CapturedResponse {
            fields: fields.collect(),
            body,
        });
    }

    fn release_buffers(&self, driver: &mut GrpcDriver) {
        if let Some(step) = &mut driver.calls.step {
            step.release_buffers();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut framed = vec![0];
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(message);
        framed
    }

    fn kept(pieces: &[&[u8]]) -> Result<Vec<u8>, String> {
        let mut step = CurrentStep::default();
        step.begin(&Arc::default(), CaptureLevel::Whole);
        pieces.iter().for_each(|piece| step.add_data(piece));
        step.last_message(1 << 20).map(Cow::into_owned)
    }

    #[test]
    fn last_complete_message_is_kept_in_any_split() {
        let (first, second) = (framed(b"first"), framed(b"second"));
        let both = [&first[..], &second].concat();
        for split in 0..=both.len() {
            let (begin, end) = both.split_at(split);
            assert_eq!(
                kept(&[begin, end]).as_deref(),
                Ok(&b"second"[..]),
                "{split}"
            );
        }
        // A stream that the plan ends may be cut within a message.
        for cut in 1..second.len() {
            let pieces = [&first[..], &second[..cut]];
            assert_eq!(kept(&pieces).as_deref(), Ok(&b"first"[..]), "{cut}");
        }
        assert!(kept(&[&first[..7]]).is_err());
        assert!(kept(&[]).unwrap_err().contains("no message"));
        let large = framed(&vec![7; MAX_CAPTURED_BYTES + 1]);
        assert!(kept(&[&large]).unwrap_err().contains("1 MiB"));
    }
}
