//! Handles the frames of a connection, and violations of the protocol in them.

use super::super::{
    EndpointRole, ErrorCode, FrameHeader, HeaderBlock, Http2Frame, MAX_WINDOW_BYTES,
    SettingsPayload, StreamPayload, Violation, flags, kind, setting, write,
};
use super::{
    ConnectionStage, ControlEvent, Http2Connection, StreamCloseCause, StreamWindows, protocol_error,
};

impl<P: EndpointRole> Http2Connection<P> {
    /// Returns whether a frame of any type may come next: SETTINGS have arrived and no header block is incomplete.
    #[inline(always)]
    pub fn accepts_any_frame(&self) -> bool {
        self.stage != ConnectionStage::Greeting && self.block.is_none()
    }

    /// Processes DATA and subtracts it from the connection's receive window.
    ///
    /// # Errors
    /// Returns an error if the frame is out of order, invalid, or exceeds the window.
    #[inline(always)]
    pub fn process_data<'a>(
        &mut self,
        head: FrameHeader,
        payload: &'a [u8],
    ) -> Result<StreamPayload<'a>, Violation> {
        self.check_frame_order(head)?;
        let bytes = Http2Frame::parse_data(head, payload)?;
        // Flow control includes padding, and data for closed streams (RFC 9113 §6.9).
        self.receive_window.receive(0, head.length())?;
        Ok(head.stream_payload(bytes))
    }

    /// Subtracts DATA that was processed without [`Http2Connection::process_data`] from the receive window.
    #[inline]
    pub fn count_received_data(&mut self, length: u32) {
        self.receive_window.count_received(length);
    }

    /// Processes HEADERS with END_HEADERS.
    ///
    /// # Errors
    /// Returns an error if the frame is out of order or invalid.
    #[inline(always)]
    pub fn process_headers<'a>(
        &self,
        head: FrameHeader,
        payload: &'a [u8],
    ) -> Result<StreamPayload<'a>, Violation> {
        self.check_frame_order(head)?;
        Ok(head.stream_payload(Http2Frame::parse_headers_fragment(head, payload)?))
    }

    /// Returns whether a header block on `stream` opens a new stream, and if so marks its id as used; only a client can
    /// open one. Unused ids below become closed (RFC 9113 §5.1.1).
    #[inline]
    pub fn try_open_stream(&mut self, stream: u32) -> bool {
        let opens = !self.role.is_client() && stream >= self.next_id && stream % 2 == 1;
        if opens {
            self.skip_ids_below(stream + 2);
        }
        opens
    }

    /// Processes a frame of any other type; appends answers that need no decision of the caller to `out`.
    ///
    /// # Errors
    /// Returns an error if the frame violates a rule; [`Http2Connection::check_violation_scope`] tells whether only a stream is
    /// affected.
    #[inline(never)]
    pub fn process_control_frame<'a>(
        &mut self,
        head: FrameHeader,
        payload: &'a [u8],
        streams: &mut impl StreamWindows,
        out: &mut Vec<u8>,
    ) -> Result<ControlEvent<'a>, Violation> {
        self.check_frame_order(head)?;
        let stream = head.stream();
        match Http2Frame::parse(head, payload)? {
            Http2Frame::Headers { fragment, .. } => {
                if self.role.is_client() {
                    self.check_not_idle(stream, "HEADERS")?;
                }
                self.block = Some(Box::new(HeaderBlock::new(head.stream_payload(fragment))));
            }
            Http2Frame::Continuation {
                fragment,
                end_headers,
            } => {
                let Some(mut block) = self.block.take() else {
                    let why = "CONTINUATION after no HEADERS (RFC 9113, 6.10)";
                    return Err(protocol_error(why));
                };
                block.push(fragment, self.max_header_block_bytes())?;
                if end_headers {
                    return Ok(ControlEvent::Block(block));
                }
                self.block = Some(block);
            }
            Http2Frame::Settings(settings) => {
                self.apply_settings(settings, streams)?;
                write::settings_ack(out);
                return Ok(ControlEvent::Settings(settings));
            }
            Http2Frame::SettingsAck => {
                self.is_acknowledged = true;
                return Ok(ControlEvent::Acknowledged);
            }
            Http2Frame::Ping { data } => write::ping_ack(out, data),
            Http2Frame::PingAck { data } => return Ok(ControlEvent::Pong(data)),
            Http2Frame::WindowUpdate { increment } if stream == 0 => {
                let window = self.send_window + increment;
                if window > MAX_WINDOW_BYTES {
                    return Err(window_overflow_violation(0));
                }
                self.send_window = window;
                return Ok(ControlEvent::WindowGrown);
            }
            Http2Frame::WindowUpdate { increment } => {
                self.check_not_idle(stream, "WINDOW_UPDATE")?;
                if let Some(window) = streams.send_window(stream) {
                    let wider = window.checked_add_unsigned(increment);
                    *window = wider.ok_or_else(|| window_overflow_violation(stream))?;
                    return Ok(ControlEvent::WindowGrown);
                }
            }
            Http2Frame::ResetStream { code } => {
                self.check_not_idle(stream, "RST_STREAM")?;
                return Ok(ControlEvent::Reset { stream, code });
            }
            Http2Frame::GoAway {
                last_stream,
                code,
                debug,
            } => {
                if last_stream > self.last_stream {
                    return Err(protocol_error(format!(
                        "GOAWAY up to stream {last_stream} after one up to {} (RFC 9113, 6.8)",
                        self.last_stream
                    )));
                }
                (self.last_stream, self.stage) = (last_stream, ConnectionStage::Draining);
                return Ok(ControlEvent::GoAway {
                    last_stream,
                    code,
                    debug,
                });
            }
            Http2Frame::PushPromise { .. } => {
                return Err(protocol_error(
                    "PUSH_PROMISE although push is disabled (RFC 9113, 8.4)",
                ));
            }
            Http2Frame::Priority | Http2Frame::Unknown | Http2Frame::Data { .. } => {}
        }
        Ok(ControlEvent::Nothing)
    }

    fn apply_settings(
        &mut self,
        settings: SettingsPayload<'_>,
        streams: &mut impl StreamWindows,
    ) -> Result<(), Violation> {
        for (id, value) in settings.iter() {
            match id {
                setting::ENABLE_PUSH if value != 0 && self.role.is_client() => {
                    return Err(protocol_error(
                        "ENABLE_PUSH from a server (RFC 9113, 6.5.2)",
                    ));
                }
                setting::MAX_CONCURRENT_STREAMS => self.max_streams = value,
                // The windows of open streams change by the difference between the old and the new initial size (RFC
                // 9113, 6.9.2).
                setting::INITIAL_WINDOW_SIZE => {
                    let change = i64::from(value) - i64::from(self.initial_window);
                    for window in streams.send_windows() {
                        let moved = i32::try_from(i64::from(*window) + change);
                        *window = moved.map_err(|_| window_overflow_violation(0))?;
                    }
                    self.initial_window = value;
                }
                // The other settings need no action here: we send frames of the default size, which MAX_FRAME_SIZE
                // always allows, and a peer rejects field lists that are too large.
                _ => {}
            }
        }
        self.stage = self.stage.max(ConnectionStage::Open);
        Ok(())
    }

    // ---- rules ----

    /// Determines the scope of a violation: `Ok` if it ends only a stream, provided that the caller still knows the
    /// stream; `Err` if it ends the connection. A stream that was never opened cannot be reset (RFC 9113 §5.4.2).
    ///
    /// # Errors
    /// Returns the violation if it ends the connection.
    #[cold]
    pub fn check_violation_scope(&self, violation: Violation) -> Result<Violation, Violation> {
        if violation.stream == 0 || self.is_idle(violation.stream) {
            Err(violation)
        } else {
            Ok(violation)
        }
    }

    /// Checks DATA or HEADERS (`what`) on a stream that no longer accepts frames (RFC 9113 §5.1).
    ///
    /// # Errors
    /// Returns an error if the peer must have known that the stream accepts no frames.
    #[cold]
    pub fn check_closed_stream(
        &self,
        stream: u32,
        what: &str,
        closed: StreamCloseCause,
    ) -> Result<(), Violation> {
        self.check_not_idle(stream, what)?;
        let after = |of: u32, frame: &str| {
            let why = format!("{what} on stream {stream} after {frame} (RFC 9113, 5.1)");
            Err(Violation::stream_error(of, ErrorCode::STREAM_CLOSED, why))
        };
        // Each end's GOAWAY excludes streams that the other end opened.
        let left_out = if self.role.is_client() {
            stream > self.last_stream
        } else {
            self.last_accepted.is_some_and(|last| stream > last)
        };
        match closed {
            StreamCloseCause::Reset => Ok(()),
            StreamCloseCause::Forgotten if stream <= self.last_reset || left_out => Ok(()),
            StreamCloseCause::ResetByPeer => after(stream, "RST_STREAM"),
            StreamCloseCause::EndedByPeer => after(stream, "END_STREAM"),
            StreamCloseCause::Ended | StreamCloseCause::Forgotten => after(0, "END_STREAM"),
        }
    }

    /// Returns whether the stream was never opened; servers open no streams (RFC 9113 §5.1.1).
    fn is_idle(&self, stream: u32) -> bool {
        stream.is_multiple_of(2) || stream >= self.next_id
    }

    fn check_not_idle(&self, stream: u32, what: &str) -> Result<(), Violation> {
        if self.is_idle(stream) {
            Err(protocol_error(format!(
                "{what} on stream {stream}, which was never opened (RFC 9113, 5.1)"
            )))
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn check_frame_order(&self, head: FrameHeader) -> Result<(), Violation> {
        if self.accepts_any_frame() {
            Ok(())
        } else {
            self.check_required_frame(head)
        }
    }

    /// Checks a frame that arrives before SETTINGS or inside a header block.
    #[cold]
    fn check_required_frame(&self, head: FrameHeader) -> Result<(), Violation> {
        let name = kind::name(head.kind()).unwrap_or("a frame of unknown type");
        // MOSN's client may acknowledge our SETTINGS before it sends its own. RFC 9113, 3.4 forbids that, but
        // grpc-go, gRPC's C core and nginx allow it.
        let is_settings =
            head.kind() == kind::SETTINGS && !(head.has_flag(flags::ACK) && self.role.is_client());
        if self.stage == ConnectionStage::Greeting && !is_settings {
            let why = format!("{name} before the peer's SETTINGS (RFC 9113, 3.4)");
            return Err(protocol_error(why));
        }
        let stream = head.stream();
        let open = self.block.as_ref().map(|block| block.payload().stream);
        match open.filter(|open| head.kind() != kind::CONTINUATION || stream != *open) {
            None => Ok(()),
            Some(open) => Err(protocol_error(format!(
                "{name} on stream {stream} inside a header block, of stream {open} (RFC 9113, 4.3)"
            ))),
        }
    }
}

/// Returns the violation for a window overflow (RFC 9113 §6.9.1 and §6.9.2).
#[cold]
fn window_overflow_violation(stream: u32) -> Violation {
    let why = "a window over 2147483647 bytes (RFC 9113, 6.9.1)";
    Violation::stream_error(stream, ErrorCode::FLOW_CONTROL_ERROR, why)
}
