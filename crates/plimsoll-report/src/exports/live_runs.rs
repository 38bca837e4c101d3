//! Exports a run in progress for monitoring: OpenMetrics text for scraping, OTLP for pushing. Counters and histograms
//! cover all calls since the start, including those of the warm-up.

pub mod otlp;

use std::fmt;

use hdrhistogram::Histogram;
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::records::record::{StageRecord, TimeHistogram};
use plimsoll_model::runs::run::{IntervalRecord, ResourceUsage, UserLevels};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// The running totals of a run.
#[derive(Clone, Debug, Default)]
pub struct RunningTotals {
    name: String,
    target: String,
    /// The start of the run, in nanoseconds since 1970.
    began_unix_ns: u64,
    calls: StageRecord,
    in_flight: u64,
    backlog: u64,
    connections: u64,
    /// Users at the end of the last interval; `None` where calls have no users.
    users: Option<UserLevels>,
    client_cpu_us: u64,
    server_cpu_us: u64,
}

impl RunningTotals {
    /// Creates the totals before the first interval.
    pub fn new(name: &str, target: &str, began_unix_ns: u64) -> RunningTotals {
        RunningTotals {
            name: name.to_owned(),
            target: target.to_owned(),
            began_unix_ns,
            ..RunningTotals::default()
        }
    }

    /// Returns the run's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds one interval.
    pub fn add(&mut self, interval: &IntervalRecord) {
        for (_, record) in &interval.stages {
            self.calls.merge(record);
        }
        self.in_flight = interval.in_flight;
        self.backlog = interval.backlog;
        self.connections = interval.connections_open;
        self.users = interval.users;
        let cpu = |r: &Option<ResourceUsage>| r.as_ref().and_then(|r| r.cpu_us()).unwrap_or(0);
        self.client_cpu_us += cpu(&interval.client);
        self.server_cpu_us += cpu(&interval.server);
    }
}

/// A figure of a run: its name, description and value.
type RunMetric = (&'static str, &'static str, fn(&RunningTotals) -> u64);

const COUNTERS: [RunMetric; 4] = [
    ("due", "Calls scheduled", |o| o.calls.due),
    ("not_started", "Calls dropped before they were sent", |o| {
        o.calls.not_started
    }),
    ("sent_bytes", "Bytes of messages sent", |o| {
        o.calls.bytes_sent
    }),
    ("received_bytes", "Bytes of messages received", |o| {
        o.calls.bytes_received
    }),
];

const GAUGES: [RunMetric; 3] = [
    ("in_flight", "Calls sent and not ended", |o| o.in_flight),
    ("backlog", "Calls scheduled and not sent", |o| o.backlog),
    ("connections", "Connections open", |o| o.connections),
];

/// The gauges of runs whose users make several calls each.
const USER_GAUGES: [RunMetric; 2] = [
    (
        "users_in_flight",
        "Users who have arrived and not ended",
        |o| o.users.map_or(0, |users| users.in_flight),
    ),
    ("users_waiting", "Users who wait for a connection", |o| {
        o.users.map_or(0, |users| users.waiting)
    }),
];

/// Returns the gauges that the runs have.
fn gauges<'a>(
    mut runs: impl Iterator<Item = &'a RunningTotals>,
) -> impl Iterator<Item = RunMetric> {
    let has_users = runs.any(|o| o.users.is_some());
    let of_users = USER_GAUGES.into_iter().filter(move |_| has_users);
    GAUGES.into_iter().chain(of_users)
}

/// A kind of time of a run's calls: its name, description and histogram.
type CallTimeMetric = (
    &'static str,
    &'static str,
    fn(&RunningTotals) -> &TimeHistogram,
);

const CALL_TIMES: [CallTimeMetric; 3] = [
    (
        "response",
        "From a call's scheduled time to its end; successful calls",
        |o| &o.calls.response,
    ),
    (
        "service",
        "From when a call was sent to its end; successful calls",
        |o| &o.calls.service,
    ),
    (
        "lag",
        "From a call's scheduled time to when it was sent",
        |o| &o.calls.lag,
    ),
];

/// Returns the counters that the runs' protocols have in addition to calls, such as tokens.
fn protocol_counts<'a>(
    runs: impl Iterator<Item = &'a RunningTotals> + Clone,
) -> impl Iterator<Item = Count> {
    Count::all().filter(move |count| runs.clone().any(|o| o.calls.measures.counter(*count) > 0))
}

/// Returns the times that the runs have in addition to calls, such as first tokens and connections.
fn protocol_times<'a>(
    runs: impl Iterator<Item = &'a RunningTotals> + Clone,
) -> impl Iterator<Item = TimeMeasure> {
    TimeMeasure::all().filter(move |measure| {
        runs.clone()
            .any(|o| !o.calls.measures.times(*measure).is_empty())
    })
}

/// Returns the CPU time of client and server, in seconds.
fn cpu_seconds(o: &RunningTotals) -> [(&'static str, f64); 2] {
    [
        ("client", o.client_cpu_us as f64 / 1e6),
        ("server", o.server_cpu_us as f64 / 1e6),
    ]
}

/// Upper bounds of the buckets of OpenMetrics histograms in µs, from 50 µs to 60 s.
const BUCKET_BOUNDS_US: [u64; 19] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// Returns the values of a histogram in nanoseconds with their counts. Each value is the lowest equivalent one, so that
/// values equal to a bucket's bound are counted in that bucket.
fn recorded_values(h: Option<&Histogram<u64>>) -> impl Iterator<Item = (u64, u64)> + '_ {
    h.into_iter().flat_map(|h| {
        let lowest = |value| h.lowest_equivalent(value);
        h.iter_recorded()
            .map(move |v| (lowest(v.value_iterated_to()), v.count_at_value()))
    })
}

fn sum_s(h: &Histogram<u64>) -> f64 {
    h.mean() * h.len() as f64 / 1e9
}

pub(crate) type MetricLabels = Vec<(&'static str, String)>;

/// The values of a metric family, by labels.
#[derive(Debug)]
pub(crate) enum MetricFamily {
    Counters(Vec<(MetricLabels, f64)>),
    Gauges(Vec<(MetricLabels, f64)>),
    Histograms(Vec<(MetricLabels, TimeHistogram)>),
}

impl EncodeMetric for MetricFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            MetricFamily::Counters(values) => {
                for (labels, value) in values {
                    let mut one = encoder.encode_family(labels)?;
                    one.encode_counter::<NoLabelSet, f64, f64>(value, None)?;
                }
            }
            MetricFamily::Gauges(values) => {
                for (labels, value) in values {
                    encoder.encode_family(labels)?.encode_gauge(value)?;
                }
            }
            MetricFamily::Histograms(values) => {
                for (labels, times) in values {
                    let (sum, count, buckets) = sum_count_and_buckets(times);
                    let mut one = encoder.encode_family(labels)?;
                    one.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        match self {
            MetricFamily::Counters(_) => MetricType::Counter,
            MetricFamily::Gauges(_) => MetricType::Gauge,
            MetricFamily::Histograms(_) => MetricType::Histogram,
        }
    }
}

/// Returns the sum in seconds, the count, and the number of calls in each bucket, with the bucket's upper bound in
/// seconds.
fn sum_count_and_buckets(times: &TimeHistogram) -> (f64, u64, Vec<(f64, u64)>) {
    let mut counts = [0; BUCKET_BOUNDS_US.len() + 1];
    for (ns, n) in recorded_values(times.histogram()) {
        counts[BUCKET_BOUNDS_US.partition_point(|bound| bound * 1_000 < ns)] += n;
    }
    let sum = times.histogram().map_or(0.0, sum_s);
    let bounds = BUCKET_BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
    let bounds = bounds.chain([f64::INFINITY]);
    (sum, times.len(), bounds.zip(counts).collect())
}

/// Returns the response to a scrape: OpenMetrics text of the runs, labelled with their names.
pub fn render_openmetrics<'a>(runs: impl Iterator<Item = &'a RunningTotals> + Clone) -> String {
    let mut registry = Registry::with_prefix("plimsoll_live");
    let of_run = |o: &RunningTotals| vec![("run", o.name.clone())];
    let values = |of: fn(&RunningTotals) -> u64| {
        let values = runs.clone().map(|o| (of_run(o), of(o) as f64));
        values.collect()
    };
    for (name, help, of) in COUNTERS {
        registry.register(name, help, MetricFamily::Counters(values(of)));
    }
    for count in protocol_counts(runs.clone()) {
        let values = runs.clone();
        let values = values.map(|o| (of_run(o), o.calls.measures.counter(count) as f64));
        let family = MetricFamily::Counters(values.collect());
        registry.register(count.key(), count.explanation(), family);
    }
    for (name, help, of) in gauges(runs.clone()) {
        registry.register(name, help, MetricFamily::Gauges(values(of)));
    }
    let with = |o: &RunningTotals, name: &'static str, value: &str| {
        let mut labels = of_run(o);
        labels.push((name, value.to_owned()));
        labels
    };
    let calls = runs.clone().flat_map(|o| {
        let of = move |(outcome, n): (plimsoll_model::Outcome, u64)| {
            (with(o, "outcome", outcome.code()), n as f64)
        };
        o.calls.outcomes.iter().map(of)
    });
    registry.register(
        "calls",
        "Calls that ended, by outcome",
        MetricFamily::Counters(calls.collect()),
    );
    let used = runs
        .clone()
        .flat_map(|o| cpu_seconds(o).map(|(end, s)| (with(o, "end", end), s)));
    registry.register_with_unit(
        "cpu",
        "CPU time, by end",
        Unit::Seconds,
        MetricFamily::Counters(used.collect()),
    );
    for (name, help, of) in CALL_TIMES {
        let times = runs.clone().map(|o| (of_run(o), of(o).clone())).collect();
        registry.register_with_unit(name, help, Unit::Seconds, MetricFamily::Histograms(times));
    }
    for measure in protocol_times(runs.clone()) {
        let times = runs.clone();
        let times = times.map(|o| (of_run(o), o.calls.measures.times(measure).clone()));
        let family = MetricFamily::Histograms(times.collect());
        registry.register_with_unit(measure.key(), measure.explanation(), Unit::Seconds, family);
    }
    let mut out = String::new();
    // Writing to a String can't fail.
    let _ = encode(&mut out, &registry);
    out
}
