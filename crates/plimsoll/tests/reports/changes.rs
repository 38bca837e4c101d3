//! Changes of histories: `plimsoll view --changes`, the labels of runs, and Apache Otava on the same series.

use crate::browser;
use crate::support;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use browser::{Browser, Viewport};
use plimsoll_model::statistics::change_points::change_points;
use serde_json::{Value, json};
use support::{Place, SCORE, Server, get, stderr_of};

/// Returns a number from -1 to 1 that looks random.
fn scatter(i: usize) -> f64 {
    let mut z = (i as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

/// Returns a number that looks drawn from a normal distribution of mean 0 and standard deviation 1.
fn normal(i: usize) -> f64 {
    (0..12).map(|k| scatter(i * 12 + k)).sum::<f64>() / 2.0
}

/// Makes runs in `runs/`, numbered from 000, whose p50 has these levels and a scatter of 1 %; `edit` changes the
/// document of each.
fn history(levels: &[(usize, f64)], edit: impl Fn(usize, &mut Value)) -> Place {
    let place = Place::new();
    let line = "{\"ok\":true,\"latency_ms\":5}\n";
    let lines = format!("#TEST=01_steady\n{}", line.repeat(400));
    fs::write(place.path("steady.txt"), lines).expect("written");
    place.expect(0, &["import", "steady.txt", "--out", "first", "-q"]);
    let (plan, first) = (place.read("first/plan.toml"), place.run_json("first"));
    let levels = levels.iter().flat_map(|(n, level)| vec![*level; *n]);
    for (i, level) in levels.enumerate() {
        let mut run = first.clone();
        let (hour, minute) = (i / 60, i % 60);
        run["started_at"] = json!(format!("2026-01-01T{hour:02}:{minute:02}:00Z"));
        run["target"] = json!("grpc://shop:443");
        run["machine"] = json!({ "cpu_model": "A CPU", "cores": 2, "memory_bytes": 8_u64 << 30, "kernel": "6.1" });
        run["total"]["response"]["p50_us"] = json!(level * (1.0 + 0.01 * normal(i)));
        edit(i, &mut run);
        let dir = place.path(&format!("runs/{i:03}"));
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("plan.toml"), &plan).expect("written");
        fs::write(dir.join("run.json"), run.to_string()).expect("written");
    }
    place
}

fn changes(place: &Place) -> Vec<Value> {
    let document = place.expect_json(0, &["view", "--changes", "--json"]);
    document["series"].as_array().expect("series").clone()
}

#[test]
fn changes_are_printed_with_their_commits() {
    let place = history(&[(20, 5_000.0), (20, 5_500.0)], |i, run| {
        run["labels"] = json!({ "commit": format!("c{i:03}"), "branch": "main" });
    });
    let [series] = &changes(&place)[..] else {
        panic!("one series");
    };
    assert_eq!(series["runs"], 40);
    assert_eq!(series["changes"].as_array().map(Vec::len), Some(1));
    let change = &series["changes"][0];
    assert_eq!(change["metric"], "p50_us");
    assert_eq!(change["run"], "020");
    assert_eq!(change["last_run_before"], "019");
    assert_eq!(change["runs_since"], 20);
    assert_eq!(change["is_better"], false);
    assert_eq!(
        change["labels"],
        json!({ "commit": "c020", "branch": "main" })
    );
    let share = |key: &str| change[key].as_f64().expect("a number");
    assert!(share("change_share_low") < 0.1 && share("change_share_high") > 0.1);
    assert!(share("p_value") <= 0.02);
    let text = place.expect(0, &["view", "--changes"]);
    for words in [
        "40 runs at grpc://shop:443, from A CPU, 2 cores",
        "p50",
        "commit c020",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
}

#[test]
fn other_targets_and_machines_are_other_series() {
    let levels = [(15, 5_000.0), (15, 6_000.0)];
    for (key, part) in [
        ("target", ""),
        ("name", ""),
        ("cpu_model", "machine"),
        ("cores", "machine"),
    ] {
        let place = history(&levels, |i, run| {
            let object = if part.is_empty() { run } else { &mut run[part] };
            let value = if key == "cores" {
                json!(4)
            } else {
                json!("another")
            };
            if i >= 15 {
                object[key] = value;
            }
        });
        let series = changes(&place);
        assert_eq!(series.len(), 2, "{key}");
        for series in series {
            assert_eq!(series["changes"], json!([]), "{key}");
        }
    }
    // A kernel continues the series, and is named.
    let place = history(&levels, |i, run| {
        if i >= 15 {
            run["machine"]["kernel"] = json!("6.8");
            run["machine"]["memory_bytes"] = json!((8_u64 << 30) - (100 << 20));
        }
    });
    let change = &changes(&place)[0]["changes"][0];
    assert_eq!(change["also_changed"], json!(["kernel 6.1 → 6.8"]));
}

#[test]
fn figures_that_do_not_stand_are_left_out() {
    let place = history(&[(15, 5_000.0), (12, 9_000.0), (15, 5_000.0)], |i, run| {
        if (15..27).contains(&i) {
            run["state"] = json!(["invalid", "partial", "aborted"][i % 3]);
        }
    });
    let series = changes(&place);
    assert_eq!(series[0]["runs"], 30);
    assert_eq!(series[0]["changes"], json!([]));
}

#[test]
fn rate_counts_only_in_closed_loops() {
    for (kind, metrics) in [("open", json!([])), ("closed", json!(["achieved_per_s"]))] {
        let place = history(&[(30, 5_000.0)], |i, run| {
            run["loop"] = json!(kind);
            run["total"]["achieved_per_s"] =
                json!(100.0 + scatter(i) + if i < 15 { 0.0 } else { 50.0 });
        });
        let series = &changes(&place)[0];
        let found = series["changes"].as_array().expect("changes").iter();
        let found: Vec<&Value> = found.map(|change| &change["metric"]).collect();
        assert_eq!(json!(found), metrics, "{kind}");
    }
}

#[test]
fn hostile_labels_are_escaped_and_shortened() {
    let hostile = format!("<script>\u{1b}[2J\n{}", "x".repeat(10_000));
    let place = history(&[(15, 5_000.0), (15, 6_000.0)], |_, run| {
        run["labels"] = json!({ "commit": hostile });
        run["target"] = json!(hostile);
    });
    let text = place.expect(0, &["view", "--changes"]);
    assert!(text.contains("commit <script"), "{text}");
    assert!(
        !text.contains('\u{1b}') && !text.contains(&"x".repeat(100)),
        "{text}"
    );
    let server = Server::start(&mut place.command(&["view", "runs", "--port", "0"]));
    let (status, page) = get(&server, "localhost", "/");
    assert_eq!(status, 200);
    assert!(
        page.contains("commit &lt;script&gt;") && !page.contains("<script>"),
        "{page}"
    );
    assert_eq!(server.stop().0, 0);
}

#[test]
fn browser_marks_changes_at_every_width() {
    let levels = [(25, 5_000.0), (12, 5_600.0), (9, 5_000.0), (40, 4_400.0)];
    let place = history(&levels, |i, run| {
        let commit = format!("{:07x}", i * 0x0f_1e2d);
        run["labels"] = json!({ "commit": commit });
        let p99 = 9_000.0 * (1.0 + 0.03 * normal(i + 500)) * if i < 60 { 1.0 } else { 1.3 };
        run["total"]["response"]["p99_us"] = json!(p99);
        run["machine"]["kernel"] = json!(if i < 37 { "6.1.0" } else { "6.12.57" });
    });
    let server = Server::start(&mut place.command(&["view", "runs", "--port", "0"]));
    let url = format!("http://{}/", server.address());
    let pictures = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("changes");
    fs::create_dir_all(&pictures).expect("a folder");
    let mut browser = Browser::start();
    for (name, width, dark) in [
        ("phone", 390, false),
        ("phone-dark", 390, true),
        ("desk", 1440, false),
        ("desk-dark", 1440, true),
    ] {
        let look = Viewport {
            name,
            width,
            dark,
            print: false,
        };
        let seen = browser.open_at(&url, look);
        assert_eq!(seen.problems, [""; 0], "{name}");
        assert_eq!(seen.content_width, u64::from(width), "{name}");
        fs::write(pictures.join(format!("{name}.png")), seen.picture).expect("kept");
        let shown = if width < 500 { "narrow" } else { "wide" };
        let marks = browser.text(&format!(
            "[...document.querySelectorAll('.{shown} svg .strong')].map(e => e.textContent).join()"
        ));
        assert_eq!(marks, "1,2,3,4", "{name}");
    }
    assert_eq!(server.stop().0, 0);
}

#[test]
fn labels_are_recorded_and_reported() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let mut load = vec![
        "grpc",
        &*url,
        "--calls",
        "5",
        "--clients",
        "1",
        "--out",
        "run",
        "-q",
    ];
    load.extend(SCORE);
    load.extend(["--label", "commit=1a2b=c", "--label", "branch=main"]);
    place.expect(0, &load);
    let run = place.run_json("run");
    assert_eq!(
        run["labels"],
        json!({ "branch": "main", "commit": "1a2b=c" })
    );
    let plan = place.read("run/plan.toml");
    assert!(
        plan.contains("[labels]") && plan.contains("commit = \"1a2b=c\""),
        "{plan}"
    );
    let report = place.expect(0, &["report", "run"]);
    assert!(report.contains("branch=main, commit=1a2b=c"), "{report}");
    for (label, words) in [
        ("commit", "has no `=`"),
        ("two words=x", "is not a label's name"),
        ("commit=\u{1b}[2J", "control character"),
    ] {
        let output = place.run(&["grpc", &url, "--label", label, "--dry-run"]);
        assert_ne!(output.status.code(), Some(0), "{label}");
        let text = stderr_of(&output);
        assert!(text.contains(words), "{text}");
    }
}

/// A series of these levels, with a scatter of 2 % unless `spread` is 0.
fn series(seed: usize, levels: &[(usize, f64)], spread: f64) -> Vec<f64> {
    let levels = levels.iter().flat_map(|(n, level)| vec![*level; *n]);
    let draw = |(i, level): (usize, f64)| level * (1.0 + spread * normal(seed * 1_000 + i));
    levels.enumerate().map(draw).collect()
}

/// Returns the change points that Apache Otava finds in each series.
fn otava(all: &[Vec<f64>]) -> Vec<Vec<usize>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".peers/venv/bin/python");
    assert!(python.exists(), "no .peers/venv: run `make setup`");
    let mut child = Command::new(python)
        .arg(root.join("tests/peers/otava_changes.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut stdin = child.stdin.take().expect("piped");
    let text = serde_json::to_vec(all).expect("JSON");
    stdin.write_all(&text).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).expect("indices")
}

/// Every change of ours is one of Otava's, to within one run. Otava's others are those that the decision record names:
/// segments of fewer runs than ours may have, and places that the permutation test finds to be chance.
#[test]
fn steps_are_those_of_otava() {
    let mut all: Vec<(&str, Vec<f64>)> = Vec::new();
    for seed in 0..10 {
        all.push(("constant", series(seed, &[(60, 1e3)], 0.02)));
        all.push((
            "no noise",
            series(seed, &[(20 + seed, 1e3), (20, 2e3)], 0.0),
        ));
        let step = [(20 + seed, 1e3), (20, 1.15e3)];
        all.push(("step", series(seed + 10, &step, 0.02)));
        let two = [(25, 1e3), (20 + seed, 1.2e3), (25, 1e3)];
        all.push(("two steps", series(seed + 20, &two, 0.02)));
        let stairs = [(30, 1e3), (30, 1.15e3), (30, 1.3e3), (30, 1e3)];
        all.push(("stairs", series(seed + 30, &stairs, 0.02)));
        let mut drift = series(seed + 40, &[(80, 1e3)], 0.02);
        for (i, value) in drift.iter_mut().enumerate() {
            *value *= 1.0 + 0.004 * i as f64;
        }
        all.push(("drift", drift));
        let mut outliers = series(seed + 50, &[(40, 1e3), (40, 1.15e3)], 0.02);
        for i in [3 + seed, 30, 51, 70] {
            outliers[i] *= 1.8;
        }
        all.push(("outliers", outliers));
    }
    let values: Vec<Vec<f64>> = all.iter().map(|(_, values)| values.clone()).collect();
    let mut different = 0;
    for ((kind, values), theirs) in all.iter().zip(otava(&values)) {
        let ours: Vec<usize> = change_points(values).iter().map(|c| c.index).collect();
        let is_near = |a: &usize, all: &[usize]| all.iter().any(|b| a.abs_diff(*b) <= 1);
        match *kind {
            // A drift changes everywhere: only that there are steps is the same.
            "drift" => assert!(!ours.is_empty() && !theirs.is_empty(), "{kind}"),
            // Outliers hide steps from a t-test.
            "outliers" => assert!(ours.len() == 1 && is_near(&40, &ours), "{kind}: {ours:?}"),
            _ => {
                let found = ours.iter().all(|index| is_near(index, &theirs));
                assert!(found, "{kind}: {ours:?}, Otava {theirs:?}");
                different += usize::from(ours.len() != theirs.len());
            }
        }
    }
    assert!(different <= 2, "{different} of 50 series");
}
