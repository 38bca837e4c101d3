//! Establishment and removal of connections. Connections are started at the plan's rate, raced if a name has several
//! addresses, and abandoned after the connect timeout. Both clients of the event loop use this module.

use plimsoll_model::metrics::measure::Count;
use plimsoll_model::{Outcome, Time};

use super::EventLoop;
use super::client::{ConnectDecision, LoopClient, LoopHandler};
use super::connection::{Connection, ConnectionState};
use super::worker_control::WorkerControl;
use crate::structures::prefetch::prefetch;
use crate::tls::NegotiatedParameters;
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::{Network, SocketReady, SocketToken};

impl<C: LoopClient, N: Network> EventLoop<C, N>
where
    Self: LoopHandler<C::ConnectRequest>,
{
    /// Returns the index of the connection with this token; `None` if it no longer exists.
    #[inline]
    pub(crate) fn find_connection(&self, token: SocketToken) -> Option<u32> {
        let (index, generation) = (token.0 as u32, (token.0 >> 32) as u32);
        match self.connections.get(index as usize) {
            Some(Some(connection)) if connection.generation == generation => Some(index),
            _ => None,
        }
    }

    /// Returns the number of connections in any state.
    pub(crate) fn connection_count(&self) -> usize {
        self.connections.len() - self.free_indices.len()
    }

    pub(crate) fn socket_token(&self, index: u32) -> SocketToken {
        let connection = self.connections[index as usize].as_ref();
        connection.map_or(SocketToken(u64::MAX >> 1), |c| c.token(index))
    }

    /// Starts requested connections, at the plan's connect rate.
    pub(crate) fn begin_connections(&mut self, control: &mut impl WorkerControl, now: Time) {
        while self.connecting < self.share.max_pending_connections() && now >= self.next_connect {
            let Some(request) = self.to_connect.front().copied() else {
                return;
            };
            let decision = self.decide_connect(control, request, now);
            if let ConnectDecision::Defer = decision {
                return;
            }
            self.to_connect.pop_front();
            if let ConnectDecision::Drop = decision {
                continue;
            }
            if let Some(rate) = self.share.load.connect_rate {
                let gap = (1e9 * f64::from(self.share.of) / rate) as u64;
                self.next_connect = self.next_connect.max(now).plus_nanos(gap);
            }
            self.begin_connection(control, request, now);
        }
    }

    /// Adds a connection to a target, with its connect deadline, and returns its index.
    pub(crate) fn add_connection(&mut self, own: C::ConnectionData, target: u8, now: Time) -> u32 {
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1) & 0x7fff_ffff;
        let connection = Connection::new(generation, target, own, now);
        let index = self.free_indices.pop().unwrap_or_else(|| {
            self.connections.push(None);
            (self.connections.len() - 1) as u32
        });
        let deadline = now + self.share.load.connect_timeout;
        self.connect_deadlines
            .push_back((deadline, connection.token(index)));
        self.connections[index as usize] = Some(connection);
        self.connecting += 1;
        index
    }

    /// Processes completed name lookups.
    pub(crate) fn process_lookups(&mut self, control: &mut impl WorkerControl) {
        while let Some((token, found)) = self.network.next_lookup_result() {
            self.on_resolved(control, token, found);
        }
    }

    /// Connects to the target's only address, or starts a race between several. `number` is unique across all workers
    /// and processes.
    pub(crate) fn connect(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        number: u64,
        now: Time,
    ) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.on_resolved(now);
        let (token, target) = (connection.token(index), connection.target);
        let addresses = &self.addresses[usize::from(target)];
        let Some(place) = addresses.only_index() else {
            let route = addresses.connect_order(number, now);
            return self.begin_race(control, token, target, route, now);
        };
        connection.address_index = place;
        match addresses.connect(place, token, &mut self.network) {
            Ok(socket) => connection.socket = Some(socket),
            Err(e) => {
                let loss = addresses.describe_connect_failure(place, &e);
                self.on_disconnect(control, index, &loss, now);
            }
        }
    }

    /// Prefetches connections that will be served soon, so that they are in the cache by then.
    #[inline]
    pub(super) fn prefetch_ready_connections(&self, soon: &[SocketReady]) {
        /// Number of sockets by which prefetching is ahead of serving.
        const PREFETCH_DISTANCE: usize = 4;
        if let Some(next) = soon.get(PREFETCH_DISTANCE) {
            self.prefetch_connection(next.token.0 as u32);
        }
        if let Some(next) = soon.get(PREFETCH_DISTANCE / 2)
            && let Some(index) = self.find_connection(next.token)
        {
            self.prefetch(index);
        }
    }

    #[inline]
    pub(crate) fn prefetch_connection(&self, index: u32) {
        if let Some(connection) = self.connections.get(index as usize) {
            prefetch(connection);
        }
    }

    /// Serves a ready socket.
    #[inline]
    pub(crate) fn serve_socket(&mut self, control: &mut impl WorkerControl, ready: SocketReady) {
        let Some(index) = self.find_connection(ready.token) else {
            return self.serve_attempt(control, ready);
        };
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if connection.state == ConnectionState::Connecting {
            if !ready.writable {
                return;
            }
            self.finish_connect(control, index);
            // A server that sends first or closes at once may already have done so, and the poller reports each event
            // only once.
            let spoke = ready.readable || ready.hangup;
            if !spoke || self.find_connection(ready.token).is_none() {
                return;
            }
        }
        self.serve(control, index, ready);
    }

    fn finish_connect(&mut self, control: &mut impl WorkerControl, index: u32) {
        let now = self.network.now();
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let Some(socket) = connection.socket.as_mut() else {
            return;
        };
        match self.network.take_connect_result(socket) {
            Ok(()) => self.on_tcp_connected(control, index, now),
            Err(e) => {
                let place = connection.address_index;
                self.on_connect_failed(control, index, place, &e, now);
            }
        }
    }

    pub(super) fn on_connect_failed(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        place: u32,
        e: &std::io::Error,
        now: Time,
    ) {
        if let Some(connection) = self.connections[index as usize].as_ref() {
            let addresses = &self.addresses[usize::from(connection.target)];
            let loss = addresses.describe_connect_failure(place, e);
            self.on_disconnect(control, index, &loss, now);
        }
    }

    pub(super) fn on_tcp_connected(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        now: Time,
    ) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let client = self.client.tls(usize::from(connection.target));
        match client.map(|tls| tls.new_session()).transpose() {
            Ok(session) => {
                connection.on_connected(session, now);
                self.on_transport_up(control, index, now);
            }
            Err(e) => {
                let loss = ConnectionLoss::new(Outcome::TlsFailed, format!("tls: {e}"));
                self.on_disconnect(control, index, &loss, now);
            }
        }
    }

    /// Records an established connection, with the result of its TLS handshake.
    pub(crate) fn record_connect_success(
        &mut self,
        index: u32,
        agreement: Option<NegotiatedParameters>,
        stage: u8,
    ) {
        self.connecting -= 1;
        if let Some(agreement) = agreement
            && self.handshakes.add(agreement)
        {
            tracing::debug!(?agreement, "tls handshake");
        }
        if let Some(connection) = self.connections[index as usize].as_ref() {
            let addresses = &mut self.addresses[usize::from(connection.target)];
            addresses.record_connect_success(connection.address_index, stage, &mut self.recorder);
        }
    }

    /// Records a failed connection attempt for each address that was tried. Later connections avoid these addresses for
    /// a time, unless this machine caused the failure.
    pub(crate) fn record_connect_failure(
        &mut self,
        index: u32,
        why: Outcome,
        stage: u8,
        now: Time,
    ) {
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let (token, target, place) = (
            connection.token(index),
            connection.target,
            connection.address_index,
        );
        let addresses = &mut self.addresses[usize::from(target)];
        addresses.record_connect_failure(place, why, stage, now, &mut self.recorder);
        // Attempts that were still running are counted as timed out.
        self.time_out_race(token, now);
    }

    /// Ends connections that were not established within the connect timeout.
    pub(crate) fn expire_connect_attempts(&mut self, control: &mut impl WorkerControl, now: Time) {
        let is_due = |(deadline, _): &mut (Time, SocketToken)| *deadline <= now;
        while let Some((_, token)) = self.connect_deadlines.pop_front_if(is_due) {
            self.time_out_connect(control, token, now);
        }
    }

    fn time_out_connect(
        &mut self,
        control: &mut impl WorkerControl,
        token: SocketToken,
        now: Time,
    ) {
        let Some(index) = self.find_connection(token) else {
            return;
        };
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let waits_for = match connection.state {
            ConnectionState::Open | ConnectionState::Draining => self.not_ready_reason(index),
            state => Some(state.wait_reason()),
        };
        let Some(waiting_for) = waits_for else {
            return;
        };
        let timeout = self.share.load.connect_timeout;
        let is_at_proxy = connection.state == ConnectionState::Connecting
            && self.addresses[usize::from(connection.target)].is_proxy();
        let asked = connection.socket.as_ref().filter(|_| is_at_proxy);
        let waiting_for = match asked.and_then(|socket| self.network.pending_proxy(socket)) {
            Some(proxy) => format!("an answer of the proxy {proxy}, which accepted the connection"),
            None if is_at_proxy => format!("{waiting_for} to the proxy (load.proxy)"),
            None => waiting_for.to_owned(),
        };
        let detail = format!("waited {timeout:?} (load.connect_timeout) for {waiting_for}");
        let mut loss = ConnectionLoss::new(Outcome::ConnectTimeout, detail);
        loss.is_at_proxy = is_at_proxy;
        self.on_disconnect(control, index, &loss, now);
    }

    /// Removes a connection from the table.
    pub(crate) fn remove_connection(
        &mut self,
        index: u32,
    ) -> Option<Connection<C::ConnectionData, N::Socket>> {
        let connection = self.connections[index as usize].take()?;
        self.free_indices.push(index);
        Some(connection)
    }

    /// Closes the socket of a connection, and counts its bytes if the load requires it.
    pub(crate) fn close_socket(&mut self, socket: Option<N::Socket>) {
        let Some(socket) = socket else { return };
        if self.share.load.count_bytes
            && let Some(carried) = self.network.byte_counts(&socket)
        {
            let mut count = |count, n| self.recorder.add_protocol_count(self.stage, count, n);
            count(Count::LinkConnections, 1);
            count(Count::LinkBytesSent, carried.sent);
            count(Count::LinkBytesReceived, carried.received);
        }
        self.network.close(socket);
    }
}
