//! Ladders over servers that the ladder starts itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use plimsoll_model::ladder::{Added, LadderRecord, Metric};
use plimsoll_model::run::Run;

fn climb(dir: &Path, ladder: &str) -> (Output, LadderRecord) {
    let file = dir.join("plan.toml");
    let plan = format!(
        r#"
name = "score"
[call.grpc]
method = "score.ScoreService/GetScore"
message = {{ json = "[0.1, 0.2]" }}
[load]
rate = "200/s"
warmup = "100ms"
[ladder]
slice = "300ms"
serve = ["score", "--delay", "2ms", "--workers", "1"]
{ladder}
"#
    );
    std::fs::write(&file, plan).unwrap();
    let out = dir.join("ladder");
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("ladder")
        .arg(&file)
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let record = LadderRecord::load(&out).unwrap();
    (output, record)
}

#[test]
fn plaintext_tls_and_mutual_tls_are_three_rungs() {
    let dir = tempfile::tempdir().unwrap();
    let (output, record) = climb(
        dir.path(),
        "tls = [\"off\", \"server\", \"mutual\"]\nrounds = 10",
    );
    let names: Vec<&str> = record.rungs.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["tls off", "tls server", "tls mutual"]);
    let securities: Vec<String> = (1..=3)
        .map(|rung| {
            let run = dir.path().join(format!("ladder/rung-{rung}/slice-10"));
            format!("{:?}", Run::load(&run).unwrap().header.security.unwrap())
        })
        .collect();
    assert_eq!(securities, ["Plaintext", "Tls", "MutualTls"]);
    for rung in &record.rungs {
        assert_eq!(rung.slices.len(), 10);
        assert!(rung.slices.iter().all(|s| s.errors == 0), "{rung:?}");
        assert!(rung.median(Metric::P50).unwrap() >= 2_000.0);
    }
    let stdout = String::from_utf8(output.stdout).unwrap();
    for words in [
        "tls mutual adds to tls server",
        "tls mutual adds to tls off",
        "client CPU a call",
    ] {
        assert!(stdout.contains(words), "{stdout}");
    }
    let page = std::fs::read_to_string(dir.path().join("ladder/report.html")).unwrap();
    assert!(page.contains("What each rung adds"));
}

#[test]
fn two_equal_rungs_are_equal() {
    let dir = tempfile::tempdir().unwrap();
    let (_, record) = climb(dir.path(), "\"load.deadline\" = [\"5s\", \"6s\"]");
    assert_eq!(record.rungs.len(), 2);
    for metric in Metric::ALL {
        if let Added::Clear(d) = record.added(1, 0, metric) {
            // Chance alone claims one in a ladder out of forty.
            let first = record.rungs[0].median(metric).unwrap();
            assert!(d.shift.abs() < 0.25 * first, "{metric:?} {d:?}");
        }
    }
}
