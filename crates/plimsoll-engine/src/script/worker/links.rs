//! The links of all scripts: made, read, written and lost.

use std::collections::VecDeque;
use std::io;

use plimsoll_model::{Outcome, Time};
use rustix::io::Errno;

use super::connection::{Connection, State};
use super::{Happened, ScriptWorker};
use crate::addresses::NOWHERE;
use crate::network::{Lookup, Network, Ready, Token};
use crate::racing::{Ground, Raced, Races};
use crate::script::{Link, Scripts};
use crate::worker::{Control, classify_connect};

const MAX_READS: usize = 4;

/// What reading a socket came to.
enum Read {
    /// So many bytes, and there may be more.
    More(usize),
    /// So many bytes, which were all.
    All(usize),
    Nothing,
    Again,
    Lost(Outcome, String),
}

impl<C: Scripts, N: Network> ScriptWorker<C, N> {
    fn token(&self, index: u32, link: Link) -> Token {
        let Some(slot) = &self.slots[index as usize] else {
            return Token(u64::MAX - 1);
        };
        let connection = &slot.connections[usize::from(link.0)];
        Token(
            u64::from(slot.generation) << 40
                | u64::from(connection.generation) << 32
                | u64::from(link.0) << 31
                | u64::from(index),
        )
    }

    /// The live connection that a token names.
    pub(super) fn live(&self, token: Token) -> Option<(u32, Link)> {
        let (index, link) = (
            token.0 as u32 & 0x7fff_ffff,
            Link((token.0 >> 31) as u8 & 1),
        );
        self.slots.get(index as usize)?.as_ref()?;
        (self.token(index, link) == token).then_some((index, link))
    }

    pub(super) fn connection(
        &mut self,
        index: u32,
        link: Link,
    ) -> Option<&mut Connection<N::Socket>> {
        let slot = self.slots[index as usize].as_mut()?;
        Some(&mut slot.connections[usize::from(link.0)])
    }

    pub(super) fn serve(&mut self, control: &mut impl Control, ready: Ready) {
        let Some((index, link)) = self.live(ready.token) else {
            return self.serve_attempt(control, ready);
        };
        let Some(state) = self.connection(index, link).map(|c| c.state) else {
            return;
        };
        if state == State::Connecting {
            if !ready.writable {
                return;
            }
            self.tcp_is_up(control, index, link);
            // A server that speaks first, or goes at once, may have done so already, and
            // sockets report it once.
            let spoke = ready.readable || ready.hangup;
            if !spoke || self.live(ready.token).is_none() {
                return;
            }
        }
        let mut relieved = false;
        if ready.writable
            && let Some(slot) = self.slots[index as usize].as_mut()
        {
            let connection = &mut slot.connections[usize::from(link.0)];
            connection.flush(&mut self.network);
            relieved = connection.is_relieved();
        }
        if ready.readable || ready.hangup || relieved {
            let hangup = ready.hangup || relieved;
            self.read(control, index, link, Ready { hangup, ..ready });
        }
    }

    fn tcp_is_up(&mut self, control: &mut impl Control, index: u32, link: Link) {
        let now = self.network.now();
        let Some(slot) = self.slots[index as usize].as_mut() else {
            return;
        };
        let connection = &mut slot.connections[usize::from(link.0)];
        let Some(socket) = connection.socket.as_mut() else {
            return;
        };
        if let Err(e) = self.network.connected(socket) {
            let place = connection.place;
            return self.connect_failed(control, index, link, place, &e, now);
        }
        self.transport_is_up(control, index, link, now);
    }

    fn transport_is_up(&mut self, control: &mut impl Control, index: u32, link: Link, now: Time) {
        let Some(slot) = self.slots[index as usize].as_mut() else {
            return;
        };
        let connection = &mut slot.connections[usize::from(link.0)];
        match self.scripts.tls(link).map(|tls| tls.session()) {
            None => self.link_is_up(control, index, link, now),
            Some(Ok(session)) => {
                connection.state = State::Handshaking;
                connection.tls = Some(Box::new(session));
                connection.flush(&mut self.network);
            }
            Some(Err(e)) => {
                let text = format!("tls: {e}");
                self.lose(control, index, link, Outcome::TlsFailed, &text, now);
            }
        }
    }

    fn link_is_up(&mut self, control: &mut impl Control, index: u32, link: Link, now: Time) {
        let Some(connection) = self.connection(index, link) else {
            return;
        };
        connection.state = State::Up;
        let place = connection.place;
        let took = now.since(connection.began);
        let agreement = connection.tls.as_ref().map(|tls| tls.agreement());
        if let Some(agreement) = agreement {
            self.handshakes.add(agreement);
        }
        self.connecting -= 1;
        let stage = self.stage;
        self.addresses[usize::from(link.0)].came_up(place, stage, &mut self.recorder);
        self.open_connections += 1;
        control.connections(1);
        self.happen(control, index, Happened::Connected(link, took), now);
    }

    fn read(&mut self, control: &mut impl Control, index: u32, link: Link, ready: Ready) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut exhausted = true;
        for _ in 0..MAX_READS {
            // A script may close its connection, or end, with any bytes it is given.
            if self.live(ready.token).is_none() {
                break;
            }
            let read = self.read_once(index, link, &mut buffer, ready.hangup);
            let now = self.network.now();
            match read {
                Read::More(n) => {
                    self.received(control, index, link, &mut buffer[..n], now);
                    exhausted = false;
                }
                Read::All(n) => {
                    self.received(control, index, link, &mut buffer[..n], now);
                    exhausted = true;
                    break;
                }
                Read::Again => exhausted = false,
                Read::Nothing => {
                    exhausted = true;
                    break;
                }
                Read::Lost(outcome, text) => {
                    self.lose(control, index, link, outcome, &text, now);
                    exhausted = true;
                    break;
                }
            }
        }
        self.buffer = buffer;
        if !exhausted && self.live(ready.token).is_some() {
            self.unfinished.push(ready.token);
        }
    }

    fn read_once(&mut self, index: u32, link: Link, buffer: &mut [u8], to_the_end: bool) -> Read {
        let Some(slot) = self.slots[index as usize].as_mut() else {
            return Read::Nothing;
        };
        let connection = &mut slot.connections[usize::from(link.0)];
        if connection.is_choked() {
            return Read::Nothing;
        }
        let Some(socket) = connection.socket.as_mut() else {
            return Read::Nothing;
        };
        match self.network.read(socket, buffer) {
            Ok(0) if connection.was_reset => {
                let e = io::Error::from(Errno::CONNRESET);
                Read::Lost(Outcome::Reset, format!("the connection was lost: {e}"))
            }
            Ok(0) if connection.state == State::Handshaking => Read::Lost(
                Outcome::TlsFailed,
                "tls: the server closed the connection during the handshake (is it a plaintext port?)"
                    .to_owned(),
            ),
            Ok(0) => Read::Lost(
                Outcome::ConnectionClosed,
                "the server closed the connection".to_owned(),
            ),
            // A short read has emptied the socket; the next bytes make a new event.
            Ok(got) if got < buffer.len() && !to_the_end => Read::All(got),
            Ok(got) => Read::More(got),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Read::Again,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Read::Nothing,
            Err(e) => Read::Lost(Outcome::Reset, format!("the connection was lost: {e}")),
        }
    }

    /// Bytes came off a socket.
    fn received(
        &mut self,
        control: &mut impl Control,
        index: u32,
        link: Link,
        bytes: &mut [u8],
        now: Time,
    ) {
        let Some(slot) = self.slots[index as usize].as_mut() else {
            return;
        };
        let connection = &mut slot.connections[usize::from(link.0)];
        if connection.tls.is_none() {
            return self.happen(control, index, Happened::Received(link, bytes), now);
        }
        let generation = connection.generation;
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let opened = connection.open(bytes, &mut plain);
        let is_open = connection
            .tls
            .as_ref()
            .is_some_and(|tls| !tls.is_handshaking());
        // The rest of the handshake, or an alert that says what is wrong.
        connection.flush(&mut self.network);
        if is_open && connection.state == State::Handshaking && opened.is_ok() {
            self.link_is_up(control, index, link, now);
        }
        let is_same = |worker: &mut Self| {
            let connection = worker.connection(index, link);
            connection.is_some_and(|c| c.generation == generation && c.socket.is_some())
        };
        if !plain.is_empty() && is_same(self) {
            self.happen(control, index, Happened::Received(link, &plain), now);
        }
        self.plain = plain;
        let lost = match opened {
            Ok(false) => return,
            Ok(true) => (
                Outcome::ConnectionClosed,
                "the server closed the connection".to_owned(),
            ),
            Err(lost) => lost,
        };
        if is_same(self) {
            self.lose(control, index, link, lost.0, &lost.1, now);
        }
    }

    /// A connection is gone, or never came up.
    pub(super) fn lose(
        &mut self,
        control: &mut impl Control,
        index: u32,
        link: Link,
        outcome: Outcome,
        detail: &str,
        now: Time,
    ) {
        let stage = self.stage;
        if let Some(connection) = self.connection(index, link)
            && connection.socket.is_some()
            && connection.state != State::Up
        {
            let place = connection.place;
            let addresses = &mut self.addresses[usize::from(link.0)];
            addresses.failed(place, outcome, stage, now, &mut self.recorder);
        }
        self.close(control, index, link);
        self.happen(control, index, Happened::Lost(link, outcome, detail), now);
    }

    pub(super) fn close(&mut self, control: &mut impl Control, index: u32, link: Link) {
        let token = self.token(index, link);
        let Some(slot) = self.slots[index as usize].as_mut() else {
            return;
        };
        let connection = &mut slot.connections[usize::from(link.0)];
        connection.farewell(&mut self.network);
        let is_racing = connection.is_racing;
        let (socket, state) = connection.reset();
        if is_racing {
            self.races.abandon(token, &mut self.network);
        }
        if socket.is_none() && !is_racing {
            return;
        }
        if let Some(socket) = socket {
            self.network.close(socket);
        }
        if state == State::Up {
            self.open_connections -= 1;
            control.connections(-1);
        } else {
            self.connecting -= 1;
        }
    }

    pub(super) fn begin_connections(&mut self, control: &mut impl Control, now: Time) {
        while self.connecting < self.share.most_connecting() && now >= self.next_connect {
            let Some((index, generation, link)) = self.to_connect.front().copied() else {
                return;
            };
            let slot = self.slots[index as usize].as_ref();
            let Some(number) = slot
                .filter(|slot| slot.generation == generation)
                .map(|slot| slot.number)
            else {
                self.to_connect.pop_front();
                continue;
            };
            if !self.is_resolved(control, link, now) {
                return;
            }
            self.to_connect.pop_front();
            if let Some(rate) = self.share.load.connect_rate {
                let gap = (1e9 * f64::from(self.share.of) / rate) as u64;
                self.next_connect = self.next_connect.max(now).plus_nanos(gap);
            }
            self.close(control, index, link);
            self.connect(control, index, link, number, now);
        }
    }

    /// Whether the addresses of a link's name are known, which is looked up if need be. Old
    /// ones will do while it is.
    fn is_resolved(&mut self, control: &mut impl Control, link: Link, now: Time) -> bool {
        let at = usize::from(link.0);
        if !self.addresses[at].are_known(now) && !self.resolving[at] {
            self.resolving[at] = true;
            self.network
                .resolve(at, Token(u64::from(link.0)), Lookup::Shared);
            // What needs no looking up is known at once.
            self.take_addresses(control, now);
        }
        self.addresses[at].are_there()
    }

    /// Takes the addresses that have been looked up.
    pub(super) fn take_addresses(&mut self, control: &mut impl Control, now: Time) {
        while let Some((token, found)) = self.network.resolved() {
            let link = Link(token.0 as u8);
            let at = usize::from(link.0);
            self.resolving[at] = false;
            let until = now + self.share.load.resolve_interval;
            match found {
                Ok(found) => self.addresses[at].learn(&found, until, &mut self.recorder),
                Err(e) if self.addresses[at].are_there() => {
                    tracing::warn!("host name not resolved, its old addresses are used: {e}");
                    self.addresses[at].keep(until);
                }
                Err(e) => {
                    let text = format!("host name not resolved: {e}");
                    let waiting = std::mem::take(&mut self.to_connect);
                    let (lost, rest): (VecDeque<_>, VecDeque<_>) =
                        waiting.into_iter().partition(|(.., of)| *of == link);
                    self.to_connect = rest;
                    for (index, generation, link) in lost {
                        let slot = self.slots[index as usize].as_ref();
                        if slot.is_some_and(|slot| slot.generation == generation) {
                            self.lose(control, index, link, Outcome::ResolveFailed, &text, now);
                        }
                    }
                }
            }
        }
    }

    /// Connects to the name's address, or begins a race to several.
    fn connect(
        &mut self,
        control: &mut impl Control,
        index: u32,
        link: Link,
        number: u64,
        now: Time,
    ) {
        let token = self.token(index, link);
        let addresses = &self.addresses[usize::from(link.0)];
        let only = addresses.only();
        let begun = match only {
            Some(place) => (addresses.connect(place, token, &mut self.network))
                .map(Some)
                .map_err(|e| (place, e)),
            None => Ok(None),
        };
        let socket = match begun {
            Ok(socket) => socket,
            Err((place, e)) => {
                let (stage, why) = (self.stage, classify_connect(&e));
                let addresses = &mut self.addresses[usize::from(link.0)];
                addresses.failed(place, why, stage, now, &mut self.recorder);
                return self.connect_failed(control, index, link, place, &e, now);
            }
        };
        self.connecting += 1;
        let deadline = now + self.share.load.connect_timeout;
        self.connect_deadlines.push_back((deadline, token));
        if let Some(connection) = self.connection(index, link) {
            connection.socket = socket;
            connection.is_racing = only.is_none();
            connection.place = only.unwrap_or(NOWHERE);
            connection.began = now;
        }
        if only.is_none() {
            let route = self.addresses[usize::from(link.0)].route(number, now);
            let (mut ground, races) = self.racing(link, now);
            let raced = races.begin(token, route, &mut ground);
            self.raced(control, raced, now);
        }
    }

    /// What a race needs, and the races.
    fn racing(&mut self, link: Link, now: Time) -> (Ground<'_, N>, &mut Races<N::Socket>) {
        let ground = Ground {
            network: &mut self.network,
            addresses: &mut self.addresses[usize::from(link.0)],
            recorder: &mut self.recorder,
            stage: self.stage,
            now,
        };
        (ground, &mut self.races)
    }

    /// Begins the attempts whose time has come.
    pub(super) fn race_on(&mut self, control: &mut impl Control, now: Time) {
        while let Some(token) = self.races.due(now) {
            // Of a link that is gone there is no race any more.
            let link = self.live(token).map_or(Link(0), |(_, link)| link);
            let (mut ground, races) = self.racing(link, now);
            let raced = races.expire(&mut ground);
            self.raced(control, raced, now);
        }
    }

    /// A socket that is no link's: an attempt's of a race, or of one that is gone.
    #[cold]
    fn serve_attempt(&mut self, control: &mut impl Control, ready: Ready) {
        let token = self.races.connection_of(ready.token);
        let Some((_, link)) = token.and_then(|token| self.live(token)) else {
            return;
        };
        if ready.writable {
            let now = self.network.now();
            let (mut ground, races) = self.racing(link, now);
            let raced = races.ready(ready.token, &mut ground);
            self.raced(control, raced, now);
        }
    }

    fn raced(&mut self, control: &mut impl Control, raced: Raced<N::Socket>, now: Time) {
        match raced {
            Raced::Running => {}
            Raced::Won {
                connection: token,
                socket,
                place,
            } => match self.live(token) {
                Some((index, link)) => {
                    if let Some(connection) = self.connection(index, link) {
                        connection.socket = Some(socket);
                        connection.is_racing = false;
                        connection.place = place;
                    }
                    self.transport_is_up(control, index, link, now);
                }
                None => self.network.close(socket),
            },
            Raced::Lost {
                connection: token,
                place,
                error,
            } => {
                if let Some((index, link)) = self.live(token) {
                    self.connect_failed(control, index, link, place, &error, now);
                }
            }
        }
    }

    fn connect_failed(
        &mut self,
        control: &mut impl Control,
        index: u32,
        link: Link,
        place: u32,
        e: &io::Error,
        now: Time,
    ) {
        let (outcome, text) = self.addresses[usize::from(link.0)].loss(place, e);
        self.lose(control, index, link, outcome, &text, now);
    }

    pub(super) fn connect_timed_out(
        &mut self,
        control: &mut impl Control,
        token: Token,
        now: Time,
    ) {
        let Some((index, link)) = self.live(token) else {
            return;
        };
        let waited_for = match self.connection(index, link).map(|c| c.state) {
            Some(State::Connecting) => "the TCP connection",
            Some(State::Handshaking) => "the TLS handshake",
            _ => return,
        };
        let (mut ground, races) = self.racing(link, now);
        races.time_out(token, &mut ground);
        let text = format!(
            "waited {:?} (load.connect_timeout) for {waited_for}",
            self.share.load.connect_timeout
        );
        self.lose(control, index, link, Outcome::ConnectTimeout, &text, now);
    }

    /// Sends what a script has put out on a link.
    pub(super) fn send(&mut self, index: u32, link: Link) {
        let at = usize::from(link.0);
        match self.slots[index as usize].as_mut() {
            None => self.outs[at].clear(),
            Some(slot) => slot.connections[at].send(&mut self.network, &mut self.outs[at]),
        }
    }
}
