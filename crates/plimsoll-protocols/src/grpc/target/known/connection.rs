//! A connection of the known server: detects the version of HTTP, reads requests, and sends responses when
//! they are due.

use std::collections::{BTreeMap, VecDeque};

use plimsoll_model::Time;
use plimsoll_wire::http1::{BodyReader, FieldStorage, RequestHead, append_response_head};
use plimsoll_wire::http2::{ErrorCode, PREFACE};

use crate::grpc::canned::{CannedConnection, CannedServer};
use plimsoll_serving::event_loop::{ArrivalTimes, ConnectionDisposition, DelayedResponse};

/// Maximum size of a request's header over HTTP/1.1, in bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Maximum size of a request's body over HTTP/1.1, in bytes. Bodies are discarded.
const MAX_BODY_BYTES: u64 = 1 << 30;
/// The limit of unanswered requests on a connection of HTTP/1.1.
const MAX_PIPELINED: usize = 1000;
/// The response's body over HTTP/1.1.
const ANSWER_BODY: &[u8] = b"known\n";
/// The response's body over HTTP/1.1 to a request that accepts server-sent events: one event.
const EVENT_BODY: &[u8] = b"data: known\n\n";

/// A request that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRequest {
    pub(super) number: u64,
    pub(super) arrived: ArrivalTimes,
    /// When the response is due according to the law.
    pub(super) due: Time,
}

/// How a pending request is answered.
#[derive(Clone, Copy, Debug)]
enum PendingReply {
    Http1 {
        has_body: bool,
        is_event: bool,
        closes: bool,
    },
    /// The stream's id.
    Http2(u32),
}

pub(super) struct KnownConnection {
    /// When the bytes that are passed to `receive` next reached this host.
    pub(super) arrived: ArrivalTimes,
    /// Delayed responses that were not yet passed to the event loop.
    pub(super) newly_held: VecDeque<DelayedResponse>,
    /// The request whose response is being written.
    pub(super) answer_in_write: Option<PendingRequest>,
    pending: BTreeMap<u64, (PendingRequest, PendingReply)>,
    /// When the last response is due. Later responses are not due earlier, because HTTP/1.1 sends them in order.
    last_due: Time,
    protocol: ConnectionProtocol,
}

enum ConnectionProtocol {
    /// Not known yet. Contains the received bytes: a prefix of HTTP/2's preface, which may be empty.
    Unknown(Vec<u8>),
    Http1(Http1Requests),
    Http2(Box<CannedConnection>),
}

/// The parser of HTTP/1.1 requests.
struct Http1Requests {
    /// A partly received header.
    input: Vec<u8>,
    body: BodyReader,
    /// The request whose body is being read.
    reply: Option<PendingReply>,
    /// Whether the client has announced that this is its last request.
    is_over: bool,
}

impl KnownConnection {
    pub(super) fn new(now: Time) -> KnownConnection {
        KnownConnection {
            arrived: ArrivalTimes {
                last: now,
                earliest: now,
            },
            newly_held: VecDeque::new(),
            answer_in_write: None,
            pending: BTreeMap::new(),
            last_due: Time::ZERO,
            protocol: ConnectionProtocol::Unknown(Vec::new()),
        }
    }

    /// Handles bytes from the client; `take` numbers each complete request and draws its delay.
    ///
    /// # Errors
    /// Returns a description of the client's mistake.
    pub(super) fn receive(
        &mut self,
        canned: &CannedServer,
        bytes: &[u8],
        out: &mut Vec<u8>,
        take: &mut impl FnMut(ArrivalTimes) -> PendingRequest,
    ) -> Result<(), String> {
        let mut replies = Vec::new();
        let read = self.read(canned, bytes, out, &mut replies);
        let last = replies.len().saturating_sub(1);
        for (place, reply) in replies.into_iter().enumerate() {
            let mut arrived = self.arrived;
            // The kernel's timestamp applies to the last bytes, so only the last request's arrival is exact.
            if place == last {
                arrived.earliest = arrived.last;
            }
            let pending = take(arrived);
            let mut due = pending.due;
            if matches!(reply, PendingReply::Http1 { .. }) {
                due = due.max(self.last_due);
                self.last_due = due;
            }
            self.newly_held.push_back(DelayedResponse {
                due,
                number: pending.number,
            });
            self.pending.insert(pending.number, (pending, reply));
        }
        if self.pending.len() > MAX_PIPELINED
            && matches!(self.protocol, ConnectionProtocol::Http1(_))
        {
            return Err(format!("more than {MAX_PIPELINED} requests in a row"));
        }
        read
    }

    fn read(
        &mut self,
        canned: &CannedServer,
        bytes: &[u8],
        out: &mut Vec<u8>,
        replies: &mut Vec<PendingReply>,
    ) -> Result<(), String> {
        if let ConnectionProtocol::Unknown(begun) = &mut self.protocol {
            begun.extend_from_slice(bytes);
            if begun.len() < PREFACE.len() && PREFACE.starts_with(begun) {
                return Ok(());
            }
            let begun = std::mem::take(begun);
            self.protocol = if begun.starts_with(PREFACE) {
                let mut connection = canned.new_connection();
                connection.send_preface(out);
                ConnectionProtocol::Http2(Box::new(connection))
            } else {
                ConnectionProtocol::Http1(Http1Requests::new())
            };
            return self.read(canned, &begun, out, replies);
        }
        match &mut self.protocol {
            ConnectionProtocol::Unknown(_) => Ok(()),
            ConnectionProtocol::Http1(http1) => http1.read(bytes, out, replies),
            ConnectionProtocol::Http2(connection) => {
                let mut streams = Vec::new();
                let received = connection.receive(bytes, out, &mut streams);
                replies.extend(streams.into_iter().map(PendingReply::Http2));
                received.map_err(|e| e.to_string())
            }
        }
    }

    /// Writes the response to a request that is due. Returns the request if it can't be answered.
    pub(super) fn write_due_answer(
        &mut self,
        number: u64,
        out: &mut Vec<u8>,
    ) -> (ConnectionDisposition, Option<PendingRequest>) {
        let Some((pending, reply)) = self.pending.remove(&number) else {
            return (ConnectionDisposition::Open, None);
        };
        let mut afterwards = ConnectionDisposition::Open;
        let is_whole = match (reply, &mut self.protocol) {
            (reply @ PendingReply::Http1 { closes, .. }, _) => {
                write_answer(reply, out);
                if closes {
                    afterwards = ConnectionDisposition::Closing;
                }
                true
            }
            (PendingReply::Http2(stream), ConnectionProtocol::Http2(connection)) => {
                let before = connection.answer_count();
                connection.answer_held_request(stream, out);
                // No response is written if the client has reset the stream, or if its window is too small.
                connection.answer_count() > before
            }
            (PendingReply::Http2(_), _) => false,
        };
        if is_whole {
            self.answer_in_write = Some(pending);
            (afterwards, None)
        } else {
            self.answer_in_write = None;
            (afterwards, Some(pending))
        }
    }

    /// Ends the connection gracefully, because the server stops.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if let ConnectionProtocol::Http2(connection) = &mut self.protocol {
            connection.send_goaway(ErrorCode::NO_ERROR, out);
        }
    }

    /// Returns the unanswered requests, including one whose response was not completely written.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = &PendingRequest> {
        let pending = self.pending.values().map(|(pending, _)| pending);
        self.answer_in_write.iter().chain(pending)
    }
}

impl Http1Requests {
    fn new() -> Http1Requests {
        Http1Requests {
            input: Vec::new(),
            body: BodyReader::new_complete(),
            reply: None,
            is_over: false,
        }
    }

    fn read(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        replies: &mut Vec<PendingReply>,
    ) -> Result<(), String> {
        self.input.extend_from_slice(bytes);
        let mut taken = 0;
        while !self.is_over {
            let rest = &self.input[taken..];
            let Some(reply) = self.reply else {
                let mut space = FieldStorage::new();
                let head = RequestHead::parse(rest, MAX_HEAD_BYTES, &mut space);
                let Some(head) = head.map_err(|e| e.to_string())? else {
                    break;
                };
                if head.fields.lists_token("expect", "100-continue") {
                    append_response_head(out, 100, &[]);
                }
                let restarted = self.body.restart(head.body, MAX_BODY_BYTES);
                restarted.map_err(|e| e.to_string())?;
                self.reply = Some(PendingReply::Http1 {
                    has_body: head.method != "HEAD",
                    is_event: head.fields.lists_token("accept", "text/event-stream"),
                    closes: head.closes,
                });
                taken += head.size;
                continue;
            };
            taken += self
                .body
                .consume(rest, &mut |_| {})
                .map_err(|e| e.to_string())?;
            if !self.body.is_complete() {
                break;
            }
            self.reply = None;
            self.is_over = matches!(reply, PendingReply::Http1 { closes: true, .. });
            replies.push(reply);
        }
        if self.is_over {
            taken = self.input.len();
        }
        self.input.drain(..taken);
        Ok(())
    }
}

fn write_answer(reply: PendingReply, out: &mut Vec<u8>) {
    let PendingReply::Http1 {
        has_body,
        is_event,
        closes,
    } = reply
    else {
        return;
    };
    let (kind, body) = if is_event {
        ("text/event-stream", EVENT_BODY)
    } else {
        ("text/plain", ANSWER_BODY)
    };
    let length = body.len().to_string();
    let connection = if closes { "close" } else { "keep-alive" };
    let fields = [
        ("Content-Type", kind),
        ("Content-Length", &*length),
        ("Connection", connection),
    ];
    append_response_head(out, 200, &fields);
    if has_body {
        out.extend_from_slice(body);
    }
}
