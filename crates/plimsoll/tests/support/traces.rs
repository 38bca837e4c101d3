//! Checks of trace ids: what servers received, and what a report lists.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use super::Place;
use super::peers::python;

/// Returns the trace ids of these `traceparent` values, parsed by OpenTelemetry; traces and spans
/// must be distinct.
#[track_caller]
pub(crate) fn traces<'a>(
    place: &Place,
    headers: impl Iterator<Item = &'a str>,
) -> BTreeSet<String> {
    let headers: Vec<&str> = headers.collect();
    let mut reader = python(place, "traceparent.py")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python starts");
    let mut input = reader.stdin.take().expect("its input");
    writeln!(input, "{}", headers.join("\n")).expect("it reads");
    drop(input);
    let read = reader.wait_with_output().expect("it ends");
    assert!(read.status.success(), "{headers:?}");
    let read = String::from_utf8(read.stdout).expect("text");
    let read: Vec<(&str, &str)> = read.lines().filter_map(|l| l.split_once(' ')).collect();
    let spans: BTreeSet<&str> = read.iter().map(|(_, span)| *span).collect();
    let traces: BTreeSet<String> = read.iter().map(|(trace, _)| (*trace).to_owned()).collect();
    assert_eq!((traces.len(), spans.len()), (headers.len(), headers.len()));
    traces
}

/// Returns the trace ids of a report's slowest calls, which are listed by response time.
#[track_caller]
pub(crate) fn slowest(run: &Value) -> BTreeSet<String> {
    let calls = run["slowest"].as_array().expect("a list of slowest calls");
    let times = calls
        .iter()
        .map(|call| call["response_us"].as_f64().expect("a time"));
    let times: Vec<f64> = times.collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
    assert_eq!(times.first().copied(), longest(run), "{run}");
    let ids = calls
        .iter()
        .map(|call| call["trace_id"].as_str().expect("an id"));
    ids.map(str::to_owned).collect()
}

/// Returns the longest response time of the run's calls, with the histograms' precision of three
/// digits.
fn longest(run: &Value) -> Option<f64> {
    let slowest = run["slowest"][0]["response_us"].as_f64()?;
    let all = ["response", "failed"].map(|times| run["total"][times]["max_us"].as_f64());
    let longest = all.into_iter().flatten().fold(0.0, f64::max);
    Some(if (longest - slowest).abs() <= slowest / 500.0 {
        slowest
    } else {
        longest
    })
}
