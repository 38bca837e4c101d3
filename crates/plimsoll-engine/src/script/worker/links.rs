//! Reads, writes and closes the connections of scripts. [`super`] calls these functions.

use std::io;

use plimsoll_model::{Outcome, Time};

use super::ScriptWorker;
use crate::event_loop::WorkerControl;
use crate::event_loop::client::LoopClient;
use crate::event_loop::connection::{Connection, ConnectionState, explain_session_error};
use crate::script::{LinkId, Script, ScriptFactory};
use crate::tls::CLOSED_IN_HANDSHAKE_MESSAGE;
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::{Network, SocketReady};

const MAX_READS_PER_EVENT: usize = 4;

/// The script and link to which a connection belongs.
#[derive(Clone, Copy)]
pub struct LinkOwner {
    pub(super) slot: u64,
    pub(super) link: LinkId,
}

impl<S> Connection<LinkOwner, S> {
    /// Sends `bytes` after the pending bytes and empties the buffer; bytes that the socket does not accept remain
    /// pending. All unsent bytes count toward the reply limit, above which the connection is not read until the peer
    /// has read. A write error is not returned: the next read reports it.
    fn send<N: Network<Socket = S>>(&mut self, network: &mut N, bytes: &mut Vec<u8>) {
        if self.state != ConnectionState::Open || self.write_failed {
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
            self.release_empty_outbox();
        }
        self.count_unsent_as_replies();
    }

    /// Returns the failure of a connection whose last `read` returned end of stream or an error.
    fn connection_loss_after_read(&self, read: io::Result<usize>) -> ConnectionLoss {
        match (read, self.write_error()) {
            (Err(e), _) | (_, Some(e)) => ConnectionLoss::from_io_error("", &e),
            (Ok(_), None) if self.state == ConnectionState::Handshaking => {
                ConnectionLoss::new(Outcome::TlsFailed, CLOSED_IN_HANDSHAKE_MESSAGE)
            }
            (Ok(_), None) => ConnectionLoss::closed_by_peer(),
        }
    }
}

impl<C: ScriptFactory, N: Network> ScriptWorker<C, N> {
    pub(super) fn serve_link(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        ready: SocketReady,
    ) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let mut relieved = false;
        if ready.writable {
            connection.flush(&mut self.network);
            connection.release_empty_outbox();
            relieved = connection.take_resumed_flag();
        }
        if ready.readable || ready.hangup || relieved {
            let hangup = ready.hangup || relieved;
            self.read_link(control, index, SocketReady { hangup, ..ready });
        }
    }

    /// Continues after TCP is established: with the TLS handshake, or by opening the link.
    pub(super) fn on_tcp_established(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        now: Time,
    ) {
        match self.connections[index as usize].as_mut() {
            Some(connection) if connection.state == ConnectionState::Handshaking => {
                connection.flush(&mut self.network);
            }
            _ => self.on_link_up(control, index, now),
        }
    }

    fn on_link_up(&mut self, control: &mut impl WorkerControl, index: u32, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.state = ConnectionState::Open;
        let took = connection.phases.connect_ns + connection.end_phase(now);
        let agreement = connection
            .tls
            .as_ref()
            .and_then(|tls| tls.negotiated_parameters());
        let LinkOwner { slot, link } = connection.data;
        self.record_connect_success(index, agreement, self.stage);
        self.open_connections += 1;
        control.add_connections(1);
        self.dispatch(control, slot, now, &mut |script, context| {
            script.on_connected(link, took, now, context);
        });
    }

    fn read_link(&mut self, control: &mut impl WorkerControl, index: u32, ready: SocketReady) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut more = false;
        for _ in 0..MAX_READS_PER_EVENT {
            // A script may close its connection, or end, in response to any bytes, so the connection is looked up
            // before each read.
            let connection = match self.find_connection(ready.token) {
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
                    self.on_received(control, index, &mut buffer[..got], now);
                    // A short read means that the socket is empty; further bytes cause a new event.
                    got == buffer.len() || ready.hangup
                }
                Some(Err(e)) if e.kind() == io::ErrorKind::Interrupted => true,
                Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => false,
                Some(over) => {
                    let loss = connection.connection_loss_after_read(over);
                    self.on_link_lost(control, index, &loss, now);
                    false
                }
            };
            if !more {
                break;
            }
        }
        self.buffer = buffer;
        if more && self.find_connection(ready.token).is_some() {
            self.unfinished.push(ready.token);
        }
    }

    /// Decrypts received bytes if necessary and passes them to the script.
    fn on_received(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        bytes: &mut [u8],
        now: Time,
    ) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let LinkOwner { slot, link } = connection.data;
        let token = connection.token(index);
        let mut plain = std::mem::take(&mut self.client.plain);
        plain.clear();
        let mut opened = Ok(false);
        let is_secured = connection.tls.is_some();
        if let Some(session) = &mut connection.tls {
            // The script is called only after all records have been opened.
            opened = session.receive(bytes, &mut |bytes| plain.extend_from_slice(bytes));
            let is_over = !session.is_handshaking() && opened.is_ok();
            let came_up = connection.state == ConnectionState::Handshaking && is_over;
            // Sends the rest of the handshake, or an alert with the error.
            connection.flush(&mut self.network);
            if came_up {
                self.on_link_up(control, index, now);
            }
        }
        let bytes = if is_secured { &plain[..] } else { bytes };
        if !bytes.is_empty() && self.find_connection(token).is_some() {
            self.dispatch(control, slot, now, &mut |script, context| {
                script.receive(link, bytes, now, context);
            });
        }
        self.client.plain = plain;
        let loss = match opened {
            Ok(false) => return,
            Ok(true) => ConnectionLoss::closed_by_peer(),
            Err(fault) => explain_session_error(self.client.tls(usize::from(link.0)), &fault),
        };
        if self.find_connection(token).is_some() {
            self.on_link_lost(control, index, &loss, now);
        }
    }

    /// Handles the loss of a connection, or the failure to establish it.
    pub(super) fn on_link_lost(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        loss: &ConnectionLoss,
        now: Time,
    ) {
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let LinkOwner { slot, link } = connection.data;
        if connection.state != ConnectionState::Open {
            self.record_connect_failure(index, loss.outcome, self.stage, now);
        }
        self.close_lost_link(control, slot, link, loss, now);
    }

    /// Closes the connection of a link, if there is one.
    pub(super) fn close_link(&mut self, control: &mut impl WorkerControl, slot: u64, link: LinkId) {
        let at = usize::from(link.0);
        let links = self.client.slots.get_mut(slot);
        let Some(index) = links.and_then(|slot| slot.links[at].connection.take()) else {
            return;
        };
        let Some(mut connection) = self.remove_connection(index) else {
            return;
        };
        if let Some(slot) = self.client.slots.get_mut(slot) {
            slot.links[at].last_address = connection.address_index;
        }
        let token = connection.token(index);
        self.races.cancel_race(token, &mut self.network);
        connection.close_gracefully(&mut self.network);
        if connection.state == ConnectionState::Open {
            self.open_connections -= 1;
            control.add_connections(-1);
        } else {
            self.connecting -= 1;
        }
        self.close_socket(connection.socket);
    }

    /// Makes the TLS sessions of a pausing script give back what can be rebuilt.
    pub(super) fn rest_links(&mut self, slot: u64) {
        let Some(slot) = self.client.slots.get(slot) else {
            return;
        };
        for index in slot.links.iter().filter_map(|link| link.connection) {
            if let Some(connection) = self.connections[index as usize].as_mut()
                && connection.state == ConnectionState::Open
                && connection.out.is_empty()
                && let Some(session) = &mut connection.tls
            {
                session.start_resting();
            }
        }
    }

    /// Sends the bytes that a script has appended for a link.
    pub(super) fn send_link_bytes(&mut self, slot: u64, link: usize) {
        let out = &mut self.client.outboxes[link];
        let slot = self.client.slots.get(slot);
        let index = slot.and_then(|slot| slot.links[link].connection);
        match index.and_then(|index| self.connections[index as usize].as_mut()) {
            Some(connection) => connection.send(&mut self.network, out),
            None => out.clear(),
        }
    }
}
