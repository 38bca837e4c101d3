//! Exports a run's intervals as an HdrHistogram interval log, for HdrHistogram's own tools in Java, Python and other
//! languages.
//!
//! The log contains response and service times, distinguished by tags. Its histograms are in nanoseconds; its column of
//! maxima is in milliseconds.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use plimsoll_model::runs::run::{IntervalRecord, Run};

use crate::ExportError;

/// Writes the intervals of `run` to `out`, without warm-up; returns the number of lines.
///
/// # Errors
/// When the run can't be read, or the log can't be written.
pub fn export(run: &Run, out: &mut impl Write) -> Result<u64, ExportError> {
    let failed = |e: &dyn std::fmt::Debug| {
        ExportError::write_error("the log")(io::Error::other(format!("{e:?}")))
    };
    let mut serializer = V2DeflateSerializer::new();
    let began = SystemTime::UNIX_EPOCH
        + Duration::from_millis(u64::try_from(run.header.started_at.as_millisecond()).unwrap_or(0));
    let mut builder = IntervalLogWriterBuilder::new();
    builder
        .add_comment(&format!("[Logged by plimsoll {}]", run.header.tool_version))
        .add_comment("[Histogram log format version 1.3]")
        .with_start_time(began)
        .with_base_time(began)
        .with_max_value_divisor(1e6);
    let mut log = builder
        .begin_log_with(out, &mut serializer)
        .map_err(|e| failed(&e))?;
    let (mut written, mut outcome) = (0, Ok(()));
    run.for_each_interval(|interval| {
        for (name, histogram) in merge_measured_histograms(run, &interval) {
            if outcome.is_err() {
                return;
            }
            let (start, length) = (interval.start_offset, interval.length);
            outcome = log
                .write_histogram(&histogram, start, length, Tag::new(name))
                .map_err(|e| failed(&e));
            written += 1;
        }
    })?;
    outcome.map(|()| written)
}

/// Returns the merged histograms of an interval's measured stages.
fn merge_measured_histograms(
    run: &Run,
    interval: &IntervalRecord,
) -> Vec<(&'static str, hdrhistogram::Histogram<u64>)> {
    let mut response = plimsoll_model::records::record::TimeHistogram::default();
    let mut service = plimsoll_model::records::record::TimeHistogram::default();
    for (stage, record) in &interval.stages {
        if !run.header.is_warmup(*stage) {
            response.merge(&record.response);
            service.merge(&record.service);
        }
    }
    [("response", response), ("service", service)]
        .into_iter()
        .filter_map(|(name, times)| Some((name, times.histogram()?.clone())))
        .collect()
}
