//! Connecting to a name with several addresses: the attempts of one connection race
//! (RFC 8305, "happy eyeballs", §5).
//!
//! An attempt has 250 ms to come up before the next address is tried beside it, or at once
//! where it fails. The first that is up wins, and the others are closed. A connection to a
//! single address does not come here.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use plimsoll_model::{Outcome, Time};

use super::EventLoop;
use super::client::{Client, Steps};
use super::control::Control;
use crate::addresses::classify_connect;
use crate::network::{Network, Ready, Token};

/// RFC 8305 §8: the recommended Connection Attempt Delay.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Set in the tokens of attempts, and in no connection's.
const ATTEMPT_BIT: u64 = 1 << 63;

/// All races of a worker.
pub(crate) struct Races<S> {
    /// Races by the connection that they are for.
    races: HashMap<Token, Race<S>>,
    /// The connection that an attempt is for.
    attempts: HashMap<Token, Token>,
    /// When the next attempt of a connection begins; in order, as the delay is the same.
    timers: VecDeque<(Time, Token)>,
    next_attempt: u64,
}

struct Race<S> {
    target: u8,
    left: VecDeque<u32>,
    running: Vec<Runner<S>>,
    /// Timers for other moments have been overtaken.
    next_at: Time,
}

struct Runner<S> {
    token: Token,
    socket: S,
    place: u32,
}

impl<S> Default for Races<S> {
    fn default() -> Races<S> {
        Races {
            races: HashMap::new(),
            attempts: HashMap::new(),
            timers: VecDeque::new(),
            next_attempt: 0,
        }
    }
}

impl<S> Races<S> {
    /// When the next attempt begins.
    pub(super) fn next_timer(&self) -> Time {
        self.timers.front().map_or(Time::NEVER, |(at, _)| *at)
    }

    /// The connection whose next attempt is due.
    fn due(&mut self, now: Time) -> Option<Token> {
        while let Some((at, connection)) = self.timers.pop_front_if(|(at, _)| *at <= now) {
            let race = self.races.get(&connection);
            if race.is_some_and(|race| race.next_at == at) {
                return Some(connection);
            }
        }
        None
    }

    /// Closes all attempts for a connection.
    pub(crate) fn abandon<N: Network<Socket = S>>(&mut self, connection: Token, network: &mut N) {
        let Some(race) = self.races.remove(&connection) else {
            return;
        };
        for runner in race.running {
            self.attempts.remove(&runner.token);
            network.close(runner.socket);
        }
    }

    /// Closes the attempts of all races: the run is over.
    pub(crate) fn close<N: Network<Socket = S>>(&mut self, network: &mut N) {
        for (_, race) in self.races.drain() {
            for runner in race.running {
                network.close(runner.socket);
            }
        }
    }
}

impl<C: Client, N: Network> EventLoop<C, N>
where
    Self: Steps<C::Wish>,
{
    /// Begins a race for `connection` to the addresses at the places of `route`.
    pub(super) fn begin_race(
        &mut self,
        control: &mut impl Control,
        connection: Token,
        target: u8,
        route: Vec<u32>,
        now: Time,
    ) {
        let race = Race {
            target,
            left: route.into(),
            running: Vec::new(),
            next_at: Time::NEVER,
        };
        self.races.races.insert(connection, race);
        self.begin_runner(control, connection, None, now);
    }

    /// Begins the attempts whose time has come.
    pub(crate) fn race_on(&mut self, control: &mut impl Control, now: Time) {
        while let Some(connection) = self.races.due(now) {
            self.begin_runner(control, connection, None, now);
        }
    }

    /// Begins an attempt at the next address. Where none is left and none is under way,
    /// `last` says how the last one failed.
    fn begin_runner(
        &mut self,
        control: &mut impl Control,
        connection: Token,
        mut last: Option<(u32, io::Error)>,
        now: Time,
    ) {
        let races = &mut self.races;
        let Some(race) = races.races.get_mut(&connection) else {
            return;
        };
        race.next_at = Time::NEVER;
        let addresses = &mut self.addresses[usize::from(race.target)];
        while let Some(place) = race.left.pop_front() {
            let token = Token(ATTEMPT_BIT | races.next_attempt);
            match addresses.connect(place, token, &mut self.network) {
                Ok(socket) => {
                    // Never again the token of an attempt whose event may be on its way.
                    races.next_attempt = (races.next_attempt + 1) & (ATTEMPT_BIT - 1) >> 1;
                    races.attempts.insert(token, connection);
                    race.running.push(Runner {
                        token,
                        socket,
                        place,
                    });
                    if !race.left.is_empty() {
                        race.next_at = now + ATTEMPT_DELAY;
                        races.timers.push_back((race.next_at, connection));
                    }
                    return;
                }
                Err(e) => {
                    let why = classify_connect(&e);
                    addresses.failed(place, why, self.stage, now, &mut self.recorder);
                    last = Some((place, e));
                }
            }
        }
        if let Some((place, e)) = last
            && race.running.is_empty()
        {
            races.races.remove(&connection);
            if let Some(index) = self.live(connection) {
                self.not_connected(control, index, place, &e, now);
            }
        }
    }

    /// A socket that is no connection's: an attempt's, or of one that is gone.
    #[cold]
    pub(super) fn serve_attempt(&mut self, control: &mut impl Control, ready: Ready) {
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
        let is_it = |runner: &Runner<_>| runner.token == ready.token;
        let Some(at) = race.running.iter().position(is_it) else {
            return;
        };
        let mut runner = race.running.remove(at);
        let addresses = &mut self.addresses[usize::from(race.target)];
        let up = self.network.connected(&mut runner.socket);
        if let Err(e) = up.and_then(|()| self.network.rename(&runner.socket, connection)) {
            let why = classify_connect(&e);
            addresses.failed(runner.place, why, self.stage, now, &mut self.recorder);
            self.network.close(runner.socket);
            return self.begin_runner(control, connection, Some((runner.place, e)), now);
        }
        // Those that began before it had their time.
        for slow in &race.running[..at] {
            let why = Outcome::ConnectTimeout;
            addresses.failed(slow.place, why, self.stage, now, &mut self.recorder);
        }
        self.races.abandon(connection, &mut self.network);
        let Some(index) = self.live(connection) else {
            return self.network.close(runner.socket);
        };
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.socket = Some(runner.socket);
            connection.place = runner.place;
        }
        self.tcp_is_up(control, index, now);
    }

    /// The race for a connection took too long: no address that is being tried is any good.
    pub(super) fn time_race_out(&mut self, connection: Token, now: Time) {
        if let Some(race) = self.races.races.get(&connection) {
            let addresses = &mut self.addresses[usize::from(race.target)];
            for runner in &race.running {
                let why = Outcome::ConnectTimeout;
                addresses.failed(runner.place, why, self.stage, now, &mut self.recorder);
            }
        }
        self.races.abandon(connection, &mut self.network);
    }
}
