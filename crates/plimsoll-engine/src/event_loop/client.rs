//! The interface between the event loop and its client, the code that uses its connections.
//!
//! There are two implementations: drivers ([`crate::worker`]: one connection carries many calls) and scripts
//! ([`crate::script::worker`]: one simulated user has several connections). The loop is generic over its
//! client, so these calls are dispatched statically.

use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::runs::run::UserLevels;
use plimsoll_model::schedule::Arrival;
use plimsoll_model::{Outcome, Time};

use super::worker_control::WorkerControl;
use super::worker_share::WorkerShare;
use crate::tls::TlsClient;
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::{ResolveResult, SocketReady, SocketToken};

/// The state and fixed properties of a client.
pub trait LoopClient {
    /// State that the client stores with each connection.
    type ConnectionData;
    /// A request for a connection, which identifies the connection's purpose.
    type ConnectRequest: Copy;
    /// Whether warm-up calls count towards the number of calls that the plan sets.
    const COUNTS_WARMUP: bool;
    /// Whether the loop runs one more iteration after everything has ended, to count late answers.
    const AWAITS_LATE_ANSWERS: bool;

    /// Returns the TLS settings for connections to the target with this number; `None` for plaintext.
    fn tls(&self, target: usize) -> Option<&TlsClient>;

    /// Returns the trace ids that requests carry, if any.
    fn trace_ids(&self) -> Option<TraceIds>;

    /// Returns the number of calls in flight.
    fn calls_in_flight(&self) -> u64;

    /// Returns the number of due calls for which a connection is being established.
    fn connecting_calls(&self) -> u64 {
        0
    }

    /// Ends an interval of the count of users; `None` if calls have no users.
    fn take_users(&mut self, _now: Time) -> Option<UserLevels> {
        None
    }

    /// Returns whether there are bytes to be written.
    fn has_unsent_bytes(&self) -> bool {
        false
    }

    /// Returns whether the plan's drain time limits calls that are in flight at the load's end; otherwise they end on
    /// their own.
    fn is_bounded_by_drain(&self, share: &WorkerShare) -> bool;
}

/// The decision whether a requested connection can be started.
pub enum ConnectDecision {
    /// Start it now.
    Start,
    /// Keep the request and all later ones in the queue.
    Defer,
    /// Drop the request: the connection is no longer needed.
    Drop,
}

/// The parts of a loop iteration that each client implements. `W` is the client's [`LoopClient::ConnectRequest`].
pub trait LoopHandler<W> {
    /// Prefetches what the connection at `index` points to; the connection itself is already being prefetched.
    #[inline]
    fn prefetch(&self, _index: u32) {}

    /// Serves a ready socket whose TCP connection is established.
    fn serve(&mut self, control: &mut impl WorkerControl, index: u32, ready: SocketReady);

    /// Called when a TCP connection is established; the TLS handshake, if there is one, has begun.
    fn on_transport_up(&mut self, control: &mut impl WorkerControl, index: u32, now: Time);

    /// Called when a connection was lost or could not be established.
    fn on_disconnect(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        loss: &ConnectionLoss,
        now: Time,
    );

    /// Returns the reason why a connected peer has not become ready before the connect timeout, for the error message.
    fn not_ready_reason(&self, _index: u32) -> Option<&'static str> {
        None
    }

    /// Called with the result of a name lookup.
    fn on_resolved(
        &mut self,
        control: &mut impl WorkerControl,
        token: SocketToken,
        found: ResolveResult,
    );

    /// Decides whether the requested connection can be started now.
    fn decide_connect(
        &mut self,
        control: &mut impl WorkerControl,
        request: W,
        now: Time,
    ) -> ConnectDecision;

    /// Starts the requested connection.
    fn begin_connection(&mut self, control: &mut impl WorkerControl, request: W, now: Time);

    /// Returns when the client's next timer expires.
    fn next_timer(&self) -> Time;

    /// Handles expired timers, including those of the loop's connections and connection races.
    fn expire_timers(&mut self, control: &mut impl WorkerControl, now: Time);

    /// Called when the load has ended, at `end`: no new call is started, and calls that would not end on their own are
    /// ended.
    fn on_load_end(&mut self, _control: &mut impl WorkerControl, _end: Time, _now: Time) {}

    /// Open loop: starts a call that is due, or puts it into the backlog.
    fn on_arrival(&mut self, control: &mut impl WorkerControl, arrival: Arrival, now: Time);

    /// Open loop: counts a call whose deadline had passed before the loop noticed that it was due.
    fn on_missed_deadline(&mut self, stage: u8);

    /// Open loop: starts calls from the backlog as far as connections have capacity.
    fn start_backlog(&mut self, _now: Time) {}

    /// Closed loop: starts the calls of clients with persistent connections.
    fn issue_on_persistent_connections(&mut self, _now: Time) {}

    /// Closed loop: starts the call `number` of a client without a persistent connection.
    fn start_client_call(&mut self, control: &mut impl WorkerControl, number: u64, now: Time);

    /// Called when all due calls have been started: flushes pending connects and writes.
    fn flush(&mut self, control: &mut impl WorkerControl);

    /// Returns whether no call is in flight or waiting.
    fn is_idle(&self) -> bool;

    /// Ends the run: counts unfinished calls with `outcome` and closes all connections.
    fn shut_down(&mut self, control: &mut impl WorkerControl, outcome: Outcome, now: Time);
}
