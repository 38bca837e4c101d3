//! One user's session as a state machine without I/O: creates the session, opens its socket, sends its queries one
//! after another, reads their tokens, and closes the session.
//!
//! A query is a call. It succeeds when its `done` frame has arrived and every one of its tokens was received once and
//! in order; a query without a `done` frame fails at its deadline. The expected number of tokens is in the API's
//! response or in the `done` frame, or else in the plan. If the `done` frame arrives before the API's response, the
//! query ends with that response.
//!
//! The socket is open before the first query is sent. When it is lost, it is reopened after a random pause, with a
//! request to continue after the last number received; after 401 or 403 it is not reopened. Pauses grow until a frame
//! arrives: opening a socket alone does not count as progress. A query whose deadline passes while the socket is lost
//! fails with the reason of the last loss.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::script::{LinkId, Script, ScriptContext, ScriptFactory, ScriptStart};
use plimsoll_engine::tls::TlsClient;
use plimsoll_model::metrics::token_times::TokenTimes;
use plimsoll_model::plan::Target;
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::websocket::{
    Opcode, ReaderRole, WebSocketReader, append_masked_frame, code, encode_close_payload,
};

use super::SessionCall;
use super::http::ApiResponseReader;
use super::measures;
use crate::shared::clock_origin::ClockOrigin;
use crate::shared::token_account::TokenAccount;
use crate::shared::xorshift::Xorshift;

mod api;
mod queries;
mod socket;

const API_LINK: LinkId = LinkId(0);
const SOCKET_LINK: LinkId = LinkId(1);
const MAX_FRAME_BYTES: usize = 1 << 20;

/// Settings that all sessions of a run share.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The target of the HTTP API.
    pub api: Target,
    /// TLS of the API; `None` means plaintext.
    pub api_tls: Option<TlsClient>,
    /// TLS of the sockets; `None` means plaintext.
    pub socket_tls: Option<TlsClient>,
    /// The `Host` of API requests.
    pub api_host: String,
    /// The `Host` of upgrades.
    pub socket_host: String,
    /// The session's settings from the plan.
    pub call: SessionCall,
    /// The time limit for each query, and for creating the session; `None` means no limit.
    pub deadline: Option<Duration>,
    /// The seed of the sessions' random numbers.
    pub seed: u64,
}

/// The factory of a run's sessions.
pub struct SessionScripts {
    options: Arc<SessionOptions>,
    /// Nanoseconds since 1970 at [`Time::ZERO`].
    clock_origin: ClockOrigin,
}

impl SessionScripts {
    /// Makes the scripts of a run with these options.
    pub fn new(options: SessionOptions) -> SessionScripts {
        SessionScripts {
            options: Arc::new(options),
            clock_origin: ClockOrigin::default(),
        }
    }
}

impl ScriptFactory for SessionScripts {
    type Script = UserSession;

    fn new_script(&self, origin: ScriptStart) -> UserSession {
        let mix = origin.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.options.seed;
        UserSession {
            options: Arc::clone(&self.options),
            origin,
            unix_zero_ns: self.clock_origin.unix_ns_at(Time::ZERO),
            random: Xorshift::new(mix | 1),
            api: ApiState::Down,
            api_is_reused: false,
            responses: ApiResponseReader::default(),
            request: None,
            requested_at: Time::ZERO,
            socket: SessionSocketState::Closed,
            reader: WebSocketReader::new(ReaderRole::Client, MAX_FRAME_BYTES),
            upgrade_response: Vec::new(),
            nonce: [0; 16],
            session_id: String::new(),
            session_token: String::new(),
            account: TokenAccount::default(),
            token_times: TokenTimes::EMPTY,
            socket_requested_at: Time::ZERO,
            created_ns: 0,
            opened_ns: 0,
            attempts: 0,
            socket_failure: None,
            lost_at: Time::NEVER,
            query: None,
            queries_begun: 0,
            due_at: Time::NEVER,
            next_at: Time::NEVER,
            deadline: Time::NEVER,
            has_failed: false,
            has_reconnected: false,
        }
    }

    fn targets(&self) -> Vec<&Target> {
        vec![&self.options.api, &self.options.call.socket]
    }

    fn tls(&self, link: LinkId) -> Option<&TlsClient> {
        match link {
            API_LINK => self.options.api_tls.as_ref(),
            _ => self.options.socket_tls.as_ref(),
        }
    }

    fn calls_per_script(&self) -> u32 {
        self.options.call.queries
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.options.call.headers.varying.as_ref()?.trace_ids()
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.clock_origin.set(unix_ns);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiState {
    Down,
    Connecting,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiRequest {
    Create,
    Run,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionSocketState {
    Closed,
    /// The socket is closed, and is reopened at this time.
    Pausing(Time),
    Connecting,
    Upgrading,
    Open,
}

/// The current query. The account and [`UserSession::token_times`] have its tokens.
#[derive(Clone, Copy, Debug)]
struct ActiveQuery {
    sent: Time,
    bytes_sent: u32,
    reconnects: u32,
    reconnects_failed: u32,
}

/// One user's session: see the module's documentation.
pub struct UserSession {
    options: Arc<SessionOptions>,
    origin: ScriptStart,
    unix_zero_ns: u64,
    random: Xorshift,
    api: ApiState,
    /// Whether the connection to the API has already carried a response.
    api_is_reused: bool,
    responses: ApiResponseReader,
    /// The request that is in flight, or that is sent once the API is connected.
    request: Option<ApiRequest>,
    requested_at: Time,
    socket: SessionSocketState,
    reader: WebSocketReader,
    /// The part of the upgrade's response that has arrived.
    upgrade_response: Vec<u8>,
    /// The nonce of the current handshake.
    nonce: [u8; 16],
    session_id: String,
    session_token: String,
    account: TokenAccount,
    /// The times of the current query's tokens.
    token_times: TokenTimes,
    /// When the connection of the socket was requested.
    socket_requested_at: Time,
    /// Time that it took to create the session, in nanoseconds.
    created_ns: u64,
    /// Time that it took to open the socket for the first time, in nanoseconds; 0 until then.
    opened_ns: u64,
    /// Consecutive attempts to open the socket, since the last frame was received.
    attempts: u32,
    /// The reason of the last loss of the socket; cleared when a frame arrives.
    socket_failure: Option<Outcome>,
    lost_at: Time,
    query: Option<ActiveQuery>,
    /// The number of queries begun.
    queries_begun: u32,
    /// When the last query was due.
    due_at: Time,
    /// When the next query begins.
    next_at: Time,
    /// The deadline of the query, or of creating the session.
    deadline: Time,
    has_failed: bool,
    has_reconnected: bool,
}

impl Script for UserSession {
    fn start(&mut self, now: Time, ctx: &mut ScriptContext<'_>) {
        // The first query is due with its session: if the session can't be created, the query fails.
        ctx.count_due_call();
        self.queries_begun = 1;
        self.due_at = now;
        // The deadline counts from when the session was due.
        let due = Time(now.0.saturating_sub(self.origin.late_ns));
        self.deadline = self.options.deadline.map_or(Time::NEVER, |d| due + d);
        self.start_api_request(ApiRequest::Create, now, ctx);
        self.request_wake_up(ctx);
    }

    fn on_connected(
        &mut self,
        link: LinkId,
        _took_ns: u64,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        if link == API_LINK {
            self.api = ApiState::Up;
            self.send_request(now, turn);
        } else {
            self.socket = SessionSocketState::Upgrading;
            self.reader = WebSocketReader::new(ReaderRole::Client, MAX_FRAME_BYTES);
            self.upgrade_response = Vec::new();
            self.write_upgrade_request(now, turn.out_buffer(SOCKET_LINK));
        }
    }

    fn receive(&mut self, link: LinkId, bytes: &[u8], now: Time, turn: &mut ScriptContext<'_>) {
        if link == API_LINK {
            match self.responses.read(bytes) {
                Ok(None) => {}
                Ok(Some(answer)) => self.on_api_response(&answer, now, turn),
                Err(e) => self.on_api_failure(Outcome::BadAnswer, &e.to_string(), now, turn),
            }
        } else if self.socket == SessionSocketState::Upgrading {
            self.on_upgrade_bytes(bytes, now, turn);
        } else if self.socket == SessionSocketState::Open {
            self.on_frame_bytes(bytes, now, turn);
        }
    }

    fn on_link_lost(
        &mut self,
        link: LinkId,
        outcome: Outcome,
        detail: &str,
        now: Time,
        turn: &mut ScriptContext<'_>,
    ) {
        if link == SOCKET_LINK {
            turn.record_failure_message(outcome, detail);
            return self.on_socket_lost(outcome, now, turn);
        }
        let closed = self.api == ApiState::Up && outcome == Outcome::ConnectionClosed;
        self.api = ApiState::Down;
        let begun = self.responses.has_begun();
        let ended = self.responses.finish();
        self.responses.clear();
        if self.request.is_none() {
            return;
        }
        // A response without a length ends when the connection is closed.
        if closed && let Ok(Some(answer)) = ended {
            return self.on_api_response(&answer, now, turn);
        }
        // A server that closes a persistent connection just when a request is sent has not read it, so the request is
        // sent again. After a reset it may have read the request, and a query must not be started twice.
        let kept = std::mem::take(&mut self.api_is_reused);
        if closed && !begun && now.since(self.requested_at) < 1_000_000_000 && kept {
            self.api = ApiState::Connecting;
            turn.connect(API_LINK);
            return;
        }
        self.on_api_failure(outcome, detail, now, turn);
    }

    fn on_timer(&mut self, now: Time, turn: &mut ScriptContext<'_>) {
        if let SessionSocketState::Pausing(at) = self.socket
            && at <= now
        {
            self.open_socket(now, turn);
        }
        if self.next_at <= now {
            self.next_at = Time::NEVER;
            turn.count_due_call();
            self.queries_begun += 1;
            self.send_query(now, turn);
        }
        if self.deadline <= now {
            let text = match (&self.query, self.account.done()) {
                (Some(_), Some(_)) => {
                    "POST /session/ID/run was not answered within the query's deadline"
                }
                (Some(_), None) => "a query's tokens did not all arrive within its deadline",
                (None, _) => "the session was not ready within a query's deadline",
            };
            let outcome = self.socket_failure.unwrap_or(Outcome::DeadlineExceeded);
            turn.record_failure_message(outcome, text);
            return self.abort_session(outcome, now, turn);
        }
        self.request_wake_up(turn);
    }

    fn is_waiting(&self) -> bool {
        self.api == ApiState::Connecting || self.socket == SessionSocketState::Connecting
    }

    fn abort(&mut self, outcome: Outcome, now: Time, turn: &mut ScriptContext<'_>) {
        if self.request == Some(ApiRequest::Close) || self.next_at != Time::NEVER {
            // Between queries no call is in flight.
            return;
        }
        // A session that is cut off by the end of the run has not failed.
        let failed = self.has_failed || outcome.is_error();
        self.record_query(outcome, now, turn);
        if failed {
            turn.add_to_count(measures::SESSIONS_FAILED, 1);
        }
    }
}

impl UserSession {
    /// Requests a wake-up at the earliest deadline.
    fn request_wake_up(&self, turn: &mut ScriptContext<'_>) {
        let mut at = self.deadline.min(self.next_at);
        if let SessionSocketState::Pausing(again) = self.socket {
            at = at.min(again);
        }
        turn.wake_at(at);
    }

    fn finish_session(&mut self, turn: &mut ScriptContext<'_>) {
        let count = if self.has_failed {
            measures::SESSIONS_FAILED
        } else {
            measures::SESSIONS_OK
        };
        turn.add_to_count(count, 1);
        if self.socket == SessionSocketState::Open {
            let mask = self.random.mask();
            let payload = encode_close_payload(code::NORMAL_CLOSURE, "");
            append_masked_frame(turn.out_buffer(SOCKET_LINK), Opcode::Close, mask, &payload);
        }
        self.request = None;
        turn.end_script(!self.has_failed);
    }
}
