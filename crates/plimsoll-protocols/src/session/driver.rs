//! One user's session as a state machine without I/O: creates it, opens its socket, sends its queries one after
//! another, reads their tokens, closes it.
//!
//! A query is a call. It succeeds when its `done` frame has arrived and every token of it was received once and in
//! order; silence ends in its deadline, never in success. The number of tokens to expect is in the API's response or
//! in the `done` frame, or else in the plan; a `done` that overtakes the API's response waits for it.
//!
//! The socket is open before the first query is sent. When it is lost it is reopened after random pauses, and asked
//! to continue after the last number received; it is never reopened after 401 or 403. Pauses grow until a frame has
//! arrived: a socket that opens and closes again is no progress. A query that runs out of time while the socket is
//! lost fails with the reason of the last loss.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::script::{Link, MAX_LINKS, Origin, Script, Scripts, Turn};
use plimsoll_engine::tls::TlsClient;
use plimsoll_model::plan::Target;
use plimsoll_model::template::TraceIds;
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::websocket::{Opcode, Reader, Role, close_payload, code, put_masked};

use super::SessionCall;
use super::account::Account;
use super::http::AnswerReader;
use super::measures;
use crate::unix_zero::UnixZero;
use crate::xorshift::Xorshift;

mod api;
mod queries;
mod socket;

const API_LINK: Link = Link(0);
const SOCKET_LINK: Link = Link(1);
const MAX_FRAME: usize = 1 << 20;

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
    /// The session's script.
    pub call: SessionCall,
    /// The time limit of one query, and of creating the session; `None` means no limit.
    pub deadline: Option<Duration>,
    /// The seed of the sessions' random numbers.
    pub seed: u64,
}

/// Makes the sessions of a run.
pub struct Sessions {
    options: Arc<SessionOptions>,
    /// Nanoseconds since 1970 at [`Time::ZERO`].
    unix_zero: UnixZero,
}

impl Sessions {
    /// Makes the scripts of a run with these options.
    pub fn new(options: SessionOptions) -> Sessions {
        Sessions {
            options: Arc::new(options),
            unix_zero: UnixZero::default(),
        }
    }
}

impl Scripts for Sessions {
    type Script = Session;

    fn script(&self, origin: Origin) -> Session {
        let mix = origin.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.options.seed;
        Session {
            options: Arc::clone(&self.options),
            origin,
            unix_zero: self.unix_zero.at(Time::ZERO),
            random: Xorshift::new(mix | 1),
            api: Api::Down,
            api_kept: false,
            answer: AnswerReader::default(),
            request: None,
            requested: Time::ZERO,
            socket: Socket::Closed,
            reader: Reader::new(Role::Client, MAX_FRAME),
            upgrade: Vec::new(),
            nonce: [0; 16],
            session: String::new(),
            token: String::new(),
            account: Account::default(),
            epoch: None,
            run: None,
            began: Time::ZERO,
            created_ns: 0,
            opened_ns: 0,
            attempts: 0,
            trouble: None,
            lost_at: Time::NEVER,
            query: None,
            gaps: Vec::new(),
            promised: None,
            asked: 0,
            due: Time::NEVER,
            next_at: Time::NEVER,
            deadline: Time::NEVER,
            has_failed: false,
            has_reconnected: false,
        }
    }

    fn targets(&self) -> [&Target; MAX_LINKS] {
        [&self.options.api, &self.options.call.socket]
    }

    fn tls(&self, link: Link) -> Option<&TlsClient> {
        match link {
            API_LINK => self.options.api_tls.as_ref(),
            _ => self.options.socket_tls.as_ref(),
        }
    }

    fn calls(&self) -> u32 {
        self.options.call.queries
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.options.call.headers.varying.as_ref()?.trace_ids()
    }

    fn clock_began(&self, unix_ns: u64) {
        self.unix_zero.set(unix_ns);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Api {
    Down,
    Connecting,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Create,
    Run,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Socket {
    Closed,
    /// Reopened at this time.
    Pausing(Time),
    Connecting,
    Upgrading,
    Open,
}

/// The current query.
#[derive(Clone, Copy, Debug)]
struct Query {
    sent: Time,
    first_token: Time,
    last_token: Time,
    bytes: u32,
    bytes_sent: u32,
    reconnects: u32,
    reconnects_failed: u32,
    /// Its `done` frame, until the API has confirmed that the run has begun.
    end: Option<End>,
}

/// The content of a `done` frame.
#[derive(Clone, Copy, Debug)]
struct End {
    at: Time,
    /// The number of tokens sent, if the frame says it.
    tokens: Option<u64>,
    finish: Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Stop,
    Cancelled,
    Error,
}

/// One session, see the module's documentation.
pub struct Session {
    options: Arc<SessionOptions>,
    origin: Origin,
    unix_zero: u64,
    random: Xorshift,
    api: Api,
    /// The connection to the API has carried a response already.
    api_kept: bool,
    answer: AnswerReader,
    /// Sent or about to be sent, and not answered yet.
    request: Option<Request>,
    requested: Time,
    socket: Socket,
    reader: Reader,
    /// The part of the upgrade's response that has arrived.
    upgrade: Vec<u8>,
    /// The nonce of the current handshake.
    nonce: [u8; 16],
    session: String,
    token: String,
    account: Account,
    epoch: Option<u64>,
    /// The number of the current run, or of the last one.
    run: Option<u64>,
    /// When the connection of the socket was requested.
    began: Time,
    /// How long creating the session took, and opening its socket for the first time. Nanoseconds.
    created_ns: u64,
    opened_ns: u64,
    /// Attempts in a row to open the socket without receiving a frame.
    attempts: u32,
    /// Why the socket failed, until a frame arrives.
    trouble: Option<Outcome>,
    lost_at: Time,
    query: Option<Query>,
    /// Gaps between the tokens of the current query, recorded once it has succeeded. Nanoseconds, more exact than
    /// histograms keep.
    gaps: Vec<f32>,
    /// The number of tokens that the current query should bring, if it is known before its `done`.
    promised: Option<u64>,
    /// Queries begun.
    asked: u32,
    /// When the last query was due.
    due: Time,
    /// When the next query begins.
    next_at: Time,
    /// The deadline of the query, or of creating the session.
    deadline: Time,
    has_failed: bool,
    has_reconnected: bool,
}

impl Script for Session {
    fn begin(&mut self, now: Time, turn: &mut Turn<'_>) {
        // The first query is due with its session: if the session can't be created, the query fails.
        turn.due();
        self.asked = 1;
        self.due = now;
        // A session that begins late has less time left.
        let due = Time(now.0.saturating_sub(self.origin.late_ns));
        self.deadline = self.options.deadline.map_or(Time::NEVER, |d| due + d);
        self.ask_api(Request::Create, now, turn);
        self.arm(turn);
    }

    fn connected(&mut self, link: Link, _took_ns: u64, now: Time, turn: &mut Turn<'_>) {
        if link == API_LINK {
            self.api = Api::Up;
            self.send_request(now, turn);
        } else {
            self.socket = Socket::Upgrading;
            self.reader = Reader::new(Role::Client, MAX_FRAME);
            self.upgrade = Vec::new();
            self.put_upgrade(now, turn.out(SOCKET_LINK));
        }
    }

    fn receive(&mut self, link: Link, bytes: &[u8], now: Time, turn: &mut Turn<'_>) {
        if link == API_LINK {
            match self.answer.read(bytes) {
                Ok(None) => {}
                Ok(Some(answer)) => self.answered(&answer, now, turn),
                Err(e) => self.api_failed(Outcome::BadAnswer, &e.to_string(), now, turn),
            }
        } else if self.socket == Socket::Upgrading {
            self.upgraded(bytes, now, turn);
        } else if self.socket == Socket::Open {
            self.frames(bytes, now, turn);
        }
    }

    fn lost(&mut self, link: Link, outcome: Outcome, detail: &str, now: Time, turn: &mut Turn<'_>) {
        if link == SOCKET_LINK {
            turn.detail(outcome, detail);
            return self.socket_lost(outcome, now, turn);
        }
        let closed = self.api == Api::Up && outcome == Outcome::ConnectionClosed;
        self.api = Api::Down;
        let begun = self.answer.has_begun();
        let ended = self.answer.end();
        self.answer.clear();
        if self.request.is_none() {
            return;
        }
        // A response without a length ends with its connection.
        if closed && let Ok(Some(answer)) = ended {
            return self.answered(&answer, now, turn);
        }
        // If the server closed a kept connection just now, it did not read the request, so that is sent again. After
        // a reset this is not known, and a run must not be started twice.
        let kept = std::mem::take(&mut self.api_kept);
        if closed && !begun && now.since(self.requested) < 1_000_000_000 && kept {
            self.api = Api::Connecting;
            turn.connect(API_LINK);
            return;
        }
        self.api_failed(outcome, detail, now, turn);
    }

    fn expire(&mut self, now: Time, turn: &mut Turn<'_>) {
        if let Socket::Pausing(at) = self.socket
            && at <= now
        {
            self.open_socket(now, turn);
        }
        if self.next_at <= now {
            self.next_at = Time::NEVER;
            turn.due();
            self.asked += 1;
            self.ask(now, turn);
        }
        if self.deadline <= now {
            let text = match &self.query {
                Some(Query { end: Some(_), .. }) => {
                    "POST /session/ID/run was not answered within the query's deadline"
                }
                Some(_) => "a query's tokens did not all arrive within its deadline",
                None => "the session was not ready within a query's deadline",
            };
            let outcome = self.trouble.unwrap_or(Outcome::DeadlineExceeded);
            turn.detail(outcome, text);
            return self.break_off(outcome, now, turn);
        }
        self.arm(turn);
    }

    fn abort(&mut self, outcome: Outcome, now: Time, turn: &mut Turn<'_>) {
        if self.request == Some(Request::Close) || self.next_at != Time::NEVER {
            // The session is between queries: nothing is in flight.
            return;
        }
        // A session that the end of the run cuts short has not failed.
        let failed = self.has_failed || outcome.is_error();
        self.record(outcome, now, turn);
        if failed {
            turn.count(measures::SESSIONS_FAILED, 1);
        }
    }
}

impl Session {
    /// Requests a wake-up at the earliest deadline.
    fn arm(&self, turn: &mut Turn<'_>) {
        let mut at = self.deadline.min(self.next_at);
        if let Socket::Pausing(again) = self.socket {
            at = at.min(again);
        }
        turn.wake_at(at);
    }

    fn over(&mut self, turn: &mut Turn<'_>) {
        let count = if self.has_failed {
            measures::SESSIONS_FAILED
        } else {
            measures::SESSIONS_OK
        };
        turn.count(count, 1);
        if self.socket == Socket::Open {
            let mask = self.random.mask();
            let payload = close_payload(code::NORMAL_CLOSURE, "");
            put_masked(turn.out(SOCKET_LINK), Opcode::Close, mask, &payload);
        }
        self.request = None;
        turn.end(!self.has_failed);
    }
}
