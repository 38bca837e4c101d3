//! Splits received bytes into frames and ends the calls of streams. This is the hot path of a connection.

use plimsoll_engine::driver::Event;
use plimsoll_model::Outcome;
use plimsoll_wire::hpack::HpackError;
use plimsoll_wire::http2::{
    self, DEFAULT_MAX_FRAME_BYTES, ErrorCode, FrameHeader, StreamCloseCause, StreamPayload,
    Violation, flags, kind,
};

use super::streams::{CallStreamState, NO_CALL};
use super::{Connection, DriverEffects, StreamCalls};

impl<C: StreamCalls> Connection<C> {
    #[inline]
    pub(super) fn receive_frames(
        &mut self,
        mut input: &[u8],
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        let mended = self.http2.take_reassembled_frame(&mut input)?;
        if let Some(frame) = &mended {
            http2::for_each_frame(frame, DEFAULT_MAX_FRAME_BYTES, |head, payload| {
                self.handle_reassembled_frame(head, payload, to)
            })?;
        }
        loop {
            input = C::handle_complete_responses(self, input, to);
            let Some((head, payload)) = http2::split_frame(&mut input, DEFAULT_MAX_FRAME_BYTES)?
            else {
                break;
            };
            self.handle_frame(head, payload, to)?;
        }
        self.http2.store_partial_frame(input, mended);
        Ok(())
    }

    /// Handles a frame that arrived in several pieces. It is a separate function so that
    /// [`Connection::handle_frame`] is inlined into the loop over complete frames.
    #[inline(never)]
    fn handle_reassembled_frame(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        self.handle_frame(head, payload, to)
    }

    #[inline(always)]
    fn handle_frame(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        match self.dispatch_frame(head, payload, to) {
            Ok(()) => Ok(()),
            Err(violation) => self.handle_violation(violation, to),
        }
    }

    #[inline(always)]
    fn dispatch_frame(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        to: &mut DriverEffects<'_>,
    ) -> Result<(), Violation> {
        match head.kind() {
            kind::DATA => {
                let data = self.http2.process_data(head, payload)?;
                C::on_data(self, data, to)
            }
            kind::HEADERS if head.has_flag(flags::END_HEADERS) => {
                let block = self.http2.process_headers(head, payload)?;
                C::on_header_block(self, block, to)
            }
            _ => self.handle_control_frame(head, payload, to),
        }
    }

    /// Stops sending a request whose response has ended: the server needs no more of it (RFC 9113, 8.1).
    #[inline]
    pub(crate) fn stop_sending(&mut self, id: u32, unsent: u32, out: &mut Vec<u8>) {
        if unsent > 0 {
            self.reset_stream(id, ErrorCode::NO_ERROR, CallStreamState::Ended, out);
        }
    }

    /// Ends the call of a stream with a failure. `last`: the frame that caused the failure. Resets the stream unless
    /// that frame has ended it.
    pub(crate) fn fail_stream(
        &mut self,
        last: StreamPayload<'_>,
        outcome: Outcome,
        detail: Option<String>,
        to: &mut DriverEffects<'_>,
    ) {
        let id = last.stream;
        if last.end_stream {
            let unsent = self.end_call(id, outcome, detail, CallStreamState::Ended, to.events);
            self.stop_sending(id, unsent, to.out);
        } else {
            self.end_call(id, outcome, detail, CallStreamState::Abandoned, to.events);
            self.reset_stream(id, ErrorCode::CANCEL, CallStreamState::Abandoned, to.out);
        }
    }

    /// Ends an open stream's call, and returns how many bytes of its request were not sent.
    #[inline]
    pub(crate) fn end_call(
        &mut self,
        id: u32,
        outcome: Outcome,
        detail: Option<String>,
        state: CallStreamState,
        events: &mut Vec<Event>,
    ) -> u32 {
        let Some(stream) = self.streams.find(id) else {
            return 0;
        };
        let (unsent, is_over) = (stream.unsent, stream.call == NO_CALL);
        self.calls.report_call_end(stream, outcome, events);
        self.calls.release_stream(stream);
        self.streams.close(id, state);
        if let Some(text) = detail.filter(|_| !is_over) {
            self.report_detail(outcome, text, events);
        }
        unsent
    }

    /// Reports the text of a failure, if only a few failures with the same outcome have been reported.
    #[cold]
    pub(crate) fn report_detail(
        &mut self,
        outcome: Outcome,
        text: String,
        events: &mut Vec<Event>,
    ) {
        if self.details.try_count(outcome) {
            events.push(Event::Detail { outcome, text });
        }
    }

    /// Handles DATA or HEADERS (`what`) on a stream without a call in flight (RFC 9113, 5.1).
    #[cold]
    pub(crate) fn on_closed_stream(
        &mut self,
        piece: StreamPayload<'_>,
        what: &str,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let closed = match self.streams.get(piece.stream).map(|stream| stream.state) {
            Some(CallStreamState::Cancelled) => {
                if piece.end_stream {
                    self.streams.close(piece.stream, CallStreamState::Ended);
                    events.push(Event::Late);
                }
                return Ok(());
            }
            Some(CallStreamState::Open | CallStreamState::Abandoned) => StreamCloseCause::Reset,
            Some(CallStreamState::ResetByPeer) => StreamCloseCause::ResetByPeer,
            Some(CallStreamState::Ended) => StreamCloseCause::Ended,
            None => StreamCloseCause::Forgotten,
        };
        self.http2.check_closed_stream(piece.stream, what, closed)
    }
}

/// Returns the connection error for a header block that can't be decoded (RFC 9113, 4.3).
#[cold]
pub(crate) fn compression_violation(error: HpackError) -> Violation {
    Violation::connection_error(ErrorCode::COMPRESSION_ERROR, error.to_string())
}
