//! The client's side of one HTTP/1.1 connection: a call is one GET, one at a time.
//!
//! Invariant: the request is the same bytes every time, made once for the whole run. The
//! worker loop calls this.

use std::sync::Arc;

use plimsoll_engine::driver::{CallId, Done, Driver, Event, Protocol, ProtocolError};
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::http1::{Response, Responses, put_request};

use crate::http::broken;

/// What to fetch.
#[derive(Clone, Copy, Debug)]
pub struct FetchRequest<'a> {
    /// Path and query (RFC 9112 §3.2.1).
    pub path: &'a str,
    /// The value of `Host` (RFC 9112 §3.2).
    pub host: &'a str,
    /// The size that the body must have, in bytes; `None`: what the server promises.
    pub size: Option<u64>,
    /// Files that one connection fetches; `None`: no limit.
    pub per_connection: Option<u32>,
}

#[derive(Debug)]
struct Prepared {
    request: Vec<u8>,
    path: String,
    size: Option<u64>,
    per_connection: u32,
}

/// One file, fetched again and again.
#[derive(Clone, Debug)]
pub struct FetchProtocol(Arc<Prepared>);

impl FetchProtocol {
    pub fn new(fetch: &FetchRequest<'_>) -> FetchProtocol {
        let connection = match fetch.per_connection {
            Some(1) => "close",
            _ => "keep-alive",
        };
        let fields = [
            ("Host", fetch.host),
            ("User-Agent", "plimsoll"),
            ("Accept", "*/*"),
            ("Connection", connection),
        ];
        let mut request = Vec::new();
        put_request(&mut request, "GET", fetch.path, &fields);
        FetchProtocol(Arc::new(Prepared {
            request,
            path: fetch.path.to_owned(),
            size: fetch.size,
            per_connection: fetch.per_connection.unwrap_or(u32::MAX),
        }))
    }
}

impl Protocol for FetchProtocol {
    type Driver = FetchDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        // Servers that know no ALPN (openssl s_server) must be measurable too.
        None
    }

    fn driver(&self) -> FetchDriver {
        FetchDriver {
            prepared: Arc::clone(&self.0),
            open: false,
            draining: false,
            fetched: 0,
            call: None,
            answers: Responses::new(u64::MAX),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    call: CallId,
    first_byte: Time,
}

/// See the module's text.
#[derive(Debug)]
pub struct FetchDriver {
    prepared: Arc<Prepared>,
    open: bool,
    draining: bool,
    fetched: u32,
    call: Option<InFlight>,
    answers: Responses,
}

impl FetchDriver {
    fn ended(&mut self, answer: &Response, events: &mut Vec<Event>) {
        let Some(InFlight { call, first_byte }) = self.call.take() else {
            return;
        };
        self.draining |= answer.closes || self.fetched >= self.prepared.per_connection;
        let outcome = self.judge(answer, events);
        events.push(Event::Done(Done {
            call,
            outcome,
            first_byte,
            bytes_sent: self.prepared.request.len() as u32,
            bytes_received: u32::try_from(answer.body).unwrap_or(u32::MAX),
        }));
    }

    fn judge(&self, answer: &Response, events: &mut Vec<Event>) -> Outcome {
        let (outcome, text) = if answer.status != 200 {
            let text = format!(
                "{}: {} {}",
                self.prepared.path, answer.status, answer.reason
            );
            (Outcome::HttpStatus, text)
        } else if let Some(size) = self.prepared.size.filter(|size| *size != answer.body) {
            let text = format!("a body of {} bytes instead of {size}", answer.body);
            (Outcome::BodyLength, text)
        } else if u32::try_from(answer.body).is_err() {
            let text = format!("a body of {} bytes, over 4 GiB", answer.body);
            (Outcome::MessageTooLarge, text)
        } else {
            return Outcome::Ok;
        };
        events.push(Event::Detail { outcome, text });
        outcome
    }
}

impl Driver for FetchDriver {
    fn open(&mut self, _now: Time, _out: &mut Vec<u8>) {
        // HTTP/1.1 has no greeting.
        self.open = true;
    }

    fn is_ready(&self) -> bool {
        self.open
    }

    fn capacity(&self) -> usize {
        usize::from(self.open && !self.draining && self.call.is_none())
    }

    fn is_draining(&self) -> bool {
        self.draining
    }

    fn start(&mut self, call: CallId, _number: u64, _now: Time, out: &mut Vec<u8>) {
        self.fetched += 1;
        self.call = Some(InFlight {
            call,
            first_byte: Time::NEVER,
        });
        out.extend_from_slice(&self.prepared.request);
    }

    fn cancel(&mut self, _call: CallId, _now: Time, _out: &mut Vec<u8>) {
        // HTTP/1.1 can't take a request back: only the connection's end does.
        self.call = None;
        self.draining = true;
    }

    fn still_to_come(&self) -> u64 {
        self.answers.still_to_come()
    }

    fn receive(
        &mut self,
        mut bytes: &[u8],
        now: Time,
        _out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        while !bytes.is_empty() {
            match &mut self.call {
                Some(call) if call.first_byte == Time::NEVER => call.first_byte = now,
                Some(_) => {}
                // The rest of a cancelled answer.
                None if self.draining => return Ok(()),
                None => {
                    return Err(ProtocolError {
                        outcome: Outcome::ProtocolError,
                        detail: "http: bytes that no request asked for".to_owned(),
                    });
                }
            }
            let taken = self.answers.take(bytes, |_| ());
            let (taken, answer) = taken.map_err(|e| broken(&e))?;
            bytes = &bytes[taken..];
            if let Some(answer) = answer {
                self.ended(&answer, events);
            }
        }
        Ok(())
    }

    fn receive_end(&mut self, _now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.draining = true;
        if self.call.is_none() {
            return Ok(());
        }
        if let Some(answer) = self.answers.end().map_err(|e| broken(&e))? {
            self.ended(&answer, events);
        }
        Ok(())
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.draining = true;
        if let Some(InFlight { call, first_byte }) = self.call.take() {
            events.push(Event::Done(Done {
                call,
                outcome,
                first_byte,
                bytes_sent: self.prepared.request.len() as u32,
                bytes_received: 0,
            }));
        }
    }

    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(size: Option<u64>, per_connection: Option<u32>) -> FetchDriver {
        let mut driver = FetchProtocol::new(&FetchRequest {
            path: "/a",
            host: "h:1",
            size,
            per_connection,
        })
        .driver();
        driver.open(Time::ZERO, &mut Vec::new());
        driver
    }

    fn outcome(events: &[Event]) -> Vec<(Outcome, u32)> {
        events
            .iter()
            .filter_map(|event| match event {
                Event::Done(done) => Some((done.outcome, done.bytes_received)),
                _ => None,
            })
            .collect()
    }

    const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

    #[test]
    fn a_kept_connection_fetches_as_many_as_it_may() {
        let mut driver = driver(Some(5), Some(2));
        let (mut out, mut events) = (Vec::new(), Vec::new());
        for number in 0..2 {
            assert_eq!((driver.capacity(), driver.is_draining()), (1, false));
            driver.start(CallId(7), number, Time::ZERO, &mut out);
            assert_eq!(driver.capacity(), 0);
            driver
                .receive(HELLO, Time(9), &mut out, &mut events)
                .unwrap();
        }
        assert!(driver.is_draining());
        assert_eq!(outcome(&events), [(Outcome::Ok, 5), (Outcome::Ok, 5)]);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "GET /a HTTP/1.1\r\nHost: h:1\r\nUser-Agent: plimsoll\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n".repeat(2)
        );
    }

    #[test]
    fn another_status_or_length_is_a_failure_with_its_detail() {
        for (size, answer, wrong, detail) in [
            (
                Some(6),
                HELLO,
                Outcome::BodyLength,
                "a body of 5 bytes instead of 6",
            ),
            (
                None,
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".as_slice(),
                Outcome::HttpStatus,
                "/a: 404 Not Found",
            ),
        ] {
            let mut driver = driver(size, None);
            let mut events = Vec::new();
            driver.start(CallId(0), 0, Time::ZERO, &mut Vec::new());
            driver
                .receive(answer, Time(1), &mut Vec::new(), &mut events)
                .unwrap();
            assert_eq!(
                events[0],
                Event::Detail {
                    outcome: wrong,
                    text: detail.into()
                }
            );
            assert_eq!(outcome(&events)[0].0, wrong);
            assert!(!driver.is_draining());
        }
    }

    #[test]
    fn the_connections_end_is_the_bodys_where_no_length_was_promised() {
        let mut ends = driver(None, Some(1));
        let mut events = Vec::new();
        ends.start(CallId(0), 0, Time::ZERO, &mut Vec::new());
        ends.receive(
            b"HTTP/1.0 200 ok\r\n\r\nabc",
            Time(1),
            &mut Vec::new(),
            &mut events,
        )
        .unwrap();
        assert_eq!(events, []);
        ends.receive_end(Time(2), &mut events).unwrap();
        assert_eq!(outcome(&events), [(Outcome::Ok, 3)]);

        let mut short = driver(None, None);
        short.start(CallId(0), 0, Time::ZERO, &mut Vec::new());
        short
            .receive(
                &HELLO[..HELLO.len() - 1],
                Time(1),
                &mut Vec::new(),
                &mut events,
            )
            .unwrap();
        let error = short.receive_end(Time(2), &mut events).unwrap_err();
        assert_eq!(error.outcome, Outcome::BodyLength);
        assert_eq!(error.detail, "http: the body ended after 4 of 5 bytes");
    }

    #[test]
    fn a_cancelled_fetch_ends_its_connection_and_bytes_unasked_for_are_an_error() {
        let mut cancelled = driver(None, None);
        let mut events = Vec::new();
        cancelled.start(CallId(0), 0, Time::ZERO, &mut Vec::new());
        cancelled.cancel(CallId(0), Time(1), &mut Vec::new());
        assert!(cancelled.is_draining());
        cancelled
            .receive(HELLO, Time(2), &mut Vec::new(), &mut events)
            .unwrap();
        assert_eq!(events, []);

        let error = driver(None, None)
            .receive(HELLO, Time(2), &mut Vec::new(), &mut events)
            .unwrap_err();
        assert_eq!(error.outcome, Outcome::ProtocolError);
    }
}
