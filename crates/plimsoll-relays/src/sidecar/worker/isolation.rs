//! Finds or opens upstream connections that are reserved for one client, for clients whose calls are isolated. The
//! number of such connections is limited.

use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::RejectReason;

use super::abuse::{ClientNetwork, client_network};
use super::{RelayConnection, RelayRole, RouteState, UpstreamChoice, Worker};

/// Maximum number of reserved upstream connections of one route and worker.
const MAX_RESERVED_CONNECTIONS: usize = 256;
/// Maximum number of reserved connections of one address, so that some remain for other addresses.
const MAX_RESERVED_PER_ADDRESS: usize = 32;

impl RelayConnection {
    /// Returns the client address that an upstream connection is reserved for, if any.
    pub(super) fn owner(&self) -> Option<ClientNetwork> {
        match &self.role {
            RelayRole::Up { owner, .. } => *owner,
            RelayRole::Http2(http2) => http2.owner,
            RelayRole::Down { .. } | RelayRole::Pipe { .. } => None,
        }
    }

    /// Ends the reservation of a connection that takes no more calls.
    pub(super) fn end_reservation(&mut self, routes: &mut [RouteState]) {
        let owner = match &mut self.role {
            RelayRole::Up { owner, .. } => owner.take(),
            RelayRole::Http2(http2) => http2.owner.take(),
            RelayRole::Down { .. } | RelayRole::Pipe { .. } => None,
        };
        if owner.is_some() {
            let apart = &mut routes[self.route].reserved;
            apart.retain(|token| *token != self.token);
        }
    }

    /// Returns whether the connection carries frames of this layout.
    fn has_frame_layout(&self, wanted: usize) -> bool {
        match &self.role {
            RelayRole::Up { layout, .. } => *layout == wanted,
            _ => true,
        }
    }
}

impl Worker {
    /// Returns whether this client's calls over HTTP/2 are isolated.
    fn is_isolated(&self, client: u64, now: Time) -> bool {
        let connection = self.connections.get(client);
        connection.is_some_and(|connection| connection.isolation.is_active(now))
    }

    /// Returns the upstream connection of an isolated client, by the client's token; `None` if the client is not
    /// isolated.
    #[inline]
    pub(super) fn find_isolated_upstream(
        &mut self,
        client: u64,
        now: Time,
    ) -> Option<UpstreamChoice> {
        if !self.is_isolated(client, now) {
            return None;
        }
        let mut from = self.connections.check_out(client)?;
        let found = self.find_reserved_upstream(&mut from, 0, now);
        self.connections.put_back(client, from);
        found
    }

    /// Returns the upstream connection of an isolated client; `None` if the client is not isolated.
    #[inline]
    pub(super) fn find_reserved_upstream(
        &mut self,
        from: &mut RelayConnection,
        layout: usize,
        now: Time,
    ) -> Option<UpstreamChoice> {
        if from.isolation.is_active(now) {
            self.find_or_open_reserved_connection(from, layout, now)
        } else {
            None
        }
    }

    fn find_or_open_reserved_connection(
        &mut self,
        from: &mut RelayConnection,
        layout: usize,
        now: Time,
    ) -> Option<UpstreamChoice> {
        let (route, owner) = (from.route, client_network(from));
        let connections = &self.connections;
        let takes_more = |own: &RelayConnection| own.owner().is_some();
        let isolation = &mut from.isolation;
        (isolation.reserved)
            .retain(|token| connections.get(*token).is_some_and(|own| takes_more(own)));
        let own = isolation.reserved.iter();
        let mut own = own.filter_map(|token| connections.get(*token));
        if let Some(own) = own.find(|own| own.has_frame_layout(layout)) {
            return Some(self.choose_reserved_connection(own));
        }
        let apart = &self.routes[route].reserved;
        let is_owners = |token: &&u64| {
            let own = connections.get(**token);
            own.is_some_and(|own| own.owner() == Some(owner))
        };
        if apart.len() >= MAX_RESERVED_CONNECTIONS
            || apart.iter().filter(is_owners).count() >= MAX_RESERVED_PER_ADDRESS
        {
            return self.find_reserved_connection_to_share(from, layout, now);
        }
        let Some(endpoint) = self.next_endpoint(route, now) else {
            return Some(UpstreamChoice::Refused(
                self.no_connection_reason(route, now),
            ));
        };
        let is_http2 = self.routes[route].setup.codec.is_none();
        let role = self.routes[route].upstream_role(layout, Some(owner));
        let Some(token) = self.connect(route, endpoint, || role, now) else {
            return Some(UpstreamChoice::Refused(
                self.no_connection_reason(route, now),
            ));
        };
        self.routes[route].reserved.push(token);
        from.isolation.reserved.push(token);
        if is_http2 {
            self.send_preface(token);
            return Some(UpstreamChoice::Upstream(token));
        }
        Some(UpstreamChoice::Connecting)
    }

    /// Finds another client's reserved connection to share when no further one can be opened, preferably one of the
    /// same address. Isolated clients may be harmless, so sharing is acceptable. A client that is isolated only because
    /// its address is new does not share a connection of another address: it gets `None`, and uses unreserved
    /// connections.
    fn find_reserved_connection_to_share(
        &self,
        from: &mut RelayConnection,
        layout: usize,
        now: Time,
    ) -> Option<UpstreamChoice> {
        let owner = client_network(from);
        let others = self.routes[from.route].reserved.iter();
        let others = others.filter_map(|token| self.connections.get(*token));
        let others = others.filter(|other| other.has_frame_layout(layout));
        let least = others.min_by_key(|other| (other.owner() != Some(owner), other.call_count()));
        let is_foreign = least.is_none_or(|least| least.owner() != Some(owner));
        if is_foreign && from.isolation.is_only_on_probation(now) {
            return None;
        }
        Some(match least {
            Some(least) => {
                from.isolation.reserved.push(least.token);
                self.choose_reserved_connection(least)
            }
            None => UpstreamChoice::Refused(RejectReason::Busy),
        })
    }

    /// Closes the idle reserved HTTP/2 connections of a client that has disconnected. The other connections end once
    /// their output is sent and nothing is in flight.
    pub(super) fn close_reserved_connections(&mut self, own: Vec<u64>, now: Time) {
        for token in own {
            if let Some(own) = self.connection_mut(token)
                && matches!(&own.role, RelayRole::Http2(http2) if http2.call_count() == 0)
            {
                own.is_unneeded = true;
                self.close(token, now);
            }
        }
    }
}
