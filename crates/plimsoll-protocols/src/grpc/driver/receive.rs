//! Handles response frames until their calls end. This is the hot path of the driver.

use plimsoll_model::{Outcome, Time};
use plimsoll_wire::http2::{EndStream, ErrorCode, StreamPayload, Violation, write};

use super::GrpcDriver;
use super::compressed::{read_data, store_encoding};
use crate::grpc::head::MessageEncoding;
use crate::grpc::response_state::{CallFailure, ResponseAction, bad_message_action};
use crate::http2::{
    CallStreamState, DriverEffects, HEAD_TOO_LARGE, NO_SLOT, WINDOW_REPLENISH_BYTES,
    compression_violation,
};

impl GrpcDriver {
    #[inline]
    pub(super) fn receive_data(
        &mut self,
        piece: StreamPayload<'_>,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        let limit = self.calls.prepared.max_message;
        let (id, data) = (piece.stream, piece.bytes);
        let Some(stream) = self.streams.find_open(id) else {
            return self.on_closed_stream(piece, "DATA", to.events);
        };
        if stream.answer.first_byte == Time::NEVER {
            stream.answer.first_byte = to.now;
        }
        let before = stream.answer.received;
        let begins = !stream.answer.is_mid_message();
        let shapes = match &self.calls.step {
            Some(current) if current.answer_shapes.is_some() => &current.answer_shapes,
            _ => &self.calls.prepared.answer_shapes,
        };
        let mut step = if stream.answer.may_be_compressed {
            read_data(&mut self.calls.unpackers, shapes, stream, piece, limit)
        } else {
            stream.answer.receive_data(piece, limit)
        };
        if step == ResponseAction::Continue
            && let Some(shapes) = shapes
            && !stream.answer.may_be_compressed
        {
            let decodable = &mut self.calls.validator;
            let taken = if begins {
                decodable.begin_validation(shapes, id, data)
            } else {
                decodable.continue_validation(shapes, id, data)
            };
            if let Err(error) = taken {
                step = bad_message_action(error);
            }
        }
        if let Some(current) = &mut self.calls.step {
            current.add_data(data);
        }
        if stream.slot != NO_SLOT {
            return self.receive_stream_data(piece, before, step, to);
        }
        match step {
            ResponseAction::Continue => {
                // The stream's window begins at its maximum, 2 GiB. It is enlarged each time a quarter has been used,
                // so only responses over 512 MiB need an update.
                if (before ^ stream.answer.received) >= WINDOW_REPLENISH_BYTES {
                    write::window_update(to.out, id, WINDOW_REPLENISH_BYTES);
                }
                Ok(())
            }
            step => self.apply_action(piece, step, to),
        }
    }

    #[inline]
    pub(super) fn receive_header_block(
        &mut self,
        piece: StreamPayload<'_>,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        // Every block must be decoded, since it may change the table that later blocks refer to.
        let heads = &mut self.calls.heads;
        let read = match &mut self.calls.step {
            None => heads.read(piece.bytes),
            Some(step) => step.read_fields(heads, piece.bytes),
        };
        let (head, texts) = read.map_err(compression_violation)?;
        let Some(stream) = self.streams.find_open(piece.stream) else {
            return self.on_closed_stream(piece, "HEADERS", to.events);
        };
        if let Some(step) = &mut self.calls.step {
            step.keep_fields();
        }
        if stream.answer.first_byte == Time::NEVER {
            stream.answer.first_byte = to.now;
        }
        if head.encoding != MessageEncoding::Identity {
            let offered = self.calls.prepared.compression;
            store_encoding(
                &mut self.calls.unpackers,
                stream,
                offered,
                &head,
                texts.as_deref(),
            );
        }
        match stream
            .answer
            .receive_head(&head, texts, EndStream(piece.end_stream))
        {
            ResponseAction::Continue => Ok(()),
            step => self.apply_action(piece, step, to),
        }
    }

    /// Carries out the action that follows from a piece of an open stream's response.
    #[inline]
    pub(super) fn apply_action(
        &mut self,
        piece: StreamPayload<'_>,
        step: ResponseAction,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        let id = piece.stream;
        match step {
            ResponseAction::Continue => Ok(()),
            ResponseAction::Succeed => {
                if self.calls.exchanges.is_some() {
                    self.on_stream_success(id, to);
                    return Ok(());
                }
                let unsent =
                    self.end_call(id, Outcome::Ok, None, CallStreamState::Ended, to.events);
                self.stop_sending(id, unsent, to.out);
                Ok(())
            }
            ResponseAction::Fail(failure) => {
                let CallFailure { outcome, detail } = *failure;
                let detail = match outcome {
                    Outcome::HeadTooLarge => Some(format!(
                        "{HEAD_TOO_LARGE} of {} bytes: --max-head (call.grpc.max_head) raises the limit",
                        self.calls.prepared.max_head
                    )),
                    _ => self.failure_detail(outcome, detail),
                };
                self.fail_stream(piece, outcome, detail, to);
                Ok(())
            }
            ResponseAction::Malformed(why) => {
                Err(Violation::stream_error(id, ErrorCode::PROTOCOL_ERROR, why))
            }
        }
    }
}
