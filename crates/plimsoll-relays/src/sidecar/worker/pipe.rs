//! Relays each connection to one other: bytes as they arrive, and the end of either side to the other side.

use plimsoll_model::Time;

use super::super::add_to_counter;
use super::super::transport::ReadResult;
use super::{HIGH_WATER_BYTES, RelayConnection, RelayRole, Worker};

impl Worker {
    /// Connects a client to a new upstream connection that no other client uses.
    pub(super) fn connect_pipe(&mut self, down: u64, route: usize, now: Time) {
        let mut up = None;
        // An upstream that fails at once is skipped for a while, so the loop ends.
        while up.is_none()
            && let Some(endpoint) = self.next_endpoint(route, now)
        {
            up = self.connect(route, endpoint, || RelayRole::Pipe { peer: down }, now);
        }
        match (up, self.connection_mut(down)) {
            (Some(up), Some(connection)) => {
                connection.role = RelayRole::Pipe { peer: up };
            }
            _ => {
                let why = self.no_connection_reason(route, now);
                self.counters(route).count_rejections(why, 1);
                self.close(down, now);
            }
        }
    }

    /// Passes received bytes to the other side; returns `false` if the connection must be closed.
    pub(super) fn relay_bytes(
        &mut self,
        connection: &mut RelayConnection,
        got: ReadResult,
    ) -> bool {
        let RelayRole::Pipe { peer } = connection.role else {
            return false;
        };
        let counters = self.counters(connection.route);
        let counter = match connection.endpoint {
            None => &counters.bytes_down,
            Some(_) => &counters.bytes_up,
        };
        let came = connection.transport.input.len() as u64;
        add_to_counter(counter, came);
        let ended = got == ReadResult::End;
        let Some(other) = self.connection_mut(peer) else {
            return false;
        };
        connection.bytes_received += came;
        other.bytes_sent += came;
        if other.transport.out.is_empty() {
            // The buffers are swapped instead of copied.
            std::mem::swap(&mut other.transport.out, &mut connection.transport.input);
            connection.transport.input.clear();
        } else {
            let taken = connection.transport.input.len();
            other
                .transport
                .out
                .extend_from_slice(&connection.transport.input);
            connection.transport.consume(taken);
        }
        if ended {
            other.ends_after_output = true;
            connection.peer_ended = true;
        }
        connection.is_paused = other.transport.unsent_bytes() > HIGH_WATER_BYTES;
        self.mark_dirty(peer);
        true
    }
}
