//! What goes wrong with connections, logged with who is at their other end. Clients can cause
//! much of it, so lines are few, and each has the number that it stands for.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_protocols::serving::proxied::OpeningError;

use super::super::codec::{Blame, Broken};
use super::super::count;
use super::{Connection, Worker};

/// How often one kind of trouble is logged, for each route.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// One kind of trouble of a route.
#[derive(Default)]
pub(super) struct Troubles {
    logged: Option<Time>,
    unlogged: u64,
}

impl Troubles {
    /// What stands at the end of this one's line; `None`: it has none.
    pub(super) fn line(&mut self, now: Time) -> Option<More> {
        if self.logged.is_some_and(|logged| now < logged + LOG_EVERY) {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(now);
        Some(More(std::mem::take(&mut self.unlogged)))
    }
}

/// How many were not logged since the last line.
pub(super) struct More(u64);

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " ({n} more since the last such line)"),
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    is_upstream: bool,
    /// `None`: it came by a socket of this machine.
    address: Option<SocketAddr>,
}

impl Peer {
    pub(super) fn of(connection: &Connection) -> Peer {
        Peer {
            is_upstream: connection.endpoint().is_some(),
            address: connection.client(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_upstream {
            true => "upstream",
            false => "client",
        })?;
        match self.address {
            Some(address) => write!(f, " {address}"),
            None => Ok(()),
        }
    }
}

impl Worker {
    /// The PROXY header of a connection is missing, or can't be used.
    pub(super) fn turn_away(&mut self, route: usize, peer: Peer, why: &OpeningError, now: Time) {
        if why.reason().is_none() {
            return;
        }
        count(&self.counters(route).malformed, 1);
        let state = &mut self.routes[route];
        if let Some(more) = state.refusals.line(now) {
            let name = &state.route.name;
            tracing::warn!("route {name}: refused the {peer}: {why}{more}");
        }
    }

    /// What a connection carried is malformed, or its plugin made nothing of it.
    pub(super) fn report_broken(&mut self, route: usize, peer: Peer, broken: &Broken, now: Time) {
        let why = &broken.why;
        match broken.by {
            Blame::Peer => return self.report_garbage(route, peer, why, now),
            Blame::Plugin => count(&self.counters(route).plugin_faults, 1),
            Blame::Protocol => {}
        }
        let state = &mut self.routes[route];
        if let Some(more) = state.plugin_faults.line(now) {
            let (name, plugin) = (&state.route.name, state.route.plugin.as_deref());
            let plugin = plugin.unwrap_or_else(|| "".as_ref()).display();
            tracing::warn!(
                "route {name}: plugin {plugin}: closing the connection of {peer}: {why}{more}"
            );
        }
    }

    /// A frame is longer than the route's file allows.
    pub(super) fn report_too_long(
        &mut self,
        route: usize,
        peer: Peer,
        why: &dyn fmt::Display,
        now: Time,
    ) {
        let state = &mut self.routes[route];
        if let Some(more) = state.too_long.line(now) {
            let name = &state.route.name;
            tracing::warn!("route {name}: left out a frame from {peer}: {why}{more}");
        }
    }

    /// What a connection carried is not its protocol.
    pub(super) fn report_garbage(
        &mut self,
        route: usize,
        peer: Peer,
        why: &dyn fmt::Display,
        now: Time,
    ) {
        count(&self.counters(route).malformed, 1);
        let state = &mut self.routes[route];
        if let Some(more) = state.garbage.line(now) {
            let name = &state.route.name;
            tracing::warn!("route {name}: garbage from {peer}: {why}{more}");
        }
    }
}
