//! Connection attempts to a name with several addresses, which race (RFC 8305, "Happy Eyeballs", §5). The event loop's
//! connecting code calls this.
//!
//! The next address is tried 250 ms after the previous one, or at once when the previous attempt fails. The first
//! established attempt wins and the others are closed. A connection to a single address bypasses this module.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use plimsoll_model::{Outcome, Time};

use super::EventLoop;
use super::client::{LoopClient, LoopHandler};
use super::worker_control::WorkerControl;
use crate::transport::addresses::classify_connect_error;
use crate::transport::network::{Network, SocketReady, SocketToken};

/// The recommended Connection Attempt Delay (RFC 8305 §8).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Bit that is set in the tokens of race attempts and never in those of connections.
const ATTEMPT_BIT: u64 = 1 << 63;

/// All races of a worker.
pub(crate) struct ConnectRaces<S> {
    /// Races, by the token of the connection that they establish.
    races: HashMap<SocketToken, ConnectRace<S>>,
    /// The token of the connection to which an attempt belongs, by the attempt's token.
    attempts: HashMap<SocketToken, SocketToken>,
    /// Times at which the next attempt of each connection starts, in order, because the delay is constant.
    timers: VecDeque<(Time, SocketToken)>,
    next_attempt: u64,
}

struct ConnectRace<S> {
    target: u8,
    untried: VecDeque<u32>,
    running: Vec<RaceAttempt<S>>,
    /// The time at which the next attempt starts; timers of this connection with other times are obsolete.
    next_attempt_at: Time,
}

struct RaceAttempt<S> {
    token: SocketToken,
    socket: S,
    place: u32,
}

impl<S> Default for ConnectRaces<S> {
    fn default() -> ConnectRaces<S> {
        ConnectRaces {
            races: HashMap::new(),
            attempts: HashMap::new(),
            timers: VecDeque::new(),
            next_attempt: 0,
        }
    }
}

impl<S> ConnectRaces<S> {
    /// Returns when the next attempt starts.
    pub(super) fn next_timer(&self) -> Time {
        self.timers.front().map_or(Time::NEVER, |(at, _)| *at)
    }

    /// Returns a connection whose next attempt is due.
    fn pop_due_connection(&mut self, now: Time) -> Option<SocketToken> {
        while let Some((at, connection)) = self.timers.pop_front_if(|(at, _)| *at <= now) {
            let race = self.races.get(&connection);
            if race.is_some_and(|race| race.next_attempt_at == at) {
                return Some(connection);
            }
        }
        None
    }

    /// Ends the race for a connection and closes all its attempts.
    pub(crate) fn cancel_race<N: Network<Socket = S>>(
        &mut self,
        connection: SocketToken,
        network: &mut N,
    ) {
        let Some(race) = self.races.remove(&connection) else {
            return;
        };
        for attempt in race.running {
            self.attempts.remove(&attempt.token);
            network.close(attempt.socket);
        }
    }

    /// Closes the attempts of all races at the end of the run.
    pub(crate) fn cancel_all<N: Network<Socket = S>>(&mut self, network: &mut N) {
        for (_, race) in self.races.drain() {
            for attempt in race.running {
                network.close(attempt.socket);
            }
        }
    }
}

impl<C: LoopClient, N: Network> EventLoop<C, N>
where
    Self: LoopHandler<C::ConnectRequest>,
{
    /// Starts a race for `connection` between the addresses whose indices are in `route`.
    pub(super) fn begin_race(
        &mut self,
        control: &mut impl WorkerControl,
        connection: SocketToken,
        target: u8,
        route: Vec<u32>,
        now: Time,
    ) {
        let race = ConnectRace {
            target,
            untried: route.into(),
            running: Vec::new(),
            next_attempt_at: Time::NEVER,
        };
        self.races.races.insert(connection, race);
        self.start_next_attempt(control, connection, None, now);
    }

    /// Starts the attempts that are due.
    pub(crate) fn start_due_attempts(&mut self, control: &mut impl WorkerControl, now: Time) {
        while let Some(connection) = self.races.pop_due_connection(now) {
            self.start_next_attempt(control, connection, None, now);
        }
    }

    /// Starts an attempt to the next address. If none is left and none is running, the connection fails with
    /// `last`, the address and error of the last attempt.
    fn start_next_attempt(
        &mut self,
        control: &mut impl WorkerControl,
        connection: SocketToken,
        mut last: Option<(u32, io::Error)>,
        now: Time,
    ) {
        let races = &mut self.races;
        let Some(race) = races.races.get_mut(&connection) else {
            return;
        };
        race.next_attempt_at = Time::NEVER;
        let addresses = &mut self.addresses[usize::from(race.target)];
        while let Some(place) = race.untried.pop_front() {
            let token = SocketToken(ATTEMPT_BIT | races.next_attempt);
            match addresses.connect(place, token, &mut self.network) {
                Ok(socket) => {
                    // Tokens are not reused, because an event of an earlier attempt may still be pending.
                    races.next_attempt = (races.next_attempt + 1) & (ATTEMPT_BIT - 1) >> 1;
                    races.attempts.insert(token, connection);
                    race.running.push(RaceAttempt {
                        token,
                        socket,
                        place,
                    });
                    if !race.untried.is_empty() {
                        race.next_attempt_at = now + ATTEMPT_DELAY;
                        races.timers.push_back((race.next_attempt_at, connection));
                    }
                    return;
                }
                Err(e) => {
                    let why = classify_connect_error(&e);
                    addresses.record_connect_failure(
                        place,
                        why,
                        self.stage,
                        now,
                        &mut self.recorder,
                    );
                    last = Some((place, e));
                }
            }
        }
        if let Some((place, e)) = last
            && race.running.is_empty()
        {
            races.races.remove(&connection);
            if let Some(index) = self.find_connection(connection) {
                self.on_connect_failed(control, index, place, &e, now);
            }
        }
    }

    /// Serves a socket that belongs to a race attempt; ignores it if its connection no longer exists.
    #[cold]
    pub(super) fn serve_attempt(&mut self, control: &mut impl WorkerControl, ready: SocketReady) {
        if !ready.writable {
            return;
        }
        let now = self.network.now();
        let Some(connection) = self.races.attempts.remove(&ready.token) else {
            return;
        };
        let Some(race) = self.races.races.get_mut(&connection) else {
            return;
        };
        let is_it = |attempt: &RaceAttempt<_>| attempt.token == ready.token;
        let Some(at) = race.running.iter().position(is_it) else {
            return;
        };
        let mut attempt = race.running.remove(at);
        let addresses = &mut self.addresses[usize::from(race.target)];
        let up = self.network.take_connect_result(&mut attempt.socket);
        if let Err(e) = up.and_then(|()| self.network.change_token(&attempt.socket, connection)) {
            let why = classify_connect_error(&e);
            addresses.record_connect_failure(
                attempt.place,
                why,
                self.stage,
                now,
                &mut self.recorder,
            );
            self.network.close(attempt.socket);
            return self.start_next_attempt(control, connection, Some((attempt.place, e)), now);
        }
        // Attempts that started earlier and are not established count as timed out.
        for slow in &race.running[..at] {
            let why = Outcome::ConnectTimeout;
            addresses.record_connect_failure(slow.place, why, self.stage, now, &mut self.recorder);
        }
        self.races.cancel_race(connection, &mut self.network);
        let Some(index) = self.find_connection(connection) else {
            return self.network.close(attempt.socket);
        };
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.socket = Some(attempt.socket);
            connection.address_index = attempt.place;
        }
        self.on_tcp_connected(control, index, now);
    }

    /// Ends a race that timed out, and counts a failure for every address that was being tried.
    pub(super) fn time_out_race(&mut self, connection: SocketToken, now: Time) {
        if let Some(race) = self.races.races.get(&connection) {
            let addresses = &mut self.addresses[usize::from(race.target)];
            for attempt in &race.running {
                let why = Outcome::ConnectTimeout;
                addresses.record_connect_failure(
                    attempt.place,
                    why,
                    self.stage,
                    now,
                    &mut self.recorder,
                );
            }
        }
        self.races.cancel_race(connection, &mut self.network);
    }
}
