//! Connecting to a name with several addresses: the attempts of one connection race
//! (RFC 8305, "happy eyeballs", §5).
//!
//! An attempt has 250 ms to come up before the next address is tried beside it, or at once
//! where it fails. The first that is up wins, and the others are closed. Both kinds of worker
//! call this; a connection to a single address does not come here.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use plimsoll_model::{Outcome, Recorder, Time};

use crate::addresses::{Addresses, classify_connect};
use crate::network::{Network, Token};

/// RFC 8305 §8: the recommended Connection Attempt Delay.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Set in the tokens of attempts, and in no connection's.
const ATTEMPT: u64 = 1 << 63;

/// What a race needs besides itself.
pub(crate) struct Ground<'a, N> {
    pub(crate) network: &'a mut N,
    pub(crate) addresses: &'a mut Addresses,
    pub(crate) recorder: &'a mut Recorder,
    pub(crate) stage: u8,
    pub(crate) now: Time,
}

/// What has become of a race.
pub(crate) enum Raced<S> {
    Running,
    /// The socket is `connection`'s, and its events carry that token from now on.
    Won {
        connection: Token,
        socket: S,
        place: u32,
    },
    /// No address is left to try; the last failure.
    Lost {
        connection: Token,
        place: u32,
        error: io::Error,
    },
}

/// All races of a worker.
pub(crate) struct Races<S> {
    /// By the connection that they are for.
    races: HashMap<Token, Race<S>>,
    /// The connection that an attempt is for.
    attempts: HashMap<Token, Token>,
    /// When the next attempt of a connection begins; in order, as the delay is the same.
    timers: VecDeque<(Time, Token)>,
    next_attempt: u64,
}

struct Race<S> {
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
    /// Begins a race for `connection` to the addresses at the places of `route`.
    pub(crate) fn begin<N: Network<Socket = S>>(
        &mut self,
        connection: Token,
        route: Vec<u32>,
        ground: &mut Ground<'_, N>,
    ) -> Raced<S> {
        let race = Race {
            left: route.into(),
            running: Vec::new(),
            next_at: Time::NEVER,
        };
        self.races.insert(connection, race);
        self.next(connection, None, ground)
    }

    /// The connection that an attempt is for; `None`: the token is none of an attempt's, or
    /// of one that is over.
    pub(crate) fn connection_of(&self, token: Token) -> Option<Token> {
        self.attempts.get(&token).copied()
    }

    /// An attempt's socket is ready.
    pub(crate) fn ready<N: Network<Socket = S>>(
        &mut self,
        token: Token,
        ground: &mut Ground<'_, N>,
    ) -> Raced<S> {
        let Some(connection) = self.attempts.remove(&token) else {
            return Raced::Running;
        };
        let Some(race) = self.races.get_mut(&connection) else {
            return Raced::Running;
        };
        let Some(at) = race.running.iter().position(|r| r.token == token) else {
            return Raced::Running;
        };
        let mut runner = race.running.remove(at);
        let up = ground.network.connected(&mut runner.socket);
        match up.and_then(|()| ground.network.rename(&runner.socket, connection)) {
            Ok(()) => {
                // Those that began before it had their time.
                let before = race.running[..at].iter().map(|slow| slow.place);
                for place in before {
                    let why = Outcome::ConnectTimeout;
                    let (stage, now) = (ground.stage, ground.now);
                    ground
                        .addresses
                        .failed(place, why, stage, now, ground.recorder);
                }
                self.abandon(connection, ground.network);
                Raced::Won {
                    connection,
                    socket: runner.socket,
                    place: runner.place,
                }
            }
            Err(e) => {
                ground.failed(runner.place, &e);
                ground.network.close(runner.socket);
                self.next(connection, Some((runner.place, e)), ground)
            }
        }
    }

    /// When the next attempt begins.
    pub(crate) fn next_timer(&self) -> Time {
        self.timers.front().map_or(Time::NEVER, |(at, _)| *at)
    }

    /// The connection whose next attempt is due.
    pub(crate) fn due(&mut self, now: Time) -> Option<Token> {
        while let Some((at, connection)) = self.timers.front().copied() {
            if at > now {
                break;
            }
            let race = self.races.get(&connection);
            if race.is_some_and(|race| race.next_at == at) {
                return Some(connection);
            }
            self.timers.pop_front();
        }
        None
    }

    /// Begins the attempt that [`Races::due`] named.
    pub(crate) fn expire<N: Network<Socket = S>>(
        &mut self,
        ground: &mut Ground<'_, N>,
    ) -> Raced<S> {
        match self.timers.pop_front() {
            Some((_, connection)) => self.next(connection, None, ground),
            None => Raced::Running,
        }
    }

    /// The race took too long: no address that is being tried is any good.
    pub(crate) fn time_out<N: Network<Socket = S>>(
        &mut self,
        connection: Token,
        ground: &mut Ground<'_, N>,
    ) {
        let race = self.races.get(&connection);
        let places: Vec<u32> = race
            .into_iter()
            .flat_map(|race| race.running.iter().map(|runner| runner.place))
            .collect();
        for place in places {
            ground.failed(place, &io::ErrorKind::TimedOut.into());
        }
        self.abandon(connection, ground.network);
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

    /// Begins an attempt at the next address. Where none is left and none is under way,
    /// `last` says how the last one failed.
    fn next<N: Network<Socket = S>>(
        &mut self,
        connection: Token,
        mut last: Option<(u32, io::Error)>,
        ground: &mut Ground<'_, N>,
    ) -> Raced<S> {
        let Some(race) = self.races.get_mut(&connection) else {
            return Raced::Running;
        };
        race.next_at = Time::NEVER;
        while let Some(place) = race.left.pop_front() {
            let token = Token(ATTEMPT | self.next_attempt);
            match ground.addresses.connect(place, token, ground.network) {
                Ok(socket) => {
                    // Never again the token of an attempt whose event may be on its way.
                    self.next_attempt = (self.next_attempt + 1) & (ATTEMPT - 1) >> 1;
                    self.attempts.insert(token, connection);
                    race.running.push(Runner {
                        token,
                        socket,
                        place,
                    });
                    if !race.left.is_empty() {
                        race.next_at = ground.now + ATTEMPT_DELAY;
                        self.timers.push_back((race.next_at, connection));
                    }
                    return Raced::Running;
                }
                Err(e) => {
                    ground.failed(place, &e);
                    last = Some((place, e));
                }
            }
        }
        match last {
            Some((place, error)) if race.running.is_empty() => {
                self.races.remove(&connection);
                Raced::Lost {
                    connection,
                    place,
                    error,
                }
            }
            _ => Raced::Running,
        }
    }
}

impl<N> Ground<'_, N> {
    fn failed(&mut self, place: u32, error: &io::Error) {
        let why = classify_connect(error);
        self.addresses
            .failed(place, why, self.stage, self.now, self.recorder);
    }
}
