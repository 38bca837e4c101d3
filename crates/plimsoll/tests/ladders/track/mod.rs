//! `plimsoll track` on a service in Python, with commits that make it slower by a sleep.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests wait in real time")]

mod workplace;

use crate::support;

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::comparisons::track::{CommitFinding, TrackJudgement};
use rustix::process::{Pid, Signal, kill_process};
use support::{MAX_WAIT, text};
use workplace::{LOAD, SERVICE, Workplace, assert_code, slower, unwrapped};

#[test]
fn commands_are_compared_both_ways() {
    let work = Workplace::new();
    work.write(SERVICE);
    fs::write(work.service().join("slow.py"), slower(SERVICE)).unwrap();
    let (fast, slow) = (
        work.marked("python3 server.py"),
        work.marked("python3 slow.py"),
    );
    let slow = format!("API_TOKEN=hunter2 {slow}");
    let output = work.track(&["--old", &fast, "--new", &slow]);
    assert_code(&output, 99);
    let printed = text(&output.stdout);
    assert!(printed.contains("old → new: p50 +"), "{printed}");
    assert!(printed.contains("SLOWER, beyond p50 +10000us"), "{printed}");
    let record = work.record();
    assert_eq!(record.verdict, Some(TrackJudgement::Slower));
    assert_eq!(record.new.commit, None);
    assert!(
        record.new.serve.contains("API_TOKEN=***"),
        "{}",
        record.new.serve
    );
    let found = record.comparison.unwrap();
    assert!(found.changes[0].low_percent.unwrap() > 0.0, "{found:?}");
    assert!(found.memory.is_some(), "{found:?}");
    assert!(
        found
            .changes
            .iter()
            .any(|c| c.metric.key() == "server_cpu" && c.old.is_some())
    );
    assert!(LadderRecord::exists_in(&work.place.path("result")));
    assert_eq!(work.processes(), Vec::<String>::new());
    fs::remove_dir_all(work.place.path("result")).unwrap();

    let output = work.track(&["--old", &slow, "--new", &fast, "--json"]);
    assert_code(&output, 0);
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["verdict"], "not_slower", "{printed}");
}

#[test]
fn failing_version_is_not_judged() {
    let work = Workplace::new();
    work.write(SERVICE);
    let failing = SERVICE.replace(
        "self.send_response(200)",
        "self.send_response(500 if random.random() < 0.1 else 200)",
    );
    let failing = failing.replace("import os", "import os, random");
    fs::write(work.service().join("failing.py"), failing).unwrap();
    let flags = [
        "--old",
        "python3 server.py",
        "--new",
        "python3 failing.py",
        "--budget",
        "4s",
        "--junit",
        "result.xml",
        "--markdown",
        "result.md",
    ];
    let load: Vec<&str> = LOAD
        .into_iter()
        .filter(|word| !["--budget", "40s"].contains(word))
        .collect();
    let output = work.command_with(&flags, &load).output().unwrap();
    assert_code(&output, 90);
    for file in ["result.xml", "result.md"] {
        let document = fs::read_to_string(work.service().join(file)).unwrap();
        assert!(document.contains("fails more calls"), "{document}");
    }
    let found = work.record().comparison.unwrap();
    assert!(found.fails_differently, "{found:?}");
}

#[test]
fn uncommitted_change_is_compared_with_head() {
    let work = Workplace::with_repository();
    let head = work.git(&["rev-parse", "HEAD"]);
    // The program imports a file that git does not know yet.
    fs::write(work.service().join("pause.py"), "S = 0.05\n").unwrap();
    work.write(&SERVICE.replace("PAUSE_S = 0.0", "from pause import S as PAUSE_S"));
    let status = work.git(&["status", "--porcelain"]);
    let build = format!(
        "git rev-parse HEAD >> {}",
        work.place.path("built").display()
    );
    let serve = work.marked("python3 server.py");
    let output = work.track(&["--build", &build, "--serve", &serve]);
    assert_code(&output, 99);
    let record = work.record();
    assert_eq!(record.old.commit.as_deref(), Some(&*head));
    assert_eq!(record.old.subject.as_deref(), Some("serve empty answers"));
    assert_eq!(record.new.commit.as_deref(), Some(&*head));
    assert!(record.new.dirty && !record.old.dirty, "{record:?}");
    let built = fs::read_to_string(work.place.path("built")).unwrap();
    assert_eq!(built.lines().count(), 2, "{built}");
    let short = &head[..7];
    assert!(
        record
            .summary
            .contains(&format!("{short} → {short}-dirty: ")),
        "{}",
        record.summary
    );
    work.assert_clean(&status);
    assert_eq!(work.processes(), Vec::<String>::new());
}

#[test]
fn branch_is_compared_with_merge_base() {
    let work = Workplace::with_repository();
    let base = work.git(&["rev-parse", "HEAD"]);
    work.git(&["checkout", "--quiet", "-b", "feature"]);
    work.commit(
        "explain the pause",
        &format!("# The pause is zero.\n{SERVICE}"),
    );
    let head = work.commit(
        "explain more",
        &format!("# The pause is still zero.\n{SERVICE}"),
    );
    // An earlier measurement in the work tree is no change of the service.
    let earlier = work.service().join("runs/earlier");
    fs::create_dir_all(&earlier).unwrap();
    fs::write(earlier.join("run.json"), "{}").unwrap();
    let output = work.track(&["--serve", &work.marked("python3 server.py")]);
    assert_code(&output, 0);
    let record = work.record();
    assert_eq!(record.old.commit, Some(base));
    assert_eq!(record.new.commit, Some(head));
    assert!(!record.new.dirty, "{record:?}");
    fs::remove_dir_all(work.service().join("runs")).unwrap();
    let printed = text(&output.stdout);
    assert!(
        printed.contains("no regression beyond p50 +10000us"),
        "{printed}"
    );
    work.assert_clean("");
}

#[test]
fn bisection_finds_slow_commit_past_broken_one() {
    let work = Workplace::with_repository();
    let with = |n: u32, program: &str| format!("# Revision {n}\n{program}");
    let good = work.git(&["rev-parse", "HEAD"]);
    work.commit("one", &with(1, SERVICE));
    work.commit("two", &with(2, SERVICE));
    let broken = work.commit("three", "def nothing(:\n");
    work.commit("four", &with(4, SERVICE));
    let slow = work.commit("five", &with(5, &slower(SERVICE)));
    work.commit("six", &with(6, &slower(SERVICE)));
    let built = work.place.path("built");
    let build = format!(
        "git rev-parse HEAD >> {}; python3 -m py_compile server.py",
        built.display()
    );
    let serve = work.marked("python3 server.py");
    let range = format!("{good}..HEAD");
    let output = work.track(&["--bisect", &range, "--build", &build, "--serve", &serve]);
    assert_code(&output, 99);
    let printed = text(&output.stdout);
    let expected = format!("the first slower commit is {} \"five\"", &slow[..7]);
    assert!(printed.contains(&expected), "{printed}");
    assert!(printed.contains("1 commit skipped"), "{printed}");
    let search = work.record().search.unwrap();
    assert_eq!(search.commits, 6);
    assert_eq!(search.first_slower.unwrap().commit, Some(slow));
    let skipped = search
        .steps
        .iter()
        .find(|step| step.outcome == CommitFinding::Skipped);
    assert_eq!(skipped.unwrap().version.commit, Some(broken));
    assert!(
        search.error_probability <= 0.01,
        "{}",
        search.error_probability
    );
    let built = fs::read_to_string(built).unwrap();
    let mut ids: Vec<&str> = built.lines().collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(
        ids.len(),
        built.lines().count(),
        "a commit was built twice: {built}"
    );
    work.assert_clean("");
    assert_eq!(work.processes(), Vec::<String>::new());
}

#[test]
fn bisection_of_good_range_finds_nothing() {
    let work = Workplace::with_repository();
    work.commit("one", &format!("# Revision 1\n{SERVICE}"));
    work.commit("two", &format!("# Revision 2\n{SERVICE}"));
    let output = work.track(&["--bisect", "HEAD~2..", "--serve", "python3 server.py"]);
    assert_code(&output, 0);
    let printed = text(&output.stdout);
    assert!(printed.contains("nothing to find"), "{printed}");
    let search = work.record().search.unwrap();
    assert_eq!(search.steps.len(), 1);
    work.assert_clean("");
}

#[test]
fn failed_start_shows_end_of_log() {
    let work = Workplace::new();
    work.write(SERVICE);
    let fails = "echo cannot open the database >&2; exit 3";
    let output = work.track(&["--old", "python3 server.py", "--new", fails]);
    assert_code(&output, 1);
    let stderr = unwrapped(&output);
    for words in ["exit code 3", "cannot open the database", "serve-new.log"] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    let log = work.place.path("result/serve-new.log");
    assert!(fs::read_to_string(log).unwrap().contains("database"));
}

#[test]
fn server_that_never_listens_is_given_up() {
    let work = Workplace::new();
    work.write(SERVICE);
    let silent = work.marked("sleep 3600; :");
    let output = work.track(&[
        "--old",
        &silent,
        "--new",
        "python3 server.py",
        "--start-timeout",
        "1s",
    ]);
    assert_code(&output, 1);
    let stderr = unwrapped(&output);
    assert!(stderr.contains("does not listen on port"), "{stderr}");
    assert_eq!(work.processes(), Vec::<String>::new());
}

#[test]
fn failed_build_shows_end_of_log() {
    let work = Workplace::with_repository();
    work.commit("two", SERVICE);
    let build = "echo no such compiler; exit 4";
    let output = work.track(&["--build", build, "--serve", "python3 server.py"]);
    assert_code(&output, 1);
    let stderr = unwrapped(&output);
    for words in ["--build failed (exit code 4)", "no such compiler"] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    work.assert_clean("");
}

#[test]
fn wrong_revisions_and_ranges_are_refused() {
    let work = Workplace::with_repository();
    for (flags, words) in [
        (
            ["--base", "no-such-branch"],
            "`no-such-branch` is no commit",
        ),
        (["--base", "HEAD"], "--base and --candidate are both"),
        (["--bisect", "HEAD"], "`HEAD` is not a range"),
        (["--bisect", "HEAD..HEAD"], "there is no commit between"),
    ] {
        let output = work.track(&[&["--serve", "python3 server.py"], &flags[..]].concat());
        assert_code(&output, 2);
        let stderr = unwrapped(&output);
        assert!(stderr.contains(words), "{words}: {stderr}");
        let _ = fs::remove_dir_all(work.place.path("result"));
    }
    // The only commit has none before it.
    assert_code(&work.track(&["--serve", "python3 server.py"]), 2);
    work.assert_clean("");
}

#[test]
fn missing_git_is_named() {
    let work = Workplace::with_repository();
    let mut command = work.command(&["--serve", "python3 server.py"]);
    let output = command
        .env("PATH", work.place.path("tmp"))
        .output()
        .unwrap();
    assert_code(&output, 1);
    let stderr = unwrapped(&output);
    assert!(stderr.contains("git is not installed"), "{stderr}");
}

/// Waits until `condition` holds while the command runs.
#[track_caller]
fn wait_until(child: &mut Child, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        assert!(begin.elapsed() < MAX_WAIT, "nothing happens");
        thread::sleep(Duration::from_millis(20));
    }
}

fn interrupt(work: &Workplace, flags: &[&str], condition: impl Fn() -> bool) {
    let load = LOAD.map(|word| if word == "2s" { "30s" } else { word });
    let mut command = work.command_with(flags, &load);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    wait_until(&mut child, condition);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(work.processes(), Vec::<String>::new());
    work.assert_clean("");
}

#[test]
fn interrupted_measurement_leaves_nothing_behind() {
    let work = Workplace::with_repository();
    work.commit("two", &format!("# Revision 2\n{SERVICE}"));
    let serve = work.marked("python3 server.py");
    let result = work.place.path("result");
    let is_measuring = || Path::new(&result).join("rung-2").exists();
    interrupt(&work, &["--serve", &serve], is_measuring);
    let record = work.record();
    assert!(record.interrupted);
    assert_eq!(record.verdict, None);
}

#[test]
fn interrupted_build_leaves_nothing_behind() {
    let work = Workplace::with_repository();
    work.commit("two", SERVICE);
    let build = work.marked("sleep 3600; :");
    let flags = ["--build", &build, "--serve", "python3 server.py"];
    let result = work.place.path("result");
    let is_building = || {
        let entries = fs::read_dir(&result).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().display().to_string());
        names.into_iter().any(|name| name.starts_with("build-"))
    };
    interrupt(&work, &flags, is_building);
    let result = work.place.path("result");
    fs::remove_dir_all(&result).unwrap();
    let search = [&flags[..], &["--bisect", "HEAD~1.."]].concat();
    interrupt(&work, &search, is_building);
    let record = work.record();
    assert!(record.interrupted && record.verdict.is_none(), "{record:?}");
}
