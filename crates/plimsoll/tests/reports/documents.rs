//! Documents that measuring commands write for other programs: JUnit, Markdown, HTML, JSON and a
//! job summary. They must equal what `report` makes of the run directory. A slow machine changes
//! contents and exit codes, but not this equality.

use crate::support;

use std::fs;

use serde_json::Value;
use support::{MAX_WAIT, Place, SCORE, only_run, output, stderr_of, text};

const DOCUMENTS: [&str; 6] = [
    "--junit",
    "junit.xml",
    "--markdown",
    "summary.md",
    "--html",
    "page.html",
];

/// Runs a command that writes its documents, and compares them with those of its run directory.
#[track_caller]
fn assert_writes_documents(place: &Place, directory: &str, arguments: &[&str]) {
    let arguments = [arguments, &["--out", directory, "-q"], &DOCUMENTS].concat();
    let output = place.run(&arguments);
    assert!(
        matches!(output.status.code(), Some(0 | 90 | 99)),
        "{arguments:?}: {}",
        stderr_of(&output)
    );
    assert!(
        !output.stdout.is_empty(),
        "{arguments:?}: the tables are shown"
    );
    let stderr = stderr_of(&output);
    assert!(!stderr.contains("wrote "), "{arguments:?}: {stderr}");
    assert_documents_match(place, &[directory]);
}

/// Asserts that the documents are those of these directories.
#[track_caller]
fn assert_documents_match(place: &Place, directories: &[&str]) {
    for pair in DOCUMENTS.chunks(2) {
        let again = [&["report"], directories, &[pair[0], "-"]].concat();
        assert_eq!(place.expect(0, &again), place.read(pair[1]), "{again:?}");
        fs::remove_file(place.path(pair[1])).expect("a file");
    }
}

#[test]
fn every_measuring_command_writes_documents() {
    let place = Place::new();
    let score = place.serve(&["score", "--delay", "0s"]);
    let files = place.serve(&["files"]);
    let url = score.plaintext();
    let load = ["--rate", "100/s", "--duration", "500ms"];
    let quick = [&["grpc", &url], &SCORE[..], &load].concat();
    assert_writes_documents(&place, "quick", &quick);

    fs::copy(place.path("quick/plan.toml"), place.path("plan.toml")).expect("a plan");
    assert_writes_documents(&place, "plan", &["run", "plan.toml"]);
    let objective = ["--objective", "errors < 50%"];
    let trials = ["--trial", "200ms", "--trials", "1", "--budget", "2s"];
    let search = [&["find", "plan.toml"], &objective[..], &trials].concat();
    assert_writes_documents(&place, "search", &search);
    let (old, new) = (format!("old={url}"), format!("new={url}"));
    let beside = ["--duration", "1s", "--parts", "none", "--rate", "100/s"];
    let ladder = [&["ladder", &old, &new], &SCORE[..], &beside].concat();
    assert_writes_documents(&place, "ladder", &ladder);
    let gate = ["--fail-if", "p50 +900%", "--budget", "2s"];
    let live = [
        &["compare", "--live", &old, &new],
        &SCORE[..],
        &beside,
        &gate,
    ]
    .concat();
    assert_writes_documents(&place, "live", &live);
    let junit = place.expect(0, &["report", "live", "--junit", "-"]);
    assert!(junit.contains("new: p50 +900%"), "{junit}");

    let file = format!("http://127.0.0.1:{}/bytes/1KiB", files.port);
    let fetch = ["fetch", &file, "--duration", "300ms", "--clients", "1"];
    assert_writes_documents(&place, "fetch", &fetch);

    // Several plans share one document that covers all runs.
    let several = ["run", "plan.toml", "plan.toml", "--name", "twice", "-q"];
    place.expect(0, &[&several[..], &DOCUMENTS].concat());
    let runs = fs::read_dir(place.path("runs")).expect("runs");
    let mut runs: Vec<String> = runs
        .map(|run| run.expect("a run").path())
        .filter(|run| run.is_dir())
        .map(|run| text(run.file_name().expect("a name").as_encoded_bytes()))
        .collect();
    runs.sort_by_key(|run| (run.len(), run.clone()));
    assert_eq!(runs.len(), 2, "{runs:?}");
    // The name of the last one is as good as its directory.
    assert_eq!(place.read("runs/LATEST"), format!("{}\n", runs[1]));
    let runs = [format!("runs/{}", runs[0]), format!("runs/{}", runs[1])];
    assert_documents_match(&place, &[&runs[0], &runs[1]]);
    let last = place.expect(0, &["report", &runs[1], "--markdown", "-"]);
    for name in ["LATEST", "runs/LATEST"] {
        assert_eq!(place.expect(0, &["report", name, "--markdown", "-"]), last);
    }
    place.expect(0, &["compare", &runs[0], "LATEST"]);
}

/// Every document with times shows the overhead over the server's own time; where there are no
/// times the flag is rejected.
#[test]
fn overhead_is_in_every_document_with_times() {
    let place = Place::new();
    let calls = "{\"ok\":true,\"latency_ms\":7}\n".repeat(40);
    fs::write(place.path("calls.txt"), format!("#TEST=01_steady\n{calls}")).expect("a file");
    place.expect(0, &["import", "calls.txt", "--out", "run"]);
    let report = |flags: &[&str]| {
        let asked = ["report", "run", "--overhead-over", "5ms"];
        place.run(&[&asked, flags].concat())
    };
    for flags in [&[][..], &["--markdown", "-"], &["--html", "-"]] {
        let shown = text(&report(flags).stdout);
        let words = "response time over the server's own 5.00 ms: mean +2.00 ms";
        assert!(shown.contains(words), "{flags:?}: {shown}");
    }
    let document = text(&report(&["--json"]).stdout);
    assert!(document.contains("\"over_us\": 5000.0"), "{document}");

    let others = ["--junit", "--prometheus"].map(|flag| vec![flag, "-"]);
    for flags in others.into_iter().chain([vec!["--export", "hdr", "-"]]) {
        let refused = report(&flags);
        assert_eq!(refused.status.code(), Some(2), "{flags:?}");
        assert!(refused.stdout.is_empty(), "{flags:?}");
        let why = "--overhead-over: no requested output shows it";
        assert!(stderr_of(&refused).contains(why), "{flags:?}");
        // A variable applies to whichever command shows it.
        let mut command = place.command(&[&["report", "run"], &flags[..]].concat());
        command.env("PLIMSOLL_OVERHEAD_OVER", "5ms");
        let written = command.output().expect("plimsoll starts");
        assert_eq!(written.status.code(), Some(0), "{flags:?}");
    }
}

/// Tables of runs have histograms on request. Other outputs have none, so the flag is rejected beside them.
#[test]
fn histograms_are_for_tables_only() {
    let place = Place::new();
    let calls = "{\"ok\":true,\"latency_ms\":7}\n".repeat(40);
    fs::write(place.path("calls.txt"), format!("#TEST=01_steady\n{calls}")).expect("a file");
    place.expect(0, &["import", "calls.txt", "--out", "run"]);
    let shown = text(&place.run(&["report", "run", "--histogram"]).stdout);
    let is_row = |line: &&str| line.starts_with("ok ") && line.ends_with('█');
    let row = shown.lines().find(is_row).expect(&shown);
    assert!(row.contains("40  100 %"), "{shown}");
    let plain = text(&place.run(&["report", "run"]).stdout);
    assert!(!plain.contains('█'), "{plain}");
    for flags in [
        &["--json"][..],
        &["--markdown", "-"],
        &["--export", "hdr", "-"],
    ] {
        let refused = place.run(&[&["report", "run", "--histogram"], flags].concat());
        assert_eq!(refused.status.code(), Some(2), "{flags:?}");
        let why = "--histogram: only the tables have histograms";
        assert!(stderr_of(&refused).contains(why), "{flags:?}");
    }
}

/// For runs, a search and a ladder, a command prints what `report` prints for the same directories.
#[test]
fn all_commands_print_same_json_shape() {
    let place = Place::new();
    let score = place.serve(&["score", "--delay", "0s"]);
    let url = score.plaintext();
    let load = ["--rate", "100/s", "--duration", "500ms"];
    let quick = [&["grpc", &url], &SCORE[..], &load, &["--save-plan"]].concat();
    place.expect(0, &[&quick[..], &["plan.toml", "--dry-run"]].concat());
    let (old, new) = (format!("old={url}"), format!("new={url}"));
    let beside = ["--duration", "1s", "--parts", "none", "--rate", "100/s"];
    let ladder = [&["ladder", &old, &new], &SCORE[..], &beside].concat();
    let trials = ["--trial", "200ms", "--trials", "1", "--budget", "2s"];
    let search = [
        &["find", "plan.toml", "--objective", "errors < 50%"],
        &trials[..],
    ]
    .concat();
    for (kind, arguments) in [
        ("run", &["run", "plan.toml"][..]),
        ("search", &search),
        ("ladder", &ladder),
    ] {
        let output = place.run(&[arguments, &["--out", kind, "-q", "--json"]].concat());
        assert!(
            matches!(output.status.code(), Some(0 | 90 | 99)),
            "{arguments:?}: {}",
            stderr_of(&output)
        );
        let printed = text(&output.stdout);
        assert_eq!(place.expect(0, &["report", kind, "--json"]), printed);
        let document: Value = serde_json::from_str(&printed).expect("one document");
        assert_eq!(document["version"], 1, "{document}");
        let shown = match kind {
            "run" => &document["runs"][0],
            kind => &document[kind],
        };
        assert_eq!(shown["directory"], kind, "{document}");
    }
    let two = ["run", "plan.toml", "plan.toml", "--json", "-q"];
    let output = place.run(&two);
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(
        document["runs"].as_array().map(Vec::len),
        Some(2),
        "{document}"
    );
}

/// Simulates a GitHub Actions job in which earlier steps have written to the summary.
#[test]
fn ci_job_summary_contains_measurements() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    let url = server.plaintext();
    fs::write(place.path("summary.md"), "a step before\n").expect("written");
    let arguments = [
        &["grpc", &url],
        &SCORE[..],
        &[
            "--rate",
            "100/s",
            "--duration",
            "300ms",
            "--out",
            "run",
            "--json",
        ],
    ]
    .concat();
    let mut command = place.command(&arguments);
    command.env("GITHUB_STEP_SUMMARY", place.path("summary.md"));
    let output = output(&mut command, MAX_WAIT);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
    let json = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!(only_run(&json)["total"]["due"], 30);
    let markdown = place.expect(0, &["report", "run", "--markdown", "-"]);
    assert_eq!(
        place.read("summary.md"),
        format!("a step before\n\n{markdown}\n")
    );
}

/// An unreachable target fails the job, and the document says why.
#[test]
fn failed_start_still_writes_documents() {
    let place = Place::new();
    let arguments = [
        &["grpc", "grpc://127.0.0.1:1"],
        &SCORE[..],
        &["--rate", "100/s", "--duration", "300ms", "--out", "run"],
        &DOCUMENTS,
    ]
    .concat();
    let output = place.run(&arguments);
    assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
    let junit = place.read("junit.xml");
    assert!(
        junit.contains("errors=\"1\"") && junit.contains("CONNECT_REFUSED"),
        "{junit}"
    );
    assert_documents_match(&place, &["run"]);
}

#[test]
fn stdout_conflicts_and_unwritable_documents_fail_early() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    let url = server.plaintext();
    let load = ["--rate", "100/s", "--duration", "300ms", "--out", "run"];
    let quick = [&["grpc", &url], &SCORE[..], &load].concat();
    for (wrong, why) in [
        (
            &["--json", "--junit", "-"][..],
            "--json and --junit - both write to stdout",
        ),
        (
            &["--html", "-", "--markdown", "-"],
            "--markdown - and --html - both write to stdout",
        ),
        (
            &["--junit", "none/junit.xml"],
            "--junit: there is no folder for none/junit.xml",
        ),
        (&["--html", "."], "--html: . is a folder"),
    ] {
        let output = place.run(&[&quick[..], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr_of(&output));
        assert!(stderr_of(&output).contains(why), "{}", stderr_of(&output));
        assert!(!place.path("run").exists(), "{wrong:?}");
    }
    let markdown = place.expect(0, &[&quick[..], &["--markdown", "-"]].concat());
    assert_eq!(
        markdown,
        place.expect(0, &["report", "run", "--markdown", "-"])
    );
}

#[test]
fn plan_saved_to_stdout_is_only_output() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let mut arguments = vec!["grpc", &url, "--save-plan", "-"];
    arguments.extend(["--clients", "1", "--calls", "5"]);
    arguments.extend(SCORE);
    let printed = |more: &[&str]| {
        let output = place.run(&[&arguments[..], more].concat());
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, plan, errors) = printed(&["--out", "run"]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(place.run_json("run")["total"]["ok"], 5);
    assert_eq!(printed(&["--dry-run"]).1, plan);
    std::fs::write(place.path("plan.toml"), plan).expect("it is written");
    place.expect(0, &["run", "plan.toml", "--out", "again", "-q"]);
    let (code, _, errors) = printed(&["--json"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("both write to stdout"), "{errors}");
}
