//! Exports for other programs: HdrHistogram logs, JUnit XML, Markdown, Prometheus text.

use crate::made;
use crate::records;

use std::path::Path;
use std::process::Command;

use plimsoll_model::Outcome;
use plimsoll_model::objective::RunVerdict;
use plimsoll_report::html::{self, RunView};
use plimsoll_report::{exports::hdr_log, exports::prometheus, junit, markdown, terminal};

#[test]
fn python_hdrhistogram_reads_same_percentiles() {
    let (dir, run) = made::run("steady");
    let mut log = Vec::new();
    assert_eq!(hdr_log::export(&run, &mut log).expect("written"), 6);
    let text = String::from_utf8(log).expect("text");
    assert!(
        text.contains("#[Histogram log format version 1.3]"),
        "{text}"
    );
    assert!(
        text.contains("Tag=response,") && text.contains("HISTFAA"),
        "{text}"
    );
    let file = dir.path().join("run.hlog");
    std::fs::write(&file, text).expect("written");
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.peers/venv/bin/python");
    assert!(
        python.exists(),
        "{} is missing: tests/setup.sh tests makes it",
        python.display()
    );
    let script = "\
import sys
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
total = HdrHistogram(1, 3600 * 10**9, 3)
reader = HistogramLogReader(sys.argv[1], total)
intervals = 0
while True:
    one = reader.get_next_interval_histogram()
    if one is None:
        break
    if one.get_tag() == 'response':
        total.add(one)
        intervals += 1
print(intervals, total.get_total_count(), *[total.get_value_at_percentile(p) for p in (50, 90, 99)])
";
    let output = Command::new(python)
        .args(["-c", script])
        .arg(&file)
        .output()
        .expect("python runs");
    let said = String::from_utf8(output.stdout).expect("text");
    let numbers: Vec<u64> = said
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    let record = run.measured_record();
    let histogram = record.response.histogram().expect("calls");
    let problem = || format!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(numbers.len(), 5, "{}", problem());
    assert_eq!(numbers[..2], [3, histogram.len()], "{}", problem());
    for (theirs, quantile) in numbers[2..].iter().zip([0.5, 0.9, 0.99]) {
        // The reference rounds the rank, this code takes the next higher one: at most a bucket apart.
        let ours = histogram.value_at_quantile(quantile);
        assert!(
            ours.abs_diff(*theirs) <= ours / 500,
            "{quantile}: {ours} {}",
            problem()
        );
    }
}

#[test]
fn junit_covers_objectives_and_validity() {
    let (_dir, run) = made::run("a \"b\" <c>");
    let xml = junit::render_runs(&[run]);
    assert_eq!(xml.matches("<testcase ").count(), 2, "{xml}");
    assert!(
        xml.contains("name=\"a &quot;b&quot; &lt;c&gt;\" tests=\"2\" failures=\"1\" errors=\"0\"")
    );
    assert!(xml.contains("name=\"the run is valid\""));
    assert!(
        xml.contains("name=\"p99 &lt; 1ms\"")
            && xml.contains("<failure type=\"failure\" message=\"measured ")
    );
    assert_eq!(
        xml.matches("<testsuite ").count(),
        xml.matches("</testsuite>").count()
    );
}

#[test]
fn junit_case_names_are_unique() {
    let (runs, _dirs): (Vec<_>, Vec<_>) = ["POST /x", "POST /x", "GET /y"]
        .map(|name| {
            let (dir, run) = made::run(name);
            (run, dir)
        })
        .into_iter()
        .unzip();
    let xml = junit::render_runs(&runs);
    let mut cases: Vec<&str> = xml
        .lines()
        .filter_map(|line| line.trim().strip_prefix("<testcase "))
        .map(|case| &case[..case.find(" time=").expect("a time")])
        .collect();
    assert!(cases.contains(&"classname=\"POST /x (2)\" name=\"the run is valid\""));
    let all = cases.len();
    cases.sort_unstable();
    cases.dedup();
    assert_eq!(cases.len(), all, "{xml}");
}

/// Returns the errors of `xmllint` for a document.
fn validate(xml: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("junit.xml");
    std::fs::write(&file, xml).expect("written");
    let output = Command::new("xmllint")
        .args(["--nonet", "--noout", "--schema"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/junit.xsd"))
        .arg(&file)
        .output()
        .expect("xmllint is missing: tests/setup.sh tests installs it");
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn junit_conforms_to_its_schema() {
    let (_one, met) = made::run("met \u{1f600} & <co>");
    let (_two, mut without) = made::run("without objectives");
    without.plan = String::new();
    let (_three, mut aborted) = made::run("aborted");
    aborted.state = plimsoll_model::runs::run::RunState::Aborted;
    aborted.reason = Some("interrupted \"by\" a\u{7} signal".to_owned());
    let xml = junit::render_runs(&[met, without, aborted]);
    assert_eq!(validate(&xml), Ok(()), "{xml}");
    assert_eq!(xml.matches("name=\"the run is valid\"").count(), 3);
    assert!(
        xml.contains("<error type=\"error\" message=\"interrupted &quot;by&quot; a signal\"/>")
    );
    // The schema does distinguish valid from invalid documents.
    for (right, wrong) in [
        ("tests=\"2\"", "tests=\"two\""),
        (" classname=", " class="),
        ("<testcase", "<case"),
    ] {
        let broken = xml.replace(right, wrong);
        assert!(validate(&broken).is_err(), "{right} as {wrong}");
    }
}

/// JUnit contains what determines the ladder's exit code.
#[test]
fn ladder_junit_includes_gates_and_resolution() {
    let gates = |gates: &[&str]| {
        let mut record = records::ladder_in_batches();
        let read = |gate: &&str| gate.parse().expect("a gate");
        record.gates = gates.iter().map(read).collect();
        record
    };
    // The second rung adds 7.2 to 14.4 µs at the p50, the third -0.2 to 3.4 µs.
    let beyond = gates(&["p50 +5us"]);
    assert_eq!(beyond.conclusion(), Some(RunVerdict::Fail));
    let xml = junit::render_ladder(&beyond);
    assert_eq!(validate(&xml), Ok(()), "{xml}");
    assert!(
        xml.contains("name=\"tls server: p50 +5us\"") && xml.contains("p50 +5us BEYOND"),
        "{xml}"
    );
    assert_eq!(xml.matches("<failure ").count(), 1, "{xml}");
    // An undecided gate is an error, like a resolution that was not reached.
    let undecided = gates(&["p99 +100us"]);
    assert_eq!(undecided.conclusion(), Some(RunVerdict::Invalid));
    let xml = junit::render_ladder(&undecided);
    assert_eq!(xml.matches("<failure ").count(), 0, "{xml}");
    assert!(xml.contains("p99 +100us not decided"), "{xml}");
    assert!(xml.contains("name=\"tls server: p99 +100us\""), "{xml}");
    // Whatever the interval is, a rung that fails more calls is not compared, nor one that was started too rarely.
    let failing = {
        let mut record = gates(&["p50 +70us"]);
        let calls = [(1_000, 0), (989, 11), (991, 9), (1_000, 0)];
        for (rung, (ok, errors)) in record.rungs.iter_mut().zip(calls) {
            rung.slices.truncate(1);
            (rung.slices[0].ok, rung.slices[0].errors) = (Some(ok), errors);
        }
        record
    };
    let xml = junit::render_ladder(&failing);
    assert_eq!(failing.conclusion(), Some(RunVerdict::Invalid));
    assert_eq!(xml.matches("fails more calls").count(), 1, "{xml}");
    let mut unreplicated = gates(&["p50 +70us"]);
    assert_eq!(unreplicated.conclusion(), Some(RunVerdict::Pass));
    if let Some(batches) = &mut unreplicated.batches {
        batches.required_replicates = 5;
    }
    assert_eq!(unreplicated.conclusion(), Some(RunVerdict::Invalid));
    let xml = junit::render_ladder(&unreplicated);
    assert!(
        xml.contains("servers were started 1 time, and it takes 5"),
        "{xml}"
    );
    // Nor is a server whose CPU time can't be seen.
    let mut unseen = gates(&["server_cpu +5%"]);
    for rung in &mut unseen.rungs {
        rung.slices[0].server_cpu_us_per_call = None;
        rung.slices.truncate(1);
    }
    let xml = junit::render_ladder(&unseen);
    assert!(
        xml.contains("the CPU time of a server is not known"),
        "{xml}"
    );
    // A share of a search's error probability is not rounded to certainty.
    if let Some(batches) = &mut unreplicated.batches {
        batches.alpha = 0.0005;
    }
    let text = markdown::ladder_report(&unreplicated);
    let expected =
        "99.9 % simultaneous confidence intervals: of 1,000 ladders of equal rungs, at least 999";
    assert!(text.contains(expected), "{text}");
    let mut unresolved = gates(&[]);
    assert!(!junit::render_ladder(&unresolved).contains("differences"));
    if let Some(turns) = &mut unresolved.batches {
        turns.wanted_us = Some(0.01);
    }
    assert_eq!(unresolved.conclusion(), Some(RunVerdict::Invalid));
    let xml = junit::render_ladder(&unresolved);
    assert_eq!(validate(&xml), Ok(()), "{xml}");
    assert!(
        xml.contains("<error type=\"error\" message=\"RESOLUTION NOT REACHED"),
        "{xml}"
    );
}

#[test]
fn markdown_and_prometheus_show_measurements() {
    let (_dir, run) = made::run("a|b");
    let runs = [run];
    let text = markdown::render(&runs, None);
    assert!(text.contains("| a\\|b | 99.8 % |"), "{text}");
    assert!(text.contains("❌ missed: p99 &lt; 1ms"), "{text}");
    let text = prometheus::render(&runs);
    assert!(
        text.contains("plimsoll_calls{run=\"a|b\",outcome=\"OK\"} 1497"),
        "{text}"
    );
    assert!(text.contains("plimsoll_calls{run=\"a|b\",outcome=\"RESET\"} 3"));
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit(' ').next().expect("a value");
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
    }
}

/// A call cut off by an interrupt says nothing about the target; a call without an answer at the end of the drain time
/// did not succeed. Neither is an error.
#[test]
fn abandoned_calls_are_never_errors() {
    for (outcome, success) in [
        (Outcome::Interrupted, (1.0, "100")),
        (Outcome::CutOff, (0.998, "99.8")),
    ] {
        let (_dir, run) = made::run_with("ended", outcome, 2);
        let total = &run.summary.total;
        assert_eq!((total.ok, total.errors, total.cut_off), (1497, 0, 3));
        assert_eq!(total.success_share, Some(success.0));
        assert!(run.summary.count_check.matches);
        let shown = terminal::render(&run, &terminal::TerminalOptions::default());
        let shown: Vec<&str> = shown.split_whitespace().collect();
        let shown = shown.join(" ");
        let calls = format!(
            "1,497 ok, 0 errors, 3 cut off, 6 not started, {} % successful",
            success.1
        );
        assert!(shown.contains(&calls), "{shown}");
        let html = html::runs_page(&[RunView::read(run.clone()).expect("a view")]);
        assert!(!html.contains(" errors at "), "the timeline");
        assert!(!html.contains("<h2>Errors"), "the table of errors");
        assert!(html.contains("Abandoned") && html.contains(outcome.code()));
        let runs = [run];
        let text = markdown::render(&runs, None);
        let row = format!("| ended | {} % |", success.1);
        assert!(text.contains(&row), "{text}");
        let text = prometheus::render(&runs);
        let counted = format!("outcome=\"{}\"}} 3", outcome.code());
        assert!(text.contains(&counted), "{text}");
        let text = junit::render_runs(&runs);
        assert!(!text.contains(outcome.code()), "{text}");
    }
}
