//! Measures handshakes only: opens connections and sends nothing over them.
//!
//! Invariant: a call ends at the event loop's next check of the driver's timer, right after its start. The engine
//! connects between the call's arrival and `start`, so connecting and the handshake are phases of the call.

use plimsoll_engine::driver::{CallId, CompletedCall, Driver, Event, Protocol, ProtocolError};
use plimsoll_model::{Outcome, Time};

/// A protocol without messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeProtocol;

impl Protocol for HandshakeProtocol {
    type Driver = HandshakeDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn new_driver(&self) -> HandshakeDriver {
        HandshakeDriver::default()
    }
}

/// The driver of one connection; see the module's documentation.
#[derive(Debug, Default)]
pub(super) struct HandshakeDriver {
    is_open: bool,
    /// The current call, and when it started.
    call: Option<(CallId, Time)>,
}

impl HandshakeDriver {
    fn end_call(&mut self, outcome: Outcome, events: &mut Vec<Event>) {
        if let Some((call, _)) = self.call.take() {
            events.push(Event::Done(CompletedCall {
                call,
                outcome,
                first_byte: Time::NEVER,
                bytes_sent: 0,
                bytes_received: 0,
            }));
        }
    }
}

impl Driver for HandshakeDriver {
    fn open(&mut self, _now: Time, _out: &mut Vec<u8>) {
        self.is_open = true;
    }

    fn is_ready(&self) -> bool {
        self.is_open
    }

    fn capacity(&self) -> usize {
        usize::from(self.is_open && self.call.is_none())
    }

    fn is_draining(&self) -> bool {
        false
    }

    fn start(&mut self, call: CallId, _number: u64, now: Time, _out: &mut Vec<u8>) {
        self.call = Some((call, now));
    }

    fn cancel(&mut self, _call: CallId, _now: Time, _out: &mut Vec<u8>) {
        self.call = None;
    }

    fn receive(
        &mut self,
        _bytes: &[u8],
        _now: Time,
        _out: &mut Vec<u8>,
        _events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        // Ignores the data of servers that send first; only the connection is measured.
        Ok(())
    }

    fn receive_end(&mut self, _now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        // The handshake is complete, so the call succeeds even if the server closes the connection.
        self.end_call(Outcome::Ok, events);
        Ok(())
    }

    fn next_timer(&self) -> Option<Time> {
        self.call.map(|(_, began)| began)
    }

    fn on_timer(&mut self, _now: Time, _out: &mut Vec<u8>, events: &mut Vec<Event>) {
        self.end_call(Outcome::Ok, events);
    }

    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        self.end_call(outcome, events);
    }

    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> HandshakeDriver {
        let mut driver = HandshakeProtocol.new_driver();
        assert_eq!((driver.is_ready(), driver.capacity()), (false, 0));
        let mut out = Vec::new();
        driver.open(Time(1), &mut out);
        assert_eq!((driver.capacity(), driver.next_timer()), (1, None));
        driver.start(CallId(3), 0, Time(5), &mut out);
        assert_eq!((driver.capacity(), driver.next_timer()), (0, Some(Time(5))));
        assert_eq!(out, b"", "nothing is sent");
        driver
    }

    fn outcomes(events: &[Event]) -> Vec<(u32, Outcome)> {
        let of = |event: &Event| match event {
            Event::Done(done) => (done.call.0, done.outcome),
            other => panic!("{other:?}"),
        };
        events.iter().map(of).collect()
    }

    #[test]
    fn handshake_call_completes_without_sending() {
        let (mut out, mut events) = (Vec::new(), Vec::new());
        let mut driver = started();
        driver.on_timer(Time(6), &mut out, &mut events);
        assert_eq!(outcomes(&events), [(3, Outcome::Ok)]);
        assert_eq!((driver.capacity(), driver.next_timer()), (1, None));
        driver.on_timer(Time(7), &mut out, &mut events);
        assert_eq!((events.len(), out.len()), (1, 0));
    }

    #[test]
    fn clean_server_close_completes_call() {
        let mut events = Vec::new();
        let mut driver = started();
        let greeting = driver.receive(b"220 hello\r\n", Time(6), &mut Vec::new(), &mut events);
        assert_eq!((greeting, events.len()), (Ok(()), 0));
        driver.receive_end(Time(7), &mut events).unwrap();
        driver.abort(Outcome::ConnectionClosed, Time(7), &mut events);
        assert_eq!(outcomes(&events), [(3, Outcome::Ok)]);
        let (mut driver, mut events) = (started(), Vec::new());
        driver.abort(Outcome::Reset, Time(7), &mut events);
        assert_eq!(outcomes(&events), [(3, Outcome::Reset)]);
    }
}
