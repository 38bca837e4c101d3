//! The client side of a gRPC connection: calls on the streams of an HTTP/2 [`Connection`].
//!
//! The state of a response is in `response_state`. `receive` handles received frames, `fast_path` handles common
//! complete responses in one step, `compressed` handles compressed responses, and `streaming` handles calls with
//! several messages.
//!
//! In the steady state a response consists of two header blocks, which are recognised by their bytes, and a message,
//! which is only counted. Nothing is allocated.

mod compressed;
mod fast_path;
mod journey_steps;
mod receive;
mod streaming;

use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{CallProgress, CompletedCall, Event, Protocol, Tracer};
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::http2::{ErrorCode, StreamPayload, Violation};

use self::journey_steps::CurrentStep;
use super::decompression::StreamUnpackers;
use super::head::HeadReader;
use super::rendered_messages::MessageRenderer;
use super::request::{GrpcRequest, PreparedGrpcCall};
use super::response_state::GrpcResponseState;
use super::stream_exchange::StreamExchanges;
use super::wire_validator::AnswerValidator;
use crate::http2::{
    self, Connection, DriverEffects, Http2FrameTracer, NO_SLOT, RequestTemplate, StreamCalls,
};
use crate::interface::prepare_error::RequestError;

/// gRPC with a prepared call.
#[derive(Clone, Debug)]
pub struct GrpcProtocol {
    prepared: Arc<PreparedGrpcCall>,
}

impl GrpcProtocol {
    /// Checks and encodes the call.
    ///
    /// # Errors
    /// Returns an error that names the part of the call that can't be sent.
    pub fn new(request: &GrpcRequest<'_>) -> Result<GrpcProtocol, RequestError> {
        Ok(GrpcProtocol {
            prepared: Arc::new(PreparedGrpcCall::new(request)?),
        })
    }
}

impl Protocol for GrpcProtocol {
    type Driver = GrpcDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        Some(b"h2")
    }

    fn new_driver(&self) -> GrpcDriver {
        Connection::new(GrpcCalls {
            prepared: Arc::clone(&self.prepared),
            exchanges: None,
            heads: HeadReader::new(self.prepared.max_head),
            validator: AnswerValidator::default(),
            unpackers: None,
            step: None,
        })
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.prepared.request.unix_zero.set(unix_ns);
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.prepared.request.trace_ids()
    }

    fn new_tracer(&self) -> Option<Box<dyn Tracer>> {
        Some(Box::new(Http2FrameTracer::default()))
    }
}

/// The client side of one connection.
pub type GrpcDriver = Connection<GrpcCalls>;

/// The calls of one connection. Fields that every call needs come first, to share cache lines.
#[derive(Debug)]
#[repr(C)]
pub struct GrpcCalls {
    prepared: Arc<PreparedGrpcCall>,
    /// The state of streaming calls; `None` until the first one starts.
    exchanges: Option<Box<StreamExchanges>>,
    /// The state of compressed responses; `None` until the first one arrives.
    unpackers: Option<Box<StreamUnpackers>>,
    validator: AnswerValidator,
    heads: HeadReader,
    /// The state of a journey's current step; `None`: the calls are not steps of a journey.
    step: Option<Box<CurrentStep>>,
}

type GrpcStream = http2::CallStream<GrpcResponseState>;

impl StreamCalls for GrpcCalls {
    type Answer = GrpcResponseState;

    #[inline]
    fn request(&self) -> &RequestTemplate {
        &self.prepared.request
    }

    fn header_block_with_timeout(&self, waited: Duration) -> Option<Vec<u8>> {
        self.prepared.header_block_with_timeout(waited)
    }

    fn captured_values(&self) -> &[Option<Box<[u8]>>] {
        self.step.as_ref().map_or(&[], |step| &step.captured)
    }

    #[inline]
    fn write_body(&self, number: u64, now: Time, out: &mut Vec<u8>) {
        if let Some(varying) = &self.prepared.varying {
            let renderer = MessageRenderer {
                varying,
                compression: self.prepared.compression,
                unix_ns: self.prepared.request.unix_zero.unix_ns_at(now),
                taken: self.captured_values(),
            };
            renderer.write(number, 0, out);
        }
    }

    fn start_streamed_body(
        connection: &mut GrpcDriver,
        id: u32,
        number: u64,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        connection.begin_messages(id, number, now, out);
    }

    fn send_blocked_streams(connection: &mut GrpcDriver, out: &mut Vec<u8>) {
        connection.send_blocked_messages(out);
    }

    #[inline(always)]
    fn handle_complete_responses<'a>(
        connection: &mut GrpcDriver,
        input: &'a [u8],
        to: &mut DriverEffects<'_>,
    ) -> &'a [u8] {
        connection.receive_complete_responses(input, to)
    }

    #[inline(always)]
    fn on_data(
        connection: &mut GrpcDriver,
        data: StreamPayload<'_>,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        connection.receive_data(data, to)
    }

    #[inline(always)]
    fn on_header_block(
        connection: &mut GrpcDriver,
        block: StreamPayload<'_>,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        connection.receive_header_block(block, to)
    }

    #[inline]
    fn report_call_end(&mut self, stream: &GrpcStream, outcome: Outcome, events: &mut Vec<Event>) {
        match &self.exchanges {
            None => events.push(Event::Done(completed_call(stream, outcome))),
            Some(_) => self.end_exchange(stream, outcome, events),
        }
    }

    #[inline]
    fn release_stream(&mut self, stream: &mut GrpcStream) {
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.close(std::mem::replace(&mut stream.slot, NO_SLOT));
        }
        if let Some(unpackers) = &mut self.unpackers {
            unpackers.discard_stream(stream.id);
        }
        self.validator.discard_stream(stream.id);
    }

    fn release_all_streams(&mut self) {
        self.exchanges = None;
        self.validator = AnswerValidator::default();
        self.unpackers = None;
    }

    fn call_progress(&self, stream: &GrpcStream) -> CallProgress {
        let alone = completed_call(stream, Outcome::Ok);
        let mut exchanged = CallProgress {
            messages_sent: 0,
            bytes_sent: alone.bytes_sent,
            bytes_received: alone.bytes_received,
        };
        let exchange = self.exchanges.as_ref().and_then(|all| all.get(stream.slot));
        if let (Some(script), Some(exchange)) = (&self.prepared.script, exchange) {
            exchanged.messages_sent = exchange.messages_sent(script);
            exchanged.bytes_sent = exchange.bytes_sent();
            if exchange.received_overflowed {
                exchanged.bytes_received = u32::MAX;
            }
        }
        exchanged
    }

    /// Maps an HTTP/2 error code to an outcome (gRPC over HTTP/2, "Errors").
    fn outcome_from_reset(code: ErrorCode) -> Outcome {
        match code {
            ErrorCode::REFUSED_STREAM => Outcome::StreamRefused,
            ErrorCode::CANCEL => Outcome::Cancelled,
            ErrorCode::ENHANCE_YOUR_CALM => Outcome::ResourceExhausted,
            ErrorCode::INADEQUATE_SECURITY => Outcome::PermissionDenied,
            _ => Outcome::StreamReset,
        }
    }

    #[inline]
    fn prefetch(&self) {
        self.heads.prefetch();
        self.validator.prefetch();
    }

    fn max_header_list_bytes(&self) -> u32 {
        self.prepared.max_head
    }

    fn has_negligible_receive_time(&self) -> bool {
        self.unpackers.is_none()
    }

    /// Sets the time for streams, whose messages are rendered when they can be sent and may contain the time.
    #[inline]
    fn set_current_time(&mut self, now: Time) {
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.now = now;
        }
    }

    fn next_timer(&self) -> Option<Time> {
        self.exchanges.as_ref()?.next_timer()
    }

    fn on_timer(connection: &mut GrpcDriver, to: &mut DriverEffects<'_>) {
        connection.handle_due_streams(to);
    }

    fn heap_bytes(&self) -> usize {
        self.exchanges
            .as_ref()
            .map_or(0, |e| size_of_val(&**e) + e.heap_bytes())
            + self.heads.heap_bytes()
            + self.validator.heap_bytes()
    }
}

#[inline]
fn completed_call(stream: &GrpcStream, outcome: Outcome) -> CompletedCall {
    CompletedCall {
        call: stream.call,
        outcome,
        first_byte: stream.answer.first_byte,
        bytes_sent: stream.size.saturating_sub(stream.unsent),
        bytes_received: stream.answer.received,
    }
}
