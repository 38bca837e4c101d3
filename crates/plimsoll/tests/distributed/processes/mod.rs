//! A load that several processes share, and servers that share a port.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod ends;
mod servers;

use crate::support;

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{CLIENT_MTLS, ORDER, Place, SCORE, SERVER_MTLS, signal, stderr_of, text, wait};

/// Returns the running child processes of `parent`, oldest first.
fn children(parent: u32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    list.unwrap_or_default()
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

fn count(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is not a count"))
}

/// Asserts that all of `calls` are accounted for and succeeded.
#[track_caller]
fn assert_all_ok(run: &Value, calls: u64) {
    // On a busy machine the generator may have been late, which does not matter here.
    let over = ["complete", "invalid"]
        .map(Value::from)
        .contains(&run["state"]);
    assert!(over, "{}: {}", run["state"], run["reason"]);
    assert_eq!(count(&run["total"]["ok"]), calls, "{}", run["total"]);
    let check = &run["count_check"];
    assert_eq!(check["matches"], true, "{check}");
    assert_eq!(count(&check["due"]), calls);
}

/// The load ends before its first interval: the report compares what both ends hold at the end with
/// what they held at the beginning.
#[test]
fn short_multiprocess_load_reports_resource_usage() {
    let place = Place::new();
    let server = place.serve(&["orders"]);
    let url = server.plaintext();
    let mut arguments = vec!["grpc", &url, "--processes", "2", "--out", "run", "-q"];
    arguments.extend(["--fleet", "300", "--calls", "600"]);
    arguments.extend(ORDER);
    place.expect(0, &arguments);
    let total = &place.run_json("run")["total"];
    for end in ["client", "server"] {
        let used = &total[end];
        assert!(count(&used["descriptors_max"]) >= 300, "{end}: {used}");
        let before = count(&used["rss_bytes_before"]);
        assert!(before > 1_000_000, "{end}: {used}");
        assert!(before < count(&used["rss_bytes_max"]), "{end}: {used}");
    }
    // Two processes of the load, and the supervisor.
    let one_process = 5_000_000;
    let before = count(&total["client"]["rss_bytes_before"]);
    assert!(before > 3 * one_process, "{total}");
}

#[test]
fn fixed_rate_is_independent_of_process_count() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    let url = server.plaintext();
    let run = |processes: &str, out: &str| {
        let mut arguments = vec![
            "grpc",
            &url,
            "--rate",
            "300/s",
            "--duration",
            "2s",
            "--warmup",
            "500ms",
            "--arrivals",
            "poisson",
            "--connections",
            "4",
            "--seed",
            "7",
            "--requests",
            "--processes",
            processes,
            "--out",
            out,
            "--json",
            "-q",
        ];
        arguments.extend(SCORE);
        place.expect_run(0, &arguments)
    };
    let (one, three) = (run("1", "one"), run("3", "three"));
    assert_eq!(one["processes"], Value::Null);
    assert_eq!(three["processes"], 3);
    assert_eq!(
        three["plan_hash"].as_str().map(str::len),
        one["plan_hash"].as_str().map(str::len)
    );
    // The seed determines the arrivals, and each is sent by one process.
    let due = |run: &Value| {
        (
            count(&run["count_check"]["due"]),
            count(&run["total"]["due"]),
        )
    };
    assert_eq!(due(&one), due(&three));
    for run in [&one, &three] {
        assert_eq!(run["total"]["errors"], 0, "{}", run["total"]);
        assert_eq!(
            count(&run["count_check"]["due"]),
            count(&run["count_check"]["ok"])
        );
        assert_eq!(
            count(&run["total"]["response"]["count"]),
            count(&run["total"]["ok"])
        );
    }
    // The due time of a call is independent of the process that sends it.
    let arrivals = |out: &str| {
        let run = plimsoll_model::runs::run::Run::load(&place.path(out)).unwrap();
        let mut arrivals = Vec::new();
        run.for_each_request(|r| {
            arrivals.push((r.sample.number, r.sample.arrival.0));
            Ok(())
        })
        .unwrap();
        arrivals.sort_unstable();
        let first = arrivals[0].1;
        arrivals
            .iter()
            .map(|(n, at)| (*n, at - first))
            .collect::<Vec<_>>()
    };
    assert_eq!(arrivals("one"), arrivals("three"));
    // Threads are counted over all processes of an end, so only the client has more of them.
    let threads = |run: &Value, end: &str| count(&run["total"][end]["threads_max"]);
    assert!(threads(&three, "client") > threads(&one, "client"));
    assert_eq!(threads(&three, "server"), threads(&one, "server"));
}

#[test]
fn clients_beyond_descriptor_limit_use_more_processes() {
    let place = Place::new();
    let server = place.serve(&["orders", "--processes", "2"]);
    let url = server.plaintext();
    // 2,100 descriptors hold 2,036 connections besides the process's own.
    let limited = "ulimit -n 2100; exec \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", limited, "fleet", env!("CARGO_BIN_EXE_plimsoll")]);
    command.args(["grpc", &url, "--fleet", "6000", "--calls", "18001"]);
    command.args(["--connect-rate", "6000/s", "--think", "500ms"]);
    command.args([
        "--progress-every",
        "6000",
        "--deadline",
        "60s",
        "--out",
        "run",
    ]);
    command.args(ORDER).current_dir(place.path(""));
    command.env_clear().env("PATH", "/usr/bin:/bin");
    let began = Instant::now();
    let output = support::output(&mut command, Duration::from_secs(80));
    let (report, progress) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{report}\n{progress}");
    let run = place.run_json("run");
    assert_all_ok(&run, 18_001);
    assert_eq!(run["processes"], 3);
    assert_eq!(count(&run["total"]["connections_open_max"]), 6_000);
    assert_eq!(count(&run["stages"][0]["connections_full"]), 6_000);
    // All processes together keep to the rate.
    assert!(
        began.elapsed() >= Duration::from_millis(950),
        "{:?}",
        began.elapsed()
    );
    assert!(report.contains("from 3 processes"), "{report}");
    assert!(report.contains("a process may have 2,036"), "{report}");
    assert!(progress.contains("connecting: "), "{progress}");
    assert!(
        progress.matches("of 18,001 calls").count() >= 2,
        "{progress}"
    );
}

#[test]
fn credentials_reach_processes_but_no_file() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["score", "--delay", "0s"], &SERVER_MTLS[..]].concat());
    let url = server.tls();
    let mut arguments = vec![
        "grpc",
        &url,
        "--clients",
        "2",
        "--connections",
        "2",
        "--calls",
        "10",
        "--processes",
        "2",
        "--metadata",
        "authorization: Bearer hidden-word",
        "--out",
        "run",
        "--json",
        "-q",
    ];
    arguments.extend(CLIENT_MTLS);
    arguments.extend(SCORE);
    let run = place.expect_run(0, &arguments);
    assert_all_ok(&run, 10);
    assert_eq!(run["tls"]["version"], "TLSv1_3");
    for entry in fs::read_dir(place.path("run")).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        assert!(!text(&bytes).contains("hidden-word"));
    }
}

#[test]
fn fetch_and_bolt_run_in_multiple_processes() {
    let place = Place::new();
    let bolt = place.serve(&["bolt"]);
    let url = format!("sofa://{}", bolt.address());
    let run = place.expect_run(
        0,
        &[
            "bolt",
            &url,
            "--service",
            "bench.HelloService:1.0",
            "-m",
            "sayHello",
            "--data",
            "[\"you\"]",
            "--clients",
            "4",
            "--connections",
            "4",
            "--calls",
            "101",
            "--processes",
            "2",
            "--out",
            "bolt",
            "--json",
            "-q",
        ],
    );
    assert_all_ok(&run, 101);
    let files = place.serve(&["files"]);
    let url = format!("http://{}/bytes/1KiB", files.address());
    let run = place.expect_run(
        0,
        &[
            "fetch",
            &url,
            "--cold",
            "--clients",
            "3",
            "--calls",
            "50",
            "--processes",
            "3",
            "--out",
            "files",
            "--json",
            "-q",
        ],
    );
    assert_all_ok(&run, 50);
}

#[test]
fn unsplittable_loads_are_reported() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let says = |code: i32, more: &[&str], words: &[&str]| {
        let mut arguments = vec![
            "grpc",
            &url,
            "--clients",
            "4",
            "--calls",
            "10",
            "--out",
            "run",
            "-q",
        ];
        arguments.extend(SCORE);
        arguments.extend(more);
        let output = place.run(&arguments);
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(code), "{printed}");
        for word in words {
            assert!(printed.contains(word), "{printed}");
        }
        assert!(
            !place.path("run").exists(),
            "nothing was measured, so nothing is kept"
        );
    };
    says(
        2,
        &["--processes", "3"],
        &[
            "--processes",
            "3 processes for a load that has only one connection",
        ],
    );
    says(2, &["--processes", "0"], &["processes", "1 to 256"]);
    let both = [
        "--clients",
        "2",
        "--connections",
        "2",
        "--calls",
        "10",
        "--processes",
        "2",
    ];
    let secure = url.replace("grpc:", "grpcs:");
    let mut arguments = vec!["grpc", &secure, "--ca", "missing.crt", "--out", "run", "-q"];
    arguments.extend(SCORE);
    arguments.extend(both);
    let output = place.run(&arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr_of(&output).contains("missing.crt"),
        "{}",
        stderr_of(&output)
    );
    let closed = "grpc://127.0.0.1:1";
    let mut arguments = vec!["grpc", closed, "--out", "run", "-q"];
    arguments.extend(SCORE);
    arguments.extend(both);
    let output = place.run(&arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr_of(&output).contains("CONNECT_REFUSED"),
        "{}",
        stderr_of(&output)
    );
    // Nothing was measured, and the run records that.
    let run = place.run_json("run");
    assert_eq!(run["state"], "partial");
}

/// Returns the processes of a run once it has measured for more than a second.
#[track_caller]
fn wait_until_started(place: &Place, run: u32, n: usize) -> Vec<i32> {
    let end = Instant::now() + Duration::from_secs(30);
    let intervals = place.path("run/intervals.jsonl");
    while fs::read_to_string(&intervals).map_or(0, |text| text.lines().count()) < 2 {
        assert!(Instant::now() < end, "the load did not begin");
        thread::sleep(Duration::from_millis(20));
    }
    let parts = children(run);
    assert_eq!(parts.len(), n);
    parts
}

fn is_running(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Each process reads the log itself, and together they make each of its calls once.
#[test]
fn replayed_log_is_divided_over_processes() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let line = |n: u64| {
        let second = n / 100;
        format!(
            "::1 - - [28/Nov/2026:14:00:0{second} +0000] \"GET /bytes/{n}B HTTP/1.1\" 200 1 \"-\" \"-\"\n"
        )
    };
    let log: String = (0..300).map(line).collect();
    fs::write(place.path("access.log"), &log).unwrap();
    let url = server.plaintext().replace("grpc:", "http:");
    let mut arguments = vec!["http", &url, "--replay", "access.log", "--speed", "3x"];
    arguments.extend(["--processes", "2", "--connections", "4", "-q"]);
    place.expect(0, &[&arguments[..], &["--out", "run"]].concat());
    assert_all_ok(&place.run_json("run"), 300);
    // The saved plan rejects a file that has grown since.
    let mut grown = log;
    grown.push_str(&line(300));
    fs::write(place.path("access.log"), grown).unwrap();
    let again = place.run(&["run", "run/plan.toml", "--out", "again", "-q"]);
    let said = stderr_of(&again);
    assert_eq!(again.status.code(), Some(2), "{said}");
    assert!(said.contains("has changed"), "{said}");
}
