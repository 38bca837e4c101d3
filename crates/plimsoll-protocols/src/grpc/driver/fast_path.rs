//! A fast path for complete responses in one read: header, one message, trailers, and nothing in between.
//!
//! Most responses of unary calls have this form and are handled in one step. All others, even those that differ in
//! one byte of a header block, are left to `receive`, which handles them frame by frame with the same result.

use plimsoll_engine::driver::{CompletedCall, Event};
use plimsoll_model::Outcome;
use plimsoll_wire::http2::{DEFAULT_MAX_FRAME_BYTES, FrameHeader, flags, kind};

use super::GrpcDriver;
use crate::grpc::head::{CommonHeaderBlock, HeadReader};
use crate::grpc::message::PREFIX_LEN;
use crate::http2::DriverEffects;

/// A complete, successful response of a unary call.
struct CompleteResponse<'a> {
    stream: u32,
    /// The length of the message with its prefix, in bytes.
    length: u32,
    message: &'a [u8],
    /// The bytes after the response.
    rest: &'a [u8],
}

impl GrpcDriver {
    /// Handles the complete responses at the front of `input`, and returns the bytes after them.
    #[inline(always)]
    pub(super) fn receive_complete_responses<'a>(
        &mut self,
        mut input: &'a [u8],
        to: &mut DriverEffects<'_>,
    ) -> &'a [u8] {
        let calls = &self.calls;
        let unary = calls.exchanges.is_none() && calls.unpackers.is_none() && calls.step.is_none();
        if !unary || !self.http2.accepts_any_frame() {
            return input;
        }
        let limit = self.calls.prepared.max_message;
        while let Some(answer) = find_complete_response(&self.calls.heads, input, limit) {
            if !self
                .calls
                .validator
                .is_valid(self.calls.prepared.answer_shapes.as_deref(), answer.message)
            {
                break;
            }
            let Some(stream) = self.streams.end_before_response(answer.stream) else {
                break;
            };
            to.events.push(Event::Done(CompletedCall {
                call: stream.call,
                outcome: Outcome::Ok,
                first_byte: to.now,
                bytes_sent: stream.size,
                bytes_received: answer.length,
            }));
            self.http2.count_received_data(answer.length);
            input = answer.rest;
        }
        input
    }
}

/// Returns the response at the front of `input`, if it is complete and its header blocks are cached, common ones.
#[inline(always)]
fn find_complete_response<'a>(
    heads: &HeadReader,
    input: &'a [u8],
    limit: u32,
) -> Option<CompleteResponse<'a>> {
    let (head, block, rest) = first_frame(input)?;
    if !head.has_type_and_flags(kind::HEADERS, flags::END_HEADERS)
        || heads.recognise(block)? != CommonHeaderBlock::Opening
    {
        return None;
    }
    let (data, payload, rest) = first_frame(rest)?;
    let [0, a, b, c, d, message @ ..] = payload else {
        return None;
    };
    let length = u32::from_be_bytes([*a, *b, *c, *d]);
    if !data.has_type_and_flags(kind::DATA, 0) || message.len() != length as usize || length > limit
    {
        return None;
    }
    let (trailers, block, rest) = first_frame(rest)?;
    let closing = flags::END_HEADERS | flags::END_STREAM;
    let stream = head.stream();
    let known = trailers.has_type_and_flags(kind::HEADERS, closing)
        && data.stream() == stream
        && trailers.stream() == stream
        && heads.recognise(block)? == CommonHeaderBlock::Success;
    known.then_some(CompleteResponse {
        stream,
        length: length + PREFIX_LEN as u32,
        message,
        rest,
    })
}

/// Returns the frame at the front of `input`, if it is complete and not too large.
#[inline(always)]
fn first_frame(input: &[u8]) -> Option<(FrameHeader, &[u8], &[u8])> {
    let (head, rest) = input.split_first_chunk::<{ FrameHeader::LEN }>()?;
    let head = FrameHeader::parse(head);
    if head.length() > DEFAULT_MAX_FRAME_BYTES {
        return None;
    }
    let (payload, rest) = rest.split_at_checked(head.length() as usize)?;
    Some((head, payload, rest))
}
