//! The links of all scripts: made, read, written and lost.

use std::io;

use plimsoll_model::{Outcome, Time};

use super::connection::{Connection, State};
use super::{Happened, ScriptWorker};
use crate::network::{Network, Ready, Token};
use crate::script::{Link, Scripts};
use crate::worker::{Control, classify_connect};

const MOST_READS: usize = 4;

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
            return;
        };
        let Some(state) = self.connection(index, link).map(|c| c.state) else {
            return;
        };
        if state == State::Connecting {
            if ready.writable {
                self.tcp_is_up(control, index, link);
            }
            return;
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
            let (outcome, text) = (classify_connect(&e), e.to_string());
            return self.lose(control, index, link, outcome, &text, now);
        }
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
        let took = now.since(connection.began);
        let negotiated = connection.tls.as_ref().map(|tls| tls.negotiated());
        if self.negotiated.is_none() {
            self.negotiated = negotiated;
        }
        self.connecting -= 1;
        self.open_connections += 1;
        control.connections(1);
        self.happen(control, index, Happened::Connected(link, took), now);
    }

    fn read(&mut self, control: &mut impl Control, index: u32, link: Link, ready: Ready) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut exhausted = true;
        for _ in 0..MOST_READS {
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
        self.close(control, index, link);
        self.happen(control, index, Happened::Lost(link, outcome, detail), now);
    }

    pub(super) fn close(&mut self, control: &mut impl Control, index: u32, link: Link) {
        let Some(slot) = self.slots[index as usize].as_mut() else {
            return;
        };
        let connection = &mut slot.connections[usize::from(link.0)];
        connection.farewell(&mut self.network);
        let (Some(socket), state) = connection.reset() else {
            return;
        };
        self.network.close(socket);
        if state == State::Up {
            self.open_connections -= 1;
            control.connections(-1);
        } else {
            self.connecting -= 1;
        }
    }

    pub(super) fn begin_connections(&mut self, control: &mut impl Control, now: Time) {
        while self.connecting < self.share.most_connecting() && now >= self.next_connect {
            let Some((index, generation, link, to)) = self.to_connect.pop_front() else {
                return;
            };
            let alive = self.slots[index as usize]
                .as_ref()
                .is_some_and(|slot| slot.generation == generation);
            if !alive {
                continue;
            }
            if let Some(rate) = self.share.load.connect_rate {
                let gap = (1e9 * f64::from(self.share.of) / rate) as u64;
                self.next_connect = self.next_connect.max(now).plus_nanos(gap);
            }
            self.close(control, index, link);
            let token = self.token(index, link);
            match self.network.connect(to, token) {
                Ok(socket) => {
                    self.connecting += 1;
                    let deadline = now + self.share.load.connect_timeout;
                    self.connect_deadlines.push_back((deadline, token));
                    if let Some(connection) = self.connection(index, link) {
                        connection.socket = Some(socket);
                        connection.began = now;
                    }
                }
                Err(e) => {
                    let (outcome, text) = (classify_connect(&e), format!("connect to {to}: {e}"));
                    self.lose(control, index, link, outcome, &text, now);
                }
            }
        }
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
