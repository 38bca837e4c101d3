//! Steps of journeys over protocols whose frames carry request ids: a user's connection switches from the request of one
//! step to that of the next, and keeps the answer to the current one.

use std::cell::Cell;
use std::time::Duration;

use plimsoll_engine::driver::ProtocolError;
use plimsoll_model::Outcome;

use super::{FrameFormat, FramePurpose, FramedDriver, FramedSettings};

/// The largest answer from which values are taken, in bytes.
const MAX_CAPTURED_BYTES: usize = 1 << 20;

/// A format whose connections can switch from one request to another.
pub(crate) trait StepFormat: FrameFormat {
    /// Returns the settings of connections that send this format's request.
    fn settings(&self) -> FramedSettings;

    /// Takes over the request of `other`, and keeps what belongs to the connection.
    fn adopt_request(&mut self, other: &Self);
}

/// A format that keeps the answer to the last request.
#[derive(Debug)]
pub(crate) struct CapturingFormat<F> {
    format: F,
    /// The id of the last request.
    request_id: Cell<Option<u32>>,
    /// The frame that answers it.
    answer: Vec<u8>,
    /// Whether the answer was too large to be kept.
    is_too_large: bool,
}

/// The driver of a user's connection.
pub(crate) type FramedStepDriver<F> = FramedDriver<CapturingFormat<F>>;

impl<F: StepFormat> FramedStepDriver<F> {
    /// Creates the driver of a connection whose first step sends the request of `format`.
    pub(crate) fn for_steps(format: F) -> FramedStepDriver<F> {
        let settings = format.settings();
        let format = CapturingFormat {
            format,
            request_id: Cell::new(None),
            answer: Vec::new(),
            is_too_large: false,
        };
        FramedDriver::new(format, settings)
    }

    /// Makes the next call send the request of `format`.
    pub(crate) fn select_request(&mut self, format: &F) {
        let own = &mut self.format;
        own.format.adopt_request(format);
        own.request_id.set(None);
        own.answer.clear();
        own.is_too_large = false;
        self.request_bytes = format.settings().request_bytes;
    }

    /// Gives back the memory of the answer to the last request.
    pub(crate) fn release_answer(&mut self) {
        self.format.answer = Vec::new();
    }

    /// Returns the frame that answers the last request.
    ///
    /// # Errors
    /// Returns an error if no answer was kept.
    pub(crate) fn answer(&self) -> Result<&[u8], String> {
        if self.format.is_too_large {
            return Err(
                "its body is larger than 1 MiB, and values are looked for in no more".to_owned(),
            );
        }
        if self.format.answer.is_empty() {
            return Err("no answer has come".to_owned());
        }
        Ok(&self.format.answer)
    }
}

impl<F: FrameFormat> FrameFormat for CapturingFormat<F> {
    type Frame<'a> = F::Frame<'a>;

    fn name(&self) -> &str {
        self.format.name()
    }

    fn is_oneway(&self) -> bool {
        self.format.is_oneway()
    }

    fn take_changed_request(&mut self) -> Option<u32> {
        self.format.take_changed_request()
    }

    fn write_request(
        &self,
        id: u32,
        waited: Option<Duration>,
        out: &mut Vec<u8>,
    ) -> Result<(), Outcome> {
        self.request_id.set(Some(id));
        self.format.write_request(id, waited, out)
    }

    fn read<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<Option<(F::Frame<'a>, usize)>, ProtocolError> {
        let read = self.format.read(bytes)?;
        if let Some((frame, length)) = &read
            && let FramePurpose::Answer(id) = F::frame_purpose(frame)
            && self.request_id.get() == Some(id)
        {
            self.is_too_large = *length > MAX_CAPTURED_BYTES;
            if !self.is_too_large {
                self.answer.clear();
                self.answer.extend_from_slice(&bytes[..*length]);
            }
        }
        Ok(read)
    }

    fn needed_length(&self, partial: &[u8]) -> Option<usize> {
        self.format.needed_length(partial)
    }

    fn frame_purpose(frame: &F::Frame<'_>) -> FramePurpose {
        F::frame_purpose(frame)
    }

    fn outcome(&self, answer: &F::Frame<'_>) -> Outcome {
        self.format.outcome(answer)
    }

    fn content_bytes(&self, answer: Option<&F::Frame<'_>>) -> u64 {
        self.format.content_bytes(answer)
    }

    fn failure_detail(&self, answer: &F::Frame<'_>) -> Option<String> {
        self.format.failure_detail(answer)
    }

    fn write_response(
        &self,
        asking: &F::Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        self.format.write_response(asking, out)
    }

    fn write_heartbeat(&self, id: u32, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        self.format.write_heartbeat(id, out)
    }
}
