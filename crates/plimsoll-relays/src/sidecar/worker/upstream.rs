//! Connections to a route's upstreams: which upstream gets the next connection, and when a failed one may be tried
//! again.

use std::io;
use std::time::Duration;

use plimsoll_engine::Address;
use plimsoll_engine::transport::address::LocalResourceError;
use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::RejectReason;

use super::super::add_to_counter;
use super::super::metrics::UpstreamCounters;
use super::super::transport::Transport;
use super::super::upstream_names::ResolvedUpstream;
use super::peer_errors::PeerError;
use super::{RelayRole, Worker};

const MIN_RETRY_DELAY: Duration = Duration::from_millis(20);
/// Maximum number of a route's upstreams that are remembered, including addresses to which their names no longer
/// resolve.
const MAX_REMEMBERED_UPSTREAMS: usize = 256;
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// One of a route's upstreams, and when it may be tried again.
pub(super) struct EndpointState {
    upstream: ResolvedUpstream,
    pub(super) counters: UpstreamCounters,
    /// The connections that take new calls: all slots of the first layout of frames, then those of the next.
    pub(super) slots: Vec<Option<u64>>,
    /// The upstream's name no longer resolves to this address.
    is_gone: bool,
    /// Number of consecutive attempts to connect that failed.
    failures: u32,
    /// Number of consecutive calls that failed.
    failed_calls: u32,
    /// The local resource that was exhausted when a connection was last opened, if any.
    exhausted_resource: Option<LocalResourceError>,
    retry_at: Time,
}

impl EndpointState {
    pub(super) fn address(&self) -> &Address {
        &self.upstream.address
    }

    pub(super) fn is_usable(&self, now: Time) -> bool {
        !self.is_gone && self.retry_at <= now
    }

    /// Ejects the upstream. Each ejection lasts twice as long as the one before, until a connection succeeds.
    fn eject(&mut self, now: Time) {
        let pause = MIN_RETRY_DELAY * (1 << self.failures.min(6));
        self.failures += 1;
        self.retry_at = now + pause.min(MAX_RETRY_DELAY);
    }
}

impl Worker {
    /// Applies the lookup results that are new since the last call.
    pub(super) fn apply_lookups(&mut self) {
        for route in 0..self.routes.len() {
            let state = &mut self.routes[route];
            let version = state.setup.upstreams.revision();
            if std::mem::replace(&mut state.upstreams_revision, version) == version {
                continue;
            }
            let places = state.setup.upstreams.addresses();
            let slots = state.slots_per_upstream();
            let endpoints = &mut state.endpoints;
            let mut left = Vec::new();
            for (number, endpoint) in endpoints.iter_mut().enumerate() {
                let gone = !places.contains(&endpoint.upstream);
                if gone && !std::mem::replace(&mut endpoint.is_gone, gone) {
                    left.push(number);
                }
                endpoint.is_gone = gone;
            }
            for place in places {
                if endpoints.iter().any(|known| known.upstream == place) {
                    continue;
                }
                let address = place.address.to_string();
                let metrics = &self.shared.metrics;
                let endpoint = EndpointState {
                    counters: metrics.upstream_counters(&state.setup.route.name, &address),
                    upstream: place,
                    slots: vec![None; slots],
                    is_gone: false,
                    failures: 0,
                    failed_calls: 0,
                    exhausted_resource: None,
                    retry_at: Time::ZERO,
                };
                // Connections and calls refer to upstreams by index, so an index is only reused if the list is full.
                let reused = if endpoints.len() < MAX_REMEMBERED_UPSTREAMS {
                    None
                } else {
                    endpoints.iter_mut().find(|known| known.is_gone)
                };
                match reused {
                    Some(old) => {
                        let address = old.upstream.address.to_string();
                        metrics.remove_upstream(&state.setup.route.name, &address);
                        *old = endpoint;
                    }
                    None => endpoints.push(endpoint),
                }
            }
            for endpoint in left {
                self.stop_new_calls(route, endpoint);
            }
        }
    }

    /// Assigns no new calls to the connections of this upstream; calls in flight continue there.
    fn stop_new_calls(&mut self, route: usize, endpoint: usize) {
        self.routes[route].endpoints[endpoint].slots.fill(None);
    }

    /// Counts calls that an upstream has lost or not answered in time. After several in a row the
    /// upstream is ejected for a while, unless it is the only one.
    pub(super) fn on_failed_calls(
        &mut self,
        route: usize,
        endpoint: usize,
        calls: usize,
        now: Time,
    ) {
        let state = &mut self.routes[route];
        let (after, pause) = (
            state.setup.route.eject_after(),
            state.setup.route.eject_for(),
        );
        let failed = &mut state.endpoints[endpoint];
        add_to_counter(&failed.counters.failed, calls as u64);
        failed.failed_calls = failed.failed_calls.saturating_add(calls as u32);
        if failed.failed_calls < after || !failed.is_usable(now) {
            return;
        }
        let address = failed.address().clone();
        let others = state.endpoints.iter().enumerate();
        if !others
            .into_iter()
            .any(|(n, other)| n != endpoint && other.is_usable(now))
        {
            return;
        }
        let failed = &mut state.endpoints[endpoint];
        failed.failed_calls = 0;
        failed.exhausted_resource = None;
        failed.retry_at = now + pause;
        let name = &state.setup.route.name;
        tracing::warn!(
            "route {name}: {address} failed {after} calls in a row, ejected for {pause:?}"
        );
        add_to_counter(&self.counters(route).ejections, 1);
        self.stop_new_calls(route, endpoint);
    }

    /// Records that an upstream has answered a call.
    pub(super) fn on_call_answered(&mut self, route: usize, endpoint: Option<usize>) {
        if let Some(endpoint) = endpoint {
            self.routes[route].endpoints[endpoint].failed_calls = 0;
        }
    }

    /// Records that a connection to an upstream is established, including TLS and HTTP/2.
    pub(super) fn on_connected(&mut self, route: usize, number: usize) {
        self.routes[route].endpoints[number].failures = 0;
        let endpoint = &self.routes[route].endpoints[number];
        add_to_counter(&endpoint.counters.connects, 1);
        endpoint.counters.open.inc();
        // Only one of the workers logs the recovery.
        if endpoint.counters.down.set(0) == 1 {
            let address = endpoint.address();
            let name = &self.routes[route].setup.route.name;
            tracing::warn!("route {name}: upstream {address} is back");
        }
    }

    /// Records that a connection to an upstream could not be established.
    pub(super) fn on_endpoint_failure(
        &mut self,
        route: usize,
        endpoint: usize,
        problem: &str,
        now: Time,
    ) {
        add_to_counter(&self.counters(route).upstream_failures, 1);
        let state = &mut self.routes[route];
        let endpoint = &mut state.endpoints[endpoint];
        add_to_counter(&endpoint.counters.refused, 1);
        if endpoint.counters.down.set(1) == 0 {
            let (name, address) = (&state.setup.route.name, endpoint.address());
            tracing::warn!("route {name}: upstream {address} is down: {problem}");
        }
        endpoint.exhausted_resource = None;
        endpoint.eject(now);
    }

    /// Returns the next upstream in rotation, skipping those that failed recently.
    pub(super) fn next_endpoint(&mut self, route: usize, now: Time) -> Option<usize> {
        let state = &mut self.routes[route];
        let n = state.endpoints.len();
        let endpoint = (0..n)
            .map(|i| (state.next_endpoint + i) % n)
            .find(|i| state.endpoints[*i].is_usable(now))?;
        state.next_endpoint = (endpoint + 1) % n;
        Some(endpoint)
    }

    /// Returns why the route has no connection. If an upstream failed only because this sidecar lacked a local
    /// resource, the reason is that resource.
    pub(super) fn no_connection_reason(&self, route: usize, now: Time) -> RejectReason {
        let state = &self.routes[route];
        let endpoints = state.endpoints.iter();
        let mut there = endpoints.filter(|endpoint| !endpoint.is_gone && now < endpoint.retry_at);
        let lack = there.find_map(|endpoint| endpoint.exhausted_resource);
        match lack.or_else(|| state.setup.upstreams.exhausted_resource()) {
            Some(lack) => RejectReason::LocalResource(lack),
            None => RejectReason::NoUpstream,
        }
    }

    /// Opens a connection to one of the route's upstreams.
    pub(super) fn connect(
        &mut self,
        route: usize,
        endpoint: usize,
        role: impl FnOnce() -> RelayRole,
        now: Time,
    ) -> Option<u64> {
        let state = &mut self.routes[route];
        let ResolvedUpstream { host, address } = state.endpoints[endpoint].upstream.clone();
        let begun = (|| -> io::Result<Transport> {
            let tls = match &state.setup.upstream_tls {
                Some(identity) => Some(identity.new_connection(&host).map_err(io::Error::other)?),
                None => None,
            };
            Ok(Transport::new(address.start_connect(None)?, tls))
        })();
        add_to_counter(&self.counters(route).upstream_connects, 1);
        let adopted = begun.and_then(|transport| {
            self.add_connection(transport, route, Some(endpoint), role(), now)
        });
        let lack = adopted
            .as_ref()
            .err()
            .and_then(LocalResourceError::from_io_error);
        self.routes[route].endpoints[endpoint].exhausted_resource = lack;
        match (adopted, lack) {
            (Ok(token), _) => Some(token),
            (Err(_), Some(lack)) => {
                add_to_counter(&self.counters(route).upstream_failures, 1);
                self.routes[route].endpoints[endpoint].eject(now);
                let what = format_args!("no connection to upstream {address}: {lack}");
                self.warn(route, PeerError::LocalResource, what, now);
                None
            }
            (Err(e), None) => {
                let problem = match &address {
                    Address::Tcp(_) => e.to_string(),
                    Address::Unix(_) => address.describe_failure(&e),
                };
                self.on_endpoint_failure(route, endpoint, &problem, now);
                None
            }
        }
    }
}
