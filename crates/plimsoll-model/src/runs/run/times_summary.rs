//! Statistics of a run's times, in µs.

use serde::Serialize;

use crate::records::instrument::{LatenessBounds, LowerBounds};
use crate::records::record::{StageRecord, TimeHistogram};
use crate::statistics::quantile::quantile;

use super::sampling::SamplingSummary;

/// Percentiles and moments of a histogram, µs. A percentile that the sample can't support
/// ([`crate::statistics::quantile::is_supported`]) is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimesSummary {
    /// The number of recorded times.
    pub count: u64,
    /// The arithmetic mean.
    pub mean_us: f64,
    /// The standard deviation.
    pub sd_us: f64,
    /// The shortest time.
    pub min_us: f64,
    /// The median.
    pub p50_us: Option<f64>,
    /// The 75th percentile.
    pub p75_us: Option<f64>,
    /// The 90th percentile.
    pub p90_us: Option<f64>,
    /// The 95th percentile.
    pub p95_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
    /// The 99.9th percentile.
    #[serde(rename = "p99.9_us")]
    pub p99_9_us: Option<f64>,
    /// The 99.99th percentile.
    #[serde(rename = "p99.99_us")]
    pub p99_99_us: Option<f64>,
    /// The longest time.
    pub max_us: f64,
    /// Bounds of what the statistics would have been had the generator been on time; `None`: the generator's lateness
    /// doesn't affect the statistics, or is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instrument: Option<InstrumentSummary>,
    /// Sampling intervals, which say where the statistics of another run like this one would lie; only for times of a
    /// whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingSummary>,
}

/// The instrument intervals of [`TimesSummary`]'s statistics, µs. Each extends from the lower bound to the measured
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct InstrumentSummary {
    /// Interval of the mean.
    pub mean_us: [f64; 2],
    /// Interval of the median.
    pub p50_us: Option<[f64; 2]>,
    /// Interval of the 75th percentile.
    pub p75_us: Option<[f64; 2]>,
    /// Interval of the 90th percentile.
    pub p90_us: Option<[f64; 2]>,
    /// Interval of the 95th percentile.
    pub p95_us: Option<[f64; 2]>,
    /// Interval of the 99th percentile.
    pub p99_us: Option<[f64; 2]>,
    /// Interval of the 99.9th percentile.
    #[serde(rename = "p99.9_us")]
    pub p99_9_us: Option<[f64; 2]>,
    /// Interval of the 99.99th percentile.
    #[serde(rename = "p99.99_us")]
    pub p99_99_us: Option<[f64; 2]>,
    /// Interval of the maximum.
    pub max_us: [f64; 2],
}

impl InstrumentSummary {
    fn from_bounds(high: &TimesSummary, low: &LowerBounds<'_>) -> InstrumentSummary {
        let interval =
            |low_us: f64, high_us: f64| [round_to_thousandths(low_us.min(high_us)), high_us];
        let at =
            |p: f64, high_us: Option<f64>| Some(interval(to_micros(low.quantile(p)), high_us?));
        InstrumentSummary {
            mean_us: interval(low.mean() / 1e3, high.mean_us),
            p50_us: at(0.5, high.p50_us),
            p75_us: at(0.75, high.p75_us),
            p90_us: at(0.9, high.p90_us),
            p95_us: at(0.95, high.p95_us),
            p99_us: at(0.99, high.p99_us),
            p99_9_us: at(0.999, high.p99_9_us),
            p99_99_us: at(0.9999, high.p99_99_us),
            max_us: interval(to_micros(low.max()), high.max_us),
        }
    }

    /// Returns the percentiles' intervals with their names, in order.
    pub fn percentiles(&self) -> [(&'static str, Option<[f64; 2]>); 7] {
        [
            ("p50", self.p50_us),
            ("p75", self.p75_us),
            ("p90", self.p90_us),
            ("p95", self.p95_us),
            ("p99", self.p99_us),
            ("p99.9", self.p99_9_us),
            ("p99.99", self.p99_99_us),
        ]
    }
}

fn to_micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Rounds to three decimals, so a value in µs is rounded to a nanosecond.
pub(super) fn round_to_thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl TimesSummary {
    /// Summarises `times`; `None`: nothing was recorded.
    pub fn from_times(times: &TimeHistogram) -> Option<TimesSummary> {
        let h = times.histogram()?;
        let at = |p: f64| quantile(h, p).map(to_micros);
        Some(TimesSummary {
            count: h.len(),
            mean_us: round_to_thousandths(h.mean() / 1e3),
            sd_us: round_to_thousandths(h.stdev() / 1e3),
            min_us: to_micros(h.min()),
            p50_us: at(0.5),
            p75_us: at(0.75),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            p99_99_us: at(0.9999),
            max_us: to_micros(h.max()),
            instrument: None,
            sampling: None,
        })
    }

    /// Summarises `times` with instrument intervals, where lateness is known. `None`: nothing was recorded.
    pub fn with_lateness(
        times: &TimeHistogram,
        lateness: Option<&LatenessBounds>,
    ) -> Option<TimesSummary> {
        let low_ends = lateness.map(|late| LowerBounds::new(times, late));
        TimesSummary::from_times(times).map(|summary| summary.with_lower_bounds(low_ends))
    }

    /// Summarises response times as [`TimesSummary::with_lateness`] does, with the lower bounds of individual calls
    /// where they are known.
    pub fn from_response_times(
        record: &StageRecord,
        lateness: Option<&LatenessBounds>,
    ) -> Option<TimesSummary> {
        let low_ends = lateness.map(|late| LowerBounds::from_response_times(record, late));
        TimesSummary::from_times(&record.response)
            .map(|summary| summary.with_lower_bounds(low_ends))
    }

    fn with_lower_bounds(self, low_ends: Option<LowerBounds<'_>>) -> TimesSummary {
        TimesSummary {
            instrument: low_ends.map(|low_ends| InstrumentSummary::from_bounds(&self, &low_ends)),
            ..self
        }
    }

    /// Returns the percentiles with their names, in order.
    pub fn percentiles(&self) -> [(&'static str, Option<f64>); 7] {
        [
            ("p50", self.p50_us),
            ("p75", self.p75_us),
            ("p90", self.p90_us),
            ("p95", self.p95_us),
            ("p99", self.p99_us),
            ("p99.9", self.p99_9_us),
            ("p99.99", self.p99_99_us),
        ]
    }
}
