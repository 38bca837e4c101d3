//! A run while it goes on, for programs that watch it: OpenMetrics text for those that ask, OTLP for those that are
//! told. Counters and histograms are of all calls since the run began, the warm-up's too.

use std::fmt;

use hdrhistogram::Histogram;
use plimsoll_model::record::{StageRecord, Times};
use plimsoll_model::run::{IntervalRecord, Resources};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use serde_json::{Value, json};

/// What a run has done so far.
#[derive(Clone, Debug, Default)]
pub struct Ongoing {
    name: String,
    target: String,
    /// Nanoseconds since 1970.
    began_unix_ns: u64,
    calls: StageRecord,
    in_flight: u64,
    backlog: u64,
    connections: u64,
    client_cpu_us: u64,
    server_cpu_us: u64,
}

impl Ongoing {
    /// Before the first interval.
    pub fn new(name: &str, target: &str, began_unix_ns: u64) -> Ongoing {
        Ongoing {
            name: name.to_owned(),
            target: target.to_owned(),
            began_unix_ns,
            ..Ongoing::default()
        }
    }

    /// The run's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One more interval.
    pub fn add(&mut self, interval: &IntervalRecord) {
        for (_, record) in &interval.stages {
            self.calls.merge(record);
        }
        self.in_flight = interval.in_flight;
        self.backlog = interval.backlog;
        self.connections = interval.connections_open;
        let cpu = |r: &Option<Resources>| r.as_ref().and_then(|r| r.cpu_us()).unwrap_or(0);
        self.client_cpu_us += cpu(&interval.client);
        self.server_cpu_us += cpu(&interval.server);
    }
}

/// A figure of a run: what it is called, and how it is had.
type Figure = (&'static str, &'static str, fn(&Ongoing) -> u64);

const COUNTERS: [Figure; 4] = [
    ("due", "Calls whose time had come", |o| o.calls.due),
    ("not_started", "Calls given up before they were sent", |o| {
        o.calls.not_started
    }),
    ("sent_bytes", "Bytes of messages sent", |o| {
        o.calls.bytes_sent
    }),
    ("received_bytes", "Bytes of messages received", |o| {
        o.calls.bytes_received
    }),
];

const GAUGES: [Figure; 3] = [
    ("in_flight", "Calls sent and not ended", |o| o.in_flight),
    ("backlog", "Calls due and not sent", |o| o.backlog),
    ("connections", "Connections open", |o| o.connections),
];

/// A kind of time of a run's calls.
type Time = (&'static str, &'static str, fn(&Ongoing) -> &Times);

const TIMES: [Time; 3] = [
    (
        "response",
        "From when a call was due to its end; calls that ended ok",
        |o| &o.calls.response,
    ),
    (
        "service",
        "From when a call was sent to its end; calls that ended ok",
        |o| &o.calls.service,
    ),
    ("lag", "From when a call was due to when it was sent", |o| {
        &o.calls.lag
    }),
];

/// CPU by end, in seconds.
fn cpu(o: &Ongoing) -> [(&'static str, f64); 2] {
    [
        ("client", o.client_cpu_us as f64 / 1e6),
        ("server", o.server_cpu_us as f64 / 1e6),
    ]
}

/// Upper bounds of the buckets of OpenMetrics histograms, µs: 50 µs to 60 s.
const BOUNDS_US: [u64; 19] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// The values of a histogram with their counts, ns: each the lowest that is not told apart from it, so that a bound
/// holds what is equal to it.
fn recorded(h: Option<&Histogram<u64>>) -> impl Iterator<Item = (u64, u64)> + '_ {
    h.into_iter().flat_map(|h| {
        let lowest = |value| h.lowest_equivalent(value);
        h.iter_recorded()
            .map(move |v| (lowest(v.value_iterated_to()), v.count_at_value()))
    })
}

fn sum_s(h: &Histogram<u64>) -> f64 {
    h.mean() * h.len() as f64 / 1e9
}

pub(crate) type Labels = Vec<(&'static str, String)>;

/// Values of one family, by labels.
#[derive(Debug)]
pub(crate) enum Family {
    Counters(Vec<(Labels, f64)>),
    Gauges(Vec<(Labels, f64)>),
    Histograms(Vec<(Labels, Times)>),
}

impl EncodeMetric for Family {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            Family::Counters(values) => {
                for (labels, value) in values {
                    let mut one = encoder.encode_family(labels)?;
                    one.encode_counter::<NoLabelSet, f64, f64>(value, None)?;
                }
            }
            Family::Gauges(values) => {
                for (labels, value) in values {
                    encoder.encode_family(labels)?.encode_gauge(value)?;
                }
            }
            Family::Histograms(values) => {
                for (labels, times) in values {
                    let (sum, count, buckets) = buckets(times);
                    let mut one = encoder.encode_family(labels)?;
                    one.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        match self {
            Family::Counters(_) => MetricType::Counter,
            Family::Gauges(_) => MetricType::Gauge,
            Family::Histograms(_) => MetricType::Histogram,
        }
    }
}

/// Sum in seconds, count, and the calls of each bucket by its upper bound in seconds.
fn buckets(times: &Times) -> (f64, u64, Vec<(f64, u64)>) {
    let mut counts = [0; BOUNDS_US.len() + 1];
    for (ns, n) in recorded(times.histogram()) {
        counts[BOUNDS_US.partition_point(|bound| bound * 1_000 < ns)] += n;
    }
    let sum = times.histogram().map_or(0.0, sum_s);
    let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
    let bounds = bounds.chain([f64::INFINITY]);
    (sum, times.len(), bounds.zip(counts).collect())
}

/// What a scrape is answered with: OpenMetrics text of the runs, by their names.
pub fn openmetrics<'a>(runs: impl Iterator<Item = &'a Ongoing> + Clone) -> String {
    let mut registry = Registry::with_prefix("plimsoll_live");
    let of_run = |o: &Ongoing| vec![("run", o.name.clone())];
    let values = |of: fn(&Ongoing) -> u64| {
        let values = runs.clone().map(|o| (of_run(o), of(o) as f64));
        values.collect()
    };
    for (name, help, of) in COUNTERS {
        registry.register(name, help, Family::Counters(values(of)));
    }
    for (name, help, of) in GAUGES {
        registry.register(name, help, Family::Gauges(values(of)));
    }
    let with = |o: &Ongoing, name: &'static str, value: &str| {
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
        Family::Counters(calls.collect()),
    );
    let used = runs
        .clone()
        .flat_map(|o| cpu(o).map(|(end, s)| (with(o, "end", end), s)));
    registry.register_with_unit(
        "cpu",
        "CPU time, by end",
        Unit::Seconds,
        Family::Counters(used.collect()),
    );
    for (name, help, of) in TIMES {
        let times = runs.clone().map(|o| (of_run(o), of(o).clone())).collect();
        registry.register_with_unit(name, help, Unit::Seconds, Family::Histograms(times));
    }
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = encode(&mut out, &registry);
    out
}

/// The most buckets of an exponential histogram, as OpenTelemetry's own libraries have it.
const MAX_BUCKETS: i64 = 160;

/// The runs as an OTLP request for metrics, in JSON (`ExportMetricsServiceRequest`, OTLP 1): cumulative sums, gauges,
/// and exponential histograms in seconds. Nanoseconds since 1970 are texts there, as protobuf's JSON has them.
pub fn otlp<'a>(
    runs: impl Iterator<Item = &'a Ongoing> + Clone,
    now_unix_ns: u64,
    tool_version: &str,
) -> Value {
    let point = |o: &Ongoing, more: Option<(&str, &str)>, value: Value| {
        let mut point = value;
        let all = [
            ("plimsoll.run", o.name.as_str()),
            ("plimsoll.target", o.target.as_str()),
        ];
        let attributes = all.into_iter().chain(more);
        let attributes: Vec<Value> = attributes
            .map(|(key, text)| json!({ "key": key, "value": { "stringValue": text } }))
            .collect();
        point["attributes"] = attributes.into();
        point["startTimeUnixNano"] = o.began_unix_ns.to_string().into();
        point["timeUnixNano"] = now_unix_ns.to_string().into();
        point
    };
    let whole = |n: u64| json!({ "asInt": n.to_string() });
    let sum = |name: &str, unit: &str, points: Vec<Value>| {
        json!({
            "name": format!("plimsoll.{name}"), "unit": unit,
            "sum": { "aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points },
        })
    };
    let mut metrics = Vec::new();
    let points = |of: fn(&Ongoing) -> u64| -> Vec<Value> {
        let points = runs.clone().map(|o| point(o, None, whole(of(o))));
        points.collect()
    };
    for (name, _, of) in COUNTERS {
        let unit = if name.ends_with("bytes") { "By" } else { "1" };
        metrics.push(sum(name, unit, points(of)));
    }
    for (name, _, of) in GAUGES {
        metrics.push(json!({
            "name": format!("plimsoll.{name}"), "unit": "1", "gauge": { "dataPoints": points(of) },
        }));
    }
    let calls = runs.clone().flat_map(|o| {
        let of = move |(outcome, n): (plimsoll_model::Outcome, u64)| {
            point(o, Some(("plimsoll.outcome", outcome.code())), whole(n))
        };
        o.calls.outcomes.iter().map(of)
    });
    metrics.push(sum("calls", "1", calls.collect()));
    let used = runs.clone().flat_map(|o| {
        cpu(o).map(|(end, s)| point(o, Some(("plimsoll.end", end)), json!({ "asDouble": s })))
    });
    metrics.push(sum("cpu", "s", used.collect()));
    for (name, _, of) in TIMES {
        let points: Vec<Value> = runs
            .clone()
            .filter_map(|o| Some(point(o, None, exponential(of(o).histogram()?))))
            .collect();
        metrics.push(json!({
            "name": format!("plimsoll.{name}"), "unit": "s",
            "exponentialHistogram": { "aggregationTemporality": 2, "dataPoints": points },
        }));
    }
    let service = json!({ "key": "service.name", "value": { "stringValue": "plimsoll" } });
    json!({ "resourceMetrics": [{
        "resource": { "attributes": [service] },
        "scopeMetrics": [{ "scope": { "name": "plimsoll", "version": tool_version }, "metrics": metrics }],
    }] })
}

/// A data point of an exponential histogram, in seconds: as fine as its buckets allow.
fn exponential(h: &Histogram<u64>) -> Value {
    let index = |ns: u64, scale: i32| {
        // Bucket i holds what is above base^i, up to base^(i+1), where base is 2^(2^-scale).
        ((ns.max(1) as f64 / 1e9).log2() * f64::from(scale).exp2()).ceil() as i64 - 1
    };
    let span = |scale| index(h.max(), scale) - index(h.min(), scale) + 1;
    let scale = (-10..=20)
        .rev()
        .find(|s| span(*s) <= MAX_BUCKETS)
        .unwrap_or(-10);
    let offset = index(h.min(), scale);
    let mut counts = vec![0_u64; usize::try_from(span(scale)).unwrap_or(1)];
    let last = counts.len() as i64 - 1;
    for (ns, n) in recorded(Some(h)) {
        let at = (index(ns, scale) - offset).clamp(0, last);
        counts[usize::try_from(at).unwrap_or(0)] += n;
    }
    let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
    json!({
        "count": h.len().to_string(), "sum": sum_s(h), "scale": scale, "zeroCount": "0",
        "positive": { "offset": offset, "bucketCounts": counts },
        "min": h.min() as f64 / 1e9, "max": h.max() as f64 / 1e9,
    })
}
