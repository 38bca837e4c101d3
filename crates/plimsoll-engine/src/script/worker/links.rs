//! The connections of scripts: read, written and lost. [`super`] calls this.

use std::io;

use plimsoll_model::{Outcome, Time};

use super::ScriptWorker;
use crate::event_loop::Control;
use crate::event_loop::connection::{Connection, State, explained};
use crate::loss::Loss;
use crate::network::{Network, Ready};
use crate::script::{Link, Script, Scripts};
use crate::tls::CLOSED_IN_HANDSHAKE;

const MAX_READS: usize = 4;

/// The script and link to which a connection belongs.
#[derive(Clone, Copy)]
pub struct OnLink {
    pub(super) slot: u64,
    pub(super) link: Link,
}

impl<S> Connection<OnLink, S> {
    /// Sends `bytes` after the pending ones and empties the buffer; keeps what the socket does not accept.
    /// All of it counts as replies, since a script sends little of its own accord. A failed connection is
    /// noticed when it is read.
    fn send<N: Network<Socket = S>>(&mut self, network: &mut N, bytes: &mut Vec<u8>) {
        if self.state != State::Open || self.write_failed {
            return bytes.clear();
        }
        if self.out.is_empty() {
            std::mem::swap(&mut self.out, bytes)
        } else {
            self.out.append(bytes)
        }
        self.flush(network);
        if self.out.is_empty() {
            std::mem::swap(&mut self.out, bytes);
        }
        self.owe_all();
    }

    /// Returns the loss of a connection whose last `read` returned end of stream or an error.
    fn why_lost(&self, read: io::Result<usize>) -> Loss {
        match (read, self.write_error()) {
            (Err(e), _) | (_, Some(e)) => Loss::of_error("", &e),
            (Ok(_), None) if self.state == State::Handshaking => {
                Loss::new(Outcome::TlsFailed, CLOSED_IN_HANDSHAKE)
            }
            (Ok(_), None) => Loss::closed(),
        }
    }
}

impl<C: Scripts, N: Network> ScriptWorker<C, N> {
    pub(super) fn serve_link(&mut self, control: &mut impl Control, index: u32, ready: Ready) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let mut relieved = false;
        if ready.writable {
            connection.flush(&mut self.network);
            relieved = connection.is_relieved();
        }
        if ready.readable || ready.hangup || relieved {
            let hangup = ready.hangup || relieved;
            self.read(control, index, Ready { hangup, ..ready });
        }
    }

    /// Continues after TCP is established: with the TLS handshake, or by opening the link.
    pub(super) fn greet(&mut self, control: &mut impl Control, index: u32, now: Time) {
        match self.connections[index as usize].as_mut() {
            Some(connection) if connection.state == State::Handshaking => {
                connection.flush(&mut self.network);
            }
            _ => self.link_is_up(control, index, now),
        }
    }

    fn link_is_up(&mut self, control: &mut impl Control, index: u32, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.state = State::Open;
        let took = connection.phases.connect_ns + connection.lap(now);
        let agreement = connection.tls.as_ref().and_then(|tls| tls.agreement());
        let OnLink { slot, link } = connection.own;
        self.came_up(index, agreement, self.stage);
        self.open_connections += 1;
        control.connections(1);
        self.happen(control, slot, now, &mut |script, turn| {
            script.connected(link, took, now, turn);
        });
    }

    fn read(&mut self, control: &mut impl Control, index: u32, ready: Ready) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut more = false;
        for _ in 0..MAX_READS {
            // A script may close its connection, or end, on any bytes.
            let connection = match self.live(ready.token) {
                Some(index) => self.connections[index as usize].as_mut(),
                None => None,
            };
            let Some(connection) = connection else {
                break;
            };
            let read = connection.read(&mut self.network, &mut buffer);
            let now = self.network.now();
            more = match read {
                None => false,
                Some(Ok(got @ 1..)) => {
                    self.received(control, index, &mut buffer[..got], now);
                    // A short read has emptied the socket; the next bytes make a new event.
                    got == buffer.len() || ready.hangup
                }
                Some(Err(e)) if e.kind() == io::ErrorKind::Interrupted => true,
                Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => false,
                Some(over) => {
                    let loss = connection.why_lost(over);
                    self.lose(control, index, &loss, now);
                    false
                }
            };
            if !more {
                break;
            }
        }
        self.buffer = buffer;
        if more && self.live(ready.token).is_some() {
            self.unfinished.push(ready.token);
        }
    }

    /// Decrypts received bytes if necessary and passes them to the script.
    fn received(&mut self, control: &mut impl Control, index: u32, bytes: &mut [u8], now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let OnLink { slot, link } = connection.own;
        let token = connection.token(index);
        let mut plain = std::mem::take(&mut self.client.plain);
        plain.clear();
        let mut opened = Ok(false);
        let is_secured = connection.tls.is_some();
        if let Some(session) = &mut connection.tls {
            // The script is called after all records were opened.
            opened = session.receive(bytes, &mut |bytes| plain.extend_from_slice(bytes));
            let is_over = !session.is_handshaking() && opened.is_ok();
            let came_up = connection.state == State::Handshaking && is_over;
            // Sends the rest of the handshake, or an alert with the error.
            connection.flush(&mut self.network);
            if came_up {
                self.link_is_up(control, index, now);
            }
        }
        let bytes = if is_secured { &plain[..] } else { bytes };
        if !bytes.is_empty() && self.live(token).is_some() {
            self.happen(control, slot, now, &mut |script, turn| {
                script.receive(link, bytes, now, turn);
            });
        }
        self.client.plain = plain;
        let loss = match opened {
            Ok(false) => return,
            Ok(true) => Loss::closed(),
            Err(fault) => explained(self.client.scripts.tls(link), &fault),
        };
        if self.live(token).is_some() {
            self.lose(control, index, &loss, now);
        }
    }

    /// Handles the loss of a connection, or the failure to establish it.
    pub(super) fn lose(&mut self, control: &mut impl Control, index: u32, loss: &Loss, now: Time) {
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let OnLink { slot, link } = connection.own;
        if connection.state != State::Open {
            self.never_came_up(index, loss.outcome, self.stage, now);
        }
        self.lose_link(control, slot, link, loss, now);
    }

    /// Closes the connection of a link, if there is one.
    pub(super) fn close(&mut self, control: &mut impl Control, slot: u64, link: Link) {
        let at = usize::from(link.0);
        let links = self.client.slots.get_mut(slot);
        let Some(index) = links.and_then(|slot| slot.links[at].take()) else {
            return;
        };
        let Some(mut connection) = self.remove(index) else {
            return;
        };
        if let Some(slot) = self.client.slots.get_mut(slot) {
            slot.places[at] = connection.place;
        }
        let token = connection.token(index);
        self.races.abandon(token, &mut self.network);
        connection.farewell(&mut self.network);
        if connection.state == State::Open {
            self.open_connections -= 1;
            control.connections(-1);
        } else {
            self.connecting -= 1;
        }
        self.part_with(connection.socket);
    }

    /// Sends the bytes that a script has appended for a link.
    pub(super) fn send(&mut self, slot: u64, link: usize) {
        let out = &mut self.client.outs[link];
        let slot = self.client.slots.get(slot);
        let index = slot.and_then(|slot| slot.links[link]);
        match index.and_then(|index| self.connections[index as usize].as_mut()) {
            Some(connection) => connection.send(&mut self.network, out),
            None => out.clear(),
        }
    }
}
