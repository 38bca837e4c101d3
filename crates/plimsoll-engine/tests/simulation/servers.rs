//! Simulated servers with different behaviour.

use super::*;

/// Echoes after a delay; may stall once.
pub(crate) struct EchoServer {
    pub(crate) delay: Duration,
    pub(crate) freeze: Option<(Time, Time)>,
    pub(crate) held: Vec<Vec<u8>>,
}

impl SimulatedServer for EchoServer {
    fn on_open(&mut self, _peer: SimulatedPeerId, _now: Time, _actions: &mut Vec<ServerAction>) {}
    fn on_receive(
        &mut self,
        _peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let mut after = self.delay;
        if let Some((from, to)) = self.freeze {
            let answer = now + after;
            if answer >= from && answer < to {
                after += to.duration_since(answer);
            }
        }
        actions.push(ServerAction::Timer {
            after,
            tag: self.held.len() as u64,
        });
        self.held.push(bytes.to_vec());
    }
    fn on_timer(
        &mut self,
        _peer: SimulatedPeerId,
        tag: u64,
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        actions.push(ServerAction::Send(std::mem::take(
            &mut self.held[tag as usize],
        )));
    }
}

/// Answers one call at a time over all connections, each after `service`, and at most `answers` calls.
pub(crate) struct QueueServer {
    pub(crate) service: Duration,
    pub(crate) answers: usize,
    pub(crate) held: Vec<Vec<u8>>,
    pub(crate) busy_until: Time,
}

impl SimulatedServer for QueueServer {
    fn on_open(&mut self, _peer: SimulatedPeerId, _now: Time, _actions: &mut Vec<ServerAction>) {}
    fn on_receive(
        &mut self,
        _peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        for call in bytes.chunks(4) {
            if call == GREETING {
                actions.push(ServerAction::Send(call.to_vec()));
                continue;
            }
            if self.held.len() >= self.answers {
                return;
            }
            self.busy_until = self.busy_until.max(now) + self.service;
            actions.push(ServerAction::Timer {
                after: self.busy_until.duration_since(now),
                tag: self.held.len() as u64,
            });
            self.held.push(call.to_vec());
        }
    }
    fn on_timer(
        &mut self,
        _peer: SimulatedPeerId,
        tag: u64,
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        actions.push(ServerAction::Send(std::mem::take(
            &mut self.held[tag as usize],
        )));
    }
}

/// Sends many pings and reads nothing for a while, to measure how many pongs the client buffers.
pub(crate) struct PingFlood {
    pub(crate) pings: usize,
    pub(crate) reads_after: Option<Duration>,
    /// Bytes that the client has read, in total and while the server was not reading.
    pub(crate) taken: usize,
    pub(crate) taken_unread: usize,
    pub(crate) reads: bool,
    pub(crate) pongs: usize,
    pub(crate) rest: Vec<u8>,
}

impl SimulatedServer for PingFlood {
    fn on_open(&mut self, _peer: SimulatedPeerId, _now: Time, actions: &mut Vec<ServerAction>) {
        let mut bytes = GREETING.to_vec();
        bytes.extend(PING.repeat(self.pings));
        actions.push(ServerAction::StopReading);
        actions.push(ServerAction::Send(bytes));
        if let Some(after) = self.reads_after {
            actions.push(ServerAction::Timer { after, tag: 0 });
        }
    }
    fn on_receive(
        &mut self,
        _peer: SimulatedPeerId,
        bytes: &[u8],
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.rest.extend_from_slice(bytes);
        let gathered = std::mem::take(&mut self.rest);
        let (words, rest) = gathered.as_chunks::<4>();
        self.rest = rest.to_vec();
        for word in words {
            match *word {
                PONG => self.pongs += 1,
                GREETING => {}
                call => actions.push(ServerAction::Send(call.to_vec())),
            }
        }
    }
    fn on_timer(
        &mut self,
        _peer: SimulatedPeerId,
        _tag: u64,
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.reads = true;
        actions.push(ServerAction::ResumeReading);
    }
    fn on_client_read(&mut self, _peer: SimulatedPeerId, bytes: usize) {
        self.taken += bytes;
        if !self.reads {
            self.taken_unread = self.taken;
        }
    }
}

/// How a server ends an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ConnectionEnd {
    Immediately,
    /// It announces its end before it has carried a call.
    GoingAway,
    AfterInvalidAnswer,
    OnFirstCall,
    AfterFirstAnswer,
}

/// Accepts connections, greets, and ends them.
pub(crate) struct ClosingServer {
    pub(crate) how: ConnectionEnd,
    pub(crate) opened: u64,
}

impl SimulatedServer for ClosingServer {
    fn on_open(&mut self, _peer: SimulatedPeerId, _now: Time, actions: &mut Vec<ServerAction>) {
        self.opened += 1;
        actions.push(ServerAction::Send(GREETING.to_vec()));
        match self.how {
            ConnectionEnd::Immediately => actions.push(ServerAction::Close),
            ConnectionEnd::GoingAway => actions.push(ServerAction::Send(GOING_AWAY.to_vec())),
            // After the connection is established.
            ConnectionEnd::AfterInvalidAnswer => actions.push(ServerAction::Timer {
                after: Duration::from_millis(1),
                tag: 0,
            }),
            ConnectionEnd::OnFirstCall | ConnectionEnd::AfterFirstAnswer => {}
        }
    }
    fn on_receive(
        &mut self,
        _peer: SimulatedPeerId,
        bytes: &[u8],
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let call = bytes.strip_prefix(&GREETING).unwrap_or(bytes);
        if call.is_empty() {
            return;
        }
        match self.how {
            ConnectionEnd::OnFirstCall => actions.push(ServerAction::Close),
            ConnectionEnd::AfterFirstAnswer => {
                actions.push(ServerAction::Send(call.to_vec()));
                actions.push(ServerAction::Close);
            }
            ConnectionEnd::Immediately
            | ConnectionEnd::GoingAway
            | ConnectionEnd::AfterInvalidAnswer => {}
        }
    }
    fn on_timer(
        &mut self,
        _peer: SimulatedPeerId,
        _tag: u64,
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        actions.push(ServerAction::Send(vec![0, 0, 9, 9]));
    }
}

pub(crate) fn echo(delay_ms: u64) -> EchoServer {
    EchoServer {
        delay: Duration::from_millis(delay_ms),
        freeze: None,
        held: Vec::new(),
    }
}

/// Counts the calls of each connection, in the order in which they were opened.
pub(crate) struct CallCounter {
    pub(crate) opened: Vec<(SimulatedPeerId, Time)>,
    pub(crate) calls: Vec<u64>,
    pub(crate) then: EchoServer,
}

pub(crate) fn counting() -> CallCounter {
    CallCounter {
        opened: Vec::new(),
        calls: Vec::new(),
        then: echo(1),
    }
}

impl SimulatedServer for CallCounter {
    fn on_open(&mut self, peer: SimulatedPeerId, now: Time, _actions: &mut Vec<ServerAction>) {
        self.opened.push((peer, now));
        self.calls.push(0);
    }
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let at = self.opened.iter().position(|(known, _)| *known == peer);
        let words = bytes.as_chunks::<4>().0;
        self.calls[at.unwrap()] += words.iter().filter(|word| **word != GREETING).count() as u64;
        self.then.on_receive(peer, bytes, now, actions);
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.then.on_timer(peer, tag, now, actions);
    }
}

/// Answers only the greeting.
#[derive(Default)]
pub(crate) struct SilentServer {
    pub(crate) cancelled: Vec<Time>,
}

impl SimulatedServer for SilentServer {
    fn on_open(&mut self, _peer: SimulatedPeerId, _now: Time, actions: &mut Vec<ServerAction>) {
        actions.push(ServerAction::Send(GREETING.to_vec()));
    }
    fn on_receive(
        &mut self,
        _peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        _actions: &mut Vec<ServerAction>,
    ) {
        let (words, _) = bytes.as_chunks::<4>();
        let cancelled = words.iter().filter(|word| **word == CANCEL);
        self.cancelled.extend(cancelled.map(|_| now));
    }
}

/// Announces the end of the first connection with its first call and resets it later; echoes on others.
pub(crate) struct GoingAwayServer {
    pub(crate) opened: usize,
    pub(crate) first: Option<SimulatedPeerId>,
    pub(crate) then: EchoServer,
}

impl SimulatedServer for GoingAwayServer {
    fn on_open(&mut self, peer: SimulatedPeerId, _now: Time, _actions: &mut Vec<ServerAction>) {
        self.opened += 1;
        self.first.get_or_insert(peer);
    }
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.first != Some(peer) {
            return self.then.on_receive(peer, bytes, now, actions);
        }
        if bytes.starts_with(&GREETING) {
            actions.push(ServerAction::Send(GREETING.to_vec()));
        }
        if bytes != GREETING {
            actions.push(ServerAction::Send(GOING_AWAY.to_vec()));
            let (after, tag) = (Duration::from_millis(50), u64::MAX);
            actions.push(ServerAction::Timer { after, tag });
        }
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        match tag {
            u64::MAX => actions.push(ServerAction::Reset),
            tag => self.then.on_timer(peer, tag, now, actions),
        }
    }
}

/// Greets at once, and answers calls after a delay.
pub(crate) struct SlowServer(pub(crate) EchoServer);

impl SimulatedServer for SlowServer {
    fn on_open(&mut self, _peer: SimulatedPeerId, _now: Time, _actions: &mut Vec<ServerAction>) {}
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        if bytes == GREETING {
            actions.push(ServerAction::Send(bytes.to_vec()))
        } else {
            self.0.on_receive(peer, bytes, now, actions)
        }
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.0.on_timer(peer, tag, now, actions);
    }
}

/// Is reachable when the load begins, and resets all connections from a second later on.
pub(crate) struct DyingServer(pub(crate) EchoServer);

impl SimulatedServer for DyingServer {
    fn on_open(&mut self, peer: SimulatedPeerId, now: Time, actions: &mut Vec<ServerAction>) {
        if now >= Time(6_000_000_000) {
            return actions.push(ServerAction::Reset);
        }
        let after = Time(6_000_000_000).duration_since(now);
        let tag = u64::MAX;
        actions.push(ServerAction::Timer { after, tag });
        self.0.on_open(peer, now, actions);
    }
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.0.on_receive(peer, bytes, now, actions);
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        match tag {
            u64::MAX => actions.push(ServerAction::Reset),
            tag => self.0.on_timer(peer, tag, now, actions),
        }
    }
}

/// Resets the first connections, and echoes on the others.
pub(crate) struct ResettingServer {
    pub(crate) resets: usize,
    pub(crate) opened: Vec<Time>,
    pub(crate) then: EchoServer,
}

pub(crate) fn resetting(resets: usize) -> ResettingServer {
    ResettingServer {
        resets,
        opened: Vec::new(),
        then: echo(10),
    }
}

impl SimulatedServer for ResettingServer {
    fn on_open(&mut self, _peer: SimulatedPeerId, now: Time, actions: &mut Vec<ServerAction>) {
        self.opened.push(now);
        if self.opened.len() <= self.resets {
            actions.push(ServerAction::Reset);
        }
    }
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.then.on_receive(peer, bytes, now, actions);
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.then.on_timer(peer, tag, now, actions);
    }
}

/// Counts how often its client reads: reads without an answer in between belong together.
pub(crate) struct ReadGroupCounter {
    pub(crate) server: QueueServer,
    pub(crate) groups: u32,
    pub(crate) was_read: bool,
}

impl SimulatedServer for ReadGroupCounter {
    fn on_open(&mut self, peer: SimulatedPeerId, now: Time, actions: &mut Vec<ServerAction>) {
        self.server.on_open(peer, now, actions);
    }
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.server.on_receive(peer, bytes, now, actions);
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.was_read = false;
        self.server.on_timer(peer, tag, now, actions);
    }
    fn on_client_read(&mut self, _peer: SimulatedPeerId, _bytes: usize) {
        self.groups += u32::from(!std::mem::replace(&mut self.was_read, true));
    }
}
