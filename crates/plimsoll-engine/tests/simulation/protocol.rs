//! A minimal protocol whose messages are words of four bytes.

use super::*;

#[derive(Default)]
pub(crate) struct Ids {
    pub(crate) waited: WaitTimes,
    pub(crate) numbers: CallNumbers,
    /// Delay between the start of a call and its request, by the driver's own timer.
    pub(crate) held_for: Duration,
    /// Whether a connection carries one call at a time.
    pub(crate) exclusive: bool,
    pub(crate) refusal_retries: RefusalRetries,
}

/// The numbers of started calls, in order.
pub(crate) type CallNumbers = Arc<Mutex<Vec<u64>>>;

/// The waiting times that were passed to `start_delayed`, in order.
pub(crate) type WaitTimes = Arc<Mutex<Vec<Duration>>>;

pub(crate) struct IdsDriver {
    pub(crate) waited: WaitTimes,
    pub(crate) numbers: CallNumbers,
    pub(crate) held_for: Duration,
    pub(crate) exclusive: bool,
    pub(crate) held: VecDeque<(Time, CallId)>,
    pub(crate) ready: bool,
    pub(crate) draining: bool,
    pub(crate) partial: Vec<u8>,
    pub(crate) in_flight: Vec<(CallId, bool)>,
}

pub(crate) const GREETING: [u8; 4] = *b"helo";

pub(crate) const PING: [u8; 4] = *b"ping";

pub(crate) const PONG: [u8; 4] = *b"pong";

/// Cancels an earlier call.
pub(crate) const CANCEL: [u8; 4] = *b"cncl";

/// The server accepts no more calls, and answers those in flight.
pub(crate) const GOING_AWAY: [u8; 4] = *b"away";

/// This bit of an answer means that the server refuses the call for [`REFUSAL_TIME`].
pub(crate) const REFUSED: u32 = 1 << 31;

pub(crate) const REFUSAL_TIME: Duration = Duration::from_millis(100);

/// The server accepts no more calls, and has not processed the unanswered ones.
pub(crate) const UNPROCESSED: [u8; 4] = *b"none";

impl Protocol for Ids {
    type Driver = IdsDriver;
    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }
    fn refusal_retries(&self) -> RefusalRetries {
        self.refusal_retries
    }
    fn new_driver(&self) -> IdsDriver {
        IdsDriver {
            waited: Arc::clone(&self.waited),
            numbers: Arc::clone(&self.numbers),
            held_for: self.held_for,
            exclusive: self.exclusive,
            held: VecDeque::new(),
            ready: false,
            draining: false,
            partial: Vec::new(),
            in_flight: Vec::new(),
        }
    }
}

impl Driver for IdsDriver {
    fn open(&mut self, _now: Time, out: &mut Vec<u8>) {
        out.extend_from_slice(&GREETING);
    }
    fn is_ready(&self) -> bool {
        self.ready
    }
    fn capacity(&self) -> usize {
        if self.ready && !self.draining {
            let most = if self.exclusive { 1 } else { 8usize };
            most.saturating_sub(self.in_flight.len())
        } else {
            0
        }
    }
    fn is_draining(&self) -> bool {
        self.draining
    }
    fn carries_one_call_at_a_time(&self) -> bool {
        self.exclusive
    }
    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        assert!(self.capacity() > 0, "started without capacity");
        self.numbers.lock().unwrap().push(number);
        self.in_flight.push((call, true));
        if self.held_for.is_zero() {
            out.extend_from_slice(&call.0.to_be_bytes());
        } else {
            self.held.push_back((now + self.held_for, call));
        }
    }
    fn next_timer(&self) -> Option<Time> {
        self.held.front().map(|(when, _)| *when)
    }
    fn on_timer(&mut self, now: Time, out: &mut Vec<u8>, _events: &mut Vec<Event>) {
        while self.next_timer().is_some_and(|when| when <= now) {
            let (_, call) = self.held.pop_front().unwrap();
            out.extend_from_slice(&call.0.to_be_bytes());
        }
    }
    fn start_delayed(
        &mut self,
        call: CallId,
        number: u64,
        waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        self.waited.lock().unwrap().push(waited);
        self.start(call, number, now, out);
    }
    fn cancel(&mut self, call: CallId, _now: Time, out: &mut Vec<u8>) {
        out.extend_from_slice(&CANCEL);
        let found = self
            .in_flight
            .iter_mut()
            .find(|(id, live)| *id == call && *live);
        found.expect("cancelled call is in flight").1 = false;
    }
    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let mut gathered = std::mem::take(&mut self.partial);
        gathered.extend_from_slice(bytes);
        let (words, rest) = gathered.as_chunks::<4>();
        self.partial = rest.to_vec();
        for &word in words {
            if word == PING {
                out.extend_from_slice(&PONG);
                continue;
            }
            if word == GREETING {
                self.ready = true;
                continue;
            }
            if word == GOING_AWAY {
                self.draining = true;
                continue;
            }
            if word == CANCEL {
                continue;
            }
            if word == UNPROCESSED {
                self.draining = true;
                let before = events.len();
                self.abort(Outcome::Goaway, now, events);
                for event in &mut events[before..] {
                    if let Event::Done(done) = event {
                        *event = Event::Unprocessed(*done);
                    }
                }
                continue;
            }
            let word = u32::from_be_bytes(word);
            let (call, is_refused) = (CallId(word & !REFUSED), word & REFUSED != 0);
            let at = self.in_flight.iter().position(|(id, _)| *id == call);
            let Some(at) = at else {
                return Err(ProtocolError {
                    outcome: Outcome::ProtocolError,
                    detail: "answer to nothing".to_owned(),
                });
            };
            match self.in_flight.remove(at) {
                (_, false) => events.push(Event::Late),
                (_, true) if is_refused => events.push(Event::Refused(Box::new(RefusedCall {
                    done: CompletedCall {
                        call,
                        outcome: Outcome::Unavailable,
                        first_byte: now,
                        bytes_sent: 4,
                        bytes_received: 4,
                    },
                    retry_after: Some(REFUSAL_TIME),
                }))),
                (_, true) => events.push(Event::Done(CompletedCall {
                    call,
                    outcome: Outcome::Ok,
                    first_byte: now,
                    bytes_sent: 4,
                    bytes_received: 4,
                })),
            }
        }
        Ok(())
    }
    fn receive_end(&mut self, _now: Time, _events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        Ok(())
    }
    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        for (call, live) in self.in_flight.drain(..) {
            if live {
                events.push(Event::Done(CompletedCall {
                    call,
                    outcome,
                    first_byte: Time::NEVER,
                    bytes_sent: 4,
                    bytes_received: 0,
                }));
            }
        }
    }
    fn finish(&mut self, _out: &mut Vec<u8>) {}
}
