//! Reports for people, as golden files (`SNAPSHOTS=overwrite` updates them).
//!
//! This file is long because each kind of report has golden files of its own.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::records;
use crate::runs;

use std::fs;
use std::path::Path;
use std::time::Duration;

use plimsoll_model::crypto_speeds::CryptoSpeeds;
use plimsoll_model::runs::run::{Run, RunEnding, TimesSummary, Timestamp};
use plimsoll_report::html::{self, RunView};
use plimsoll_report::terminal::{TerminalOptions, render, render_comparison};
use plimsoll_report::{
    compare, exports::lines, json, ladder, markdown, search, sentences::closing, sweep,
};
use runs::{Fixture, finished, finished_in};
use snapbox::{assert_data_eq, file};

fn shown(run: &Run) -> String {
    render(run, &TerminalOptions::default())
}

#[test]
fn steady() {
    let run = finished(Fixture::steady("steady"), RunEnding::complete());
    let options = TerminalOptions {
        overhead_over: Some(Duration::from_millis(5)),
        ..TerminalOptions::default()
    };
    assert_data_eq!(render(&run, &options), file!["golden/steady.txt"]);
}

#[test]
fn narrow_and_in_colour() {
    let run = finished(Fixture::errors("errors"), RunEnding::complete());
    let options = TerminalOptions {
        width: 60,
        colour: true,
        ..TerminalOptions::default()
    };
    let text = render(&run, &options);
    let widest = text.lines().map(|l| l.chars().count()).max().unwrap();
    // Escape codes take 8 characters in the only lines that have them.
    assert!(widest <= 68, "{widest}");
    assert_data_eq!(text, file!["golden/narrow.txt"]);
}

#[test]
fn narrow_sweep_never_breaks_metric_names() {
    let record = records::sweep();
    let narrow = TerminalOptions {
        width: 60,
        ..TerminalOptions::default()
    };
    let text = sweep::render(&record, &narrow);
    assert_data_eq!(&text, file!["golden/sweep_narrow.txt"]);
    // Programs find one line for each figure, equal to the file for programs.
    for metric in sweep::metrics(&record) {
        let is_it = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.len() == 4 && words[..3] == [&metric.scenario, metric.name, metric.unit]
        };
        assert_eq!(text.lines().filter(|l| is_it(l)).count(), 1, "{metric:?}");
    }
}

#[test]
fn ladder_in_batches() {
    let text = ladder::render(&records::ladder_in_batches(), &TerminalOptions::default());
    assert_data_eq!(text, file!["golden/turns.txt"]);
}

#[test]
fn ladder_reports_missed_slice_objectives() {
    let text = ladder::render(&records::sweep(), &TerminalOptions::default());
    assert!(
        text.contains(
            "  - verdict on the objectives: fail\n  \
             - connection resumed, size 10MiB: resumed >= 100% missed in 1 of 1 slice \
             (0.0000% of 1000 handshakes)\n"
        ),
        "{text}"
    );
    assert!(!text.contains("generator-limited"), "{text}");
    let document = sweep::sweep_json(&records::sweep());
    assert_eq!(document["verdict"], "fail");
}

#[test]
fn cold() {
    let run = finished(Fixture::cold("cold"), RunEnding::complete());
    assert_data_eq!(shown(&run), file!["golden/cold.txt"]);
}

#[test]
fn fleet() {
    let run = finished(Fixture::fleet("fleet"), RunEnding::complete());
    assert_data_eq!(shown(&run), file!["golden/fleet.txt"]);
}

#[test]
fn errors() {
    let run = finished(Fixture::errors("errors"), RunEnding::complete());
    assert_data_eq!(shown(&run), file!["golden/errors.txt"]);
}

#[test]
fn invalid() {
    let run = finished(Fixture::invalid("invalid"), RunEnding::complete());
    assert_data_eq!(shown(&run), file!["golden/invalid.txt"]);
}

#[test]
fn late() {
    let run = finished(Fixture::late("late"), RunEnding::complete());
    assert_data_eq!(shown(&run), file!["golden/late.txt"]);
}

#[test]
fn partial() {
    let run = finished(
        Fixture::interrupted("partial"),
        RunEnding::partial("run.json: writing to it failed: No space left on device (os error 28)"),
    );
    assert_data_eq!(shown(&run), file!["golden/partial.txt"]);
}

#[test]
fn tiny() {
    let run = finished(Fixture::tiny("tiny"), RunEnding::complete());
    assert_data_eq!(shown(&run), file!["golden/tiny.txt"]);
}

/// Returns a run of each kind in `dir`, some with properties that the fixtures lack.
fn runs_of_all_kinds(dir: &Path) -> Vec<Run> {
    let kept = |fixture: Fixture, name: &str, ending| finished_in(&dir.join(name), fixture, ending);
    let mut runs: Vec<Run> = [
        Fixture::steady("steady"),
        Fixture::errors("errors"),
        Fixture::cold("cold"),
        Fixture::fleet("fleet"),
        Fixture::invalid("invalid"),
        Fixture::late("late"),
        Fixture::tiny("tiny"),
        Fixture::streams("streams"),
        Fixture::sessions("sessions"),
    ]
    .into_iter()
    .enumerate()
    .map(|(i, fixture)| kept(fixture, &i.to_string(), RunEnding::complete()))
    .collect();
    let ending = RunEnding::aborted("interrupted");
    runs.push(kept(Fixture::empty("empty"), "empty", ending));
    // Problems that invalidate a run don't hide why it ended.
    let ending = RunEnding::partial("disk full");
    let mut stopped = kept(Fixture::invalid("stopped"), "stopped", ending);
    let total = &mut stopped.summary.total;
    (total.late, total.expired_unsent, total.not_started) = (3, 4, 5);
    stopped.summary.stages[0].connections_lost = 7;
    stopped.summary.stages[0].connections_retried = 1;
    stopped.summary.count_check.matches = false;
    stopped.header.live_view_cpu_us = Some(3_210);
    stopped.header.notes = vec!["certificates were not checked".to_owned()];
    runs.push(stopped);
    runs
}

/// Converts a page or Markdown to one line of lower-case letters, without invisible parts.
fn plain(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        shown += &rest[..at];
        let hidden = ["style", "svg"].into_iter().find_map(|tag| {
            let inside = rest[at + 1..].starts_with(tag).then_some(&rest[at..])?;
            let end = format!("</{tag}>");
            Some(at + inside.find(&end)? + end.len())
        });
        let end = hidden.unwrap_or_else(|| at + rest[at..].find('>').map_or(1, |i| i + 1));
        shown.push(' ');
        rest = &rest[end..];
    }
    shown += rest;
    let shown = shown.replace("&lt;", "<").replace("&gt;", ">");
    let shown = shown.replace("&quot;", "\"").replace("&#64;", "@");
    let shown = shown.replace("&amp;", "&");
    let shown = shown.replace('\\', "").to_lowercase();
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the cells and parts of sentences of `report` that `shown` lacks.
fn unsaid(report: &str, shown: &str) -> Vec<String> {
    // What the other reports show as a badge, as a chart, or by another name; and advice on the next command.
    const OWN: [&str; 15] = [
        "verdict:",
        "generator-limited",
        "invalid",
        "partial",
        "aborted",
        "run: ",
        "next: ",
        "plimsoll ",
        "notes",
        "check",
        "t_connect",
        "t_first_rpc",
        "t_total",
        "all phases",
        "1st message",
    ];
    let mut unsaid = Vec::new();
    // Bars, which the page shows as a chart.
    let is_bar = |line: &str| line.contains(" ms to ");
    for line in report.lines().filter(|line| !is_bar(line)) {
        for cell in line.trim().trim_start_matches("- ").split("  ") {
            let cell = cell.trim().trim_end_matches('.').to_lowercase();
            let cell = cell.trim_start_matches("objective ");
            if OWN.iter().any(|own| cell.starts_with(own)) || shown.contains(cell) {
                continue;
            }
            let parts = cell.split([',', ';']).flat_map(|part| part.split(": "));
            let parts = parts.flat_map(|part| part.split(" at ")).map(str::trim);
            let parts = parts.filter(|part| !shown.contains(part));
            unsaid.extend(parts.map(str::to_owned));
        }
    }
    unsaid
}

#[test]
fn page_and_markdown_match_terminal() {
    let wide = TerminalOptions {
        width: 4_000,
        ..TerminalOptions::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let mut missing = Vec::new();
    for run in runs_of_all_kinds(dir.path()) {
        // The page has a table of them.
        let is_handshake = |line: &&str| line.starts_with("handshakes ");
        let report = render(&run, &wide);
        let handshakes: Vec<&str> = report.lines().filter(is_handshake).collect();
        let of_tls = run.header.tls.iter().flat_map(|tls| &tls.handshakes);
        assert_eq!(handshakes.len(), of_tls.count());
        let report: Vec<&str> = report.lines().filter(|line| !is_handshake(line)).collect();
        let report = report.join("\n");
        let page = html::runs_page(&[RunView::read(run.clone()).unwrap()]);
        let summary = markdown::render(std::slice::from_ref(&run), None);
        for sentence in handshakes {
            let sentence = sentence["handshakes ".len()..].trim_start().to_lowercase();
            assert!(plain(&summary).contains(&sentence), "{sentence}");
            assert!(page.contains("<td>2, 11.1 kB</td>"), "the chain");
        }
        for (kind, shown) in [("page", page), ("Markdown", summary)] {
            let unsaid = unsaid(&report, &plain(&shown));
            missing.extend(unsaid.iter().map(|what| format!("{kind}: {what}")));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn multi_run_markdown_matches_terminal() {
    let wide = TerminalOptions {
        width: 4_000,
        ..TerminalOptions::default()
    };
    let ladders = [records::ladder_in_batches(), records::ladder()];
    let mut reports: Vec<(String, String)> = ladders
        .iter()
        .map(|record| {
            (
                ladder::render(record, &wide),
                markdown::ladder_report(record),
            )
        })
        .collect();
    let record = records::search();
    let shown = markdown::search_report(&record);
    reports.push((search::render(&record, &wide), shown));
    let mut missing = Vec::new();
    for (report, shown) in reports {
        missing.extend(unsaid(&report, &plain(&shown)));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn markdown_special_characters_are_escaped() {
    let mut record = records::ladder_in_batches();
    record.rungs[1].name = "a|b <b>_x_</b> @team &lt; ~~y~~".to_owned();
    let shown = markdown::ladder_report(&record);
    let named = r"a\|b &lt;b>\_x\_&lt;/b> &#64;team &amp;lt; \~\~y\~\~";
    assert!(shown.contains(&format!("{named} adds to ")), "{shown}");
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    for (head, sides) in shown.lines().zip(shown.lines().skip(1)) {
        if sides.starts_with("|--") {
            assert_eq!(columns(head), columns(sides), "{head}");
        }
    }
}

#[test]
fn long_report_repeats_headline_last() {
    let of = |run: &Run| closing::run_lines(run, &TerminalOptions::default()).join("\n");
    let steady = finished(Fixture::steady("steady"), RunEnding::complete());
    assert_eq!(of(&steady), shown(&steady).lines().next().unwrap());
    let invalid = of(&finished(Fixture::invalid("i"), RunEnding::complete()));
    assert!(invalid.starts_with("INVALID"), "{invalid}");
    let search = closing::search_lines(&records::search(), &TerminalOptions::default());
    assert_eq!(search, [search::headline(&records::search())]);
    let ladder = closing::ladder_lines(&records::ladder_in_batches(), &TerminalOptions::default());
    assert!(
        ladder[0].starts_with("tls server, compared with tls off, adds "),
        "{ladder:?}"
    );
}

#[test]
fn report_of_empty_run() {
    let run = finished(Fixture::empty("empty"), RunEnding::aborted("interrupted"));
    assert_data_eq!(shown(&run), file!["golden/empty.txt"]);
}

#[test]
fn streams() {
    let run = finished(Fixture::streams("streams"), RunEnding::complete());
    assert_data_eq!(shown(&run), file!["golden/streams.txt"]);
}

#[test]
fn sessions() {
    let run = finished(Fixture::sessions("sessions"), RunEnding::complete());
    assert_data_eq!(shown(&run), file!["golden/sessions.txt"]);
}

#[test]
fn compare_one_with_one() {
    let a = finished(Fixture::steady("a"), RunEnding::complete());
    let mut b = finished(Fixture::steady("b").slower(1.15), RunEnding::complete());
    b.plan = b.plan.replace("1000/s", "2000/s");
    let compared = compare::compare(&[a], &[b]).unwrap();
    assert_eq!(compared.rows[0].is_better(), None);
    assert_data_eq!(
        render_comparison(&compared, &TerminalOptions::default()),
        file!["golden/compare_single.txt"]
    );
}

#[test]
fn compare_replicates() {
    let group = |name: &str, by: f64| -> Vec<Run> {
        (0..6)
            .map(|i| {
                let luck = 1.0 + 0.004 * f64::from(i * 7 % 6);
                finished(
                    Fixture::steady(&format!("{name}{i}")).slower(by * luck),
                    RunEnding::complete(),
                )
            })
            .collect()
    };
    let (a, b) = (group("a", 1.0), group("b", 0.85));
    let compared = compare::compare(&a, &b).unwrap();
    assert!(compared.has_enough_runs());
    assert_eq!(compared.rows[0].is_better(), Some(true));
    assert_data_eq!(
        render_comparison(&compared, &TerminalOptions::default()),
        file!["golden/compare_replicates.txt"]
    );
    let same = compare::compare(&a, &a).unwrap();
    assert!(same.rows.iter().all(|r| r.is_better().is_none()));
}

#[test]
fn json_document_extends_run_json() {
    let run = finished(Fixture::steady("steady"), RunEnding::complete());
    let shown = json::runs_document([&run, &run], Some(Duration::from_millis(5)));
    assert_eq!(shown["version"], 1);
    let document = &shown["runs"][0];
    assert_eq!(&shown["runs"][1], document);
    assert_eq!(document["schema_version"], 2);
    assert_eq!(document["state"], "complete");
    assert_eq!(document["directory"], "runs/steady");
    assert_eq!(document["overhead"]["over_us"], 5_000.0);
    let p50 = document["total"]["response"]["p50_us"].as_f64().unwrap();
    let over = document["overhead"]["p50_us"].as_f64().unwrap();
    assert!((p50 - 5_000.0 - over).abs() < 1e-6);
    let plain = json::runs_document([&run], None);
    assert!(plain["runs"][0].get("overhead").is_none());
}

#[test]
fn ladder_and_sweep_json_match_runs() {
    let mut sweep = records::sweep();
    sweep.limits = Some(CryptoSpeeds::default());
    for (record, kind, part) in [
        (records::ladder_in_batches(), "ladder", "gated"),
        (sweep, "sweep", "metrics"),
    ] {
        let shown = json::ladder_document(&record, Path::new("runs/climb")).unwrap();
        assert_eq!(shown["version"], 1);
        assert_eq!(shown["runs"], serde_json::json!([]));
        assert_eq!(shown[kind]["directory"], "runs/climb");
        assert_eq!(shown[kind]["name"], record.name);
        assert!(shown[kind][part].is_array(), "{shown}");
    }
}

#[test]
fn reimported_export_keeps_response_times() {
    let parent = tempfile::tempdir().unwrap();
    for (fixture, first) in [
        (Fixture::errors("exported"), "#TEST=01_steady"),
        (Fixture::cold("exported"), "#TEST=02_coldconn"),
    ] {
        let dir = parent.path().join(&first[6..]);
        let run = fixture.write(&dir, RunEnding::complete());
        let mut bytes = Vec::new();
        let written = lines::export(&run, &mut bytes).unwrap();
        let total = &run.summary.total;
        assert_eq!(written, total.ok + total.errors);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.lines().next(), Some(first));
        let path = dir.join("export.jsonl");
        fs::write(&path, &text).unwrap();

        let target = dir.join("imported");
        let imported = lines::import(&path, &target, "0.1.0", Timestamp::UNIX_EPOCH).unwrap();
        let read = &imported.summary.total;
        // The file does not contain how late calls were.
        let without = |times: Option<TimesSummary>| {
            let times = times?;
            Some(TimesSummary {
                instrument: None,
                ..times
            })
        };
        assert_eq!(imported.state.name(), "complete");
        assert_eq!((read.ok, read.errors), (total.ok, total.errors));
        assert_eq!(read.errors_by_code, total.errors_by_code);
        if run.header.cold {
            assert_eq!(read.service, without(total.service));
            assert_eq!(
                read.phases.unwrap().cold_total,
                without(total.phases.unwrap().cold_total)
            );
        } else {
            assert_eq!(read.response, without(total.response));
        }
        assert_eq!(
            (read.achieved_per_s, read.elapsed_us, read.client),
            (None, None, None)
        );
        assert_eq!(Run::load(&target).unwrap().summary, imported.summary);
        let again = lines::export(&imported, &mut Vec::new()).unwrap_err();
        assert!(again.to_string().contains("has no log of its calls"));
    }
}

#[test]
fn imported_run_is_marked_as_such() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("steady.txt");
    let calls =
        "{\"ok\":true,\"latency_ms\":5.83}\n{\"ok\":false,\"code\":\"DEADLINE_EXCEEDED\"}\n";
    fs::write(&path, format!("#TEST=01_steady\n{}", calls.repeat(40))).unwrap();
    let dir = parent.path().join("run");
    let mut run = lines::import(&path, &dir, "0.1.0", Timestamp::UNIX_EPOCH).unwrap();
    run.dir = Path::new("runs/imported").to_owned();
    assert_data_eq!(shown(&run), file!["golden/imported.txt"]);
}

#[test]
fn invalid_lines_are_named() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("bad.txt");
    let problem = |text: &str| {
        fs::write(&path, text).unwrap();
        let dir = parent.path().join("run");
        let error = lines::import(&path, &dir, "0.1.0", Timestamp::UNIX_EPOCH).unwrap_err();
        assert!(!dir.exists(), "nothing is made of a bad file");
        error
            .to_string()
            .rsplit("bad.txt:")
            .next()
            .unwrap()
            .to_owned()
    };
    assert!(problem("").starts_with("1: the file is empty; expected"));
    assert!(problem("#TEST=03\n").starts_with("1: the first line is \"#TEST=03\"; expected"));
    let steady = |line: &str| problem(&format!("#TEST=01_steady\n{line}\n"));
    assert!(steady("{\"ok\":true}").starts_with("2: latency_ms is missing"));
    assert!(steady("{\"ok\":true,\"latency_ms\":-1}").contains("latency_ms is -1"));
    assert!(steady("{\"ok\":false}").contains("code is missing"));
    assert!(steady("{\"ok\":false,\"code\":\"OK\"}").contains("not the code of a failure"));
    assert!(steady("{\"ok\":true,\"lat\":1}").contains("unknown field `lat`"));
    assert!(steady("{\"ok\":").starts_with("2: EOF"));
}
