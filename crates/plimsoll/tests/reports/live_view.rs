//! The live view on a real (pseudo-) terminal: drawn, resized, ended by keys and signals, and the
//! terminal restored.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::support;
use crate::terminal;

use support::{Place, SCORE};
use terminal::TestTerminal;

/// Runs a load on `url` for half a minute unless it is ended before.
fn load<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["grpc", url];
    arguments.extend(SCORE);
    arguments.extend(["--rate", "200/s", "--out", "run"]);
    if !more.contains(&"--duration") {
        arguments.extend(["--duration", "30s"]);
    }
    arguments.extend(more);
    arguments
}

fn is_measuring(text: &str) -> bool {
    text.contains("measuring") && text.contains("200/s") && text.contains(" ms")
}

#[test]
fn live_view_resizes_and_ends_on_key() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "2ms"]);
    let url = server.plaintext();
    let mut seat = TestTerminal::start(&place.path(""), &load(&url, &["--objective", "p99 < 5s"]));
    let text = seat.until("figures", is_measuring);
    assert!(seat.is_whole_terminal());
    for words in [
        "score.ScoreService/GetScore at grpc://127.0.0.1:",
        "response",
        "service",
        "send delay",
        "in flight",
        "errors",
        "client",
        "server",
        "busiest worker",
        "left",
        "q/Ctrl-C: stop and save",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    seat.resize(20, 70);
    let text = seat.until("second size", |text| {
        let lines: Vec<&str> = text.lines().collect();
        lines.len() == 20 && lines[19].starts_with("q/Ctrl-C: stop and save")
    });
    assert!(
        text.lines().all(|line| line.chars().count() <= 70),
        "{text}"
    );
    seat.press("qqq");
    let (code, text) = seat.end();
    assert_eq!(code, 130, "{text}");
    let run = place.run_json("run");
    assert_eq!(run["state"], "aborted");
    assert!(run["total"]["ok"].as_u64() > Some(100), "{run}");
    // The file records the view's CPU time, which is a small share of a core.
    let view_us = run["live_view_cpu_us"].as_u64().expect("the view's CPU");
    let elapsed_us = run["elapsed_us"].as_u64().expect("a length");
    assert!(
        view_us > 0 && view_us < elapsed_us / 10,
        "{view_us} of {elapsed_us}"
    );
}

#[test]
fn signal_ends_view_and_run() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let seat = TestTerminal::start(&place.path(""), &load(&url, &[]));
    seat.until("figures", is_measuring);
    let pid = seat.child.process_id().expect("a process");
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    let (code, text) = seat.end();
    assert_eq!(code, 130, "{text}");
    assert_eq!(place.run_json("run")["state"], "aborted");
}

#[test]
fn ctrl_c_ends_search_and_keeps_results() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "2ms"]);
    let plan = format!(
        "name = \"score\"\ntarget = \"{}\"\n[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nmessage = {{ json = \"[0.1]\" }}\n[load]\nrate = \"50/s\"\n[objective]\np99 = \"< 1s\"\n[find]\ntrial = \"1500ms\"\n",
        server.plaintext()
    );
    std::fs::write(place.path("plan.toml"), plan).expect("written");
    let mut seat = TestTerminal::start(&place.path(""), &["find", "plan.toml", "--out", "search"]);
    seat.until("second trial", |text| {
        text.contains("step 2 at ")
            && text.contains("step  1 ")
            && text.contains("the load line is")
    });
    seat.press("\u{3}");
    let (code, text) = seat.end();
    assert_eq!(code, 130, "{text}");
    assert!(place.path("search/search.json").exists());
}

#[test]
fn progress_lines_on_terminal() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let seat = TestTerminal::start(
        &place.path(""),
        &load(&url, &["--progress", "lines", "--duration", "2s"]),
    );
    seat.until("lines", |text| {
        text.contains("s calls ") || text.contains("check        ")
    });
    assert!(!seat.is_whole_terminal());
    let (code, text) = seat.end();
    assert_eq!(code, 0, "{text}");
    let run = place.run_json("run");
    assert!(run.get("live_view_cpu_us").is_none(), "{run}");
}

/// Only the view is lost: the load runs to its end and is saved.
#[cfg(debug_assertions)]
#[test]
fn view_panic_restores_terminal() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let arguments = load(&url, &["--duration", "3s"]);
    let seat = TestTerminal::start_with_fault(&place.path(""), &arguments, "live:2");
    let (code, screen) = seat.end();
    assert_eq!(code, 70, "{screen}");
    let run = place.run_json("run");
    assert_eq!(run["total"]["due"], 600, "{run}");
    assert_eq!(run["count_check"]["matches"], true, "{run}");
    assert_ne!(run["state"], "partial", "{run}");
}
