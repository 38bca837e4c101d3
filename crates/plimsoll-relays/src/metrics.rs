//! Metrics of relays and servers for Prometheus, as OpenMetrics text from prometheus-client's
//! registry.
//!
//! Counters and gauges are the library's, which are atomic. The library's histogram takes a lock for each value, which
//! a data path cannot afford; [`LatencyHistogram`] is lock-free.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_engine::defect;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
pub(crate) use prometheus_client::metrics::counter::Counter;
pub(crate) use prometheus_client::metrics::family::Family;
pub(crate) use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
pub(crate) use prometheus_client::registry::{Registry, Unit};

/// The content type of [`encode_text`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Names and values of the labels that distinguish the members of a [`Family`].
pub(crate) type MetricLabels = Vec<(&'static str, String)>;

/// Returns a registry whose metric names begin with `plimsoll_{of}`, where `of` is the program, such as `sidecar`. It
/// has a counter of the process's panics.
pub(crate) fn new_registry(of: &str) -> Registry {
    let mut registry = Registry::with_prefix(format!("plimsoll_{of}"));
    registry.register(
        "panics",
        "Internal errors of this process",
        ComputedMetric::counter(defect::panic_count),
    );
    registry
}

/// Encodes all registered metrics as OpenMetrics text.
pub(crate) fn encode_text(registry: &Registry) -> String {
    let mut text = String::new();
    if let Err(e) = encode(&mut text, registry) {
        tracing::error!("metrics: a value can't be written: {e}");
    }
    text
}

pub(crate) fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> MetricLabels {
    pairs.map(|(name, value)| (name, value.to_owned())).into()
}

/// Defines a struct of counters, each with its metric name and help text, and of further fields
/// that register themselves.
macro_rules! counters {
    (
        $(#[$meta:meta])* $vis:vis struct $of:ident {
            $($field:ident: $name:literal, $help:literal;)*
        }
        and { $($more:ident: $kind:ty,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default)]
        $vis struct $of {
            $(#[doc = $help] $vis $field: Counter,)*
            $($more: $kind,)*
        }

        impl $of {
            fn register_counters(&self, registry: &mut Registry) {
                $(registry.register($name, $help, self.$field.clone());)*
            }
        }
    };
}
pub(crate) use counters;

/// A metric whose value is read when the text is encoded.
pub(crate) struct ComputedMetric {
    kind: MetricType,
    read: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl ComputedMetric {
    pub(crate) fn counter(read: impl Fn() -> u64 + Send + Sync + 'static) -> ComputedMetric {
        ComputedMetric {
            kind: MetricType::Counter,
            read: Box::new(read),
        }
    }

    pub(crate) fn gauge(read: impl Fn() -> u64 + Send + Sync + 'static) -> ComputedMetric {
        ComputedMetric {
            kind: MetricType::Gauge,
            read: Box::new(read),
        }
    }
}

impl fmt::Debug for ComputedMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Computed").finish_non_exhaustive()
    }
}

impl EncodeMetric for ComputedMetric {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let value = (self.read)();
        match self.kind {
            MetricType::Counter => encoder.encode_counter::<NoLabelSet, u64, f64>(&value, None),
            _ => encoder.encode_gauge(&value),
        }
    }

    fn metric_type(&self) -> MetricType {
        self.kind
    }
}

/// Upper bounds of a histogram's buckets in microseconds; one more bucket holds longer times.
const BUCKET_BOUNDS_US: [u64; 20] = [
    25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// A histogram of durations, exported in seconds. Clones share their counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatencyHistogram(Arc<BucketCounts>);

#[derive(Debug, Default)]
struct BucketCounts {
    counts: [AtomicU64; BUCKET_BOUNDS_US.len() + 1],
    nanos: AtomicU64,
}

impl LatencyHistogram {
    pub(crate) fn observe(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let place = BUCKET_BOUNDS_US.partition_point(|bound| bound * 1_000 < nanos);
        self.0.counts[place].fetch_add(1, Ordering::Relaxed);
        self.0.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl TypedMetric for LatencyHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for LatencyHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = BUCKET_BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6);
        let counts = self.0.counts.iter();
        let buckets: Vec<(f64, u64)> = bounds
            .chain([f64::INFINITY])
            .zip(counts.map(|count| count.load(Ordering::Relaxed)))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let seconds = self.0.nanos.load(Ordering::Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_land_in_correct_bucket() {
        let mut registry = new_registry("test");
        let family = Family::<MetricLabels, LatencyHistogram>::default();
        registry.register_with_unit("took", "How long", Unit::Seconds, family.clone());
        let times = family.get_or_create_owned(&labels([("of", "a\"b\\c\nd")]));
        for micros in [25, 26, 60_000_000, 90_000_000] {
            times.observe(Duration::from_micros(micros));
        }
        registry.register("open", "How many", ComputedMetric::gauge(|| 7));
        let text = encode_text(&registry);
        let of = "of=\"a\\\"b\\\\c\\nd\"";
        for line in [
            "# TYPE plimsoll_test_took_seconds histogram".to_owned(),
            format!("plimsoll_test_took_seconds_bucket{{le=\"0.000025\",{of}}} 1"),
            format!("plimsoll_test_took_seconds_bucket{{le=\"0.00005\",{of}}} 2"),
            format!("plimsoll_test_took_seconds_bucket{{le=\"60.0\",{of}}} 3"),
            format!("plimsoll_test_took_seconds_bucket{{le=\"+Inf\",{of}}} 4"),
            format!("plimsoll_test_took_seconds_count{{{of}}} 4"),
            "plimsoll_test_open 7".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        let sum = format!("plimsoll_test_took_seconds_sum{{{of}}} 150.000051");
        assert!(text.contains(&sum), "{text}");
        assert!(text.contains("plimsoll_test_panics_total ") && text.ends_with("# EOF\n"));
    }
}
