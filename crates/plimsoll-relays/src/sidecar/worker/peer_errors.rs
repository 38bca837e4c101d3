//! Logs connection errors with the peer's address. Clients can cause many of them, so lines are rate-limited, and each
//! line says how many errors were suppressed before it.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::{FaultOrigin, FrameError};
use plimsoll_serving::proxy_header::ProxyHeaderError;

use super::super::add_to_counter;
use super::{RelayConnection, Worker};

/// Minimum time between two lines about one kind of error on one route.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// A kind of error.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerError {
    /// A handshake failed.
    Handshake,
    /// A connection carried a protocol other than the route's.
    WrongProtocol,
    Codec,
    /// A frame is larger than `max_frame`.
    TooLong,
    /// A PROXY header is unusable, or comes from an untrusted client.
    Refusal,
    /// A local resource, such as a file descriptor, is missing for a connection to an upstream.
    LocalResource,
}

/// When each kind of error on a route was last logged, and how many were suppressed since then.
#[derive(Default)]
pub(super) struct PeerErrorLog([(Option<Time>, u64); 6]);

impl PeerErrorLog {
    /// Decides whether to log an error. Returns the suffix of the line, or `None` to suppress it.
    pub(super) fn count_error(&mut self, trouble: PeerError, now: Time) -> Option<SuppressedCount> {
        let (logged, unlogged) = &mut self.0[trouble as usize];
        if logged.is_some_and(|logged| now < logged + LOG_INTERVAL) {
            *unlogged += 1;
            return None;
        }
        *logged = Some(now);
        Some(SuppressedCount(std::mem::take(unlogged)))
    }
}

/// The number of errors suppressed since the last line.
pub(super) struct SuppressedCount(u64);

impl fmt::Display for SuppressedCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " ({n} more since the last such line)"),
        }
    }
}

/// The peer of a connection, as logged.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionPeer {
    is_upstream: bool,
    /// `None` for a Unix socket.
    address: Option<SocketAddr>,
}

impl ConnectionPeer {
    pub(super) fn from_connection(connection: &RelayConnection) -> ConnectionPeer {
        ConnectionPeer {
            is_upstream: connection.endpoint.is_some(),
            address: connection.client_address(),
        }
    }
}

impl fmt::Display for ConnectionPeer {
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
    /// Logs an error of a route's connection.
    pub(super) fn warn(
        &mut self,
        route: usize,
        trouble: PeerError,
        what: fmt::Arguments<'_>,
        now: Time,
    ) {
        let state = &mut self.routes[route];
        if let Some(more) = state.peer_errors.count_error(trouble, now) {
            let name = &state.setup.route.name;
            tracing::warn!("route {name}: {what}{more}");
        }
    }

    /// Rejects a connection whose PROXY header is missing or unusable.
    pub(super) fn reject_connection(
        &mut self,
        route: usize,
        peer: ConnectionPeer,
        why: &ProxyHeaderError,
        now: Time,
    ) {
        if why.reason().is_some() {
            add_to_counter(&self.counters(route).malformed, 1);
            let what = format_args!("refused the {peer}: {why}");
            self.warn(route, PeerError::Refusal, what, now);
        }
    }

    /// Logs a malformed frame, or one that the codec rejected.
    pub(super) fn report_frame_error(
        &mut self,
        route: usize,
        peer: ConnectionPeer,
        broken: &FrameError,
        now: Time,
    ) {
        let why = &broken.why;
        match broken.origin {
            FaultOrigin::Peer => return self.report_wrong_protocol(route, peer, why, now),
            FaultOrigin::Codec => add_to_counter(&self.counters(route).codec_faults, 1),
            FaultOrigin::Protocol => {}
        }
        let file = self.routes[route]
            .setup
            .route
            .file
            .clone()
            .unwrap_or_default();
        let file = file.display();
        let what = format_args!("plugin {file}: closing the connection of {peer}: {why}");
        self.warn(route, PeerError::Codec, what, now);
    }

    /// Logs a frame that exceeds the route's `max_frame`.
    pub(super) fn report_too_long_frame(
        &mut self,
        route: usize,
        peer: ConnectionPeer,
        why: &dyn fmt::Display,
        now: Time,
    ) {
        add_to_counter(&self.counters(route).too_long, 1);
        let what = format_args!("dropped a frame from {peer}: {why}");
        self.warn(route, PeerError::TooLong, what, now);
    }

    /// Logs a connection that does not carry the route's protocol.
    fn report_wrong_protocol(
        &mut self,
        route: usize,
        peer: ConnectionPeer,
        why: &dyn fmt::Display,
        now: Time,
    ) {
        add_to_counter(&self.counters(route).malformed, 1);
        let what = format_args!("malformed data from {peer}: {why}");
        self.warn(route, PeerError::WrongProtocol, what, now);
    }

    /// Calls [`Worker::report_wrong_protocol`] for a connection in the table.
    pub(super) fn report_wrong_protocol_on(
        &mut self,
        token: u64,
        why: &dyn fmt::Display,
        now: Time,
    ) {
        if let Some(connection) = self.connection_mut(token) {
            let (route, peer) = (
                connection.route,
                ConnectionPeer::from_connection(connection),
            );
            self.report_wrong_protocol(route, peer, why, now);
        }
    }
}
