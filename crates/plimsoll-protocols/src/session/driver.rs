//! One user's session as a state machine without I/O: create it, open its socket, ask
//! its queries one after another, read their tokens, close it.
//!
//! A query is a call. It succeeds when its `done` has come and every token that was sent
//! for it was received once and in order; silence ends in its deadline, never in success.
//! The socket is open before the first query is sent. When it is lost it is opened again,
//! with growing random pauses, and asked to go on after the last number that was seen;
//! never after 401 or 403.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::script::{Link, Origin, Script, Scripts, Turn};
use plimsoll_model::measure::{Count, TimeMeasure};
use plimsoll_model::{Outcome, Sample, Time};

use super::account::{Account, Arrived, Frame};
use super::http::{Answer, AnswerReader, Head, put_post};
use super::websocket::{
    Message, Opcode, Reader, Role, Violation, accept_key, close_payload, code, put_masked,
};

const API: Link = Link(0);
const SOCKET: Link = Link(1);
const MOST_FRAME: usize = 1 << 20;

/// What all sessions of a run share.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    pub api: SocketAddr,
    pub socket: SocketAddr,
    /// `Host` headers.
    pub api_host: String,
    pub socket_host: String,
    /// The first part of the socket's path.
    pub agent: String,
    pub queries: u32,
    /// Between a query's end and the next.
    pub think: Duration,
    /// For one query, and for making the session.
    pub deadline: Option<Duration>,
    /// How often in a row a socket is tried to be opened again.
    pub reconnects: u32,
    pub reconnect_pause: Duration,
    pub reconnect_pause_most: Duration,
    pub seed: u64,
}

/// Makes the sessions of a run.
pub struct Sessions(Arc<SessionOptions>);

impl Sessions {
    pub fn new(options: SessionOptions) -> Sessions {
        Sessions(Arc::new(options))
    }
}

impl Scripts for Sessions {
    type Script = Session;

    fn script(&self, origin: Origin) -> Session {
        let mix = origin.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.0.seed;
        Session {
            options: Arc::clone(&self.0),
            origin,
            random: mix | 1,
            api: Api::Down,
            answer: AnswerReader::default(),
            request: None,
            requested: Time::ZERO,
            socket: Socket::Closed,
            reader: Reader::new(Role::Client, MOST_FRAME),
            upgrade: Vec::new(),
            session: String::new(),
            token: String::new(),
            account: Account::default(),
            epoch: None,
            run: None,
            began: Time::ZERO,
            attempts: 0,
            lost_at: Time::NEVER,
            query: None,
            asked: 0,
            next_at: Time::NEVER,
            deadline: Time::NEVER,
            has_failed: false,
            has_reconnected: false,
        }
    }

    fn calls(&self) -> u32 {
        self.0.queries
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
    /// Tried again at this moment.
    Pausing(Time),
    Connecting,
    Upgrading,
    Open,
}

/// The query that is going on.
#[derive(Clone, Copy, Debug)]
struct Query {
    sent: Time,
    first_token: Time,
    last_token: Time,
    bytes: u32,
    /// The API has said that the run has begun.
    begun: bool,
}

/// One session. See the module's text.
pub struct Session {
    options: Arc<SessionOptions>,
    origin: Origin,
    random: u64,
    api: Api,
    answer: AnswerReader,
    /// Sent or to be sent, and not answered.
    request: Option<Request>,
    requested: Time,
    socket: Socket,
    reader: Reader,
    /// The answer to the upgrade, as far as it has come.
    upgrade: Vec<u8>,
    session: String,
    token: String,
    account: Account,
    epoch: Option<u64>,
    /// Names the run that is going on, or was last.
    run: Option<u64>,
    /// When the socket's connection was asked for.
    began: Time,
    /// In a row, to open the socket.
    attempts: u32,
    lost_at: Time,
    query: Option<Query>,
    /// Queries begun.
    asked: u32,
    /// When the next query is to begin.
    next_at: Time,
    /// Of the query, or of making the session.
    deadline: Time,
    has_failed: bool,
    has_reconnected: bool,
}

impl Script for Session {
    fn begin(&mut self, now: Time, turn: &mut Turn<'_>) {
        // The first query is due with its session: one that is never made fails.
        turn.due();
        self.asked = 1;
        self.deadline = self.options.deadline.map_or(Time::NEVER, |d| now + d);
        self.ask_api(Request::Create, now, turn);
        self.arm(turn);
    }

    fn connected(&mut self, link: Link, _took_ns: u64, now: Time, turn: &mut Turn<'_>) {
        if link == API {
            self.api = Api::Up;
            self.send_request(now, turn);
        } else {
            self.socket = Socket::Upgrading;
            self.reader = Reader::new(Role::Client, MOST_FRAME);
            self.upgrade = Vec::new();
            let request = self.upgrade_request();
            turn.out(SOCKET).extend_from_slice(request.as_bytes());
        }
    }

    fn receive(&mut self, link: Link, bytes: &[u8], now: Time, turn: &mut Turn<'_>) {
        if link == API {
            match self.answer.read(bytes) {
                Ok(None) => {}
                Ok(Some(answer)) => self.answered(&answer, now, turn),
                Err(e) => {
                    self.api_failed(Outcome::BadAnswer, &e.0, now, turn);
                }
            }
        } else if self.socket == Socket::Upgrading {
            self.upgraded(bytes, now, turn);
        } else if self.socket == Socket::Open {
            self.frames(bytes, now, turn);
        }
    }

    fn lost(&mut self, link: Link, outcome: Outcome, detail: &str, now: Time, turn: &mut Turn<'_>) {
        if link == SOCKET {
            turn.detail(outcome, detail);
            return self.socket_lost(outcome, now, turn);
        }
        let was_up = self.api == Api::Up;
        self.api = Api::Down;
        let begun = self.answer.has_begun();
        self.answer.clear();
        if self.request.is_none() {
            return;
        }
        // A kept connection that the server closes just then took no request.
        if was_up && !begun && now.since(self.requested) < 1_000_000_000 && self.asked > 1 {
            self.api = Api::Connecting;
            turn.connect(API, self.options.api);
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
            let text = if self.query.is_some() {
                "a query's tokens did not all come within its deadline"
            } else {
                "the session was not ready within a query's deadline"
            };
            turn.detail(Outcome::DeadlineExceeded, text);
            return self.break_off(Outcome::DeadlineExceeded, now, turn);
        }
        self.arm(turn);
    }

    fn abort(&mut self, outcome: Outcome, now: Time, turn: &mut Turn<'_>) {
        if self.request == Some(Request::Close) || self.next_at != Time::NEVER {
            // Between queries: nothing is in flight.
            return;
        }
        self.record(outcome, now, turn);
        turn.count(Count::SessionsFailed, 1);
    }
}

impl Session {
    fn random(&mut self) -> u64 {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Asks to be woken for whichever comes first.
    fn arm(&self, turn: &mut Turn<'_>) {
        let mut at = self.deadline.min(self.next_at);
        if let Socket::Pausing(again) = self.socket {
            at = at.min(again);
        }
        turn.wake_at(at);
    }

    // The API.

    fn ask_api(&mut self, request: Request, now: Time, turn: &mut Turn<'_>) {
        self.request = Some(request);
        match self.api {
            Api::Up => self.send_request(now, turn),
            Api::Connecting => {}
            Api::Down => {
                self.api = Api::Connecting;
                turn.connect(API, self.options.api);
            }
        }
    }

    fn send_request(&mut self, now: Time, turn: &mut Turn<'_>) {
        let path = match self.request {
            None => return,
            Some(Request::Create) => "/session/create".to_owned(),
            Some(Request::Run) => format!("/session/{}/run", self.session),
            Some(Request::Close) => format!("/session/{}/close", self.session),
        };
        self.requested = now;
        if let Some(query) = &mut self.query
            && self.request == Some(Request::Run)
            && query.sent == Time::NEVER
        {
            query.sent = now;
        }
        put_post(turn.out(API), &self.options.api_host, &path);
    }

    fn answered(&mut self, answer: &Answer, now: Time, turn: &mut Turn<'_>) {
        if answer.closes {
            self.api = Api::Down;
            turn.close(API);
        }
        let ok = (200..300).contains(&answer.status);
        let refused = |what: &str| {
            let body = String::from_utf8_lossy(&answer.body);
            let body: String = body.chars().take(160).collect();
            format!("{what}: {} {body}", answer.status)
        };
        match self.request.take() {
            None => {
                let text = "an answer that nothing was asked for";
                self.api_failed(Outcome::BadAnswer, text, now, turn);
            }
            Some(Request::Create) if ok => self.created(&answer.body, now, turn),
            Some(Request::Create) => {
                turn.detail(Outcome::SessionRefused, &refused("POST /session/create"));
                self.break_off(Outcome::SessionRefused, now, turn);
            }
            Some(Request::Run) if ok => {
                #[derive(serde::Deserialize)]
                struct Begun {
                    run: Option<u64>,
                }
                let begun = serde_json::from_slice::<Begun>(&answer.body);
                let run = begun.ok().and_then(|begun| begun.run);
                match &mut self.query {
                    Some(query) => {
                        query.begun = true;
                        self.run = run.or(self.run);
                    }
                    // Its `done` was faster.
                    None => self.after_query(now, turn),
                }
            }
            Some(Request::Run) => {
                turn.detail(Outcome::RunRefused, &refused("POST /session/ID/run"));
                self.query_over(Outcome::RunRefused, now, turn);
                self.after_query(now, turn);
            }
            Some(Request::Close) => self.over(turn),
        }
    }

    fn created(&mut self, body: &[u8], now: Time, turn: &mut Turn<'_>) {
        #[derive(serde::Deserialize)]
        struct Made {
            session_id: String,
            #[serde(alias = "jwt", alias = "access_token")]
            token: String,
        }
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        match serde_json::from_slice::<Made>(body) {
            Ok(made) if plain(&made.session_id) && plain(&made.token) => {
                turn.time(TimeMeasure::SessionCreate, now.since(self.requested));
                self.session = made.session_id;
                self.token = made.token;
                self.open_socket(now, turn);
            }
            _ => {
                // What the answer holds may be secret.
                let text = "POST /session/create: the answer has no session_id and token";
                self.api_failed(Outcome::BadAnswer, text, now, turn);
            }
        }
    }

    /// The API can't be used: what was asked of it fails, and the session with it.
    fn api_failed(&mut self, outcome: Outcome, text: &str, now: Time, turn: &mut Turn<'_>) {
        turn.detail(outcome, text);
        if self.request == Some(Request::Close) {
            // Every query had ended.
            return self.over(turn);
        }
        if self.request == Some(Request::Run) && self.query.is_none() {
            self.request = None;
            return self.after_query(now, turn);
        }
        self.break_off(outcome, now, turn);
    }

    // The socket.

    fn open_socket(&mut self, now: Time, turn: &mut Turn<'_>) {
        self.socket = Socket::Connecting;
        self.began = now;
        turn.connect(SOCKET, self.options.socket);
    }

    fn upgrade_request(&mut self) -> String {
        let mut query = String::new();
        if self.lost_at != Time::NEVER {
            query = format!("?after={}", self.account.last);
            if let Some(epoch) = self.epoch {
                query.push_str(&format!("&epoch={epoch}"));
            }
        }
        let options = &self.options;
        format!(
            "GET /{}/ws/{}{query} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\
             Authorization: Bearer {}\r\n\r\n",
            options.agent, self.session, options.socket_host, self.token
        )
    }

    fn upgraded(&mut self, bytes: &[u8], now: Time, turn: &mut Turn<'_>) {
        self.upgrade.extend_from_slice(bytes);
        let head = match Head::parse(&self.upgrade) {
            Ok(None) => return,
            Ok(Some(head)) => head,
            Err(e) => {
                turn.detail(Outcome::SocketRefused, &e.0);
                turn.close(SOCKET);
                return self.socket_lost(Outcome::SocketRefused, now, turn);
            }
        };
        let accepted = head.accept.as_deref() == Some(accept_key(KEY.as_bytes()).as_str());
        if head.status != 101 || !accepted {
            let denied = matches!(head.status, 401 | 403);
            let outcome = if denied {
                Outcome::SocketDenied
            } else {
                Outcome::SocketRefused
            };
            let text = match head.status {
                101 => "the answer to the upgrade has the wrong Sec-WebSocket-Accept".to_owned(),
                status => format!("the answer to the upgrade was {status}"),
            };
            turn.detail(outcome, &text);
            turn.close(SOCKET);
            if denied {
                return self.break_off(outcome, now, turn);
            }
            return self.socket_lost(outcome, now, turn);
        }
        self.socket = Socket::Open;
        turn.time(TimeMeasure::SocketOpen, now.since(self.began));
        if self.lost_at != Time::NEVER && self.asked > 0 && self.has_reconnected {
            turn.count(Count::Reconnects, 1);
            turn.time(TimeMeasure::Reconnect, now.since(self.lost_at));
        }
        self.attempts = 0;
        let gathered = std::mem::take(&mut self.upgrade);
        let rest = &gathered[head.size..];
        if self.query.is_none() && self.request.is_none() && self.next_at == Time::NEVER {
            // The first query, or one that waited for the socket.
            self.ask(now, turn);
        }
        if !rest.is_empty() {
            self.frames(rest, now, turn);
        }
    }

    /// The socket is gone, or was never opened: tried again, or the end of the session.
    fn socket_lost(&mut self, outcome: Outcome, now: Time, turn: &mut Turn<'_>) {
        let was_open = self.socket == Socket::Open;
        self.socket = Socket::Closed;
        if self.request == Some(Request::Close) {
            return;
        }
        if was_open {
            self.lost_at = now;
            if !std::mem::replace(&mut self.has_reconnected, true) {
                turn.count(Count::SessionsReconnected, 1);
            }
        } else if self.has_reconnected {
            turn.count(Count::ReconnectsFailed, 1);
        }
        if self.attempts >= self.options.reconnects {
            let outcome = if was_open {
                Outcome::SocketClosed
            } else {
                outcome
            };
            return self.break_off(outcome, now, turn);
        }
        // Full jitter: anything from nothing to the pause, which doubles.
        let pause = self.options.reconnect_pause * 2u32.saturating_pow(self.attempts);
        let pause = pause.min(self.options.reconnect_pause_most);
        let share = (self.random() >> 11) as f64 / (1u64 << 53) as f64;
        self.attempts += 1;
        self.socket = Socket::Pausing(now + pause.mul_f64(share));
        self.arm(turn);
    }

    fn frames(&mut self, bytes: &[u8], now: Time, turn: &mut Turn<'_>) {
        let mut reader = std::mem::replace(&mut self.reader, Reader::new(Role::Client, 0));
        let mut closed = None;
        let read = reader.read(bytes, |message| {
            match message {
                Message::Text(text) => self.frame(text, now, turn),
                Message::Binary(_) => {
                    closed = Some(violation("a binary frame"));
                    return ControlFlow::Break(());
                }
                Message::Ping(payload) => {
                    let mask = (self.random() as u32).to_ne_bytes();
                    put_masked(turn.out(SOCKET), Opcode::Pong, mask, payload);
                }
                Message::Pong(_) => {}
                Message::Close { code, reason } => {
                    turn.detail(
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
        if !closed.reason.is_empty() {
            turn.detail(Outcome::ProtocolError, closed.reason);
        }
        if self.socket != Socket::Open {
            return;
        }
        let mask = (self.random() as u32).to_ne_bytes();
        let payload = close_payload(closed.code, closed.reason);
        put_masked(turn.out(SOCKET), Opcode::Close, mask, &payload);
        turn.close(SOCKET);
        self.socket_lost(Outcome::SocketClosed, now, turn);
    }

    fn frame(&mut self, text: &str, now: Time, turn: &mut Turn<'_>) {
        let Ok(frame) = serde_json::from_str::<Frame<'_>>(text) else {
            turn.detail(
                Outcome::BadAnswer,
                "a frame that is no JSON object with a type",
            );
            return;
        };
        match &*frame.kind {
            "token" => {
                self.note_epoch(frame.epoch);
                self.token_came(&frame, text.len(), now, turn);
            }
            "done" => {
                self.note_epoch(frame.epoch);
                self.done_came(&frame, now, turn);
            }
            "resumed" if frame.resumed == Some(false) => {
                turn.count(Count::HistoryGone, 1);
                self.account.begin_epoch();
                self.epoch = frame.epoch;
            }
            // Types that are not known are to be ignored.
            _ => {}
        }
    }

    fn note_epoch(&mut self, epoch: Option<u64>) {
        if let (Some(ours), Some(theirs)) = (self.epoch, epoch)
            && ours != theirs
        {
            self.account.begin_epoch();
        }
        self.epoch = epoch.or(self.epoch);
    }

    /// Whether a frame is of a run that has ended already.
    fn is_stray(&self, frame: &Frame<'_>) -> bool {
        self.query.is_none() || matches!((frame.run, self.run), (Some(of), Some(run)) if of < run)
    }

    fn token_came(&mut self, frame: &Frame<'_>, length: usize, now: Time, turn: &mut Turn<'_>) {
        if self.is_stray(frame) {
            match self.account.arrive(frame.seq) {
                Arrived::Again => turn.count(Count::TokensDuplicated, 1),
                Arrived::New | Arrived::Late => turn.count(Count::TokensStray, 1),
            }
            return;
        }
        let arrived = self.account.token(frame.seq);
        self.run = frame.run.or(self.run);
        let Some(query) = &mut self.query else {
            return;
        };
        query.bytes = query.bytes.saturating_add(length as u32);
        if arrived == Arrived::Again || frame.content.as_deref() == Some("") {
            return;
        }
        if query.first_token == Time::NEVER {
            query.first_token = now;
            turn.time(TimeMeasure::FirstToken, now.since(query.sent));
        } else {
            turn.time(TimeMeasure::TokenGap, now.since(query.last_token));
        }
        query.last_token = now;
    }

    fn done_came(&mut self, frame: &Frame<'_>, now: Time, turn: &mut Turn<'_>) {
        let again = self.account.arrive(frame.seq) == Arrived::Again;
        if self.is_stray(frame) || again {
            return;
        }
        let account = self.account.query;
        let missing = frame
            .tokens
            .map_or(0, |n| n.saturating_sub(account.received));
        let too_many = frame
            .tokens
            .map_or(0, |n| account.received.saturating_sub(n));
        turn.count(Count::TokensMissing, missing);
        let whole = missing == 0
            && too_many == 0
            && account.duplicated == 0
            && account.out_of_order == 0
            && account.received > 0;
        let outcome = match frame.finish.as_deref() {
            Some("error") => Outcome::RunFailed,
            Some("cancelled") => Outcome::Cancelled,
            _ if whole => Outcome::Ok,
            _ => Outcome::TokensLost,
        };
        if outcome == Outcome::TokensLost {
            turn.detail(
                outcome,
                &format!(
                    "{} of {} tokens received, {} of them twice, {} out of order",
                    account.received,
                    frame.tokens.map_or("?".to_owned(), |n| n.to_string()),
                    account.duplicated,
                    account.out_of_order
                ),
            );
        }
        self.query_over(outcome, now, turn);
        // The answer of the API may still be on its way; the next request waits for it.
        if self.request.is_none() {
            self.after_query(now, turn);
        }
    }

    // The queries.

    fn ask(&mut self, now: Time, turn: &mut Turn<'_>) {
        self.deadline = self.options.deadline.map_or(Time::NEVER, |d| now + d);
        self.account.begin();
        self.query = Some(Query {
            sent: Time::NEVER,
            first_token: Time::NEVER,
            last_token: Time::NEVER,
            bytes: 0,
            begun: false,
        });
        self.ask_api(Request::Run, now, turn);
        self.arm(turn);
    }

    /// Records the query that is going on, or was to be the next.
    fn record(&mut self, outcome: Outcome, now: Time, turn: &mut Turn<'_>) {
        let query = self.query.take();
        let sent = query.map_or(now, |query| query.sent.min(now));
        let account = std::mem::take(&mut self.account.query);
        turn.count(Count::TokensReceived, account.received);
        turn.count(Count::TokensDuplicated, account.duplicated);
        turn.count(Count::TokensOutOfOrder, account.out_of_order);
        turn.count(Count::TokensStray, account.stray);
        // What making the session took is in its own measures, and nobody's lag.
        let late = if self.asked <= 1 {
            self.origin.late_ns
        } else {
            0
        };
        let first = query.map_or(Time::NEVER, |query| query.first_token);
        if let Some(query) = query
            && outcome.is_ok()
            && account.received > 1
        {
            let rest = query.last_token.since(query.first_token);
            turn.time(TimeMeasure::TokenMean, rest / (account.received - 1));
        }
        turn.call(Sample {
            number: self.origin.number * u64::from(self.options.queries)
                + u64::from(self.asked.saturating_sub(1)),
            arrival: Time(sent.0.saturating_sub(late)),
            sent,
            first_byte: if first == Time::NEVER { now } else { first },
            done: now,
            stage: 0,
            outcome,
            bytes_sent: 0,
            bytes_received: query.map_or(0, |query| query.bytes),
        });
        self.has_failed |= !outcome.is_ok();
    }

    fn query_over(&mut self, outcome: Outcome, now: Time, turn: &mut Turn<'_>) {
        self.record(outcome, now, turn);
        self.deadline = Time::NEVER;
        self.arm(turn);
    }

    /// What follows a query: the next one, or the end.
    fn after_query(&mut self, now: Time, turn: &mut Turn<'_>) {
        if self.asked >= self.options.queries || turn.is_stopping() {
            self.ask_api(Request::Close, now, turn);
            // The session is over either way; a server that says nothing is not waited for.
            self.deadline = now + Duration::from_secs(5);
            return self.arm(turn);
        }
        if self.options.think.is_zero() {
            turn.due();
            self.asked += 1;
            return self.ask(now, turn);
        }
        self.next_at = now + self.options.think;
        self.arm(turn);
    }

    /// The session can't go on: the query fails, and those that were to follow with it.
    fn break_off(&mut self, outcome: Outcome, now: Time, turn: &mut Turn<'_>) {
        if self.request == Some(Request::Close) {
            return self.over(turn);
        }
        if self.next_at == Time::NEVER {
            self.record(outcome, now, turn);
        }
        if !turn.is_stopping() {
            while self.asked < self.options.queries {
                turn.due();
                self.asked += 1;
                self.record(Outcome::SessionBroken, now, turn);
            }
        }
        self.has_failed = true;
        self.over(turn);
    }

    fn over(&mut self, turn: &mut Turn<'_>) {
        let count = if self.has_failed {
            Count::SessionsFailed
        } else {
            Count::SessionsOk
        };
        turn.count(count, 1);
        if self.socket == Socket::Open {
            let mask = (self.random() as u32).to_ne_bytes();
            let payload = close_payload(code::NORMAL, "");
            put_masked(turn.out(SOCKET), Opcode::Close, mask, &payload);
        }
        self.request = None;
        turn.end(!self.has_failed);
    }
}

/// The nonce of the handshake. RFC 6455 §4.1 wants a new one for each connection against
/// caches in between; a session's path is new each time, which serves the same end.
const KEY: &str = "cGxpbXNvbGwgbG9hZCBsbg==";

fn violation(reason: &'static str) -> Violation {
    Violation {
        code: code::PROTOCOL,
        reason,
    }
}
