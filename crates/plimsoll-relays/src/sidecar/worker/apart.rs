//! Connections upstream for clients whose calls go alone: each carries those of one client, as long as there are not
//! too many.

use plimsoll_model::Time;
use plimsoll_protocols::relayed::Why;

use super::charges::{Account, account};
use super::{Connection, Found, Role, RouteState, Worker};

/// Connections upstream, of one route and worker, that each carry one client's calls.
const MAX_APART: usize = 256;
/// The same of one address: others need some, too.
const MAX_APART_OF_ADDRESS: usize = 32;

impl Connection {
    /// Whose calls a connection upstream carries; `None`: it carries those of all.
    pub(super) fn owner(&self) -> Option<Account> {
        match &self.role {
            Role::Up { owner, .. } => *owner,
            Role::Http2(http2) => http2.owner,
            Role::Down { .. } | Role::Pipe { .. } => None,
        }
    }

    /// It takes no more calls, and belongs to nobody then.
    pub(super) fn leave_owner(&mut self, routes: &mut [RouteState]) {
        let owner = match &mut self.role {
            Role::Up { owner, .. } => owner.take(),
            Role::Http2(http2) => http2.owner.take(),
            Role::Down { .. } | Role::Pipe { .. } => None,
        };
        if owner.is_some() {
            let apart = &mut routes[self.route].apart;
            apart.retain(|token| *token != self.token);
        }
    }

    /// It carries frames of this layout.
    fn has_layout(&self, wanted: usize) -> bool {
        match &self.role {
            Role::Up { layout, .. } => *layout == wanted,
            _ => true,
        }
    }
}

impl Worker {
    /// The calls of this client, over HTTP/2, go alone.
    pub(super) fn is_apart(&self, client: u64, now: Time) -> bool {
        let connection = self.connections.get(client);
        connection.is_some_and(|connection| connection.isolation.is_active(now))
    }

    /// Calls [`Worker::find_own`] for a client in the table.
    #[inline]
    pub(super) fn find_apart(&mut self, client: u64, now: Time) -> Option<Found> {
        if !self.is_apart(client, now) {
            return None;
        }
        let mut from = self.connections.lift(client)?;
        let found = self.find_own(&mut from, 0, now);
        self.connections.put_back(client, from);
        found
    }

    /// The connection upstream of a client whose calls go alone; `None`: they share others'.
    #[inline]
    pub(super) fn find_own(
        &mut self,
        from: &mut Connection,
        layout: usize,
        now: Time,
    ) -> Option<Found> {
        if from.isolation.is_active(now) {
            self.find_or_make_own(from, layout, now)
        } else {
            None
        }
    }

    fn find_or_make_own(
        &mut self,
        from: &mut Connection,
        layout: usize,
        now: Time,
    ) -> Option<Found> {
        let (route, owner) = (from.route, account(from));
        let connections = &self.connections;
        let takes_more = |own: &Connection| own.owner().is_some();
        let isolation = &mut from.isolation;
        (isolation.own).retain(|token| connections.get(*token).is_some_and(|own| takes_more(own)));
        let own = isolation.own.iter();
        let mut own = own.filter_map(|token| connections.get(*token));
        if let Some(own) = own.find(|own| own.has_layout(layout)) {
            return Some(self.found(own));
        }
        let apart = &self.routes[route].apart;
        let is_owners = |token: &&u64| {
            let own = connections.get(**token);
            own.is_some_and(|own| own.owner() == Some(owner))
        };
        if apart.len() >= MAX_APART
            || apart.iter().filter(is_owners).count() >= MAX_APART_OF_ADDRESS
        {
            return self.find_other_own(from, layout, now);
        }
        let Some(endpoint) = self.next_endpoint(route, now) else {
            return Some(Found::Refused(self.why_unconnected(route, now)));
        };
        let is_http2 = self.routes[route].setup.codec.is_none();
        let role = self.routes[route].up(layout, Some(owner));
        let Some(token) = self.connect(route, endpoint, || role, now) else {
            return Some(Found::Refused(self.why_unconnected(route, now)));
        };
        self.routes[route].apart.push(token);
        from.isolation.own.push(token);
        if is_http2 {
            self.greet(token);
            return Some(Found::Upstream(token));
        }
        Some(Found::Connecting)
    }

    /// Where there are as many connections of their own as may be, further clients share these, best of all with
    /// those of their address: some are only suspected. Who is on probation, and nothing else, shares with all.
    fn find_other_own(&self, from: &mut Connection, layout: usize, now: Time) -> Option<Found> {
        let owner = account(from);
        let others = self.routes[from.route].apart.iter();
        let others = others.filter_map(|token| self.connections.get(*token));
        let others = others.filter(|other| other.has_layout(layout));
        let least = others.min_by_key(|other| (other.owner() != Some(owner), other.calls()));
        let is_foreign = least.is_none_or(|least| least.owner() != Some(owner));
        if is_foreign && from.isolation.is_probation_alone(now) {
            return None;
        }
        Some(match least {
            Some(least) => {
                from.isolation.own.push(least.token);
                self.found(least)
            }
            None => Found::Refused(Why::Busy),
        })
    }

    /// A client's connection is over: those that carried its calls alone have no use. Of frames, and where others share
    /// one, it ends once it has sent what it was given, and nothing is in flight any more.
    pub(super) fn close_own(&mut self, own: Vec<u64>, now: Time) {
        for token in own {
            if let Some(own) = self.live(token)
                && matches!(&own.role, Role::Http2(http2) if http2.calls() == 0)
            {
                own.unneeded = true;
                self.close(token, now);
            }
        }
    }
}
