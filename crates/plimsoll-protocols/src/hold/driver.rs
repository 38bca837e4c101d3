//! The client's side of one connection that rests: a call is a message and its echo.
//!
//! Invariant: every byte that arrives is the next one of an echo that is owed, to a call or
//! to one that was cancelled. The worker loop calls this.

use std::sync::Arc;

use plimsoll_engine::driver::{CallId, Done, Driver, Event, Protocol, ProtocolError};
use plimsoll_model::{Outcome, Time};

#[derive(Debug)]
struct Texts {
    greeting: Vec<u8>,
    message: Vec<u8>,
}

/// Connections that are greeted once and used now and then.
#[derive(Clone, Debug)]
pub struct HoldProtocol(Arc<Texts>);

/// A line of so many bytes that reads the same backwards, newline apart: servers that echo
/// lines, and `openssl s_server -rev`, give it back as it is.
fn line(bytes: usize) -> Vec<u8> {
    let mut text = vec![b'.'; bytes.saturating_sub(1)];
    text.push(b'\n');
    text
}

impl HoldProtocol {
    /// `greeting` bytes are echoed before a connection counts as up, `message` bytes in a
    /// call; at least 1 each.
    pub fn new(greeting: usize, message: usize) -> HoldProtocol {
        HoldProtocol(Arc::new(Texts {
            greeting: line(greeting),
            message: line(message),
        }))
    }
}

impl Protocol for HoldProtocol {
    type Driver = HoldDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn driver(&self) -> HoldDriver {
        HoldDriver {
            texts: Arc::clone(&self.0),
            greeted: 0,
            call: None,
            echoed: 0,
            late: 0,
        }
    }

    fn rests(&self) -> bool {
        true
    }
}

/// See the module's text. Small: there are as many as connections.
#[derive(Debug)]
pub struct HoldDriver {
    texts: Arc<Texts>,
    /// Bytes of the greeting's echo that have come.
    greeted: u16,
    /// Bytes of the echo that is coming.
    echoed: u16,
    /// Cancelled calls whose echo has not come; they come before the call's.
    late: u32,
    call: Option<(CallId, Time)>,
}

impl HoldDriver {
    fn wrong(bytes: &[u8], awaited: &str) -> ProtocolError {
        ProtocolError {
            outcome: Outcome::BadAnswer,
            detail: format!(
                "{} bytes that are not the echo of {awaited}: is the server one that gives back what it gets?",
                bytes.len()
            ),
        }
    }
}

/// How many of `bytes` are the next of `text`, of which `had` have come; `None`: one is not.
fn next_of(text: &[u8], had: u16, bytes: &[u8]) -> Option<usize> {
    let rest = &text[usize::from(had)..];
    let n = rest.len().min(bytes.len());
    (rest[..n] == bytes[..n]).then_some(n)
}

impl Driver for HoldDriver {
    fn open(&mut self, _now: Time, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.texts.greeting);
    }

    fn is_ready(&self) -> bool {
        usize::from(self.greeted) == self.texts.greeting.len()
    }

    fn capacity(&self) -> usize {
        usize::from(self.is_ready() && self.call.is_none())
    }

    fn is_draining(&self) -> bool {
        false
    }

    fn start(&mut self, call: CallId, _number: u64, _now: Time, out: &mut Vec<u8>) {
        self.call = Some((call, Time::NEVER));
        out.extend_from_slice(&self.texts.message);
    }

    fn cancel(&mut self, _call: CallId, _now: Time, _out: &mut Vec<u8>) {
        // An echo can't be taken back.
        if self.call.take().is_some() {
            self.late += 1;
        }
    }

    fn receive(
        &mut self,
        mut bytes: &[u8],
        now: Time,
        _out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        if !self.is_ready() {
            let n = next_of(&self.texts.greeting, self.greeted, bytes)
                .ok_or_else(|| HoldDriver::wrong(bytes, "the greeting"))?;
            self.greeted += n as u16;
            bytes = &bytes[n..];
        }
        while !bytes.is_empty() {
            if self.late == 0 {
                match &mut self.call {
                    Some((_, first_byte)) if *first_byte == Time::NEVER => *first_byte = now,
                    Some(_) => {}
                    None => return Err(HoldDriver::wrong(bytes, "anything that was sent")),
                }
            }
            let message = &self.texts.message;
            let n = next_of(message, self.echoed, bytes)
                .ok_or_else(|| HoldDriver::wrong(bytes, "the message"))?;
            bytes = &bytes[n..];
            self.echoed += n as u16;
            if usize::from(self.echoed) < message.len() {
                continue;
            }
            self.echoed = 0;
            if self.late > 0 {
                self.late -= 1;
                events.push(Event::Late);
            } else if let Some((call, first_byte)) = self.call.take() {
                events.push(Event::Done(Done {
                    call,
                    outcome: Outcome::Ok,
                    first_byte,
                    bytes_sent: message.len() as u32,
                    bytes_received: message.len() as u32,
                }));
            }
        }
        Ok(())
    }

    fn receive_end(&mut self, _now: Time, _events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        Ok(())
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        if let Some((call, first_byte)) = self.call.take() {
            events.push(Event::Done(Done {
                call,
                outcome,
                first_byte,
                bytes_sent: self.texts.message.len() as u32,
                bytes_received: 0,
            }));
        }
    }

    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that has been greeted, its greeting echoed in pieces of `step`.
    fn greeted(step: usize) -> HoldDriver {
        let mut driver = HoldProtocol::new(16, 3).driver();
        let (mut out, mut events) = (Vec::new(), Vec::new());
        driver.open(Time::ZERO, &mut out);
        assert_eq!(out, b"...............\n");
        for piece in out.chunks(step) {
            assert_eq!((driver.is_ready(), driver.capacity()), (false, 0));
            driver
                .receive(piece, Time(1), &mut Vec::new(), &mut events)
                .unwrap();
        }
        assert_eq!((driver.is_ready(), driver.capacity()), (true, 1));
        assert_eq!(events, []);
        driver
    }

    fn start(driver: &mut HoldDriver, call: u32) {
        let mut out = Vec::new();
        driver.start(CallId(call), 0, Time(2), &mut out);
        assert_eq!(out, b"..\n");
    }

    fn done(call: u32, first_byte: Time) -> Event {
        Event::Done(Done {
            call: CallId(call),
            outcome: Outcome::Ok,
            first_byte,
            bytes_sent: 3,
            bytes_received: 3,
        })
    }

    #[test]
    fn a_call_ends_with_its_echo_however_that_is_split() {
        for step in [1, 2, 3, 16] {
            let mut driver = greeted(step);
            let mut events = Vec::new();
            start(&mut driver, 7);
            assert_eq!(driver.capacity(), 0);
            for (at, piece) in (5..).zip(b"..\n".chunks(step)) {
                driver
                    .receive(piece, Time(at), &mut Vec::new(), &mut events)
                    .unwrap();
            }
            assert_eq!(events, [done(7, Time(5))], "{step}");
            assert_eq!(driver.capacity(), 1);
        }
    }

    #[test]
    fn the_echo_of_a_cancelled_call_is_late_and_not_the_next_ones() {
        let mut driver = greeted(16);
        let mut events = Vec::new();
        start(&mut driver, 1);
        driver
            .receive(b".", Time(3), &mut Vec::new(), &mut events)
            .unwrap();
        driver.cancel(CallId(1), Time(4), &mut Vec::new());
        start(&mut driver, 2);
        driver
            .receive(b".\n..\n", Time(5), &mut Vec::new(), &mut events)
            .unwrap();
        assert_eq!(events, [Event::Late, done(2, Time(5))]);
    }

    #[test]
    fn bytes_that_are_no_echo_end_the_connection() {
        let refused = |driver: &mut HoldDriver, bytes: &[u8]| {
            driver
                .receive(bytes, Time(3), &mut Vec::new(), &mut Vec::new())
                .unwrap_err()
        };
        let mut driver = HoldProtocol::new(4, 1).driver();
        let error = refused(&mut driver, b"HTTP");
        assert_eq!(error.outcome, Outcome::BadAnswer);
        assert!(error.detail.contains("echo of the greeting"), "{error}");
        let error = refused(&mut greeted(16), b".");
        assert!(error.detail.contains("echo of anything"), "{error}");
        let mut driver = greeted(16);
        start(&mut driver, 1);
        let error = refused(&mut driver, b".x");
        assert!(error.detail.contains("echo of the message"), "{error}");
        let mut events = Vec::new();
        driver.abort(Outcome::Reset, Time(9), &mut events);
        assert!(
            matches!(&events[..], [Event::Done(done)] if done.outcome == Outcome::Reset),
            "{events:?}"
        );
    }

    #[test]
    fn a_driver_is_small() {
        assert!(size_of::<HoldDriver>() <= 40, "{}", size_of::<HoldDriver>());
    }
}
