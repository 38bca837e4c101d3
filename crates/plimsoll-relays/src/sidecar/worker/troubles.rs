//! What goes wrong with connections, logged with who is at their other end. Clients can cause
//! much of it, so lines are few, and each has the number that it stands for.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_protocols::relayed::{Blame, Broken};
use plimsoll_protocols::serving::proxied::OpeningError;

use super::super::count;
use super::{Connection, Worker};

/// How often one kind of trouble is logged, for each route.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// A kind of trouble.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// A handshake failed.
    Handshake,
    /// A connection carried what is not its protocol.
    Garbage,
    Codec,
    /// A frame is above `max_frame`.
    TooLong,
    /// A PROXY header can't be used, or comes from a client that is not trusted.
    Refusal,
    /// What the sidecar lacks for a connection to an upstream.
    Lack,
}

/// Those of a route, by kind: when one was logged, and how many were not since then.
#[derive(Default)]
pub(super) struct Troubles([(Option<Time>, u64); 6]);

impl Troubles {
    /// What stands at the end of this one's line; `None`: it has none.
    pub(super) fn line(&mut self, trouble: Trouble, now: Time) -> Option<More> {
        let (logged, unlogged) = &mut self.0[trouble as usize];
        if logged.is_some_and(|logged| now < logged + LOG_EVERY) {
            *unlogged += 1;
            return None;
        }
        *logged = Some(now);
        Some(More(std::mem::take(unlogged)))
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
            is_upstream: connection.endpoint.is_some(),
            address: connection.client(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_upstream {
            "upstream"
        } else {
            "client"
        })?;
        match self.address {
            Some(address) => write!(f, " {address}"),
            None => Ok(()),
        }
    }
}

impl Worker {
    /// Logs what went wrong with a connection of a route.
    pub(super) fn warn(
        &mut self,
        route: usize,
        trouble: Trouble,
        what: fmt::Arguments<'_>,
        now: Time,
    ) {
        let state = &mut self.routes[route];
        if let Some(more) = state.troubles.line(trouble, now) {
            let name = &state.setup.route.name;
            tracing::warn!("route {name}: {what}{more}");
        }
    }

    /// The PROXY header of a connection is missing, or can't be used.
    pub(super) fn turn_away(&mut self, route: usize, peer: Peer, why: &OpeningError, now: Time) {
        if why.reason().is_some() {
            count(&self.counters(route).malformed, 1);
            let what = format_args!("refused the {peer}: {why}");
            self.warn(route, Trouble::Refusal, what, now);
        }
    }

    /// What a connection carried is malformed, or its codec made nothing of it.
    pub(super) fn report_broken(&mut self, route: usize, peer: Peer, broken: &Broken, now: Time) {
        let why = &broken.why;
        match broken.by {
            Blame::Peer => return self.report_garbage(route, peer, why, now),
            Blame::Codec => count(&self.counters(route).codec_faults, 1),
            Blame::Protocol => {}
        }
        let file = self.routes[route]
            .setup
            .route
            .file
            .clone()
            .unwrap_or_default();
        let file = file.display();
        let what = format_args!("plugin {file}: closing the connection of {peer}: {why}");
        self.warn(route, Trouble::Codec, what, now);
    }

    /// A frame is longer than the route's file allows.
    pub(super) fn report_too_long(
        &mut self,
        route: usize,
        peer: Peer,
        why: &dyn fmt::Display,
        now: Time,
    ) {
        count(&self.counters(route).too_long, 1);
        let what = format_args!("left out a frame from {peer}: {why}");
        self.warn(route, Trouble::TooLong, what, now);
    }

    /// What a connection carried is not its protocol.
    fn report_garbage(&mut self, route: usize, peer: Peer, why: &dyn fmt::Display, now: Time) {
        count(&self.counters(route).malformed, 1);
        let what = format_args!("garbage from {peer}: {why}");
        self.warn(route, Trouble::Garbage, what, now);
    }

    /// Calls [`Worker::report_garbage`] for a connection in the table.
    pub(super) fn report_garbage_of(&mut self, token: u64, why: &dyn fmt::Display, now: Time) {
        if let Some(connection) = self.live(token) {
            let (route, peer) = (connection.route, Peer::of(connection));
            self.report_garbage(route, peer, why, now);
        }
    }
}
