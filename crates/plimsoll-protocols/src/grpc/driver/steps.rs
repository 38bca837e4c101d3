//! Calls that are the steps of a journey: each sends a request of its own, and values are taken from its answer.

use std::borrow::Cow;
use std::sync::Arc;

use plimsoll_model::Time;

use super::{GrpcDriver, GrpcProtocol};
use crate::grpc::call::AnswerSchema;
use crate::grpc::message::PREFIX_LEN;
use crate::grpc::request::{GrpcRequest, PreparedGrpcCall};
use crate::grpc::wire_validator::AnswerValidator;
use crate::journey::{AnswerCapture, CapturedResponse, StepProtocol, TakenValues};
use crate::prepare_error::RequestError;
use crate::unpacking::{ContentCoding, Unpacker};

/// The largest message, as received, that values are taken from. Bytes.
const MAX_CAPTURED: usize = 1 << 20;

/// The state of a journey's current step.
#[derive(Debug, Default)]
pub(super) struct CurrentStep {
    pub(super) taken: Arc<TakenValues>,
    /// Whether the last message of the answer is kept.
    keeps_message: bool,
    /// The last message that has arrived completely, and what has arrived of the next one, with their prefixes.
    data: Vec<u8>,
    /// A message was too large to be kept.
    is_too_large: bool,
    /// The metadata before and after the messages.
    fields: Vec<(Box<[u8]>, Box<[u8]>)>,
}

impl CurrentStep {
    fn begin(&mut self, taken: &Arc<TakenValues>, capture: AnswerCapture) {
        self.taken = Arc::clone(taken);
        self.keeps_message = capture == AnswerCapture::Whole;
        self.data.clear();
        self.fields.clear();
        self.is_too_large = false;
    }

    /// Adds metadata of the answer.
    pub(super) fn add_field(&mut self, name: &[u8], value: &[u8]) {
        self.fields.push((name.into(), value.into()));
    }

    /// Adds DATA of the answer.
    pub(super) fn add_data(&mut self, data: &[u8]) {
        if !self.keeps_message || self.is_too_large {
            return;
        }
        self.data.extend_from_slice(data);
        while let Some(end) = message_end(&self.data).filter(|end| *end < self.data.len()) {
            self.data.drain(..end);
        }
        if self.data.len() > MAX_CAPTURED {
            self.is_too_large = true;
            self.data = Vec::new();
        }
    }

    /// Returns the last message of an answer that has ended, decompressed. `limit`: its largest size. Bytes.
    fn message(&self, limit: u32) -> Result<Cow<'_, [u8]>, String> {
        if self.is_too_large {
            return Err(
                "its message is larger than 1 MiB, and values are looked for in no more".to_owned(),
            );
        }
        let [flag, _, _, _, _, message @ ..] = &*self.data else {
            return Err("the answer has no message".to_owned());
        };
        if *flag == 0 {
            return Ok(Cow::Borrowed(message));
        }
        let mut plain = Vec::new();
        let unpacked =
            Unpacker::new(ContentCoding::Gzip, limit.into()).is_some_and(|mut unpacker| {
                let mut keep = |piece: &[u8]| plain.extend_from_slice(piece);
                unpacker.take(message, &mut keep).is_ok() && unpacker.end(&mut keep).is_ok()
            });
        if unpacked {
            Ok(Cow::Owned(plain))
        } else {
            Err("its message can't be decompressed".to_owned())
        }
    }
}

/// Returns where the first message ends, with its prefix; `None`: it is not complete.
fn message_end(data: &[u8]) -> Option<usize> {
    let [_, a, b, c, d, ..] = data else {
        return None;
    };
    let end = PREFIX_LEN + u32::from_be_bytes([*a, *b, *c, *d]) as usize;
    (end <= data.len()).then_some(end)
}

impl GrpcProtocol {
    /// Checks and encodes the call of a journey's step. `capture`: what is kept of its answers.
    ///
    /// # Errors
    /// What part of the call can't be sent, by name.
    pub fn of_step(
        request: &GrpcRequest<'_>,
        capture: AnswerCapture,
    ) -> Result<GrpcProtocol, RequestError> {
        Ok(GrpcProtocol {
            prepared: Arc::new(PreparedGrpcCall::of_step(request, capture)?),
        })
    }

    fn answer_schema(&self) -> Option<&AnswerSchema> {
        self.prepared.capture.as_ref()?.1.as_ref()
    }
}

impl StepProtocol for GrpcProtocol {
    type UserState = ();

    fn select(
        &self,
        driver: &mut GrpcDriver,
        values: &Arc<TakenValues>,
        (): &(),
    ) -> Result<(), String> {
        if let Some(varying) = &self.prepared.varying {
            let moment = varying.variation.moment(0, 0, 0).with_taken(values);
            let mut messages = varying.messages.iter();
            messages.try_for_each(|message| message.check_taken(&moment))?;
        }
        let calls = &mut driver.calls;
        if !Arc::ptr_eq(&calls.prepared, &self.prepared) {
            calls.prepared = Arc::clone(&self.prepared);
            // The same bytes may be no message of another method.
            calls.validator = AnswerValidator::default();
        }
        let capture = self.prepared.capture.as_ref();
        let capture = capture.map_or(AnswerCapture::Head, |(capture, _)| *capture);
        calls.step.get_or_insert_default().begin(values, capture);
        Ok(())
    }

    fn keep(&self, _: &GrpcDriver, _: Time, _: &TakenValues, (): &mut ()) {}

    fn with_answer<R>(&self, driver: &GrpcDriver, f: impl FnOnce(CapturedResponse<'_>) -> R) -> R {
        let Some(step) = &driver.calls.step else {
            return f(CapturedResponse {
                fields: Vec::new(),
                body: Err("no call was made".to_owned()),
            });
        };
        let fields = step.fields.iter().map(|(name, value)| (&**name, &**value));
        let body = if step.keeps_message {
            let message = step.message(self.prepared.max_message);
            message.and_then(|message| match self.answer_schema() {
                Some(schema) => schema.json(&message).map(|json| json.into_bytes().into()),
                None => Err("its message is not described".to_owned()),
            })
        } else {
            Ok(Cow::Borrowed(&[][..]))
        };
        f(CapturedResponse {
            fields: fields.collect(),
            body,
        })
    }

    fn cookie((): &(), _: &str) -> Option<String> {
        None
    }
}
