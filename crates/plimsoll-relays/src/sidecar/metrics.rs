//! Metrics of the sidecar, for each route and for each of a route's upstreams.
//!
//! A worker looks up its counters once; after that, counting is an atomic addition.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_protocols::interface::relayed::RejectReason;

use crate::metrics::{
    self, Counter, Family, Gauge, LatencyHistogram, MetricLabels, Registry, Unit, labels,
};

/// Defines a struct of counters, and a struct of the metric families that they belong to.
macro_rules! counted {
    ($(#[$meta:meta])* $one:ident of $all:ident { $($field:ident: $kind:ident, $name:literal, $help:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default)]
        pub(crate) struct $one { $(pub(crate) $field: $kind,)* }

        #[derive(Debug, Default)]
        struct $all { $($field: Family<MetricLabels, $kind>,)* }

        impl $all {
            fn register(&self, registry: &mut Registry) {
                $(registry.register($name, $help, self.$field.clone());)*
            }

            fn with_labels(&self, labels: &MetricLabels) -> $one {
                $one { $($field: self.$field.get_or_create_owned(labels),)* }
            }

            fn forget(&self, labels: &MetricLabels) {
                $(self.$field.remove(labels);)*
            }
        }
    };
}

counted! {
    /// Counters of one route, summed over all workers.
    Counters of RouteFamilies {
        accepted: Counter, "connections_accepted", "Connections accepted from clients";
        open: Gauge, "connections_open", "Connections of clients that are open";
        in_flight: Gauge, "calls_in_flight", "Calls in flight";
        upstream_connects: Counter, "upstream_connects", "Connections made to upstreams";
        upstream_failures: Counter, "upstream_connect_failures", "Connections to upstreams that could not be made";
        upstream_lost: Counter, "upstream_connections_lost", "Connections to upstreams that were lost";
        requests: Counter, "requests", "Requests from clients";
        answers: Counter, "answers", "Answers to requests, from upstreams and from the sidecar";
        oneway: Counter, "oneway", "Requests that expect no answer";
        busy: Counter, "answered_busy", "Requests answered by the sidecar: too many at once";
        no_upstream: Counter, "answered_no_upstream", "Requests answered by the sidecar: no upstream could be reached";
        lack: Counter, "answered_own_lack", "Requests answered by the sidecar: it lacked descriptors, ports, memory or permission for a connection to an upstream";
        timeouts: Counter, "answered_timeout", "Requests answered by the sidecar: no answer in time";
        cut: Counter, "answered_connection_closed", "Requests answered by the sidecar: the upstream's connection was lost";
        cancelled: Counter, "cancelled_by_client", "HTTP/2 requests that their clients reset";
        resent: Counter, "requests_resent", "HTTP/2 requests that an upstream had not processed, and that were sent again";
        reset: Counter, "reset_by_upstream", "HTTP/2 requests that upstreams reset, or had not processed";
        suspected: Counter, "clients_suspected", "Times that an upstream connection was lost and \
            a client was suspected to be the cause";
        stray: Counter, "stray_answers", "Answers that no call waited for";
        malformed: Counter, "malformed", "Connections that carried data of another protocol";
        too_long: Counter, "frames_too_long", "Frames above max_frame, which were dropped";
        codec_faults: Counter, "plugin_faults", "Times that the route's plugin failed, or returned nonsense";
        handshakes_failed: Counter, "handshakes_failed", "TLS handshakes that failed";
        bytes_down: Counter, "bytes_from_downstream", "Bytes from clients";
        bytes_up: Counter, "bytes_from_upstream", "Bytes from upstreams";
        faults_delayed: Counter, "faults_delayed", "Calls delayed by fault injection";
        faults_aborted: Counter, "faults_aborted", "Calls failed by fault injection";
        ejections: Counter, "upstream_ejections", "Times an upstream was ejected because its calls failed";
        lookup_failures: Counter, "upstream_lookup_failures", "Host names that could not be looked up";
        lines_lost: Counter, "access_log_lines_lost", "Lines that were dropped because the access log was full";
        reloads: Counter, "certificate_reloads", "Certificates that were reloaded";
        reload_failures: Counter, "certificate_reload_failures", "Certificates that could not be reloaded";
        insecure: Gauge, "upstream_insecure", "1: the upstream's certificate is not checked";
    }
}

counted! {
    /// Counters of one upstream of a route, summed over all workers.
    UpstreamCounters of UpstreamFamilies {
        calls: Counter, "upstream_calls", "Calls that were sent to the upstream";
        failed: Counter, "upstream_calls_failed", "Calls that it did not answer in time, or lost";
        connects: Counter, "upstream_connections", "Connections that it accepted";
        open: Gauge, "upstream_connections_open", "Connections to it that are open";
        refused: Counter, "upstream_connections_failed", "Connections to it that could not be made";
        down: Gauge, "upstream_down", "1: the last connection to it could not be made";
    }
}

impl Counters {
    /// Counts calls that the sidecar answers itself.
    pub(super) fn count_rejections(&self, why: RejectReason, calls: u64) {
        let counter = match why {
            RejectReason::NoUpstream => &self.no_upstream,
            RejectReason::LocalResource(_) => &self.lack,
            RejectReason::Timeout => &self.timeouts,
            RejectReason::Busy => &self.busy,
            RejectReason::UpstreamClosed => &self.cut,
            // These reasons are counted where they are detected.
            RejectReason::InjectedFault
            | RejectReason::FrameTooLarge
            | RejectReason::MalformedResponse => return,
        };
        add_to_counter(counter, calls);
    }
}

pub(super) fn add_to_counter(counter: &Counter, n: u64) {
    counter.inc_by(n);
}

/// All metrics of a sidecar.
#[derive(Debug)]
pub(super) struct SidecarMetrics {
    registry: Registry,
    routes: RouteFamilies,
    upstreams: UpstreamFamilies,
    latencies: Family<MetricLabels, LatencyHistogram>,
    statuses: Family<MetricLabels, Counter>,
    /// The current routes. For each, the label sets of its metrics that have more labels than `route`, so that these
    /// metrics can be removed with the route.
    route_labels: Mutex<HashMap<String, Vec<MetricLabels>>>,
}

impl SidecarMetrics {
    pub(super) fn new() -> SidecarMetrics {
        let mut registry = metrics::new_registry("sidecar");
        let (routes, upstreams) = (RouteFamilies::default(), UpstreamFamilies::default());
        let (took, statuses) = (Family::default(), Family::default());
        routes.register(&mut registry);
        upstreams.register(&mut registry);
        registry.register_with_unit(
            "call_duration",
            "From a request's arrival to the end of its upstream's answer",
            Unit::Seconds,
            Family::clone(&took),
        );
        registry.register(
            "upstream_answers",
            "Answers of upstreams, by status",
            Family::clone(&statuses),
        );
        SidecarMetrics {
            registry,
            routes,
            upstreams,
            latencies: took,
            statuses,
            route_labels: Mutex::default(),
        }
    }

    pub(super) fn encode_text(&self) -> String {
        metrics::encode_text(&self.registry)
    }

    pub(super) fn route_counters(&self, route: &str) -> Counters {
        self.lock_route_labels()
            .entry(route.to_owned())
            .or_default();
        self.routes.with_labels(&labels([("route", route)]))
    }

    pub(super) fn latency_histogram(&self, route: &str) -> LatencyHistogram {
        self.latencies
            .get_or_create_owned(&labels([("route", route)]))
    }

    pub(super) fn upstream_counters(&self, route: &str, upstream: &str) -> UpstreamCounters {
        let labels = labels([("route", route), ("upstream", upstream)]);
        self.route_metric(route, labels, |labels| self.upstreams.with_labels(labels))
    }

    pub(super) fn status_counter(&self, route: &str, status: &str) -> Counter {
        let labels = labels([("route", route), ("status", status)]);
        self.route_metric(route, labels, |labels| {
            self.statuses.get_or_create_owned(labels)
        })
    }

    /// Returns a metric that is removed with its route. A worker may still have calls of a removed route, or may not
    /// know of the removal yet; its counts are then discarded.
    fn route_metric<T: Default>(
        &self,
        route: &str,
        labels: MetricLabels,
        member: impl FnOnce(&MetricLabels) -> T,
    ) -> T {
        let mut members = self.lock_route_labels();
        let Some(of) = members.get_mut(route) else {
            return T::default();
        };
        let member = member(&labels);
        if !of.contains(&labels) {
            of.push(labels);
        }
        member
    }

    fn lock_route_labels(&self) -> MutexGuard<'_, HashMap<String, Vec<MetricLabels>>> {
        self.route_labels
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the metrics of an upstream that the route's name no longer resolves to.
    pub(super) fn remove_upstream(&self, route: &str, upstream: &str) {
        self.upstreams
            .forget(&labels([("route", route), ("upstream", upstream)]));
    }

    /// Removes the metrics of a route.
    pub(super) fn remove_route(&self, route: &str) {
        let own = labels([("route", route)]);
        self.routes.forget(&own);
        self.latencies.remove(&own);
        let mut members = self.lock_route_labels();
        for labels in members.remove(route).into_iter().flatten() {
            self.upstreams.forget(&labels);
            self.statuses.remove(&labels);
        }
    }
}

/// A worker's counters of the statuses with which a route's upstreams answered.
#[derive(Debug, Default)]
pub(super) struct StatusCounters(Vec<(u32, Counter)>);

/// Maximum number of a route's statuses that have their own counter; limited because upstreams choose the statuses.
const MAX_STATUSES: usize = 64;

impl StatusCounters {
    /// Counts a status. `name` is called when the status occurs for the first time.
    #[inline]
    pub(super) fn count(
        &mut self,
        status: u32,
        metrics: &SidecarMetrics,
        route: &str,
        name: impl FnOnce() -> String,
    ) {
        match self.0.iter().find(|(known, _)| *known == status) {
            Some((_, counter)) => {
                counter.inc();
            }
            None => self.add_status(status, metrics, route, name),
        }
    }

    #[cold]
    fn add_status(
        &mut self,
        status: u32,
        metrics: &SidecarMetrics,
        route: &str,
        name: impl FnOnce() -> String,
    ) {
        if self.0.len() < MAX_STATUSES {
            let counter = metrics.status_counter(route, &name());
            counter.inc();
            self.0.push((status, counter));
        } else {
            metrics.status_counter(route, "other").inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_route_leaves_no_metrics() {
        let metrics = SidecarMetrics::new();
        for route in ["a", "b"] {
            metrics.route_counters(route).requests.inc();
            metrics
                .latency_histogram(route)
                .observe(std::time::Duration::ZERO);
            metrics.upstream_counters(route, "127.0.0.1:1").calls.inc();
            let mut statuses = StatusCounters::default();
            for status in 0..100 {
                statuses.count(status, &metrics, route, || status.to_string());
                statuses.count(status, &metrics, route, || unreachable!("known"));
            }
        }
        let text = metrics.encode_text();
        let line = "plimsoll_sidecar_upstream_calls_total{route=\"a\",upstream=\"127.0.0.1:1\"} 1";
        assert!(text.contains(line), "{text}");
        metrics.remove_route("a");
        let text = metrics.encode_text();
        assert!(!text.contains("route=\"a\""), "{text}");
        // Workers that do not know of the removal yet.
        metrics.upstream_counters("a", "127.0.0.1:1").calls.inc();
        StatusCounters::default().count(0, &metrics, "a", || "0".to_owned());
        let text = metrics.encode_text();
        assert!(!text.contains("route=\"a\""), "{text}");
        assert!(text.contains("route=\"b\",status=\"63\"} 2\n"), "{text}");
        assert!(text.contains("_requests_total{route=\"b\"} 1\n"), "{text}");
        assert!(text.contains("_calls_in_flight{route=\"b\"} 0\n"), "{text}");
    }
}
