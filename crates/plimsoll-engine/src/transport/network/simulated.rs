//! A simulated network with its own clock: the same seed produces the same run, byte for byte. The simulation tests use
//! it.
//!
//! Time advances only in [`Network::wait`], and in slow writes. Bytes between the worker and a [`SimulatedServer`] arrive in order, with
//! the latency and segmentation that [`NetworkConditions`] prescribes, and are subject to its faults: refused and
//! unanswered connects, resets, stalls, full buffers. Low-water marks are enforced exactly.
//!
//! This file is long because the network, its clock and the events of its connections form one state machine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use plimsoll_model::Time;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::transport::address::Address;

use super::{
    LookupScope, Network, ReceiveTime, ResolveResult, ResolvedAddresses, SocketReady, SocketToken,
    WaitKind, WakeTime,
};

mod conditions;

pub use conditions::NetworkConditions;

/// The server's identifier of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimulatedPeerId(pub u64);

/// An action that a server requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAction {
    /// Send bytes to the client.
    Send(Vec<u8>),
    /// Call [`SimulatedServer::on_timer`] with `tag` after the delay `after`.
    Timer {
        /// Delay until the call.
        after: Duration,
        /// The tag that is passed back.
        tag: u64,
    },
    /// Stop reading: bytes that the client sends remain in transit.
    StopReading,
    /// Resume reading, beginning with the bytes that arrived in the meantime.
    ResumeReading,
    /// Close the connection in an orderly way.
    Close,
    /// Reset the connection.
    Reset,
}

/// The server side of the simulated network.
pub trait SimulatedServer {
    /// Called when a client has connected.
    fn on_open(&mut self, peer: SimulatedPeerId, now: Time, actions: &mut Vec<ServerAction>);
    /// Called when bytes of a client have arrived.
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    );
    /// Called when a timer expires that the server requested with this tag.
    fn on_timer(
        &mut self,
        _peer: SimulatedPeerId,
        _tag: u64,
        _now: Time,
        _actions: &mut Vec<ServerAction>,
    ) {
    }
    /// Called when the client has read `bytes` bytes that the server sent.
    fn on_client_read(&mut self, _peer: SimulatedPeerId, _bytes: usize) {}
    /// Called when the client has closed the connection.
    fn on_close(&mut self, _peer: SimulatedPeerId, _now: Time) {}
}

/// An implementation for references, so that a test can keep ownership of the server.
impl<T: SimulatedServer> SimulatedServer for &mut T {
    fn on_open(&mut self, peer: SimulatedPeerId, now: Time, actions: &mut Vec<ServerAction>) {
        (**self).on_open(peer, now, actions);
    }
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        (**self).on_receive(peer, bytes, now, actions);
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        (**self).on_timer(peer, tag, now, actions);
    }
    fn on_client_read(&mut self, peer: SimulatedPeerId, bytes: usize) {
        (**self).on_client_read(peer, bytes);
    }
    fn on_close(&mut self, peer: SimulatedPeerId, now: Time) {
        (**self).on_close(peer, now);
    }
}

/// The client's end of a simulated connection.
#[derive(Debug)]
pub struct SimulatedSocket(u64);

#[derive(Debug, Default)]
struct SimulatedConnection {
    token: u64,
    inbox: VecDeque<u8>,
    /// Arrival times of the inbox's bytes, each with the number of bytes, oldest first.
    arrivals: VecDeque<(Time, usize)>,
    /// Minimum number of bytes in the inbox for which the socket is readable; 0 has the same effect as 1.
    low_water: usize,
    /// Number of bytes that were written and have not reached the server.
    outbound: usize,
    write_blocked: bool,
    /// Data that arrived while the server was not reading; `None` while it reads.
    unread: Option<Vec<Vec<u8>>>,
    refused: bool,
    ended: bool,
    reset: bool,
    /// Arrival times of the last segments in the two directions, which keep later segments in order.
    last_up: Time,
    last_down: Time,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NetworkEvent {
    Connected,
    Refused,
    ToServer(Vec<u8>),
    ToServerEnd,
    ToClient(Vec<u8>),
    ToClientEnd,
    Reset,
    Timer(u64),
    /// The low-water mark or the token has changed, so readiness is checked again.
    ReadinessChanged,
}

/// A network of one worker and one server.
pub struct SimulatedNetwork<S> {
    server: S,
    conditions: NetworkConditions,
    random: ChaCha8Rng,
    now: Time,
    connections: BTreeMap<u64, SimulatedConnection>,
    next_id: u64,
    event_queue: BinaryHeap<Reverse<(Time, u64, u64, NetworkEvent)>>,
    sequence: u64,
    resolving: VecDeque<SocketToken>,
    /// Arrival time of the last bytes that were read.
    arrived: Option<Time>,
    /// Number of consecutive iterations without an event, sent bytes or a wait.
    idle_iterations: u32,
}

/// Number of idle iterations above which the loop counts as busy-looping. It is high because calls that are cancelled
/// at once, on a connection that accepts no bytes, take many iterations until its unsent bytes reach their limit.
const MAX_IDLE_ITERATIONS: u32 = 20_000;

impl<S: SimulatedServer> SimulatedNetwork<S> {
    /// Creates a network whose only host is `server`.
    pub fn new(server: S, mut weather: NetworkConditions) -> SimulatedNetwork<S> {
        // Pauses are popped from the end, so the earliest must come last.
        weather.pauses.sort_by_key(|(at, _)| Reverse(*at));
        SimulatedNetwork {
            server,
            random: ChaCha8Rng::seed_from_u64(weather.seed),
            conditions: weather,
            now: Time(1_000_000_000),
            connections: BTreeMap::new(),
            next_id: 0,
            event_queue: BinaryHeap::new(),
            sequence: 0,
            resolving: VecDeque::new(),
            arrived: None,
            idle_iterations: 0,
        }
    }

    fn pause_worker(&mut self, ready: &mut Vec<SocketReady>) {
        while let Some((_, length)) = self.conditions.pauses.pop_if(|(at, _)| *at <= self.now) {
            let end = self.now + length;
            while self
                .event_queue
                .peek()
                .is_some_and(|Reverse((at, ..))| *at <= end)
                && let Some(Reverse((at, _, connection, what))) = self.event_queue.pop()
            {
                self.now = self.now.max(at);
                self.apply_event(connection, what, ready);
            }
            self.now = end;
        }
    }

    fn draw_in_range(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let span = range.end() - range.start() + 1;
        range.start() + self.random.next_u64() % span
    }

    fn draw_bool(&mut self, chance: u32) -> bool {
        chance > 0 && self.random.next_u32() % 1_000_000 < chance
    }

    fn draw_latency_ns(&mut self) -> u64 {
        let range = self.conditions.latency_us.clone();
        self.draw_in_range(&range) * 1_000
    }

    fn schedule(&mut self, at: Time, connection: u64, what: NetworkEvent) {
        self.sequence += 1;
        self.event_queue
            .push(Reverse((at, self.sequence, connection, what)));
    }

    /// Splits bytes into segments and schedules their arrivals in order.
    fn transmit(&mut self, connection: u64, bytes: &[u8], up: bool) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let range = *self.conditions.piece.start() as u64..=*self.conditions.piece.end() as u64;
            let size = (self.draw_in_range(&range) as usize).clamp(1, rest.len());
            let (piece, after) = rest.split_at(size);
            rest = after;
            let mut at = self.now.plus_nanos(self.draw_latency_ns());
            if self.draw_bool(self.conditions.stall_ppm) {
                let range = self.conditions.stall_ms.clone();
                at = at.plus_nanos(self.draw_in_range(&range) * 1_000_000);
            }
            let reset = self.draw_bool(self.conditions.reset_ppm);
            let Some(state) = self.connections.get_mut(&connection) else {
                return;
            };
            let last = if up {
                &mut state.last_up
            } else {
                &mut state.last_down
            };
            at = at.max(*last);
            *last = at;
            let what = match (reset, up) {
                (true, _) => NetworkEvent::Reset,
                (false, true) => NetworkEvent::ToServer(piece.to_vec()),
                (false, false) => NetworkEvent::ToClient(piece.to_vec()),
            };
            self.schedule(at, connection, what);
            if reset {
                return;
            }
        }
    }

    fn apply_actions(&mut self, connection: u64, actions: Vec<ServerAction>) {
        for action in actions {
            match action {
                ServerAction::Send(bytes) => self.transmit(connection, &bytes, false),
                ServerAction::Timer { after, tag } => {
                    let at = self.now + after;
                    self.schedule(at, connection, NetworkEvent::Timer(tag));
                }
                ServerAction::StopReading => {
                    if let Some(state) = self.connections.get_mut(&connection) {
                        state.unread.get_or_insert_default();
                    }
                }
                ServerAction::ResumeReading => {
                    let Some(state) = self.connections.get_mut(&connection) else {
                        continue;
                    };
                    for piece in state.unread.take().unwrap_or_default() {
                        self.schedule(self.now, connection, NetworkEvent::ToServer(piece));
                    }
                }
                ServerAction::Close | ServerAction::Reset => {
                    let Some(state) = self.connections.get(&connection) else {
                        continue;
                    };
                    let last = state.last_down;
                    let at = self.now.plus_nanos(self.draw_latency_ns()).max(last);
                    let what = match action {
                        ServerAction::Close => NetworkEvent::ToClientEnd,
                        _ => NetworkEvent::Reset,
                    };
                    self.schedule(at, connection, what);
                }
            }
        }
    }

    fn apply_event(&mut self, connection: u64, what: NetworkEvent, ready: &mut Vec<SocketReady>) {
        let Some(state) = self.connections.get_mut(&connection) else {
            return;
        };
        if state.reset {
            return;
        }
        let mut signal = SocketReady {
            token: SocketToken(state.token),
            readable: false,
            writable: false,
            hangup: false,
        };
        let mut actions = Vec::new();
        match what {
            NetworkEvent::Connected => {
                signal.writable = true;
                self.server
                    .on_open(SimulatedPeerId(connection), self.now, &mut actions);
            }
            NetworkEvent::Refused => {
                state.refused = true;
                signal.writable = true;
            }
            NetworkEvent::ToServer(bytes) if state.unread.is_some() => {
                state.unread.get_or_insert_default().push(bytes);
            }
            NetworkEvent::ToServer(bytes) => {
                state.outbound -= bytes.len().min(state.outbound);
                signal.writable = std::mem::take(&mut state.write_blocked);
                self.server
                    .on_receive(SimulatedPeerId(connection), &bytes, self.now, &mut actions);
            }
            NetworkEvent::ToServerEnd => {
                self.server.on_close(SimulatedPeerId(connection), self.now);
                self.connections.remove(&connection);
            }
            NetworkEvent::ToClient(bytes) => {
                state.arrivals.push_back((self.now, bytes.len()));
                state.inbox.extend(bytes);
                signal.readable = state.inbox.len() >= state.low_water;
            }
            NetworkEvent::ReadinessChanged => {
                let waiting = state.inbox.len();
                signal.readable = waiting > 0 && waiting >= state.low_water;
            }
            NetworkEvent::ToClientEnd => {
                state.ended = true;
                signal.readable = true;
                signal.hangup = true;
            }
            NetworkEvent::Reset => {
                state.reset = true;
                state.inbox.clear();
                signal = SocketReady {
                    readable: true,
                    writable: true,
                    hangup: true,
                    ..signal
                };
                self.server.on_close(SimulatedPeerId(connection), self.now);
            }
            NetworkEvent::Timer(tag) => {
                self.server
                    .on_timer(SimulatedPeerId(connection), tag, self.now, &mut actions)
            }
        }
        self.apply_actions(connection, actions);
        if !signal.readable && !signal.writable {
            return;
        }
        // Each wait reports a socket at most once, like epoll_wait(2).
        match ready.iter_mut().find(|known| known.token == signal.token) {
            None => ready.push(signal),
            Some(known) => {
                known.readable |= signal.readable;
                known.writable |= signal.writable;
                known.hangup |= signal.hangup;
            }
        }
    }
}

impl<S: SimulatedServer> Network for SimulatedNetwork<S> {
    type Socket = SimulatedSocket;

    fn now(&mut self) -> Time {
        self.now
    }

    fn connect(
        &mut self,
        _: usize,
        to: &Address,
        token: SocketToken,
    ) -> io::Result<SimulatedSocket> {
        let id = self.next_id;
        self.next_id += 1;
        self.connections.insert(
            id,
            SimulatedConnection {
                token: token.0,
                ..SimulatedConnection::default()
            },
        );
        let is_among = |those: &[SocketAddr]| those.iter().any(|a| Address::Tcp(*a) == *to);
        let (silent, refusing) = (
            is_among(&self.conditions.silent_addresses),
            is_among(&self.conditions.refusing_addresses),
        );
        if !self.draw_bool(self.conditions.ignore_ppm) && !silent {
            let refused = self.draw_bool(self.conditions.refuse_ppm) || refusing;
            let at = self.now.plus_nanos(2 * self.draw_latency_ns());
            let what = if refused {
                NetworkEvent::Refused
            } else {
                NetworkEvent::Connected
            };
            self.schedule(at, id, what);
        }
        Ok(SimulatedSocket(id))
    }

    fn take_connect_result(&mut self, socket: &mut SimulatedSocket) -> io::Result<()> {
        match self.connections.get(&socket.0) {
            Some(connection) if connection.refused => Err(io::ErrorKind::ConnectionRefused.into()),
            Some(connection) if connection.reset => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Ok(()),
        }
    }

    fn change_token(&mut self, socket: &SimulatedSocket, token: SocketToken) -> io::Result<()> {
        if let Some(connection) = self.connections.get_mut(&socket.0) {
            connection.token = token.0;
            self.schedule(self.now, socket.0, NetworkEvent::ReadinessChanged);
        }
        Ok(())
    }

    fn read(&mut self, socket: &mut SimulatedSocket, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(connection) = self.connections.get_mut(&socket.0) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if connection.reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let size = buffer.len().min(connection.inbox.len());
        if size == 0 {
            return if connection.ended {
                Ok(0)
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            };
        }
        for (slot, byte) in buffer.iter_mut().zip(connection.inbox.drain(..size)) {
            *slot = byte;
        }
        let mut rest = size;
        while rest > 0
            && let Some((at, bytes)) = connection.arrivals.front_mut()
        {
            self.arrived = Some(*at);
            let taken = rest.min(*bytes);
            (rest, *bytes) = (rest - taken, *bytes - taken);
            if *bytes == 0 {
                connection.arrivals.pop_front();
            }
        }
        self.server.on_client_read(SimulatedPeerId(socket.0), size);
        Ok(size)
    }

    fn has_receive_times(&self) -> bool {
        true
    }

    fn last_receive_time(&self) -> Option<ReceiveTime> {
        let earliest = self.arrived?;
        let age_ns = self.now.since(earliest);
        Some(ReceiveTime { earliest, age_ns })
    }

    fn set_low_water(&mut self, socket: &mut SimulatedSocket, bytes: usize) {
        if let Some(connection) = self.connections.get_mut(&socket.0) {
            connection.low_water = bytes;
            // Readiness is re-evaluated at once, as in Linux.
            self.schedule(self.now, socket.0, NetworkEvent::ReadinessChanged);
        }
    }

    fn write(&mut self, socket: &mut SimulatedSocket, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.draw_bool(self.conditions.slow_write_ppm) {
            let range = self.conditions.slow_write_us.clone();
            self.now = self.now.plus_nanos(self.draw_in_range(&range) * 1_000);
        }
        let send_buffer = self.conditions.send_buffer;
        let Some(connection) = self.connections.get_mut(&socket.0) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if connection.reset {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = send_buffer.saturating_sub(connection.outbound);
        if room == 0 {
            connection.write_blocked = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.idle_iterations = 0;
        let mut bytes: Vec<u8> = slices
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect();
        bytes.truncate(room);
        connection.outbound += bytes.len();
        self.transmit(socket.0, &bytes, true);
        Ok(bytes.len())
    }

    fn close(&mut self, socket: SimulatedSocket) {
        let latency = self.draw_latency_ns();
        let at = match self.connections.get(&socket.0) {
            Some(connection) if !connection.reset => {
                self.now.plus_nanos(latency).max(connection.last_up)
            }
            _ => {
                self.connections.remove(&socket.0);
                return;
            }
        };
        self.schedule(at, socket.0, NetworkEvent::ToServerEnd);
    }

    fn wait(&mut self, wake: Option<WakeTime>, ready: &mut Vec<SocketReady>) -> io::Result<()> {
        ready.clear();
        // Even an iteration without a wait takes some time; if time did not advance, the loop could hang.
        self.now = self.now.plus_nanos(100);
        if !self.resolving.is_empty() {
            return Ok(());
        }
        let until = wake.map_or(Time::NEVER, |wake| wake.at);
        if wake.is_some_and(|wake| wake.kind == WaitKind::Asleep) {
            self.now = self.now.max(until);
        }
        while let Some(Reverse((at, ..))) = self.event_queue.peek() {
            if *at > until.max(self.now) || (!ready.is_empty() && *at > self.now) {
                break;
            }
            if let Some(Reverse((at, _, connection, what))) = self.event_queue.pop() {
                // During a slow write, network and server have gone on.
                let now = std::mem::replace(&mut self.now, at);
                self.apply_event(connection, what, ready);
                self.now = now.max(at);
            }
        }
        if ready.is_empty() {
            if until == Time::NEVER {
                return Err(io::Error::other("no event is scheduled in the simulation"));
            }
            self.idle_iterations = if until <= self.now {
                self.idle_iterations + 1
            } else {
                0
            };
            if self.idle_iterations > MAX_IDLE_ITERATIONS {
                return Err(io::Error::other("the event loop spins without waiting"));
            }
            self.now = self.now.max(until);
        }
        self.pause_worker(ready);
        Ok(())
    }

    fn resolve(&mut self, _target: usize, token: SocketToken, _lookup: LookupScope) {
        self.resolving.push_back(token);
    }

    fn next_lookup_result(&mut self) -> Option<(SocketToken, ResolveResult)> {
        let token = self.resolving.pop_front()?;
        if self.now >= self.conditions.lookups_fail_from {
            return Some((token, Err(io::Error::other("no server answers").into())));
        }
        let addresses = self.conditions.addresses.iter().copied();
        let found = ResolvedAddresses {
            may_change: addresses.len() > 1,
            addresses: addresses.map(Address::Tcp).collect(),
            is_proxy: false,
        };
        Some((token, Ok(found)))
    }
}
