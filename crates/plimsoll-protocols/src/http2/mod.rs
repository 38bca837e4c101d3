//! The client side of an HTTP/2 connection (RFC 9113) whose streams carry calls of any protocol ([`StreamCalls`]).
//!
//! Invariants: every call that was started and not cancelled ends in exactly one [`Event::Done`]; nothing is sent
//! beyond the server's windows, its frame size and its stream limit; a connection buffers nothing but a partial
//! frame and a partial header block. The rules of a connection are in [`plimsoll_wire::http2`], and the protocol
//! decides what a response means; this module tracks the calls: `call_start` sends requests, `receiving` handles
//! frames on streams, `control` all other frames. The worker's event loop calls it through [`Driver`].
//!
//! In the steady state a call costs one copy of the prepared request with its stream ids, and no allocation.
//!
//! This file is long because frames of all kinds change the same table of calls.

mod block_cache;
mod call_start;
mod control;
mod fields;
mod header_list_limit;
mod receiving;
mod request;
mod response_rules;
mod streams;
mod text;
mod trace;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use plimsoll_engine::driver::{CallId, CallProgress, Driver, Event, ProtocolError};
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::hpack::PeerTable;
use plimsoll_wire::http2::{
    self, ClientRole, ConnectionStage, ErrorCode, MAX_WINDOW_BYTES, StreamPayload, Violation,
    setting,
};

pub(crate) use self::block_cache::{BlockCache, bytes_equal};
pub(crate) use self::control::{NOT_HTTP2, connection_closed_error, other_protocol_error};
pub(crate) use self::fields::{VaryingFields, put_literal};
pub(crate) use self::header_list_limit::{DEFAULT_MAX_HEAD, resolve_max_head};
pub(crate) use self::receiving::compression_violation;
pub(crate) use self::request::{BodyKind, RequestTemplate, stream_id_offsets};
pub(crate) use self::response_rules::{
    ResponseFieldChecks, find_length_violation, parse_content_length, parse_number,
};
pub(crate) use self::streams::{CallStream, CallStreamState, CallStreams, NO_CALL, NO_SLOT};
pub(crate) use self::text::{to_printable, to_printable_lines};
pub use self::trace::Http2FrameTracer;
use crate::shared::detail_budget::DetailBudget;

/// The error text for a header block that is well-formed but exceeds our limit.
pub(crate) const HEAD_TOO_LARGE: &str = "a field list (RFC 9113, 6.5.2) over the limit";

/// Received bytes after which the connection's window is replenished: a quarter of the window.
pub(crate) const WINDOW_REPLENISH_BYTES: u32 = 1 << 29;

/// The effects of received frames: bytes to send and events to report, with the current time.
#[derive(Debug)]
pub struct DriverEffects<'a> {
    pub now: Time,
    pub out: &'a mut Vec<u8>,
    pub events: &'a mut Vec<Event>,
}

/// The state of a response that is being received.
pub trait ResponseState: Copy + Debug {
    const NEW: Self;

    /// Returns true if nothing of the response has arrived.
    fn is_new(&self) -> bool;
}

/// The calls of a protocol on the streams of one connection.
///
/// Functions that act on the whole connection take it as an argument and find their own state in
/// [`Connection::calls`].
pub trait StreamCalls: Debug + Sized {
    type Answer: ResponseState;

    /// Returns the request that calls send.
    fn request(&self) -> &RequestTemplate;

    /// Returns the header block of a call that was due `waited` ago, if the protocol sends the remaining time.
    fn header_block_with_timeout(&self, _waited: Duration) -> Option<Vec<u8>> {
        None
    }

    /// Whether each call may have its own header fields ([`StreamCalls::write_per_call_fields`]).
    const HAS_PER_CALL_FIELDS: bool = false;

    /// Prepares the request of call `number`. Called only if requests vary.
    fn prepare(&mut self, _number: u64, _now: Time) {}

    /// Appends the header fields that belong only to the prepared call.
    fn write_per_call_fields(&self, _block: &mut Vec<u8>) {}

    /// Returns the values captured from earlier responses, for the varying fields of the prepared call.
    fn captured_values(&self) -> &[Option<Box<[u8]>>] {
        &[]
    }

    /// Appends the body of call `number`. Called only if bodies vary.
    fn write_body(&self, number: u64, now: Time, out: &mut Vec<u8>);

    /// Starts sending a streamed body, after the call's HEADERS were written.
    fn start_streamed_body(
        _connection: &mut Connection<Self>,
        _id: u32,
        _number: u64,
        _now: Time,
        _out: &mut Vec<u8>,
    ) {
    }

    /// Sends the bodies of blocked streams in place of [`Connection::send_blocked_bodies`], if bodies are streamed.
    fn send_blocked_streams(_connection: &mut Connection<Self>, _out: &mut Vec<u8>) {}

    /// Handles complete responses at the front of `input`, and returns the bytes after them.
    fn handle_complete_responses<'a>(
        _connection: &mut Connection<Self>,
        input: &'a [u8],
        _to: &mut DriverEffects<'_>,
    ) -> &'a [u8] {
        input
    }

    /// Handles DATA on any stream.
    ///
    /// # Errors
    /// Returns the rule of RFC 9113 that the frame violates.
    fn on_data(
        connection: &mut Connection<Self>,
        data: StreamPayload<'_>,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation>;

    /// Handles a complete header block on any stream.
    ///
    /// # Errors
    /// Returns the same errors as [`StreamCalls::on_data`].
    fn on_header_block(
        connection: &mut Connection<Self>,
        block: StreamPayload<'_>,
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation>;

    /// Reports the end of a stream's call.
    fn report_call_end(
        &mut self,
        stream: &CallStream<Self::Answer>,
        outcome: Outcome,
        events: &mut Vec<Event>,
    );

    /// Releases the state of a stream whose call has ended.
    fn release_stream(&mut self, stream: &mut CallStream<Self::Answer>);

    /// Releases the state of all streams.
    fn release_all_streams(&mut self);

    fn call_progress(&self, stream: &CallStream<Self::Answer>) -> CallProgress;

    /// Returns the outcome of a call whose stream the server has reset with this code.
    fn outcome_from_reset(code: ErrorCode) -> Outcome;

    /// See [`Driver::prefetch`].
    #[inline]
    fn prefetch(&self) {}

    /// Returns the limit of a response's header list in bytes, as counted by RFC 9113, 6.5.2.
    fn max_header_list_bytes(&self) -> u32 {
        http2::MAX_HEADER_LIST_BYTES
    }

    /// See [`Driver::has_negligible_receive_time`].
    fn has_negligible_receive_time(&self) -> bool;

    /// Sets the current time for the following calls.
    fn set_current_time(&mut self, _now: Time) {}

    /// See [`Driver::next_timer`].
    fn next_timer(&self) -> Option<Time> {
        None
    }

    /// See [`Driver::on_timer`].
    fn on_timer(_connection: &mut Connection<Self>, _to: &mut DriverEffects<'_>) {}

    /// See [`Driver::end_open_ended_calls`].
    fn on_load_end(_connection: &mut Connection<Self>, _to: &mut DriverEffects<'_>) {}

    /// Returns the bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// The client side of one connection. Fields that every call needs come first, to share cache lines.
#[derive(Debug)]
#[repr(C)]
pub struct Connection<C: StreamCalls> {
    pub(crate) http2: http2::Http2Connection<ClientRole>,
    pub(crate) streams: CallStreams<C::Answer>,
    peer_table: PeerTable,
    /// Payload bytes that were sent apart from a prepared request, such as bytes that waited for a window.
    pub(crate) payload_bytes: u64,
    /// Whether some blocked streams wait for room in the output buffer.
    pub(crate) held_back: bool,
    /// Whether a window was opened: blocked streams are retried once the received bytes are handled.
    windows_opened: bool,
    pub(crate) calls: C,
    /// Streams whose bytes wait for a window or for room in the output buffer, in order.
    pub(crate) blocked: Vec<u32>,
    /// The unsent bodies of blocked streams, if bodies vary.
    bodies: BTreeMap<u32, Box<[u8]>>,
    /// Limits how many failure texts are reported, by outcome.
    pub(crate) details: DetailBudget,
    /// The time from the current call's arrival to its start.
    waited: Duration,
}

impl<C: StreamCalls> Connection<C> {
    pub(crate) fn new(calls: C) -> Connection<C> {
        Connection {
            calls,
            http2: http2::Http2Connection::new(ClientRole, MAX_WINDOW_BYTES),
            streams: CallStreams::default(),
            blocked: Vec::new(),
            held_back: false,
            payload_bytes: 0,
            bodies: BTreeMap::new(),
            peer_table: PeerTable::default(),
            details: DetailBudget::default(),
            waited: Duration::ZERO,
            windows_opened: false,
        }
    }

    /// Returns the bytes on the heap that belong to this connection alone.
    pub fn heap_bytes(&self) -> usize {
        self.streams.heap_bytes()
            + self.calls.heap_bytes()
            + self.http2.heap_bytes()
            + self.blocked.capacity() * size_of::<u32>()
            + self.bodies.values().map(|body| body.len()).sum::<usize>()
    }

    pub(crate) fn reset_stream(
        &mut self,
        id: u32,
        code: ErrorCode,
        state: CallStreamState,
        out: &mut Vec<u8>,
    ) {
        self.http2.reset_stream(id, code, out);
        self.streams.close(id, state);
    }
}

impl<C: StreamCalls> Driver for Connection<C> {
    fn open(&mut self, _now: Time, out: &mut Vec<u8>) {
        let max_head = self.calls.max_header_list_bytes();
        self.http2.set_max_header_block_bytes(max_head);
        let settings = [
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, MAX_WINDOW_BYTES),
            (setting::MAX_HEADER_LIST_SIZE, max_head),
        ];
        self.http2.send_preface(&settings, out);
    }

    #[inline]
    fn prefetch(&self) {
        self.streams.prefetch(self.http2.next_stream_id());
        self.calls.prefetch();
    }

    fn has_negligible_receive_time(&self) -> bool {
        self.calls.has_negligible_receive_time()
    }

    fn is_ready(&self) -> bool {
        self.http2.stage() > ConnectionStage::Greeting
    }

    #[inline]
    fn capacity(&self) -> usize {
        if self.http2.stage() != ConnectionStage::Open || self.http2.send_window() == 0 {
            return 0;
        }
        let left = (self.http2.max_streams()).saturating_sub(self.streams.open_count());
        left.min(self.http2.stream_ids_left()) as usize
    }

    fn is_draining(&self) -> bool {
        self.http2.stage() >= ConnectionStage::Draining || self.http2.stream_ids_left() == 0
    }

    fn draining_outcome(&self) -> Outcome {
        Outcome::Goaway
    }

    #[inline]
    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        debug_assert!(self.capacity() > 0);
        let request = self.calls.request();
        let body = request.body.len() as u32;
        // The window is at most MAX_WINDOW_BYTES, which fits.
        let stream_window = self.http2.initial_window() as i32;
        let window = self.http2.send_window().min(stream_window as u32);
        if request.window_needed > window || !self.peer_table.can_send_steady_block() {
            return self.start_slow_path(call, number, now, out);
        }
        let id = self.http2.allocate_stream_id();
        self.http2.count_sent_data(body);
        self.streams
            .insert(id, call, stream_window - body as i32, body, 0);
        let start = out.len();
        out.extend_from_slice(&request.indexed_frames);
        let written = &mut out[start..];
        for &place in &request.id_offsets {
            written[place as usize..][..4].copy_from_slice(&id.to_be_bytes());
        }
    }

    fn start_delayed(
        &mut self,
        call: CallId,
        number: u64,
        waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        self.waited = waited;
        self.start_slow_path(call, number, now, out);
        self.waited = Duration::ZERO;
    }

    fn cancel(&mut self, call: CallId, _now: Time, out: &mut Vec<u8>) {
        if let Some(id) = self.streams.find_call(call, self.http2.next_stream_id()) {
            if let Some(stream) = self.streams.find(id) {
                self.calls.release_stream(stream);
            }
            self.reset_stream(id, ErrorCode::CANCEL, CallStreamState::Cancelled, out);
        }
    }

    fn call_progress(&self, call: CallId) -> CallProgress {
        let id = self.streams.find_call(call, self.http2.next_stream_id());
        id.and_then(|id| self.streams.get(id))
            .map(|stream| self.calls.call_progress(stream))
            .unwrap_or_default()
    }

    fn appended_payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    fn has_held_back_messages(&self) -> bool {
        self.held_back
    }

    fn resume_sending(&mut self, now: Time, out: &mut Vec<u8>) {
        self.held_back = false;
        self.calls.set_current_time(now);
        self.send_blocked_bodies(out);
    }

    fn next_timer(&self) -> Option<Time> {
        self.calls.next_timer()
    }

    fn on_timer(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        self.calls.set_current_time(now);
        C::on_timer(self, &mut DriverEffects { now, out, events });
    }

    fn end_open_ended_calls(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        C::on_load_end(self, &mut DriverEffects { now, out, events });
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        if self.http2.stage() == ConnectionStage::Failed {
            return Err(ProtocolError {
                outcome: Outcome::ProtocolError,
                detail: "the connection has failed already".to_owned(),
            });
        }
        if self.http2.stage() == ConnectionStage::Greeting {
            self.check_first_bytes(bytes)?;
        }
        self.calls.set_current_time(now);
        let received = self.receive_frames(bytes, &mut DriverEffects { now, out, events });
        if let Err(violation) = received {
            return Err(self.fail_connection(&violation, out));
        }
        if std::mem::take(&mut self.windows_opened) && !self.blocked.is_empty() {
            self.send_blocked_bodies(out);
        }
        self.http2.release_whole_window(out);
        Ok(())
    }

    fn receive_end(&mut self, _now: Time, _events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        let other = other_protocol_error(self.http2.partial_frame());
        let is_whole = self.http2.is_between_frames();
        let stage = self.http2.close();
        if stage == ConnectionStage::Greeting {
            return Err(
                other.unwrap_or_else(|| connection_closed_error("before the server's SETTINGS"))
            );
        }
        if !is_whole {
            return Err(connection_closed_error("in the middle of a frame"));
        }
        let streams = self.streams.iter_open();
        match streams.filter(|stream| stream.call != NO_CALL).count() {
            0 if stage == ConnectionStage::Draining && self.http2.next_stream_id() == 1 => {
                Err(ProtocolError {
                    outcome: Outcome::Goaway,
                    detail: "the server went away before the connection's first call".to_owned(),
                })
            }
            0 => Ok(()),
            open => Err(connection_closed_error(&format!(
                "with calls in flight ({open})"
            ))),
        }
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.http2.close();
        for stream in self.streams.iter_open() {
            self.calls.report_call_end(stream, outcome, events);
        }
        self.calls.release_all_streams();
        self.streams = CallStreams::default();
        self.blocked = Vec::new();
        self.held_back = false;
        self.bodies = BTreeMap::new();
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.http2.stage() != ConnectionStage::Failed {
            self.http2.send_goaway(ErrorCode::NO_ERROR, b"", out);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::grpc::GrpcCall;
    use plimsoll_engine::driver::Protocol;
    use plimsoll_wire::http2::{EndStream, write};

    use super::*;
    use crate::grpc::{GrpcProtocol, GrpcRequest};

    #[test]
    fn driver_is_small_with_hot_fields_first() {
        use crate::grpc::GrpcDriver;
        assert!(size_of::<GrpcDriver>() <= 408);
        assert!(std::mem::offset_of!(GrpcDriver, blocked) <= 312);
    }

    #[test]
    fn exhausted_stream_ids_drain_connection() {
        let call = GrpcCall {
            method: "a.S/M".to_owned(),
            message: vec![1],
            max_message: 100,
            ..GrpcCall::default()
        };
        let request = GrpcRequest {
            call: &call,
            authority: "a:1",
            secure: false,
            deadline: None,
        };
        let mut driver = GrpcProtocol::new(&request).unwrap().new_driver();
        let (mut out, mut events) = (Vec::new(), Vec::new());
        let mut bytes = Vec::new();
        write::settings(&mut bytes, &[]);
        driver
            .receive(&bytes, Time(0), &mut out, &mut events)
            .unwrap();
        // RFC 9113, 5.1.1: the last id is 2^31-1, and none is used again.
        driver.http2.skip_ids_below(http2::MAX_STREAM_ID - 2);
        for left in [2, 1] {
            assert_eq!((driver.capacity(), driver.is_draining()), (left, false));
            driver.start(CallId(left as u32), 0, Time(1), &mut out);
        }
        assert_eq!((driver.capacity(), driver.is_draining()), (0, true));
        // The call in flight, on the highest id, still ends successfully.
        bytes.clear();
        for id in [http2::MAX_STREAM_ID - 2, http2::MAX_STREAM_ID] {
            let head = plimsoll_wire::hpack::Encoder::encode_plain([
                (":status", "200"),
                ("content-type", "application/grpc"),
            ]);
            let trailers = plimsoll_wire::hpack::Encoder::encode_plain([("grpc-status", "0")]);
            write::header_block(&mut bytes, id, &head, EndStream(false));
            write::data(&mut bytes, id, &[0, 0, 0, 0, 0], EndStream(false));
            write::header_block(&mut bytes, id, &trailers, EndStream(true));
        }
        driver
            .receive(&bytes, Time(2), &mut out, &mut events)
            .unwrap();
        let ended = |event: &Event| matches!(event, Event::Done(done) if done.outcome.is_ok());
        assert_eq!(events.iter().filter(|event| ended(event)).count(), 2);
    }
}
