//! Golden files of the plans that run directories keep (`SNAPSHOTS=overwrite` blesses them). The
//! text must stay as earlier builds wrote it, so that old and new runs have the same plan; plans
//! whose text differs are compared by meaning.
//!
//! `plans/` holds the plans as typed, and `golden/` the kept ones. Their targets do not exist:
//! plans are kept before the first connection.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod named_files;

use crate::built;
use crate::support;

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_model::formats::units::{ByteSize, Period, Rate};
use plimsoll_model::plan_text::plan_differences;
use plimsoll_model::spec;
use plimsoll_protocols::registry;
use serde_json::Value;
use snapbox::{Data, assert_data_eq};
use support::Place;

fn test_folder(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cli/saved")
        .join(folder)
}

/// Returns the names of all plans.
fn plan_names() -> Vec<String> {
    let files = fs::read_dir(test_folder("plans"))
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut names: Vec<String> = files
        .map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 19, "{names:?}");
    names
}

/// Returns the command for a plan: the first word of its name, unless that is a protocol.
fn command_for(name: &str) -> &str {
    let first = name.split('-').next().unwrap();
    match first {
        "find" | "ladder" | "sweep" => first,
        _ => "run",
    }
}

/// Collects the plans kept in `dir` by path; of several slices of a rung, only the first.
fn collect_plans(dir: &Path, below: &str, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let is_later = name.starts_with("slice-") && name != "slice-01";
        if path.is_dir() && !is_later {
            collect_plans(&path, &format!("{below}{name}/"), found);
        } else if name == "plan.toml" {
            found.push((format!("{below}{name}"), fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
}

#[test]
fn saved_plans_match_golden_files() {
    let place = Place::new();
    place.certificates();
    fs::rename(built::build_c_example(&place.path(".")), place.path("c.so")).unwrap();
    fs::write(place.path("rows.csv"), "instrument,price\n1,2\n3,4\n").unwrap();
    for name in plan_names() {
        let typed = test_folder("plans").join(format!("{name}.toml"));
        fs::copy(typed, place.path("typed.toml")).unwrap();
        let output = place.run(&[command_for(&name), "typed.toml", "--out", &name, "-q"]);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{name}: {}",
            support::stderr_of(&output)
        );
        let mut found = Vec::new();
        collect_plans(&place.path(&name), "", &mut found);
        assert!(!found.is_empty(), "{name}");
        let text: String = found
            .iter()
            .map(|(path, text)| format!("#### {path}\n{text}"))
            .collect();
        let golden = test_folder("golden").join(format!("{name}.toml"));
        assert_data_eq!(text, Data::read_from(&golden, None).raw());
    }
}

/// Returns the golden plans, each with its file and path.
fn golden() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for name in plan_names() {
        let text = fs::read_to_string(test_folder("golden").join(format!("{name}.toml"))).unwrap();
        for plan in text.split("#### ").skip(1) {
            let (path, text) = plan.split_once('\n').unwrap();
            all.push((format!("{name}: {path}"), text.to_owned()));
        }
    }
    all
}

/// Returns `plan` as another build may have spelled it: times in seconds, rates in another unit,
/// sizes in bytes. Listed rungs keep their spelling.
fn respell(plan: &str) -> String {
    let line = |line: &str| {
        let Some((key, value)) = line.split_once(" = \"") else {
            return line.to_owned();
        };
        let value = value.trim_end_matches('"');
        let other = if let Ok(Period(time)) = value.parse() {
            format!("{}.{:09}s", time.as_secs(), time.subsec_nanos())
        } else if let Ok(ByteSize(bytes)) = value.parse() {
            format!("{bytes}B")
        } else if let Ok(Rate(rate)) = value.parse() {
            format!("{rate}/sec")
        } else {
            value.to_owned()
        };
        format!("{key} = \"{other}\"")
    };
    let (before, rungs) = plan.split_at(plan.find("[[ladder.rungs]]").unwrap_or(plan.len()));
    let before = before.lines().map(|text| line(text) + "\n");
    before.collect::<String>() + rungs
}

#[test]
fn equivalent_plans_compare_equal() {
    registry::register_protocols();
    let mut changed = 0;
    for (place, plan) in golden() {
        // Resolving a kept plan again gives the same text.
        let read = spec::read(&plan).unwrap_or_else(|problems| panic!("{place}: {problems:?}"));
        assert_eq!(read.without_secrets().to_toml().unwrap(), plan, "{place}");
        let other = respell(&plan);
        changed += plan
            .lines()
            .zip(other.lines())
            .filter(|(a, b)| a != b)
            .count();
        assert_eq!(plan_differences(&plan, &other), [], "{place}");
        // Keys that another build does not know are compared as text.
        let newer = "of_later = 1\n".to_owned() + &plan;
        let keys: Vec<String> = plan_differences(&newer, &plan)
            .into_iter()
            .map(|d| d.key)
            .collect();
        assert_eq!(keys, ["of_later"], "{place}");
    }
    assert!(changed > 100, "{changed} lines");
}

#[test]
fn respelled_plan_shows_no_differences_in_compare() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    let url = server.plaintext();
    let words = [
        "grpc",
        &url,
        "-m",
        "score.ScoreService/GetScore",
        "--deadline",
        "12.5s",
    ];
    place.run(
        &[
            &words[..],
            &["--rate", "50/s", "-z", "1500ms", "--out", "now", "-q"],
        ]
        .concat(),
    );
    fs::create_dir(place.path("before")).unwrap();
    for file in fs::read_dir(place.path("now")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), place.path("before").join(file.file_name())).unwrap();
    }
    let now = place.read("now/plan.toml");
    assert!(now.contains("deadline = \"12500ms\""), "{now}");
    let differs = |before: &str| -> Vec<String> {
        assert_ne!(before, now);
        fs::write(place.path("before/plan.toml"), before).unwrap();
        let shown = place.expect_json(0, &["compare", "before", "now", "--json"]);
        let found = shown["plan_differences"].as_array().unwrap();
        let key = |difference: &Value| difference["key"].as_str().unwrap().to_owned();
        found.iter().map(key).collect()
    };
    assert_eq!(differs(&respell(&now)), [""; 0]);
    let longer = now.replace("deadline = \"12500ms\"", "deadline = \"12.6s\"");
    assert_eq!(differs(&longer), ["load.deadline"]);
}
