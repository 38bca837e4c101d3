//! The client's side of one idle connection: a call is a message and its echo.
//!
//! Invariant: every byte received either continues an outstanding echo, even that of a cancelled call, or belongs to
//! a line end. The engine's worker loop calls this driver.
//!
//! Servers that echo lines end them differently: without the newline, with CR LF, or with the rest of their buffer,
//! which is zeros. So an echo is complete once everything before the newline has arrived, and line ends after it are
//! skipped.

use std::sync::Arc;

use plimsoll_engine::driver::{CallId, CompletedCall, Driver, Event, Protocol, ProtocolError};
use plimsoll_model::{Outcome, Time};

#[derive(Debug)]
struct EchoTexts {
    greeting: Vec<u8>,
    message: Vec<u8>,
}

/// The protocol of idle connections, which exchange a greeting when they open, and later a few messages.
#[derive(Clone, Debug)]
pub struct HoldProtocol(Arc<EchoTexts>);

/// Returns the part of a line that must be echoed: all but the newline, or the newline if the line is otherwise
/// empty.
fn echoed_part(line: &[u8]) -> &[u8] {
    &line[..line.len().saturating_sub(1).max(1)]
}

/// Builds a line of this length that is a palindrome apart from its newline, so that `openssl s_server -rev`, which
/// reverses lines, returns it unchanged.
fn palindrome_line(bytes: usize) -> Vec<u8> {
    let mut text = vec![b'.'; bytes.saturating_sub(1)];
    text.push(b'\n');
    text
}

impl HoldProtocol {
    /// Makes the protocol. `greeting` bytes are echoed before a connection counts as open, `message` bytes in each
    /// call; at least 1 each.
    pub fn new(greeting: usize, message: usize) -> HoldProtocol {
        HoldProtocol(Arc::new(EchoTexts {
            greeting: palindrome_line(greeting),
            message: palindrome_line(message),
        }))
    }
}

impl Protocol for HoldProtocol {
    type Driver = HoldDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn new_driver(&self) -> HoldDriver {
        HoldDriver {
            texts: Arc::clone(&self.0),
            call: None,
            echoed: 0,
            line_end_bytes: 0,
            late_echoes: 0,
            is_greeted: false,
            newline_may_follow: false,
        }
    }

    fn is_mostly_idle(&self) -> bool {
        true
    }
}

/// The driver of one connection. It is small, because there is one for each of many connections.
#[derive(Debug)]
pub struct HoldDriver {
    texts: Arc<EchoTexts>,
    call: Option<(CallId, Time)>,
    /// The number of bytes received of the current echo (of the greeting or of a message), without its newline.
    echoed: u16,
    /// Bytes of line ends since the last echo. They count towards the next call, so that results do not depend on how
    /// the stream is split into reads.
    line_end_bytes: u16,
    /// The number of cancelled calls whose echo is outstanding. Their echoes arrive before the echo of the current
    /// call.
    late_echoes: u16,
    is_greeted: bool,
    /// Whether the newline of the last echo may still arrive.
    newline_may_follow: bool,
}

impl HoldDriver {
    /// Skips the line end of the last echo, which may arrive later than the line, and returns the bytes after it.
    fn skip_line_end<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        if !self.is_ready() || self.echoed > 0 {
            return bytes;
        }
        while let [first, rest @ ..] = bytes {
            match first {
                b'\r' | 0 => {}
                b'\n' if self.newline_may_follow => self.newline_may_follow = false,
                _ => break,
            }
            bytes = rest;
            // An empty line has no separate line end.
            let counts = self.texts.message.len() > 1;
            self.line_end_bytes = self.line_end_bytes.saturating_add(u16::from(counts));
        }
        bytes
    }

    fn bad_echo_error(bytes: &[u8], awaited: &str) -> ProtocolError {
        ProtocolError {
            outcome: Outcome::BadAnswer,
            detail: format!(
                "{} bytes that are not the echo of {awaited}: does the server echo what it receives?",
                bytes.len()
            ),
        }
    }
}

/// Returns how many of `bytes` continue `text`, whose first `had` bytes arrived before; `None` if a byte differs.
fn matching_prefix(text: &[u8], had: u16, bytes: &[u8]) -> Option<usize> {
    let rest = &text[usize::from(had)..];
    let n = rest.len().min(bytes.len());
    (rest[..n] == bytes[..n]).then_some(n)
}

impl Driver for HoldDriver {
    fn open(&mut self, _now: Time, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.texts.greeting);
    }

    fn is_ready(&self) -> bool {
        self.is_greeted
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
        // The server still sends the echo of a cancelled call, so the echo is counted as outstanding.
        if self.call.take().is_some() {
            self.late_echoes = self.late_echoes.saturating_add(1);
        }
    }

    fn receive(
        &mut self,
        mut bytes: &[u8],
        now: Time,
        _out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        loop {
            bytes = self.skip_line_end(bytes);
            if bytes.is_empty() {
                return Ok(());
            }
            if !self.is_ready() {
                let greeting = &self.texts.greeting;
                let n = matching_prefix(echoed_part(greeting), self.echoed, bytes)
                    .ok_or_else(|| HoldDriver::bad_echo_error(bytes, "the greeting"))?;
                bytes = &bytes[n..];
                self.echoed += n as u16;
                if usize::from(self.echoed) == echoed_part(greeting).len() {
                    (self.echoed, self.is_greeted) = (0, true);
                    self.newline_may_follow = greeting.len() > 1;
                }
                continue;
            }
            if self.late_echoes == 0 {
                match &mut self.call {
                    Some((_, first_byte)) if *first_byte == Time::NEVER => *first_byte = now,
                    Some(_) => {}
                    None => {
                        return Err(HoldDriver::bad_echo_error(bytes, "anything that was sent"));
                    }
                }
            }
            let message = &self.texts.message;
            let (sent, awaited) = (message.len(), echoed_part(message).len());
            let n = matching_prefix(echoed_part(message), self.echoed, bytes)
                .ok_or_else(|| HoldDriver::bad_echo_error(bytes, "the message"))?;
            bytes = &bytes[n..];
            self.echoed += n as u16;
            if usize::from(self.echoed) < awaited {
                continue;
            }
            self.echoed = 0;
            self.newline_may_follow = sent > awaited;
            let received = awaited as u32 + u32::from(std::mem::take(&mut self.line_end_bytes));
            if self.late_echoes > 0 {
                self.late_echoes -= 1;
                events.push(Event::Late);
            } else if let Some((call, first_byte)) = self.call.take() {
                events.push(Event::Done(CompletedCall {
                    call,
                    outcome: Outcome::Ok,
                    first_byte,
                    bytes_sent: sent as u32,
                    bytes_received: received,
                }));
            }
        }
    }

    fn receive_end(&mut self, _now: Time, _events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        Ok(())
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        if let Some((call, first_byte)) = self.call.take() {
            events.push(Event::Done(CompletedCall {
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

    /// Makes a driver whose greeting was echoed in pieces of `step` bytes.
    fn greeted(step: usize) -> HoldDriver {
        let mut driver = HoldProtocol::new(16, 3).new_driver();
        let (mut out, mut events) = (Vec::new(), Vec::new());
        driver.open(Time::ZERO, &mut out);
        assert_eq!(out, b"...............\n");
        for piece in out.chunks(step) {
            if piece != b"\n" {
                assert_eq!((driver.is_ready(), driver.capacity()), (false, 0));
            }
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
        with_bytes(call, first_byte, 3)
    }

    fn with_bytes(call: u32, first_byte: Time, bytes_received: u32) -> Event {
        Event::Done(CompletedCall {
            call: CallId(call),
            outcome: Outcome::Ok,
            first_byte,
            bytes_sent: 3,
            bytes_received,
        })
    }

    #[test]
    fn call_completes_with_split_echo() {
        for step in [1, 2, 3, 16] {
            let mut driver = greeted(step);
            let mut events = Vec::new();
            // The newline arrives after the call has ended, and does not count for the next one.
            for call in [7, 8] {
                start(&mut driver, call);
                assert_eq!(driver.capacity(), 0);
                for (at, piece) in (5..).zip(b"..\n".chunks(step)) {
                    driver
                        .receive(piece, Time(at), &mut Vec::new(), &mut events)
                        .unwrap();
                }
                assert_eq!(driver.capacity(), 1);
            }
            let expected = [7, 8].map(|call| done(call, Time(5)));
            assert_eq!(events, expected, "{step}");
        }
    }

    /// How a server echoes a line.
    type EchoStyle = fn(&str) -> String;

    #[test]
    fn echo_may_use_different_line_endings() {
        let ways: [(EchoStyle, u32); 3] = [
            (|text| text.trim_end().to_owned(), 2),
            (|text| text.replace('\n', "\r\n"), 4),
            (|text| format!("{text}{}", "\0".repeat(61)), 64),
        ];
        for (ended, bytes) in ways {
            for step in [1, 2, 3, 64, 1000] {
                let mut driver = HoldProtocol::new(16, 3).new_driver();
                let mut events = Vec::new();
                let mut give = |driver: &mut HoldDriver, text: &str| {
                    for piece in ended(text).as_bytes().chunks(step) {
                        let mut out = Vec::new();
                        let got = driver.receive(piece, Time(3), &mut out, &mut events);
                        assert_eq!(got, Ok(()), "{text:?} in pieces of {step}");
                    }
                };
                give(&mut driver, "...............\n");
                assert!(driver.is_ready(), "{step}");
                start(&mut driver, 1);
                give(&mut driver, "..\n");
                start(&mut driver, 2);
                give(&mut driver, "..\n");
                let expected = [1, 2].map(|call| with_bytes(call, Time(3), bytes));
                assert_eq!(events, expected, "{step}");
            }
        }
    }

    #[test]
    fn empty_line_echo_is_single_newline() {
        let mut driver = HoldProtocol::new(16, 1).new_driver();
        let mut events = Vec::new();
        let mut give = |driver: &mut HoldDriver, bytes: &[u8]| {
            driver.receive(bytes, Time(3), &mut Vec::new(), &mut events)
        };
        // The newline of the greeting is not the echo of the message.
        give(&mut driver, b"...............").unwrap();
        driver.start(CallId(1), 0, Time(2), &mut Vec::new());
        give(&mut driver, b"\n").unwrap();
        assert_eq!(driver.capacity(), 0);
        give(&mut driver, b"\n").unwrap();
        assert_eq!(driver.capacity(), 1);
        assert!(give(&mut driver, b"\n").is_err());
        assert_eq!(events.len(), 1);
    }

    #[test]
    fn cancelled_call_echo_is_late() {
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
    fn non_echo_bytes_close_connection() {
        let refused = |driver: &mut HoldDriver, bytes: &[u8]| {
            driver
                .receive(bytes, Time(3), &mut Vec::new(), &mut Vec::new())
                .unwrap_err()
        };
        let mut driver = HoldProtocol::new(4, 1).new_driver();
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
    fn driver_takes_at_most_forty_bytes() {
        assert!(size_of::<HoldDriver>() <= 40, "{}", size_of::<HoldDriver>());
    }
}
