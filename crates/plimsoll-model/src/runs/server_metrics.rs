//! Metrics that a model's server publishes itself, as they were read during a run.
//!
//! Servers give the same quantities different names. [`ServerMetric`] is the list of quantities, and each knows the
//! names of the servers. The `plimsoll` crate reads the metrics once a second; this module finds the known ones in their
//! text, adds them up, bounds, writes and reads them.

mod series_names;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::formats::document::{self, RunError, SCHEMA_VERSION};
use crate::formats::metrics_text::for_each_sample;
use crate::formats::named_enum::named;
use series_names::SeriesAggregation;

/// The record's file name in a run directory.
pub const FILE_NAME: &str = "server-metrics.json";

/// Maximum number of stored readings. Of longer runs, every second, fourth, … reading is stored.
const MAX_STORED_READINGS: usize = 3600;

/// Maximum value of a metric, so that sums are finite.
const MAX_VALUE: f64 = 1e18;

/// Maximum figure of a record. Sums of several engines, and rates over short times, are larger than a single value.
const MAX_FIGURE: f64 = 1e30;

/// Maximum distance of a reading from the load's start, in seconds.
const MAX_OFFSET_S: f64 = 1e9;

/// Minimum time between two readings from which a rate is computed. The last reading of a run may follow the one before
/// at once, and a few tokens between the two would be a high rate.
const MIN_RATE_WINDOW_S: f64 = 0.5;

/// Maximum number of characters of a text from a file.
const MAX_TEXT_CHARS: usize = 500;

named! {
    /// A quantity that model servers publish.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ServerMetric by name and words {
        /// Requests that the model is working on.
        RequestsRunning "requests_running" "requests running",
        /// Requests that wait until the model begins with them.
        RequestsWaiting "requests_waiting" "requests waiting",
        /// Share of the KV cache that is in use; of several engines, of the fullest one.
        KvCacheUsage "kv_cache_usage_share" "KV cache in use",
        /// Share of prompt tokens that the prefix cache had; of several engines, the mean. Only of servers that publish
        /// this share in place of the next two counts.
        PrefixCacheHitShare "prefix_cache_hit_share" "prefix cache hits",
        /// Prompt tokens that were looked up in the prefix cache.
        PrefixCacheQueries "prefix_cache_queries" "prefix cache queries",
        /// Prompt tokens that the prefix cache had.
        PrefixCacheHits "prefix_cache_hits" "prefix cache hits",
        /// Requests that were interrupted because the KV cache was full.
        Preemptions "preemptions" "preemptions",
        /// Tokens of prompts.
        PromptTokens "prompt_tokens" "prompt tokens",
        /// Tokens of answers.
        GeneratedTokens "generated_tokens" "generated tokens",
    }
}

/// How a metric's values are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number of requests at one moment.
    Level,
    /// A share (0–1) at one moment.
    Share,
    /// A count that only grows, until the server is restarted.
    Counter,
}

impl ServerMetric {
    /// Returns how the metric's values are to be read.
    pub const fn kind(self) -> MetricKind {
        match self {
            ServerMetric::RequestsRunning | ServerMetric::RequestsWaiting => MetricKind::Level,
            ServerMetric::KvCacheUsage | ServerMetric::PrefixCacheHitShare => MetricKind::Share,
            ServerMetric::PrefixCacheQueries
            | ServerMetric::PrefixCacheHits
            | ServerMetric::Preemptions
            | ServerMetric::PromptTokens
            | ServerMetric::GeneratedTokens => MetricKind::Counter,
        }
    }
}

/// The known metrics of one reading.
pub type MetricValues = BTreeMap<ServerMetric, f64>;

/// Returns the known metrics in a text in the format of Prometheus. Values of several engines or models are combined;
/// values that are negative, too large or no numbers are left out.
pub fn parse_known_metrics(text: &str) -> MetricValues {
    let mut found: BTreeMap<(ServerMetric, usize), SeriesAggregation> = BTreeMap::new();
    for_each_sample(text, |name, value| {
        if let Some((metric, preference)) = series_names::find(name)
            && (0.0..=MAX_VALUE).contains(&value)
        {
            found.entry((metric, preference)).or_default().add(value);
        }
    });
    let mut values = MetricValues::new();
    // Servers publish some metrics under an old and a new name; the preferred name comes first.
    for ((metric, _), all) in found {
        values.entry(metric).or_insert_with(|| all.combine(metric));
    }
    values
}

/// The figures of one metric over the measured part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricSummary {
    /// The mean of all readings; of a counter, its increase per second. `None`: fewer than two readings of a counter.
    pub mean: Option<f64>,
    /// The highest reading; of a counter, the highest increase per second between two readings.
    pub peak: Option<f64>,
    /// The increase of a counter; `None` for other metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
}

/// One stored reading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricReading {
    /// Time from the load's start, in seconds; negative before it.
    pub offset_s: f64,
    /// The values by the metric's name.
    pub values: BTreeMap<String, f64>,
}

impl MetricReading {
    /// Returns the value of a metric.
    pub fn value(&self, metric: ServerMetric) -> Option<f64> {
        self.values.get(metric.name()).copied()
    }
}

/// The metrics of a server that were read during a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerMetricsRecord {
    /// The version of the run format.
    pub schema_version: u32,
    /// The URL from which the metrics were read.
    pub url: String,
    /// Number of readings in which a metric was known.
    pub readings: u64,
    /// Number of attempts that failed, or found no known metric.
    pub failed_readings: u64,
    /// Why the first of them failed; `None`: none did.
    pub problem: Option<String>,
    /// Figures by the metric's name, of the readings after the warm-up.
    pub metrics: BTreeMap<String, MetricSummary>,
    /// The readings in order, from the last one before the load on.
    pub samples: Vec<MetricReading>,
}

impl ServerMetricsRecord {
    /// Writes the record into a run directory.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, dir: &Path) -> Result<(), RunError> {
        document::write(&dir.join(FILE_NAME), self)
    }

    /// Reads the record in a run directory; `None` if the server's metrics were not read.
    ///
    /// # Errors
    /// When the file is not a regular file, is too large, or does not contain a record, or when a number in it is
    /// impossible.
    pub fn read(dir: &Path) -> Result<Option<ServerMetricsRecord>, RunError> {
        let path = dir.join(FILE_NAME);
        if path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let mut record: ServerMetricsRecord = document::read_checked(&path, check_numbers)?;
        record.url = printable(&record.url);
        record.problem = record.problem.as_deref().map(printable);
        record.samples.truncate(MAX_STORED_READINGS);
        Ok(Some(record))
    }

    /// Returns the figures of a metric; `None` if the server did not publish it.
    pub fn summary(&self, metric: ServerMetric) -> Option<MetricSummary> {
        self.metrics.get(metric.name()).copied()
    }
}

/// Checks the numbers of a record, which may come from an untrusted source.
///
/// # Errors
/// Returns which number is the first that no server can have published.
fn check_numbers(record: &ServerMetricsRecord) -> Result<(), String> {
    let is_possible = |value: f64| (0.0..=MAX_FIGURE).contains(&value);
    for (name, summary) in &record.metrics {
        let figures = [
            ("mean", summary.mean),
            ("peak", summary.peak),
            ("total", summary.total),
        ];
        for (figure, value) in figures {
            if let Some(value) = value.filter(|value| !is_possible(*value)) {
                let name = printable(name);
                return Err(format!(
                    "`{figure}` of `{name}` is {value:e}: a number from 0 to {MAX_FIGURE:e} is expected"
                ));
            }
        }
    }
    let mut last_s = -MAX_OFFSET_S;
    for (nth, sample) in (1_u64..).zip(&record.samples) {
        let offset_s = sample.offset_s;
        if !(last_s..=MAX_OFFSET_S).contains(&offset_s) {
            return Err(format!(
                "sample {nth}: `offset_s` is {offset_s:e}: a number from {last_s:e} to {MAX_OFFSET_S:e} is expected"
            ));
        }
        last_s = offset_s;
        let mut values = sample.values.iter();
        if let Some((name, value)) = values.find(|(_, value)| !is_possible(**value)) {
            let name = printable(name);
            return Err(format!(
                "sample {nth}: `{name}` is {value:e}: a number from 0 to {MAX_FIGURE:e} is expected"
            ));
        }
    }
    Ok(())
}

/// Returns the beginning of a text without characters that could control a terminal.
fn printable(text: &str) -> String {
    let is_harmful = |c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
    let all = text.chars().take(MAX_TEXT_CHARS);
    all.map(|c| if is_harmful(c) { '\u{fffd}' } else { c })
        .collect()
}

/// Collects the readings of a run.
#[derive(Clone, Debug)]
pub struct MetricsCollector {
    record: ServerMetricsRecord,
    /// Readings from this offset on count in the figures, in seconds from the load's start.
    measured_from_s: f64,
    sums: BTreeMap<ServerMetric, MetricSum>,
    /// The last reading, stored or not.
    last: Option<(f64, MetricValues)>,
    /// One of this many readings is stored.
    stored_every: u64,
}

/// The sum of a metric's readings after the warm-up.
#[derive(Clone, Copy, Debug, Default)]
struct MetricSum {
    readings: u64,
    sum: f64,
    peak: Option<f64>,
    /// Time over which a counter's increase was observed, in seconds.
    observed_s: f64,
}

impl MetricsCollector {
    /// Creates a collector for metrics from `url`, which must not contain secrets. `measured_from_s`: length of the
    /// warm-up in seconds.
    pub fn new(url: &str, measured_from_s: f64) -> MetricsCollector {
        MetricsCollector {
            record: ServerMetricsRecord {
                schema_version: SCHEMA_VERSION,
                url: url.to_owned(),
                readings: 0,
                failed_readings: 0,
                problem: None,
                metrics: BTreeMap::new(),
                samples: Vec::new(),
            },
            measured_from_s,
            sums: BTreeMap::new(),
            last: None,
            stored_every: 1,
        }
    }

    /// Adds a reading that took place `offset_s` seconds after the load's start.
    pub fn add(&mut self, offset_s: f64, values: MetricValues) {
        let last = self.last.take();
        let is_measured = offset_s >= self.measured_from_s;
        for (metric, value) in values.iter().filter(|_| is_measured) {
            let before = last
                .as_ref()
                .and_then(|(at, known)| Some((*at, *known.get(metric)?)));
            // Part of an increase since a reading in the warm-up belongs to the warm-up. Without one, the first increase
            // counts from the load's start.
            let before = before
                .filter(|(at, _)| *at >= self.measured_from_s || self.measured_from_s <= 0.0)
                .map(|(at, value)| (at.max(self.measured_from_s), value));
            let sum = self.sums.entry(*metric).or_default();
            sum.add(*metric, (offset_s, *value), before);
        }
        if offset_s < 0.0 {
            // Of the readings before the load, only the last is a beginning of its counters.
            self.record.samples.clear();
            self.record.readings = 0;
        }
        if self.record.readings.is_multiple_of(self.stored_every) {
            self.store(offset_s, &values);
        }
        self.record.readings += 1;
        self.last = Some((offset_s, values));
    }

    fn store(&mut self, offset_s: f64, values: &MetricValues) {
        let samples = &mut self.record.samples;
        if samples.len() == MAX_STORED_READINGS {
            let mut number = 0_usize;
            samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.stored_every *= 2;
        }
        let named = values.iter();
        samples.push(MetricReading {
            offset_s,
            values: named
                .map(|(metric, value)| (metric.name().to_owned(), *value))
                .collect(),
        });
    }

    /// Counts an attempt that failed; returns whether it is the first one.
    pub fn add_failure(&mut self, problem: &str) -> bool {
        self.record.failed_readings += 1;
        let is_first = self.record.problem.is_none();
        if is_first {
            self.record.problem = Some(problem.to_owned());
        }
        is_first
    }

    /// Returns the record of all readings.
    pub fn finish(mut self) -> ServerMetricsRecord {
        let sums = self.sums.iter();
        self.record.metrics = sums
            .map(|(metric, sum)| (metric.name().to_owned(), sum.summary(*metric)))
            .collect();
        self.record
    }
}

impl MetricSum {
    /// Adds a reading of `metric`. `now` and `before`, the reading before it, are times in seconds and values.
    fn add(&mut self, metric: ServerMetric, now: (f64, f64), before: Option<(f64, f64)>) {
        self.readings += 1;
        let (at, value) = now;
        if metric.kind() != MetricKind::Counter {
            self.sum += value;
            self.peak = Some(self.peak.map_or(value, |peak| peak.max(value)));
            return;
        }
        let Some((began, earlier)) = before.filter(|(began, _)| at > *began) else {
            return;
        };
        // A counter that is lower than before belongs to a server that was restarted, and began at 0.
        let increase = if value >= earlier {
            value - earlier
        } else {
            value
        };
        let observed_s = at - began;
        self.sum += increase;
        self.observed_s += observed_s;
        if observed_s >= MIN_RATE_WINDOW_S {
            let per_s = increase / observed_s;
            self.peak = Some(self.peak.map_or(per_s, |peak| peak.max(per_s)));
        }
    }

    fn summary(&self, metric: ServerMetric) -> MetricSummary {
        if metric.kind() != MetricKind::Counter {
            return MetricSummary {
                mean: (self.readings > 0).then(|| self.sum / self.readings as f64),
                peak: self.peak,
                total: None,
            };
        }
        let is_known = self.observed_s > 0.0;
        MetricSummary {
            mean: is_known.then(|| self.sum / self.observed_s),
            peak: self.peak,
            total: is_known.then_some(self.sum),
        }
    }
}

#[cfg(test)]
mod tests;
