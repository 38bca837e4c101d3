//! Comments for pull requests: what they say, and that they never have more than 30 lines.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::records;
use crate::runs;

use std::path::PathBuf;

use plimsoll_model::comparisons::ladder::batches::RungDifference;
use plimsoll_model::comparisons::ladder::{LadderMetric, LadderRecord};
use plimsoll_model::crypto_speeds::CryptoSpeeds;
use plimsoll_model::runs::lanes::{LaneRecord, LanesRecord};
use plimsoll_model::runs::run::{Run, RunEnding};
use plimsoll_model::statistics::paired::PairedDifference;
use plimsoll_report::comment;
use plimsoll_report::compare::compare;
use runs::{Fixture, finished};
use snapbox::{assert_data_eq, file};

/// Returns where the results of a job are.
fn files() -> Vec<PathBuf> {
    ["load-test/run", "load-test/report.html"]
        .map(PathBuf::from)
        .to_vec()
}

/// Returns a plan with as many objectives as there are metrics here; about half of them are missed.
fn demanding_plan() -> String {
    let mut plan = "[objective]\n".to_owned();
    for time in ["", "service.", "lag.", "first_byte."] {
        for (metric, limit) in [
            ("p50", "9s"),
            ("p90", "1ns"),
            ("p99", "9s"),
            ("mean", "1ns"),
        ] {
            plan += &format!("\"{time}{metric}\" = \"< {limit}\"\n");
        }
    }
    plan
}

fn demanding_run(name: &str) -> Run {
    let mut run = finished(Fixture::steady(name), RunEnding::complete());
    run.header.name = name.to_owned();
    run.plan = demanding_plan();
    run
}

fn lanes(runs: &[Run]) -> LanesRecord {
    let lane = |run: &Run| LaneRecord {
        name: run.header.name.clone(),
        weight: 1,
        run: run.header.name.clone(),
    };
    LanesRecord {
        schema_version: 2,
        name: "a mix of calls".to_owned(),
        tool_version: "0".to_owned(),
        started_at: "2026-01-01T00:00:00Z".parse().unwrap(),
        lanes: runs.iter().map(lane).collect(),
    }
}

/// Returns a ladder with 64 of its rungs.
fn tall(mut record: LadderRecord) -> LadderRecord {
    let rungs = record.rungs.clone();
    record.rungs = (0..64)
        .map(|n| {
            let mut rung = rungs[n % rungs.len()].clone();
            rung.name = format!("{} {n}", rung.name);
            rung
        })
        .collect();
    let pairs: Vec<(usize, usize)> = LadderRecord::reported_pairs(64).collect();
    if let Some(batches) = &mut record.batches {
        let difference = |(of, to): (usize, usize)| RungDifference {
            of,
            to,
            metric: LadderMetric::P50,
            paired: PairedDifference {
                shift: of as f64,
                low: of as f64 - 9.0,
                high: of as f64 + 9.0,
            },
        };
        batches.differences = pairs.into_iter().map(difference).collect();
        record.gates = vec!["p50 +5us".parse().unwrap(), "p50 +70us".parse().unwrap()];
    }
    record
}

fn group(name: &str, by: f64) -> Vec<Run> {
    (0..7)
        .map(|i| {
            let luck = 1.0 + 0.004 * f64::from(i * 7 % 6);
            let fixture = Fixture::steady(&format!("{name}{i}")).slower(by * luck);
            finished(fixture, RunEnding::complete())
        })
        .collect()
}

#[test]
fn comment_of_run() {
    let mut run = finished(Fixture::steady("steady"), RunEnding::complete());
    run.plan =
        "[objective]\n\"p50\" = \"< 9s\"\n\"p99\" = \"< 1ms\"\n\"p99.9\" = \"< 9s\"\n".to_owned();
    let text = comment::runs(&[run], &files());
    assert_data_eq!(text, file!["golden/comment_run.txt"].raw());
}

#[test]
fn comment_of_replicates() {
    let compared = compare(&group("a", 1.0), &group("b", 1.15)).unwrap();
    let text = comment::comparison(&compared, &files());
    assert_data_eq!(text, file!["golden/comment_comparison.txt"].raw());
}

#[test]
fn comment_of_tall_ladder() {
    let text = comment::ladder(&tall(records::ladder_in_batches()), &files());
    assert_data_eq!(text, file!["golden/comment_ladder.txt"].raw());
}

#[test]
fn comment_of_many_lanes() {
    let mut all: Vec<Run> = (0..63)
        .map(|n| demanding_run(&format!("lane {n}")))
        .collect();
    all.push(finished(Fixture::late("late"), RunEnding::complete()));
    all[5].plan = "[objective]\n\"p99\" = \"< 9s\"\n".to_owned();
    let text = comment::lanes(&lanes(&all), &all, &files());
    assert_data_eq!(text, file!["golden/comment_lanes.txt"].raw());
}

/// Returns comments of results of each kind, small and large.
fn comments() -> Vec<String> {
    let many_files: Vec<PathBuf> = (0..64)
        .map(|n| PathBuf::from(format!("runs/{n}")))
        .collect();
    let mut comments = Vec::new();
    for fixture in [
        Fixture::steady("steady"),
        Fixture::errors("errors"),
        Fixture::cold("cold"),
        Fixture::fleet("fleet"),
        Fixture::invalid("invalid"),
        Fixture::late("late"),
        Fixture::tiny("tiny"),
        Fixture::streams("streams"),
        Fixture::sessions("sessions"),
        Fixture::empty("empty"),
    ] {
        let mut run = finished(fixture, RunEnding::aborted("interrupted"));
        comments.push(comment::runs(std::slice::from_ref(&run), &many_files));
        run.plan = demanding_plan();
        comments.push(comment::runs(&[run], &many_files));
    }
    let mut troubled = demanding_run("troubled");
    let problem = finished(Fixture::late("late"), RunEnding::complete());
    let problems = &problem.summary.health.problems;
    troubled.summary.health.problems = problems.iter().cycle().take(200).cloned().collect();
    comments.push(comment::runs(&[troubled.clone()], &many_files));
    let several = vec![troubled; 64];
    comments.push(comment::runs(&several, &many_files));
    comments.push(comment::lanes(&lanes(&several), &several, &many_files));
    let mut sweep = records::sweep();
    sweep.limits = Some(CryptoSpeeds::default());
    for record in [records::ladder(), records::ladder_in_batches(), sweep] {
        comments.push(comment::ladder(&record, &files()));
        comments.push(comment::ladder(&tall(record), &many_files));
    }
    comments.push(comment::search(&records::begun_search(), &files()));
    comments.push(comment::search(&records::search(), &many_files));
    let mut compared = compare(&several[..1], &several[..1]).unwrap();
    comments.push(comment::comparison(&compared, &[]));
    compared.warnings = vec!["they differ".to_owned(); 64];
    compared.rows = compared.rows.iter().cycle().take(64).cloned().collect();
    comments.push(comment::comparison(&compared, &many_files));
    comments
}

#[test]
fn comments_never_exceed_thirty_lines() {
    let comments = comments();
    for text in &comments {
        let lines = text.lines().count();
        assert!(lines <= comment::MAX_LINES, "{lines} lines:\n{text}");
        // GitHub refuses longer ones.
        assert!(text.len() < 65_536, "{text}");
        assert!(text.starts_with("**"), "{text}");
        assert!(!text.contains("\n\n\n"), "{text}");
    }
    assert_eq!(comment::MAX_LINES + 2, 30);
    let full = comments
        .iter()
        .filter(|text| text.lines().count() == comment::MAX_LINES);
    assert!(full.count() >= 6, "the limit is hardly ever reached");
}

#[test]
fn items_left_out_are_counted() {
    for text in comments() {
        let lines = text.lines().filter(|line| line.contains("and "));
        let left_out = lines.filter(|line| line.contains(" more "));
        let is_full = text.lines().count() == comment::MAX_LINES;
        assert!(!is_full || left_out.count() > 0, "{text}");
    }
}
