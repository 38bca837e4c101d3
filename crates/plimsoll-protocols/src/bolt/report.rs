//! The summary that load tools for SOFARPC print, for runs over Bolt.
//!
//! The summary repeats figures of the tables above it in the format of those tools, for people and scripts that
//! rely on that format. Times are service times: from the actual send.

use std::fmt::Write as _;

use plimsoll_model::formats::quantity::{bytes, time};
use plimsoll_model::records::record::{StageRecord, TimeHistogram};
use plimsoll_model::runs::run::{IntervalRecord, Run};
use plimsoll_model::statistics::quantile::quantile;
use plimsoll_model::{Count, FailureSource, Outcome, TimeMeasure};

use super::Status;
use super::status::SOFA_ERROR;

/// Returns the text below the tables of a run over Bolt.
pub(super) fn render(run: &Run) -> String {
    let record = run.measured_record();
    let total = &run.summary.total;
    let seconds = total.elapsed_us.unwrap_or(0) as f64 / 1e6;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "\nfinished in {seconds:.2}s, {:.2} req/s, {}/s",
        record.ended_calls() as f64 / seconds.max(1e-9),
        bytes(((record.bytes_sent + record.bytes_received) as f64 / seconds.max(1e-9)) as u64),
    );
    write_requests(&mut out, &record);
    write_statuses(&mut out, &record);
    let traffic = record.bytes_sent + record.bytes_received;
    let _ = writeln!(
        out,
        "traffic: {} total ({} sent, {} received){}",
        bytes(traffic),
        bytes(record.bytes_sent),
        bytes(record.bytes_received),
        format_headers_and_data(&record, traffic),
    );
    let _ = writeln!(
        out,
        "times below are service times, from the actual send; response times, from when each call was due, are above"
    );
    let _ = writeln!(
        out,
        "{:<18}{:>11}{:>11}{:>11}{:>11}{:>9}",
        "", "min", "max", "mean", "sd", "+/- sd"
    );
    write_statistics(
        &mut out,
        "time for request:",
        summary_statistics(&record.service),
        format_us,
    );
    let connect = summary_statistics(record.measures.times(TimeMeasure::Connection));
    write_statistics(&mut out, "time for connect:", connect, format_us);
    let rate = |rate| format!("{rate:.2}");
    write_statistics(&mut out, "req/s           :", rate_statistics(run), rate);
    write_distribution(&mut out, &record.service);
    out
}

/// Returns text that splits `traffic` into headers and content. It is empty for runs of earlier versions, which did not
/// count content.
fn format_headers_and_data(record: &StageRecord, traffic: u64) -> String {
    let data = record.measures.counter(Count::ContentBytes);
    match data {
        0 => String::new(),
        data => format!(
            ", {} headers, {} data",
            bytes(traffic.saturating_sub(data)),
            bytes(data)
        ),
    }
}

/// Prints the counts of requests. `total` includes all scheduled calls. The other counts add up to it, except
/// for calls abandoned at the end of the run.
fn write_requests(out: &mut String, record: &StageRecord) {
    let timeout = record.outcomes.get(Outcome::DeadlineExceeded);
    let blamed = |blame: &[FailureSource]| -> u64 {
        record
            .outcomes
            .iter()
            .filter(|(o, _)| *o != Outcome::DeadlineExceeded && !o.is_abandoned())
            .filter(|(outcome, _)| outcome.failure_source().is_some_and(|b| blame.contains(&b)))
            .map(|(_, n)| n)
            .sum()
    };
    let (failed, errored) = (
        blamed(&[FailureSource::Target]),
        blamed(&[FailureSource::Client, FailureSource::Link]),
    );
    let _ = writeln!(
        out,
        "requests: {} total, {} started, {} done, {} succeeded, {failed} failed, {errored} errored, {timeout} timeout",
        record.due,
        record.due.saturating_sub(record.not_started),
        record.ok_calls() + failed,
        record.ok_calls(),
    );
}

fn write_statuses(out: &mut String, record: &StageRecord) {
    let sofa = record.outcomes.get(SOFA_ERROR);
    let words = Status::ALL.iter().map(|status| {
        let n = match status {
            Status::Success => record.ok_calls() + sofa,
            status => record.outcomes.get(status.outcome()),
        };
        format!("{} {n}", status.name())
    });
    let words: Vec<String> = words.collect();
    let _ = writeln!(out, "statuses: {}", words.join(", "));
    let _ = writeln!(out, "SUCCESS with an error header: {sofa}");
}

/// Prints minimum, maximum, mean and standard deviation of some values, and the percentage of values within
/// one standard deviation of the mean; dashes if there are no values.
fn write_statistics(
    out: &mut String,
    name: &str,
    figures: Option<([f64; 4], f64)>,
    show: fn(f64) -> String,
) {
    let dash = || "–".to_owned();
    let ([min, max, mean, sd], near) = match figures {
        Some((figures, near)) => (figures.map(show), format!("{near:.2}%")),
        None => ([dash(), dash(), dash(), dash()], dash()),
    };
    let _ = writeln!(
        out,
        "{name:<18}{min:>11}{max:>11}{mean:>11}{sd:>11}{near:>9}"
    );
}

fn summary_statistics(times: &TimeHistogram) -> Option<([f64; 4], f64)> {
    let h = times.histogram().filter(|h| !h.is_empty())?;
    let (mean, sd) = (h.mean(), h.stdev());
    let near = h
        .iter_recorded()
        .filter(|value| (value.value_iterated_to() as f64 - mean).abs() <= sd)
        .map(|value| value.count_at_value())
        .sum::<u64>();
    let figures = [h.min() as f64, h.max() as f64, mean, sd];
    Some((figures, near as f64 * 100.0 / h.len() as f64))
}

fn format_us(ns: f64) -> String {
    time(ns / 1e3)
}

/// Returns the distribution of calls ended per second, over the intervals of the measured stages.
fn rate_statistics(run: &Run) -> Option<([f64; 4], f64)> {
    let mut rates: Vec<f64> = Vec::new();
    let add_rate = |interval: IntervalRecord| {
        let seconds = interval.length.as_secs_f64();
        let counted = interval.stages.iter();
        let counted = counted.filter(|(stage, _)| !run.header.is_warmup(*stage));
        let ended: u64 = counted.map(|(_, record)| record.ended_calls()).sum();
        if seconds >= 0.5 && ended > 0 {
            rates.push(ended as f64 / seconds);
        }
    };
    run.for_each_interval(add_rate).ok()?;
    let n = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / n;
    let sd = (rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n).sqrt();
    let near = rates.iter().filter(|r| (**r - mean).abs() <= sd).count() as f64;
    let min = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let max = rates.iter().copied().fold(0.0, f64::max);
    (n > 0.0).then_some(([min, max, mean, sd], near * 100.0 / n))
}

fn write_distribution(out: &mut String, times: &TimeHistogram) {
    let Some(h) = times.histogram().filter(|h| !h.is_empty()) else {
        return;
    };
    let _ = writeln!(out, "latency distribution");
    for percent in [50, 75, 90, 95, 99] {
        // A dash is printed if the sample is too small for the quantile.
        let shown = quantile(h, f64::from(percent) / 100.0)
            .map_or_else(|| "–".to_owned(), |ns| time(ns as f64 / 1e3));
        let _ = writeln!(out, "{percent:>7}% {shown:>11}");
    }
}
