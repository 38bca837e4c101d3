//! The task of one session's socket: subscribes, answers 101, serves and closes.
//!
//! The task waits for four events at once: frames from the bus, bytes from the client, room to write, and the next
//! ping. The bus keeps a log of each session's frames. The task holds at most `max_queue` bytes of frames, one page of
//! that log, and `max_queue` bytes of replies. If a client sends messages without reading the replies, its messages are
//! no longer read; if that persists, the session is closed.
//!
//! This file is long because all four events change the same state: the bytes to be written and the client's position.

mod log;

use std::future::poll_fn;
use std::io;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use tokio::time::{Instant, Sleep, sleep, timeout};

use plimsoll_wire::websocket::{
    DeflateParameters, Opcode, ReaderRole, WebSocketMessage, WebSocketReader, append_frame, code,
    encode_close_payload,
};

use super::admission::{self, AdmittedRequest, ResumePosition};
use super::delivery::{DeliveryPosition, FrameAction};
use super::mailbox::{Mailbox, WakeCondition};
use super::request::{GatewayRequest, GatewayResponse};
use super::stream::{
    ClientStream, READ_BUFFER, READ_BUFFER_BYTES, poll_read, send, shutdown_and_drain,
};
use super::{CLOSE_TIMEOUT, Gateway, HANDOVER_TIMEOUT};
use crate::bus::{
    BusError, ChannelDirection, FrameStamp, LogPosition, SessionStatus, Subscription,
};
use crate::client_address::ClientAddress;

/// Upper bound of reply bytes per byte received. The worst case is a message of seven bytes that is not JSON, which is
/// answered with an error frame.
const MAX_REPLY_BYTES_PER_BYTE_READ: usize = 16;
const MIN_READ_BYTES: usize = 256;
/// The code that reports a connection lost without a Close (RFC 6455 §7.4.1).
const ABNORMAL_CLOSE_CODE: u16 = 1006;

/// A session that is subscribed, so that its client may be answered 101.
pub(super) struct AdmittedSession {
    socket: SessionSocket,
    answer: Vec<u8>,
}

/// Checks a request and subscribes to the channel of its session.
pub(super) async fn admit(
    gateway: &Arc<Gateway>,
    request: &GatewayRequest,
    peer: ClientAddress,
) -> Result<AdmittedSession, GatewayResponse> {
    let AdmittedRequest {
        session,
        upgrade,
        resume,
    } = admission::check(gateway, request)?;
    let losses = gateway.bus.data_losses();
    // The mailbox collects published frames from here on.
    let mailbox = Arc::new(Mailbox::new(gateway.options.max_queue));
    let away = |e: BusError| GatewayResponse::refusal(503, "bus", &e.to_string());
    let listening =
        (gateway.bus).listen(session, ChannelDirection::Down, Arc::clone(&mailbox) as _);
    let listening = listening.await.map_err(away)?;
    // The new socket continues where the old one stops.
    if let Some(old) = gateway.registry.close_current(session) {
        let _: Result<(), _> = timeout(HANDOVER_TIMEOUT, old.wait_until_stopped()).await;
    }
    let standing = gateway.bus.session_status(session).await.map_err(away)?;

    let generation = gateway.metrics.sessions.inc();
    gateway.open_sessions.fetch_add(1, Ordering::AcqRel);
    gateway
        .registry
        .register(session, generation, Arc::clone(&mailbox));
    tracing::debug!(session, %peer, "session open");
    let mut socket = SessionSocket {
        gateway: Arc::clone(gateway),
        session: session.into(),
        generation,
        mailbox,
        _listening: listening,
        reader: WebSocketReader::new(ReaderRole::Server, gateway.options.max_message)
            .with_deflate(upgrade.deflate.is_some()),
        deflate: upgrade.deflate,
        delivery: initial_position(&standing),
        written_up_to: DeliveryPosition::default(),
        saved_position: standing.last_delivered,
        joins_late: standing.log_lost,
        is_unpositioned: resume.is_none(),
        has_log: standing.is_open || standing.newest.seq.is_some(),
        open: standing.is_open,
        repaired_losses: losses,
        has_missed_frames: false,
        out: upgrade.encode(),
        written: 0,
        reply_bytes: 0,
        is_blocked: false,
        has_sealed_records: false,
        needs_log: false,
        last_heard: Instant::now(),
        closing: None,
    };
    match resume {
        Some(resume) => socket.resume(resume, standing.newest),
        None => socket.needs_log = socket.has_log && standing.newest.seq > socket.delivery.last,
    }
    socket.written_up_to = socket.delivery;
    Ok(AdmittedSession {
        answer: std::mem::take(&mut socket.out),
        socket,
    })
}

/// Returns the position of a new socket whose client names none: after the last frame sent to the
/// session's previous socket, or the beginning of the session. Frames that the log has lost are
/// skipped.
fn initial_position(standing: &SessionStatus) -> DeliveryPosition {
    let (newest, stopped) = (standing.newest, standing.last_delivered);
    let is_of_log = |at: &LogPosition| newest.epoch.is_none_or(|epoch| epoch == at.epoch);
    let stopped = stopped.filter(is_of_log).map_or(0, |at| at.last);
    DeliveryPosition {
        last: if standing.log_lost {
            newest.seq
        } else {
            Some(stopped)
        },
        epoch: newest.epoch,
    }
}

impl AdmittedSession {
    /// Sends the 101 response and serves until the session ends.
    pub(super) async fn serve(mut self, mut stream: ClientStream) {
        if send(&mut stream, &self.answer).await.is_err() {
            return;
        }
        self.answer = Vec::new();
        let code = self.socket.run(&mut stream).await;
        self.socket.gateway.metrics.count_close(code);
        tracing::debug!(session = %self.socket.session, code, "session closed");
    }
}

struct SessionSocket {
    gateway: Arc<Gateway>,
    session: Box<str>,
    generation: u64,
    mailbox: Arc<Mailbox>,
    _listening: Subscription,
    reader: WebSocketReader,
    deflate: Option<DeflateParameters>,
    delivery: DeliveryPosition,
    /// The position up to which frames have been written to the socket; `delivery` also counts frames still in `out`.
    written_up_to: DeliveryPosition,
    /// The last position that was recorded on the bus, if any.
    saved_position: Option<LogPosition>,
    /// The log was lost: the first frame that arrives sets the position.
    joins_late: bool,
    /// The client did not name its position and was sent no frame yet.
    is_unpositioned: bool,
    /// The session has a log. Without a log, frames are passed on in the order of arrival.
    has_log: bool,
    /// The session was open on the bus when the socket was opened.
    open: bool,
    /// The value of [`crate::bus::Bus::data_losses`] up to which losses were repaired.
    repaired_losses: u64,
    /// Frames were dropped that only the log still has.
    has_missed_frames: bool,
    /// Frames that are not written yet.
    out: Vec<u8>,
    written: usize,
    /// Upper bound of the bytes in `out` that are replies to the client's messages.
    reply_bytes: usize,
    /// The last write found the socket full.
    is_blocked: bool,
    /// TLS records of written data have not reached the socket yet.
    has_sealed_records: bool,
    needs_log: bool,
    /// When the client last sent something, or accepted output.
    last_heard: Instant,
    /// The close code and reason, once the session is to be closed.
    closing: Option<(u16, &'static str)>,
}

impl Drop for SessionSocket {
    fn drop(&mut self) {
        self.mailbox.mark_stopped();
        self.gateway
            .registry
            .unregister(&self.session, self.generation);
        self.gateway.open_sessions.fetch_sub(1, Ordering::AcqRel);
    }
}

enum SocketEvent {
    Mail,
    /// Result of a read into the thread's buffer.
    Read(io::Result<usize>),
    /// The pending output was written.
    Flushed(io::Result<()>),
    Timer,
}

impl SessionSocket {
    /// Continues at the position that a returning client names, or notifies it that this is
    /// impossible.
    fn resume(&mut self, resume: ResumePosition, newest: FrameStamp) {
        let same_log = match (resume.epoch, newest.epoch) {
            (Some(theirs), Some(ours)) => theirs == ours,
            _ => true,
        };
        let possible = same_log && resume.after <= newest.seq.unwrap_or(0);
        if possible {
            self.delivery.last = Some(resume.after);
            self.delivery.epoch = newest.epoch;
            self.needs_log = newest.seq.is_some_and(|newest| newest > resume.after);
            self.notify_resumed(true, resume.after);
        } else {
            // The new log is sent from its beginning.
            self.delivery.begin_epoch(newest.epoch);
            if !self.has_log {
                self.delivery.last = Some(resume.after);
            }
            self.needs_log = newest.seq.is_some();
            self.notify_resumed(false, resume.after);
        }
    }

    fn notify_resumed(&mut self, resumed: bool, after: u64) {
        if !resumed {
            self.gateway.metrics.gaps.inc();
        }
        let frame = serde_json::json!({
            "type": "resumed",
            "resumed": resumed,
            "after": after,
            "epoch": self.delivery.epoch,
        });
        append_frame(&mut self.out, Opcode::Text, frame.to_string().as_bytes());
    }

    /// Serves until the session ends; returns the close code.
    async fn run(&mut self, stream: &mut ClientStream) -> u16 {
        // Frames published between the subscription and the status query are both in the mailbox
        // and in the log, but have not been sent to the client.
        let early = self.mailbox.take_contents();
        if let Some(first) = early.frames.front().and_then(|f| FrameStamp::parse(f).seq)
            && let Some(last) = self.delivery.last
            && self.joins_late
            && !self.needs_log
        {
            self.delivery.last = Some(last.min(first.saturating_sub(1)));
        }
        self.deliver(early.frames);
        self.needs_log |= early.behind;

        let mut timer = pin!(sleep(self.gateway.options.ping_interval));
        loop {
            let flushed = poll_fn(|cx| Poll::Ready(self.poll_flush(cx, stream))).await;
            if matches!(flushed, Poll::Ready(Err(_))) {
                return self.end_without_close().await;
            }
            self.restore_if_lost().await;
            if let Some((close_code, reason)) = self.closing {
                return self
                    .close_gracefully(stream, close_code, reason, None)
                    .await;
            }
            if self.needs_log && self.out.is_empty() {
                self.read_log(timer.as_mut()).await;
                // Reading the log may have revealed that the bus has lost its data.
                self.restore_if_lost().await;
                if !self.out.is_empty() || self.closing.is_some() {
                    continue;
                }
            }
            match self.next_event(stream, timer.as_mut()).await {
                SocketEvent::Mail => self.process_mailbox(),
                SocketEvent::Read(got) => match self.handle_input(got).await {
                    Ok(()) => {}
                    Err(DisconnectReason::ByClient(code)) => {
                        // The remaining output is still written, but does not count as delivered.
                        let before = self.written_up_to;
                        return self.close_gracefully(stream, code, "", Some(before)).await;
                    }
                    Err(DisconnectReason::Lost) => return self.end_without_close().await,
                },
                SocketEvent::Flushed(Ok(())) => {}
                SocketEvent::Flushed(Err(_)) => return self.end_without_close().await,
                SocketEvent::Timer => {
                    self.on_ping_timer(timer.as_mut());
                    // The position is recorded regularly, so that few frames are sent twice if this gateway is killed.
                    self.record_delivered().await;
                }
            }
        }
    }

    async fn end_without_close(&mut self) -> u16 {
        self.stop_delivery().await;
        ABNORMAL_CLOSE_CODE
    }

    /// Stops delivery and records the position from which the next socket continues.
    async fn stop_delivery(&mut self) {
        self.record_delivered().await;
        self.mailbox.mark_stopped();
    }

    /// Records on the bus how far this socket has delivered.
    async fn record_delivered(&mut self) {
        let Some(last) = self.written_up_to.last.filter(|last| *last > 0) else {
            return;
        };
        let epoch = self.written_up_to.epoch.unwrap_or(0);
        let at = LogPosition { epoch, last };
        if self.saved_position == Some(at) {
            return;
        }
        let note = self.gateway.bus.save_position(&self.session, at);
        // If the bus is down, the position is recorded at the next tick.
        if matches!(timeout(CLOSE_TIMEOUT, note).await, Ok(Ok(()))) {
            self.saved_position = Some(at);
        }
    }

    async fn next_event(
        &mut self,
        stream: &mut ClientStream,
        mut timer: Pin<&mut Sleep>,
    ) -> SocketEvent {
        let blocked = !self.out.is_empty() || self.has_sealed_records;
        // While output is pending, frames stay in the mailbox.
        let wanted = if blocked {
            WakeCondition::CloseOrder
        } else {
            WakeCondition::AnyMail
        };
        poll_fn(|cx| {
            if self.mailbox.poll(cx, wanted).is_ready() {
                return Poll::Ready(SocketEvent::Mail);
            }
            if blocked && let Poll::Ready(flushed) = self.poll_flush(cx, stream) {
                return Poll::Ready(SocketEvent::Flushed(flushed));
            }
            if !self.exceeds_reply_limit() {
                let room = self
                    .gateway
                    .options
                    .max_queue
                    .saturating_sub(self.reply_bytes);
                let most =
                    (room / MAX_REPLY_BYTES_PER_BYTE_READ).clamp(MIN_READ_BYTES, READ_BUFFER_BYTES);
                if let Poll::Ready(got) = poll_read(stream, cx, most) {
                    return Poll::Ready(SocketEvent::Read(got));
                }
            }
            timer.as_mut().poll(cx).map(|()| SocketEvent::Timer)
        })
        .await
    }

    /// Returns whether the client has so many unread replies that its messages are not read for now.
    fn exceeds_reply_limit(&self) -> bool {
        self.reply_bytes > self.gateway.options.max_queue
    }

    /// Writes as much as the socket takes without waiting; returns ready when everything is
    /// written.
    fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut ClientStream,
    ) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            match Pin::new(&mut *stream).poll_write(cx, &self.out[self.written..])? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(n) => {
                    self.written += n;
                    if std::mem::take(&mut self.is_blocked) {
                        // The client reads, so it is alive.
                        self.last_heard = Instant::now();
                    }
                }
                Poll::Pending => {
                    self.is_blocked = true;
                    // Frees the written part of the buffer even if output remains.
                    if self.written > self.out.len() / 2 {
                        self.out.drain(..self.written);
                        self.written = 0;
                    }
                    self.reply_bytes = self.reply_bytes.min(self.out.len() - self.written);
                    return Poll::Pending;
                }
            }
        }
        self.written_up_to = self.delivery;
        // Frees the buffer, so that idle sessions hold none.
        self.out = Vec::new();
        self.written = 0;
        self.reply_bytes = 0;
        let flushed = Pin::new(stream).poll_flush(cx)?;
        self.has_sealed_records = flushed.is_pending();
        flushed.map(Ok)
    }

    fn process_mailbox(&mut self) {
        let mail = self.mailbox.take_contents();
        if let Some(code) = mail.close {
            // Earlier frames are sent first, unless another socket sends them.
            if code != code::SESSION_REPLACED {
                self.deliver(mail.frames);
            }
            let reason = match code {
                code::SESSION_REPLACED => "another connection took the session over",
                code::SERVICE_RESTART => "the gateway is restarting",
                _ => "",
            };
            self.closing = Some((code, reason));
            return;
        }
        if mail.lost {
            self.has_missed_frames = true;
            self.gateway.metrics.slow.inc();
            let unnumbered = |frame: &Bytes| FrameStamp::parse(frame).seq.is_none();
            if mail.frames.front().is_none_or(unnumbered) {
                // Frames without numbers are in no log, so the dropped ones are lost.
                self.closing = Some((code::TRY_AGAIN_LATER, "the client reads too slowly"));
                return;
            }
        }
        self.deliver(mail.frames);
        self.needs_log |= mail.behind;
    }

    fn deliver(&mut self, frames: impl IntoIterator<Item = Bytes>) {
        for frame in frames {
            // The remaining frames are read from the log, after those that are missing.
            if self.needs_log {
                return;
            }
            let stamp = FrameStamp::parse(&frame);
            if !self.has_log && stamp.epoch.is_none() {
                let gone = self.delivery.on_unlogged_frame(stamp);
                self.gateway.metrics.gone.inc_by(gone);
                self.send_frame(&frame);
                continue;
            }
            let mut action = self.delivery.on_live_frame(stamp);
            if action == FrameAction::NewEpoch {
                let after = self.delivery.last.unwrap_or(0);
                self.delivery.begin_epoch(stamp.epoch);
                self.notify_resumed(false, after);
                action = self.delivery.on_live_frame(stamp);
            }
            match action {
                FrameAction::Send => self.send_frame(&frame),
                FrameAction::Drop => {
                    self.gateway.metrics.duplicates.inc();
                }
                FrameAction::ReadLog | FrameAction::NewEpoch => self.needs_log = true,
            }
        }
    }

    fn send_frame(&mut self, frame: &Bytes) {
        self.is_unpositioned = false;
        match self.deflate {
            None => append_frame(&mut self.out, Opcode::Text, frame),
            Some(deflate) => deflate.append_message(&mut self.out, Opcode::Text, frame),
        }
        let metrics = &self.gateway.metrics;
        metrics.frames.inc();
        metrics.frame_bytes.inc_by(frame.len() as u64);
    }

    /// Handles the bytes that were just read.
    async fn handle_input(&mut self, got: io::Result<usize>) -> Result<(), DisconnectReason> {
        let got = match got {
            Ok(0) | Err(_) => return Err(DisconnectReason::Lost),
            Ok(got) => got,
        };
        self.last_heard = Instant::now();
        let before = self.out.len();
        let mut up = Vec::new();
        let mut ended = None;
        let out = &mut self.out;
        let violation = READ_BUFFER.with_borrow(|buffer| {
            self.reader.read(&buffer[..got], |message| {
                match message {
                    WebSocketMessage::Text(text) => up.push(text.to_owned()),
                    WebSocketMessage::Ping(payload) => append_frame(out, Opcode::Pong, payload),
                    WebSocketMessage::Pong(_) => {}
                    WebSocketMessage::Binary(_) => {
                        ended = Some(DisconnectReason::ByClient(1003));
                        return ControlFlow::Break(());
                    }
                    WebSocketMessage::Close { code: closed, .. } => {
                        ended = Some(DisconnectReason::ByClient(closed));
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            })
        });
        for text in up {
            self.forward_to_backends(&text).await;
        }
        self.reply_bytes += self.out.len() - before;
        if let Err(violation) = violation {
            self.closing = Some((violation.code, violation.reason));
        }
        match ended {
            Some(ended) => Err(ended),
            None => Ok(()),
        }
    }

    async fn forward_to_backends(&mut self, text: &str) {
        let metrics = &self.gateway.metrics;
        metrics.up_messages.inc();
        let problem = if serde_json::from_str::<serde::de::IgnoredAny>(text).is_err() {
            Some(("not_json", "the message is not JSON"))
        } else {
            match self
                .gateway
                .bus
                .send_to_backends(&self.session, text.as_bytes())
                .await
            {
                Ok(0) => {
                    metrics.up_unheard.inc();
                    Some(("nobody_listens", "no run is active, so no backend listens"))
                }
                Ok(_) => None,
                Err(_) => Some(("unavailable", "the message could not be forwarded")),
            }
        };
        if let Some((code, message)) = problem {
            let frame = serde_json::json!({ "type": "error", "code": code, "message": message });
            append_frame(&mut self.out, Opcode::Text, frame.to_string().as_bytes());
        }
    }

    fn on_ping_timer(&mut self, timer: Pin<&mut Sleep>) {
        let options = &self.gateway.options;
        let now = Instant::now();
        if now - self.last_heard > options.ping_timeout {
            self.closing = Some(if self.exceeds_reply_limit() {
                self.gateway.metrics.unread.inc();
                (
                    code::POLICY_VIOLATION,
                    "the client does not read its answers",
                )
            } else {
                (code::PING_TIMEOUT, "no data or pong from the client")
            });
            return;
        }
        if self.out.is_empty() && !self.needs_log {
            append_frame(&mut self.out, Opcode::Ping, b"");
        }
        timer.reset(now + options.ping_interval);
    }

    /// Performs the closing handshake within a time limit (RFC 6455 §7.1). `taken`: the position after which output
    /// does not count as delivered; `None`: all output counts.
    async fn close_gracefully(
        &mut self,
        stream: &mut ClientStream,
        close_code: u16,
        reason: &str,
        taken: Option<DeliveryPosition>,
    ) -> u16 {
        // Frames that arrive from here on are not delivered.
        let rest = self.out.split_off(self.written);
        let wrote = timeout(CLOSE_TIMEOUT, send(stream, &rest)).await;
        let wrote = matches!(wrote, Ok(Ok(())));
        if wrote {
            self.written_up_to = taken.unwrap_or(self.delivery);
        }
        // The position is recorded before the client learns of the close, because it may reconnect at once.
        self.stop_delivery().await;
        if !wrote {
            // A frame was only partly written, so a Close would land inside it.
            return close_code;
        }
        let mut close = Vec::new();
        append_frame(
            &mut close,
            Opcode::Close,
            &encode_close_payload(close_code, reason),
        );
        shutdown_and_drain(stream, &close).await;
        close_code
    }
}

enum DisconnectReason {
    /// The client sent Close with this code, which must be answered.
    ByClient(u16),
    Lost,
}
