//! A session's WebSocket: opens and reads the socket, and reopens it when it is lost.

use std::ops::ControlFlow;

use plimsoll_engine::script::ScriptContext;
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::http1::append_request_head;
use plimsoll_wire::websocket::{
    DeflateParameters, Opcode, ReaderRole, UpgradeOffer, UpgradeResponse, Violation,
    WebSocketMessage, WebSocketReader, append_masked_frame, client_key, code, encode_close_payload,
};

use crate::session::measures;
use crate::shared::backoff::Backoff;

use super::{ApiRequest, MAX_FRAME_BYTES, SOCKET_LINK, SessionSocketState, UserSession};

impl UserSession {
    pub(super) fn open_socket(&mut self, now: Time, ctx: &mut ScriptContext<'_>) {
        self.socket = SessionSocketState::Connecting;
        self.socket_requested_at = now;
        ctx.connect(SOCKET_LINK);
    }

    pub(super) fn write_upgrade_request(&mut self, now: Time, out: &mut Vec<u8>) {
        let mut query = String::new();
        if self.lost_at != Time::NEVER {
            let (last, epoch) = self.account.position();
            query = format!("?after={last}");
            if let Some(epoch) = epoch {
                query.push_str(&format!("&epoch={epoch}"));
            }
        }
        // Each connection has a new nonce (RFC 6455 §4.1). It protects against caching intermediaries, not against
        // attackers, so it may repeat in a run with the same seed.
        let (high, low) = (self.random.next_u64(), self.random.next_u64());
        self.nonce[..8].copy_from_slice(&high.to_ne_bytes());
        self.nonce[8..].copy_from_slice(&low.to_ne_bytes());
        let key = client_key(&self.nonce);
        let options = &self.options;
        let target = format!("/{}/ws/{}{query}", options.call.agent, self.session_id);
        let authorization = format!("Bearer {}", self.session_token);
        let mut fields = vec![
            ("Host", &*options.socket_host),
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", &key),
            ("Authorization", &authorization),
        ];
        if options.call.compression {
            fields.push(("Sec-WebSocket-Extensions", DeflateParameters::CLIENT_OFFER));
        }
        let mut own = self.plan_header_fields(now);
        own.retain(|(name, _)| name != "authorization");
        fields.extend(own.iter().map(|(name, value)| (&**name, &**value)));
        append_request_head(out, "GET", &target, &fields);
    }

    pub(super) fn on_upgrade_bytes(
        &mut self,
        bytes: &[u8],
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        self.upgrade_response.extend_from_slice(bytes);
        let offer = UpgradeOffer {
            compression: self.options.call.compression,
            protocols: &[],
        };
        let answer =
            match UpgradeResponse::parse(&self.upgrade_response, &client_key(&self.nonce), offer) {
                Ok(None) => return,
                Ok(Some(answer)) => answer,
                Err(e) => {
                    turn.record_failure_message(Outcome::SocketRefused, &e.to_string());
                    turn.close(SOCKET_LINK);
                    return self.on_socket_lost(Outcome::SocketRefused, now, turn);
                }
            };
        if let Some(text) = answer.problem {
            let denied = matches!(answer.status, 401 | 403);
            // The address belongs to another service, so retrying is pointless.
            let elsewhere = matches!(answer.status, 404 | 405 | 426) && self.opened_ns == 0;
            let outcome = if denied {
                Outcome::SocketDenied
            } else {
                Outcome::SocketRefused
            };
            let advice = if elsewhere {
                ": no WebSockets at this address; set it with --socket"
            } else {
                ""
            };
            turn.record_failure_message(outcome, &format!("{text}{advice}"));
            turn.close(SOCKET_LINK);
            if denied || elsewhere {
                return self.abort_session(outcome, now, turn);
            }
            return self.on_socket_lost(outcome, now, turn);
        }
        self.socket = SessionSocketState::Open;
        if let Some(agreed) = answer.deflate {
            self.reader = WebSocketReader::new(ReaderRole::Client, MAX_FRAME_BYTES)
                .with_deflate_parameters(agreed);
        }
        turn.record_time(TimeMeasure::SocketOpen, now.since(self.socket_requested_at));
        if self.opened_ns == 0 {
            self.opened_ns = now.since(self.socket_requested_at);
        }
        if self.lost_at != Time::NEVER && self.queries_begun > 0 && self.has_reconnected {
            turn.add_to_count(Count::Reconnects, 1);
            if let Some(query) = &mut self.query {
                query.reconnects += 1;
            }
            turn.record_time(TimeMeasure::Reconnect, now.since(self.lost_at));
        }
        let gathered = std::mem::take(&mut self.upgrade_response);
        let rest = &gathered[answer.size..];
        if self.query.is_none() && self.request.is_none() && self.next_at == Time::NEVER {
            // Begins the first query, or the query that waited for the socket.
            self.send_query(now, turn);
        }
        if !rest.is_empty() {
            self.on_frame_bytes(rest, now, turn);
        }
    }

    /// Handles a socket that was lost or could not be opened: schedules another attempt, or ends the session.
    pub(super) fn on_socket_lost(
        &mut self,
        outcome: Outcome,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        let was_open = self.socket == SessionSocketState::Open;
        self.socket = SessionSocketState::Closed;
        let outcome = match outcome {
            Outcome::ProtocolError => outcome,
            _ if was_open => Outcome::SocketClosed,
            _ => outcome,
        };
        self.socket_failure = Some(outcome);
        if self.request == Some(ApiRequest::Close) {
            return;
        }
        if was_open {
            self.lost_at = now;
            if !std::mem::replace(&mut self.has_reconnected, true) {
                turn.add_to_count(measures::SESSIONS_RECONNECTED, 1);
            }
        } else if self.has_reconnected {
            turn.add_to_count(Count::ReconnectsFailed, 1);
            if let Some(query) = &mut self.query {
                query.reconnects_failed += 1;
            }
        }
        if self.attempts >= self.options.call.reconnects {
            return self.abort_session(outcome, now, turn);
        }
        let backoff = Backoff {
            first: self.options.call.reconnect_pause,
            max: self.options.call.max_reconnect_pause,
        };
        let pause = backoff.draw_pause(self.attempts, &mut self.random);
        self.attempts += 1;
        self.socket = SessionSocketState::Pausing(now + pause);
        self.request_wake_up(turn);
    }

    pub(super) fn on_frame_bytes(&mut self, bytes: &[u8], now: Time, turn: &mut ScriptContext<'_>) {
        let mut reader = std::mem::replace(
            &mut self.reader,
            WebSocketReader::new(ReaderRole::Client, 0),
        );
        let mut closed = None;
        let read = reader.read(bytes, |message| {
            match message {
                WebSocketMessage::Text(text) => self.on_frame(text, now, turn),
                WebSocketMessage::Binary(_) => {
                    closed = Some(protocol_violation("a binary frame"));
                    return ControlFlow::Break(());
                }
                WebSocketMessage::Ping(payload) => {
                    let mask = self.random.mask();
                    append_masked_frame(turn.out_buffer(SOCKET_LINK), Opcode::Pong, mask, payload);
                }
                WebSocketMessage::Pong(_) => {}
                WebSocketMessage::Close { code, reason } => {
                    turn.record_failure_message(
                        Outcome::SocketClosed,
                        &format!("the socket was closed with {code} {reason}"),
                    );
                    closed = Some(Violation { code, reason: "" });
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        self.reader = reader;
        let closed = match (closed, read) {
            (None, Ok(())) => return,
            (Some(closed), _) => closed,
            (None, Err(violation)) => violation,
        };
        let outcome = match closed.reason {
            "" => Outcome::SocketClosed,
            reason => {
                turn.record_failure_message(Outcome::ProtocolError, reason);
                Outcome::ProtocolError
            }
        };
        if self.socket != SessionSocketState::Open {
            return;
        }
        let mask = self.random.mask();
        let payload = encode_close_payload(closed.code, closed.reason);
        append_masked_frame(turn.out_buffer(SOCKET_LINK), Opcode::Close, mask, &payload);
        turn.close(SOCKET_LINK);
        self.on_socket_lost(outcome, now, turn);
    }
}

fn protocol_violation(reason: &'static str) -> Violation {
    Violation {
        code: code::PROTOCOL_ERROR,
        reason,
    }
}
