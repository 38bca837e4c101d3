//! Tables for notebooks, and Bencher's metrics.

use crate::runs;

use std::collections::HashMap;
use std::path::Path;

use plimsoll_model::runs::run::RunEnding;
use plimsoll_report::exports::bencher;
use plimsoll_report::exports::data::{self, TableFormat};
use runs::{Fixture, finished_in};

type Row = HashMap<String, String>;

fn rows(file: &Path) -> Vec<Row> {
    let mut reader = csv::Reader::from_path(file).expect("a table");
    reader
        .deserialize()
        .map(|row| row.expect("a row"))
        .collect()
}

/// Returns the sum of a column over rows that are not warm-up.
fn sum(rows: &[Row], column: &str) -> f64 {
    let measured = rows.iter().filter(|row| row["warmup"] == "false");
    measured
        .map(|row| row[column].parse::<f64>().expect("a number"))
        .sum()
}

#[test]
fn csv_tables_match_run_summary() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = finished_in(
        &dir.path().join("run"),
        Fixture::errors("errors"),
        RunEnding::complete(),
    );
    let written = data::export(&run, TableFormat::Csv, dir.path()).expect("written");
    let names: Vec<&str> = written.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["intervals.csv", "percentiles.csv", "requests.csv"]);
    let total = &run.summary.total;
    let intervals = rows(&dir.path().join("intervals.csv"));
    assert_eq!(intervals.len() as u64, written[0].1);
    assert_eq!(sum(&intervals, "ok"), total.ok as f64);
    assert_eq!(sum(&intervals, "errors"), total.errors as f64);
    assert!(intervals.iter().any(|row| row["warmup"] == "true"));
    let calls = rows(&dir.path().join("requests.csv"));
    let ok = calls
        .iter()
        .filter(|row| row["warmup"] == "false" && row["code"] == "OK");
    assert_eq!(ok.count() as u64, total.ok);
    // In a run with shared connections, calls have no phases.
    assert!(calls.iter().all(|row| row["handshake_us"].is_empty()));
    let percentiles = rows(&dir.path().join("percentiles.csv"));
    let p99 = percentiles
        .iter()
        .find(|row| row["kind"] == "response" && row["percentile"] == "99")
        .expect("a p99");
    let theirs: f64 = p99["value_us"].parse().expect("a number");
    let ours = total.response.and_then(|r| r.p99_us).expect("a p99");
    assert!((theirs - ours).abs() < 0.001 * ours, "{theirs} {ours}");
}

/// A dash in the report is no row in the table.
#[test]
fn unsupported_percentiles_are_omitted() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = finished_in(
        &dir.path().join("run"),
        Fixture::tiny("tiny"),
        RunEnding::complete(),
    );
    data::export(&run, TableFormat::Csv, dir.path()).expect("written");
    let percentiles = rows(&dir.path().join("percentiles.csv"));
    let has = |p: &str| {
        percentiles
            .iter()
            .any(|row| row["kind"] == "response" && row["percentile"] == p)
    };
    assert_eq!(
        has("99.99"),
        run.summary
            .total
            .response
            .and_then(|r| r.p99_99_us)
            .is_some()
    );
    assert!(!has("99.99"));
}

/// A benchmark for each run, in the format of `bencher run --adapter json`: measures with a value and bounds.
#[test]
fn bencher_lists_one_benchmark_per_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = |name: &str| {
        finished_in(
            &dir.path().join(name),
            Fixture::steady(name),
            RunEnding::complete(),
        )
    };
    let document = bencher::build_document(&[run("one"), run("two")]);
    let benchmarks = document.as_object().expect("an object");
    assert_eq!(benchmarks.len(), 2, "{document}");
    for measures in benchmarks.values() {
        for (name, metric) in measures.as_object().expect("an object") {
            assert!(metric["value"].is_number(), "{name}: {metric}");
        }
        let p99 = &measures["latency-p99"];
        let number = |key: &str| p99[key].as_f64().expect(key);
        assert!(
            number("lower_value") <= number("value") && number("value") <= number("upper_value")
        );
        assert!(measures["throughput"]["value"].as_f64() > Some(0.0));
    }
}

/// The same tables as Parquet, read by pandas.
#[cfg(feature = "parquet")]
#[test]
fn pandas_reads_parquet_like_csv() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = finished_in(
        &dir.path().join("run"),
        Fixture::errors("errors"),
        RunEnding::complete(),
    );
    data::export(&run, TableFormat::Csv, dir.path()).expect("written");
    data::export(&run, TableFormat::Parquet, dir.path()).expect("written");
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.peers/venv/bin/python");
    let script = "
import sys
import pandas as pd
for table in ['intervals', 'percentiles', 'requests']:
    one = pd.read_csv(f'{sys.argv[1]}/{table}.csv', keep_default_na=True)
    other = pd.read_parquet(f'{sys.argv[1]}/{table}.parquet')
    assert list(one.columns) == list(other.columns)
    for column in one.columns:
        a, b = one[column], other[column]
        if a.dtype.kind in 'fi' or b.dtype.kind in 'fi':
            a, b = a.astype(float), b.astype(float)
            assert ((a - b).abs().fillna(0) < 1e-6).all() and (a.isna() == b.isna()).all(), (table, column)
        else:
            assert (a.astype(str).where(a.notna(), '') == b.astype(str).where(b.notna(), '')).all(), (table, column)
";
    let output = std::process::Command::new(python)
        .args(["-c", script])
        .arg(dir.path())
        .output()
        .expect("python runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
