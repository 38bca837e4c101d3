//! OTLP 1 messages for metrics (opentelemetry-proto, `metrics.proto`): the message types that runs need.

use hdrhistogram::Histogram;
use prost::Message;
use serde::{Serialize, Serializer};

use crate::exports::otlp::{
    InstrumentationScope, KeyValue, Resource, attribute, optional_text, text,
};

use super::{
    CALL_TIMES, COUNTERS, RunningTotals, cpu_seconds, gauges, protocol_counts, protocol_times,
    recorded_values, sum_s,
};

/// Maximum number of buckets of an exponential histogram, as in OpenTelemetry's own libraries.
const MAX_BUCKETS: i64 = 160;
/// The aggregation temporality of sums that count from the start of a run.
const CUMULATIVE_TEMPORALITY: i32 = 2;

/// An export request, `ExportMetricsServiceRequest`: cumulative sums, gauges, and exponential histograms in seconds.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricsRequest {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<OtlpMetric>,
}

/// A metric, which is a gauge, a sum or an exponential histogram.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtlpMetric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    gauge: Option<Gauge>,
    #[prost(message, optional, tag = "7")]
    #[serde(skip_serializing_if = "Option::is_none")]
    sum: Option<Sum>,
    #[prost(message, optional, tag = "10")]
    #[serde(skip_serializing_if = "Option::is_none")]
    exponential_histogram: Option<ExponentialHistogram>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberDataPoint>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberDataPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

/// A data point whose value is either a float or an integer.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct NumberDataPoint {
    #[prost(fixed64, tag = "2")]
    #[serde(serialize_with = "text")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    #[serde(serialize_with = "text")]
    time_unix_nano: u64,
    #[prost(double, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    as_double: Option<f64>,
    #[prost(sfixed64, optional, tag = "6")]
    #[serde(
        serialize_with = "optional_text",
        skip_serializing_if = "Option::is_none"
    )]
    as_int: Option<i64>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExponentialHistogram {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<ExponentialHistogramDataPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExponentialHistogramDataPoint {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    #[serde(serialize_with = "text")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    #[serde(serialize_with = "text")]
    time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    #[serde(serialize_with = "text")]
    count: u64,
    #[prost(double, optional, tag = "5")]
    sum: Option<f64>,
    #[prost(sint32, tag = "6")]
    scale: i32,
    #[prost(fixed64, tag = "7")]
    #[serde(serialize_with = "text")]
    zero_count: u64,
    #[prost(message, optional, tag = "8")]
    positive: Option<Buckets>,
    #[prost(double, optional, tag = "12")]
    min: Option<f64>,
    #[prost(double, optional, tag = "13")]
    max: Option<f64>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Buckets {
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint64, repeated, tag = "2")]
    #[serde(serialize_with = "texts")]
    bucket_counts: Vec<u64>,
}

fn texts<S: Serializer>(all: &[u64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().map(u64::to_string))
}

impl MetricsRequest {
    /// Creates a request with all figures of the runs. `now_unix_ns` is in nanoseconds since 1970.
    pub fn new<'a>(
        runs: impl Iterator<Item = &'a RunningTotals> + Clone,
        now_unix_ns: u64,
        tool_version: &str,
    ) -> MetricsRequest {
        let whole = |o: &RunningTotals, more: Option<(&str, &str)>, n: u64| NumberDataPoint {
            as_int: Some(i64::try_from(n).unwrap_or(i64::MAX)),
            ..data_point(o, more, now_unix_ns)
        };
        let mut metrics = Vec::new();
        for (name, _, of) in COUNTERS {
            let unit = if name.ends_with("bytes") { "By" } else { "1" };
            let points = runs.clone().map(|o| whole(o, None, of(o)));
            metrics.push(sum(name, unit, points.collect()));
        }
        for count in protocol_counts(runs.clone()) {
            let points = runs
                .clone()
                .map(|o| whole(o, None, o.calls.measures.counter(count)));
            metrics.push(sum(count.key(), "1", points.collect()));
        }
        for (name, _, of) in gauges(runs.clone()) {
            let data_points = runs.clone().map(|o| whole(o, None, of(o))).collect();
            metrics.push(OtlpMetric {
                gauge: Some(Gauge { data_points }),
                ..metric(name, "1")
            });
        }
        let calls = runs.clone().flat_map(|o| {
            let of = move |(outcome, n): (plimsoll_model::Outcome, u64)| {
                whole(o, Some(("plimsoll.outcome", outcome.code())), n)
            };
            o.calls.outcomes.iter().map(of)
        });
        metrics.push(sum("calls", "1", calls.collect()));
        let used = runs.clone().flat_map(|o| {
            cpu_seconds(o).map(|(end, seconds)| NumberDataPoint {
                as_double: Some(seconds),
                ..data_point(o, Some(("plimsoll.end", end)), now_unix_ns)
            })
        });
        metrics.push(sum("cpu", "s", used.collect()));
        for (name, _, of) in CALL_TIMES {
            let histograms = runs.clone().filter_map(|o| Some((o, of(o).histogram()?)));
            metrics.push(histogram_metric(name, histograms, now_unix_ns));
        }
        for measure in protocol_times(runs.clone()) {
            let histograms = runs
                .clone()
                .filter_map(|o| Some((o, o.calls.measures.times(measure).histogram()?)));
            metrics.push(histogram_metric(measure.key(), histograms, now_unix_ns));
        }
        let scope = InstrumentationScope::new(tool_version);
        let resource = Resource {
            attributes: vec![attribute("service.name", "plimsoll")],
        };
        MetricsRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(resource),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope),
                    metrics,
                }],
            }],
        }
    }
}

fn attributes(o: &RunningTotals, more: Option<(&str, &str)>) -> Vec<KeyValue> {
    let all = [
        ("plimsoll.run", o.name.as_str()),
        ("plimsoll.target", o.target.as_str()),
    ];
    let all = all.into_iter().chain(more);
    all.map(|(key, text)| attribute(key, text)).collect()
}

/// Returns a data point without its value.
fn data_point(o: &RunningTotals, more: Option<(&str, &str)>, now_unix_ns: u64) -> NumberDataPoint {
    NumberDataPoint {
        start_time_unix_nano: o.began_unix_ns,
        time_unix_nano: now_unix_ns,
        attributes: attributes(o, more),
        ..NumberDataPoint::default()
    }
}

/// Returns a metric without its data.
fn metric(name: &str, unit: &str) -> OtlpMetric {
    OtlpMetric {
        name: format!("plimsoll.{name}"),
        unit: unit.to_owned(),
        ..OtlpMetric::default()
    }
}

fn sum(name: &str, unit: &str, data_points: Vec<NumberDataPoint>) -> OtlpMetric {
    OtlpMetric {
        sum: Some(Sum {
            data_points,
            aggregation_temporality: CUMULATIVE_TEMPORALITY,
            is_monotonic: true,
        }),
        ..metric(name, unit)
    }
}

fn histogram_metric<'a>(
    name: &str,
    histograms: impl Iterator<Item = (&'a RunningTotals, &'a Histogram<u64>)>,
    now_unix_ns: u64,
) -> OtlpMetric {
    let points = histograms.map(|(o, h)| ExponentialHistogramDataPoint {
        attributes: attributes(o, None),
        start_time_unix_nano: o.began_unix_ns,
        time_unix_nano: now_unix_ns,
        ..histogram_point(h)
    });
    OtlpMetric {
        exponential_histogram: Some(ExponentialHistogram {
            data_points: points.collect(),
            aggregation_temporality: CUMULATIVE_TEMPORALITY,
        }),
        ..metric(name, "s")
    }
}

/// Returns a data point of an exponential histogram in seconds, at the finest scale that its buckets allow.
fn histogram_point(h: &Histogram<u64>) -> ExponentialHistogramDataPoint {
    let index = |ns: u64, scale: i32| {
        // Bucket i covers values above base^i, up to base^(i+1), where base is 2^(2^-scale).
        ((ns.max(1) as f64 / 1e9).log2() * f64::from(scale).exp2()).ceil() as i64 - 1
    };
    let span = |scale| index(h.max(), scale) - index(h.min(), scale) + 1;
    let scale = (-10..=20)
        .rev()
        .find(|s| span(*s) <= MAX_BUCKETS)
        .unwrap_or(-10);
    let offset = index(h.min(), scale);
    let mut bucket_counts = vec![0_u64; usize::try_from(span(scale)).unwrap_or(1)];
    let last = bucket_counts.len() as i64 - 1;
    for (ns, n) in recorded_values(Some(h)) {
        let at = (index(ns, scale) - offset).clamp(0, last);
        bucket_counts[usize::try_from(at).unwrap_or(0)] += n;
    }
    ExponentialHistogramDataPoint {
        count: h.len(),
        sum: Some(sum_s(h)),
        scale,
        positive: Some(Buckets {
            offset: i32::try_from(offset).unwrap_or(0),
            bucket_counts,
        }),
        min: Some(h.min() as f64 / 1e9),
        max: Some(h.max() as f64 / 1e9),
        ..ExponentialHistogramDataPoint::default()
    }
}
