//! The hold driver against arbitrary echo server bytes in arbitrary pieces: it must not panic or
//! lose a call, must accept only exact echoes apart from other line ends, and must end in the same
//! state for every split.
//!
//! The first bytes of the input choose: 0 the length of the greeting; 1 the length of a message; 2 the size of the
//! pieces; 3 the number of messages, sent one after another; 4 the message that is cancelled. The rest is what the
//! server sends: a byte of 254 stands for the rest of the echo that is due and 255 for its next byte, so that the
//! fuzzer finds complete echoes easily.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_engine::driver::{CallId, Driver, Event, Protocol};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::hold::{HoldDriver, HoldProtocol};

fuzz_target!(|data: &[u8]| {
    let Some((choices, sent)) = data.split_first_chunk::<5>() else {
        return;
    };
    let step = usize::from(choices[2]).max(1);
    let mut whole = Player::new(choices);
    let mut split = Player::new(choices);
    for byte in sent {
        // The expected bytes depend on what was sent so far, which must not depend on the split.
        assert_eq!(whole.expected_echo(), split.expected_echo());
        let bytes = match byte {
            254 => whole.expected_echo(),
            255 => whole.expected_echo().into_iter().take(1).collect(),
            other => vec![*other],
        };
        whole.receive(&bytes, usize::MAX);
        split.receive(&bytes, step);
    }
    assert_eq!(whole.end(), split.end(), "a split changed what happened");
});

/// The events, and how the connection ended.
type Ending = (Vec<Event>, Result<(), Outcome>);

/// A driver with the echo that it expects, tracked independently of it.
struct Player {
    driver: HoldDriver,
    cancelled: u32,
    messages: u32,
    started: u32,
    was_cancelled: u32,
    /// Everything that was sent, and how much of it was echoed.
    out: Vec<u8>,
    echoed: usize,
    events: Vec<Event>,
    result: Result<(), Outcome>,
    /// The server ended a line differently, so the expected echo is unknown from there on.
    is_over: bool,
}

impl Player {
    fn new(choices: &[u8; 5]) -> Player {
        let [greeting, message, _, messages, cancelled] = choices.map(u32::from);
        let length = |n: u32| n as usize + 1;
        let mut driver = HoldProtocol::new(length(greeting), length(message)).new_driver();
        let mut out = Vec::new();
        driver.open(Time(0), &mut out);
        assert_eq!(out.len(), length(greeting));
        let mut player = Player {
            driver,
            cancelled,
            messages: messages % 16,
            started: 0,
            was_cancelled: 0,
            out,
            echoed: 0,
            events: Vec::new(),
            result: Ok(()),
            is_over: false,
        };
        player.send();
        player
    }

    fn expected_echo(&self) -> Vec<u8> {
        self.out[self.echoed..].to_vec()
    }

    /// Sends the remaining messages as far as the driver has capacity.
    fn send(&mut self) {
        while self.started < self.messages && self.driver.capacity() > 0 {
            let call = CallId(self.started);
            self.driver.start(call, 0, Time(1), &mut self.out);
            self.started += 1;
            if call.0 == self.cancelled {
                self.driver.cancel(call, Time(1), &mut self.out);
                self.was_cancelled = 1;
            }
        }
    }

    fn receive(&mut self, bytes: &[u8], step: usize) {
        for piece in bytes.chunks(step.min(bytes.len().max(1))) {
            if self.is_over || self.result.is_err() {
                return;
            }
            let right = self.out[self.echoed..].starts_with(piece);
            let result = self
                .driver
                .receive(piece, Time(2), &mut self.out, &mut self.events);
            self.result = result.map_err(|error| error.outcome);
            if right {
                assert!(self.result.is_ok(), "an echo was refused");
                self.echoed += piece.len();
            } else {
                // A line may end differently; from there on the expected echo is unknown.
                let may_end_line = piece.iter().all(|byte| b"\r\n\0.".contains(byte));
                let is_taken = self.result.is_ok();
                assert!(
                    !is_taken || may_end_line,
                    "accepted bytes that are not the echo"
                );
                self.is_over |= is_taken;
            }
        }
        // The server sent these bytes before it received what is sent now.
        if self.result.is_ok() {
            self.send();
        }
    }

    fn end(mut self) -> Ending {
        if self.result.is_ok() {
            let result = self.driver.receive_end(Time(3), &mut self.events);
            self.result = result.map_err(|error| error.outcome);
        }
        self.driver.abort(Outcome::Reset, Time(4), &mut self.events);
        let mut ended = vec![false; self.started as usize];
        for event in &self.events {
            if let Some(done) = event.ended_call() {
                let before = std::mem::replace(&mut ended[done.call.0 as usize], true);
                assert!(!before, "call {} ended twice", done.call.0);
            }
        }
        let count = ended.iter().filter(|ended| **ended).count() as u32;
        assert_eq!(count + self.was_cancelled, self.started, "a call was lost");
        (self.events, self.result)
    }
}
